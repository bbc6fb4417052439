/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sharding/spmd_internal.h"

#include "common/alloc.h"

int hspmd_spmd_add_value(struct hspmd_spmd_builder *p, int tensor, int stage, struct hspmd_annotation *annotation)
{
	struct hspmd_spmd *s = p->s;
	if (hspmd_array_grow(&s->values, &s->value_capacity, s->value_count, sizeof *s->values)) {
		hspmd_annotation_destroy(annotation);
		return hspmd_fail_memory(p->err, "annotating");
	}
	s->values[s->value_count] =
	        (struct hspmd_value){ .tensor = tensor, .stage = stage, .annotation = annotation, .choice = -1, .same_as = -1, .next = -1 };
	int *link = &s->first_value[tensor];
	while (*link >= 0)
		link = &s->values[*link].next;
	*link = (int)s->value_count;
	return (int)s->value_count++;
}

struct hspmd_spmd_node *hspmd_spmd_add_node(struct hspmd_spmd_builder *p, int op, int stage, int layer, bool backward)
{
	struct hspmd_spmd *s = p->s;
	if (hspmd_array_grow(&s->nodes, &s->node_capacity, s->node_count, sizeof *s->nodes)) {
		hspmd_fail_memory(p->err, "annotating");
		return NULL;
	}
	struct hspmd_spmd_node *n = &s->nodes[s->node_count++];
	*n = (struct hspmd_spmd_node){ .op = op, .stage = stage, .layer = layer, .backward = backward };
	return n;
}
