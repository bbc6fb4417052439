/* SPDX-License-Identifier: Apache-2.0 */
/* Measures layer times with a made-up job: the model with fewer layers, a plan of one stage, random samples. Of a step's two
 * micro-batches the second is measured, because it adds to gradients as all but the first do. */
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/order.h"
#include "runtime/exec/execute.h"
#include "runtime/measure/measure.h"
#include "runtime/model/own.h"

/* A config.json's model gets at least BLOCKS_MIN blocks, all kinds among them, and so many that their state exceeds a processor's caches,
 * as a full model's state does. If a kind comes so late that there would be more, and one layer of each kind exceeds the caches too, it is
 * reduced to these. A model of the user's own cannot be built with fewer layers: it is measured as a whole, or if its state is larger than
 * STATE_BYTES, reduced. */
#define STATE_BYTES ((int64_t)256 << 20)
#define BLOCKS_MIN 3
#define STATE_OF_PARAMETER 16 /* parameter, gradient and two moments */

/* The share of a device's memory that a program may use; the rest is for messages and libraries. */
#define MEMORY_SHARE 0.9

#define MICRO_BATCHES 2

/* Estimate for the first trial of its kind. A step: three times the forward pass's matrix products at the device's rate, and its state,
 * which the passes and the update read and write. Before that one core touches every byte of the state for the first time and fills it
 * with random values, at about 1 GB/s. The sum is doubled for everything that this leaves out. */
#define STATE_PASSES 4
#define FIRST_TOUCH 1e9
#define MARGIN 2

/* Which layers of the model a trial has. */
struct selection {
	int layers;
	bool reduced; /* one of each kind; else the first ones and the last */
};

struct hspmd_trial {
	const struct hspmd_measure_context *context;
	struct hspmd_model model;            /* a shorter copy; its pointers belong to the caller */
	struct hspmd_reduced_model *reduced; /* NULL: `model` is measured */
	struct selection selection;
	struct hspmd_random_samples *samples;
	struct hspmd_plan *plan;
	struct hspmd_job job;
	struct hspmd_program *program;
	struct hspmd_executor *executor;
	int *rank_of;
	double *seconds; /* per instruction */
	int64_t step;
	size_t count, capacity;
	double *steps; /* seconds of the measured ones: [count][kind][time] */
};

double hspmd_middle_mean(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, hspmd_double_order);
	int first = (count + 1) / 4, end = count - first;
	double sum = 0;
	for (int i = first; i < end; i++)
		sum += values[i];
	return end > first ? sum / (end - first) : 0;
}

/* ---- preparing */

static double params_of(const struct hspmd_model_facts *f, int layer)
{
	const struct hspmd_layer_facts *l = hspmd_model_layer_facts(f, layer);
	return l->params.replicated + l->params.sharded;
}

static double flops_of(const struct hspmd_model_facts *f, int layer)
{
	const struct hspmd_layer_facts *l = hspmd_model_layer_facts(f, layer);
	const struct hspmd_layer_pass *forward = &l->forward[HSPMD_FACTS_FP32], *backward = &l->backward[HSPMD_FACTS_FP32];
	return forward->flops.replicated + forward->flops.sharded + backward->flops.replicated + backward->flops.sharded;
}

static struct selection select_layers(const struct hspmd_measure_context *context, int tp)
{
	const struct hspmd_model_facts *f = context->facts;
	if (hspmd_model_is_own(context->model)) {
		bool reduced = f->params * STATE_OF_PARAMETER / tp > (double)STATE_BYTES;
		return (struct selection){ reduced ? f->kind_count : f->layer_count, reduced };
	}
	double state = params_of(f, 1) * STATE_OF_PARAMETER / tp;
	double layers = fmax(floor((double)STATE_BYTES / fmax(state, 1)) + 1, BLOCKS_MIN) + 2, enough = layers, one_each = 0;
	for (int l = 1, kinds = 1; l + 1 < f->layer_count; l++)
		if (f->kind_of_layer[l] == kinds) { /* the first of its kind */
			layers = fmax(layers, l + 2);
			one_each += params_of(f, l) * STATE_OF_PARAMETER / tp;
			kinds++;
		}
	if (layers > enough && one_each > (double)STATE_BYTES)
		return (struct selection){ f->kind_count, true };
	return (struct selection){ layers < f->layer_count ? (int)layers : f->layer_count, false };
}

