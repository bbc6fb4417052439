/* SPDX-License-Identifier: Apache-2.0 */
/* Bound on a pipeline's speed. Give each layer l a weight w(l), with sum 1: the least fraction that it takes of any submesh's time
 * through all layers, scaled by W. A submesh with rate r = 1 / (W times its time through all layers) then has w(l) <= r c(l) for every
 * layer, where c(l) is its time for the layer. Over all stages of a pipeline, whose slowest takes one period, 1 = sum w <= sum r c <=
 * period sum r. So the micro-batches per second, 1 / period, are at most the sum of the rates, for any partition of the layers. */
#include "controller/solver/search/submesh.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/cost/cost_constants.h"

#define PROBE_BYTES 1e8 /* large, so that latency does not matter */
#define QUEUE_MAX 16

static bool tp_is_allowed(const struct hspmd_submesh_tables *t, int tp)
{
	const struct hspmd_model_facts *f = t->costs->facts;
	if (tp > t->caps->max_tp || tp > HSPMD_MAX_TP)
		return false;
	if (f && !hspmd_model_divides(f, tp))
		return false;
	if (f || !t->costs->profile)
		return true;
	/* Without a model the profile gives the tensor-parallel degrees; others could only be guessed. */
	for (int i = 0; i < t->costs->profile->times_count; i++)
		if (t->costs->profile->times[i].tp == tp)
			return true;
	return false;
}

/* Most that a layer needs while it runs, in any schedule that is allowed. */
static double most_transient(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, const struct hspmd_runtime_caps *caps,
                             int micro_batch, const struct hspmd_device_share *device)
{
	double most = hspmd_layer_transient_bytes(c, layer, recompute, false, device);
	if (caps->schedules & 1u << HSPMD_SCHEDULE_ZB_H1)
		most = fmax(most, hspmd_layer_transient_bytes(c, layer, recompute, true, device));
	return micro_batch * most;
}

/* From the most of each layer, the most of each range. */
static void fill_levels(const struct hspmd_submesh_tables *t, double *const *levels)
{
	for (int j = 1; j < HSPMD_RANGE_LEVELS; j++)
		for (int l = 0; l + (1 << j) <= t->layers; l++)
			levels[j][l] = fmax(levels[j - 1][l], levels[j - 1][l + (1 << (j - 1))]);
}

/* The number of ways that have tables. */
static int ways_of(const struct hspmd_submesh_tables *t, const struct hspmd_submesh *u)
{
	return t->offload && u->host_bytes > 0 ? HSPMD_SAVING_WAYS : HSPMD_RECOMPUTE_KINDS;
}

/* Fill in layer l of what the ways save and need that offload. What one layer offloads meets that of the layer before (stage_memory.c). */
static void measure_offloaded(const struct hspmd_submesh_tables *t, struct hspmd_submesh *u, int l, int way, double running,
                              const struct hspmd_device_share *device)
{
	enum hspmd_recompute r = hspmd_way_recompute(way);
	double own = t->micro_batch * hspmd_layer_offloaded_bytes(t->costs, l, r, device),
	       before = l ? t->micro_batch * hspmd_layer_offloaded_bytes(t->costs, l - 1, r, device) : 0;
	u->offloaded[way][l + 1] = u->offloaded[way][l] + own;
	u->saved[way][l + 1] = u->saved[way][l] + u->saved[r][l + 1] - u->saved[r][l] - own;
	u->deferred[way][l + 1] = u->deferred[r][l + 1];
	u->recomputed[way] = fmax(u->recomputed[way], running + own + before);
	u->peak[way][0][l] = u->saved[way][l + 1] + running + own + before;
}

/* Put the ways that are allowed in the order of their work; of equal ones those come first that recompute less, and do not offload. */
static void order_ways(const struct hspmd_submesh_tables *t, struct hspmd_submesh *u)
{
	for (int way = 0; way < ways_of(t, u); way++) {
		int at = u->way_count;
		if (!(t->caps->recompute & 1u << hspmd_way_recompute(way)))
			continue;
		while (hspmd_way_offloads(way) && at > 0 && u->work[u->ways[at - 1]][t->layers] > u->work[way][t->layers])
			at--;
		memmove(&u->ways[at + 1], &u->ways[at], (size_t)(u->way_count++ - at) * sizeof *u->ways);
		u->ways[at] = (unsigned char)way;
		if (u->way_count == 1 || u->saved[way][t->layers] < u->saved[u->leanest][t->layers])
			u->leanest = way;
	}
}

