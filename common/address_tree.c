/* SPDX-License-Identifier: Apache-2.0 */
#include "common/address_tree.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

/* Members, sorted by node and then by number. */
struct entry {
	const char *address;
	size_t node_bytes;
	int member;
};

static int compare_nodes(const struct entry *a, const struct entry *b)
{
	size_t common = a->node_bytes < b->node_bytes ? a->node_bytes : b->node_bytes;
	int order = memcmp(a->address, b->address, common);
	return order ? order : (a->node_bytes > b->node_bytes) - (a->node_bytes < b->node_bytes);
}

static int compare(const void *x, const void *y)
{
	const struct entry *a = x, *b = y;
	int order = compare_nodes(a, b);
	return order ? order : a->member - b->member;
}

int hspmd_address_tree_create(struct hspmd_address_tree *t, const char *const *member, int count, struct hspmd_error *err)
{
	size_t n = (size_t)count;
	struct entry *sorted = hspmd_calloc(n, sizeof *sorted);
	*t = (struct hspmd_address_tree){ .members = count };
	t->node = hspmd_calloc(n, sizeof *t->node);
	t->leader = hspmd_calloc(n, sizeof *t->leader);
	t->next = hspmd_calloc(n, sizeof *t->next);
	int *first = hspmd_calloc(n, sizeof *first); /* by member: the first of its node */
	if (!sorted || !t->node || !t->leader || !t->next || !first) {
		free(sorted);
		free(first);
		hspmd_address_tree_clear(t);
		return hspmd_fail_memory(err, "finding the way of addresses");
	}
	for (int i = 0; i < count; i++) {
		const char *colon = strrchr(member[i], ':');
		sorted[i] = (struct entry){ member[i], colon ? (size_t)(colon - member[i]) : strlen(member[i]), i };
	}
	qsort(sorted, n, sizeof *sorted, compare);
	for (int i = 0; i < count; i++) {
		bool follows = i && !compare_nodes(&sorted[i - 1], &sorted[i]);
		first[sorted[i].member] = follows ? first[sorted[i - 1].member] : sorted[i].member;
		t->next[sorted[i].member] = -1;
		if (follows)
			t->next[sorted[i - 1].member] = sorted[i].member;
	}
	for (int i = 0; i < count; i++) {
		if (first[i] == i)
			t->leader[t->nodes] = i;
		t->node[i] = first[i] == i ? t->nodes++ : t->node[first[i]];
	}
	free(sorted);
	free(first);
	return 0;
}

void hspmd_address_tree_clear(struct hspmd_address_tree *t)
{
	free(t->node);
	free(t->leader);
	free(t->next);
	memset(t, 0, sizeof *t);
}

int hspmd_address_tree_neighbours(const struct hspmd_address_tree *t, int node, int leader[1 + HSPMD_ADDRESS_TREE_FANOUT])
{
	int count = 0;
	if (node)
		leader[count++] = t->leader[(node - 1) / HSPMD_ADDRESS_TREE_FANOUT];
	for (int k = 1; k <= HSPMD_ADDRESS_TREE_FANOUT && HSPMD_ADDRESS_TREE_FANOUT * node + k < t->nodes; k++)
		leader[count++] = t->leader[HSPMD_ADDRESS_TREE_FANOUT * node + k];
	return count;
}