/* The kind of a trial's layer. */
static int selected_kind(const struct hspmd_model_facts *f, const struct selection *s, int layer)
{
	return s->reduced ? layer : f->kind_of_layer[layer + 1 < s->layers ? layer : f->layer_count - 1];
}

/* The layer of the model that a trial's layer stands for. */
static int selected_layer(const struct hspmd_model_facts *f, const struct selection *s, int layer)
{
	int l = layer + 1 < s->layers ? 0 : f->layer_count - 1;
	while (f->kind_of_layer[l] != selected_kind(f, s, layer))
		l++;
	return l;
}

static int make_plan(struct hspmd_trial *t, const int *group, int tp, int micro_batch, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = t->context->cluster;
	json_t *devices = json_array();
	int bad = !devices, layers = t->selection.layers;
	char address[256];
	for (int i = 0; i < tp; i++)
		bad |= json_array_append_new(devices, json_string(hspmd_cluster_device_address(c, group[i], address, sizeof address)));
	json_t *plan =
	        json_pack("{ss,si,si,si,ss,si,s[{si,s[{s[ii],so}]}]}", "format", HSPMD_PLAN_FORMAT, "global_batch",
	                  MICRO_BATCHES * micro_batch, "micro_batch", micro_batch, "seq_len", t->context->seq_len, "schedule", "1f1b",
	                  "zero_stage", 0, "pipelines", "micro_batches", MICRO_BATCHES, "stages", "layers", 0, layers, "devices", devices);
	if (bad || !plan)
		hspmd_fail_memory(err, "measuring layers");
	else
		t->plan = hspmd_plan_from_json(plan, "measured plan", c, layers, err);
	json_decref(plan);
	return t->plan ? 0 : -1;
}

struct hspmd_trial_estimate hspmd_trial_estimate(const struct hspmd_measure_context *context, int tp, int micro_batch)
{
	const struct hspmd_model_facts *f = context->facts;
	const struct hspmd_device_type *type = &context->cluster->types[context->cluster->devices[context->device].type];
	struct selection s = select_layers(context, tp);
	double flops = 0, state = 0;
	for (int l = 0; l < s.layers; l++) {
		flops += flops_of(f, selected_layer(f, &s, l));
		state += params_of(f, selected_layer(f, &s, l)) * STATE_OF_PARAMETER;
	}
	double rate = type->tflops[HSPMD_PRECISION_FP32] > 0 ? type->tflops[HSPMD_PRECISION_FP32] : type->peak_tflops[HSPMD_PRECISION_FP32];
	struct hspmd_trial_estimate g = { .start_s = state / tp / FIRST_TOUCH,
		                          .step_s = STATE_PASSES * state / tp / (type->gbytes_per_s * 1e9) };
	if (rate > 0)
		g.step_s += MICRO_BATCHES * micro_batch * flops / tp / (rate * 1e12);
	g.start_s *= MARGIN;
	g.step_s *= MARGIN;
	return g;
}

static void make_job(struct hspmd_trial *t)
{
	t->job = (struct hspmd_job){ .seq_len = t->plan->seq_len, .global_batch = t->plan->global_batch, .steps = INT32_MAX, .seed = 1 };
	t->job.optimizer.lr = 1e-6;
	for (int k = 0; k < HSPMD_OPTIMIZER_KEYS; k++)
		t->job.optimizer.values[k] = hspmd_optimizer_types[0]->keys[k].standard;
	t->job.optimizer.clip = 1;
}

static int check_memory(const struct hspmd_trial *t, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = t->context->cluster;
	double need = (double)hspmd_program_memory(t->program);
	double have = MEMORY_SHARE * (double)c->types[c->devices[t->context->device].type].memory_bytes;
	return need <= have ? 0 : hspmd_fail(err, "needs %.3g GB of memory, but there are %.3g GB", need / 1e9, have / 1e9);
}