bool hspmd_sequence_is_faster(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch)
{
	int middle = (s->layers[0] + s->layers[1]) / 2;
	struct hspmd_stage_cost cost[2];
	for (int sequence = 0; sequence < 2; sequence++) {
		struct hspmd_stage one = *s;
		one.layers[0] = middle;
		one.layers[1] = middle + 1;
		one.sequence_parallel = sequence;
		if (hspmd_costs_stage(c, &one, micro_batch, &cost[sequence], NULL))
			return false;
	}
	return cost[1].forward + cost[1].backward < cost[0].forward + cost[0].backward;
}

/* Without recomputation stages have sequence parallelism where it takes less time; otherwise where it saves memory, or time for as much.
 * Refinement tries the other, too (saving_ways.c). */
static void choose_sequence(const struct hspmd_submesh_tables *t, struct hspmd_submesh *u, int *devices,
                            const struct hspmd_device_share *device)
{
	if (u->tp < 2 || !t->caps->sequence_parallel || !t->costs->facts)
		return;
	for (int r = 0; r < HSPMD_RECOMPUTE_KINDS; r++) {
		const struct hspmd_stage s = { .layers = { 0, t->layers },
			                       .device_count = u->tp,
			                       .devices = devices,
			                       .context = 1,
			                       .recompute = (enum hspmd_recompute)r };
		struct hspmd_device_share with = *device;
		with.sequence_parallel = true;
		double saved = hspmd_layer_saved_bytes(t->costs, t->layers / 2, s.recompute, device),
		       less = saved - hspmd_layer_saved_bytes(t->costs, t->layers / 2, s.recompute, &with);
		u->sequence[r] = r && less != 0 ? less > 0 : hspmd_sequence_is_faster(t->costs, &s, t->micro_batch);
	}
}

static int measure(struct hspmd_submesh_tables *t, struct hspmd_submesh *u, struct hspmd_error *err)
{
	struct hspmd_costs *c = t->costs;
	const struct hspmd_device_class *device_class = &t->device_classes->list[u->device_class];
	int devices[HSPMD_MAX_TP];
	for (int i = 0; i < u->tp; i++)
		devices[i] = hspmd_device_class_device(c->cluster, device_class, 0, i);
	double slow = device_class->slowdown / c->cluster->nodes[device_class->nodes[0]].slowdown *
	              hspmd_variation(c, c->cluster->device_count, u->tp);
	const struct hspmd_device_type *type = &c->cluster->types[device_class->type];
	struct hspmd_device_share device = hspmd_device_share_of(type, u->share, 1, false);
	struct hspmd_stage_cost costs[HSPMD_SAVING_WAYS];
	choose_sequence(t, u, devices, &device);
	for (int l = 0; l < t->layers; l++) {
		bool as_before = l && c->facts && !c->profile && c->facts->kind_of_layer[l] == c->facts->kind_of_layer[l - 1];
		device.sequence_parallel = u->sequence[HSPMD_RECOMPUTE_NONE];
		double transient = most_transient(c, l, HSPMD_RECOMPUTE_NONE, t->caps, t->micro_batch, &device);
		for (int way = 0; way < ways_of(t, u); way++) {
			enum hspmd_recompute r = hspmd_way_recompute(way);
			device.sequence_parallel = u->sequence[r];
			struct hspmd_stage s = { .layers = { l, l + 1 },
				                 .sequence_parallel = u->sequence[r],
				                 .device_count = u->tp,
				                 .devices = devices,
				                 .context = 1,
				                 .recompute = r,
				                 .offload_activations = hspmd_way_offloads(way) ? HSPMD_OFFLOAD_ALL : 0 };
			if (!as_before && hspmd_costs_stage(c, &s, t->micro_batch, &costs[way], err))
				return -1;
			u->work[way][l + 1] = u->work[way][l] + slow * (costs[way].forward + costs[way].backward);
			if (hspmd_way_offloads(way)) {
				measure_offloaded(t, u, l, way, u->peak[r][0][l] - u->saved[r][l + 1], &device);
				continue;
			}
			u->forward[l + 1] = u->forward[l] + slow * costs[r].forward;
			u->saved[r][l + 1] = u->saved[r][l] + t->micro_batch * hspmd_layer_saved_bytes(c, l, r, &device);
			u->deferred[r][l + 1] = u->deferred[r][l] + t->micro_batch * hspmd_layer_deferred_bytes(c, l, r, &device);
			double again = r ? most_transient(c, l, r, t->caps, t->micro_batch, &device) : transient;
			u->recomputed[r] = again > transient ? fmax(u->recomputed[r], again) : u->recomputed[r];
			u->peak[r][0][l] = u->saved[r][l + 1] + again;
		}
		u->transient[0][l] = transient;
		device.sequence_parallel = u->sequence[HSPMD_RECOMPUTE_FULL];
		u->workspace[0][l] = hspmd_layer_workspace(&c->layers[l], t->micro_batch, &device);
		u->resident[l + 1] = u->resident[l] + t->micro_batch * hspmd_layer_resident_bytes(c, l, HSPMD_RECOMPUTE_FULL, &device);
		u->vectors[l + 1] = hspmd_device_vectors(c, 0, l + 1, u->share);
		u->params[l + 1] = c->replicated_sum[l + 1] + (c->params_sum[l + 1] - c->replicated_sum[l + 1]) * u->share;
	}
	fill_levels(t, u->transient);
	fill_levels(t, u->workspace);
	for (int way = 0; way < ways_of(t, u); way++)
		fill_levels(t, u->peak[way]);
	order_ways(t, u);
	return 0;
}

