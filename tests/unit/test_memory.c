/* SPDX-License-Identifier: Apache-2.0 */
/* What a program says it needs is what training with it takes: the memory plans of a plan's devices against the growth of this process. */
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

#include "runtime/train/local.h"

#define VOCAB 8192
#define DEVICES 2

static const char config[] = "{\"model_type\":\"gpt2\",\"n_embd\":256,\"n_layer\":4,\"n_head\":4,\"n_positions\":128,\"vocab_size\":8192,"
			     "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
static const char cluster_text[] = "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
				   "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":2}]}],"
				   "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";

#define PLAN(schedule, batch, rest) "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":" batch ",\"seq_len\":128,\"schedule\":\"" schedule "\"," rest "}"

static const struct {
	const char *name, *plan;
} plans[] = {
	{ "one device", PLAN("1f1b", "8", "\"pipelines\":[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0\"]}]}]") },
	{ "recomputed", PLAN("1f1b", "8", "\"pipelines\":[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0\"],\"recompute\":\"full\"}]}]") },
	{ "two stages", PLAN("1f1b", "2", "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]},{\"layers\":[4,6],\"devices\":[\"n:1\"]}]}]") },
	{ "two stages, gpipe", PLAN("gpipe", "2", "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]},{\"layers\":[4,6],\"devices\":[\"n:1\"]}]}]") },
	{ "two stages, zb-h1", PLAN("zb-h1", "2", "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]},{\"layers\":[4,6],\"devices\":[\"n:1\"]}]}]") },
	{ "tensor parallel", PLAN("1f1b", "4", "\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0-1\"]}]}]") },
	{ "data parallel, ZeRO", PLAN("1f1b", "2", "\"zero_stage\":1,\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0\"]}]},"
						   "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:1\"]}]}]") },
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

static int set_up(struct scene *s, const char *plan, struct hspmd_error *err)
{
	json_t *c = json_loads(cluster_text, 0, NULL), *m = json_loads(config, 0, NULL), *p = json_loads(plan, 0, NULL);
	s->job = (struct hspmd_job){ .global_batch = 8, .seq_len = 128, .steps = 2, .seed = 1 };
	s->job.optimizer.lr = s->job.optimizer.min_lr = 1e-3;
	s->job.optimizer.eps = 1e-8;
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

/* Over all devices of the plan. */
static double predicted(const struct scene *s, struct hspmd_error *err)
{
	struct hspmd_graph_source source = hspmd_graph_source_model(s->model);
	double bytes = 0;
	for (int p = 0; p < s->plan->pipeline_count; p++)
		for (int g = 0; g < s->plan->pipelines[p].stage_count; g++)
			for (int d = 0; d < s->plan->pipelines[p].stages[g].device_count; d++) {
				struct hspmd_device *dev = NULL;
				struct hspmd_program *program = NULL;
				if (!hspmd_device_find("cpu", err)->open(&dev, 0, 1, err))
					program = hspmd_program_build(&source, s->plan, s->cluster, s->plan->pipelines[p].stages[g].devices[d], dev, err);
				if (!program)
					return -1;
				bytes += (double)hspmd_program_memory(program);
				hspmd_program_destroy(program);
				dev->ops->close(dev);
			}
	return bytes;
}

/* In a process of its own, so that nothing of one plan is there for the next to use. Writes the two figures. */
static int measure(const char *plan, int fd)
{
	struct scene s = { 0 };
	struct hspmd_error err = { "" };
	double bytes[2] = { -1 };
	if (set_up(&s, plan, &err) || (bytes[0] = predicted(&s, &err)) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	double before = memory_now("VmRSS");
	struct hspmd_local_options o = { .source = hspmd_graph_source_model(s.model), .cluster = s.cluster, .plan = s.plan, .job = &s.job,
					 .samples = { read_sample, NULL }, .steps = 2 };
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
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		int ends[2], status = 0;
		double bytes[2];
		assert_int_equal(pipe(ends), 0);
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			_exit(measure(plans[i].plan, ends[1]));
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

int main(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
	return 77; /* memory that a sanitizer holds back counts here too */
#endif
	const struct CMUnitTest tests[] = { cmocka_unit_test(plan_and_process_agree) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
