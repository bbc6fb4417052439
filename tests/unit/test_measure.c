/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring layers and links: by threads over the memory transport, and the evaluation of given measurements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/json.h"
#include "runtime/measure/measure.h"
#include "runtime/model/model.h"

#define DEVICES 4 /* at most */
#define SEQ_LEN 16

static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_hidden_layers\":5,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"intermediate_size\":40,\"max_position_embeddings\":64,\"vocab_size\":300,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}";

#define TYPE "{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}}"
#define LINKS                                                                                                                              \
	"\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5},{\"scope\":\"cluster\",\"alpha_s\":1e-5,\"gbytes_per_s\":1}]" \
	"}"

static struct hspmd_cluster *cluster_of(const char *types, const char *nodes)
{
	char text[4096];
	struct hspmd_error err;
	snprintf(text, sizeof text, "{\"format\":\"hspmd-cluster-1\",\"device_types\":{%s},\"nodes\":[%s]," LINKS, types, nodes);
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "cluster", &err);
	json_decref(value);
	if (!c)
		fail_msg("%s", err.text);
	return c;
}

static struct hspmd_model *model_of(const char *text)
{
	struct hspmd_error err;
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_model *m = hspmd_model_from_json(value, "config", &err);
	json_decref(value);
	if (!m)
		fail_msg("%s", err.text);
	return m;
}

static struct hspmd_model *model(void)
{
	return model_of(config);
}

/* ---- real measurements */

struct party {
	struct hspmd_cluster *cluster;
	struct hspmd_model *model;
	struct hspmd_model_facts *facts;
	const struct hspmd_measure_options *options;
	struct hspmd_address addresses[DEVICES];
	pthread_barrier_t opened;
};

struct member {
	struct party *party;
	int device;
	pthread_t thread;
	json_t *row;
	struct hspmd_error err;
};

static void *run_member(void *argument)
{
	struct member *m = argument;
	struct party *p = m->party;
	struct hspmd_measure_context context = {
		.model = p->model, .facts = p->facts, .cluster = p->cluster, .device = m->device, .seq_len = SEQ_LEN, .began = hspmd_now()
	};
	struct hspmd_transport_options o = { .rank = m->device, .size = p->cluster->device_count, .timeout_s = 60 };
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &m->err);
	int bad = !ops || ops->open(&context.dev, 0, 1, &m->err) || hspmd_transport_memory.open(&o, &context.transport, &m->err) ||
	          context.transport->ops->address(context.transport, &p->addresses[m->device], &m->err);
	pthread_barrier_wait(&p->opened);
	if (!bad && !context.transport->ops->connect(context.transport, p->addresses, &m->err))
		m->row = hspmd_measure_device(&context, p->options, &m->err);
	if (context.transport)
		context.transport->ops->close(context.transport);
	if (context.dev)
		ops->close(context.dev);
	return NULL;
}

static json_t *measure(struct party *p)
{
	struct member members[DEVICES] = { 0 };
	int devices = p->cluster->device_count;
	assert_true(devices <= DEVICES);
	json_t *rows = json_array();
	pthread_barrier_init(&p->opened, NULL, (unsigned)devices);
	for (int d = 0; d < devices; d++) {
		members[d].party = p;
		members[d].device = d;
		assert_int_equal(pthread_create(&members[d].thread, NULL, run_member, &members[d]), 0);
	}
	for (int d = 0; d < devices; d++) {
		pthread_join(members[d].thread, NULL);
		free(p->addresses[d].data);
	}
	pthread_barrier_destroy(&p->opened);
	for (int d = 0; d < devices; d++) {
		if (!members[d].row)
			fail_msg("device %d: %s", d, members[d].err.text);
		json_array_append_new(rows, members[d].row);
	}
	return rows;
}

static void check_times(const struct hspmd_profile *p, int tp, int micro_batch)
{
	for (int i = 0; i < p->times_count; i++) {
		const struct hspmd_profile_times *t = &p->times[i];
		if (t->tp != tp || t->micro_batch != micro_batch)
			continue;
		assert_string_equal(t->device_type, "c");
		for (int l = 0; l < p->layer_count; l++) {
			assert_true(t->forward_s[l] > 0);
			assert_true(t->backward_s[l] > 0);
			assert_true(t->optimizer_s[l] > 0);
		}
		for (int l = 2; l < p->layer_count - 1; l++)
			assert_true(t->forward_s[l] == t->forward_s[1]);
		return;
	}
	fail_msg("nothing for tp %d, micro-batch %d", tp, micro_batch);
}

/* The profile that the party's devices measure; *rows: what they told. */
static struct hspmd_profile *profile_of(struct party *p, json_t **rows)
{
	struct hspmd_error err = { "" };
	p->facts = hspmd_model_facts_of(p->model, SEQ_LEN, &err);
	assert_non_null(p->facts);
	*rows = measure(p);
	struct hspmd_profile *profile = hspmd_measure_profile(p->model, *rows, SEQ_LEN, p->cluster, &err);
	if (!profile)
		fail_msg("%s", err.text);
	return profile;
}

