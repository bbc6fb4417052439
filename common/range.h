/* SPDX-License-Identifier: Apache-2.0 */
/* "MIN-MAX" or "N" as users write a number of nodes (--hspmd-nodes, HSPMD_NODES). */
#ifndef HSPMD_COMMON_RANGE_H
#define HSPMD_COMMON_RANGE_H

#include "common/error.h"

#define HSPMD_RANGE_MAX 1000000

/* 1 <= min <= max <= HSPMD_RANGE_MAX. 0, or -1 and err; min and max are then unchanged. */
int hspmd_range_parse(const char *text, int *min, int *max, struct hspmd_error *err);

#endif