static void bound_rates(struct hspmd_submesh_tables *t)
{
	double total = 0;
	for (int l = 0; l < t->layers; l++) {
		double least = INFINITY;
		for (int i = 0; i < t->submesh_count; i++) {
			const double *w = t->submeshes[i].work[HSPMD_RECOMPUTE_NONE];
			least = fmin(least, (w[l + 1] - w[l]) / w[t->layers]);
		}
		total += least;
		t->weights[l + 1] = total;
	}
	for (int l = 1; l <= t->layers; l++)
		t->weights[l] /= total;
	t->alike = total;
	for (int i = 0; i < t->submesh_count; i++)
		t->submeshes[i].rate = 1 / (total * t->submeshes[i].work[HSPMD_RECOMPUTE_NONE][t->layers]);
}

static int add_submeshes(struct hspmd_submesh_tables *t, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = t->costs->cluster;
	size_t n = (size_t)t->layers + 1, arrays = 4 + 2 * HSPMD_RANGE_LEVELS;
	arrays += (4 + HSPMD_RANGE_LEVELS) * (size_t)(t->offload ? HSPMD_SAVING_WAYS : HSPMD_RECOMPUTE_KINDS);
	for (int k = 0; k < t->device_classes->count; k++)
		for (int tp = 1; tp <= t->device_classes->list[k].per_node; tp++)
			if (tp_is_allowed(t, tp) && t->submesh_count < HSPMD_SUBMESHES_MAX)
				t->submeshes[t->submesh_count++] = (struct hspmd_submesh){ .device_class = k, .tp = tp, .share = 1.0 / tp };
	t->storage = hspmd_calloc(((size_t)t->submesh_count * arrays + 1) * n, sizeof *t->storage);
	if (!t->storage)
		return hspmd_fail_memory(err, "preparing the search");
	t->weights = t->storage;
	double *at = t->storage + n;
	for (int i = 0; i < t->submesh_count; i++) {
		struct hspmd_submesh *u = &t->submeshes[i];
		const struct hspmd_device_type *type = &c->types[t->device_classes->list[u->device_class].type];
		u->usable_bytes = hspmd_usable_bytes(t->costs, type);
		u->host_bytes = t->costs->facts ? (double)type->host.memory_bytes : 0;
		for (int way = 0; way < ways_of(t, u); way++, at += 4 * n) {
			u->work[way] = at;
			u->saved[way] = at + n;
			u->deferred[way] = at + 2 * n;
			u->offloaded[way] = hspmd_way_offloads(way) ? at + 3 * n : NULL;
		}
		u->forward = at;
		u->params = at + n;
		u->resident = at + 2 * n;
		u->vectors = at + 3 * n;
		at += 4 * n;
		for (int j = 0; j < HSPMD_RANGE_LEVELS; j++, at += n)
			u->transient[j] = at;
		for (int j = 0; j < HSPMD_RANGE_LEVELS; j++, at += n)
			u->workspace[j] = at;
		for (int way = 0; way < ways_of(t, u); way++)
			for (int j = 0; j < HSPMD_RANGE_LEVELS; j++, at += n)
				u->peak[way][j] = at;
		if (measure(t, u, err))
			return -1;
	}
	bound_rates(t);
	return 0;
}