static void end_party(struct party *p, struct hspmd_profile *profile, json_t *rows)
{
	hspmd_profile_destroy(profile);
	json_decref(rows);
	hspmd_model_facts_destroy(p->facts);
	hspmd_model_destroy(p->model);
	hspmd_cluster_destroy(p->cluster);
}

static void measured(void **state)
{
	(void)state;
	struct hspmd_error err;
	/* A model with 4 heads cannot be split in 3; there are not as many devices anyway. */
	struct hspmd_measure_options w = {
		.tp_count = 3, .tps = { 1, 2, 3 }, .micro_batch_count = 2, .micro_batches = { 1, 2 }, .seq_len = SEQ_LEN, .budget_s = 600
	};
	struct party party = { .cluster = cluster_of("\"c\":" TYPE, "{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":2}]}"),
		               .model = model(),
		               .options = &w };
	json_t *rows;
	struct hspmd_profile *p = profile_of(&party, &rows);
	assert_int_equal(p->layer_count, hspmd_model_layers(party.model));
	assert_int_equal(p->times_count, 4);
	for (int tp = 1; tp <= 2; tp++)
		for (int micro_batch = 1; micro_batch <= 2; micro_batch++)
			check_times(p, tp, micro_batch);
	assert_int_equal(p->tied_count, 1);
	assert_true(p->layers[0].params == 300 * 24 && p->layers[6].params == 300 * 24 + 24);
	assert_true(p->layers[1].output_elems == SEQ_LEN * 24);
	/* A block keeps at least its input, q, k, v and the values within the MLP. */
	assert_true(p->layers[1].activation_bytes >= 4.0 * SEQ_LEN * (24 + 48 + 3 * 40) && p->layers[1].activation_bytes < 1e6);
	/* What is written can be read again. */
	json_t *text = hspmd_profile_to_json(p);
	struct hspmd_profile *again = hspmd_profile_from_json(text, "profile", &err);
	if (!again)
		fail_msg("%s", err.text);
	hspmd_profile_destroy(again);
	json_decref(text);
	const struct hspmd_link *l = hspmd_cluster_find_link(party.cluster, 0, 1, 1, 1);
	assert_true(l && l->point_count >= 2 && l->points[0][1] > 0);
	assert_int_equal(party.cluster->link_count, 2); /* and the assumed link between nodes */
	end_party(&party, p, rows);
}

#define MIXED                                                                                                                              \
	"\"num_attention_heads\":4,\"num_key_value_heads\":4,\"intermediate_size\":160,\"max_position_embeddings\":64,\"vocab_size\":300,"
static const char windows[] =
        "{\"model_type\":\"gemma3_text\",\"hidden_size\":24,\"num_hidden_layers\":7,\"head_dim\":8,\"sliding_window\":4," MIXED
        "\"sliding_window_pattern\":3}";
static const char experts[] =
        "{\"model_type\":\"deepseek_v2\",\"hidden_size\":24,\"num_hidden_layers\":6," MIXED
        "\"n_routed_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":12,\"topk_method\":\"greedy\","
        "\"first_k_dense_replace\":4,\"q_lora_rank\":null,\"kv_lora_rank\":7,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,"
        "\"v_head_dim\":8,\"n_shared_experts\":1}";

/* Layers of different kinds have times of their own, however late they come. */
static void kinds_of_layers_are_measured_apart(void **state)
{
	(void)state;
	static const struct {
		const char *config, *kinds; /* of the blocks */
	} mixed[] = { { windows, "wwfwwfw" }, { experts, "ddddee" } };
	struct hspmd_measure_options w = {
		.tp_count = 1, .tps = { 1 }, .micro_batch_count = 1, .micro_batches = { 1 }, .seq_len = SEQ_LEN, .budget_s = 600
	};
	for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) {
		struct party party = { .cluster = cluster_of("\"c\":" TYPE, "{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":1}]}"),
			               .model = model_of(mixed[i].config),
			               .options = &w };
		json_t *rows;
		struct hspmd_profile *p = profile_of(&party, &rows);
		const double *forward = p->times[0].forward_s;
		for (size_t a = 0; mixed[i].kinds[a]; a++)
			for (size_t b = 0; b < a; b++)
				assert_true((forward[a + 1] == forward[b + 1]) == (mixed[i].kinds[a] == mixed[i].kinds[b]));
		end_party(&party, p, rows);
	}
}

