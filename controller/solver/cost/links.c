/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds of messages and collectives, from the cluster's links. */
#include "controller/solver/cost/costs.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/cluster_index.h"
#include "common/format/collective_cost.h"
#include "common/format/device_speed.h"
#include "common/format/device_traits.h"

double hspmd_costs_own_work(const struct hspmd_costs *c, int device, double bytes, double times)
{
	const struct hspmd_cluster_device *d = &c->cluster->devices[device];
	const struct hspmd_device_type *type = &c->cluster->types[d->type];
	if (hspmd_device_traits(type->kind)->origin != HSPMD_ORIGIN_CORES)
		return 0;
	return bytes > 0 ? c->cluster->nodes[d->node].slowdown * times * bytes / hspmd_device_memory_rate(type) : 0;
}

const struct hspmd_link *hspmd_costs_link(const struct hspmd_costs *c, int a, int b, int n, int m, struct hspmd_error *err)
{
	/* More senders never have less bandwidth in total, so counts without an entry use the next smaller ones. */
	for (int k = n > m ? n : m, most = hspmd_cluster_most_gpus(c->cluster); k > 0; k = k - 1 < most ? k - 1 : most) {
		const struct hspmd_link *link = hspmd_cluster_find_link(c->cluster, a, b, k < n ? k : n, k < m ? k : m);
		if (link)
			return link;
	}
	char x[256], y[256];
	const char *file = c->cluster->file;
	hspmd_fail(err, "%s%slinks: no entry of the cluster's covers %s and %s, which must communicate; add one of scope \"%s\"",
	           file ? file : "", file ? ": " : "", hspmd_cluster_device_address(c->cluster, a, x, sizeof x),
	           hspmd_cluster_device_address(c->cluster, b, y, sizeof y),
	           c->cluster->devices[a].node == c->cluster->devices[b].node ? "node" : "cluster");
	return NULL;
}

/* A number for all that a message's time depends on besides its bytes, unless links are given for single nodes; 0: there is none. */
static uint64_t key_of(const struct hspmd_costs *c, int a, int b, int n, int m)
{
	const struct hspmd_cluster_device *x = &c->cluster->devices[a], *y = &c->cluster->devices[b];
	if (!c->transfers || a == b || (x->type | y->type) >> 12 || (n | m) >> 19)
		return 0;
	return (uint64_t)x->type | (uint64_t)y->type << 12 | (uint64_t)n << 24 | (uint64_t)m << 43 | (uint64_t)(x->node == y->node) << 62;
}

/* A search times the same few messages millions of times. */
double hspmd_costs_transfer(const struct hspmd_costs *c, int a, int b, int n, int m, double bytes, struct hspmd_error *err)
{
	uint64_t key = key_of(c, a, b, n, m), bits;
	memcpy(&bits, &bytes, sizeof bits);
	struct hspmd_known_transfer *known = key ? &c->transfers[(bits ^ key) * UINT64_C(0x9e3779b97f4a7c15) >> 54] : NULL;
	if (known && known->key == key && known->bytes == bytes)
		return known->seconds;
	const struct hspmd_link *link = hspmd_costs_link(c, a, b, n, m, err);
	if (!link)
		return -1;
	double seconds = hspmd_link_seconds(link, bytes);
	if (known)
		*known = (struct hspmd_known_transfer){ key, bytes, seconds };
	return seconds;
}

double hspmd_costs_ring(const struct hspmd_costs *c, const int *devices, int stride, int n, int rounds, double bytes,
                        struct hspmd_error *err)
{
	if (n < 2 || bytes <= 0)
		return 0;
	double slowest = 0;
	for (int i = 0; i < n; i++) {
		int a = devices[i * stride], b = devices[(i + 1) % n * stride];
		double s = hspmd_costs_transfer(c, a, b, 1, 1, bytes / n, err);
		if (s < 0)
			return -1;
		slowest = fmax(slowest, s);
	}
	return rounds * (n - 1) * slowest;
}

static bool are_rings(const struct hspmd_costs *c, const int *devices, int stride, int n)
{
	for (int i = 0; i < n; i++)
		if (!hspmd_device_traits(c->cluster->types[c->cluster->devices[devices[i * stride]].type].kind)->rings)
			return false;
	return true;
}

/* Seconds in which all addends are gathered: in rounds of 1, 2, 4 .. a member receives that many from the member that far behind. */
static double gather_addends(const struct hspmd_costs *c, const int *devices, int n, double bytes, struct hspmd_error *err)
{
	double total = 0;
	for (int done = 1; done < n; done *= 2) {
		int addends = done < n - done ? done : n - done;
		double slowest = 0;
		for (int i = 0; i < n; i++) {
			double s = hspmd_costs_transfer(c, devices[(i + done) % n], devices[i], 1, 1, addends * bytes, err);
			if (s < 0)
				return -1;
			slowest = fmax(slowest, s);
		}
		total += slowest;
	}
	return total;
}

double hspmd_costs_collective(const struct hspmd_costs *c, const int *devices, int n, enum hspmd_facts_message kind, double bytes,
                              struct hspmd_error *err)
{
	double ring = hspmd_costs_ring(c, devices, 1, n, kind == HSPMD_FACTS_REDUCED ? 2 : 1, bytes, err);
	if (ring <= 0 || kind == HSPMD_FACTS_GATHERED || !c->facts) /* another framework sums otherwise */
		return ring;
	double gathered = gather_addends(c, devices, n, bytes, err);
	return gathered < 0 ? -1 : fmin(ring, gathered);
}

