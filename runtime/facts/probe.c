/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of each layer, read off a program of two micro-batches on one stage: what lives in the second micro-batch, when the program has
 * come into its stride.
 *
 * A slot that lives across the border between forward and backward pass is saved by the layer that reads it last, because the backward pass
 * runs from the last layer to the first. If several layers read it, the layer that made it counts it, or each layer of many equal ones
 * would. */
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_traits.h"
#include "runtime/facts/facts_internal.h"

#define MICRO_BATCHES 2

/* The first kind of device whose programs have this form: parts and single operators, or wider types. */
static const char *kind_of_form(enum hspmd_facts_form form)
{
	bool parts = form == HSPMD_FACTS_PARTS_FP32;
	for (int kind = 0; hspmd_device_kind_names[kind]; kind++) {
		const struct hspmd_device_traits *can = hspmd_device_traits((enum hspmd_device_kind)kind);
		if (parts ? can->takes_parts && !can->fused : can->bf16)
			return can->name;
	}
	return hspmd_device_kind_names[0];
}

static struct hspmd_cluster *make_cluster(enum hspmd_facts_form form, int devices, struct hspmd_error *err)
{
	json_t *value =
	        json_pack("{s:s, s:{s:{s:s, s:I, s:f, s:{s:f, s:f}}}, s:[{s:s, s:[{s:s, s:i}]}], s:[{s:s, s:f, s:f}]}", "format",
	                  HSPMD_CLUSTER_FORMAT, "device_types", "device", "kind", kind_of_form(form), "memory_bytes", (json_int_t)1 << 36,
	                  "gbytes_per_s", 1000.0, "peak_tflops", "fp32", 10.0, "bf16", 100.0, "nodes", "name", "node", "devices", "type",
	                  "device", "count", devices, "links", "scope", "node", "alpha_s", 1e-6, "gbytes_per_s", 100.0);
	struct hspmd_cluster *c = value ? hspmd_cluster_from_json(value, "cluster", err) : NULL;
	if (!value)
		hspmd_fail_memory(err, "probing a model's memory");
	json_decref(value);
	return c;
}

static struct hspmd_plan *make_plan(const struct hspmd_cluster *c, int layers, const struct hspmd_probe_layout *layout, int seq_len,
                                    struct hspmd_error *err)
{
	char devices[32];
	snprintf(devices, sizeof devices, "node:0-%d", c->device_count - 1);
	json_t *value =
	        json_pack("{s:s, s:i, s:i, s:i, s:s, s:[{s:i, s:[{s:[i,i], s:[s], s:i}]}]}", "format", HSPMD_PLAN_FORMAT, "global_batch",
	                  MICRO_BATCHES * layout->samples, "micro_batch", layout->samples, "seq_len", seq_len, "schedule",
	                  hspmd_schedule_names[HSPMD_SCHEDULE_1F1B], "pipelines", "micro_batches", MICRO_BATCHES, "stages", "layers", 0,
	                  layers, "devices", c->device_count > 1 ? devices : "node:0", "context", layout->context);
	struct hspmd_plan *p = value ? hspmd_plan_from_json(value, "plan", c, layers, err) : NULL;
	if (!value)
		hspmd_fail_memory(err, "probing a model's memory");
	else if (p)
		p->pipelines[0].stages[0].sequence_parallel = layout->sequence_parallel;
	json_decref(value);
	return p;
}

