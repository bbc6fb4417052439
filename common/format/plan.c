/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and checking hspmd-plan-1. Writing is in plan_write.c. */
#include "common/format/plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_traits.h"
#include "common/format/plan_lengths.h"
#include "common/format/recompute_sets.h"
#include "common/json.h"

#define GLOBAL_BATCH_MAX (1 << 30)
#define MICRO_BATCH_MAX (1 << 20)
#define SEQ_LEN_MAX (1 << 26)
#define LAYERS_MAX (1 << 20)
#define VIRTUAL_STAGES_MAX 1024
#define RATIO_MAX 1e9
#define SECONDS_MAX 1e12
#define SHORTER_MAX 64
#define CHOICES_MAX (1 << 20)
#define OPERATORS_MAX 1024

const char *const hspmd_recompute_names[] = { "none", "selective", "set 1", "set 2", "set 3", "set 4", "full", NULL };
const char *const hspmd_offload_names[] = { "none", "optimizer", NULL };
const char *const hspmd_schedule_names[] = { "1f1b", "gpipe", "interleaved", "zb-h1", NULL };

/* The stage of a device. */
struct owner {
	int pipeline, stage; /* pipeline -1: none */
};

struct reader {
	struct hspmd_plan *p;
	const struct hspmd_cluster *c;
	int layers;           /* the model's, -1: not known */
	struct owner *owners; /* one per device of the cluster */
	int *found;           /* room for a run of devices */
};

/* ---- devices of a stage */

static int take_device(struct reader *r, const struct hspmd_json *at, struct owner me, int device)
{
	struct owner *owner = &r->owners[device];
	char address[300];
	if (owner->pipeline < 0) {
		*owner = me;
		return 0;
	}
	hspmd_cluster_device_address(r->c, device, address, sizeof address);
	if (owner->pipeline == me.pipeline && owner->stage == me.stage)
		return hspmd_json_fail(at, "device %s is in this stage twice", address);
	return hspmd_json_fail(at, "device %s is in pipelines[%d].stages[%d] already", address, owner->pipeline, owner->stage);
}

/* The devices of a run, appended to the stage's. Those of an interleaved plan's later chunks are compared with the first chunk's
 * instead. */
static int add_run(struct reader *r, struct hspmd_json *at, struct owner me, struct hspmd_stage *s, size_t *room, bool first_round)
{
	const char *run = hspmd_json_string_value(at);
	if (!run)
		return -1;
	struct hspmd_error why;
	int n = hspmd_cluster_expand_devices(r->c, run, r->found, r->c->device_count, &why);
	if (n < 0)
		return hspmd_json_fail(at, "%s", why.text);
	for (int i = 0; i < n; i++) {
		if (s->device_count >= r->c->device_count)
			return hspmd_json_fail(at, "more devices than the cluster has");
		if (hspmd_array_grow(&s->devices, room, (size_t)s->device_count, sizeof *s->devices))
			return hspmd_json_fail_memory(at);
		if (first_round && take_device(r, at, me, r->found[i]))
			return -1;
		s->devices[s->device_count++] = r->found[i];
	}
	return 0;
}

static int read_devices(struct reader *r, struct hspmd_json *at, struct owner me, struct hspmd_stage *s, bool first_round)
{
	struct hspmd_json runs = hspmd_json_array(at, "devices", 1, SIZE_MAX);
	size_t room = 0;
	for (size_t i = 0; i < hspmd_json_length(&runs); i++) {
		struct hspmd_json run = hspmd_json_at(&runs, i);
		if (add_run(r, &run, me, s, &room, first_round))
			return -1;
	}
	return hspmd_json_failed(at) ? -1 : 0;
}

/* ---- one stage */

