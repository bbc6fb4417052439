/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates made of sequences: the best partitions of each, unless no plan needs it. */
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/candidates_internal.h"

#define ROUGHLY 2e-3     /* relative precision of a candidate's period */
#define SEQUENCE_NS 20e3 /* about what looking at a sequence takes */
#define FRONT 8          /* candidates kept among those with the same devices */
#define BOUND_ROUNDING 1e-9

static bool same_use(const struct hspmd_pipeline_candidate *c, const int *use)
{
	return !memcmp(c->use, use, sizeof c->use);
}

static bool same_split(const struct hspmd_pipeline_partition *a, const struct hspmd_pipeline_partition *b)
{
	return a->sequence.stages == b->sequence.stages && !memcmp(a->sequence.submesh, b->sequence.submesh, (size_t)a->sequence.stages) &&
	       !memcmp(a->ends, b->ends, (size_t)a->sequence.stages * sizeof *a->ends);
}

/* Micro-batches that the current sequence would run if all devices took equal shares. */
static int fair_share(const struct builder *b)
{
	int devices = 0;
	for (int k = 0; k < b->t->device_classes->count; k++)
		devices += b->use[k];
	int parts = (int)ceil(b->fair * devices);
	return parts < 1 ? 1 : parts < b->max_micro_batches ? parts : b->max_micro_batches;
}

/* A sequence's cost compared with others of the same devices: its seconds for a fair share. */
static double fair_seconds(const struct builder *b, const struct hspmd_pipeline_partition *x)
{
	int parts = fair_share(b);
	return x->fill_drain_s + ((parts < x->max_micro_batches ? parts : x->max_micro_batches) - 1) * x->period_s;
}

static void keep(struct builder *b, const struct hspmd_pipeline_partition *partition)
{
	struct hspmd_candidates *l = b->out;
	int alike = 0, worst = -1;
	double here = fair_seconds(b, partition), worst_here = -1;
	for (int i = l->count - 1; i >= 0 && same_use(&l->candidates[i], b->use); i--) {
		if (same_split(&l->candidates[i].partition, partition))
			return;
		double seconds = fair_seconds(b, &l->candidates[i].partition);
		alike++;
		if (seconds > worst_here) {
			worst_here = seconds;
			worst = i;
		}
	}
	struct hspmd_pipeline_candidate *into;
	if (alike >= FRONT) {
		if (worst_here <= here)
			return;
		into = &l->candidates[worst];
	} else {
		size_t capacity = (size_t)l->capacity;
		if (hspmd_array_grow(&l->candidates, &capacity, (size_t)l->count, sizeof *l->candidates)) {
			b->short_of_memory = true;
			return;
		}
		l->capacity = (int)capacity;
		into = &l->candidates[l->count++];
	}
	into->partition = *partition;
	into->copies = b->copies;
	memcpy(into->use, b->use, sizeof into->use);
	into->rates = 0;
	into->remembered = false;
	for (int s = 0; s < partition->sequence.stages; s++)
		into->rates += b->t->submeshes[partition->sequence.submesh[s]].rate;
}

/* Returns true if no plan that has a pipeline of this sequence is as fast as the best one known: what the pipeline runs at most in that
 * time, and all other devices if they never wait, is less than the batch. The tables assume that devices wait for the slowest of the whole
 * cluster (hspmd_variation). */
static bool is_useless(const struct builder *b, const struct hspmd_stage_sequence *sequence)
{
	const struct hspmd_search *s = b->s;
	int left[HSPMD_DEVICE_CLASSES_MAX];
	if (isinf(s->best_s))
		return false;
	double seconds = s->best_s * (s->migration ? HSPMD_NEAR_ENOUGH : 1) * hspmd_variation(s->costs, s->costs->cluster->device_count, 1);
	for (int k = 0; k < b->t->device_classes->count; k++)
		left[k] = s->available[k] - b->use[k];
	double others = seconds * hspmd_submesh_tables_rate(b->t, left), all = b->max_micro_batches * (1 - BOUND_ROUNDING);
	double compared = all > others ? seconds / ceil(all - others) : INFINITY;
	return floor(seconds / hspmd_partition_least_period(b->t, sequence, compared)) + others < all;
}