/* Index of the next larger one of the sizes that are kept, or of the largest. */
static int nearest_size(const struct hspmd_submesh_tables *t, double bytes)
{
	int best = 0;
	for (int i = 1; i < t->size_count; i++) {
		double x = t->size_bytes[i], y = t->size_bytes[best];
		if (x >= bytes ? y < bytes || x < y : y < bytes && x > y)
			best = i;
	}
	return best;
}

static size_t boundary_count(const struct hspmd_submesh_tables *t)
{
	return (size_t)(t->boundary_classes * t->boundary_classes * 2 * QUEUE_MAX * t->size_count);
}

/* Returns true if no layer, but for the last one, needs less memory together with those before it than they do alone. */
static bool is_steady(const struct hspmd_submesh_tables *t)
{
	const struct hspmd_costs *c = t->costs;
	for (int l = 1; l < t->layers - 1; l++)
		if (t->size_of[l] != t->size_of[0])
			return false;
	for (int i = 0; i < c->tied_layer_count; i++) {
		int l = c->tied_layers[i], other = c->layers[l].tied_to;
		if ((l > other ? l : other) < t->layers - 1)
			return false;
	}
	return true;
}

/* Returns true if layer l needs the memory that the one before it does. */
static bool is_like_before(const struct hspmd_submesh_tables *t, int l)
{
	const struct hspmd_costs *c = t->costs;
	double params = c->params_sum[l] - c->params_sum[l - 1], replicated = c->replicated_sum[l] - c->replicated_sum[l - 1];
	return c->layers[l].same_memory && c->layers[l].tied_to < 0 && c->layers[l - 1].tied_to < 0 && t->size_of[l] == t->size_of[l - 1] &&
	       c->params_sum[l + 1] - c->params_sum[l] == params && c->replicated_sum[l + 1] - c->replicated_sum[l] == replicated &&
	       hspmd_device_vectors(c, l, l + 1, 1) == hspmd_device_vectors(c, l - 1, l, 1);
}

static int add_sizes(struct hspmd_submesh_tables *t, struct hspmd_error *err)
{
	size_t n = (size_t)t->layers;
	t->size_of = hspmd_calloc(n, sizeof *t->size_of);
	t->like_from = hspmd_calloc(n, sizeof *t->like_from);
	t->size_bytes = hspmd_calloc(n, sizeof *t->size_bytes);
	if (!t->size_of || !t->like_from || !t->size_bytes)
		return hspmd_fail_memory(err, "preparing the search");
	for (int l = 0; l < t->layers; l++) {
		double bytes = t->costs->layers[l].output_bytes * t->micro_batch;
		int i = 0;
		while (i < t->size_count && t->size_bytes[i] != bytes)
			i++;
		if (i == t->size_count && i < HSPMD_SIZES_MAX)
			t->size_bytes[t->size_count++] = bytes;
		t->size_of[l] = i < t->size_count ? i : nearest_size(t, bytes);
	}
	for (int l = 1; l < t->layers; l++)
		t->like_from[l] = is_like_before(t, l) ? t->like_from[l - 1] : l;
	t->steady = is_steady(t);
	t->boundary_classes = t->device_classes->count;
	size_t cells = boundary_count(t);
	t->boundaries = hspmd_calloc(cells, sizeof *t->boundaries);
	if (!t->boundaries)
		return hspmd_fail_memory(err, "preparing the search");
	for (size_t i = 0; i < cells; i++)
		t->boundaries[i] = -1;
	return 0;
}

static void find_link_rates(struct hspmd_submesh_tables *t)
{
	const struct hspmd_cluster *c = t->costs->cluster;
	for (int k = 0; k < t->device_classes->count; k++) {
		const struct hspmd_device_class *x = &t->device_classes->list[k];
		t->link_rate[k] = INFINITY;
		if (x->node_count < 2 && x->per_node < 2)
			continue;
		int from = hspmd_device_class_device(c, x, 0, 0), to = x->node_count > 1 ? hspmd_device_class_device(c, x, 1, 0) : from + 1;
		double seconds = hspmd_costs_transfer(t->costs, from, to, x->per_node, x->per_node, PROBE_BYTES, NULL);
		t->link_rate[k] = seconds > 0 ? PROBE_BYTES / seconds : seconds < 0 ? 0 : INFINITY;
	}
}