/* An optional array of `count` positive numbers; NULL when it is absent. */
static int read_ratio(struct hspmd_json *at, const char *key, int count, double **out)
{
	struct hspmd_json a = hspmd_json_array_or_none(at, key, (size_t)count, (size_t)count);
	if (!a.value)
		return hspmd_json_failed(at) ? -1 : 0;
	*out = hspmd_calloc((size_t)count, sizeof **out);
	if (!*out)
		return hspmd_json_fail_memory(&a);
	for (int i = 0; i < count; i++) {
		struct hspmd_json one = hspmd_json_at(&a, (size_t)i);
		(*out)[i] = hspmd_json_number_value(&one, HSPMD_JSON_POSITIVE, RATIO_MAX);
	}
	return hspmd_json_failed(at) ? -1 : 0;
}

static int read_layers(struct hspmd_json *at, struct hspmd_stage *s, int first)
{
	struct hspmd_json layers = hspmd_json_array(at, "layers", 2, 2);
	struct hspmd_json low = hspmd_json_at(&layers, 0), high = hspmd_json_at(&layers, 1);
	s->layers[0] = (int)hspmd_json_int_value(&low, 0, LAYERS_MAX);
	s->layers[1] = (int)hspmd_json_int_value(&high, 0, LAYERS_MAX);
	if (hspmd_json_failed(at))
		return -1;
	if (s->layers[0] != first)
		return hspmd_json_fail(&low,
		                       first ? "expected %d, where the stage before ends, got %d" : "expected %d, the first layer, got %d",
		                       first, s->layers[0]);
	if (s->layers[1] <= s->layers[0])
		return hspmd_json_fail(&layers, "[%d, %d) has no layer; every stage needs one", s->layers[0], s->layers[1]);
	return 0;
}

/* The index in *sets of a list of operators, whose names are checked against the model by whoever has it. -1: the key is absent or a word;
 * -2: failed. */
static int read_operators(struct hspmd_json *at, const char *key, json_t **sets)
{
	if (!json_is_array(hspmd_json_any(at, key).value))
		return -1;
	struct hspmd_json list = hspmd_json_array(at, key, 1, OPERATORS_MAX);
	for (size_t i = 0; i < hspmd_json_length(&list); i++) {
		struct hspmd_json one = hspmd_json_at(&list, i);
		if (!hspmd_json_string_value(&one))
			return -2;
	}
	if (hspmd_json_failed(at))
		return -2;
	int set = hspmd_recompute_sets_add(sets, list.value);
	if (set == HSPMD_RECOMPUTE_SETS)
		hspmd_json_fail(&list, "the plan has %d other lists of operators already, and may have no more", set);
	else if (set < 0)
		hspmd_json_fail_memory(&list);
	return hspmd_json_failed(at) ? -2 : set;
}

static int read_recompute(struct reader *r, struct hspmd_json *at, struct hspmd_stage *s)
{
	static const char *const words[] = { "none", "selective", "full", NULL };
	int set = read_operators(at, "recompute", &r->p->recompute_sets);
	if (set == -2)
		return -1;
	int word = set < 0 ? hspmd_json_enum_or(at, "recompute", words, HSPMD_RECOMPUTE_NONE) : 0;
	s->recompute = set >= 0                     ? (enum hspmd_recompute)(HSPMD_RECOMPUTE_SET + set)
	               : word < HSPMD_RECOMPUTE_SET ? (enum hspmd_recompute)word
	                                            : HSPMD_RECOMPUTE_FULL;
	return hspmd_json_failed(at) ? -1 : 0;
}

/* All of the stage's devices must have something of the host's memory. */
static int check_host(const struct reader *r, struct hspmd_json *at, const char *key, const struct hspmd_stage *s)
{
	struct hspmd_json where = hspmd_json_any(at, key);
	for (int d = 0; d < s->device_count; d++) {
		const struct hspmd_device_type *type = &r->c->types[r->c->devices[s->devices[d]].type];
		char address[300];
		hspmd_cluster_device_address(r->c, s->devices[d], address, sizeof address);
		if (hspmd_device_traits(type->kind)->host_memory)
			return hspmd_json_fail(&where, "%s computes in the host's memory, so that nothing of it can go there", address);
		if (!type->host.memory_bytes)
			return hspmd_json_fail(&where,
			                       "the cluster's file does not say what %s may use of the host's memory; its type, %s, needs "
			                       "`host`",
			                       address, type->name);
	}
	return 0;
}

