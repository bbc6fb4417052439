/* SPDX-License-Identifier: Apache-2.0 */
/* Writing, copying and describing plans. Helpers return a new reference, or NULL: out of memory. */
#include "common/format/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/plan_lengths.h"
#include "common/format/recompute_sets.h"
#include "common/json.h"

#define RUN_MAX_BYTES 300 /* "node:first-last" */

/* "node:first-last" of the longest run that starts at devices[i], into text. Returns where the run ends. */
static int run_text(const struct hspmd_cluster *c, const int *devices, int count, int i, char *text)
{
	const struct hspmd_cluster_device *first = &c->devices[devices[i]];
	int end = i + 1;
	while (end < count && devices[end] == devices[end - 1] + 1 && c->devices[devices[end]].node == first->node)
		end++;
	if (end - i == 1)
		hspmd_cluster_device_address(c, devices[i], text, RUN_MAX_BYTES);
	else
		snprintf(text, RUN_MAX_BYTES, "%s:%d-%d", c->nodes[first->node].name, first->index, first->index + end - i - 1);
	return end;
}

/* ---- to JSON */

static json_t *devices_json(const struct hspmd_cluster *c, const int *devices, int count)
{
	char run[RUN_MAX_BYTES];
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < count;) {
		i = run_text(c, devices, count, i, run);
		bad |= json_array_append_new(a, json_string(run));
	}
	return hspmd_json_unless_failed(bad, a);
}

static json_t *ratio_json(const double *values, int count)
{
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < count; i++)
		bad |= json_array_append_new(a, hspmd_json_real(values[i]));
	return hspmd_json_unless_failed(bad, a);
}

static json_t *recompute_json(const struct hspmd_plan *p, const struct hspmd_stage *s)
{
	const json_t *set = hspmd_recompute_set(p->recompute_sets, s->recompute);
	return set ? json_deep_copy(set) : json_string(hspmd_recompute_names[s->recompute]);
}

static json_t *stage_json(const struct hspmd_cluster *c, const struct hspmd_plan *p, const struct hspmd_stage *s)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "layers", json_pack("[ii]", s->layers[0], s->layers[1]));
	bad |= json_object_set_new(o, "devices", devices_json(c, s->devices, s->device_count));
	bad |= json_object_set_new(o, "recompute", recompute_json(p, s));
	if (s->sequence_parallel)
		bad |= json_object_set_new(o, "sequence_parallel", json_true());
	if (s->zero_share > 0 && p->zero_stage)
		bad |= json_object_set_new(o, "zero_share", hspmd_json_real(s->zero_share));
	if (s->offload)
		bad |= json_object_set_new(o, "offload", json_string(hspmd_offload_names[s->offload]));
	if (s->offload_activations == HSPMD_OFFLOAD_ALL)
		bad |= json_object_set_new(o, "offload_activations", json_string("all"));
	else if (s->offload_activations)
		bad |= json_object_set_new(o, "offload_activations",
		                           json_deep_copy(json_array_get(p->offload_sets, s->offload_activations - HSPMD_OFFLOAD_SET)));
	if (s->context > 1)
		bad |= json_object_set_new(o, "context", json_integer(s->context));
	if (s->shard_ratio)
		bad |= json_object_set_new(o, "shard_ratio", ratio_json(s->shard_ratio, s->device_count / s->context));
	if (s->context_ratio)
		bad |= json_object_set_new(o, "context_ratio", ratio_json(s->context_ratio, s->context));
	return hspmd_json_unless_failed(bad, o);
}

static json_t *pipeline_json(const struct hspmd_cluster *c, const struct hspmd_plan *p, const struct hspmd_pipeline *pl)
{
	json_t *o = json_object(), *stages = json_array();
	int bad = !o || !stages;
	for (int i = 0; i < pl->stage_count; i++)
		bad |= json_array_append_new(stages, stage_json(c, p, &pl->stages[i]));
	bad |= json_object_set_new(o, "micro_batches", json_integer(pl->micro_batches));
	if (pl->micro_batch != p->micro_batch)
		bad |= json_object_set_new(o, "micro_batch", json_integer(pl->micro_batch));
	if (pl->length_count)
		bad |= json_object_set_new(o, "lengths", hspmd_pipeline_lengths_json(pl));
	bad |= json_object_set_new(o, "stages", stages);
	return hspmd_json_unless_failed(bad, o);
}

