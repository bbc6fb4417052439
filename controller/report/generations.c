/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/generations.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/json.h"
#include "common/order.h"

/* The first step is left out if there are others: buffers are made and caches filled in it. */
static double median(const struct report_step *steps, size_t count, double *room)
{
	size_t n = 0;
	for (size_t i = count > 1; i < count; i++)
		if (steps[i].values[REPORT_STEP_S] > 0)
			room[n++] = steps[i].values[REPORT_STEP_S];
	qsort(room, n, sizeof *room, hspmd_double_order);
	return n ? (room[(n - 1) / 2] + room[n / 2]) / 2 : NAN;
}

static double sum(const struct report_step *steps, size_t count)
{
	double seconds = 0;
	for (size_t i = 0; i < count; i++)
		seconds += fmax(0, steps[i].values[REPORT_STEP_S]); /* fmax leaves NaN out */
	return seconds;
}

static void find(const struct report_run *r, struct report_generation *g)
{
	for (size_t i = 0; i < r->plan_count; i++)
		if (r->plans[i]->generation == g->generation)
			g->plan = r->plans[i];
	for (size_t i = 0; i < r->change_count; i++)
		if (r->changes[i].generation == g->generation)
			g->change = &r->changes[i];
}

struct report_generation *report_generations_make(const struct report_run *r, int *count)
{
	struct report_generation *list = NULL;
	double *room = hspmd_calloc(r->step_count, sizeof *room);
	size_t capacity = 0, n = 0, end;
	bool bad = !room || hspmd_array_grow(&list, &capacity, 0, sizeof *list);
	for (size_t i = 0; i < r->step_count && !bad; i = end) {
		const struct report_step *s = &r->steps[i];
		for (end = i + 1; end < r->step_count && s->generation == r->steps[end].generation;)
			end++;
		if ((bad = hspmd_array_grow(&list, &capacity, n, sizeof *list)))
			break;
		struct report_generation *g = &list[n++];
		*g = (struct report_generation){ .generation = s->generation,
			                         .first_step = s->step,
			                         .last_step = r->steps[end - 1].step,
			                         .steps = end - i,
			                         .nodes = s->nodes,
			                         .step_s = median(s, end - i, room),
			                         .took_s = sum(s, end - i) };
		find(r, g);
	}
	free(room);
	if (bad) {
		free(list);
		return NULL;
	}
	*count = (int)n;
	return list;
}

json_t *report_generations_json(const struct report_generation *list, int count)
{
	json_t *all = json_array();
	int bad = !all;
	for (int i = 0; i < count; i++) {
		const struct report_generation *g = &list[i];
		bad |= json_array_append_new(all, json_pack("{s:I, s:I, s:I, s:I, s:i, s:i, s:o, s:o}", "generation",
		                                            (json_int_t)g->generation, "first_step", (json_int_t)g->first_step, "last_step",
		                                            (json_int_t)g->last_step, "steps", (json_int_t)g->steps, "nodes", g->nodes,
		                                            "devices", g->plan ? g->plan->device_count : 0, "predicted_step_s",
		                                            hspmd_json_real(g->plan && g->plan->step_s > 0 ? g->plan->step_s : NAN),
		                                            "step_s", hspmd_json_real(g->step_s)));
	}
	return hspmd_json_unless_failed(bad, all);
}
