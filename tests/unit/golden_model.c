/* SPDX-License-Identifier: Apache-2.0 */
/* Models and trainings of golden files: a program of one CPU device, with the file's weights and tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "common/durable.h"
#include "runtime/exec/execute.h"
#include "runtime/input/data.h"
#include "runtime/weights/weights.h"
#include "tests/unit/golden.h"
#include "tests/unit/op_case.h"

#define TOLERANCE 1e-5

static char folder[64]; /* of the test that runs; empty: none */

struct golden_run {
	const json_t *file;
	struct hspmd_model *model;
	struct hspmd_job *job;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_data *data;
	struct hspmd_weights *weights;
	struct hspmd_file_map map;
	struct hspmd_device *device;
	struct hspmd_program *program;
	struct hspmd_executor *executor;
};

static void must(bool good, const struct hspmd_error *err)
{
	if (!good)
		fail_msg("%s", err->text);
}

static const char *in_folder(const char *name)
{
	static char path[128];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

int golden_remove_folder(void **state)
{
	(void)state;
	int status = *folder ? hspmd_remove_tree(folder, NULL) : 0;
	*folder = '\0';
	return status;
}

static int64_t integer_of(const json_t *object, const char *key)
{
	assert_true(json_is_integer(json_object_get(object, key)));
	return json_integer_value(json_object_get(object, key));
}

/* ---- the files that a training reads */

static void write_tokens(const struct golden_run *r)
{
	FILE *f = fopen(in_folder("tokens"), "w");
	assert_non_null(f);
	for (int64_t i = 0; i < integer_of(r->file, "stream"); i++) {
		uint16_t token = (uint16_t)(golden_bits(golden_name("tokens"), i) % (uint32_t)r->model->vocab);
		assert_int_equal(fwrite(&token, sizeof token, 1, f), 1);
	}
	assert_int_equal(fclose(f), 0);
	f = fopen(in_folder("tokens.mask"), "w");
	assert_non_null(f);
	for (int64_t i = 0; i < integer_of(r->file, "stream"); i++)
		fputc(golden_bits(golden_name("mask"), i) % 3 != 0, f);
	assert_int_equal(fclose(f), 0);
}

/* As in a published file: near 1 if the tensor multiplies an element each, otherwise around 0. */
static void write_weights(const struct golden_run *r)
{
	json_t *header = json_object(), *shape;
	const char *name;
	json_int_t end = 0;
	FILE *f = fopen(in_folder("weights"), "w");
	assert_non_null(f);
	json_object_foreach(json_object_get(r->file, "tensors"), name, shape) {
		json_int_t begin = end, count = 1;
		for (size_t i = 0; i < json_array_size(shape); i++)
			count *= json_integer_value(json_array_get(shape, i));
		end += 4 * count;
		json_object_set_new(header, name, json_pack("{ss,sO,s[II]}", "dtype", "F32", "shape", shape, "data_offsets", begin, end));
	}
	char *text = json_dumps(header, JSON_COMPACT);
	uint64_t length = strlen(text);
	assert_int_equal(fwrite(&length, sizeof length, 1, f), 1);
	fputs(text, f);
	json_object_foreach(json_object_get(r->file, "tensors"), name, shape) {
		json_t *span = json_object_get(json_object_get(header, name), "data_offsets");
		int64_t count = (json_integer_value(json_array_get(span, 1)) - json_integer_value(json_array_get(span, 0))) / 4;
		size_t letters = strlen(name);
		bool gain = json_array_size(shape) == 1 && letters >= 6 && !strcmp(name + letters - 6, "weight");
		for (int64_t i = 0; i < count; i++) {
			float value = (float)(golden_unit(golden_name(name), i) / 4 + gain);
			assert_int_equal(fwrite(&value, sizeof value, 1, f), 1);
		}
	}
	assert_int_equal(fclose(f), 0);
	free(text);
	json_decref(header);
}

/* ---- setting up */

static void make_plan(struct golden_run *r)
{
	struct hspmd_error err = { "" };
	json_t *cluster =
	        json_pack("{ss,s{s{ss,si,si,s{sf}}},s[{ss,s[{ss,si}]}],s[{ss,sf,si}]}", "format", "hspmd-cluster-1", "device_types", "c",
	                  "kind", "cpu", "memory_bytes", 1000000000, "gbytes_per_s", 10, "peak_tflops", "fp32", 0.01, "nodes", "name", "n",
	                  "devices", "type", "c", "count", 1, "links", "scope", "node", "alpha_s", 1e-6, "gbytes_per_s", 5);
	int batch = (int)r->job->global_batch, layers = hspmd_model_layers(r->model);
	json_t *plan = json_pack("{ss,si,si,si,s[{si,s[{s[ii],s[s]}]}]}", "format", "hspmd-plan-1", "global_batch", batch, "micro_batch", 1,
	                         "seq_len", (int)r->job->seq_len, "pipelines", "micro_batches", batch, "stages", "layers", 0, layers,
	                         "devices", "n:0");
	assert_non_null(cluster);
	assert_non_null(plan);
	r->cluster = hspmd_cluster_from_json(cluster, "cluster", &err);
	must(r->cluster, &err);
	r->plan = hspmd_plan_from_json(plan, "plan", r->cluster, layers, &err);
	must(r->plan, &err);
	json_decref(cluster);
	json_decref(plan);
}

static void make_job(struct golden_run *r)
{
	struct hspmd_error err = { "" };
	json_t *job = json_deep_copy(json_object_get(r->file, "job"));
	json_t *rest = json_pack("{ss,ss,s{s[s],ss}}", "format", "hspmd-job-1", "model", "/none", "data", "train", in_folder("tokens"),
	                         "kind", "uint16");
	json_object_update(json_object_get(rest, "data"), json_object_get(job, "data"));
	json_object_update_missing(rest, job);
	if (!json_object_get(rest, "optimizer"))
		json_object_set_new(rest, "optimizer", json_pack("{ss,sf}", "type", "adamw", "lr", 1.0));
	else
		json_object_set_new(json_object_get(rest, "optimizer"), "type", json_string("adamw"));
	if (!json_object_get(rest, "steps"))
		json_object_set_new(rest, "steps", json_integer(1));
	r->job = hspmd_job_from_json(rest, "/job.json", NULL, &err);
	must(r->job, &err);
	json_decref(rest);
	json_decref(job);
}

static int fill_parameters(struct golden_run *r, struct hspmd_error *err)
{
	for (int i = 0; i < r->program->state_count; i++) {
		const struct hspmd_program_state *s = &r->program->states[i];
		const struct hspmd_shape *shape = &r->program->graph->tensors[s->tensor].shape;
		struct hspmd_box all = hspmd_box_full(shape);
		if (hspmd_weights_read(r->weights, &r->map, s->name, shape, &all, hspmd_executor_slot_data(r->executor, s->param), err))
			return -1;
	}
	return 0;
}

static void open_run(struct golden_run *r, const json_t *file)
{
	static const int only[1];
	struct hspmd_error err = { "" };
	*r = (struct golden_run){ .file = file };
	strcpy(folder, "/tmp/hspmd-golden-XXXXXX");
	assert_non_null(mkdtemp(folder));
	r->model = hspmd_model_from_json(json_object_get(file, "config"), "config", &err);
	must(r->model, &err);
	r->map = hspmd_model_file_map(r->model);
	write_tokens(r);
	write_weights(r);
	make_job(r);
	make_plan(r);
	r->data = hspmd_data_open(r->job, r->model->vocab, NULL, &err);
	must(r->data, &err);
	r->weights = hspmd_weights_open(in_folder("weights"), &err);
	must(r->weights, &err);
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	must(ops && !ops->open(&r->device, 0, 2, &err), &err);
	struct hspmd_graph_source source = hspmd_graph_source_job(r->model, r->job);
	r->program = hspmd_program_build(&source, r->plan, r->cluster, 0, r->device, &err);
	must(r->program, &err);
	struct hspmd_executor_options eo = {
		.program = r->program,
		.device = r->device,
		.rank_of = only,
		.device_count = 1,
		.voters = only,
		.voter_count = 1,
		.samples = hspmd_data_source(r->data),
		.job = r->job,
	};
	r->executor = hspmd_executor_create(&eo, &err);
	must(r->executor, &err);
	must(!hspmd_executor_initialise(r->executor, &err) && !fill_parameters(r, &err), &err);
	must(!hspmd_executor_gather_parameters(r->executor, 0, &err), &err);
}

static void close_run(struct golden_run *r)
{
	hspmd_executor_destroy(r->executor);
	hspmd_program_destroy(r->program);
	r->device->ops->close(r->device);
	hspmd_weights_destroy(r->weights);
	hspmd_data_close(r->data);
	hspmd_plan_destroy(r->plan);
	hspmd_cluster_destroy(r->cluster);
	hspmd_job_destroy(r->job);
	hspmd_model_destroy(r->model);
}

/* ---- comparing */

/* A tensor of the published file, collected from ours. */
struct published {
	char name[HSPMD_FILE_NAME_MAX];
	float *data;
	int64_t count, filled;
};

static struct published *find_published(struct published *list, size_t *count, const struct hspmd_file_piece *piece)
{
	for (size_t i = 0; i < *count; i++)
		if (!strcmp(list[i].name, piece->name))
			return &list[i];
	struct published *p = &list[(*count)++];
	p->count = hspmd_shape_elements(&piece->shape);
	p->data = calloc((size_t)p->count, sizeof *p->data);
	assert_non_null(p->data);
	memcpy(p->name, piece->name, sizeof p->name);
	return p;
}

/* Element number i of the piece's box, in the file's tensor. */
static int64_t place_of(const struct hspmd_file_piece *piece, int64_t i)
{
	int64_t at = piece->first;
	for (int d = piece->box.rank - 1; d >= 0; d--) {
		int64_t size = piece->box.hi[d] - piece->box.lo[d], k = i % size;
		at += d ? k * piece->stride[d] : k / piece->block * piece->block_stride + k % piece->block * piece->stride[0];
		i /= size;
	}
	return at;
}

/* Adds a tensor of ours to those of the file. Pieces of several tensors are rows of ours. */
static void publish(struct published *list, size_t *count, const struct golden_run *r, const char *name, const struct hspmd_shape *shape,
                    const float *data)
{
	struct hspmd_file_piece piece;
	for (int64_t k = 0; hspmd_file_map_piece(&r->map, name, shape, k, &piece); k++) {
		struct published *p = find_published(list, count, &piece);
		int64_t elements = hspmd_box_elements(&piece.box);
		for (int64_t i = 0; i < elements; i++)
			p->data[place_of(&piece, i)] = *data++;
		p->filled += elements;
	}
}

/* What vanishes in exact arithmetic is rounding here: little beside the largest tensor. */
static void check_vanished(const char *what, const struct published *p, const json_t *digests)
{
	double largest = 0, square = 0;
	const char *name;
	json_t *digest;
	json_object_foreach((json_t *)digests, name, digest)
		largest = fmax(largest, json_number_value(json_array_get(digest, 0)));
	for (int64_t i = 0; i < p->count; i++)
		square += (double)p->data[i] * p->data[i];
	if (!(sqrt(square) <= TOLERANCE * largest))
		fail_msg("%s of %s: its norm is %g, but it vanishes", what, p->name, sqrt(square));
}

/* Checks a slot of every parameter; slot_at: offset of the slot's number in struct hspmd_program_state. */
static void check_states(const struct golden_run *r, const char *what, const json_t *digests, size_t slot_at, double tolerance)
{
	size_t count = 0;
	struct published *list = calloc(json_object_size(digests) + 1, sizeof *list);
	assert_non_null(list);
	for (int i = 0; i < r->program->state_count; i++) {
		const struct hspmd_program_state *s = &r->program->states[i];
		int slot;
		memcpy(&slot, (const char *)s + slot_at, sizeof slot);
		publish(list, &count, r, s->name, &r->program->graph->tensors[s->tensor].shape,
		        hspmd_executor_slot_data(r->executor, slot));
		assert_true(count <= json_object_size(digests));
	}
	assert_int_equal(count, json_object_size(digests));
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(list[i].filled, list[i].count);
		const json_t *digest = json_object_get(digests, list[i].name);
		if (digest && json_number_value(json_array_get(digest, 0)) == 0)
			check_vanished(what, &list[i], digests);
		else
			golden_check(what, list[i].name, digest, list[i].data, HSPMD_F32, list[i].count, tolerance);
		free(list[i].data);
	}
	free(list);
}

