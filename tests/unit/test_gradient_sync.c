/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of gradients move no more than they must. Of replicas on several nodes, each byte crosses between nodes once per node if links
 * within nodes are faster, and the losses do not change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "runtime/model/model.h"
#include "runtime/program/program.h"
#include "tests/unit/trainer.h"

#define STEPS 8
#define NODES 2
#define DEVICES 6

/* Two nodes with three devices each. */
static const char cluster[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n[0-1]\",\"devices\":[{\"type\":\"c\",\"count\":3}]}],\"links\":["
        "{\"scope\":\"node\",\"alpha_s\":1e-7,\"gbytes_per_s\":100},{\"scope\":\"cluster\",\"alpha_s\":1e-6,\"gbytes_per_s\":0.1}]}";

#define HEAD "{\"format\":\"hspmd-plan-1\",\"global_batch\":6,\"micro_batch\":1,\"seq_len\":16,\"pipelines\":"
#define REPLICA(device) "{\"micro_batches\":1,\"stages\":[{\"layers\":[0,5],\"devices\":[\"" device "\"]}]}"
static const char six[] =
        HEAD "[" REPLICA("n0:0") "," REPLICA("n0:1") "," REPLICA("n0:2") "," REPLICA("n1:0") "," REPLICA("n1:1") "," REPLICA("n1:2") "]}";
static const char one[] = HEAD "[{\"micro_batches\":6,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n0:0\"]}]}]}";
/* Two nodes with two devices and two with one: groups of four, one of which has members of unequal widths. */
static const char mixed[] =
        HEAD "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n0:0-1\"]}]},"
             "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n0:2\"]},{\"layers\":[2,5],\"devices\":[\"n1:2\"]}]},"
             "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n1:0-1\"]}]}]}";

struct scene {
	struct hspmd_cluster *cluster;
	struct hspmd_model *model;
	struct hspmd_plan *plan;
	struct hspmd_program *program;
};

/* Gradients of more than a megabyte a layer, so that buckets are sent while others fill. */
static const char wide[] = "{\"model_type\":\"gpt2\",\"n_embd\":192,\"n_layer\":6,\"n_head\":4,\"n_positions\":32,\"vocab_size\":257,"
                           "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";

static void build_for(struct scene *s, const char *model, const char *plan, int device)
{
	struct hspmd_error err = { "" };
	json_t *c = json_loads(cluster, 0, NULL), *m = json_loads(model, 0, NULL), *p = json_loads(plan, 0, NULL);
	s->cluster = hspmd_cluster_from_json(c, "cluster", &err);
	s->model = s->cluster ? hspmd_model_from_json(m, "model", &err) : NULL;
	s->plan = s->model ? hspmd_plan_from_json(p, "plan", s->cluster, hspmd_model_layers(s->model), &err) : NULL;
	struct hspmd_graph_source source = s->plan ? hspmd_graph_source_model(s->model) : (struct hspmd_graph_source){ 0 };
	s->program = s->plan ? hspmd_program_build(&source, s->plan, s->cluster, device, NULL, &err) : NULL;
	json_decref(c);
	json_decref(m);
	json_decref(p);
	if (!s->program)
		fail_msg("%s", err.text);
}

static void build(struct scene *s, const char *plan)
{
	build_for(s, trainer_gpt2, plan, 0);
}

static void clear(struct scene *s)
{
	hspmd_program_destroy(s->program);
	hspmd_plan_destroy(s->plan);
	hspmd_model_destroy(s->model);
	hspmd_cluster_destroy(s->cluster);
}

static int64_t all_parameters(const struct hspmd_program *p)
{
	int64_t elements = 0;
	for (int i = 0; i < p->state_count; i++)
		elements += hspmd_shape_elements(&p->graph->tensors[p->states[i].tensor].shape);
	return elements;
}

/* Number of elements that a step's sums move between members on different nodes: for an all-reduce, each member's part of the addends
 * and of the sums. */
static double crossing(const struct scene *s)
{
	const struct hspmd_program *p = s->program;
	double elements = 0;
	for (size_t i = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM || in->micro_batch >= 0 || in->step)
			continue;
		for (int k = 0; k < in->transfer->step_count; k++) {
			const struct hspmd_comm_step *step = &in->transfer->steps[k];
			int there[NODES] = { 0 };
			for (int m = 0; m < step->member_count; m++)
				there[s->cluster->devices[step->members[m]].node]++;
			double pairs = 2.0 * there[0] * there[1]; /* ordered pairs */
			if (!pairs)
				continue;
			if (step->kind != HSPMD_COMM_ALL_REDUCE)
				fail_msg("a sum goes between nodes by %s", hspmd_comm_kind_names[step->kind]);
			elements += 2 * pairs * (double)hspmd_box_elements(&step->in[0]) / step->member_count;
		}
	}
	return elements;
}