static int read_offload(const struct reader *r, struct hspmd_json *at, struct hspmd_stage *s)
{
	static const char *const words[] = { "none", "all", NULL };
	s->offload = (enum hspmd_offload)hspmd_json_enum_or(at, "offload", hspmd_offload_names, HSPMD_OFFLOAD_NONE);
	if (hspmd_json_failed(at) || (s->offload && check_host(r, at, "offload", s)))
		return -1;
	int set = read_operators(at, "offload_activations", &r->p->offload_sets);
	if (set == -2)
		return -1;
	s->offload_activations = set < 0 ? hspmd_json_enum_or(at, "offload_activations", words, 0) : HSPMD_OFFLOAD_SET + set;
	return hspmd_json_failed(at) || (s->offload_activations && check_host(r, at, "offload_activations", s)) ? -1 : 0;
}

static int read_stage(struct reader *r, struct hspmd_json *at, struct owner me, struct hspmd_stage *s, int first_layer, bool first_round)
{
	if (read_layers(at, s, first_layer) || read_devices(r, at, me, s, first_round))
		return -1;
	if (read_recompute(r, at, s) || read_offload(r, at, s))
		return -1;
	s->sequence_parallel = hspmd_json_bool_or(at, "sequence_parallel", false);
	s->zero_share = hspmd_json_number_or(at, "zero_share", HSPMD_JSON_POSITIVE, RATIO_MAX, 0);
	r->p->has_zero_shares |= s->zero_share > 0;
	if (s->zero_share > 0 && !r->p->zero_stage) {
		struct hspmd_json share = hspmd_json_any(at, "zero_share");
		return hspmd_json_fail(&share, "nothing is divided in such parts under zero_stage 0");
	}
	s->context = (int)hspmd_json_int_or(at, "context", 1, HSPMD_CLUSTER_MAX_DEVICES, 1);
	if (hspmd_json_failed(at))
		return -1;
	if (s->device_count % s->context) {
		struct hspmd_json where = hspmd_json_any(at, "context");
		return hspmd_json_fail(&where, "%d groups do not divide the stage's %d devices", s->context, s->device_count);
	}
	if (read_ratio(at, "shard_ratio", s->device_count / s->context, &s->shard_ratio) ||
	    read_ratio(at, "context_ratio", s->context, &s->context_ratio))
		return -1;
	return hspmd_json_check_keys(at);
}

/* ---- pipelines */

static bool same_ratio(const double *a, const double *b, int count)
{
	return !a == !b && (!a || !memcmp(a, b, (size_t)count * sizeof *a));
}

bool hspmd_stage_same_splits(const struct hspmd_stage *a, const struct hspmd_stage *b)
{
	return a->device_count == b->device_count && a->context == b->context && a->sequence_parallel == b->sequence_parallel &&
	       same_ratio(a->shard_ratio, b->shard_ratio, a->device_count / a->context) &&
	       same_ratio(a->context_ratio, b->context_ratio, a->context);
}

/* A device holds a parameter that both chunks use once, so both chunks must split it alike. */
static int check_round(const struct hspmd_json *stages, const struct hspmd_pipeline *pl, int i, int length)
{
	const struct hspmd_stage *s = &pl->stages[i], *first = &pl->stages[i % length];
	struct hspmd_json at = hspmd_json_at(stages, (size_t)i);
	if (s->device_count != first->device_count || memcmp(s->devices, first->devices, (size_t)s->device_count * sizeof *s->devices))
		return hspmd_json_fail(&at, "expected the devices of stages[%d], whose next chunk this is", i % length);
	if (s->zero_share != first->zero_share)
		return hspmd_json_fail(&at, "expected zero_share of stages[%d], whose next chunk this is", i % length);
	if (s->offload != first->offload)
		return hspmd_json_fail(&at, "expected offload of stages[%d], whose next chunk this is", i % length);
	if (!hspmd_stage_same_splits(s, first))
		return hspmd_json_fail(
		        &at, "expected shard_ratio, sequence_parallel, context and context_ratio of stages[%d], whose next chunk this is",
		        i % length);
	return 0;
}