static void run_gradients(struct golden_run *r, int64_t step, struct hspmd_totals *all)
{
	struct hspmd_error err = { "" };
	struct hspmd_step_times times;
	struct hspmd_totals own = { 0 };
	must(!hspmd_executor_gradients(r->executor, step, &own, &times, &err), &err);
	must(!hspmd_executor_vote(r->executor, step, &own, all, &err), &err);
}

static void read_batch(const struct golden_run *r, const struct op_values *v, size_t tensor)
{
	struct hspmd_error err = { "" };
	struct hspmd_sample_source source = hspmd_data_source(r->data);
	int32_t *to = v->data[tensor];
	for (int64_t b = 0; b < r->job->global_batch; b++)
		must(!source.read(source.context, v->g->tensors[tensor].name, b, 0, r->job->seq_len, to + b * r->job->seq_len, &err), &err);
}

/* A forward pass of the whole batch, operator by operator. */
static void check_logits(const struct golden_run *r)
{
	struct hspmd_error err = { "" };
	struct hspmd_model_build_options how = {
		.batch = r->job->global_batch,
		.seq_len = r->job->seq_len,
		.vocab_parts = 1,
		.loss_scale = 1,
		.forward_only = true,
		.documents = r->job->documents,
		.reset_positions = r->job->reset_positions,
	};
	struct hspmd_graph *g = hspmd_model_graph(r->model, &how, &err);
	must(g, &err);
	struct op_values v;
	int logits = -1;
	op_values_open(&v, g, 2);
	for (size_t t = 0; t < g->tensor_count; t++) {
		struct hspmd_box all = hspmd_box_full(&g->tensors[t].shape);
		if (g->tensors[t].role == HSPMD_TENSOR_PARAMETER)
			must(!hspmd_weights_read(r->weights, &r->map, g->tensors[t].name, &g->tensors[t].shape, &all, v.data[t], &err),
			     &err);
		if (g->tensors[t].role == HSPMD_TENSOR_INPUT)
			read_batch(r, &v, t);
	}
	op_values_run(&v, false);
	for (size_t i = 0; i < g->op_count; i++)
		if (g->ops[i].opcode == HSPMD_OP_VOCAB_STATS)
			logits = g->ops[i].in[0];
	assert_true(logits >= 0);
	golden_check("forward pass", "logits", json_object_get(r->file, "logits"), v.data[logits], HSPMD_F32,
	             hspmd_shape_elements(&g->tensors[logits].shape), TOLERANCE);
	op_values_close(&v);
	hspmd_graph_destroy(g);
}