static void once_a_node(void **state)
{
	(void)state;
	struct scene s;
	build(&s, six);
	double all = (double)all_parameters(s.program);
	/* Two nodes as two members: each sends half of its addends and half of the sums. */
	double gone = crossing(&s);
	if (!(gone >= 2 * all && gone < 2.1 * all))
		fail_msg("%g elements go between nodes for %g parameters", gone, all);
	clear(&s);
}

static void same_losses(void **state)
{
	(void)state;
	static const char *const plans[] = { six, mixed };
	struct hspmd_error err = { "" };
	double want[STEPS], got[STEPS], again[STEPS];
	struct trainer_options o = { .cluster = cluster, .model = trainer_gpt2, .plan = one, .steps = STEPS };
	if (trainer_train(&o, want, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		o.plan = plans[i];
		if (trainer_train(&o, got, &err) || trainer_train(&o, again, &err))
			fail_msg("plan %zu: %s", i, err.text);
		for (int k = 0; k < STEPS; k++)
			if (!(fabs(got[k] - want[k]) < 1e-5 * want[k]))
				fail_msg("plan %zu: loss of step %d is %.17g, not %.17g", i, k, got[k], want[k]);
		assert_memory_equal(got, again, sizeof got);
	}
}

/* The tags of what this device does together with `other`, in their order, as text: of sums once per step, or of the passes. Messages
 * between stages are not among them: there one side sends when the other comes to it. */
static char *common_with(const struct hspmd_program *p, int other, bool passes)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	for (size_t i = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM || (in->micro_batch >= 0) != passes || in->peer_pipeline_rank >= 0)
			continue;
		const struct hspmd_comm_step *step = &in->transfer->steps[in->step];
		int64_t elements = 0;
		bool there = false;
		for (int m = 0; m < step->member_count; m++) {
			elements += step->in ? hspmd_box_elements(&step->in[m]) : 0;
			there = there || step->members[m] == other;
		}
		if (there)
			fprintf(f, "%llx:%lld ", (unsigned long long)in->tag, (long long)elements);
	}
	fclose(f);
	return text;
}

/* Any two devices agree on what they do together, and in which order. Returns the length of its text. */
static size_t check_order(const char *model, const char *plan, bool passes)
{
	struct scene s[DEVICES];
	size_t shared = 0;
	for (int d = 0; d < DEVICES; d++)
		build_for(&s[d], model, plan, d);
	for (int a = 0; a < DEVICES; a++)
		for (int b = 0; b < a; b++) {
			char *x = common_with(s[a].program, b, passes), *y = common_with(s[b].program, a, passes);
			assert_string_equal(x, y);
			shared += strlen(x);
			free(x);
			free(y);
		}
	for (int d = 0; d < DEVICES; d++)
		clear(&s[d]);
	return shared;
}