static int read_stages(struct reader *r, struct hspmd_json *at, int number, struct hspmd_pipeline *pl)
{
	struct hspmd_json stages = hspmd_json_array(at, "stages", 1, LAYERS_MAX);
	size_t n = hspmd_json_length(&stages);
	if (hspmd_json_failed(at))
		return -1;
	if (n % (size_t)r->p->virtual_stages)
		return hspmd_json_fail(&stages, "expected a multiple of virtual_stages (%d), got %zu stages", r->p->virtual_stages, n);
	int length = (int)n / r->p->virtual_stages, layer = 0;
	pl->stages = hspmd_calloc(n, sizeof *pl->stages);
	if (!pl->stages)
		return hspmd_json_fail_memory(&stages);
	for (int i = 0; i < (int)n; i++) {
		struct hspmd_json stage = hspmd_json_at(&stages, (size_t)i);
		struct owner me = { number, i };
		pl->stage_count++;
		if (read_stage(r, &stage, me, &pl->stages[i], layer, i < length) || (i >= length && check_round(&stages, pl, i, length)))
			return -1;
		layer = pl->stages[i].layers[1];
	}
	if (r->layers >= 0 && layer != r->layers)
		return hspmd_json_fail(&stages, "the last stage ends at layer %d, but the model has %d", layer, r->layers);
	r->layers = layer;
	return 0;
}

static int read_pipelines(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_plan *p = r->p;
	struct hspmd_json all = hspmd_json_array(root, "pipelines", 1, HSPMD_CLUSTER_MAX_DEVICES);
	size_t n = hspmd_json_length(&all);
	int64_t samples = 0;
	if (hspmd_json_failed(root))
		return -1;
	p->pipelines = hspmd_calloc(n, sizeof *p->pipelines);
	if (!p->pipelines)
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		struct hspmd_pipeline *pl = &p->pipelines[p->pipeline_count++];
		pl->micro_batches = (int)hspmd_json_int(&at, "micro_batches", 1, GLOBAL_BATCH_MAX);
		pl->micro_batch = (int)hspmd_json_int_or(&at, "micro_batch", 1, MICRO_BATCH_MAX, p->micro_batch);
		if (hspmd_pipeline_lengths_read(&at, p->seq_len, pl) || read_stages(r, &at, (int)i, pl) || hspmd_json_check_keys(&at))
			return -1;
		samples += (int64_t)pl->micro_batches * pl->micro_batch;
	}
	if (!hspmd_plan_takes(p, p->seq_len))
		return hspmd_json_fail(&all, "none of them takes samples of seq_len (%d) by its lengths", p->seq_len);
	if (samples != p->global_batch)
		return hspmd_json_fail(&all, "their micro_batches times micro_batch add up to %lld, but global_batch is %d",
		                       (long long)samples, p->global_batch);
	return 0;
}

/* ---- predicted */

static int read_predicted_memory(struct reader *r, struct hspmd_json *at)
{
	struct hspmd_predicted *d = &r->p->predicted;
	struct hspmd_json all = hspmd_json_object_or_none(at, "memory_bytes"), one;
	size_t n = json_object_size(all.value);
	const char *address;
	if (hspmd_json_failed(at))
		return -1;
	if (!n)
		return 0;
	if (n > (size_t)r->c->device_count)
		return hspmd_json_fail(&all, "more devices than the cluster has");
	d->devices = hspmd_calloc(n, sizeof *d->devices);
	d->memory_bytes = hspmd_calloc(n, sizeof *d->memory_bytes);
	if (!d->devices || !d->memory_bytes)
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; hspmd_json_member(&all, i, &address, &one); i++) {
		struct hspmd_error why;
		d->devices[i] = hspmd_cluster_find_device(r->c, address, &why);
		if (d->devices[i] < 0)
			return hspmd_json_fail(&all, "%s", why.text);
		d->memory_bytes[i] = hspmd_json_number_value(&one, 0, 1e18);
		d->device_count++;
	}
	return hspmd_json_failed(at) ? -1 : 0;
}

