/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates the measurements of all devices (rows, device.c) into a profile and a cluster.
 *
 * A type's times are those of its healthy nodes: those within a tenth of the fastest in everything that all of them measured. The other
 * nodes get a `slowdown`. result_links.c evaluates links. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/log.h"
#include "runtime/measure/measure.h"
#include "runtime/model/own.h"

/* Nodes of a type that differ by less count as equal. */
#define TOLERANCE 0.1

#define ELEMENT_BYTES 4 /* the runtime computes in fp32 */

/* The measurements of one tp and micro-batch of a type on a node: the mean over its devices. */
struct cell {
	int type, node, tp, micro_batch, devices;
	double *seconds; /* [kind][time]; owned */
};

struct result {
	const struct hspmd_model *model;
	struct hspmd_model_facts *facts; /* owned */
	int times;                       /* of a cell: kinds of layers times HSPMD_LAYER_TIME_COUNT */
	const json_t *rows;
	int seq_len;
	struct hspmd_cluster *cluster;
	struct cell *cells;
	size_t cell_count, cell_capacity;
	double *kept; /* [kind]; NaN: not measured. Owned */
	struct hspmd_profile *profile;
};

static int fail_row(struct hspmd_error *err)
{
	return hspmd_fail(err, "a device's measurement cannot be read");
}

/* ---- reading rows */

static struct cell *find_cell(struct result *r, int device, int tp, int micro_batch)
{
	struct cell want = {
		.type = r->cluster->devices[device].type, .node = r->cluster->devices[device].node, .tp = tp, .micro_batch = micro_batch
	};
	for (size_t i = 0; i < r->cell_count; i++) {
		struct cell *c = &r->cells[i];
		if (c->type == want.type && c->node == want.node && c->tp == tp && c->micro_batch == micro_batch)
			return c;
	}
	if (hspmd_array_grow(&r->cells, &r->cell_capacity, r->cell_count, sizeof *r->cells) ||
	    !(want.seconds = hspmd_calloc((size_t)r->times, sizeof *want.seconds)))
		return NULL;
	r->cells[r->cell_count] = want;
	return &r->cells[r->cell_count++];
}

static int add_layers(struct result *r, int device, const json_t *at, struct hspmd_error *err)
{
	json_t *kinds;
	int tp, micro_batch;
	if (json_unpack((json_t *)at, "{si,si,so}", "tp", &tp, "micro_batch", &micro_batch, "seconds", &kinds) ||
	    json_array_size(kinds) != (size_t)r->facts->kind_count)
		return fail_row(err);
	struct cell *c = find_cell(r, device, tp, micro_batch);
	if (!c)
		return hspmd_fail_memory(err, "writing the profile");
	c->devices++;
	for (int i = 0; i < r->times; i++) {
		json_t *s = json_array_get(json_array_get(kinds, (size_t)i / HSPMD_LAYER_TIME_COUNT), (size_t)i % HSPMD_LAYER_TIME_COUNT);
		if (!json_is_number(s))
			return fail_row(err);
		c->seconds[i] += (json_number_value(s) - c->seconds[i]) / c->devices;
	}
	return 0;
}

static int read_kept(struct result *r, const json_t *kept, struct hspmd_error *err)
{
	if (json_array_size(kept) != (size_t)r->facts->kind_count)
		return fail_row(err);
	for (int k = 0; k < r->facts->kind_count; k++)
		r->kept[k] = json_number_value(json_array_get(kept, (size_t)k));
	return 0;
}

static bool said_before(const struct result *r, size_t row, const json_t *note)
{
	size_t k;
	json_t *at;
	for (size_t i = 0; i < row; i++)
		json_array_foreach(json_object_get(json_array_get(r->rows, i), "notes"), k, at)
			if (json_equal(at, note))
				return true;
	return false;
}

/* Log what could not be measured. Equal devices have the same notes, so each is logged once. */
static void log_notes(const struct result *r, size_t row, int device, const json_t *notes)
{
	size_t k;
	json_t *at;
	char address[256];
	json_array_foreach((json_t *)notes, k, at)
		if (!said_before(r, row, at))
			hspmd_warn("%s: %s", hspmd_cluster_device_address(r->cluster, device, address, sizeof address),
			           json_string_value(at));
}

