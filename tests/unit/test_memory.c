/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a program announces is the memory that training takes: the memory plans of all of a plan's devices against the growth
 * of this process. Half of the plans, which HSPMD_DRAW chooses; with HSPMD_LONG all. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/exec/train_local.h"
#include "runtime/model/model.h"
#include "tests/unit/draw.h"

#define VOCAB 8192

static const char gpt2[] = "{\"model_type\":\"gpt2\",\"n_embd\":256,\"n_layer\":4,\"n_head\":4,\"n_positions\":128,\"vocab_size\":8192,"
                           "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
static const char llama[] =
        "{\"model_type\":\"llama\",\"hidden_size\":256,\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":4,"
        "\"intermediate_size\":640,\"max_position_embeddings\":128,\"vocab_size\":8192,\"rms_norm_eps\":1e-5}";
static const char mixtral[] =
        "{\"model_type\":\"mixtral\",\"hidden_size\":256,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
        "\"intermediate_size\":320,\"max_position_embeddings\":128,\"vocab_size\":8192,\"num_local_experts\":4,\"num_experts_per_tok\":2}";
static const char cluster_text[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
        "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":4}]}],"
        "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";

#define PLAN(schedule, batch, rest)                                                                                                        \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":" batch ",\"seq_len\":128,\"schedule\":\"" schedule "\"," rest "}"

static const struct {
	const char *name, *model, *plan;
} plans[] = {
	{ "one device", gpt2,
	  PLAN("1f1b", "8", "\"pipelines\":[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0\"]}]}]") },
	{ "recomputed", gpt2,
	  PLAN("1f1b", "8",
	       "\"pipelines\":[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0\"],\"recompute\":\"full\"}]}]") },
	{ "two stages", gpt2,
	  PLAN("1f1b", "2",
	       "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]},{\"layers\":[4,6],\"devices\":["
	       "\"n:1\"]}]}]") },
	{ "two stages, gpipe", gpt2,
	  PLAN("gpipe", "2",
	       "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]},{\"layers\":[4,6],\"devices\":["
	       "\"n:1\"]}]}]") },
	{ "two stages, zb-h1", gpt2,
	  PLAN("zb-h1", "2",
	       "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]},{\"layers\":[4,6],\"devices\":["
	       "\"n:1\"]}]}]") },
	{ "tensor parallel", gpt2,
	  PLAN("1f1b", "4", "\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0-1\"]}]}]") },
	{ "data parallel, ZeRO", gpt2,
	  PLAN("1f1b", "2",
	       "\"zero_stage\":1,\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0\"]}]},"
	       "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:1\"]}]}]") },
	{ "context parallel, unequal", llama,
	  PLAN("1f1b", "2",
	       "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0-1\"],\"context\":2,"
	       "\"context_ratio\":[5,3]}]}]") },
	{ "experts on two, ZeRO", mixtral,
	  PLAN("1f1b", "2",
	       "\"zero_stage\":1,\"pipelines\":[{\"micro_batches\":3,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0-1\"],"
	       "\"shard_ratio\":[3,1]}]},{\"micro_batches\":1,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:2\"]}]}]") },
	{ "pairs in two stages", llama,
	  PLAN("1f1b", "2",
	       "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,3],\"devices\":[\"n:0-1\"],\"sequence_parallel\":true,"
	       "\"recompute\":\"selective\"},{\"layers\":[3,6],\"devices\":[\"n:2-3\"],\"context\":2}]}]") },
	{ "unequal pipelines, ZeRO", gpt2,
	  PLAN("1f1b", "2",
	       "\"zero_stage\":1,\"pipelines\":[{\"micro_batches\":3,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"]},"
	       "{\"layers\":[2,6],\"devices\":[\"n:2\"],\"recompute\":\"full\"}]},{\"micro_batches\":1,\"stages\":[{\"layers\":[0,6],"
	       "\"devices\":[\"n:3\"]}]}]") },
	{ "interleaved", llama,
	  PLAN("interleaved", "2",
	       "\"virtual_stages\":2,\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0\"]},"
	       "{\"layers\":[2,3],\"devices\":[\"n:1\"]},{\"layers\":[3,4],\"devices\":[\"n:0\"]},{\"layers\":[4,6],\"devices\":[\"n:1\"]}]"
	       "}]") },
};

struct scene {
	struct hspmd_model *model;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_job job;
};

static int read_sample(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	(void)context, (void)name, (void)err;
	for (int64_t i = 0; i < count; i++)
		((int32_t *)to)[i] = (int32_t)((number * 31 + start + i) % VOCAB);
	return 0;
}

/* "VmHWM" or "VmRSS", in bytes. */
static double memory_now(const char *key)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	double kb = 0;
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, key, strlen(key)))
			kb = atof(line + strlen(key) + 1);
	if (f)
		fclose(f);
	return kb * 1024;
}

static int set_up(struct scene *s, const char *model, const char *plan, struct hspmd_error *err)
{
	json_t *c = json_loads(cluster_text, 0, NULL), *m = json_loads(model, 0, NULL), *p = json_loads(plan, 0, NULL);
	s->job = (struct hspmd_job){ .global_batch = 8, .seq_len = 128, .steps = 2, .seed = 1 };
	s->job.optimizer.lr = s->job.optimizer.min_lr = 1e-3;
	s->job.optimizer.values[2] = 1e-8; /* eps */
	s->cluster = hspmd_cluster_from_json(c, "cluster", err);
	s->model = s->cluster ? hspmd_model_from_json(m, "model", err) : NULL;
	s->plan = s->model ? hspmd_plan_from_json(p, "plan", s->cluster, hspmd_model_layers(s->model), err) : NULL;
	json_decref(c);
	json_decref(m);
	json_decref(p);
	return s->plan ? 0 : -1;
}