/* A device knows only of gradients that it has a part of. */
static void same_order(void **state)
{
	(void)state;
	/* Stages end at different layers, so that neighbouring layers are summed in different groups; of all widths. */
	static const char *const plans[] = {
		HEAD
		"[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,3],\"devices\":[\"n0:0\"]},{\"layers\":[3,8],\"devices\":[\"n0:1\"]}]},"
		"{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n0:2\"]},{\"layers\":[5,8],\"devices\":[\"n1:0\"]}]},"
		"{\"micro_batches\":2,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n1:1\"]},{\"layers\":[2,8],\"devices\":[\"n1:2\"]}]}]}",
		HEAD
		"[{\"micro_batches\":3,\"stages\":[{\"layers\":[0,8],\"devices\":[\"n0:0-1\"]}]},{\"micro_batches\":3,\"stages\":["
		"{\"layers\":[0,3],\"devices\":[\"n1:0-1\"]},{\"layers\":[3,6],\"devices\":[\"n0:2\"]},{\"layers\":[6,8],\"devices\":[\"n1:"
		"2\"]}]}]}",
	};
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
		assert_true(check_order(wide, plans[i], false) > 0);
}

/* Each device of two context groups of two has the gradients of one head of keys and values at all positions, by its own heads and
 * positions: they are summed before they are multiplied by the weights, as what is eight times as wide would have to be otherwise. */
static void narrow_gradients_are_summed(void **state)
{
	(void)state;
	static const char model[] =
	        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":8,"
	        "\"num_key_value_heads\":1,\"max_position_embeddings\":32,\"vocab_size\":257,\"tie_word_embeddings\":false}";
	static const char *const plans[] = {
		HEAD "[{\"micro_batches\":6,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n0:0-1\",\"n1:0-1\"],\"context\":2}]}]}",
		HEAD "[{\"micro_batches\":6,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n0:0-1\",\"n1:0-1\"],\"context\":2,"
		     "\"context_ratio\":[0.75,0.25]}]}]}",
	};
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		struct scene s;
		build_for(&s, model, plans[i], 0);
		int sums = 0;
		for (size_t k = 0; k < s.program->vote; k++) {
			const struct hspmd_instruction *in = &s.program->instructions[k];
			if (in->kind != HSPMD_INSTRUCTION_COMM || in->micro_batch != 0 ||
			    in->transfer->steps[in->step].kind != HSPMD_COMM_REDUCE_SCATTER)
				continue;
			assert_int_equal(in->transfer->steps[in->step].in[0].hi[2], 8);
			sums++;
		}
		assert_int_equal(sums, 2 * 3);
		clear(&s);
	}
}

/* ---- messages of a step */

struct counts {
	int tensors;  /* steps of single tensors, each of which would have messages of its own */
	int messages; /* of these, those that are not joined with one before them */
};

/* What a device does in the passes (0), in the sums behind them (1), and behind the vote (2). */
static void count(const struct hspmd_program *p, struct counts *c)
{
	memset(c, 0, 3 * sizeof *c);
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM)
			continue;
		struct counts *of = &c[in->micro_batch >= 0 ? 0 : i < p->vote ? 1 : 2];
		enum hspmd_comm_kind kind = in->transfer->steps[in->step].kind;
		bool sent = kind != HSPMD_COMM_COPY && kind != HSPMD_COMM_ZERO;
		of->tensors += sent;
		of->messages += sent && !in->joins;
	}
}

/* A decoder of three blocks. */
static const char llama[] =
        "{\"model_type\":\"llama\",\"hidden_size\":32,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
        "\"intermediate_size\":48,\"max_position_embeddings\":64,\"vocab_size\":257,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";
#define LAYERS 5

#define ZERO(stage)                                                                                                                        \
	"{\"format\":\"hspmd-plan-1\",\"zero_stage\":" #stage ",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"pipelines\":"
#define PAIR(device) "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"" device "\"]}]}"
#define FOUR "[" PAIR("n0:0") "," PAIR("n0:1") "," PAIR("n1:0") "," PAIR("n1:1") "]}"
/* Tensor parallelism of two, one and one. */
#define UNEQUAL "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n0:0-1\"]}]}," PAIR("n0:2") "," PAIR("n1:0") "]}"
#define TWICE(devices) "{\"micro_batches\":2,\"micro_batch\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"" devices "\"]}]}"
#define IN_STEP "[" TWICE("n0:0-1") "," PAIR("n0:2") "," PAIR("n1:0") "]}"