static int read_predicted(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_predicted *d = &r->p->predicted;
	struct hspmd_json at = hspmd_json_object_or_none(root, "predicted");
	d->step_s = hspmd_json_number(&at, "step_s", HSPMD_JSON_POSITIVE, SECONDS_MAX);
	d->compute_s = hspmd_json_number_or(&at, "compute_s", 0, SECONDS_MAX, 0);
	d->bubble_s = hspmd_json_number_or(&at, "bubble_s", 0, SECONDS_MAX, 0);
	d->communication_s = hspmd_json_number_or(&at, "communication_s", 0, SECONDS_MAX, 0);
	d->sync_s = hspmd_json_number_or(&at, "sync_s", 0, SECONDS_MAX, 0);
	if (read_predicted_memory(r, &at))
		return -1;
	return hspmd_json_check_keys(&at);
}

/* ---- one plan */

static int read_head(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_plan *p = r->p;
	if (hspmd_json_format(root, HSPMD_PLAN_FORMAT))
		return -1;
	p->global_batch = (int)hspmd_json_int(root, "global_batch", 1, GLOBAL_BATCH_MAX);
	p->micro_batch = (int)hspmd_json_int(root, "micro_batch", 1, MICRO_BATCH_MAX);
	p->seq_len = (int)hspmd_json_int(root, "seq_len", 1, SEQ_LEN_MAX);
	p->schedule = (enum hspmd_schedule)hspmd_json_enum_or(root, "schedule", hspmd_schedule_names, HSPMD_SCHEDULE_1F1B);
	p->zero_stage = (int)hspmd_json_int_or(root, "zero_stage", 0, HSPMD_ZERO_MAX, 0);
	p->no_prefetch = !hspmd_json_bool_or(root, "prefetch", true);
	p->synthesis = hspmd_json_bool_or(root, "synthesis", false);
	struct hspmd_json program = hspmd_json_object_or_none(root, "program");
	if (program.value && !p->synthesis)
		return hspmd_json_fail(&program, "is what `synthesis` finds, which this plan does not have");
	if (program.value && !(p->program = json_deep_copy(program.value)))
		return hspmd_json_fail_memory(&program);
	p->virtual_stages = 1;
	if (p->schedule == HSPMD_SCHEDULE_INTERLEAVED)
		p->virtual_stages = (int)hspmd_json_int(root, "virtual_stages", 2, VIRTUAL_STAGES_MAX);
	else
		hspmd_json_int_or(root, "virtual_stages", 1, 1, 1);
	return hspmd_json_failed(root) ? -1 : 0;
}

bool hspmd_plan_in_step(const struct hspmd_plan *p)
{
	const struct hspmd_pipeline *first = &p->pipelines[0];
	for (int i = 1; i < p->pipeline_count; i++) {
		const struct hspmd_pipeline *pipe = &p->pipelines[i];
		if (pipe->micro_batches != first->micro_batches || pipe->stage_count != first->stage_count)
			return false;
		for (int s = 0; s < pipe->stage_count; s++)
			if (pipe->stages[s].layers[1] != first->stages[s].layers[1])
				return false;
	}
	return p->schedule != HSPMD_SCHEDULE_ZB_H1;
}

/* Pipelines that exchange parts during their passes must come to the same layers in the same order. */
static int check_zero(const struct reader *r, struct hspmd_json *root)
{
	const struct hspmd_plan *p = r->p;
	struct hspmd_json at = hspmd_json_any(root, "prefetch");
	if (p->no_prefetch && p->zero_stage < 3)
		return hspmd_json_fail(&at, "only under zero_stage 3 are parameters gathered in the passes");
	if (p->zero_stage < 2 || hspmd_plan_in_step(p))
		return 0;
	at = hspmd_json_any(root, "zero_stage");
	return hspmd_json_fail(
	        &at,
	        "%d needs pipelines in step: as many micro_batches in each (their micro_batch may differ), stages of the same "
	        "layers, and a schedule other than zb-h1",
	        p->zero_stage);
}