static void tear_down(struct scene *s)
{
	hspmd_plan_destroy(s->plan);
	hspmd_model_destroy(s->model);
	hspmd_cluster_destroy(s->cluster);
}

/* A program as its device would have it, with the device's workspaces. */
static struct hspmd_program *build(const struct scene *s, int device, struct hspmd_error *err)
{
	struct hspmd_graph_source source = hspmd_graph_source_model(s->model);
	struct hspmd_device *dev = NULL;
	struct hspmd_program *program = NULL;
	if (!hspmd_device_find("cpu", err)->open(&dev, 0, 1, err)) {
		program = hspmd_program_build(&source, s->plan, s->cluster, device, dev, err);
		dev->ops->close(dev);
	}
	return program;
}

/* Sum over all devices of the plan. */
static double predicted(const struct scene *s, struct hspmd_error *err)
{
	double bytes = 0;
	for (int p = 0; p < s->plan->pipeline_count; p++)
		for (int g = 0; g < s->plan->pipelines[p].stage_count / s->plan->virtual_stages; g++)
			for (int d = 0; d < s->plan->pipelines[p].stages[g].device_count; d++) {
				struct hspmd_program *program = build(s, s->plan->pipelines[p].stages[g].devices[d], err);
				if (!program)
					return -1;
				bytes += (double)hspmd_program_memory(program);
				hspmd_program_destroy(program);
			}
	return bytes;
}

/* Runs in a process of its own, so that no memory of one plan is reused by the next. Writes the two figures. */
static int measure(const char *model, const char *plan, int fd)
{
	struct scene s = { 0 };
	struct hspmd_error err = { "" };
	double bytes[2] = { -1 };
	if (set_up(&s, model, plan, &err) || (bytes[0] = predicted(&s, &err)) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	double before = memory_now("VmRSS");
	struct hspmd_train_local_options o = { .source = hspmd_graph_source_model(s.model),
		                               .cluster = s.cluster,
		                               .plan = s.plan,
		                               .job = &s.job,
		                               .samples = { read_sample, NULL },
		                               .steps = 2 };
	int rc = hspmd_train_local(&o, &err);
	bytes[1] = memory_now("VmHWM") - before;
	if (rc)
		fprintf(stderr, "%s\n", err.text);
	tear_down(&s);
	return rc || write(fd, bytes, sizeof bytes) != sizeof bytes;
}

static void plan_and_process_agree(void **state)
{
	(void)state;
	const unsigned all = sizeof plans / sizeof *plans, count = draw_count(4, all), first = draw_first(count, all);
	for (unsigned i = first; i < first + count; i++) {
		int ends[2], status = 0;
		double bytes[2];
		assert_int_equal(pipe(ends), 0);
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			_exit(measure(plans[i].model, plans[i].plan, ends[1]));
		close(ends[1]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (status || read(ends[0], bytes, sizeof bytes) != sizeof bytes)
			fail_msg("%s: status %d", plans[i].name, status);
		close(ends[0]);
		double off = bytes[0] / bytes[1] - 1;
		print_message("%s: planned %.1f MB, took %.1f MB, %+.1f %%\n", plans[i].name, bytes[0] / 1e6, bytes[1] / 1e6, 100 * off);
		if (off > 0.05 || off < -0.05)
			fail_msg("%s: %.0f bytes were planned and %.0f taken", plans[i].name, bytes[0], bytes[1]);
	}
}

/* The transient bytes that one more block adds to a pair of models whose blocks are all recomputed: only its inputs, and no values of
 * its forward pass. */
static double arena_of(int blocks)
{
	static const char form[] = "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":%d,\"num_attention_heads\":4,"
	                           "\"intermediate_size\":96,\"max_position_embeddings\":128,\"vocab_size\":128}";
	struct scene s = { 0 };
	struct hspmd_error err = { "" };
	char model[sizeof form + 8], *plan = NULL;
	snprintf(model, sizeof model, form, blocks);
	assert_true(asprintf(&plan,
	                     PLAN("1f1b", "8",
	                          "\"pipelines\":[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:0-1\"],"
	                          "\"recompute\":\"full\"}]}]"),
	                     blocks + 2) > 0);
	struct hspmd_program *p = set_up(&s, model, plan, &err) ? NULL : build(&s, 1, &err);
	if (!p)
		fail_msg("%s", err.text);
	double bytes = (double)p->arena_bytes;
	hspmd_program_destroy(p);
	tear_down(&s);
	free(plan);
	return bytes;
}

static void sums_leave_when_they_are_done(void **state)
{
	(void)state;
	double input = 8.0 * 128 * 64 * sizeof(float), block = (arena_of(12) - arena_of(4)) / 8;
	if (!(block > 0.9 * input && block < 1.2 * input))
		fail_msg("%.0f bytes for every block, whose input has %.0f", block, input);
}

int main(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
	return 77; /* memory that a sanitizer holds back is counted too */
#endif
	const struct CMUnitTest tests[] = { cmocka_unit_test(plan_and_process_agree), cmocka_unit_test(sums_leave_when_they_are_done) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
