/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of plan: random plans of every stage of ZeRO, on devices that leave and come, of which some can offload, follow one another as
 * generations of one training state, and one of them writes a checkpoint that another reads. The losses are those of one device. Each
 * worker is a thread, and goes from one generation to the next as the worker process does (runtime/worker/worker.c). HSPMD_LONG=1 draws
 * many more; HSPMD_SEED repeats a draw. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "common/base64.h"
#include "common/durable.h"
#include "runtime/generation/generation.h"
#include "runtime/model/model.h"
#include "runtime/state/checkpoint.h"
#include "tests/pretend/pretend.h"
#include "tests/unit/draw.h"
#include "tests/unit/random_plan.h"
#include "tests/unit/state_root.h"
#include "tests/unit/trainer.h"

#define DEVICES 6
#define ACCELERATORS 3 /* of these: the last ones, make-believe */
#define EACH 2       /* steps of a generation */
#define PLANS 5      /* of one job: three, of which the first writes a checkpoint, and two from that checkpoint on */
#define STEPS 6      /* steps that a job comes to */
#define CLOSE 1e-6   /* largest relative difference of losses */
#define NEAR 1e-3    /* in fp8, in which sums in another order may round to another number */
#define ATTEMPTS 100 /* draws until the runtime takes a plan */
#define WAIT_S 60.0
#define SEQ_LEN 16

