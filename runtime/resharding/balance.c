/* SPDX-License-Identifier: Apache-2.0 */
/* The least possible load of the busiest sender, if each class of bytes can be divided among its own set of senders: the linear program
 *
 *     minimise T   subject to   sum over senders of x[c][s] = bytes[c],   sum over classes of x[c][s] <= T,   x >= 0
 *
 * solved exactly as a sequence of maximum flows (source -> class -> sender -> sink with capacity T; Dinic, 1970). If the flow falls short,
 * the minimum cut is a set of classes whose bytes exceed what their senders may send, so T must be at least their average (Dinkelbach,
 * 1967); with that T the flow continues. Every T that is tried is a lower bound, so the first that suffices is the least. */
#include <stdlib.h>
#include <string.h>

#include "runtime/resharding/move_plan_internal.h"

struct edge {
	int class, sender;
	int64_t flow;
};

/* Edges of a class are consecutive, and in `back` so are the edges of a sender. */
struct network {
	const struct balance_class *classes;
	int class_count, sender_count;
	int64_t limit;
	struct edge *edge;
	int *first_edge;                 /* per class, and one more */
	int *back, *first_back;          /* edge numbers by sender */
	int64_t *left;                   /* per class: bytes not yet sent */
	int64_t *load;                   /* per sender */
	int *class_level, *sender_level; /* distance from a class with bytes left; -1: not reached */
	int *class_next, *sender_next;   /* the edge at which a search continues */
	int *queue;                      /* classes, then senders + class_count */
};

static int network_build(struct network *n, struct hspmd_arena *arena)
{
	size_t classes = (size_t)n->class_count, senders = (size_t)n->sender_count, edges = 0;
	for (size_t c = 0; c < classes; c++)
		edges += (size_t)n->classes[c].senders->count;
	n->edge = hspmd_arena_alloc(arena, edges, sizeof *n->edge);
	n->first_edge = hspmd_arena_alloc(arena, classes + 1, sizeof(int));
	n->back = hspmd_arena_alloc(arena, edges, sizeof(int));
	n->first_back = hspmd_arena_alloc(arena, senders + 2, sizeof(int));
	n->left = hspmd_arena_alloc(arena, classes, sizeof(int64_t));
	n->load = hspmd_arena_alloc(arena, senders, sizeof(int64_t));
	n->class_level = hspmd_arena_alloc(arena, classes, sizeof(int));
	n->sender_level = hspmd_arena_alloc(arena, senders, sizeof(int));
	n->class_next = hspmd_arena_alloc(arena, classes, sizeof(int));
	n->sender_next = hspmd_arena_alloc(arena, senders, sizeof(int));
	n->queue = hspmd_arena_alloc(arena, classes + senders, sizeof(int));
	if (!n->edge || !n->first_edge || !n->back || !n->first_back || !n->left || !n->load || !n->class_level || !n->sender_level ||
	    !n->class_next || !n->sender_next || !n->queue)
		return -1;
	int at = 0;
	for (int c = 0; c < n->class_count; c++) {
		n->first_edge[c] = at;
		n->left[c] = n->classes[c].bytes;
		for (int i = 0; i < n->classes[c].senders->count; i++) {
			n->edge[at++] = (struct edge){ c, n->classes[c].senders->senders[i], 0 };
			n->first_back[n->classes[c].senders->senders[i] + 2]++;
		}
	}
	n->first_edge[n->class_count] = at;
	for (size_t s = 0; s < senders; s++)
		n->first_back[s + 2] += n->first_back[s + 1];
	for (int e = 0; e < at; e++)
		n->back[n->first_back[n->edge[e].sender + 1]++] = e;
	return 0;
}

/* Breadth-first levels over the residual network; true if it reaches a sender below the limit. */
static bool find_levels(struct network *n)
{
	int head = 0, tail = 0;
	bool below = false;
	for (int s = 0; s < n->sender_count; s++)
		n->sender_level[s] = -1;
	for (int c = 0; c < n->class_count; c++) {
		n->class_level[c] = n->left[c] > 0 ? 0 : -1;
		if (n->left[c] > 0)
			n->queue[tail++] = c;
	}
	while (head < tail) {
		int node = n->queue[head++];
		if (node < n->class_count) {
			for (int e = n->first_edge[node]; e < n->first_edge[node + 1]; e++)
				if (n->sender_level[n->edge[e].sender] < 0) {
					n->sender_level[n->edge[e].sender] = n->class_level[node] + 1;
					n->queue[tail++] = n->class_count + n->edge[e].sender;
				}
			continue;
		}
		int s = node - n->class_count;
		below = below || n->load[s] < n->limit;
		for (int b = n->first_back[s]; b < n->first_back[s + 1]; b++) {
			const struct edge *e = &n->edge[n->back[b]];
			if (e->flow > 0 && n->class_level[e->class] < 0) {
				n->class_level[e->class] = n->sender_level[s] + 1;
				n->queue[tail++] = e->class;
			}
		}
	}
	return below;
}

