/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of samples mixed by weight, in an order that is computed from the weights alone: every HSPMD_BLEND_BLOCK consecutive samples have
 * each set's share (rounded to one sample, and at least one), and within the block a set's samples are spread evenly. The samples of each
 * set come in its own order, one epoch after the other. */
#ifndef HSPMD_INPUT_BLEND_H
#define HSPMD_INPUT_BLEND_H

#include <stdint.h>

#define HSPMD_BLEND_BLOCK 65536

struct hspmd_blend;

/* weights: `count` of them, above 0, in any unit. count: at most HSPMD_BLEND_SETS. NULL: memory. */
#define HSPMD_BLEND_SETS 4096
struct hspmd_blend *hspmd_blend_create(const double *weights, int count);
void hspmd_blend_destroy(struct hspmd_blend *b);
/* The set of sample `number`. *index: how many samples of the set come before it. */
int hspmd_blend_find(const struct hspmd_blend *b, int64_t number, int64_t *index);

#endif
