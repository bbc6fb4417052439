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

/* The tags of this device's sums in which `other` takes part too, in their order, as text. */
static char *sums_with(const struct hspmd_program *p, int other)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	for (size_t i = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM || in->micro_batch >= 0)
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

/* A device knows only of gradients that it has a part of. Any two must still agree on what they send each other, and in which order. */
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
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		struct scene s[DEVICES];
		size_t shared = 0;
		for (int d = 0; d < DEVICES; d++)
			build_for(&s[d], wide, plans[i], d);
		for (int a = 0; a < DEVICES; a++)
			for (int b = 0; b < a; b++) {
				char *x = sums_with(s[a].program, b), *y = sums_with(s[b].program, a);
				assert_string_equal(x, y);
				shared += strlen(x);
				free(x);
				free(y);
			}
		assert_true(shared > 0);
		for (int d = 0; d < DEVICES; d++)
			clear(&s[d]);
	}
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

/* Under ZeRO-1 each matrix is summed to its parts and gathered from them by itself. Vectors, of which there are twice as many, travel
 * together and need not be gathered. */
static void vectors_travel_together(void **state)
{
	(void)state;
	struct scene s;
	char plan[1024];
	snprintf(plan, sizeof plan, "%s%d,%s", "{\"format\":\"hspmd-plan-1\",\"zero_stage\":", 1,
	         six + strlen("{\"format\":\"hspmd-plan-1\","));
	build(&s, plan);
	const struct hspmd_program *p = s.program;
	int matrices = 0, sums = 0, gathered = 0, in_passes = 0;
	for (int i = 0; i < p->state_count; i++)
		matrices += p->graph->tensors[p->states[i].tensor].shape.rank > 1;
	assert_true(matrices >= 14 && p->state_count > 2 * matrices);
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM || in->step)
			continue;
		*(in->micro_batch >= 0 ? &in_passes : i < p->vote ? &sums : &gathered) += 1;
	}
	if (sums != matrices + 1 || gathered != matrices || in_passes)
		fail_msg("%d matrices, %d vectors: %d sums, %d gathered", matrices, p->state_count - matrices, sums, gathered);
	clear(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vectors_travel_together),
		cmocka_unit_test(once_a_node),
		cmocka_unit_test(same_losses),
		cmocka_unit_test(same_order),
		cmocka_unit_test(narrow_gradients_are_summed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
