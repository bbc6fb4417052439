/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/update_groups.h"

#include <stdlib.h>

#include "common/alloc.h"

#define LEAST_BYTES ((size_t)16 << 20) /* of parameters in a group: enough to be worth a launch */

static size_t least_bytes(void)
{
	const char *wanted = getenv("HSPMD_CUDA_BESIDE");
	return wanted ? strtoull(wanted, NULL, 10) : LEAST_BYTES;
}

/* Bytes of the fixed arena that an update reads or writes. */
struct range {
	size_t begin, end, update; /* update: its index among the updates */
	size_t reach;              /* the last end of this range and all before it, in order */
};

struct order {
	size_t instruction, first, bytes; /* first: the first instruction of the passes that uses its memory */
};

static int by_begin(const void *a, const void *b)
{
	const struct range *x = a, *y = b;
	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static int by_first_use(const void *a, const void *b)
{
	const struct order *x = a, *y = b;
	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return x->instruction < y->instruction ? -1 : x->instruction > y->instruction;
}

static bool add_range(const struct hspmd_program *p, int slot, size_t update, struct range *ranges, size_t *count)
{
	if (slot < 0)
		return true;
	const struct hspmd_slot *s = &p->slots[slot];
	if (s->memory != HSPMD_ARENA_FIXED)
		return s->memory == HSPMD_ARENA_HOST; /* no pass uses it */
	ranges[(*count)++] = (struct range){ .begin = s->offset, .end = s->offset + p->slot_types[s->slot_type].bytes, .update = update };
	return true;
}

/* Notes the use of a slot by instruction `at` for all updates of the same memory. Several parameters may share none of it, but a copy and a
 * parameter may be one slot, and gradients may be parts of one buffer. */
static void see(const struct hspmd_program *p, int slot, size_t at, const struct range *ranges, size_t count, struct order *orders)
{
	if (slot < 0 || p->slots[slot].memory != HSPMD_ARENA_FIXED)
		return;
	size_t begin = p->slots[slot].offset, end = begin + p->slot_types[p->slots[slot].slot_type].bytes, low = 0, high = count;
	while (low < high) { /* the first range that begins at or behind `begin` */
		size_t middle = (low + high) / 2;
		if (ranges[middle].begin < begin)
			low = middle + 1;
		else
			high = middle;
	}
	while (low > 0 && ranges[low - 1].reach > begin)
		low--;
	for (; low < count && ranges[low].begin < end; low++)
		if (ranges[low].end > begin && at < orders[ranges[low].update].first)
			orders[ranges[low].update].first = at;
}

static void see_all(const struct hspmd_program *p, const struct range *ranges, size_t count, struct order *orders)
{
	for (size_t i = 0, at = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		at = in->joins ? at : i; /* when it runs */
		for (int k = 0; k < in->input_count; k++)
			see(p, in->in[k], at, ranges, count, orders);
		for (int k = 0; k < in->output_count; k++)
			see(p, in->out[k], at, ranges, count, orders);
	}
}

/* Cuts the updates, in their order, into groups. */
static void cut(const struct hspmd_program *p, struct hspmd_update_groups *g, const struct order *orders)
{
	size_t all = 0, least, wanted = least_bytes(), bytes = 0;
	for (size_t u = 0; u < g->count; u++)
		all += orders[u].bytes;
	least = all / (HSPMD_DEVICE_GROUPS - 1) + 1;
	least = least > wanted ? least : wanted;
	for (size_t u = 0; u < g->count; u++) {
		g->update[u] = orders[u].instruction;
		if (!u || bytes >= least) {
			g->begin[g->groups++] = u;
			bytes = 0;
		}
		bytes += orders[u].bytes;
		for (size_t i = orders[u].first; i < p->vote; i++) {
			if (g->need[i] >= g->groups)
				break;
			g->need[i] = (signed char)g->groups;
		}
	}
	g->begin[g->groups] = g->count;
}

static bool is_possible(const struct hspmd_program *p, const struct hspmd_device *dev)
{
	if (!dev->ops->run_beside || !least_bytes())
		return false;
	for (size_t i = p->vote; i < p->instruction_count; i++)
		if (p->instructions[i].kind == HSPMD_INSTRUCTION_COMM)
			return false;
	return true;
}

static bool find_order(const struct hspmd_program *p, struct order *orders, struct range *ranges, size_t *updates)
{
	size_t count = 0;
	for (size_t i = p->vote; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_UPDATE)
			continue;
		bool fixed = add_range(p, in->in[0], *updates, ranges, &count);
		for (int k = 0; k < in->output_count; k++)
			fixed &= add_range(p, in->out[k], *updates, ranges, &count);
		if (!fixed)
			return false;
		orders[(*updates)++] = (struct order){ i, p->vote, p->slot_types[p->slots[in->out[0]].slot_type].bytes };
	}
	qsort(ranges, count, sizeof *ranges, by_begin);
	for (size_t r = 0, reach = 0; r < count; r++)
		ranges[r].reach = reach = ranges[r].end > reach ? ranges[r].end : reach;
	see_all(p, ranges, count, orders);
	qsort(orders, *updates, sizeof *orders, by_first_use);
	return *updates > 0;
}

struct hspmd_update_groups *hspmd_update_groups_build(const struct hspmd_program *p, const struct hspmd_device *dev)
{
	size_t most = p->instruction_count - p->vote;
	if (!is_possible(p, dev))
		return NULL;
	struct hspmd_update_groups *g = calloc(1, sizeof *g);
	struct order *orders = hspmd_calloc(most + 1, sizeof *orders);
	struct range *ranges = hspmd_calloc(most * (1 + HSPMD_OP_MAX_IO) + 1, sizeof *ranges);
	if (g) {
		g->update = hspmd_calloc(most + 1, sizeof *g->update);
		g->begin = hspmd_calloc(HSPMD_DEVICE_GROUPS + 1, sizeof *g->begin);
		g->need = hspmd_calloc(p->vote + 1, sizeof *g->need);
	}
	bool made = g && orders && ranges && g->update && g->begin && g->need && find_order(p, orders, ranges, &g->count);
	if (made)
		cut(p, g, orders);
	free(orders);
	free(ranges);
	if (made)
		return g;
	hspmd_update_groups_destroy(g);
	return NULL;
}

void hspmd_update_groups_destroy(struct hspmd_update_groups *g)
{
	if (!g)
		return;
	free(g->update);
	free(g->begin);
	free(g->need);
	free(g);
}
