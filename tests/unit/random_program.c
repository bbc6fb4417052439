/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/random_program.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/program/pipelines.h"
#include "runtime/synthesis/synthesis_internal.h"

#define ATTEMPTS 100

static unsigned draw(uint64_t *state, unsigned n)
{
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (unsigned)(*state >> 33) % n;
}

/* `even`: as a vocabulary in parts needs. */
static void draw_shares(struct hspmd_synthesis *s, bool even, uint64_t *state)
{
	for (int g = 0; g < s->segment_count; g++)
		for (int d = 0; d < s->stage.device_count; d++)
			s->segments[g].weights[d] = even || s->segments[g].steps < 3 * s->stage.device_count ? 1 : 1 + draw(state, 3);
	hspmd_synthesis_forget(s, -1);
}

/* Draws a choice for every group. Returns false if they do not fit together. */
static bool draw_choices(struct hspmd_synthesis *s, struct program *p, uint64_t *state)
{
	for (int n = 0; n < s->group_count; n++) {
		const struct group *g = &s->groups[n];
		int first = (int)draw(state, (unsigned)g->choice_count), k = 0;
		while (k < g->choice_count && hspmd_synthesis_advance(s, n, &g->choices[(first + k) % g->choice_count], p->before, p->after,
		                                                      p->scratch) >= HUGE_VAL)
			k++;
		if (k == g->choice_count)
			return false;
		s->chosen[n] = (first + k) % g->choice_count;
		struct live *next = p->before;
		p->before = p->after;
		p->after = next;
	}
	return true;
}

static int draw_program(const struct hspmd_synthesis_stage *stage, const struct hspmd_graph *g, int vocab_parts, json_t **program,
                        uint64_t *state, struct hspmd_error *err)
{
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, stage, err);
	struct program p = { 0 };
	bool fit = false;
	int status = s ? 0 : -1;
	if (s)
		draw_shares(s, vocab_parts > 1, state);
	if (!status)
		status = hspmd_synthesis_choices(s, err) || hspmd_synthesis_program_open(s, &p) ? -1 : 0;
	for (int i = 0; !status && !fit && i < ATTEMPTS; i++)
		fit = draw_choices(s, &p, state);
	if (!status && !fit)
		status = hspmd_fail(err, "no random program in %d attempts", ATTEMPTS);
	if (!status)
		*program = hspmd_synthesis_save(s, err);
	if (!status && (!*program || json_object_set_new(*program, "vocab_parts", json_integer(vocab_parts))))
		status = -1;
	hspmd_synthesis_program_close(&p);
	hspmd_synthesis_destroy(s);
	return status;
}

int random_program(struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const struct hspmd_graph_source *source, uint64_t *state,
                   struct hspmd_error *err)
{
	const struct hspmd_stage *only = &plan->pipelines[0].stages[0];
	struct hspmd_synthesis_stage stage = { .cluster = cluster,
		                               .device_count = only->device_count,
		                               .devices = only->devices,
		                               .micro_batches = plan->pipelines[0].micro_batches };
	struct hspmd_model_build_options how = hspmd_pipeline_options(source, plan, cluster, 0, false);
	how.vocab_parts = draw(state, 2) ? 1 : only->device_count;
	for (int last = 0, status = -1; !last; how.vocab_parts = 1) { /* not every vocabulary has so many parts */
		last = how.vocab_parts == 1;
		struct hspmd_graph *g = source->build(source->context, &how, err);
		if (g)
			status = draw_program(&stage, g, how.vocab_parts, &plan->program, state, err);
		hspmd_graph_destroy(g);
		if (!status)
			return 0;
	}
	return -1;
}