int hspmd_probe_open(struct hspmd_probe *out, const struct hspmd_graph_source *source, const struct hspmd_probe_layout *layout,
                     enum hspmd_facts_form form, int seq_len, struct hspmd_error *err)
{
	int devices = layout->tp * layout->context;
	struct hspmd_graph_source precise = *source;
	if (source->precision != HSPMD_PRECISION_FP8) /* whose elements follow the devices */
		precise.precision = form == HSPMD_FACTS_PARTS_FP32 ? HSPMD_PRECISION_FP32 : HSPMD_PRECISION_BF16;
	*out = (struct hspmd_probe){ .cluster = make_cluster(form, devices, err) };
	if (out->cluster)
		out->plan = make_plan(out->cluster, source->layers, layout, seq_len, err);
	if (out->plan)
		out->program = hspmd_program_build(&precise, out->plan, out->cluster, devices - 1, NULL, err);
	if (out->program && (out->resolved = hspmd_resolve_cache_create()))
		return 0;
	if (out->program)
		hspmd_fail_memory(err, "probing a model's memory");
	hspmd_probe_close(out);
	return -1;
}

void hspmd_probe_close(struct hspmd_probe *p)
{
	hspmd_program_destroy(p->program);
	hspmd_resolve_cache_destroy(p->resolved);
	hspmd_plan_destroy(p->plan);
	hspmd_cluster_destroy(p->cluster);
	*p = (struct hspmd_probe){ 0 };
}

struct hspmd_program *hspmd_probe_program(const struct hspmd_probe *p, json_t *sets, enum hspmd_recompute recompute,
                                          enum hspmd_schedule schedule, struct hspmd_error *err)
{
	json_decref(p->plan->recompute_sets);
	p->plan->recompute_sets = json_incref(sets);
	p->plan->schedule = schedule;
	p->plan->pipelines[0].stages[0].recompute = recompute;
	return hspmd_program_vary(p->program, p->plan, p->cluster, p->resolved, err);
}

/* ---- memory */

struct memory_probe {
	const struct hspmd_program *p;
	const struct hspmd_slot_lifetime *lifetimes;
	bool wide;    /* count BF16 as FP32 */
	double *live; /* per instruction */
	double *more; /* of these, what its layer has saved and needs while it runs */
	int layers;
	size_t start; /* the first instruction of the second micro-batch */
	struct hspmd_probe_memory *out;
	const struct hspmd_model_facts *facts;
	double (*results)[2];
};

static double bytes_of(const struct memory_probe *m, size_t slot)
{
	const struct hspmd_slot_type *t = &m->p->slot_types[m->p->slots[slot].slot_type];
	return (double)t->bytes * (m->wide && t->dtype == HSPMD_BF16 ? 2 : 1);
}

/* Tables that all micro-batches read do not count. */
static bool counts(const struct memory_probe *m, size_t slot)
{
	const struct hspmd_slot_lifetime *l = &m->lifetimes[slot];
	return l->used && m->p->slots[slot].memory == HSPMD_ARENA_TRANSIENT && !(l->first < m->start && l->last_use >= m->start);
}

/* The first instruction of a schedule entry, or the end. */
static size_t entry_start(const struct hspmd_program *p, int entry)
{
	size_t i = 0;
	while (i < p->instruction_count && p->instructions[i].schedule_index < entry)
		i++;
	return i;
}

/* Bytes in use at each instruction. An operator that runs in place does not need its input's memory twice. */
static void find_live(struct memory_probe *m)
{
	size_t n = m->p->instruction_count;
	for (size_t s = 0; s < m->p->slot_count; s++) {
		const struct hspmd_slot_lifetime *l = &m->lifetimes[s];
		if (!counts(m, s))
			continue;
		m->live[l->first] += bytes_of(m, s);
		m->live[l->last + 1] -= bytes_of(m, s);
		if (l->takes_over >= 0) {
			m->live[l->first] -= bytes_of(m, s);
			m->live[l->first + 1] += bytes_of(m, s);
		}
	}
	for (size_t i = 1; i < n; i++)
		m->live[i] += m->live[i - 1];
}

static bool reads(const struct hspmd_instruction *in, size_t slot)
{
	for (int k = 0; k < in->input_count; k++)
		if (in->in[k] == (int)slot)
			return true;
	return false;
}