static int read_rows(struct result *r, struct hspmd_error *err)
{
	size_t i, k;
	json_t *row, *at, *layers, *notes, *kept;
	for (int x = 0; x < r->facts->kind_count; x++)
		r->kept[x] = NAN;
	json_array_foreach((json_t *)r->rows, i, row) {
		int device;
		if (json_unpack(row, "{si,so,so,so}", "device", &device, "layers", &layers, "notes", &notes, "kept", &kept) || device < 0 ||
		    device >= r->cluster->device_count)
			return fail_row(err);
		json_array_foreach(layers, k, at)
			if (add_layers(r, device, at, err))
				return -1;
		log_notes(r, i, device, notes);
		if (!json_is_null(kept) && read_kept(r, kept, err))
			return -1;
	}
	return r->cell_count ? 0 : hspmd_fail(err, "no device could measure a layer");
}

/* ---- nodes */

static double cell_seconds(const struct result *r, const struct cell *c)
{
	double sum = 0;
	for (int l = 0; l < r->facts->layer_count; l++)
		for (int t = 0; t < HSPMD_LAYER_TIME_COUNT; t++)
			sum += c->seconds[r->facts->kind_of_layer[l] * HSPMD_LAYER_TIME_COUNT + t];
	return sum;
}

static const struct cell *cell_of(const struct result *r, int node, const struct cell *like)
{
	for (size_t i = 0; i < r->cell_count; i++)
		if (r->cells[i].node == node && r->cells[i].type == like->type && r->cells[i].tp == like->tp &&
		    r->cells[i].micro_batch == like->micro_batch)
			return &r->cells[i];
	return NULL;
}

/* The factor by which a node is slower than another in everything that both measured of a type; 0: they have nothing in common. */
static double ratio(const struct result *r, int type, int node, int other)
{
	double a = 0, b = 0;
	for (size_t i = 0; i < r->cell_count; i++) {
		const struct cell *c = &r->cells[i], *o = c->node == node && c->type == type ? cell_of(r, other, c) : NULL;
		if (o) {
			a += cell_seconds(r, c);
			b += cell_seconds(r, o);
		}
	}
	return b > 0 ? a / b : 0;
}

/* The node of a type than which no other is faster; -1: nothing measured. */
static int fastest_node(const struct result *r, int type)
{
	int best = -1;
	for (int n = 0; n < r->cluster->node_count; n++)
		if (ratio(r, type, n, n) > 0 && (best < 0 || (ratio(r, type, n, best) < 1 && ratio(r, type, n, best) > 0)))
			best = n;
	return best;
}

/* Set the slowdowns of nodes, from the type in which they are slowest. */
static void set_slowdowns(struct result *r)
{
	for (int type = 0; type < r->cluster->type_count; type++) {
		int best = fastest_node(r, type);
		for (int n = 0; best >= 0 && n < r->cluster->node_count; n++) {
			double slow = ratio(r, type, n, best);
			if (slow > 1 + TOLERANCE && slow > r->cluster->nodes[n].slowdown)
				r->cluster->nodes[n].slowdown = slow;
		}
	}
}

/* ---- the profile */

static char *name_layer(const struct hspmd_model *m, int layer)
{
	if (hspmd_model_is_own(m))
		return hspmd_asprintf("layer%d", layer);
	return !layer ? strdup("embedding") : layer > m->block_count ? strdup("head") : hspmd_asprintf("block%d", layer - 1);
}

/* Pairs of layers that share weights. */
static int fill_ties(struct result *r, struct hspmd_error *err)
{
	struct hspmd_profile *p = r->profile;
	if (!(p->tied = hspmd_calloc((size_t)p->layer_count, sizeof *p->tied)))
		return hspmd_fail_memory(err, "writing the profile");
	for (int l = 0; l < p->layer_count; l++)
		if (r->facts->ties[l].owner >= 0) {
			p->tied[p->tied_count][0] = r->facts->ties[l].owner;
			p->tied[p->tied_count++][1] = l;
		}
	return 0;
}

static int fill_layers(struct result *r, struct hspmd_error *err)
{
	const struct hspmd_model *m = r->model;
	struct hspmd_profile *p = r->profile;
	int layers = hspmd_model_layers(m);
	p->layers = hspmd_calloc((size_t)layers, sizeof *p->layers);
	p->model = p->layers ? strdup(m->name) : NULL;
	if (!p->model)
		return hspmd_fail_memory(err, "writing the profile");
	for (int l = 0; l < layers; l++, p->layer_count++) {
		struct hspmd_profile_layer *at = &p->layers[l];
		const struct hspmd_layer_facts *f = hspmd_model_layer_facts(r->facts, l);
		/* Listed with both layers; "tied" says that it is the same parameter. */
		at->params = f->params.replicated + f->params.sharded + r->facts->ties[l].params;
		at->output_elems = f->output_elements;
		at->activation_bytes = r->kept[r->facts->kind_of_layer[l]];
		if (!(at->name = name_layer(m, l)))
			return hspmd_fail_memory(err, "writing the profile");
	}
	p->params_bytes = p->grads_bytes = p->activation_bytes = ELEMENT_BYTES;
	p->seq_len = r->seq_len;
	return fill_ties(r, err);
}

