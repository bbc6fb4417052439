/* SPDX-License-Identifier: Apache-2.0 */
/* The members of drawn generations exchange their addresses along the tree: each begins with what the controller would tell it, and ends
 * with the address of everybody, over every transport; if a member is missing or sends nonsense, nobody hangs or believes it. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/generation/address_exchange.h"
#include "runtime/generation/tree_messages.h"
#include "tests/unit/draw.h"

#define MEMBERS 90
#define LIMIT_S 60.0
#define CASES 400
#define LIST_TAG (HSPMD_TAG_LIMIT - 1024 + 1) /* as in tree_messages.c */

static uint64_t seed;

static int pick(int n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- drawn generations: members in any order, on nodes with few or many of them */

struct world;

struct member {
	struct world *w;
	pthread_t thread;
	int rank;
	struct hspmd_transport *t;
	struct hspmd_address own;
	struct hspmd_address_list list;
	bool missing, lies; /* it takes no part; it sends a damaged list */
	int rv;
	struct hspmd_error err;
};

struct world {
	const struct hspmd_transport_ops *ops;
	int members;
	char name[MEMBERS][32];
	const char *names[MEMBERS];
	struct hspmd_address_tree tree;
	struct member member[MEMBERS];
	atomic_int abort;
	uint64_t bytes, most; /* of a message to all; what members accept */
};

static void draw_world(struct world *w, int nodes, int devices)
{
	struct hspmd_error err;
	memset(w, 0, sizeof *w);
	for (int n = 0; n < nodes; n++)
		for (int d = 0; d < devices && w->members < MEMBERS; d++)
			if (!d || pick(4))
				snprintf(w->name[w->members++], sizeof *w->name, "n%d:%d", n, d);
	for (int i = w->members - 1; i > 0 && pick(5); i--) { /* ranks of a node need not be neighbours */
		char other[32];
		int k = pick(i + 1);
		memcpy(other, w->name[i], sizeof other);
		memcpy(w->name[i], w->name[k], sizeof other);
		memcpy(w->name[k], other, sizeof other);
	}
	for (int i = 0; i < w->members; i++)
		w->names[i] = w->name[i];
	assert_int_equal(hspmd_address_tree_create(&w->tree, w->names, w->members, &err), 0);
}

static bool same_node(const struct world *w, int a, int b)
{
	return !strncmp(w->name[a], w->name[b], (size_t)(strchr(w->name[a], ':') - w->name[a]) + 1);
}

/* Nodes are numbered as they occur, each is led by its first member, and neighbours know of each other. */
static void check_tree(const struct world *w)
{
	const struct hspmd_address_tree *t = &w->tree;
	bool seen[MEMBERS] = { false };
	int nodes = 0;
	for (int i = 0; i < w->members; i++) {
		bool first = true;
		for (int k = 0; k < i; k++)
			first &= !same_node(w, k, i);
		if (first)
			assert_int_equal(t->leader[nodes++], i);
		for (int k = 0; k < w->members; k++)
			assert_int_equal(t->node[k] == t->node[i], same_node(w, k, i));
	}
	assert_int_equal(t->nodes, nodes);
	for (int n = 0; n < nodes; n++) {
		int near[1 + HSPMD_ADDRESS_TREE_FANOUT], back[1 + HSPMD_ADDRESS_TREE_FANOUT];
		int count = hspmd_address_tree_neighbours(t, n, near);
		for (int m = t->leader[n]; m >= 0; m = t->next[m]) {
			assert_false(seen[m]);
			seen[m] = true;
			assert_int_equal(t->node[m], n);
		}
		for (int i = 0; i < count; i++) {
			int more = hspmd_address_tree_neighbours(t, t->node[near[i]], back), found = 0;
			for (int k = 0; k < more; k++)
				found += back[k] == t->leader[n];
			assert_int_equal(found, 1);
		}
		assert_int_equal(n > 0, count > 0 && t->node[near[0]] < n);
	}
	for (int i = 0; i < w->members; i++)
		assert_true(seen[i]);
}

/* ---- what a member does */

static void *copy_of(const struct hspmd_address *a)
{
	void *copy = malloc(a->size);
	memcpy(copy, a->data, a->size);
	return copy;
}

/* What the controller tells. */
static int learn(struct member *me, int rank)
{
	const struct hspmd_address *a = &me->w->member[rank].own;
	return hspmd_address_list_add(&me->list, rank, copy_of(a), a->size, &me->err);
}

/* In place of the list of its part of the tree, a member sends one that is cut, or names a rank that does not exist. */
static int lie(struct member *me, int parent)
{
	static _Thread_local uint32_t kinds[3][3] = { { 0, 1000, 7 }, { 1u << 30, 4, 7 }, { 0, 0, 7 } }, *list;
	list = kinds[me->rank % 3];
	static _Thread_local uint64_t size = 12;
	struct hspmd_request *r[2] = { NULL };
	if (!me->t->ops->send(me->t, parent, LIST_TAG - 1, &size, sizeof size, &r[0], &me->err) &&
	    !me->t->ops->send(me->t, parent, LIST_TAG, list, 12, &r[1], &me->err))
		hspmd_transport_wait(me->t, r, 2, &me->err);
	return -1;
}

/* Pass a number around all members, whose addresses are known now. */
static int go_round(struct member *me)
{
	struct world *w = me->w;
	int to = (me->rank + 7) % w->members, from = (me->rank + 7 * w->members - 7) % w->members, mine = me->rank, theirs = -1;
	struct hspmd_request *r[2] = { NULL };
	if (me->t->ops->connect(me->t, me->list.of, &me->err) ||
	    me->t->ops->receive(me->t, from, 5, &theirs, sizeof theirs, &r[0], &me->err) ||
	    me->t->ops->send(me->t, to, 5, &mine, sizeof mine, &r[1], &me->err) || hspmd_transport_wait(me->t, r, 2, &me->err))
		return -1;
	return theirs == from ? 0 : hspmd_fail(&me->err, "%d came where %d was expected", theirs, from);
}

static void *take_part(void *context)
{
	struct member *me = context;
	struct world *w = me->w;
	int near[1 + HSPMD_ADDRESS_TREE_FANOUT], node = w->tree.node[me->rank];
	int count = hspmd_address_tree_neighbours(&w->tree, node, near);
	me->rv = hspmd_address_list_create(&me->list, w->members, &me->err);
	for (int m = w->tree.leader[node]; !me->rv && m >= 0; m = w->tree.next[m])
		me->rv = learn(me, m);
	for (int i = 0; !me->rv && i < count; i++)
		me->rv = learn(me, near[i]);
	if (!me->rv && !me->missing)
		me->rv = me->t->ops->connect(me->t, me->list.of, &me->err);
	if (me->rv || me->missing)
		return NULL;
	me->rv = me->lies ? lie(me, near[0]) : hspmd_address_exchange(me->t, &w->tree, &me->list, &me->err);
	if (me->rv)
		atomic_store(&w->abort, 1); /* as the controller would tell all */
	return NULL;
}

static void *use(void *context)
{
	struct member *me = context;
	me->rv = go_round(me);
	return NULL;
}

/* The first member's message, of a size that is drawn, comes to all. */
static char byte_of(uint64_t i, uint64_t size)
{
	return (char)(i * 31 + size);
}

static void *broadcast(void *context)
{
	struct member *me = context;
	struct hspmd_tree_message *own = me->rank ? NULL : hspmd_tree_message_create(me->w->bytes, &me->err);
	for (uint64_t i = 0; own && i < own->size; i++)
		own->bytes[i] = byte_of(i, own->size);
	me->rv = -1;
	struct hspmd_tree_message *m = hspmd_tree_broadcast(me->t, &me->w->tree, own, me->w->most, &me->err);
	if (m && m->size == me->w->bytes)
		me->rv = 0;
	for (uint64_t i = 0; m && i < m->size; i++)
		me->rv |= m->bytes[i] != byte_of(i, m->size);
	if (!m)
		atomic_store(&me->w->abort, 1);
	free(m);
	return NULL;
}

static void all(struct world *w, void *(*what)(void *))
{
	for (int i = 0; i < w->members; i++)
		assert_int_equal(pthread_create(&w->member[i].thread, NULL, what, &w->member[i]), 0);
	for (int i = 0; i < w->members; i++)
		pthread_join(w->member[i].thread, NULL);
}

static void open_world(struct world *w, const struct hspmd_transport_ops *ops, double limit_s)
{
	w->ops = ops;
	for (int i = 0; i < w->members; i++) {
		struct member *me = &w->member[i];
		struct hspmd_transport_options o = { .rank = i, .size = w->members, .abort = &w->abort, .timeout_s = limit_s };
		me->w = w;
		me->rank = i;
		assert_int_equal(ops->open(&o, &me->t, &me->err), 0);
		assert_int_equal(ops->address(me->t, &me->own, &me->err), 0);
	}
}

static void close_world(struct world *w)
{
	for (int i = 0; i < w->members; i++) {
		if (w->member[i].t)
			w->ops->close(w->member[i].t);
		free(w->member[i].own.data);
		hspmd_address_list_clear(&w->member[i].list);
	}
	hspmd_address_tree_clear(&w->tree);
}

static bool knows_all(const struct member *me)
{
	for (int r = 0; r < me->w->members; r++) {
		const struct hspmd_address *a = &me->list.of[r], *b = &me->w->member[r].own;
		if (a->size != b->size || memcmp(a->data, b->data, a->size) != 0)
			return false;
	}
	return true;
}

static const struct hspmd_transport_ops *transport(unsigned i)
{
	static const char *const names[] = { "memory", "socket", "memory", "ucx" };
	const struct hspmd_transport_ops *ops = hspmd_transport_find(names[i % 4], NULL);
	return ops ? ops : &hspmd_transport_memory;
}

/* ---- tests */

static void test_exchange(void **state)
{
	(void)state;
	unsigned few = draw_count(40, CASES), first = draw_first(few, CASES);
	for (unsigned c = first; c < first + few; c++) {
		static struct world w;
		seed = c + 1;
		draw_world(&w, 1 + pick(c % 4 == 3 ? 5 : 40), 1 + pick(4));
		check_tree(&w);
		open_world(&w, transport(c), LIMIT_S);
		all(&w, take_part);
		for (int i = 0; i < w.members; i++)
			if (w.member[i].rv || !knows_all(&w.member[i]))
				fail_msg("case %u, %s: member %d of %d: %s", c, w.ops->name, i, w.members, w.member[i].err.text);
		all(&w, use);
		for (int i = 0; i < w.members; i++)
			if (w.member[i].rv)
				fail_msg("case %u, %s: member %d of %d: %s", c, w.ops->name, i, w.members, w.member[i].err.text);
		w.bytes = 1 + (uint64_t)pick(c % 8 ? 2000 : 2000000);
		w.most = w.bytes;
		all(&w, broadcast);
		for (int i = 0; i < w.members; i++)
			if (w.member[i].rv)
				fail_msg("case %u, %s: message to all: member %d of %d: %s", c, w.ops->name, i, w.members,
				         w.member[i].err.text);
		close_world(&w);
	}
}

/* A message that is longer than members accept ends with an error at those that would get it. */
static void test_too_long(void **state)
{
	(void)state;
	static struct world w;
	seed = 1;
	draw_world(&w, 6, 2);
	open_world(&w, transport(0), LIMIT_S);
	all(&w, take_part);
	all(&w, use);
	w.bytes = 100;
	w.most = 99;
	all(&w, broadcast);
	int told = 0;
	for (int i = 1; i < w.members; i++) {
		assert_int_equal(w.member[i].rv, -1);
		told += strstr(w.member[i].err.text, "100 bytes from rank") != NULL;
	}
	assert_true(told > 0);
	close_world(&w);
}

/* A member that takes no part, or sends nonsense, ends the exchange with an error that names what is wrong. Whoever has succeeded knows
 * all. */
static void test_failures(void **state)
{
	(void)state;
	for (unsigned c = 0; c < 30; c++) {
		static struct world w;
		seed = c + 1;
		draw_world(&w, 3 + pick(12), 1 + pick(3));
		open_world(&w, transport(c & 1), 0.3);
		struct member *bad = &w.member[w.tree.leader[1 + pick(w.tree.nodes - 1)]];
		*(c % 3 ? &bad->missing : &bad->lies) = true;
		if (c % 3 == 2) { /* it has died */
			w.ops->close(bad->t);
			bad->t = NULL;
		}
		all(&w, take_part);
		int failed = 0;
		for (int i = 0; i < w.members; i++) {
			const struct member *me = &w.member[i];
			failed += me != bad && me->rv;
			assert_true(me->rv || me == bad || knows_all(me));
			assert_true(!me->rv || me == bad || me->err.text[0]);
		}
		assert_true(failed > 0);
		close_world(&w);
	}
}

/* A message to somebody whose address is not known is refused. */
static void test_unknown(void **state)
{
	(void)state;
	for (unsigned c = 0; c < 4; c++) {
		static struct world w;
		struct hspmd_request *r;
		seed = c + 1;
		draw_world(&w, 2, 1);
		open_world(&w, transport(c), LIMIT_S);
		struct hspmd_address none[2] = { { 0 } };
		struct member *me = &w.member[0];
		assert_int_equal(w.ops->connect(me->t, none, &me->err), 0);
		assert_int_equal(w.ops->send(me->t, 1, 5, &c, sizeof c, &r, &me->err), -1);
		assert_non_null(strstr(me->err.text, "is not known"));
		close_world(&w);
	}
}

/* Addresses are bounded, and a second address of the same member changes nothing. */
static void test_list(void **state)
{
	(void)state;
	struct hspmd_address_list l;
	struct hspmd_error err;
	assert_int_equal(hspmd_address_list_create(&l, 2, &err), 0);
	assert_int_equal(hspmd_address_list_add(&l, 1, strdup("first"), 6, &err), 0);
	assert_int_equal(hspmd_address_list_add(&l, 1, strdup("other"), 6, &err), 0);
	assert_string_equal(l.of[1].data, "first");
	assert_int_equal(hspmd_address_list_add(&l, 2, strdup("nobody"), 7, &err), -1);
	assert_int_equal(hspmd_address_list_add(&l, -1, strdup("nobody"), 7, &err), -1);
	assert_int_equal(hspmd_address_list_add(&l, 0, strdup(""), 0, &err), -1);
	assert_int_equal(hspmd_address_list_add(&l, 0, calloc(1, 8), HSPMD_ADDRESS_BYTES_MAX + 1, &err), -1);
	hspmd_address_list_clear(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exchange), cmocka_unit_test(test_failures), cmocka_unit_test(test_too_long),
		cmocka_unit_test(test_unknown),  cmocka_unit_test(test_list),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