static const char cluster_text[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
        "\"peak_tflops\":{\"fp32\":0.01}},\"p\":{\"kind\":\"pretend\",\"memory_bytes\":200000000,\"gbytes_per_s\":10,\"peak_tflops\":"
        "{\"fp32\":0.01},\"host\":{\"memory_bytes\":1000000000,\"gbytes_per_s\":1}}},\"nodes\":[{\"name\":\"n\",\"devices\":["
        "{\"type\":\"c\",\"count\":3},{\"type\":\"p\",\"count\":3}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]"
        "}";

static const struct model {
	const char *name, *config;
	int layers, heads; /* heads: units of tensor parallelism */
	bool fp8, mixed;   /* mixed: steps mix lengths */
} models[] = {
	{ "gpt2", trainer_gpt2, 5, 4, false, false },
	{ "llama", trainer_llama, 5, 4, false, false }, /* of two heads of keys and values: wider groups split the parameters otherwise */
	{ "mixtral", trainer_mixtral, 4, 4, false, false },
	{ "gpt2 in fp8", trainer_gpt2, 5, 4, true, false },
	{ "mixtral in fp8", trainer_mixtral, 4, 4, true, false },
	{ "llama in mixed lengths", trainer_llama, 5, 4, false, true },
};

struct worker {
	struct hspmd_worker_setup setup;
	char address[16];
	struct hspmd_generation *now, *next; /* NULL: it has none, or is not a member */
	json_t *message, *addresses, *state; /* own copies */
	int64_t step;                        /* the next one */
	bool spills;                         /* the device has no memory for two generations */
	double losses[EACH];
	json_t *shard; /* what it wrote */
	struct hspmd_error err;
	int status;
	pthread_t thread;
};

static struct {
	char root[64], corpus[96], local[96];
	const struct model *model;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan; /* of the workers' `now`; NULL: none */
	char *plan_text;
	struct worker workers[DEVICES];
	int generation;
	int in_parts;   /* changes from or to a plan that keeps gradients or parameters in parts */
	int offloading; /* and from or to one that offloads */
} job;

/* ---- what each worker does, all at once */

typedef int work(struct worker *w);

static int prepare(struct worker *w)
{
	w->next = hspmd_generation_prepare(&w->setup, w->message, 0, &w->err);
	return w->next ? 0 : -1;
}

static int start(struct worker *w)
{
	struct hspmd_load_report report;
	bool spills = w->now && w->spills && !w->setup.device->ops->host_memory;
	if (hspmd_generation_learn_addresses(w->next, w->addresses, &w->err) || hspmd_generation_connect(w->next, &w->err) ||
	    (spills && hspmd_generation_spill(w->now, NULL, &w->err)) ||
	    hspmd_generation_allocate(w->next, w->now, &w->err))
		return -1;
	return hspmd_generation_load(w->next, w->now, w->state, w->step, &report, &w->err);
}

static int train(struct worker *w)
{
	struct hspmd_executor *ex = w->now->executor;
	for (int i = 0; i < EACH; i++, w->step++) {
		struct hspmd_totals own = { 0 }, all;
		struct hspmd_step_times times;
		if (hspmd_generation_use_step(w->now, &w->step, &w->err) || hspmd_executor_gather_parameters(ex, w->step, &w->err) ||
		    hspmd_executor_gradients(ex, w->step, &own, &times, &w->err) || hspmd_executor_vote(ex, w->step, &own, &all, &w->err) ||
		    hspmd_executor_commit(ex, w->step, &all, &w->err))
			return -1;
		w->losses[i] = all.loss;
	}
	return 0;
}

/* Its part of the state, of which a plan with whole copies writes each part once. */
static int save(struct worker *w)
{
	const struct hspmd_generation *g = w->now;
	size_t count = 0;
	struct hspmd_state_slice *slices = hspmd_generation_slices(g, &count);
	struct hspmd_writer *writer = slices ? hspmd_writer_create(w->setup.device, &w->err) : NULL;
	char location[128], file[32];
	const char *locations[] = { location };
	json_t *report = NULL;
	snprintf(location, sizeof location, "%s/n", job.local);
	struct hspmd_writer_job to = { .step = w->step,
		                       .generation = g->number,
		                       .file = hspmd_shard_name(w->address, file, sizeof file),
		                       .node = "n",
		                       .locations = locations,
		                       .location_count = 1 };
	int status = writer ? hspmd_writer_begin(writer, &to, slices, count, &w->err) : -1;
	if (!status)
		status = hspmd_writer_result(writer, WAIT_S, &report, &w->err) == 1 ? 0 : -1;
	w->shard = report ? json_incref(json_object_get(report, "shard")) : NULL;
	json_decref(report);
	hspmd_writer_destroy(writer);
	free(slices);
	return status;
}

/* ---- all workers */

static work *all_do;

static void *run(void *argument)
{
	struct worker *w = argument;
	w->status = all_do(w);
	return NULL;
}

/* Those that have a generation, which is its plan's (`next`: the next one, of which all members count), do this. Returns the first that
 * fails, NULL: none. */
static struct worker *everybody(work *what, bool next)
{
	struct worker *failed = NULL;
	bool takes_part[DEVICES];
	all_do = what;
	for (int d = 0; d < DEVICES; d++) {
		struct worker *w = &job.workers[d];
		takes_part[d] = next ? w->message != NULL : w->now != NULL;
		assert_true(!takes_part[d] || !pthread_create(&w->thread, NULL, run, w));
	}
	for (int d = 0; d < DEVICES; d++)
		if (takes_part[d])
			pthread_join(job.workers[d].thread, NULL);
	for (int d = 0; d < DEVICES; d++)
		failed = takes_part[d] && job.workers[d].status && !failed ? &job.workers[d] : failed;
	return failed;
}

static void forget(void)
{
	for (int d = 0; d < DEVICES; d++) {
		struct worker *w = &job.workers[d];
		hspmd_generation_destroy(w->now);
		json_decref(w->shard);
		w->now = NULL;
		w->shard = NULL;
	}
	hspmd_plan_destroy(job.plan);
	free(job.plan_text);
	job.plan = NULL;
	job.plan_text = NULL;
}

static void forget_next(void)
{
	for (int d = 0; d < DEVICES; d++) {
		struct worker *w = &job.workers[d];
		hspmd_generation_destroy(w->next);
		json_decref(w->message);
		json_decref(w->addresses);
		json_decref(w->state);
		w->next = NULL;
		w->message = w->addresses = w->state = NULL;
	}
}

static bool uses(const struct hspmd_plan *p, int device)
{
	for (int i = 0; p && i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++)
				if (p->pipelines[i].stages[s].devices[d] == device)
					return true;
	return false;
}

static bool is_in_parts(const struct hspmd_plan *p)
{
	return p && p->zero_stage > 1 && p->pipeline_count > 1;
}

/* The devices that a plan uses, and those of the current plan, which hand over the state. */
static json_t *members_of(const struct hspmd_plan *p, bool with_holders)
{
	json_t *list = json_array();
	for (int d = 0; d < DEVICES; d++)
		if (uses(p, d) || (with_holders && uses(job.plan, d)))
			json_array_append_new(list, json_string(job.workers[d].address));
	return list;
}

/* All members prepare the plan's generation. Returns false if the runtime refuses the plan, rightly. */
static bool prepare_all(const char *text, const struct hspmd_plan *p, bool with_holders)
{
	json_t *members = members_of(p, with_holders), *addresses = json_object();
	job.generation++;
	for (int d = 0; d < DEVICES; d++)
		if (uses(p, d) || (with_holders && uses(job.plan, d)))
			job.workers[d].message =
			        json_pack("{ss,si,sO,so,so}", "type", "prepare", "generation", job.generation, "members", members,
			                  "cluster", json_loads(cluster_text, 0, NULL), "plan", json_loads(text, 0, NULL));
	json_decref(members);
	for (int d = 0; d < DEVICES; d++) /* of its own: threads do not share values */
		if (job.workers[d].message) {
			json_t *own = json_deep_copy(job.workers[d].message);
			json_decref(job.workers[d].message);
			job.workers[d].message = own;
		}
	const struct worker *failed = everybody(prepare, true);
	if (failed && !strstr(failed->err.text, "would hold no element") &&
	    !(job.model->mixed && strstr(failed->err.text, "cannot be split")))
		fail_msg("%s: %s\n%s", job.model->name, failed->err.text, text);
	for (int d = 0; d < DEVICES && !failed; d++) {
		const struct worker *w = &job.workers[d];
		char *blob =
		        w->next && w->next->transport ? hspmd_base64_encode(w->next->own_address.data, w->next->own_address.size) : NULL;
		if (blob)
			json_object_set_new(addresses, w->address, json_string(blob));
		free(blob);
	}
	for (int d = 0; d < DEVICES; d++)
		job.workers[d].addresses = json_deep_copy(addresses);
	json_decref(addresses);
	if (failed)
		forget_next();
	return !failed;
}

/* Go on with this plan from `step`, with the state that `state` says. Returns false if the runtime refuses the plan. */
static bool change_to(const char *text, json_t *state, int64_t step)
{
	struct hspmd_error err = { "" };
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_plan *p = value ? hspmd_plan_from_json(value, "plan", job.cluster, job.model->layers, &err) : NULL;
	bool live = json_object_get(state, "live") != NULL;
	json_decref(value);
	if (!p)
		fail_msg("%s\n%s", err.text, text);
	if (!prepare_all(text, p, live)) {
		hspmd_plan_destroy(p);
		return false;
	}
	for (int d = 0; d < DEVICES; d++) {
		job.workers[d].state = json_deep_copy(state);
		job.workers[d].step = step;
		job.workers[d].spills = random_plan_draw(2);
	}
	const struct worker *failed = everybody(start, true);
	if (failed)
		fail_msg("%s: %s\nfrom %s\nto %s", job.model->name, failed->err.text, job.plan_text ? job.plan_text : "nothing", text);
	job.in_parts += is_in_parts(p) || is_in_parts(job.plan);
	job.offloading += hspmd_plan_offloads(p) || (job.plan && hspmd_plan_offloads(job.plan));
	forget();
	for (int d = 0; d < DEVICES; d++)
		if (uses(p, d)) {
			job.workers[d].now = job.workers[d].next;
			job.workers[d].next = NULL;
		}
	forget_next();
	job.plan = p;
	job.plan_text = strdup(text);
	return true;
}

/* ---- jobs */

static double reference[STEPS];

static void compare(int64_t from, uint64_t seed)
{
	const struct worker *w = everybody(train, false);
	if (w)
		fail_msg("%s, HSPMD_SEED=%llu: %s\n%s", job.model->name, (unsigned long long)seed, w->err.text, job.plan_text);
	for (int d = 0; d < DEVICES; d++)
		for (int i = 0; i < EACH && job.workers[d].now; i++) {
			double got = job.workers[d].losses[i], expected = reference[from + i];
			if (!(fabs(got - expected) <= (job.model->fp8 ? NEAR : CLOSE) * fabs(expected)))
				fail_msg("%s, HSPMD_SEED=%llu: loss of step %d is %.17g, not %.17g\n%s", job.model->name,
				         (unsigned long long)seed, (int)from + i, got, expected, job.plan_text);
		}
}

static struct random_plan_operators operators; /* of the job's model */

/* Go on with a plan drawn at random: mostly of ZeRO-2 or 3. */
static void change_at_random(json_t *state, int64_t step)
{
	bool done = false;
	for (int i = 0; i < ATTEMPTS && !done; i++) {
		struct random_plan of = {
			.layers = job.model->layers, .heads = job.model->heads, .seq_len = SEQ_LEN, .most_zero = 3, .operators = &operators
		};
		of.mixed = job.model->mixed;
		of.most_zero = of.mixed ? 1 : 3;
		of.offloads = ((1u << ACCELERATORS) - 1) << (DEVICES - ACCELERATORS);
		of.least_zero = random_plan_draw(3) && !of.mixed ? 2 : 0;
		of.devices = 2 + (int)random_plan_draw(DEVICES - 1);
		of.first = (int)random_plan_draw((unsigned)(DEVICES - of.devices) + 1);
		char *text = random_plan(&of);
		done = change_to(text, state, step);
		free(text);
	}
	json_decref(state);
	assert_true(done);
}

/* `state` of a start from the memory of the current plan's devices. */
static json_t *live(void)
{
	return json_pack("{s[{so,so,so}]}", "live", "cluster", json_loads(cluster_text, 0, NULL), "plan",
	                 json_loads(job.plan_text, 0, NULL), "holders", members_of(job.plan, false));
}

/* All write; returns `state` of a start from that. root: by a manifest of the second format. */
static json_t *checkpoint(bool root)
{
	struct hspmd_error err = { "" };
	char folder[160], name[64];
	const char *names[256], *folders[DEVICES];
	json_t *shards[DEVICES], *files = json_object(), *manifest;
	const struct hspmd_generation *g = NULL;
	size_t count = 0;
	const struct worker *failed = everybody(save, false);
	if (failed)
		fail_msg("%s: %s\n%s", job.model->name, failed->err.text, job.plan_text);
	json_t *of = json_pack("{so,so}", "cluster", json_loads(cluster_text, 0, NULL), "plan", json_loads(job.plan_text, 0, NULL));
	for (int d = 0; d < DEVICES; d++)
		if (job.workers[d].shard) {
			g = job.workers[d].now;
			folders[count] = folder;
			shards[count++] = job.workers[d].shard;
			/* Of each file, some device of the next plan must be a reader: all may be. */
			json_t *readers = json_array();
			for (int r = 0; r < DEVICES; r++)
				json_array_append_new(readers, json_string(job.workers[r].address));
			json_object_set_new(files, json_string_value(json_object_get(job.workers[d].shard, "file")), readers);
		}
	assert_non_null(g);
	snprintf(folder, sizeof folder, "%s/n/%s", job.local, hspmd_checkpoint_name(EACH, g->number, name, sizeof name));
	struct hspmd_manifest *m = hspmd_manifest_assemble(EACH, g->number, of, shards, count, &err);
	if (!m)
		fail_msg("%s: %s\n%s", job.model->name, err.text, job.plan_text);
	assert_true(g->layouts->parameter_count <= (int)(sizeof names / sizeof *names));
	for (int i = 0; i < g->layouts->parameter_count; i++)
		names[i] = g->layouts->parameters[i].name;
	manifest = root ? state_root(m, folders, names, g->layouts->parameter_count) : hspmd_manifest_to_json(m);
	hspmd_manifest_destroy(m);
	json_decref(of);
	return json_pack("{so,ss,so}", "manifest", manifest, "local", job.local, "files", files);
}

static void one_job(uint64_t seed)
{
	random_plan_state = seed;
	change_at_random(json_pack("{sb}", "init", 1), 0);
	compare(0, seed);
	json_t *stored = checkpoint(random_plan_draw(2));
	for (int i = 1; i < 3; i++) {
		change_at_random(live(), i * EACH);
		compare(i * EACH, seed);
	}
	forget();
	change_at_random(stored, EACH);
	compare(EACH, seed);
	change_at_random(live(), 2 * EACH);
	compare(2 * EACH, seed);
	forget();
	assert_int_equal(hspmd_remove_tree(job.local, NULL), 0);
}

static char *on_one(int device)
{
	char *text = NULL;
	assert_true(asprintf(&text,
	                     "{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":1,\"seq_len\":%d,\"pipelines\":[{"
	                     "\"micro_batches\":%d,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:%d\"]}]}]}",
	                     RANDOM_PLAN_BATCH, SEQ_LEN, RANDOM_PLAN_BATCH, job.model->layers, device) > 0);
	return text;
}

static void train_on_one(void)
{
	char *text = on_one(0);
	json_t *state = json_pack("{sb}", "init", 1);
	assert_true(change_to(text, state, 0));
	json_decref(state);
	for (int from = 0; from < STEPS; from += EACH) {
		assert_null(everybody(train, false));
		memcpy(reference + from, job.workers[0].losses, sizeof job.workers[0].losses);
	}
	forget();
	free(text);
}

static void open_workers(const struct model *m)
{
	struct hspmd_error err = { "" };
	job.model = m;
	random_plan_find_operators(m->config, m->fp8, &operators);
	for (int d = 0; d < DEVICES; d++) {
		struct hspmd_worker_setup *w = &job.workers[d].setup;
		const struct hspmd_device_ops *ops = hspmd_device_find(d < DEVICES - ACCELERATORS ? "cpu" : "pretend", &err);
		json_t *model = json_loads(m->config, 0, NULL);
		json_t *text = json_pack("{ss,ss,ss,s{s[s],ss},si,si,si,si,s{ss,sf,si,ss}}", "format", "hspmd-job-1", "model", "/none",
		                         "init", "random", "data", "train", job.corpus, "kind", "bytes", "seq_len", SEQ_LEN, "global_batch",
		                         RANDOM_PLAN_BATCH, "steps", 1000, "seed", TRAINER_SEED, "optimizer", "type", "adamw", "lr", 3e-3,
		                         "warmup_steps", 2, "schedule", "constant");
		json_object_set_new(text, "precision", json_string(m->fp8 ? "fp8" : "fp32"));
		if (m->mixed)
			json_object_update_new(json_object_get(text, "data"), json_pack("{si,s[iii],sb}", "document_end", 'e', "lengths", 4,
			                                                                8, SEQ_LEN, "mix_lengths", 1));
		snprintf(job.workers[d].address, sizeof job.workers[d].address, "n:%d", d);
		*w = (struct hspmd_worker_setup){ .job = hspmd_job_from_json(text, "/job.json", NULL, &err),
			                          .model = hspmd_model_from_json(model, "model", &err),
			                          .address = job.workers[d].address,
			                          .node = (char *)(uintptr_t) "n",
			                          .transport = (char *)(uintptr_t) "memory",
			                          .timeout_s = WAIT_S };
		if (!w->job || !w->model || !ops || ops->open(&w->device, d, 1, &err))
			fail_msg("%s", err.text);
		w->source = hspmd_graph_source_job(w->model, w->job);
		w->data = hspmd_data_open(w->job, w->model->vocab, NULL, &err);
		if (!w->data)
			fail_msg("%s", err.text);
		w->samples = hspmd_data_source(w->data);
		json_decref(model);
		json_decref(text);
	}
}

static void close_workers(void)
{
	for (int d = 0; d < DEVICES; d++) {
		struct hspmd_worker_setup *w = &job.workers[d].setup;
		hspmd_data_close(w->data);
		w->device->ops->close(w->device);
		hspmd_model_destroy(w->model);
		hspmd_job_destroy(w->job);
	}
}

static void random_changes(void **state)
{
	(void)state;
	const char *seed = getenv("HSPMD_SEED");
	unsigned count = draw_count(3, 100), first = seed ? 0 : draw_first(count, 100);
	for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
		open_workers(&models[k]);
		train_on_one();
		job.in_parts = job.offloading = 0;
		for (unsigned i = first; i < first + (seed ? 1 : count); i++)
			one_job(seed ? strtoull(seed, NULL, 0) : (uint64_t)i * 1000003 + k);
		print_message("%s: %u jobs, %d changes from or to plans that keep parts, %d that offload\n", models[k].name,
		              seed ? 1 : count, job.in_parts, job.offloading);
		assert_true((job.in_parts > 0 || models[k].mixed) && job.offloading > 0);
		close_workers();
	}
}

