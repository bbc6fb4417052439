/* SPDX-License-Identifier: Apache-2.0 */
/* Measures messages back and forth between two devices, in growing sizes. The first device decides how many; it tells the second before
 * each run. */
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "runtime/comm/comm.h"
#include "runtime/measure/measure.h"

/* Up to this number of nodes every pair is measured. */
#define ALL_PAIRS_NODES 8

#define ELEMENT_BYTES 4 /* of HSPMD_F32 */
#define ROUNDS_MIN 3
#define ROUNDS_MAX 100
#define RUN_S 0.1 /* seconds for one size, unless a single message takes longer */

static const int64_t sizes[HSPMD_MEASURE_POINTS] = { 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26 };

/* Tags of messages: comm.h uses the low 8 bits. */
#define COUNT_TAG (HSPMD_TAG_LIMIT - 1536)
#define THERE_TAG (HSPMD_TAG_LIMIT - 2048)
#define BACK_TAG (HSPMD_TAG_LIMIT - 2560)

/* ---- the pairs to measure */

struct pairs {
	const struct hspmd_cluster *c;
	struct hspmd_link_pair *list;
	size_t count, capacity;
	int round;
	bool *seen; /* [scope][type][type]: measured */
};

static bool *seen(struct pairs *p, int scope, int a, int b)
{
	int x = p->c->devices[a].type, y = p->c->devices[b].type, n = p->c->type_count;
	return &p->seen[(scope * n + (x < y ? x : y)) * n + (x < y ? y : x)];
}

static int add_pair(struct pairs *p, int from, int to)
{
	if (hspmd_array_grow(&p->list, &p->capacity, p->count, sizeof *p->list))
		return -1;
	p->list[p->count++] = (struct hspmd_link_pair){ p->round, from, to };
	*seen(p, p->c->devices[from].node != p->c->devices[to].node, from, to) = true;
	return 0;
}

/* On every node each pair of its types once; the k-th pair of all nodes in the same round. */
static int pairs_within(struct pairs *p)
{
	const struct hspmd_cluster *c = p->c;
	size_t types = (size_t)c->type_count;
	int rounds = 0;
	bool *done = hspmd_calloc(types * types, sizeof *done);
	for (int n = 0; done && n < c->node_count; n++) {
		int first = c->nodes[n].first_device, end = first + c->nodes[n].device_count;
		memset(done, 0, types * types * sizeof *done);
		p->round = 0;
		for (int a = first; a < end; a++)
			for (int b = a + 1; b < end; b++) {
				size_t x = (size_t)c->devices[a].type, y = (size_t)c->devices[b].type;
				bool *mark = &done[x < y ? x * types + y : y * types + x];
				if (!*mark && add_pair(p, a, b)) {
					free(done);
					return -1;
				}
				p->round += !*mark;
				*mark = true;
			}
		rounds = p->round > rounds ? p->round : rounds;
	}
	p->round = rounds;
	free(done);
	return done ? 0 : -1;
}

static int add_nodes(struct pairs *p, int a, int b)
{
	const struct hspmd_node *x = &p->c->nodes[a], *y = &p->c->nodes[b];
	return a != b && x->device_count && y->device_count ? add_pair(p, x->first_device, y->first_device) : 0;
}

/* A round-robin tournament: the last node stays in place, the others rotate. */
static int pairs_of_all(struct pairs *p)
{
	int nodes = p->c->node_count, n = nodes + nodes % 2;
	for (int r = 0; r < n - 1; r++, p->round++)
		for (int i = 0; i < n / 2; i++) {
			int a = i ? (r + i) % (n - 1) : n - 1, b = (r + n - 1 - i) % (n - 1);
			if (a < nodes && b < nodes && add_nodes(p, a < b ? a : b, a < b ? b : a))
				return -1;
		}
	return 0;
}

static int pairs_of_neighbours(struct pairs *p)
{
	for (int r = 0; r < 2; r++, p->round++)
		for (int a = r; a + 1 < p->c->node_count; a += 2)
			if (add_nodes(p, a, a + 1))
				return -1;
	return 0;
}

