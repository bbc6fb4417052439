/* SPDX-License-Identifier: Apache-2.0 */
/* What messages cost: one, and those of a large collective, in which hundreds of members send as many messages as there are pairs, but few
 * that differ. */
#include "runtime/resharding/resolve_internal.h"

#define FEWEST_MEMBERS 32 /* below, pairs are counted one by one */
#define CLASSES_MAX 16

double hspmd_message_seconds(const struct hspmd_link_cost *cost, int from, int to, double bytes)
{
	if (from == to)
		return 0;
	if (cost && cost->together > 0)
		bytes *= cost->together;
	return cost && cost->seconds ? cost->seconds(cost->context, from, to, bytes) : 1e-5 + bytes / 1e9;
}

double hspmd_cost_message(const struct resolver *r, int from, int to, int64_t elements)
{
	return hspmd_message_seconds(r->cost, r->real[from], r->real[to], (double)elements * (double)r->element_bytes);
}

/* Members that send (or receive) messages of one size over equal links. */
struct message_class {
	int device_class;
	int64_t elements;
	int count;
	int member[2]; /* two of them, on different nodes if possible; -1: none */
};

struct classes {
	struct resolver *r;
	const int *members;
	int member_count;
	bool by_sender; /* a message is as long as its sender's class says, else its receiver's */
	double messages;
	int count;
	struct message_class class[CLASSES_MAX];
	int *of;           /* per member: its class */
	int *there;        /* per node and class: number of members */
	int *first, *next; /* per node, per member: lists of the members of a node; -1: end */
	double seconds[CLASSES_MAX][CLASSES_MAX], occupied[CLASSES_MAX][CLASSES_MAX]; /* per message between nodes, from and to classes */
};

static int node_of(const struct classes *c, int member)
{
	return c->r->node[c->members[member]];
}

/* -1: there are more classes than this file counts, or links are not known by class. */
static int classify(struct classes *c, int member, int64_t elements)
{
	const struct hspmd_link_cost *cost = c->r->cost;
	int device_class = !cost || !cost->seconds ? 0 : cost->device_class(cost->context, c->r->real[c->members[member]]), k = 0;
	while (k < c->count && (c->class[k].device_class != device_class || c->class[k].elements != elements))
		k++;
	if (device_class < 0 || k == CLASSES_MAX)
		return -1;
	struct message_class *class = &c->class[k];
	if (k == c->count) {
		c->count++;
		*class = (struct message_class){ .device_class = device_class, .elements = elements, .member = { member, -1 } };
	} else if (class->member[1] < 0 && node_of(c, class->member[0]) != node_of(c, member)) {
		class->member[1] = member;
	}
	class->count++;
	return k;
}

/* 0, 1: not applicable, -1: memory. */
static int find_classes(struct classes *c, const int64_t *elements)
{
	const struct resolver *r = c->r;
	c->of = hspmd_arena_alloc(r->arena, (size_t)c->member_count, sizeof *c->of);
	c->next = hspmd_arena_alloc(r->arena, (size_t)c->member_count, sizeof *c->next);
	c->first = hspmd_arena_alloc(r->arena, (size_t)r->node_count, sizeof *c->first);
	if (!c->of || !c->next || !c->first)
		return -1;
	for (int m = 0; m < c->member_count; m++)
		if ((c->of[m] = classify(c, m, elements[m])) < 0)
			return 1;
	c->there = hspmd_arena_alloc(r->arena, (size_t)r->node_count * (size_t)c->count, sizeof *c->there);
	if (!c->there)
		return -1;
	for (int n = 0; n < r->node_count; n++)
		c->first[n] = -1;
	for (int m = c->member_count - 1; m >= 0; m--) {
		int node = node_of(c, m);
		c->there[node * c->count + c->of[m]]++;
		c->next[m] = c->first[node];
		c->first[node] = m;
	}
	return 0;
}

static int64_t message_elements(const struct classes *c, int from, int to)
{
	return c->class[c->by_sender ? from : to].elements;
}

/* What a message between nodes takes, for each pair of classes. */
static void cost_pairs(struct classes *c)
{
	for (int a = 0; a < c->count; a++)
		for (int b = 0; b < c->count; b++) {
			int64_t elements = message_elements(c, a, b);
			for (int k = 0; k < 4; k++) {
				int from = c->class[a].member[k / 2], to = c->class[b].member[k % 2];
				if (from < 0 || to < 0 || node_of(c, from) == node_of(c, to) || elements == 0)
					continue;
				c->seconds[a][b] = hspmd_cost_message(c->r, c->members[from], c->members[to], elements);
				c->occupied[a][b] = c->seconds[a][b] - hspmd_cost_message(c->r, c->members[from], c->members[to], 0);
				break;
			}
		}
}

/* The messages of one member to and from members on other nodes. */
static void book_across(const struct classes *c, int member, double *network_busy)
{
	const struct resolver *r = c->r;
	int a = c->of[member], node = node_of(c, member), device = c->members[member];
	double rate = r->network[node] / (double)r->element_bytes, *out = r->busy, *in = r->busy + r->device_count;
	for (int b = 0; b < c->count; b++) {
		double times = c->messages * (c->class[b].count - c->there[node * c->count + b]);
		out[device] += times * c->seconds[a][b];
		in[device] += times * c->seconds[b][a];
		network_busy[node] += times * (rate > 0 ? (double)message_elements(c, a, b) / rate : c->occupied[a][b]);
		network_busy[r->node_count + node] += times * (rate > 0 ? (double)message_elements(c, b, a) / rate : c->occupied[b][a]);
	}
}

/* The messages of one member to members on its own node. */
static void book_within(const struct classes *c, int member)
{
	const struct resolver *r = c->r;
	int from = c->members[member];
	for (int m = c->first[node_of(c, member)]; m >= 0; m = c->next[m]) {
		int64_t elements = message_elements(c, c->of[member], c->of[m]);
		if (m == member || elements == 0)
			continue;
		double t = c->messages * hspmd_cost_message(r, from, c->members[m], elements);
		r->busy[from] += t;
		r->busy[r->device_count + c->members[m]] += t;
	}
}

int hspmd_book_classes(struct resolver *r, const struct hspmd_comm_step *step, const int64_t *elements, bool by_sender, int messages,
                       double *network_busy)
{
	const struct hspmd_link_cost *cost = r->cost;
	/* Without `node`, links within a node would count as links between nodes. */
	if (step->member_count < FEWEST_MEMBERS || (cost && cost->seconds && (!cost->device_class || !cost->node)))
		return 1;
	struct classes c = {
		.r = r, .members = step->members, .member_count = step->member_count, .by_sender = by_sender, .messages = messages
	};
	int status = find_classes(&c, elements);
	if (status)
		return status;
	cost_pairs(&c);
	for (int m = 0; m < c.member_count; m++) {
		book_across(&c, m, network_busy);
		book_within(&c, m);
	}
	return 0;
}