/* One device after another sums in the same order: the bits say that the scales moved with the rest. */
static void check_scales(const struct model *m)
{
	open_workers(m);
	train_on_one();
	json_t *from = json_pack("{sb}", "init", 1), *stored = NULL;
	static const int devices[] = { 2, 1, 0, 1 }; /* from random values, from memory, from memory, from files */
	for (int i = 0; i < 4; i++) {
		char *text = on_one(devices[i]);
		int64_t step = i == 3 ? EACH : i * EACH;
		assert_true(change_to(text, from, step));
		assert_null(everybody(train, false));
		assert_memory_equal(job.workers[devices[i]].losses, reference + step, sizeof job.workers[0].losses);
		stored = i ? stored : checkpoint(false);
		json_decref(from);
		from = i == 2 ? stored : live();
		if (i == 2)
			forget();
		free(text);
	}
	json_decref(from);
	forget();
	assert_int_equal(hspmd_remove_tree(job.local, NULL), 0);
	close_workers();
}

static void scales_move(void **state)
{
	(void)state;
	for (size_t k = 0; k < sizeof models / sizeof *models; k++)
		if (models[k].fp8)
			check_scales(&models[k]);
}

static int set_up(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	json_t *value = json_loads(cluster_text, 0, NULL);
	job.cluster = hspmd_cluster_from_json(value, "cluster", &err);
	json_decref(value);
	snprintf(job.root, sizeof job.root, "/tmp/hspmd-changes-XXXXXX");
	if (!job.cluster || !mkdtemp(job.root))
		return -1;
	snprintf(job.corpus, sizeof job.corpus, "%s/corpus", job.root);
	snprintf(job.local, sizeof job.local, "%s/local", job.root);
	FILE *f = fopen(job.corpus, "w");
	for (int i = 0; f && i < 20000; i++)
		fputc('a' + i * i % 23, f);
	return f ? fclose(f) : -1;
}

static int tear_down(void **state)
{
	(void)state;
	hspmd_cluster_destroy(job.cluster);
	return hspmd_remove_tree(job.root, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(random_changes), cmocka_unit_test(scales_move) };
	static struct hspmd_device_traits traits; /* in FP8 it computes with the same elements as CPUs */
	traits = pretend_traits;
	traits.bf16 = false;
	traits.fp8 = true;
	if (hspmd_device_add(&pretend_ops, &traits) < 0)
		return 1;
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