static const struct {
	const char *name, *plan;
	int device;
	struct counts passes, sums, parameters;
} plans[] = {
	{ "ZeRO-1", ZERO(1) FOUR, 0, { 0, 0 }, { 49, 5 }, { 46, 2 } },
	{ "ZeRO-2", ZERO(2) FOUR, 0, { 120, 36 }, { 0, 0 }, { 60, 2 } },
	{ "ZeRO-3", ZERO(3) FOUR, 0, { 352, 72 }, { 0, 0 }, { 0, 0 } },
	{ "unequal", ZERO(0) UNEQUAL, 0, { 60, 60 }, { 37, 3 }, { 0, 0 } },
	{ "unequal, whole", ZERO(0) UNEQUAL, 2, { 0, 0 }, { 53, 3 }, { 0, 0 } },
	{ "unequal, ZeRO-1", ZERO(1) UNEQUAL, 0, { 60, 60 }, { 37, 3 }, { 23, 1 } },
	{ "unequal, ZeRO-2", ZERO(2) IN_STEP, 2, { 60, 24 }, { 0, 0 }, { 37, 3 } },
	{ "unequal, ZeRO-3", ZERO(3) IN_STEP, 2, { 202, 70 }, { 0, 0 }, { 0, 0 } },
};
#define PLAN_COUNT (sizeof plans / sizeof *plans)

/* What has the same way travels together: matrices under ZeRO-1 and, layer by layer in each pass, all parameters under ZeRO-2 and 3, but
 * for the gradient of a layer's first one; tensors that pipelines divide differently. Between nodes there are two steps. */
static void messages_are_joined(void **state)
{
	(void)state;
	for (size_t i = 0; i < PLAN_COUNT; i++) {
		struct scene s;
		struct counts got[3];
		const struct counts *want[] = { &plans[i].passes, &plans[i].sums, &plans[i].parameters };
		build_for(&s, llama, plans[i].plan, plans[i].device);
		count(s.program, got);
		for (int k = 0; k < 3; k++) {
			assert_int_equal(got[k].tensors, want[k]->tensors);
			assert_int_equal(got[k].messages, want[k]->messages);
		}
		clear(&s);
	}
}

/* What a message's instructions read and write is there at one time, so that no two of their slots share memory. */
static void joined_slots_are_apart(void **state)
{
	(void)state;
	int pairs = 0;
	for (size_t i = 0; i < PLAN_COUNT; i++) {
		struct scene s;
		build_for(&s, llama, plans[i].plan, plans[i].device);
		const struct hspmd_program *p = s.program;
		for (size_t first = 0; first < p->instruction_count; first++)
			for (int k = 1; k <= 2 * p->instructions[first].joined + 1; k++)
				for (int other = 0; other < k; other++) {
					const struct hspmd_instruction *x = &p->instructions[first + (size_t)k / 2],
					                               *y = &p->instructions[first + (size_t)other / 2];
					int a = k % 2 ? x->out[0] : x->in[0], b = other % 2 ? y->out[0] : y->in[0];
					if (!p->instructions[first].joined || a < 0 || b < 0 || a == b ||
					    p->slots[a].memory != p->slots[b].memory)
						continue;
					size_t begin_a = p->slots[a].offset, end_a = begin_a + p->slot_types[p->slots[a].slot_type].bytes,
					       begin_b = p->slots[b].offset, end_b = begin_b + p->slot_types[p->slots[b].slot_type].bytes;
					if (begin_a < end_b && begin_b < end_a)
						fail_msg("%s: slots %d and %d of the message at instruction %zu overlap", plans[i].name, a,
						         b, first);
					pairs++;
				}
		clear(&s);
	}
	assert_true(pairs > 1000);
}

/* The bits are those of messages of their own. */
static void joined_sums_have_the_same_bits(void **state)
{
	(void)state;
	for (size_t i = 0; i < PLAN_COUNT; i++) {
		struct hspmd_error err = { "" };
		double joined[STEPS], apart[STEPS];
		struct trainer_options o = { .cluster = cluster, .model = llama, .plan = plans[i].plan, .steps = STEPS };
		if (trainer_train(&o, joined, &err))
			fail_msg("%s: %s", plans[i].name, err.text);
		setenv("HSPMD_UNJOINED", "1", 1);
		int status = trainer_train(&o, apart, &err);
		unsetenv("HSPMD_UNJOINED");
		if (status)
			fail_msg("%s, apart: %s", plans[i].name, err.text);
		assert_memory_equal(joined, apart, sizeof joined);
	}
}

