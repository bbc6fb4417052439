/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table with open addressing; the partitions lie in an array in the order of their addition. */
#include "controller/solver/search/partition_memo.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/fnv.h"

#define SLOTS (1 << 16)           /* of the table */
#define SEQUENCES_MAX (SLOTS / 2) /* those beyond are not kept */
#define APART 7919                /* slots between a sequence's places for different numbers of pipelines */

struct slot {
	int first, count; /* in partitions; count 0: free */
	int pipelines;
};

struct hspmd_partition_memo {
	struct slot *slots;
	int sequences;
	size_t count, capacity;
	struct hspmd_pipeline_partition *partitions;
};

struct hspmd_partition_memo *hspmd_partition_memo_new(void)
{
	struct hspmd_partition_memo *m = hspmd_calloc(1, sizeof *m);
	if (m && !(m->slots = hspmd_calloc(SLOTS, sizeof *m->slots))) {
		free(m);
		return NULL;
	}
	return m;
}

void hspmd_partition_memo_destroy(struct hspmd_partition_memo *m)
{
	if (!m)
		return;
	free(m->slots);
	free(m->partitions);
	free(m);
}

static size_t hash_of(const struct hspmd_stage_sequence *sequence)
{
	return (size_t)hspmd_fnv1a(sequence->submesh, (size_t)sequence->stages);
}

/* The slot of a sequence and a number of pipelines, or the free one where it belongs. */
static struct slot *slot_at(const struct hspmd_partition_memo *m, const struct hspmd_stage_sequence *sequence, size_t hash, int pipelines)
{
	size_t stages = (size_t)sequence->stages, at = (hash + (size_t)pipelines * APART) % SLOTS;
	for (;; at = (at + 1) % SLOTS) {
		struct slot *slot = &m->slots[at];
		const struct hspmd_stage_sequence *own = slot->count ? &m->partitions[slot->first].sequence : NULL;
		if (!own ||
		    (slot->pipelines == pipelines && own->stages == sequence->stages && !memcmp(own->submesh, sequence->submesh, stages)))
			return slot;
	}
}

static struct slot *slot_of(const struct hspmd_partition_memo *m, const struct hspmd_stage_sequence *sequence, int pipelines)
{
	return slot_at(m, sequence, hash_of(sequence), pipelines);
}

const struct hspmd_pipeline_partition *hspmd_partition_memo_find(const struct hspmd_partition_memo *m,
                                                                 const struct hspmd_stage_sequence *sequence, int pipelines, int *count)
{
	const struct slot *slot = slot_of(m, sequence, pipelines);
	*count = slot->count;
	return slot->count ? &m->partitions[slot->first] : NULL;
}

int hspmd_partition_memo_add(struct hspmd_partition_memo *m, const struct hspmd_pipeline_partition *partitions, int pipelines, int count)
{
	if (m->sequences == SEQUENCES_MAX)
		return 0;
	for (int i = 0; i < count; i++)
		if (hspmd_array_grow(&m->partitions, &m->capacity, m->count + (size_t)i, sizeof *m->partitions))
			return -1;
	struct slot *slot = slot_of(m, &partitions[0].sequence, pipelines);
	*slot = (struct slot){ (int)m->count, count, pipelines };
	memcpy(&m->partitions[m->count], partitions, (size_t)count * sizeof *partitions);
	m->count += (size_t)count;
	m->sequences++;
	return 0;
}

bool hspmd_partition_memo_is_full(const struct hspmd_partition_memo *m)
{
	return m->sequences == SEQUENCES_MAX;
}

const struct hspmd_pipeline_partition *hspmd_partition_memo_of(const struct hspmd_partition_memo *m,
                                                               const struct hspmd_stage_sequence *sequence, int pipelines)
{
	size_t hash = hash_of(sequence);
	const struct slot *last = slot_at(m, sequence, hash, HSPMD_MEMO_UNLIMITED);
	const struct hspmd_pipeline_partition *known = last->count ? &m->partitions[last->first] : NULL;
	if (known && known->least <= pipelines && pipelines <= known->most)
		return known;
	const struct slot *own = slot_at(m, sequence, hash, pipelines);
	return own->count ? &m->partitions[own->first] : NULL;
}

int hspmd_partition_memo_add_last(struct hspmd_partition_memo *m, const struct hspmd_pipeline_partition *partition, int pipelines)
{
	size_t before = m->count;
	if (hspmd_partition_memo_add(m, partition, pipelines, 1))
		return -1;
	struct slot *last = slot_of(m, &partition->sequence, HSPMD_MEMO_UNLIMITED);
	if (m->count > before && (last->count || m->sequences < SEQUENCES_MAX)) {
		m->sequences += !last->count;
		*last = (struct slot){ (int)before, 1, HSPMD_MEMO_UNLIMITED };
	}
	return 0;
}