static int64_t push_sender(struct network *n, int s, int64_t amount);

/* Sends up to `amount` from class c along levels; returns the amount sent. */
static int64_t push_class(struct network *n, int c, int64_t amount)
{
	int64_t sent = 0;
	for (; n->class_next[c] < n->first_edge[c + 1]; n->class_next[c]++) {
		struct edge *e = &n->edge[n->class_next[c]];
		if (n->sender_level[e->sender] != n->class_level[c] + 1)
			continue;
		int64_t got = push_sender(n, e->sender, amount - sent);
		e->flow += got;
		sent += got;
		if (sent == amount)
			break;
	}
	return sent;
}

/* Adds up to `amount` to sender s: from its own remaining capacity, or by passing load of other classes on to other senders. */
static int64_t push_sender(struct network *n, int s, int64_t amount)
{
	int64_t capacity = n->limit - n->load[s], sent = capacity < amount ? capacity : amount;
	n->load[s] += sent;
	for (; sent < amount && n->sender_next[s] < n->first_back[s + 1]; n->sender_next[s]++) {
		struct edge *e = &n->edge[n->back[n->sender_next[s]]];
		if (e->flow == 0 || n->class_level[e->class] != n->sender_level[s] + 1)
			continue;
		int64_t want = amount - sent < e->flow ? amount - sent : e->flow;
		int64_t got = push_class(n, e->class, want);
		e->flow -= got;
		sent += got;
		if (sent == amount)
			break;
	}
	return sent;
}

/* Raises the flow until nothing more fits under the limit; returns the bytes left. */
static int64_t fill(struct network *n)
{
	while (find_levels(n)) {
		memcpy(n->class_next, n->first_edge, (size_t)n->class_count * sizeof *n->class_next);
		memcpy(n->sender_next, n->first_back, (size_t)n->sender_count * sizeof *n->sender_next);
		for (int c = 0; c < n->class_count; c++)
			if (n->left[c] > 0)
				n->left[c] -= push_class(n, c, n->left[c]);
	}
	int64_t left = 0;
	for (int c = 0; c < n->class_count; c++)
		left += n->left[c];
	return left;
}

/* The average load, rounded up, of the senders that classes with bytes left can reach: call after find_levels has failed. */
static int64_t cut_average(const struct network *n)
{
	int64_t bytes = 0, senders = 0;
	for (int c = 0; c < n->class_count; c++)
		bytes += n->class_level[c] >= 0 ? n->classes[c].bytes : 0;
	for (int s = 0; s < n->sender_count; s++)
		senders += n->sender_level[s] >= 0;
	return (bytes + senders - 1) / senders;
}

static int64_t first_limit(const struct network *n)
{
	int64_t total = 0, most = 0, senders = 0;
	for (int c = 0; c < n->class_count; c++) {
		int64_t average = (n->classes[c].bytes + n->classes[c].senders->count - 1) / n->classes[c].senders->count;
		most = average > most ? average : most;
		total += n->classes[c].bytes;
	}
	for (int s = 0; s < n->sender_count; s++)
		senders += n->first_back[s + 1] > n->first_back[s];
	int64_t average = senders ? (total + senders - 1) / senders : 0;
	return average > most ? average : most;
}

int hspmd_balance(struct hspmd_arena *arena, struct balance_class *classes, size_t count, int senders, int64_t *most)
{
	struct network n = { .classes = classes, .class_count = (int)count, .sender_count = senders };
	if (network_build(&n, arena) != 0)
		return -1;
	n.limit = first_limit(&n);
	while (fill(&n) > 0)
		n.limit = cut_average(&n);
	for (size_t c = 0; c < count; c++)
		for (int i = 0; i < classes[c].senders->count; i++)
			classes[c].quota[i] = n.edge[n.first_edge[c] + i].flow;
	*most = n.limit;
	return 0;
}
