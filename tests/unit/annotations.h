/* SPDX-License-Identifier: Apache-2.0 */
/* All annotations of a tensor on a few devices, for exhaustive tests. */
#ifndef HSPMD_TEST_ANNOTATIONS_H
#define HSPMD_TEST_ANNOTATIONS_H

#include "runtime/annotation/annotation.h"

struct annotation_list {
	size_t count, capacity;
	struct hspmd_annotation **item;
};

/* All unions and states over devices 0 .. devices - 1 that are legal for the shape: with even splits in unit 1, and each also in a variant
 * with random weights or units (a pure function of seed). `units[d]`: the other unit to try along dimension d, 0: none. */
void annotation_list_fill(struct annotation_list *list, const struct hspmd_shape *shape, int devices, const int64_t *units, unsigned seed);
void annotation_list_free(struct annotation_list *list);

#endif