/* The layer that a slot is counted for which is read from instruction `border` on. */
static int layer_of(const struct memory_probe *m, size_t slot, size_t border)
{
	const struct hspmd_slot_lifetime *l = &m->lifetimes[slot];
	int last = m->p->instructions[l->last_use].layer;
	for (size_t i = border; i < l->last_use; i++)
		if (m->p->instructions[i].layer != last && reads(&m->p->instructions[i], slot))
			return m->p->instructions[l->first].layer;
	return last;
}

/* Returns true if no instruction from `border` to `end` reads the slot. */
static bool is_unread(const struct memory_probe *m, size_t slot, size_t border, size_t end)
{
	while (border < end && !reads(&m->p->instructions[border], slot))
		border++;
	return border == end;
}

/* Returns true if a message holds the slot until the pass ends, and not only until a later message: then what all layers leave adds up. */
static bool is_held(const struct memory_probe *m, size_t slot)
{
	size_t last = m->lifetimes[slot].last;
	return last + 1 >= m->p->instruction_count ||
	       m->p->instructions[last + 1].schedule_index != m->p->instructions[last].schedule_index;
}

/* Returns true if a stage that offloads all activations offloads a slot that this layer saves: any result of the layers before the last
 * one (specialise.c), which needs what it saves at once (offload_activations.c). */
static bool offloads(const struct memory_probe *m, size_t slot, int layer)
{
	const struct hspmd_instruction *in = &m->p->instructions[m->lifetimes[slot].first];
	return in->kind != HSPMD_INSTRUCTION_READ && in->layer < m->layers - 1 && layer < m->layers - 1;
}

/* Count what could be offloaded of the slot, which `layer` saves; `later`: of what deferred gradients of weights need. */
static void add_offloads(const struct memory_probe *m, size_t slot, int layer, bool later, double *offloaded)
{
	int r = hspmd_probe_result(m->p, m->facts, slot, &m->p->instructions[m->lifetimes[slot].first], layer);
	offloaded[layer] += bytes_of(m, slot);
	if (r >= 0)
		m->results[r][later] += bytes_of(m, slot);
}

/* Add up by layer what lives across the border before instruction `border`: what is read after it, of this what could be offloaded and is
 * read after instruction `unread` (offloaded NULL: not wanted), and what messages left behind. */
static void across(const struct memory_probe *m, size_t border, size_t unread, double *kept, double *offloaded, double *left)
{
	memset(kept, 0, (size_t)m->layers * sizeof *kept);
	memset(left, 0, (size_t)m->layers * sizeof *left);
	for (int layer = 0; offloaded && layer < m->layers; layer++)
		offloaded[layer] = 0;
	for (size_t s = 0; border && s < m->p->slot_count; s++) {
		const struct hspmd_slot_lifetime *l = &m->lifetimes[s];
		if (!counts(m, s) || l->first >= border || l->last < border)
			continue;
		int layer = l->last_use >= border ? layer_of(m, s, border) : -1;
		if (layer >= 0) {
			kept[layer] += bytes_of(m, s);
			if (offloaded && offloads(m, s, layer) && is_unread(m, s, border, unread))
				add_offloads(m, s, layer, unread > border, offloaded);
		} else if (is_held(m, s)) {
			left[m->p->instructions[l->last_use].layer] += bytes_of(m, s);
		}
	}
}

static double sum(const double *values, int from, int end)
{
	double all = 0;
	for (int i = from; i < end; i++)
		all += values[i];
	return all;
}

/* Most bytes while a layer runs between two instructions, beyond the values of the layers up to it in `below`, those after it in `above`
 * (NULL: none), and `base`. m->more: at each of these instructions, beyond those of the layers before it. */
static void peaks(struct memory_probe *m, size_t from, size_t end, const double *below, const double *above, double base, double *out)
{
	for (int l = 0; l < m->layers; l++)
		out[l] = 0;
	for (size_t i = from; i < end; i++) {
		int l = m->p->instructions[i].layer;
		if (l < 0 || m->p->instructions[i].micro_batch < 0)
			continue;
		m->more[i] = m->live[i] - base - sum(below, 0, l) - (above ? sum(above, l + 1, m->layers) : 0);
		out[l] = fmax(out[l], m->more[i] - below[l]);
	}
}