static json_t *predicted_json(const struct hspmd_cluster *c, const struct hspmd_predicted *d)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "step_s", hspmd_json_real(d->step_s));
	bad |= json_object_set_new(o, "compute_s", hspmd_json_real(d->compute_s));
	bad |= json_object_set_new(o, "bubble_s", hspmd_json_real(d->bubble_s));
	bad |= json_object_set_new(o, "communication_s", hspmd_json_real(d->communication_s));
	bad |= json_object_set_new(o, "sync_s", hspmd_json_real(d->sync_s));
	if (d->device_count) {
		json_t *memory = json_object();
		char address[RUN_MAX_BYTES];
		for (int i = 0; i < d->device_count; i++)
			bad |= json_object_set_new(memory, hspmd_cluster_device_address(c, d->devices[i], address, sizeof address),
			                           hspmd_json_real(ceil(d->memory_bytes[i])));
		bad |= json_object_set_new(o, "memory_bytes", memory);
	}
	return hspmd_json_unless_failed(bad, o);
}

json_t *hspmd_plan_to_json(const struct hspmd_plan *p, const struct hspmd_cluster *c)
{
	json_t *o = json_object(), *pipelines = json_array();
	int bad = !o || !pipelines;
	for (int i = 0; i < p->pipeline_count; i++)
		bad |= json_array_append_new(pipelines, pipeline_json(c, p, &p->pipelines[i]));
	bad |= json_object_set_new(o, "format", json_string(HSPMD_PLAN_FORMAT));
	bad |= json_object_set_new(o, "global_batch", json_integer(p->global_batch));
	bad |= json_object_set_new(o, "micro_batch", json_integer(p->micro_batch));
	bad |= json_object_set_new(o, "seq_len", json_integer(p->seq_len));
	bad |= json_object_set_new(o, "schedule", json_string(hspmd_schedule_names[p->schedule]));
	if (p->schedule == HSPMD_SCHEDULE_INTERLEAVED)
		bad |= json_object_set_new(o, "virtual_stages", json_integer(p->virtual_stages));
	bad |= json_object_set_new(o, "zero_stage", json_integer(p->zero_stage));
	if (p->no_prefetch && p->zero_stage > 2)
		bad |= json_object_set_new(o, "prefetch", json_false());
	if (p->synthesis)
		bad |= json_object_set_new(o, "synthesis", json_true());
	if (p->program)
		bad |= json_object_set_new(o, "program", json_deep_copy(p->program));
	if (p->choices)
		bad |= json_object_set(o, "choices", p->choices);
	bad |= json_object_set_new(o, "pipelines", pipelines);
	if (p->predicted.step_s > 0)
		bad |= json_object_set_new(o, "predicted", predicted_json(c, &p->predicted));
	if (p->shorter_count) {
		json_t *shorter = json_array();
		for (int i = 0; i < p->shorter_count; i++)
			bad |= json_array_append_new(shorter, hspmd_plan_to_json(p->shorter[i], c));
		bad |= json_object_set_new(o, "shorter", shorter);
	}
	return hspmd_json_unless_failed(bad, o);
}

/* ---- copying */

/* A copy of n elements; NULL for NULL. *failed is set if memory is out. */
static void *copy_array(const void *from, size_t n, size_t size, int *failed)
{
	if (!from)
		return NULL;
	void *to = hspmd_calloc(n, size);
	if (!to)
		*failed = 1;
	else
		memcpy(to, from, n * size);
	return to;
}

static void copy_stage(struct hspmd_stage *to, const struct hspmd_stage *from, int *failed)
{
	size_t n = (size_t)from->device_count, groups = (size_t)from->context;
	*to = *from;
	to->devices = copy_array(from->devices, n, sizeof *to->devices, failed);
	to->shard_ratio = copy_array(from->shard_ratio, n / groups, sizeof *to->shard_ratio, failed);
	to->context_ratio = copy_array(from->context_ratio, groups, sizeof *to->context_ratio, failed);
}

static void copy_pipeline(struct hspmd_pipeline *to, const struct hspmd_pipeline *from, int *failed)
{
	*to = *from;
	to->stages = hspmd_calloc((size_t)from->stage_count, sizeof *to->stages);
	if (!to->stages) {
		to->stage_count = 0;
		*failed = 1;
	}
	to->lengths = copy_array(from->lengths, (size_t)from->length_count, sizeof *from->lengths, failed);
	for (int i = 0; i < to->stage_count; i++)
		copy_stage(&to->stages[i], &from->stages[i], failed);
}

static void copy_shorter(struct hspmd_plan *to, const struct hspmd_plan *from, int *failed)
{
	to->shorter_count = 0;
	to->shorter = from->shorter_count ? hspmd_calloc((size_t)from->shorter_count, sizeof(*to->shorter)) : NULL;
	*failed |= from->shorter_count && !to->shorter;
	for (int i = 0; !*failed && i < from->shorter_count; i++) {
		to->shorter[i] = hspmd_plan_copy(from->shorter[i]);
		*failed = !to->shorter[i];
		to->shorter_count += !*failed;
	}
}