/* Members of a context group that gather parts. */
struct members {
	const struct hspmd_costs *c;
	const int *devices;
	int stride, n;
	bool failed;
	struct hspmd_error *err;
};

static double between(struct members *m, int i, int j, double bytes)
{
	double s = hspmd_costs_transfer(m->c, m->devices[i * m->stride], m->devices[j * m->stride], 1, 1, bytes, m->err);
	m->failed = m->failed || s < 0;
	return s;
}

static double ring_link(const void *context, int i, double bytes)
{
	const struct members *const *m = context;
	return between((struct members *)*m, i, (i + 1) % (*m)->n, bytes);
}

/* Every member sends its part, or the fraction `each` of it, to every other, one after another. */
static double direct(struct members *m, const double *parts, double each)
{
	double slowest = 0;
	for (int i = 0; i < m->n; i++) {
		double out = 0, in = 0;
		for (int j = 0; j < m->n; j++) {
			out += i == j ? 0 : between(m, i, j, each * parts[i]);
			in += i == j ? 0 : between(m, j, i, each * parts[j]);
		}
		slowest = fmax(slowest, fmax(out, in));
	}
	return slowest;
}

/* Seconds until all devices know which experts the rows chose; INFINITY: some cannot send rows alone. */
static double choice_seconds(const struct hspmd_costs *c, const int *devices, int n)
{
	double choice = 0;
	for (int i = 0; i < n; i++) {
		const struct hspmd_device_traits *traits =
		        hspmd_device_traits(c->cluster->types[c->cluster->devices[devices[i]].type].kind);
		choice = fmax(choice, traits->dispatches ? traits->choice_s : INFINITY);
	}
	return choice;
}

double hspmd_costs_experts(const struct hspmd_costs *c, const int *devices, int n, enum hspmd_facts_message kind, const double *parts,
                           double bytes, struct hspmd_error *err)
{
	double all = hspmd_costs_collective(c, devices, n, kind, bytes, err), choice = choice_seconds(c, devices, n);
	if (all < 0 || !(choice < all))
		return all;
	struct members m = { c, devices, 1, n, false, err };
	double rows = direct(&m, parts, 1.0 / n);
	if (kind == HSPMD_FACTS_REDUCED)
		rows = fmin(direct(&m, parts, 1), rows + hspmd_costs_ring(c, devices, 1, n, 1, bytes, err));
	return m.failed ? -1 : fmin(all, choice + rows);
}

/* Every member gets all parts. */
static double gather_at_once(struct members *m, const double *parts)
{
	enum hspmd_collective_form form;
	return are_rings(m->c, m->devices, m->stride, m->n) ? hspmd_ring_seconds(parts, m->n, ring_link, &m, &form) : direct(m, parts, 1);
}

/* Bytes of member i's part that are in part j if the same bytes are divided evenly; before: of the parts before i. */
static double moved(const struct members *m, double before, double part, double all, int j)
{
	double bytes = fmin(before + part, all * (j + 1) / m->n) - fmax(before, all * j / m->n);
	return bytes > 1e-9 * all ? bytes : 0; /* not what rounding leaves */
}

/* Members whose parts are too large send what is too much to those that come to have it, until all have equal parts. */
static double even_out(struct members *m, const double *parts, double all)
{
	double slowest = 0;
	for (int i = 0; i < m->n; i++) {
		double out = 0, in = 0, own = 0, before = 0;
		for (int j = 0; j < i; j++)
			own += parts[j];
		for (int j = 0; j < m->n; before += parts[j++]) {
			double to = i == j ? 0 : moved(m, own, parts[i], all, j), from = i == j ? 0 : moved(m, before, parts[j], all, i);
			out += to > 0 ? between(m, i, j, to) : 0;
			in += from > 0 ? between(m, j, i, from) : 0;
		}
		slowest = fmax(slowest, fmax(out, in));
	}
	return slowest;
}

/* The same with equal parts. -1: memory. */
static double gather_evenly(struct members *m, double all)
{
	double *parts = hspmd_calloc((size_t)m->n, sizeof *parts);
	for (int i = 0; parts && i < m->n; i++)
		parts[i] = all / m->n;
	double seconds = parts ? gather_at_once(m, parts) : hspmd_fail_memory(m->err, "predicting messages");
	free(parts);
	return seconds;
}

double hspmd_costs_gather(const struct hspmd_costs *c, const int *devices, int stride, int n, const double *parts, struct hspmd_error *err)
{
	struct members m = { c, devices, stride, n, false, err };
	double all = 0;
	bool equal = true;
	for (int i = 0; i < n; i++) {
		all += parts[i];
		equal = equal && parts[i] == parts[0];
	}
	double seconds = n < 2 ? 0 : gather_at_once(&m, parts);
	if (n < 2 || equal || !c->facts) /* another framework has no programs of two hops */
		return m.failed ? -1 : seconds;
	double rest = gather_evenly(&m, all), two = rest + even_out(&m, parts, all);
	return m.failed || rest < 0 ? -1 : two * (1 + HSPMD_WORTH_A_HOP) < seconds ? two : seconds;
}
