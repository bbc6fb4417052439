/* SPDX-License-Identifier: Apache-2.0 */
/* Ownership is counted by layers and shards. A device of a stage holds, of each of its layers, the interval of the weights that its place
 * in the tensor-parallel group and the shard ratio give it; and of that interval the optimizer state, under ZeRO-1 the part of it that
 * belongs to its pipeline.
 *
 * Devices of one device class are equal to the search, so a plan may be moved to any of them. The best way is an assignment problem on
 * two levels: for each two nodes of a class, which device of one takes the place of which device of the other; then, which node takes
 * which node's place. */
#include "controller/solver/search/length_plans.h"
#include "controller/solver/search/migration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"
#include "controller/solver/search/assignment.h"

#define PAIRS_MAX 2000000 /* pairs of devices compared for one class of nodes; classes with more pairs keep their order */
#define NEVER (-1e30)     /* value of putting a device in the place of a device of another type */

/* What a device holds of one stage. Intervals are fractions of each layer's weights, and of their optimizer state. */
struct holding {
	int device;
	int layers[2];
	double weights[2], state[2];
};

/* The holdings of a plan, sorted by device. */
struct table {
	int count;
	struct holding *holdings;
	int *first; /* per device of the cluster, and one more: index of its first holding */
};

struct hspmd_migration {
	const struct hspmd_costs *c;
	const struct hspmd_device_classes *device_classes;
	struct hspmd_plan *now; /* the current plan, over the cluster of the costs; devices that no longer exist are -1 */
	struct table held;
};

/* ---- holdings */

static void table_clear(struct table *t)
{
	free(t->holdings);
	free(t->first);
	*t = (struct table){ 0 };
}

/* parts_differ: as has_zero_shares of plans. */
static struct holding holding_of(const struct hspmd_plan *p, int pipeline, const struct hspmd_stage *s, int which, bool parts_differ)
{
	struct holding h = { .device = s->devices[which], .layers = { s->layers[0], s->layers[1] } };
	double sum = 0, all = 0;
	int tp = s->device_count / s->context;
	for (int i = 0; i < tp; i++) {
		if (i == which % tp)
			h.weights[0] = sum;
		sum += hspmd_stage_share(s, i);
		if (i == which % tp)
			h.weights[1] = sum;
		all = sum;
	}
	h.weights[0] /= all;
	h.weights[1] /= all;
	double width = h.weights[1] - h.weights[0], part = p->zero_stage ? 1.0 / p->pipeline_count : 1;
	double before = p->zero_stage ? pipeline * part : 0;
	if (parts_differ) {
		part = hspmd_plan_zero_part(p, pipeline, s->layers[0]);
		before = 0;
	}
	for (int i = 0; parts_differ && i < pipeline; i++)
		before += hspmd_plan_zero_part(p, i, s->layers[0]);
	h.state[0] = h.weights[0] + before * width;
	h.state[1] = h.state[0] + part * width;
	if (p->zero_stage > 2) /* weights are kept in the same parts */
		memcpy(h.weights, h.state, sizeof h.weights);
	return h;
}

static int by_device(const void *a, const void *b)
{
	const struct holding *x = a, *y = b;
	return x->device != y->device ? (x->device > y->device) - (x->device < y->device) : x->layers[0] - y->layers[0];
}

/* Fill the table. Devices that no longer exist (-1) hold nothing. Returns 0, or -1 if memory runs out. */
static int table_fill(const struct hspmd_costs *c, const struct hspmd_plan *p, struct table *t)
{
	int most = 0, at = 0;
	bool parts_differ = p->zero_stage && p->has_zero_shares;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			most += p->pipelines[i].stages[s].device_count;
	*t = (struct table){ .holdings = hspmd_calloc((size_t)most, sizeof *t->holdings),
		             .first = hspmd_calloc((size_t)c->cluster->device_count + 1, sizeof *t->first) };
	if (!t->holdings || !t->first) {
		table_clear(t);
		return -1;
	}
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++)
				if (p->pipelines[i].stages[s].devices[d] >= 0)
					t->holdings[t->count++] = holding_of(p, i, &p->pipelines[i].stages[s], d, parts_differ);
	hspmd_sort_if_needed(t->holdings, (size_t)t->count, sizeof *t->holdings, by_device);
	for (int d = 0; d <= c->cluster->device_count; d++) {
		while (at < t->count && t->holdings[at].device < d)
			at++;
		t->first[d] = at;
	}
	return 0;
}

static double common_part(const double a[2], const double b[2])
{
	return fmax(0, fmin(a[1], b[1]) - fmax(a[0], b[0]));
}

/* Number of weights of layers [first, end) on a stage with layers [own[0], own[1]), including those shared with tied layers outside of
 * it. */
