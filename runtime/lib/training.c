/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "runtime/lib/training.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "runtime/exec/train_local.h"
#include "runtime/input/shuffle.h"

/* A full parameter as the last run left it. */
struct result {
	char *name;
	int64_t count;
	struct hspmd_box whole;
	float *values;
};

struct hspmd_training {
	struct hspmd_net_source source;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	json_t *optimizer; /* as passed by the caller */
	uint64_t seed;
	int *threads; /* by device of the cluster */
	int (*read)(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to);
	void *read_context;
	void (*on_loss)(void *context, int64_t step, double loss);
	void *on_loss_context;
	int64_t *lengths;
	int length_count;
	int (*length_of_step)(void *context, int64_t step);
	void *length_context;
	struct result *results;
	int result_count;
};

const char *hspmd_version(void)
{
	return PACKAGE_VERSION;
}

struct hspmd_training *hspmd_training_create(void (*build)(void *context, struct hspmd_net *net), void *context, int layers)
{
	struct hspmd_training *t = calloc(1, sizeof *t);
	if (t) {
		t->source = (struct hspmd_net_source){ build, context, layers };
		t->seed = 1;
	}
	return t;
}

static void drop_results(struct hspmd_training *t)
{
	for (int i = 0; i < t->result_count; i++) {
		free(t->results[i].name);
		free(t->results[i].values);
	}
	free(t->results);
	t->results = NULL;
	t->result_count = 0;
}

void hspmd_training_destroy(struct hspmd_training *t)
{
	if (!t)
		return;
	drop_results(t);
	hspmd_plan_destroy(t->plan);
	hspmd_cluster_destroy(t->cluster);
	json_decref(t->optimizer);
	free(t->threads);
	free(t->lengths);
	free(t);
}

/* ---- what to train, where and how */

/* The caller owns the value. */
static json_t *parse(const char *text, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	return hspmd_json_parse(&doc, name, text, strlen(text), err) ? NULL : doc.root;
}

int hspmd_training_cluster(struct hspmd_training *t, const char *json, struct hspmd_error *err)
{
	json_t *value = parse(json, "cluster", err);
	struct hspmd_cluster *cluster = value ? hspmd_cluster_from_json(value, "cluster", err) : NULL;
	json_decref(value);
	int *threads = cluster ? hspmd_calloc((size_t)cluster->device_count, sizeof *threads) : NULL;
	if (!threads) {
		if (cluster)
			hspmd_fail_memory(err, "reading a cluster");
		hspmd_cluster_destroy(cluster);
		return -1;
	}
	hspmd_plan_destroy(t->plan); /* it was checked against the previous cluster */
	hspmd_cluster_destroy(t->cluster);
	free(t->threads);
	t->plan = NULL;
	t->cluster = cluster;
	t->threads = threads;
	return 0;
}

int hspmd_training_plan(struct hspmd_training *t, const char *json, struct hspmd_error *err)
{
	if (!t->cluster)
		return hspmd_fail(err, "no cluster: call hspmd_training_cluster before hspmd_training_plan");
	json_t *value = parse(json, "plan", err);
	struct hspmd_plan *plan = value ? hspmd_plan_from_json(value, "plan", t->cluster, t->source.layers, err) : NULL;
	json_decref(value);
	if (!plan)
		return -1;
	hspmd_training_take_plan(t, plan);
	return 0;
}

void hspmd_training_take_plan(struct hspmd_training *t, struct hspmd_plan *plan)
{
	hspmd_plan_destroy(t->plan);
	t->plan = plan;
}

const struct hspmd_cluster *hspmd_training_get_cluster(const struct hspmd_training *t)
{
	return t->cluster;
}

/* A job with the fields that training in one process uses. */
static struct hspmd_job *make_job(const struct hspmd_training *t, const json_t *optimizer, int64_t steps, struct hspmd_error *err)
{
	json_t *value = json_pack("{ss,ss,s{s[s],ss},sI,sI,sI,sI,sO*}", "format", HSPMD_JOB_FORMAT, "model", "/", "data", "train", "/",
	                          "kind", "bytes", "seq_len", (json_int_t)(t->plan ? t->plan->seq_len : 1), "global_batch",
	                          (json_int_t)(t->plan ? t->plan->global_batch : 1), "steps", (json_int_t)steps, "seed",
	                          (json_int_t)(t->seed & INT64_MAX), "optimizer", (json_t *)optimizer);
	if (value && !optimizer)
		json_object_set_new(value, "optimizer", json_pack("{sf}", "lr", 1e-3));
	struct hspmd_job *job = value ? hspmd_job_from_json(value, "training", NULL, err) : NULL;
	if (!value)
		hspmd_fail_memory(err, "training");
	json_decref(value);
	return job;
}