/* The mean over the healthy nodes of the cell's type: seconds of a time of a kind. */
static double mean_seconds(const struct result *r, const struct cell *like, int i)
{
	double mean = 0;
	int count = 0;
	for (int healthy = 1; healthy >= 0 && !count; healthy--)
		for (int n = 0; n < r->cluster->node_count; n++) {
			const struct cell *c = cell_of(r, n, like);
			double slow = r->cluster->nodes[n].slowdown;
			if (c && (!healthy || slow <= 1))
				mean += (c->seconds[i] / slow - mean) / ++count;
		}
	return mean;
}

static int add_times(struct result *r, const struct cell *c, struct hspmd_error *err)
{
	struct hspmd_profile *p = r->profile;
	struct hspmd_profile_times *t = &p->times[p->times_count++];
	size_t layers = (size_t)p->layer_count;
	t->device_type = strdup(r->cluster->types[c->type].name);
	t->tp = c->tp;
	t->micro_batch = c->micro_batch;
	double **columns[HSPMD_LAYER_TIME_COUNT] = { &t->forward_s, &t->backward_s, &t->optimizer_s };
	for (int time = 0; time < HSPMD_LAYER_TIME_COUNT; time++) {
		double *column = *columns[time] = hspmd_calloc(layers, sizeof *column);
		for (size_t l = 0; column && l < layers; l++)
			column[l] = mean_seconds(r, c, r->facts->kind_of_layer[l] * HSPMD_LAYER_TIME_COUNT + time);
	}
	return t->device_type && t->forward_s && t->backward_s && t->optimizer_s ? 0 : hspmd_fail_memory(err, "writing the profile");
}

static int by_cell(const void *a, const void *b)
{
	const struct cell *x = a, *y = b;
	return x->type != y->type ? x->type - y->type : x->tp != y->tp ? x->tp - y->tp : x->micro_batch - y->micro_batch;
}

static int fill_times(struct result *r, struct hspmd_error *err)
{
	r->profile->times = hspmd_calloc(r->cell_count, sizeof *r->profile->times);
	if (!r->profile->times)
		return hspmd_fail_memory(err, "writing the profile");
	qsort(r->cells, r->cell_count, sizeof *r->cells, by_cell);
	for (size_t i = 0; i < r->cell_count; i++) {
		if (i && !by_cell(&r->cells[i - 1], &r->cells[i]))
			continue;
		if (add_times(r, &r->cells[i], err))
			return -1;
	}
	return 0;
}

struct hspmd_profile *hspmd_measure_profile(const struct hspmd_model *model, const json_t *rows, int seq_len, struct hspmd_cluster *cluster,
                                            struct hspmd_error *err)
{
	struct result r = { .model = model, .rows = rows, .seq_len = seq_len, .cluster = cluster, .profile = calloc(1, sizeof *r.profile) };
	r.facts = hspmd_model_facts_of(model, seq_len, err);
	r.kept = r.facts ? hspmd_calloc((size_t)r.facts->kind_count, sizeof *r.kept) : NULL;
	r.times = r.facts ? r.facts->kind_count * HSPMD_LAYER_TIME_COUNT : 0;
	int rv = r.facts ? 0 : -1;
	if (!rv && (!r.profile || !r.kept))
		rv = hspmd_fail_memory(err, "writing the profile");
	if (!rv)
		rv = read_rows(&r, err);
	if (!rv)
		set_slowdowns(&r);
	if (!rv && (fill_layers(&r, err) || fill_times(&r, err) || hspmd_measure_fill_links(rows, cluster, err)))
		rv = -1;
	for (size_t i = 0; i < r.cell_count; i++)
		free(r.cells[i].seconds);
	free(r.cells);
	free(r.kept);
	hspmd_model_facts_destroy(r.facts);
	if (rv) {
		hspmd_profile_destroy(r.profile);
		return NULL;
	}
	return r.profile;
}