static double params(const struct hspmd_costs *c, int first, int end, const int own[2])
{
	double sum = c->params_sum[end] - c->params_sum[first];
	for (int i = 0; i < c->tied_layer_count; i++) {
		int l = c->tied_layers[i], tied_to = c->layers[l].tied_to;
		if (l >= first && l < end && (tied_to < own[0] || tied_to >= own[1]))
			sum += c->layers[l].tied_params;
	}
	return sum;
}

static double bytes_of(const struct hspmd_costs *c, double weights, double weight_part, double state_part)
{
	return weights * (weight_part * c->param_bytes + state_part * (c->master_bytes + c->moment_bytes));
}

static double bytes_needed(const struct hspmd_costs *c, const struct holding *h)
{
	return bytes_of(c, params(c, h->layers[0], h->layers[1], h->layers), h->weights[1] - h->weights[0], h->state[1] - h->state[0]);
}

/* Bytes of holding h that `device` already holds now. */
static double bytes_there(const struct hspmd_migration *n, const struct holding *h, int device)
{
	double sum = 0;
	for (int i = n->held.first[device]; i < n->held.first[device + 1]; i++) {
		const struct holding *o = &n->held.holdings[i];
		int first = h->layers[0] > o->layers[0] ? h->layers[0] : o->layers[0];
		int end = h->layers[1] < o->layers[1] ? h->layers[1] : o->layers[1];
		if (first < end)
			sum += bytes_of(n->c, params(n->c, first, end, h->layers), common_part(h->weights, o->weights),
			                common_part(h->state, o->state));
	}
	return sum;
}

double hspmd_migration_bytes(const struct hspmd_migration *n, const struct hspmd_plan *plan)
{
	struct table t;
	double sum = 0;
	if (table_fill(n->c, plan, &t))
		return NAN;
	for (int i = 0; i < t.count; i++)
		sum += fmax(0, bytes_needed(n->c, &t.holdings[i]) - bytes_there(n, &t.holdings[i], t.holdings[i].device));
	table_clear(&t);
	return sum;
}

struct hspmd_migration_needs {
	const struct hspmd_migration *n;
	struct table wanted;
};

struct hspmd_migration_needs *hspmd_migration_needs_new(const struct hspmd_migration *n, const struct hspmd_plan *plan)
{
	struct hspmd_migration_needs *w = hspmd_calloc(1, sizeof *w);
	if (w && table_fill(n->c, plan, &w->wanted)) {
		free(w);
		return NULL;
	}
	if (w)
		w->n = n;
	return w;
}

void hspmd_migration_needs_destroy(struct hspmd_migration_needs *w)
{
	if (!w)
		return;
	table_clear(&w->wanted);
	free(w);
}

double hspmd_migration_node_bytes(const struct hspmd_migration_needs *w, int planned, int node)
{
	const struct hspmd_node *from = &w->n->c->cluster->nodes[planned], *to = &w->n->c->cluster->nodes[node];
	double sum = 0;
	for (int i = 0; i < from->device_count; i++)
		for (int k = w->wanted.first[from->first_device + i]; k < w->wanted.first[from->first_device + i + 1]; k++) {
			const struct holding *h = &w->wanted.holdings[k];
			sum += fmax(0, bytes_needed(w->n->c, h) - bytes_there(w->n, h, to->first_device + i));
		}
	return sum;
}

/* ---- moving a plan to the devices that hold most of it */

struct device_mapping {
	const struct hspmd_migration *n;
	struct table wanted;
	int *to; /* per device of the plan: the device that takes its place */
};

static bool holds_any(const struct table *t, const struct hspmd_node *node)
{
	return t->first[node->first_device] < t->first[node->first_device + node->device_count];
}

/* Put actual_node's devices in the places of planned_node's; to[i] is the device that takes the place of the i-th. Returns the bytes
 * that then need not move, or -1 if memory runs out. */
static double pair_devices(const struct device_mapping *t, const struct hspmd_node *planned_node, const struct hspmd_node *actual_node,
                           double *value, int *to)
{
	const struct hspmd_cluster_device *devices = t->n->c->cluster->devices;
	int k = planned_node->device_count;
	double sum = 0;
	for (int i = 0; i < k; i++)
		to[i] = i;
	if (!holds_any(&t->wanted, planned_node) || !holds_any(&t->n->held, actual_node))
		return 0;
	for (int i = 0; i < k; i++)
		for (int j = 0; j < k; j++) {
			int a = planned_node->first_device + i, b = actual_node->first_device + j;
			double *v = &value[i * k + j];
			*v = devices[a].type == devices[b].type ? 0 : NEVER;
			for (int h = t->wanted.first[a]; h < t->wanted.first[a + 1] && *v >= 0; h++)
				*v += bytes_there(t->n, &t->wanted.holdings[h], b);
		}
	if (hspmd_assign_best(k, value, to))
		return -1;
	for (int i = 0; i < k; i++)
		sum += value[i * k + to[i]];
	return sum;
}