/* Pairs of types that no pair of nodes above includes. */
static int pairs_of_types(struct pairs *p)
{
	const struct hspmd_cluster *c = p->c;
	for (int x = 0; x < c->type_count; x++)
		for (int y = x; y < c->type_count; y++) {
			int a = 0, b = 0;
			while (a < c->device_count && c->devices[a].type != x)
				a++;
			while (b < c->device_count && (c->devices[b].type != y || c->devices[b].node == c->devices[a].node))
				b++;
			if (a == c->device_count || b == c->device_count || *seen(p, 1, a, b))
				continue;
			if (add_pair(p, a, b))
				return -1;
			p->round++;
		}
	return 0;
}

static int by_round(const void *a, const void *b)
{
	const struct hspmd_link_pair *x = a, *y = b;
	return x->round != y->round ? x->round - y->round : x->from - y->from;
}

int hspmd_measure_pairs(const struct hspmd_cluster *c, struct hspmd_link_pair **pairs, struct hspmd_error *err)
{
	struct pairs p = { .c = c, .seen = hspmd_calloc(2 * (size_t)(c->type_count * c->type_count), sizeof(bool)) };
	int rv = !p.seen || pairs_within(&p);
	if (!rv && c->node_count > 1)
		rv = (c->node_count <= ALL_PAIRS_NODES ? pairs_of_all(&p) : pairs_of_neighbours(&p)) || pairs_of_types(&p);
	free(p.seen);
	if (rv) {
		free(p.list);
		return hspmd_fail_memory(err, "choosing the links to measure");
	}
	if (p.count)
		qsort(p.list, p.count, sizeof *p.list, by_round);
	*pairs = p.list;
	return (int)p.count;
}

/* ---- one pair */

struct ping {
	const struct hspmd_measure_context *context;
	const struct hspmd_link_pair *pair;
	struct hspmd_comm *comm;
	struct hspmd_transfer *there, *back; /* for the current size */
	void *data;
};

static int resolve(struct ping *g, int64_t bytes, struct hspmd_error *err)
{
	struct hspmd_shape shape = { .rank = 1, .dim = { bytes / ELEMENT_BYTES } };
	struct hspmd_link_cost none = { 0 };
	struct hspmd_annotation *from = hspmd_annotation_single(&g->pair->from, 1), *to = hspmd_annotation_single(&g->pair->to, 1);
	hspmd_transfer_destroy(g->there);
	hspmd_transfer_destroy(g->back);
	g->there = g->back = NULL;
	if (from && to) {
		g->there = hspmd_resolve(&shape, ELEMENT_BYTES, from, to, &none, err);
		g->back = g->there ? hspmd_resolve(&shape, ELEMENT_BYTES, to, from, &none, err) : NULL;
	} else {
		hspmd_fail_memory(err, "measuring links");
	}
	hspmd_annotation_destroy(from);
	hspmd_annotation_destroy(to);
	return g->back ? 0 : -1;
}

static int go(struct ping *g, const struct hspmd_transfer *t, uint64_t tag, bool sends, struct hspmd_error *err)
{
	for (int s = 0; s < t->step_count; s++)
		if (hspmd_comm_run(g->comm, t, &t->steps[s], HSPMD_F32, sends ? g->data : NULL, sends ? NULL : g->data, tag, err))
			return -1;
	return 0;
}

/* One message back and forth. When the answer has arrived, everything has, and the own send is complete. */
static int round_trip(struct ping *g, bool leads, struct hspmd_error *err)
{
	if (go(g, g->there, THERE_TAG, leads, err) || (!leads && hspmd_comm_flush(g->comm, NULL, 0, err)) ||
	    go(g, g->back, BACK_TAG, !leads, err))
		return -1;
	return hspmd_comm_flush(g->comm, NULL, 0, err);
}

/* Agree on the number of rounds that follow; 0: no more. */
static int agree_count(struct ping *g, bool leads, int32_t *count, struct hspmd_error *err)
{
	struct hspmd_transport *t = g->context->transport;
	struct hspmd_request *r = NULL;
	int rv = leads ? t->ops->send(t, g->pair->to, COUNT_TAG, count, sizeof *count, &r, err)
	               : t->ops->receive(t, g->pair->from, COUNT_TAG, count, sizeof *count, &r, err);
	return rv ? -1 : hspmd_transport_wait(t, &r, 1, err);
}