int hspmd_training_optimizer(struct hspmd_training *t, const char *json, struct hspmd_error *err)
{
	json_t *value = parse(json, "optimizer", err);
	struct hspmd_job *job = value ? make_job(t, value, 1, err) : NULL;
	if (!job) {
		json_decref(value);
		return -1;
	}
	hspmd_job_destroy(job);
	json_decref(t->optimizer);
	t->optimizer = value;
	return 0;
}

int hspmd_training_get_source(const struct hspmd_training *t, struct hspmd_graph_source *out, struct hspmd_error *err)
{
	struct hspmd_job *job = make_job(t, t->optimizer, 1, err);
	if (!job)
		return -1;
	*out = hspmd_net_graph_source(&t->source);
	out->optimizer = job->optimizer.type;
	hspmd_job_destroy(job);
	return 0;
}

void hspmd_training_seed(struct hspmd_training *t, uint64_t seed)
{
	t->seed = seed;
}

static int find_device(const struct hspmd_training *t, const char *address, struct hspmd_error *err)
{
	return t->cluster ? hspmd_cluster_find_device(t->cluster, address, err) : hspmd_fail(err, "%s: there is no cluster yet", address);
}

int hspmd_training_threads(struct hspmd_training *t, const char *device, int threads, struct hspmd_error *err)
{
	int number = find_device(t, device, err);
	if (number < 0)
		return -1;
	if (threads < 1)
		return hspmd_fail(err, "%s: %d threads, expected at least 1", device, threads);
	t->threads[number] = threads;
	return 0;
}

void hspmd_training_samples(struct hspmd_training *t,
                            int (*read)(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to),
                            void *context)
{
	t->read = read;
	t->read_context = context;
}

int hspmd_training_lengths(struct hspmd_training *t, const int64_t *lengths, int count, int (*length_of_step)(void *context, int64_t step),
                           void *context, struct hspmd_error *err)
{
	if (count < 1)
		return hspmd_fail(err, "%d sequence lengths, expected at least 1", count);
	int64_t *copy = hspmd_calloc((size_t)count, sizeof *copy);
	if (!copy)
		return hspmd_fail_memory(err, "taking sequence lengths");
	memcpy(copy, lengths, (size_t)count * sizeof *copy);
	free(t->lengths);
	t->lengths = copy;
	t->length_count = count;
	t->length_of_step = length_of_step;
	t->length_context = context;
	return 0;
}

void hspmd_training_on_loss(struct hspmd_training *t, void (*on_loss)(void *context, int64_t step, double loss), void *context)
{
	t->on_loss = on_loss;
	t->on_loss_context = context;
}

void hspmd_training_told(struct hspmd_training *t, void (*on_loss)(void *context, int64_t step, double loss), void *context)
{
	hspmd_training_on_loss(t, on_loss, context);
}

/* ---- training */

/* What dropout follows from: a random number for each position of each sample. */
static void fill_noise(const struct hspmd_training *t, int64_t number, int64_t start, int64_t count, int32_t *noise)
{
	uint64_t key = hspmd_mix(t->seed ^ hspmd_mix((uint64_t)number));
	for (int64_t i = 0; i < count; i++)
		noise[i] = (int32_t)(hspmd_mix(key + (uint64_t)(start + i)) >> 33);
}

static int read_sample(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	const struct hspmd_training *t = context;
	if (hspmd_input_is_noise(name)) {
		fill_noise(t, number, start, count, to);
		return 0;
	}
	if (t->read(t->read_context, name, number, start, count, to))
		return hspmd_fail(err, "input %s, sample %lld: the caller's reader failed", name, (long long)number);
	return 0;
}

static void report_loss(void *context, int64_t step, double loss)
{
	const struct hspmd_training *t = context;
	if (t->on_loss)
		t->on_loss(t->on_loss_context, step, loss);
}