/* Of a large model whose second kind comes last, one layer of each kind is measured, not all layers before. */
static void late_kinds_are_measured_alone(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	double start[2];
	for (int late = 0; late < 2; late++) {
		char *text = hspmd_asprintf("{\"model_type\":\"qwen2\",\"hidden_size\":2048,\"num_hidden_layers\":24,"
		                            "\"num_attention_heads\":16,\"num_key_value_heads\":16,\"intermediate_size\":8192,"
		                            "\"max_position_embeddings\":64,\"vocab_size\":300,\"use_sliding_window\":true,"
		                            "\"sliding_window\":8,\"max_window_layers\":%d}",
		                            late ? 22 : 1);
		struct hspmd_model *m = model_of(text);
		struct hspmd_measure_context context = {
			.model = m,
			.facts = hspmd_model_facts_of(m, SEQ_LEN, &err),
			.cluster = cluster_of("\"c\":" TYPE, "{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":1}]}"),
		};
		assert_non_null(context.facts);
		start[late] = hspmd_trial_estimate(&context, 1, 1).start_s;
		hspmd_model_facts_destroy((struct hspmd_model_facts *)context.facts);
		hspmd_cluster_destroy((struct hspmd_cluster *)context.cluster);
		hspmd_model_destroy(m);
		free(text);
	}
	assert_true(start[1] > 0 && start[1] < start[0]);
}

/* Between four nodes each of the six pairs is measured once. */
static void every_pair_of_nodes(void **state)
{
	(void)state;
	struct hspmd_measure_options w = {
		.tp_count = 1, .tps = { 1 }, .micro_batch_count = 1, .micro_batches = { 1 }, .seq_len = SEQ_LEN, .budget_s = 600
	};
	struct party party = { .cluster = cluster_of("\"c\":" TYPE, "{\"name\":\"n[0-3]\",\"devices\":[{\"type\":\"c\",\"count\":1}]}"),
		               .model = model(),
		               .options = &w };
	struct hspmd_error err = { "" };
	party.facts = hspmd_model_facts_of(party.model, SEQ_LEN, &err);
	assert_non_null(party.facts);
	json_t *rows = measure(&party);
	int found[4][4] = { { 0 } }, pairs = 0;
	for (int d = 0; d < 4; d++) {
		json_t *links = json_object_get(json_array_get(rows, (size_t)d), "links"), *link;
		size_t i;
		json_array_foreach(links, i, link) {
			int to = (int)json_integer_value(json_object_get(link, "to"));
			assert_true(to >= 0 && to < 4 && to != d);
			pairs += !found[d][to]++ && !found[to][d];
		}
	}
	assert_int_equal(pairs, 6);
	json_decref(rows);
	hspmd_model_facts_destroy(party.facts);
	hspmd_model_destroy(party.model);
	hspmd_cluster_destroy(party.cluster);
}

/* ---- evaluation of given measurements */

static const char row_form[] =
        "{\"device\":%d,\"layers\":[{\"tp\":1,\"micro_batch\":2,\"seconds\":[[%g,%g,%g],[%g,%g,%g],[%g,%g,%g]]}],\"kept\":[1,2,3],"
        "\"notes\":[],\"links\":[%s]}";

static void add_row(json_t *rows, int device, double factor, const char *links)
{
	char text[2048];
	double f = factor;
	snprintf(text, sizeof text, row_form, device, f * 1e-3, f * 2e-3, f * 3e-3, f * 4e-3, f * 5e-3, f * 6e-3, f * 7e-3, f * 8e-3,
	         f * 9e-3, links);
	json_t *row = json_loads(text, 0, NULL);
	assert_non_null(row);
	json_array_append_new(rows, row);
}