/* Assign the nodes of one class, which all have the same number of devices, to each other's places. Returns 0, or -1 if memory runs
 * out. */
static int map_class(struct device_mapping *t, const int *nodes, int count)
{
	const struct hspmd_cluster *c = t->n->c->cluster;
	size_t n = (size_t)count, k = (size_t)c->nodes[nodes[0]].device_count;
	if (n * n * k * k > PAIRS_MAX)
		return 0;
	double *value = hspmd_calloc(n * n, sizeof *value), *inner = hspmd_calloc(k * k, sizeof *inner);
	int *node_to = hspmd_calloc(n, sizeof *node_to), *to = hspmd_calloc(k, sizeof *to), rc = value && inner && node_to && to ? 0 : -1;
	for (size_t i = 0; !rc && i < n * n; i++) {
		value[i] = pair_devices(t, &c->nodes[nodes[i / n]], &c->nodes[nodes[i % n]], inner, to);
		rc = value[i] < 0 ? -1 : 0;
	}
	rc = rc || hspmd_assign_best(count, value, node_to) ? -1 : 0;
	for (size_t i = 0; !rc && i < n; i++) {
		const struct hspmd_node *planned_node = &c->nodes[nodes[i]], *actual_node = &c->nodes[nodes[node_to[i]]];
		rc = pair_devices(t, planned_node, actual_node, inner, to) < 0 ? -1 : 0;
		for (size_t d = 0; d < k; d++)
			t->to[planned_node->first_device + (int)d] = actual_node->first_device + to[d];
	}
	free(value);
	free(inner);
	free(node_to);
	free(to);
	return rc;
}

static int map_all(struct device_mapping *t)
{
	const struct hspmd_cluster *c = t->n->c->cluster;
	int *nodes = hspmd_calloc((size_t)c->node_count, sizeof *nodes), rc = nodes ? 0 : -1, classes = 0;
	for (int n = 0; n < c->node_count; n++)
		classes = t->n->device_classes->node_class_of[n] >= classes ? t->n->device_classes->node_class_of[n] + 1 : classes;
	for (int class = 0; !rc && class < classes; class ++) {
		int count = 0;
		for (int n = 0; n < c->node_count; n++)
			if (t->n->device_classes->node_class_of[n] == class)
				nodes[count++] = n;
		rc = count ? map_class(t, nodes, count) : 0;
	}
	free(nodes);
	return rc;
}

int hspmd_migration_assign(const struct hspmd_migration *n, struct hspmd_plan *plan)
{
	struct device_mapping t = { .n = n, .to = hspmd_calloc((size_t)n->c->cluster->device_count, sizeof *t.to) };
	int rc = t.to ? table_fill(n->c, plan, &t.wanted) : -1;
	for (int d = 0; !rc && d < n->c->cluster->device_count; d++)
		t.to[d] = d;
	rc = rc ? rc : map_all(&t);
	for (int i = 0; !rc && i < plan->pipeline_count; i++)
		for (int s = 0; s < plan->pipelines[i].stage_count; s++)
			for (int d = 0; d < plan->pipelines[i].stages[s].device_count; d++)
				plan->pipelines[i].stages[s].devices[d] = t.to[plan->pipelines[i].stages[s].devices[d]];
	table_clear(&t.wanted);
	free(t.to);
	return rc;
}

/* ---- where the search starts */

static bool may_be_used(const struct hspmd_migration *n, const struct hspmd_pipeline *pipe, const struct hspmd_runtime_caps *caps)
{
	for (int s = 0; s < pipe->stage_count; s++) {
		const struct hspmd_stage *st = &pipe->stages[s];
		if (st->device_count > caps->max_tp || !(caps->recompute & 1u << st->recompute))
			return false;
		for (int d = 0; d < st->device_count; d++)
			if (st->devices[d] < 0 || n->device_classes->class_of_device[st->devices[d]] < 0)
				return false;
	}
	return true;
}

/* Distribute `total` micro-batches over the pipelines in proportion to what they have, at least one each. Returns 0, or -1 if there are
 * too few. */
static int distribute(struct hspmd_plan *p, int total)
{
	int sum = 0, left = total;
	for (int i = 0; i < p->pipeline_count; i++)
		sum += p->pipelines[i].micro_batches;
	if (total < p->pipeline_count)
		return -1;
	for (int i = 0; i < p->pipeline_count; i++) {
		int later = p->pipeline_count - 1 - i, part = (int)((double)left * p->pipelines[i].micro_batches / sum + 0.5);
		sum -= p->pipelines[i].micro_batches;
		part = later == 0 || part > left - later ? left - later : part;
		p->pipelines[i].micro_batches = part < 1 ? 1 : part;
		left -= p->pipelines[i].micro_batches;
	}
	return 0;
}