/* Keep the partitions of a sequence that are known. */
static void keep_known(struct builder *b, const struct hspmd_stage_sequence *sequence)
{
	int count;
	const struct hspmd_pipeline_partition *known = hspmd_partition_memo_find(b->memo, sequence, HSPMD_MEMO_UNLIMITED, &count);
	for (int i = 0; i < count; i++)
		keep(b, &known[i]);
}

/* Find the partitions of a sequence. Writes nothing but x. */
static void find_partitions(const struct builder *b, struct tried *x)
{
	const struct hspmd_stage_sequence *sequence = &x->sequence;
	struct hspmd_pipeline_partition partition;
	int held = sequence->stages < b->max_micro_batches ? sequence->stages : b->max_micro_batches;
	/* If memory is too small for a full pipeline, it may still run fewer micro-batches: useful if there are few. */
	for (; held > 0 && (held == sequence->stages || b->max_micro_batches <= HSPMD_FEW_MICRO_BATCHES * sequence->stages); held--) {
		int max_micro_batches = held == sequence->stages ? b->max_micro_batches : held;
		if (!hspmd_partition_layers(b->t, sequence, &b->copies, max_micro_batches, ROUGHLY, &partition))
			continue;
		for (int s = 0; s < sequence->stages; s++)
			x->memory_bound = x->memory_bound || partition.way[s] != HSPMD_RECOMPUTE_NONE;
		x->memory_bound = x->memory_bound || held < sequence->stages;
		x->found[x->count++] = partition;
		/* With few micro-batches another partition may be better than the one with the least period: for a fair share, and for
		 * all of them. */
		for (int all = 0; b->out->exhaustive && b->max_micro_batches <= HSPMD_FEW_MICRO_BATCHES * sequence->stages &&
		                  sequence->stages > 1 && all < 2;
		     all++) {
			hspmd_partition_rebalance(b->t, &b->copies, all ? max_micro_batches : fair_share(b), &partition);
			x->found[x->count++] = partition;
		}
		x->lasting = held == sequence->stages && !partition.limited;
		return;
	}
	x->memory_bound = true;
}

static void look_at(void *context, struct hspmd_search *view, int64_t item)
{
	const struct builder *b = context;
	struct tried *x = &b->waiting[item];
	struct builder own = *b;
	int count = 0;
	own.s = view;
	own.t = b->views ? b->views[view->thread] : b->t;
	own.copies = x->copies;
	memcpy(own.use, x->use, sizeof own.use);
	x->useless = is_useless(&own, &x->sequence);
	x->known = !x->useless && b->memo && hspmd_partition_memo_find(b->memo, &x->sequence, HSPMD_MEMO_UNLIMITED, &count);
	if (!x->useless && !x->known)
		find_partitions(&own, x);
}

void hspmd_candidates_look(struct builder *b)
{
	const struct builder now = *b;
	b->short_of_memory = hspmd_search_share(b->s, b->waiting_count, SEQUENCE_NS, look_at, b) || b->short_of_memory;
	for (int i = 0; i < b->waiting_count && !b->short_of_memory; i++) {
		const struct tried *x = &b->waiting[i];
		b->copies = x->copies;
		memcpy(b->use, x->use, sizeof b->use);
		b->useless += x->useless;
		b->out->memory_bound = b->out->memory_bound || x->memory_bound;
		if (x->known)
			keep_known(b, &x->sequence);
		for (int k = 0; k < x->count; k++)
			keep(b, &x->found[k]);
		if (b->memo && x->lasting && hspmd_partition_memo_add(b->memo, x->found, HSPMD_MEMO_UNLIMITED, x->count))
			b->short_of_memory = true;
	}
	b->waiting_count = 0;
	b->copies = now.copies;
	memcpy(b->use, now.use, sizeof b->use);
}

void hspmd_candidates_try(struct builder *b, const struct hspmd_stage_sequence *sequence)
{
	struct tried *x = &b->waiting[b->waiting_count++];
	*x = (struct tried){ .sequence = *sequence, .copies = b->copies };
	memcpy(x->use, b->use, sizeof x->use);
	b->sequences++;
	if (b->waiting_count == b->together)
		hspmd_candidates_look(b);
}