static int make_executor(struct hspmd_trial *t, const int *group, int tp, struct hspmd_error *err)
{
	size_t devices = (size_t)t->context->cluster->device_count;
	t->rank_of = hspmd_calloc(devices, sizeof *t->rank_of);
	t->seconds = hspmd_calloc(t->program->instruction_count, sizeof *t->seconds);
	if (!t->rank_of || !t->seconds)
		return hspmd_fail_memory(err, "measuring layers");
	for (size_t d = 0; d < devices; d++)
		t->rank_of[d] = (int)d;
	struct hspmd_executor_options o = {
		.program = t->program,
		.device = t->context->dev,
		.transport = tp > 1 ? t->context->transport : NULL,
		.rank_of = t->rank_of,
		.device_count = (int)devices,
		.voters = group,
		.voter_count = tp,
		.samples = { .read = hspmd_random_samples_read, .context = t->samples },
		.job = &t->job,
		.seconds = t->seconds,
	};
	t->executor = hspmd_executor_create(&o, err);
	return t->executor ? hspmd_executor_initialise(t->executor, err) : -1;
}

struct hspmd_trial *hspmd_trial_create(const struct hspmd_measure_context *context, const int *group, int tp, int micro_batch,
                                       struct hspmd_error *err)
{
	struct hspmd_trial *t = hspmd_calloc(1, sizeof *t);
	if (!t) {
		hspmd_fail_memory(err, "measuring layers");
		return NULL;
	}
	t->context = context;
	t->model = *context->model;
	t->selection = select_layers(context, tp);
	if (!t->selection.reduced)
		t->model.block_count = t->selection.layers - 2;
	struct hspmd_graph_source source = hspmd_graph_source_model(&t->model);
	if (t->selection.reduced) {
		if (!(t->reduced = hspmd_reduced_model_create(&source, context->seq_len, 1, err)))
			goto fail;
		source = hspmd_reduced_model_source(t->reduced);
	}
	if (make_plan(t, group, tp, micro_batch, err))
		goto fail;
	make_job(t);
	t->program = hspmd_program_build(&source, t->plan, context->cluster, context->device, context->dev, err);
	if (!t->program || check_memory(t, err) || !(t->samples = hspmd_random_samples_create(t->program->graph, err)) ||
	    make_executor(t, group, tp, err))
		goto fail;
	return t;
fail:
	hspmd_trial_destroy(t);
	return NULL;
}

void hspmd_trial_destroy(struct hspmd_trial *t)
{
	if (!t)
		return;
	hspmd_executor_destroy(t->executor);
	hspmd_program_destroy(t->program);
	hspmd_random_samples_destroy(t->samples);
	hspmd_reduced_model_destroy(t->reduced);
	hspmd_plan_destroy(t->plan);
	free(t->rank_of);
	free(t->seconds);
	free(t->steps);
	free(t);
}

/* ---- running */

static int kinds_of(const struct hspmd_trial *t)
{
	return t->context->facts->kind_count;
}

static int kind_of(const struct hspmd_trial *t, int layer)
{
	return selected_kind(t->context->facts, &t->selection, layer < 0 ? 0 : layer);
}

static int layers_of_kind(const struct hspmd_trial *t, int kind)
{
	int count = 0;
	for (int l = 0; l < t->selection.layers; l++)
		count += kind_of(t, l) == kind;
	return count;
}

static double *seconds_of(const struct hspmd_trial *t, size_t step, int kind)
{
	return t->steps + (step * (size_t)kinds_of(t) + (size_t)kind) * HSPMD_LAYER_TIME_COUNT;
}

static int store_step(struct hspmd_trial *t, struct hspmd_error *err)
{
	size_t size = (size_t)kinds_of(t) * HSPMD_LAYER_TIME_COUNT * sizeof *t->steps;
	if (hspmd_array_grow(&t->steps, &t->capacity, t->count, size))
		return hspmd_fail_memory(err, "measuring layers");
	memset(seconds_of(t, t->count, 0), 0, size);
	for (size_t i = 0; i < t->program->instruction_count; i++) {
		const struct hspmd_instruction *in = &t->program->instructions[i];
		if (in->micro_batch == 0 || (in->kind == HSPMD_INSTRUCTION_COMM && i >= t->program->vote))
			continue;
		int time = in->micro_batch < 0 ? HSPMD_TIME_OPTIMIZER : in->backward ? HSPMD_TIME_BACKWARD : HSPMD_TIME_FORWARD;
		seconds_of(t, t->count, kind_of(t, in->layer))[time] += t->seconds[i];
	}
	t->count++;
	return 0;
}