struct hspmd_plan *hspmd_plan_copy(const struct hspmd_plan *p)
{
	struct hspmd_plan *copy = calloc(1, sizeof *copy);
	int failed = 0;
	if (!copy)
		return NULL;
	*copy = *p;
	copy->program = p->program ? json_deep_copy(p->program) : NULL;
	failed = p->program && !copy->program;
	copy->recompute_sets = json_incref(p->recompute_sets);
	copy->offload_sets = json_incref(p->offload_sets);
	copy->choices = json_incref(p->choices);
	size_t n = (size_t)p->predicted.device_count;
	copy->predicted.devices = copy_array(p->predicted.devices, n, sizeof *p->predicted.devices, &failed);
	copy->predicted.memory_bytes = copy_array(p->predicted.memory_bytes, n, sizeof *p->predicted.memory_bytes, &failed);
	copy->pipelines = hspmd_calloc((size_t)p->pipeline_count, sizeof *copy->pipelines);
	if (!copy->pipelines) {
		copy->pipeline_count = 0;
		failed = 1;
	}
	for (int i = 0; i < copy->pipeline_count; i++)
		copy_pipeline(&copy->pipelines[i], &p->pipelines[i], &failed);
	copy_shorter(copy, p, &failed);
	if (!failed)
		return copy;
	hspmd_plan_destroy(copy);
	return NULL;
}

/* ---- for people */

static void print_pipeline(FILE *f, const struct hspmd_cluster *c, const struct hspmd_pipeline *pl)
{
	char run[RUN_MAX_BYTES];
	fputc('[', f);
	for (int i = 0; i < pl->stage_count; i++) {
		const struct hspmd_stage *s = &pl->stages[i];
		fputs(i ? " | " : "", f);
		for (int k = 0; k < s->device_count;) {
			fputs(k ? "," : "", f);
			k = run_text(c, s->devices, s->device_count, k, run);
			fputs(run, f);
		}
		if (s->device_count > 1)
			fprintf(f, " x%d", s->device_count);
		fprintf(f, " L%d-%d", s->layers[0], s->layers[1]);
	}
	fprintf(f, "] %d mb", pl->micro_batches);
}

static void print_pipelines(FILE *f, const struct hspmd_cluster *c, const struct hspmd_plan *p)
{
	fprintf(f, "%d pipeline%s: ", p->pipeline_count, p->pipeline_count == 1 ? "" : "s");
	for (int i = 0; i < p->pipeline_count; i++) {
		fputs(i ? ", " : "", f);
		print_pipeline(f, c, &p->pipelines[i]);
	}
}

char *hspmd_plan_summary(const struct hspmd_plan *p, const struct hspmd_cluster *c)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	print_pipelines(f, c, p);
	for (int i = p->shorter_count - 1; i >= 0; i--) {
		fprintf(f, "; steps of up to %d tokens: ", p->shorter[i]->seq_len);
		print_pipelines(f, c, p->shorter[i]);
	}
	int failed = ferror(f);
	if (fclose(f) || failed) {
		free(text);
		return NULL;
	}
	return text;
}

static double zero_share_of(const struct hspmd_pipeline *pipe, int layer)
{
	int s = 0;
	while (s < pipe->stage_count - 1 && pipe->stages[s].layers[1] <= layer)
		s++;
	return pipe->stages[s].zero_share > 0 ? pipe->stages[s].zero_share : 1;
}

double hspmd_plan_zero_part(const struct hspmd_plan *p, int pipeline, int layer)
{
	double all = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		all += zero_share_of(&p->pipelines[i], layer);
	return zero_share_of(&p->pipelines[pipeline], layer) / all;
}

int hspmd_plan_widest_group(const struct hspmd_plan *p)
{
	int most = 1;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count; k++) {
			const struct hspmd_stage *s = &p->pipelines[i].stages[k];
			most = s->device_count / s->context > most ? s->device_count / s->context : most;
		}
	return most;
}

int hspmd_plan_for_length(const struct hspmd_plan *p, int64_t length)
{
	for (int i = 0; i < p->shorter_count; i++)
		if (length <= p->shorter[i]->seq_len)
			return i + 1;
	return 0;
}

const struct hspmd_plan *hspmd_plan_of(const struct hspmd_plan *p, int which)
{
	return which ? p->shorter[which - 1] : p;
}

int hspmd_plan_device_count(const struct hspmd_plan *p)
{
	int count = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count / p->virtual_stages; k++)
			count += p->pipelines[i].stages[k].device_count;
	return count;
}