const struct hspmd_plan *hspmd_migration_current(const struct hspmd_migration *n)
{
	return n->now;
}

struct hspmd_plan *hspmd_migration_whole(const struct hspmd_migration *n, const struct hspmd_plan *plan,
                                         const struct hspmd_solve_request *request, const struct hspmd_runtime_caps *caps)
{
	struct hspmd_plan *p = hspmd_plan_copy(plan);
	int kept = 0, samples = 0;
	bool alike = true;
	if (!p)
		return NULL;
	for (int i = 0; i < p->pipeline_count; i++) {
		struct hspmd_pipeline *pipe = &p->pipelines[i];
		if (!may_be_used(n, pipe, caps))
			continue;
		/* A removed pipeline is swapped with one that is kept, so that the plan still owns it. */
		struct hspmd_pipeline swap = p->pipelines[kept];
		p->pipelines[kept++] = *pipe;
		*pipe = swap;
	}
	struct hspmd_plan *start = NULL;
	int all = p->pipeline_count, batch = kept ? p->pipelines[0].micro_batch : 0;
	p->pipeline_count = kept;
	for (int i = 0; i < kept; i++) {
		samples += p->pipelines[i].micro_batches * p->pipelines[i].micro_batch;
		alike = alike && p->pipelines[i].micro_batch == batch && (!request->micro_batch || request->micro_batch == batch);
	}
	/* Groups wider than these costs are about. */
	bool too_wide = hspmd_model_facts_of_plan(n->c->facts, p) != n->c->facts;
	bool fine = kept > 0 && !too_wide && (caps->schedules & 1u << p->schedule) && p->seq_len == n->c->seq_len &&
	            (alike || !request->micro_batch);
	if (fine && samples != request->global_batch)
		fine = alike && request->global_batch % batch == 0 && p->schedule != HSPMD_SCHEDULE_INTERLEAVED &&
		       !distribute(p, request->global_batch / batch);
	if (fine) {
		p->global_batch = request->global_batch;
		int most = kept > 1 ? caps->max_zero_stage : 0;
		if (most > 1 && !hspmd_plan_in_step(p))
			most = 1;
		p->zero_stage = p->zero_stage < most ? p->zero_stage : most;
		start = hspmd_plan_copy(p);
	}
	p->pipeline_count = all;
	hspmd_plan_destroy(p);
	return start;
}

/* Rewrite the current plan's device indexes to those of the cluster of the costs. Returns 0, or -1 if memory runs out. */
static int renumber_devices(struct hspmd_migration *n, const struct hspmd_cluster *of)
{
	const struct hspmd_cluster *c = n->c->cluster;
	char name[256];
	for (int i = 0; of != c && i < n->now->pipeline_count; i++)
		for (int s = 0; s < n->now->pipelines[i].stage_count; s++) {
			struct hspmd_stage *st = &n->now->pipelines[i].stages[s];
			for (int d = 0; d < st->device_count; d++)
				st->devices[d] = hspmd_cluster_find_device(
				        c, hspmd_cluster_device_address(of, st->devices[d], name, sizeof name), NULL);
		}
	return table_fill(n->c, n->now, &n->held);
}

struct hspmd_migration *hspmd_migration_new(const struct hspmd_costs *costs, const struct hspmd_device_classes *device_classes,
                                            const struct hspmd_plan *current, const struct hspmd_cluster *of, struct hspmd_error *err)
{
	const struct hspmd_pipeline *first = &current->pipelines[0];
	int layers = first->stages[first->stage_count - 1].layers[1];
	if (layers != costs->layer_count) {
		hspmd_fail(err, "the current plan has %d layers, the model %d", layers, costs->layer_count);
		return NULL;
	}
	struct hspmd_migration *n = hspmd_calloc(1, sizeof *n);
	if (n) {
		n->c = costs;
		n->device_classes = device_classes;
		n->now = hspmd_plan_copy(current);
		if (n->now)
			hspmd_plan_drop_shorter(n->now); /* the state is where the plan itself puts it */
	}
	if (!n || !n->now || renumber_devices(n, of)) {
		hspmd_migration_destroy(n);
		hspmd_fail_memory(err, "reading the current plan");
		return NULL;
	}
	return n;
}

void hspmd_migration_destroy(struct hspmd_migration *n)
{
	if (!n)
		return;
	table_clear(&n->held);
	hspmd_plan_destroy(n->now);
	free(n);
}