/* A tied parameter is gathered with others in the first layer and alone in the last one, whose messages are waited for already while those
 * of the first are on their way: a tag tells which they are. */
static void joined_messages_have_tags_of_their_own(void **state)
{
	(void)state;
	struct scene s;
	int both_ways = 0;
	build(&s, ZERO(3) "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n0:0\"],\"zero_share\":3}]}," PAIR(
	                  "n0:1") "," PAIR("n0:2") ",{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n1:0-1\"],"
	                                           "\"context\":2}]}]}");
	const struct hspmd_program *p = s.program;
	for (size_t i = 0; i < p->instruction_count; i++)
		for (size_t k = 0; k < p->instruction_count; k++) {
			const struct hspmd_instruction *a = &p->instructions[i], *b = &p->instructions[k];
			if (a->kind != HSPMD_INSTRUCTION_COMM || b->kind != HSPMD_INSTRUCTION_COMM || !a->joined || b->joined || b->joins)
				continue;
			both_ways += a->tag >> 17 == b->tag >> 17;
			assert_true(a->tag != b->tag);
		}
	assert_true(both_ways > 0);
	clear(&s);
}

/* ---- parameters gathered ahead */

#define STAGES(device, next)                                                                                                               \
	"{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"" device "\"]},{\"layers\":[2,5],\"devices\":[\"" next "\"]}]}"
#define CHUNKS(device, next)                                                                                                               \
	"{\"micro_batches\":4,\"stages\":[{\"layers\":[0,1],\"devices\":[\"" device "\"]},{\"layers\":[1,2],\"devices\":[\"" next          \
	"\"]},{\"layers\":[2,3],\"devices\":[\"" device "\"]},{\"layers\":[3,5],\"devices\":[\"" next "\"]}]}"

static const char *const ahead[] = {
	ZERO(3) FOUR,
	ZERO(3) IN_STEP,
	ZERO(3) "[" STAGES("n0:0", "n0:1") "," STAGES("n1:0", "n1:1") "]}",
	ZERO(3) "[" STAGES("n0:0", "n0:1") "," STAGES("n1:0", "n1:1") "],\"schedule\":\"gpipe\"}",
	ZERO(3) "[" CHUNKS("n0:0", "n0:1") "," CHUNKS("n1:0", "n1:1") "],\"schedule\":\"interleaved\",\"virtual_stages\":2}",
};
#define AHEAD_COUNT (sizeof ahead / sizeof *ahead)

/* The passes of devices in step have their messages in one order, also where a layer is gathered ahead in another micro-batch's pass. */
static void same_order_in_passes(void **state)
{
	(void)state;
	static const char *const models[] = { llama, trainer_gpt2 }; /* the latter's first and last layer share a weight */
	for (size_t i = 0; i < AHEAD_COUNT; i++)
		for (size_t m = 0; m < sizeof models / sizeof *models; m++)
			assert_true(check_order(models[m], ahead[i], true) > 0);
}

/* The instruction that gathered the parameter in a slot, before `at`; SIZE_MAX: none did. */
static size_t gathered_by(const struct hspmd_program *p, size_t at, int slot)
{
	const struct hspmd_slot *s = slot < 0 ? NULL : &p->slots[slot];
	if (!s || s->memory != HSPMD_ARENA_TRANSIENT ||
	    p->graph->tensors[p->slot_types[s->slot_type].tensor].role != HSPMD_TENSOR_PARAMETER)
		return SIZE_MAX;
	while (at-- > 0)
		if (p->instructions[at].kind == HSPMD_INSTRUCTION_COMM && p->instructions[at].out[0] == slot)
			return at;
	return SIZE_MAX;
}