static int make_results(struct hspmd_training *t, const struct hspmd_program *p, struct hspmd_error *err)
{
	t->results = hspmd_calloc((size_t)p->state_count, sizeof *t->results);
	for (int i = 0; t->results && i < p->state_count; i++) {
		struct result *r = &t->results[t->result_count++];
		const struct hspmd_shape *shape = &p->graph->tensors[p->states[i].tensor].shape;
		r->whole = hspmd_box_full(shape);
		r->count = hspmd_shape_elements(shape);
		r->name = strdup(p->states[i].name);
		r->values = hspmd_calloc((size_t)r->count, sizeof *r->values);
		if (!r->name || !r->values)
			return hspmd_fail_memory(err, "keeping parameters");
	}
	return t->results ? 0 : hspmd_fail_memory(err, "keeping parameters");
}

/* One device's part of all parameters. */
static int take_parameters(void *context, const struct hspmd_program *p, const struct hspmd_executor *executor, struct hspmd_device *device,
                           struct hspmd_error *err)
{
	struct hspmd_training *t = context;
	if (!t->results && make_results(t, p, err))
		return -1;
	for (int i = 0; i < p->state_count; i++) {
		const struct hspmd_program_state *s = &p->states[i];
		if (s->param < 0 || s->shard.replica)
			continue;
		size_t bytes = (size_t)hspmd_box_elements(&s->shard.box) * sizeof(float);
		void *data = hspmd_executor_slot_data(executor, s->param);
		float *part = malloc(bytes);
		if (!part)
			return hspmd_fail_memory(err, "keeping parameters");
		bool in_host = hspmd_executor_slot_in_host(executor, s->param);
		int status = in_host ? 0 : device->ops->to_host(device, part, data, bytes, err);
		if (!status)
			hspmd_box_copy(t->results[i].values, &t->results[i].whole, in_host ? data : part, &s->shard.box, &s->shard.box,
			               sizeof *part);
		free(part);
		if (status)
			return -1;
	}
	return 0;
}

static int ready(const struct hspmd_training *t, struct hspmd_error *err)
{
	return t->plan ? 0 : hspmd_fail(err, "no cluster or no plan: call hspmd_training_cluster and hspmd_training_plan first");
}

char *hspmd_training_program(struct hspmd_training *t, const char *device, struct hspmd_error *err)
{
	int number = ready(t, err) ? -1 : find_device(t, device, err);
	if (number < 0)
		return NULL;
	struct hspmd_graph_source source = hspmd_net_graph_source(&t->source);
	struct hspmd_program *p = hspmd_program_build(&source, t->plan, t->cluster, number, NULL, err);
	char *text = p ? hspmd_program_text(p, t->cluster) : NULL;
	if (p && !text)
		hspmd_fail_memory(err, "printing the program");
	hspmd_program_destroy(p);
	return text;
}

int hspmd_training_run(struct hspmd_training *t, int64_t steps, struct hspmd_error *err)
{
	if (ready(t, err))
		return -1;
	if (!t->read)
		return hspmd_fail(err, "no samples: call hspmd_training_samples first");
	struct hspmd_job *job = make_job(t, t->optimizer, steps, err);
	if (!job)
		return -1;
	drop_results(t);
	struct hspmd_train_local_options o = {
		.source = hspmd_net_graph_source(&t->source),
		.cluster = t->cluster,
		.plan = t->plan,
		.job = job,
		.samples = { .read = read_sample, .context = t },
		.steps = steps,
		.threads_of = t->threads,
		.lengths = t->lengths,
		.length_count = t->length_count,
		.length_of_step = t->length_of_step,
		.length_context = t->length_context,
		.on_loss = report_loss,
		.context = t,
		.on_end = take_parameters,
	};
	int status = hspmd_train_local(&o, err);
	hspmd_job_destroy(job);
	if (status)
		drop_results(t);
	return status;
}

int hspmd_training_parameter(struct hspmd_training *t, const char *name, float *to, int64_t count, struct hspmd_error *err)
{
	for (int i = 0; i < t->result_count; i++) {
		const struct result *r = &t->results[i];
		if (strcmp(r->name, name))
			continue;
		if (r->count != count)
			return hspmd_fail(err, "parameter %s has %lld elements, not %lld", name, (long long)r->count, (long long)count);
		memcpy(to, r->values, (size_t)count * sizeof *to);
		return 0;
	}
	return hspmd_fail(err, t->result_count ? "there is no parameter %s" : "parameter %s: nothing has been trained yet", name);
}