void golden_model(const json_t *file)
{
	struct golden_run r;
	struct hspmd_totals all;
	open_run(&r, file);
	check_logits(&r);
	run_gradients(&r, 0, &all);
	golden_check_number("loss", 0, json_number_value(json_object_get(file, "loss")), all.loss, TOLERANCE);
	/* In some models rounding grows: PyTorch's own float32 is as far off. */
	double off = 2 * json_number_value(json_object_get(file, "float32_off"));
	check_states(&r, "gradient", json_object_get(file, "gradients"), offsetof(struct hspmd_program_state, grad),
	             off > TOLERANCE ? off : TOLERANCE);
	close_run(&r);
}

void golden_training(const json_t *file)
{
	struct hspmd_error err = { "" };
	struct golden_run r;
	struct hspmd_totals all;
	const json_t *losses = json_object_get(file, "losses"), *norms = json_object_get(file, "norms"),
	             *rates = json_object_get(file, "rates"), *state = json_object_get(file, "state");
	open_run(&r, file);
	assert_int_equal(json_array_size(losses), r.job->steps);
	for (int64_t step = 0; step < r.job->steps; step++) {
		size_t at = (size_t)step;
		run_gradients(&r, step, &all);
		golden_check_number("learning rate of step", step, json_number_value(json_array_get(rates, at)), hspmd_job_lr(r.job, step),
		                    1e-9);
		golden_check_number("loss of step", step, json_number_value(json_array_get(losses, at)), all.loss, TOLERANCE);
		golden_check_number("gradient's norm in step", step, json_number_value(json_array_get(norms, at)), sqrt(all.square_sum),
		                    TOLERANCE);
		must(!hspmd_executor_commit(r.executor, step, &all, &err), &err);
		must(!hspmd_executor_gather_parameters(r.executor, step + 1, &err), &err);
	}
	check_states(&r, "parameter", json_object_get(state, "param"), offsetof(struct hspmd_program_state, param), TOLERANCE);
	check_states(&r, "first moment", json_object_get(state, "m"), offsetof(struct hspmd_program_state, moments[0]), TOLERANCE);
	check_states(&r, "second moment", json_object_get(state, "v"), offsetof(struct hspmd_program_state, moments[1]), TOLERANCE);
	close_run(&r);
}
