/* SPDX-License-Identifier: Apache-2.0 */
/* A table in which each pipeline has one place, by a hash of what decides its times. One that comes to a place takes it. A thread that
 * finds the place in use does without it. */
#include "controller/solver/sim/pipeline_memo.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define PLACES 1024
#define STAGES_MOST 64 /* of pipelines that are kept */

struct place {
	atomic_bool in_use;
	struct hspmd_pipeline_run run; /* its stages are the place's own; count 0: free */
	struct hspmd_sim_stage *stages;
	double *stage_end, end;
	int room; /* stages that the arrays have room for */
};

struct hspmd_pipeline_memo {
	struct place places[PLACES];
};

struct hspmd_pipeline_memo *hspmd_pipeline_memo_new(void)
{
	return hspmd_calloc(1, sizeof(struct hspmd_pipeline_memo));
}

void hspmd_pipeline_memo_destroy(struct hspmd_pipeline_memo *m)
{
	for (int i = 0; m && i < PLACES; i++) {
		free(m->places[i].stages);
		free(m->places[i].stage_end);
	}
	free(m);
}

/* Multiplies and folds words, as the bits that differ between times are the low ones of doubles. */
static size_t place_of(const struct hspmd_pipeline_run *run)
{
	uint64_t hash = (uint64_t)run->micro_batches * 8 + (uint64_t)run->schedule, word;
	const double *times = &run->stages[0].forward;
	for (size_t i = 0; i < (size_t)run->count * (sizeof *run->stages / sizeof *times); i++) {
		memcpy(&word, &times[i], sizeof word);
		hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		hash ^= hash >> 32;
	}
	return (size_t)(hash % PLACES);
}

static size_t bytes_of(int stages)
{
	return (size_t)stages * sizeof(struct hspmd_sim_stage);
}

static bool is_at(const struct place *p, const struct hspmd_pipeline_run *run)
{
	return p->run.count == run->count && p->run.micro_batches == run->micro_batches && p->run.schedule == run->schedule &&
	       !memcmp(p->stages, run->stages, bytes_of(run->count));
}

static int make_room(struct place *p, int stages)
{
	if (p->room >= stages)
		return 0;
	free(p->stages);
	free(p->stage_end);
	p->run.count = 0;
	p->stages = hspmd_calloc((size_t)stages, sizeof *p->stages);
	p->stage_end = hspmd_calloc((size_t)stages, sizeof *p->stage_end);
	p->room = p->stages && p->stage_end ? stages : 0;
	return p->room ? 0 : -1;
}

static int simulate(const struct hspmd_pipeline_run *run, double *stage_end, double *end)
{
	struct hspmd_pipeline_sim result = { .stage_end = stage_end };
	int rc = hspmd_simulate(run->stages, run->count, run->micro_batches, run->schedule, &result);
	*end = result.end;
	return rc;
}

static int simulate_at(struct place *p, const struct hspmd_pipeline_run *run, double *stage_end, double *end)
{
	size_t ends = (size_t)run->count * sizeof *stage_end;
	if (is_at(p, run)) {
		memcpy(stage_end, p->stage_end, ends);
		*end = p->end;
		return 0;
	}
	if (simulate(run, stage_end, end) || make_room(p, run->count))
		return -1;
	memcpy(p->stages, run->stages, bytes_of(run->count));
	memcpy(p->stage_end, stage_end, ends);
	p->end = *end;
	p->run = *run;
	return 0;
}

int hspmd_pipeline_memo_simulate(struct hspmd_pipeline_memo *m, const struct hspmd_pipeline_run *run, double *stage_end, double *end)
{
	struct place *p = m && run->count <= STAGES_MOST ? &m->places[place_of(run)] : NULL;
	if (!p || atomic_exchange_explicit(&p->in_use, true, memory_order_acquire))
		return simulate(run, stage_end, end);
	int rc = simulate_at(p, run, stage_end, end);
	atomic_store_explicit(&p->in_use, false, memory_order_release);
	return rc;
}