static void slow_nodes(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_cluster *c = cluster_of("\"c\":" TYPE, "{\"name\":\"n[0-2]\",\"devices\":[{\"type\":\"c\",\"count\":1}]}");
	struct hspmd_model *m = model();
	json_t *rows = json_array();
	add_row(rows, 0, 1.04,
	        "{\"to\":1,\"points\":[[1000,1e-5],[1000000,1e-3]]},{\"to\":2,\"points\":[[1000,2e-5],[1000000,2e-3],[2000000,4e-3]]}");
	add_row(rows, 1, 1.0, "{\"to\":2,\"points\":[[1000,1.1e-5],[1000000,1e-3]]}");
	add_row(rows, 2, 2.0, "");
	struct hspmd_profile *p = hspmd_measure_profile(m, rows, SEQ_LEN, c, &err);
	if (!p)
		fail_msg("%s", err.text);
	assert_true(c->nodes[0].slowdown == 1 && c->nodes[1].slowdown == 1);
	assert_true(fabs(c->nodes[2].slowdown - 2) < 1e-9);
	assert_int_equal(p->times_count, 1);
	assert_true(fabs(p->times[0].forward_s[0] - 1.02e-3) < 1e-9); /* of the two healthy ones */
	assert_true(fabs(p->times[0].optimizer_s[3] - 1.02 * 6e-3) < 1e-9);
	assert_true(fabs(p->times[0].backward_s[6] - 1.02 * 8e-3) < 1e-9);
	assert_true(p->layers[1].activation_bytes == 2);
	/* The pair that is slower than the mean has its own entry, the others share one; no assumed link is left between nodes. */
	assert_true(hspmd_link_seconds(hspmd_cluster_find_link(c, 0, 2, 1, 1), 1000) == 2e-5);
	assert_ptr_equal(hspmd_cluster_find_link(c, 0, 1, 1, 1), hspmd_cluster_find_link(c, 1, 2, 1, 1));
	for (int i = 0; i < c->link_count; i++)
		assert_true(c->links[i].scope == HSPMD_LINK_NODE || c->links[i].point_count > 0);
	hspmd_profile_destroy(p);
	json_decref(rows);
	/* Invalid rows. */
	rows = json_pack("[{si,s[],s[],s[],sn}]", "device", 7, "layers", "links", "notes", "kept");
	assert_null(hspmd_measure_profile(m, rows, SEQ_LEN, c, &err));
	json_decref(rows);
	rows = json_pack("[{si,s[],s[],s[],sn}]", "device", 0, "layers", "links", "notes", "kept");
	assert_null(hspmd_measure_profile(m, rows, SEQ_LEN, c, &err));
	assert_string_equal(err.text, "no device could measure a layer");
	json_decref(rows);
	hspmd_model_destroy(m);
	hspmd_cluster_destroy(c);
}

/* ---- the pairs to measure */

/* A node has at most one pair per round, unless the pair is within it; every pair of `wanted` types between nodes is included. */
static void check_pairs(const struct hspmd_cluster *c, int count_wanted)
{
	struct hspmd_error err;
	struct hspmd_link_pair *pairs;
	int count = hspmd_measure_pairs(c, &pairs, &err), *last = calloc((size_t)c->node_count, sizeof *last);
	assert_int_equal(count, count_wanted);
	for (int n = 0; n < c->node_count; n++)
		last[n] = -1;
	for (int i = 0; i < count; i++) {
		int a = c->devices[pairs[i].from].node, b = c->devices[pairs[i].to].node;
		assert_true(pairs[i].from != pairs[i].to && (!i || pairs[i].round >= pairs[i - 1].round));
		assert_true(last[a] < pairs[i].round && last[b] < pairs[i].round);
		last[a] = last[b] = pairs[i].round;
	}
	for (int x = 0; x < c->type_count; x++)
		for (int y = x; y < c->type_count; y++) {
			bool found = false;
			for (int i = 0; i < count; i++) {
				int s = c->devices[pairs[i].from].type, t = c->devices[pairs[i].to].type;
				found |= c->devices[pairs[i].from].node != c->devices[pairs[i].to].node &&
				         ((s == x && t == y) || (s == y && t == x));
			}
			assert_true(found);
		}
	free(last);
	free(pairs);
}

static void pairs(void **state)
{
	(void)state;
	struct hspmd_cluster *c = cluster_of("\"c\":" TYPE, "{\"name\":\"n[0-4]\",\"devices\":[{\"type\":\"c\",\"count\":1}]}");
	check_pairs(c, 10);
	hspmd_cluster_destroy(c);
	/* Each node's own pair, then all pairs of four nodes, then the type that is first on no node. */
	c = cluster_of("\"c\":" TYPE ",\"d\":" TYPE,
	               "{\"name\":\"n[0-3]\",\"devices\":[{\"type\":\"c\",\"count\":2},{\"type\":\"d\",\"count\":1}]}");
	check_pairs(c, 4 * 2 + 6 + 2);
	hspmd_cluster_destroy(c);
	c = cluster_of("\"c\":" TYPE ",\"d\":" TYPE, "{\"name\":\"n[0-9]\",\"devices\":[{\"type\":\"c\",\"count\":1}]},{\"name\":\"m[0-9]"
	                                             "\",\"devices\":[{\"type\":\"d\",\"count\":1}]}");
	check_pairs(c, 19);
	hspmd_cluster_destroy(c);
}

static void middle(void **state)
{
	(void)state;
	double odd[] = { 9, 1, 2, 3, 100 }, one[] = { 4 };
	assert_true(fabs(hspmd_middle_mean(odd, 5) - 14.0 / 3) < 1e-12); /* of 2, 3, 9 */
	assert_true(hspmd_middle_mean(one, 1) == 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(measured),
		cmocka_unit_test(kinds_of_layers_are_measured_apart),
		cmocka_unit_test(late_kinds_are_measured_alone),
		cmocka_unit_test(every_pair_of_nodes),
		cmocka_unit_test(slow_nodes),
		cmocka_unit_test(pairs),
		cmocka_unit_test(middle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
