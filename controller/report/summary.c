/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/summary.h"

#include <math.h>

#include "common/json.h"

static void add_step(struct report_summary *s, const struct report_step *step)
{
	const double *v = step->values;
	if (isnan(s->begin) && !isnan(v[REPORT_TIME]))
		s->begin = v[REPORT_TIME] - (isnan(v[REPORT_STEP_S]) ? 0 : v[REPORT_STEP_S]);
	s->end = isnan(v[REPORT_TIME]) ? s->end : v[REPORT_TIME];
	s->min_nodes = s->min_nodes && s->min_nodes < step->nodes ? s->min_nodes : step->nodes;
	s->max_nodes = s->max_nodes > step->nodes ? s->max_nodes : step->nodes;
	if (step->repeated) {
		s->repeated++;
		return;
	}
	if (!s->steps++) {
		s->first_step = step->step;
		s->first_loss = v[REPORT_LOSS];
	}
	s->last_step = step->step;
	s->last_loss = v[REPORT_LOSS];
	s->tokens += isnan(v[REPORT_TOKENS]) ? 0 : v[REPORT_TOKENS];
}

void report_summary_make(const struct report_run *r, struct report_summary *s)
{
	*s = (struct report_summary){ .first_step = -1, .last_step = -1, .begin = NAN, .end = NAN, .first_loss = NAN, .last_loss = NAN };
	for (size_t i = 0; i < r->step_count; i++)
		add_step(s, &r->steps[i]);
	for (size_t i = 0; i < r->change_count; i++) {
		s->pause_s += r->changes[i].pause_s;
		s->steps_lost += r->changes[i].steps_lost;
	}
}

json_t *report_summary_json(const struct report_summary *s)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "steps", (json_int_t)s->steps, "repeated",
	                 (json_int_t)s->repeated, "first_step", (json_int_t)s->first_step, "last_step", (json_int_t)s->last_step,
	                 "min_nodes", s->min_nodes, "max_nodes", s->max_nodes, "begin", hspmd_json_real(s->begin), "end",
	                 hspmd_json_real(s->end), "first_loss", hspmd_json_real(s->first_loss), "last_loss", hspmd_json_real(s->last_loss),
	                 "tokens", hspmd_json_real(s->tokens), "pause_s", hspmd_json_real(s->pause_s), "steps_lost",
	                 (json_int_t)s->steps_lost);
}