static int find_moments(struct memory_probe *m, size_t from, size_t end, bool backward)
{
	for (int l = 0; l < m->layers; l++)
		if (hspmd_probe_moments(m->p, l, from, end, m->more, &m->out[l].moments[backward]))
			return -1;
	return 0;
}

/* Entries of the second micro-batch: 1f1b [forward, backward], zb-h1 [forward, backward, weights]. */
static int read_entries(struct memory_probe *m, bool deferred, double *scratch)
{
	int n = m->layers, forward = deferred ? 3 : 2;
	double *kept = scratch, *left = scratch + n, *later = scratch + 2 * n, *left_later = scratch + 3 * n, *most = scratch + 4 * n,
	       *offloaded = scratch + 5 * n;
	size_t start = m->start, border = entry_start(m->p, forward + 1), end = entry_start(m->p, forward + 2);
	across(m, start, 0, later, NULL, left_later); /* nothing is read across the start of a micro-batch */
	across(m, border, deferred ? end : border, kept, offloaded, left);
	double left_before = sum(left_later, 0, n), left_behind = sum(left, 0, n);
	for (int l = 0; l < n && !deferred; l++) {
		m->out[l].saved = kept[l];
		m->out[l].offloads = offloaded[l];
		m->out[l].left_forward = left[l];
		m->out[l].left_backward = left_later[l];
	}
	if (!deferred) {
		peaks(m, start, border, kept, NULL, left_before, most);
		for (int l = 0; l < n; l++)
			m->out[l].forward = most[l];
		if (find_moments(m, start, border, false))
			return -1;
		peaks(m, border, end, kept, NULL, left_behind, most);
		for (int l = 0; l < n; l++)
			m->out[l].backward = most[l];
		return find_moments(m, border, end, true);
	}
	across(m, end, 0, later, NULL, left_later);
	peaks(m, border, end, kept, later, left_behind, most);
	for (int l = 0; l < n; l++) {
		m->out[l].deferred = later[l];
		m->out[l].offloads_later = offloaded[l];
		m->out[l].split_backward = most[l];
	}
	return 0;
}

int hspmd_probe_memory(const struct hspmd_program *p, enum hspmd_facts_form form, bool deferred, const struct hspmd_model_facts *facts,
                       struct hspmd_probe_memory *layers, double (*results)[2], struct hspmd_error *err)
{
	int n = 0;
	for (size_t i = 0; i < p->graph->op_count; i++)
		n = p->graph->ops[i].layer >= n ? p->graph->ops[i].layer + 1 : n;
	struct hspmd_slot_lifetime *lifetimes = hspmd_calloc(p->slot_count + 1, sizeof *lifetimes);
	double *live = hspmd_calloc(2 * p->instruction_count + 2, sizeof *live),
	       *scratch = hspmd_calloc(6 * (size_t)n + 1, sizeof *scratch);
	struct memory_probe m = { .p = p,
		                  .lifetimes = lifetimes,
		                  .wide = form == HSPMD_FACTS_GATHERED_FP32,
		                  .live = live,
		                  .layers = n,
		                  .out = layers,
		                  .facts = facts,
		                  .results = results };
	for (int i = 0; i < facts->result_count; i++)
		results[i][deferred] = 0;
	m.more = live ? live + p->instruction_count + 2 : NULL;
	int status = lifetimes && live && scratch ? 0 : hspmd_fail_memory(err, "probing a model's memory");
	if (!status) {
		hspmd_program_lifetimes(p, lifetimes);
		m.start = entry_start(p, deferred ? 3 : 2);
		find_live(&m);
		if (read_entries(&m, deferred, scratch))
			status = hspmd_fail_memory(err, "probing a model's memory");
	}
	free(lifetimes);
	free(live);
	free(scratch);
	return status;
}
