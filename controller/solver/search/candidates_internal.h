/* SPDX-License-Identifier: Apache-2.0 */
/* The state in which candidates are made (candidates.c). Private to the search. */
#ifndef HSPMD_SEARCH_CANDIDATES_INTERNAL_H
#define HSPMD_SEARCH_CANDIDATES_INTERNAL_H

#include "controller/solver/search/search_internal.h"

/* A sequence that is tried, and what comes of it. */
struct tried {
	struct hspmd_stage_sequence sequence;
	int use[HSPMD_DEVICE_CLASSES_MAX];
	struct hspmd_layer_copies copies;
	bool useless, known, memory_bound, lasting; /* lasting: the partitions are the same if there is more memory */
	int count;
	struct hspmd_pipeline_partition found[HSPMD_MEMO_PARTITIONS];
};

struct builder {
	struct hspmd_search *s;
	struct hspmd_submesh_tables *t;
	struct hspmd_layer_copies copies;
	int max_micro_batches; /* most micro-batches that a pipeline can run */
	struct hspmd_candidates *out;
	int chosen[HSPMD_SUBMESHES_MAX]; /* how many of each submesh are chosen */
	int use[HSPMD_DEVICE_CLASSES_MAX];
	int stages, sequences, sequences_max;
	int useless;                       /* sequences that no plan needs, and that were not looked at any further */
	double fair;                       /* micro-batches per device */
	struct hspmd_partition_memo *memo; /* NULL: none */
	int waiting_count, together;       /* sequences that have not been looked at; how many are looked at together */
	struct tried *waiting;
	struct hspmd_submesh_tables **views; /* of t, per thread; NULL: there is one thread */
	bool short_of_memory;
};

/* candidate_sequences.c: a sequence that uses b->use for b->copies waits to be looked at. */
void hspmd_candidates_try(struct builder *b, const struct hspmd_stage_sequence *sequence);
/* Look at the sequences that wait, on all threads, and keep what is found in their order. */
void hspmd_candidates_look(struct builder *b);

#endif
