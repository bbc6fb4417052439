/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of sequences, so that they need not be searched again. Private to the solver. */
#ifndef HSPMD_SEARCH_PARTITION_MEMO_H
#define HSPMD_SEARCH_PARTITION_MEMO_H

#include "controller/solver/search/partition.h"

#define HSPMD_MEMO_PARTITIONS 3 /* most partitions of one sequence */
#define HSPMD_MEMO_UNLIMITED 0  /* instead of a number of pipelines: what memory does not limit, or what was added last */

struct hspmd_partition_memo;

/* Returns NULL if memory runs out. */
struct hspmd_partition_memo *hspmd_partition_memo_new(void);
void hspmd_partition_memo_destroy(struct hspmd_partition_memo *m);

/* The partitions of a sequence in a plan of so many pipelines, on which the memory that is left depends; *count is their number. Returns
 * NULL if it has none. The result is valid until the next addition. */
const struct hspmd_pipeline_partition *hspmd_partition_memo_find(const struct hspmd_partition_memo *m,
                                                                 const struct hspmd_stage_sequence *sequence, int pipelines, int *count);

/* Add `count` partitions of one sequence that is not there yet for so many pipelines. Returns 0, or -1 if memory runs out. */
int hspmd_partition_memo_add(struct hspmd_partition_memo *m, const struct hspmd_pipeline_partition *partitions, int pipelines, int count);

/* Returns true if what is added is no longer kept. */
bool hspmd_partition_memo_is_full(const struct hspmd_partition_memo *m);

/* The partition of a sequence in a plan of so many pipelines: that which was added last by the second of these functions, if it is the same
 * for so many, otherwise the one for this number; NULL: there is none. Valid until the next addition. */
const struct hspmd_pipeline_partition *hspmd_partition_memo_of(const struct hspmd_partition_memo *m,
                                                               const struct hspmd_stage_sequence *sequence, int pipelines);
/* Add the partition of a sequence, which is not there yet for so many pipelines. Returns 0, or -1 if memory runs out. */
int hspmd_partition_memo_add_last(struct hspmd_partition_memo *m, const struct hspmd_pipeline_partition *partition, int pipelines);

#endif