/* The number of rounds for a size whose first round took this long: enough for a reliable result, fewer if time is short. */
static int32_t rounds_of(double took, double left)
{
	double wanted = fmin(fmax(fmin(RUN_S, left / HSPMD_MEASURE_POINTS) / took, ROUNDS_MIN), ROUNDS_MAX);
	return (int32_t)fmax(fmin(wanted, left / took), 1);
}

static int lead(struct ping *g, double until, double points[HSPMD_MEASURE_POINTS][2], struct hspmd_error *err)
{
	double took[ROUNDS_MAX], last = 0;
	int count = 0;
	for (int k = 0; k < HSPMD_MEASURE_POINTS; k++) {
		/* The first round shows how many more there is time for; larger messages take longer at most in proportion to their
		 * size. */
		double expected = k ? last * (double)sizes[k] / (double)sizes[k - 1] : 0;
		if (count >= 2 && hspmd_now() + (ROUNDS_MIN + 1) * 2 * expected > until)
			break;
		int32_t rounds = 1;
		if (resolve(g, sizes[k], err))
			return -1;
		for (int run = 0; run < 2; run++) {
			if (agree_count(g, true, &rounds, err))
				return -1;
			for (int i = 0; i < rounds; i++) {
				double then = hspmd_now();
				if (round_trip(g, true, err))
					return -1;
				took[i] = hspmd_now() - then;
			}
			rounds = run ? rounds : rounds_of(took[0], until - hspmd_now());
		}
		last = hspmd_middle_mean(took, rounds) / 2;
		points[count][0] = (double)sizes[k];
		points[count][1] = count ? fmax(last, points[count - 1][1]) : last;
		count++;
	}
	int32_t end = 0;
	return agree_count(g, true, &end, err) ? -1 : count;
}

static int follow(struct ping *g, struct hspmd_error *err)
{
	int32_t rounds;
	for (int run = 0;; run++) {
		if (agree_count(g, false, &rounds, err))
			return -1;
		if (!rounds)
			return 0;
		if (run / 2 >= HSPMD_MEASURE_POINTS || rounds < 0 || rounds > ROUNDS_MAX)
			return hspmd_fail(err, "measuring links: the other device requests %d rounds of size %d", (int)rounds, run / 2);
		if (run % 2 == 0 && resolve(g, sizes[run / 2], err))
			return -1;
		for (int i = 0; i < rounds; i++)
			if (round_trip(g, false, err))
				return -1;
	}
}

int hspmd_measure_pair(const struct hspmd_measure_context *context, const struct hspmd_link_pair *pair, double seconds,
                       double points[HSPMD_MEASURE_POINTS][2], struct hspmd_error *err)
{
	struct hspmd_device *dev = context->dev;
	struct ping g = { .context = context, .pair = pair };
	size_t devices = (size_t)context->cluster->device_count, most = (size_t)sizes[HSPMD_MEASURE_POINTS - 1];
	double until = hspmd_now() + seconds;
	int *rank_of = hspmd_calloc(devices, sizeof *rank_of), count = -1;
	for (size_t d = 0; rank_of && d < devices; d++)
		rank_of[d] = (int)d;
	if (!rank_of)
		hspmd_fail_memory(err, "measuring links");
	else
		g.comm = hspmd_comm_create(dev, context->transport, rank_of, (int)devices, context->device, err);
	g.data = g.comm ? dev->ops->allocate(dev, most, err) : NULL;
	if (g.data && !dev->ops->zero(dev, g.data, most, err))
		count = context->device == pair->from ? lead(&g, until, points, err) : follow(&g, err);
	if (g.comm && count < 0)
		hspmd_error_prefix(err, "link");
	hspmd_comm_destroy(g.comm);
	hspmd_transfer_destroy(g.there);
	hspmd_transfer_destroy(g.back);
	/* After a failure a message may still be written to the buffer: it stays allocated until the process ends. */
	if (g.data && count >= 0)
		dev->ops->release(dev, g.data);
	free(rank_of);
	return count;
}