int hspmd_trial_step(struct hspmd_trial *t, double *took, struct hspmd_error *err)
{
	struct hspmd_totals own = { 0 };
	struct hspmd_step_times times;
	double then = hspmd_now();
	if (hspmd_executor_gradients(t->executor, t->step, &own, &times, err) || hspmd_executor_commit(t->executor, t->step, &own, err) ||
	    hspmd_executor_gather_parameters(t->executor, t->step + 1, err))
		return -1;
	*took = hspmd_now() - then;
	t->step++;
	return store_step(t, err);
}

/* ---- results */

/* A fused operator may belong to two layers. */
static int layer_of(const struct hspmd_program *p, const struct hspmd_instruction *in, int slot)
{
	return in->kind == HSPMD_INSTRUCTION_RUN ? p->graph->tensors[p->slot_types[p->slots[slot].slot_type].tensor].layer : in->layer;
}

/* Count the slots of a micro-batch that the forward pass writes and the backward pass reads. */
static void count_kept(const struct hspmd_trial *t, struct hspmd_trial_result *out, int *writer)
{
	const struct hspmd_program *p = t->program;
	for (size_t s = 0; s < p->slot_count; s++)
		writer[s] = -1;
	for (size_t i = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->micro_batch != 0)
			continue;
		for (int k = 0; in->backward && k < in->input_count; k++) {
			int s = in->in[k];
			if (s < 0 || writer[s] < 0 || p->slots[s].memory != HSPMD_ARENA_TRANSIENT)
				continue;
			int kind = kind_of(t, writer[s]);
			out[kind].kept_bytes +=
			        (double)p->slot_types[p->slots[s].slot_type].bytes / layers_of_kind(t, kind) / t->plan->micro_batch;
			writer[s] = -1;
		}
		for (int k = 0; !in->backward && k < in->output_count; k++)
			if (in->out[k] >= 0)
				writer[in->out[k]] = layer_of(p, in, in->out[k]);
	}
}

/* The seconds of all measured steps, of one kind or of all (-1), in times [first, end). */
static double middle(const struct hspmd_trial *t, int kind, int first, int end, double *values)
{
	size_t warm_up = t->count > 1;
	for (size_t i = warm_up; i < t->count; i++) {
		values[i] = 0;
		for (int k = kind < 0 ? 0 : kind; k < (kind < 0 ? kinds_of(t) : kind + 1); k++)
			for (int time = first; time < end; time++)
				values[i] += seconds_of(t, i, k)[time];
	}
	return hspmd_middle_mean(values + warm_up, (int)(t->count - warm_up));
}

/* Rare delays (a device that has only a share of its cores' time is stopped once in a while) do not appear in the middle half of one
 * kind's times, but in the whole step's. So the parts are scaled until their sum is the whole step's time. */
static void stretch(const struct hspmd_trial *t, struct hspmd_trial_result *out, int first, int end, double *values)
{
	double whole = middle(t, -1, first, end, values), parts = 0;
	for (int k = 0; k < kinds_of(t); k++)
		for (int time = first; time < end; time++)
			parts += middle(t, k, time, time + 1, values);
	for (int k = 0; k < kinds_of(t); k++)
		for (int time = first; time < end; time++)
			out[k].seconds[time] =
			        middle(t, k, time, time + 1, values) * (parts > 0 ? whole / parts : 1) / layers_of_kind(t, k);
}

int hspmd_trial_result(const struct hspmd_trial *t, struct hspmd_trial_result *out, struct hspmd_error *err)
{
	if (!t->count)
		return hspmd_fail(err, "nothing was measured yet");
	double *values = hspmd_calloc(t->count, sizeof *values);
	int *writer = hspmd_calloc(t->program->slot_count, sizeof *writer),
	    rv = values && writer ? 0 : hspmd_fail_memory(err, "measuring layers");
	memset(out, 0, (size_t)kinds_of(t) * sizeof *out);
	if (!rv) {
		stretch(t, out, HSPMD_TIME_FORWARD, HSPMD_TIME_OPTIMIZER, values);
		stretch(t, out, HSPMD_TIME_OPTIMIZER, HSPMD_LAYER_TIME_COUNT, values);
		count_kept(t, out, writer);
	}
	free(values);
	free(writer);
	return rv;
}