/* The search divides the work of all devices together. */
static int read_choices(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_json all = hspmd_json_array_or_none(root, "choices", 1, CHOICES_MAX);
	for (size_t i = 0; i < hspmd_json_length(&all); i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		if (!hspmd_json_string_value(&at))
			return -1;
	}
	if (hspmd_json_length(&all) && !(r->p->choices = json_deep_copy(all.value)))
		return hspmd_json_fail_memory(&all);
	return hspmd_json_failed(root) ? -1 : 0;
}

static int check_synthesis(const struct reader *r, struct hspmd_json *root)
{
	const struct hspmd_plan *p = r->p;
	if (!p->synthesis)
		return 0;
	struct hspmd_json at = hspmd_json_any(root, "synthesis");
	if (p->pipeline_count != 1 || p->pipelines[0].stage_count != 1)
		return hspmd_json_fail(&at, "needs one pipeline of one stage");
	const struct hspmd_stage *stage = &p->pipelines[0].stages[0];
	if (stage->context > 1 || stage->sequence_parallel || stage->shard_ratio || p->zero_stage)
		return hspmd_json_fail(&at,
		                       "chooses splits and ratios itself: without context, shard_ratio, sequence_parallel and zero_stage");
	if (stage->offload || stage->offload_activations)
		return hspmd_json_fail(&at, "knows nothing of the host's memory: without offload and offload_activations");
	return 0;
}

/* ---- plans for shorter steps */

bool hspmd_plan_offloads(const struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			if (p->pipelines[i].stages[s].offload)
				return true;
	return false;
}

bool hspmd_plan_uses_host(const struct hspmd_plan *p)
{
	bool any = hspmd_plan_offloads(p);
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			any = any || p->pipelines[i].stages[s].offload_activations;
	return any;
}

static struct hspmd_plan *read_one(struct hspmd_json *root, const struct hspmd_cluster *c, int layers, const struct reader *longest);

/* All that a plan for shorter steps has in common with the one whose state it works on. */
static int check_shorter(const struct reader *r, struct hspmd_json *root, const struct reader *longest)
{
	const struct hspmd_plan *p = r->p, *of = longest->p;
	const struct hspmd_plan *before = of->shorter_count ? of->shorter[of->shorter_count - 1] : NULL;
	struct hspmd_json at = hspmd_json_any(root, "seq_len");
	if (p->seq_len >= of->seq_len || (before && p->seq_len <= before->seq_len))
		return hspmd_json_fail(&at, "expected %d..%d: shorter plans come in the order of their lengths, below the plan's own",
		                       before ? before->seq_len + 1 : 1, of->seq_len - 1);
	at = hspmd_json_any(root, "global_batch");
	if (p->global_batch != of->global_batch)
		return hspmd_json_fail(&at, "expected %d, as in the plan for the longest steps", of->global_batch);
	at = hspmd_json_any(root, "zero_stage");
	if (p->zero_stage)
		return hspmd_json_fail(&at, "the training state lies where the plan for the longest steps puts it: expected 0");
	at = hspmd_json_any(root, "synthesis");
	if (p->synthesis || of->synthesis)
		return hspmd_json_fail(&at, "plans with `synthesis` do not share their training state with others");
	at = hspmd_json_any(root, "pipelines");
	if (hspmd_plan_offloads(p))
		return hspmd_json_fail(&at, "the training state lies where the plan for the longest steps puts it: without offload");
	for (int d = 0; d < r->c->device_count; d++) {
		char address[300];
		if (r->owners[d].pipeline < 0 || longest->owners[d].pipeline >= 0)
			continue;
		at = hspmd_json_any(root, "pipelines");
		return hspmd_json_fail(&at, "device %s is not in the plan for the longest steps",
		                       hspmd_cluster_device_address(r->c, d, address, sizeof address));
	}
	return 0;
}