/* Each layer of a pass but the program's first two uses parameters whose gathering began before the layer before it computed. */
static void check_ahead(const struct hspmd_program *p)
{
	size_t begins[2] = { 0 }; /* where the layers before this one began to compute: the last, and the one before it */
	const struct hspmd_instruction *last = NULL;
	int used = 0, visits = 0;
	for (size_t i = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_RUN || in->opcode == HSPMD_OP_ACCUMULATE)
			continue;
		bool comes = !last || last->layer != in->layer || last->micro_batch != in->micro_batch || last->backward != in->backward;
		last = in;
		if (comes) {
			begins[1] = begins[0];
			begins[0] = i;
			visits++;
		}
		for (int k = 0; k < in->input_count; k++) {
			size_t by = gathered_by(p, i, in->in[k]);
			if (by == SIZE_MAX || visits < 3)
				continue;
			assert_true(by < begins[1]);
			used++;
		}
	}
	assert_true(used > 10);
}

static int count_ahead(const struct hspmd_program *p)
{
	int count = 0;
	for (size_t i = 0; i < p->instruction_count; i++)
		count += p->instructions[i].ahead;
	return count;
}

/* A plan that does without takes less memory, and all bits are the same. */
static void layers_are_gathered_ahead(void **state)
{
	(void)state;
	for (size_t i = 0; i < AHEAD_COUNT; i++) {
		struct hspmd_error err = { "" };
		struct scene with, without;
		double losses[2][STEPS];
		char late[1024];
		snprintf(late, sizeof late, "{\"prefetch\":false,%s", ahead[i] + 1);
		build_for(&with, llama, ahead[i], 0);
		build_for(&without, llama, late, 0);
		check_ahead(with.program);
		assert_int_equal(count_ahead(without.program), 0);
		assert_true(without.program->arena_bytes < with.program->arena_bytes);
		clear(&with);
		clear(&without);
		for (int k = 0; k < 2; k++) {
			struct trainer_options o = { .cluster = cluster, .model = llama, .plan = k ? late : ahead[i], .steps = STEPS };
			if (trainer_train(&o, losses[k], &err))
				fail_msg("plan %zu, %s: %s", i, k ? "without" : "with", err.text);
		}
		assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
	}
}

/* Under ZeRO-1 vectors, of which there are more than matrices, are summed as rows and need not be gathered. */
static void vectors_travel_together(void **state)
{
	(void)state;
	struct scene s;
	char plan[1024];
	snprintf(plan, sizeof plan, "%s%d,%s", "{\"format\":\"hspmd-plan-1\",\"zero_stage\":", 1,
	         six + strlen("{\"format\":\"hspmd-plan-1\","));
	build(&s, plan);
	const struct hspmd_program *p = s.program;
	int matrices = 0;
	struct counts c[3];
	for (int i = 0; i < p->state_count; i++)
		matrices += p->graph->tensors[p->states[i].tensor].shape.rank > 1;
	assert_true(matrices >= 14 && p->state_count > 2 * matrices);
	count(p, c);
	/* Sums go within the nodes and then between them, in two steps, those of rows in three; parameters come back in two. */
	if (c[0].tensors || c[1].tensors != 2 * matrices + 3 || c[1].messages != 2 + 3 || c[2].tensors != 2 * matrices ||
	    c[2].messages != 2)
		fail_msg("%d matrices, %d vectors: %d sums in %d messages, %d gathered in %d", matrices, p->state_count - matrices,
		         c[1].tensors, c[1].messages, c[2].tensors, c[2].messages);
	clear(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_are_joined),
		cmocka_unit_test(joined_sums_have_the_same_bits),
		cmocka_unit_test(joined_slots_are_apart),
		cmocka_unit_test(joined_messages_have_tags_of_their_own),
		cmocka_unit_test(vectors_travel_together),
		cmocka_unit_test(once_a_node),
		cmocka_unit_test(same_losses),
		cmocka_unit_test(same_order),
		cmocka_unit_test(narrow_gradients_are_summed),
		cmocka_unit_test(same_order_in_passes),
		cmocka_unit_test(layers_are_gathered_ahead),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
