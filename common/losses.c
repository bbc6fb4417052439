/* SPDX-License-Identifier: Apache-2.0 */
#include "common/losses.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

static bool takes_part(const bool *part, int node)
{
	return !part || part[node];
}

int hspmd_losses_keep(const struct hspmd_cluster *c, const bool *part, int least)
{
	int own = 0, kept = 0;
	for (int n = 0; n < c->node_count; n++)
		least -= c->nodes[n].member != 0;
	for (int n = 0; n < c->node_count; n++) {
		if (c->nodes[n].member)
			continue;
		if (own++ >= (least > 1 ? least : 1))
			break;
		kept += takes_part(part, n);
	}
	return kept;
}

static bool same_rack(const struct hspmd_node *a, const struct hspmd_node *b)
{
	return a->rack && b->rack && !strcmp(a->rack, b->rack);
}

static bool same_member(const struct hspmd_node *a, const struct hspmd_node *b)
{
	return a->member && a->member == b->member;
}

/* Numbers the groups and returns their count. 0 if one group contains all nodes that take part: nothing survives its loss. */
static int number(const struct hspmd_losses *l, const struct hspmd_cluster *c,
                  bool (*same)(const struct hspmd_node *, const struct hspmd_node *), int *of)
{
	int groups = 0, first = -1;
	bool all = true;
	for (int n = 0; n < l->nodes; n++)
		of[n] = -1;
	for (int n = 0; n < l->nodes; n++) {
		if (l->place[n] == HSPMD_LOSSES_ABSENT)
			continue;
		first = first < 0 ? n : first;
		all = all && same(&c->nodes[n], &c->nodes[first]);
		if (of[n] >= 0 || !same(&c->nodes[n], &c->nodes[n]))
			continue;
		for (int k = n; k < l->nodes; k++)
			if (l->place[k] != HSPMD_LOSSES_ABSENT && same(&c->nodes[n], &c->nodes[k]))
				of[k] = groups;
		groups++;
	}
	for (int n = 0; all && n < l->nodes; n++)
		of[n] = -1;
	return all ? 0 : groups;
}

int hspmd_losses_make(const struct hspmd_cluster *c, const bool *part, int copies, int keep, struct hspmd_losses *l,
                      struct hspmd_error *err)
{
	int own = 0;
	*l = (struct hspmd_losses){ .nodes = c->node_count, .copies = copies, .keep = copies < 1 ? INT_MAX : keep };
	l->place = hspmd_calloc((size_t)c->node_count, sizeof *l->place);
	l->rack = hspmd_calloc((size_t)c->node_count, sizeof *l->rack);
	l->member = hspmd_calloc((size_t)c->node_count, sizeof *l->member);
	if (!l->place || !l->rack || !l->member) {
		hspmd_losses_free(l);
		return hspmd_fail_memory(err, "looking at which nodes go together");
	}
	for (int n = 0; n < c->node_count; n++) {
		bool there = takes_part(part, n);
		l->place[n] = !there ? HSPMD_LOSSES_ABSENT : c->nodes[n].member ? HSPMD_LOSSES_MEMBER : own++;
		l->rack[n] = l->member[n] = -1;
		l->present += there;
	}
	if (l->keep < 1 && own == l->present) /* then no other node is left */
		l->keep = 1;
	if (copies < 1)
		return 0;
	l->racks = number(l, c, same_rack, l->rack);
	l->members = number(l, c, same_member, l->member);
	return 0;
}

void hspmd_losses_free(struct hspmd_losses *l)
{
	free(l->place);
	free(l->rack);
	free(l->member);
	*l = (struct hspmd_losses){ 0 };
}

long hspmd_losses_lack(const struct hspmd_losses *l, const int *nodes, int count)
{
	long lack = 0;
	int wanted = l->copies < 1 ? 1 : l->copies + 1 < l->present ? l->copies + 1 : l->present, lowest = INT_MAX;
	bool rack = count > 0 && l->rack[nodes[0]] >= 0, member = count > 0 && l->member[nodes[0]] >= 0;
	for (int i = 0; i < count; i++) {
		lowest = l->place[nodes[i]] < lowest ? l->place[nodes[i]] : lowest;
		rack = rack && l->rack[nodes[i]] == l->rack[nodes[0]];
		member = member && l->member[nodes[i]] == l->member[nodes[0]];
	}
	lack += count < wanted ? (wanted - count) * HSPMD_LOSSES_ONE : 0;
	lack += (rack ? HSPMD_LOSSES_ONE : 0) + (member ? HSPMD_LOSSES_ONE : 0);
	if (count && lowest >= l->keep)
		lack += HSPMD_LOSSES_ONE + (lowest - l->keep);
	return lack;
}

int hspmd_losses_count(const struct hspmd_losses *l)
{
	return 1 + l->racks + l->members;
}

bool hspmd_losses_takes(const struct hspmd_losses *l, int i, int node)
{
	if (i == 0)
		return l->place[node] >= l->keep;
	return i <= l->racks ? l->rack[node] == i - 1 : l->member[node] == i - 1 - l->racks;
}