static int read_shorter(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_json all = hspmd_json_array_or_none(root, "shorter", 1, SHORTER_MAX);
	size_t n = hspmd_json_length(&all);
	if (hspmd_json_failed(root))
		return -1;
	if (n && !(r->p->shorter = hspmd_calloc(n, sizeof(*r->p->shorter))))
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		struct hspmd_plan *one = read_one(&at, r->c, r->layers, r);
		if (!one)
			return -1;
		r->p->shorter[r->p->shorter_count++] = one;
	}
	return 0;
}

/* ---- the whole */

/* longest: of the plan to whose `shorter` this one belongs; NULL: it is no such plan. */
static struct hspmd_plan *read_one(struct hspmd_json *root, const struct hspmd_cluster *c, int layers, const struct reader *longest)
{
	struct reader r = { .p = calloc(1, sizeof *r.p), .c = c, .layers = layers };
	r.owners = hspmd_calloc((size_t)c->device_count, sizeof *r.owners);
	r.found = hspmd_calloc((size_t)c->device_count, sizeof *r.found);
	int rc = r.p && r.owners && r.found ? 0 : hspmd_json_fail_memory(root);
	for (int i = 0; !rc && i < c->device_count; i++)
		r.owners[i].pipeline = -1;
	if (rc || read_head(&r, root) || read_pipelines(&r, root) || check_synthesis(&r, root) || check_zero(&r, root) ||
	    read_predicted(&r, root) || read_choices(&r, root) || (longest ? check_shorter(&r, root, longest) : read_shorter(&r, root)) ||
	    hspmd_json_check_keys(root)) {
		hspmd_plan_destroy(r.p);
		r.p = NULL;
	}
	free(r.owners);
	free(r.found);
	return r.p;
}

static struct hspmd_plan *from_doc(struct hspmd_json_doc *doc, const struct hspmd_cluster *c, int layers)
{
	struct hspmd_json root = hspmd_json_root(doc);
	return read_one(&root, c, layers, NULL);
}

struct hspmd_plan *hspmd_plan_read(const char *path, const struct hspmd_cluster *c, int layers, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_open(&doc, path, err))
		return NULL;
	struct hspmd_plan *p = from_doc(&doc, c, layers);
	hspmd_json_close(&doc);
	return p;
}

struct hspmd_plan *hspmd_plan_from_json(const json_t *value, const char *name, const struct hspmd_cluster *c, int layers,
                                        struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	hspmd_json_wrap(&doc, name, (json_t *)value, err);
	struct hspmd_plan *p = from_doc(&doc, c, layers);
	hspmd_json_close(&doc);
	return p;
}

void hspmd_plan_drop_shorter(struct hspmd_plan *p)
{
	for (int i = 0; i < p->shorter_count; i++)
		hspmd_plan_destroy(p->shorter[i]);
	free(p->shorter);
	p->shorter = NULL;
	p->shorter_count = 0;
}

void hspmd_plan_drop_pipelines(struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++) {
		for (int k = 0; k < p->pipelines[i].stage_count; k++) {
			struct hspmd_stage *s = &p->pipelines[i].stages[k];
			free(s->devices);
			free(s->shard_ratio);
			free(s->context_ratio);
		}
		free(p->pipelines[i].stages);
		free(p->pipelines[i].lengths);
	}
	free(p->pipelines);
	p->pipelines = NULL;
	p->pipeline_count = 0;
}

void hspmd_plan_destroy(struct hspmd_plan *p)
{
	if (!p)
		return;
	hspmd_plan_drop_pipelines(p);
	hspmd_plan_drop_shorter(p);
	json_decref(p->program);
	json_decref(p->recompute_sets);
	json_decref(p->offload_sets);
	json_decref(p->choices);
	free(p->predicted.devices);
	free(p->predicted.memory_bytes);
	free(p);
}