struct hspmd_submesh_tables *hspmd_submesh_tables_new(struct hspmd_costs *costs, const struct hspmd_device_classes *device_classes,
                                                      const struct hspmd_runtime_caps *caps, int micro_batch,
                                                      enum hspmd_draft_offload offload, struct hspmd_error *err)
{
	struct hspmd_submesh_tables *t = hspmd_calloc(1, sizeof *t);
	if (!t) {
		hspmd_fail_memory(err, "preparing the search");
		return NULL;
	}
	t->costs = costs;
	t->device_classes = device_classes;
	t->caps = caps;
	t->micro_batch = micro_batch;
	t->offload = offload;
	t->layers = costs->layer_count;
	t->rooms = hspmd_calloc(HSPMD_ROOMS, sizeof *t->rooms);
	if (!t->rooms || add_submeshes(t, err) || add_sizes(t, err)) {
		hspmd_submesh_tables_destroy(t);
		return NULL;
	}
	find_link_rates(t);
	return t;
}

double hspmd_submesh_tables_rate(const struct hspmd_submesh_tables *t, const int *available)
{
	double rates = 0;
	for (int k = 0; k < t->device_classes->count; k++) {
		double most = 0;
		for (int u = 0; u < t->submesh_count; u++)
			if (t->submeshes[u].device_class == k)
				most = fmax(most, t->submeshes[u].rate / t->submeshes[u].tp);
		rates += most * available[k];
	}
	return rates;
}

struct hspmd_submesh_tables *hspmd_submesh_tables_view(const struct hspmd_submesh_tables *t, struct hspmd_costs *costs)
{
	struct hspmd_submesh_tables *view = hspmd_calloc(1, sizeof *view);
	if (!view)
		return NULL;
	*view = *t;
	view->is_view = true;
	view->costs = costs;
	view->boundaries = hspmd_calloc(boundary_count(t), sizeof *view->boundaries);
	view->rooms = hspmd_calloc(HSPMD_ROOMS, sizeof *view->rooms);
	if (!view->boundaries || !view->rooms) {
		hspmd_submesh_tables_destroy(view);
		return NULL;
	}
	memcpy(view->boundaries, t->boundaries, boundary_count(t) * sizeof *view->boundaries);
	return view;
}

void hspmd_submesh_tables_destroy(struct hspmd_submesh_tables *t)
{
	if (!t)
		return;
	if (!t->is_view) {
		free(t->storage);
		free(t->size_of);
		free(t->like_from);
		free(t->size_bytes);
	}
	free(t->boundaries);
	free(t->rooms);
	free(t);
}

/* Find a device of device class a and another of device class b, in one node or not. Returns false if there are no two such devices. */
static bool two_devices(const struct hspmd_submesh_tables *t, int a, int b, bool same_node, int *from, int *to)
{
	const struct hspmd_cluster *c = t->costs->cluster;
	const struct hspmd_device_class *x = &t->device_classes->list[a], *y = &t->device_classes->list[b];
	*from = hspmd_device_class_device(c, x, 0, 0);
	if (same_node) {
		if (x->node_class != y->node_class || (a == b && x->per_node < 2))
			return false;
		*to = hspmd_device_class_device(c, y, 0, a == b ? 1 : 0);
		return true;
	}
	if (x->node_class == y->node_class && y->node_count < 2)
		return false;
	*to = hspmd_device_class_device(c, y, x->node_class == y->node_class ? 1 : 0, 0);
	return true;
}

static double boundary_s(const struct hspmd_submesh_tables *t, int a, int b, bool same_node, int queue, double bytes)
{
	int from, to;
	if (!two_devices(t, a, b, same_node, &from, &to))
		return INFINITY;
	double own = hspmd_costs_transfer(t->costs, from, to, 1, 1, bytes, NULL),
	       back = hspmd_costs_transfer(t->costs, to, from, 1, 1, bytes, NULL);
	if (own < 0 || back < 0)
		return INFINITY;
	if (same_node || queue < 2)
		return own + back;
	double all = hspmd_costs_transfer(t->costs, from, to, queue, queue, queue * bytes, NULL);
	double all_back = hspmd_costs_transfer(t->costs, to, from, queue, queue, queue * bytes, NULL);
	return (own + all + back + all_back) / 2;
}

double hspmd_boundary_seconds(struct hspmd_submesh_tables *t, int a, int b, bool same_node, int queue, int size)
{
	int ka = t->submeshes[a].device_class, kb = t->submeshes[b].device_class;
	queue = queue < 1 ? 1 : queue >= QUEUE_MAX ? QUEUE_MAX - 1 : queue;
	double *cell = &t->boundaries[(((ka * t->boundary_classes + kb) * 2 + same_node) * QUEUE_MAX + queue) * t->size_count + size];
	if (*cell < 0)
		*cell = boundary_s(t, ka, kb, same_node, queue, t->size_bytes[size]);
	return *cell;
}
