/* SPDX-License-Identifier: Apache-2.0 */
/* How many rows choose experts: one formula for the resolver and the solver. */
#ifndef HSPMD_FORMAT_EXPERT_ROWS_H
#define HSPMD_FORMAT_EXPERT_ROWS_H

#include <stdint.h>

/* The share of all rows that choose one of `experts` experts of `count`, if rows choose `per_token` different ones and all sets of them are
 * equally likely. */
double hspmd_expert_row_share(int64_t experts, int64_t count, int per_token);

#endif
