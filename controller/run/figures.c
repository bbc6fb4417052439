/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/order.h"

void run_figures_init(struct run_figures *f)
{
	*f = (struct run_figures){ .step = -1, .generation = -1, .loss = NAN };
}

static void take_resize(struct run_figures *f, const json_t *line)
{
	double pause_s = json_number_value(json_object_get(line, "pause_s"));
	f->new_resizes++;
	f->new_lost += json_integer_value(json_object_get(line, "steps_lost"));
	f->new_pause_s += pause_s;
	f->new_paused_device_s += pause_s * (double)json_integer_value(json_object_get(line, "devices"));
}

/* What an earlier process trained and this one has to make again is lost, but is not in `trained`. */
static void count_resizes(struct run_figures *f, double device_s)
{
	double lost_s = (double)f->new_lost * (f->generation_steps ? f->generation_device_s / (double)f->generation_steps : device_s);
	f->resizes += f->new_resizes;
	f->steps_lost += f->new_lost;
	f->paused_s += f->new_pause_s;
	f->paused_device_s += f->new_paused_device_s;
	f->lost_device_s += lost_s;
	if (f->generation_steps)
		f->untrained_device_s += fmin(lost_s, f->trained_device_s - f->untrained_device_s);
	f->new_resizes = f->new_lost = 0;
	f->new_pause_s = f->new_paused_device_s = 0;
}

static void take_step(struct run_figures *f, const json_t *line)
{
	const json_t *loss = json_object_get(line, "loss");
	int64_t generation = json_integer_value(json_object_get(line, "generation"));
	f->step = json_integer_value(json_object_get(line, "step"));
	f->devices = (int)json_integer_value(json_object_get(line, "devices"));
	f->step_s = json_number_value(json_object_get(line, "step_s"));
	f->loss = json_is_number(loss) ? json_number_value(loss) : NAN;
	f->tokens += json_integer_value(json_object_get(line, "tokens"));
	double device_s = f->step_s * f->devices; /* 0: a step that only survivors know, whose time nobody told */
	if (f->new_resizes && (f->generation_steps || device_s > 0))
		count_resizes(f, device_s);
	if (generation != f->generation)
		f->generation_device_s = f->generation_steps = 0;
	f->generation = generation;
	f->generation_device_s += device_s;
	f->generation_steps += device_s > 0;
	double made_again = fmin(f->untrained_device_s, device_s);
	f->untrained_device_s -= made_again;
	f->trained_device_s += device_s - made_again;
}

void run_figures_metrics_line(struct run_figures *f, const json_t *line)
{
	const char *event = json_string_value(json_object_get(line, "event"));
	if (event && !strcmp(event, "resize"))
		take_resize(f, line);
	else if (!event && json_is_integer(json_object_get(line, "step")))
		take_step(f, line);
}

void run_figures_event(struct run_figures *f, const json_t *event)
{
	const char *name = json_string_value(json_object_get(event, "event"));
	if (name && !strcmp(name, "checkpoint"))
		f->checkpoint_s = json_number_value(json_object_get(event, "time"));
}

json_t *run_figures_json(const struct run_figures *f)
{
	json_t *o = json_pack("{s:I, s:I, s:i, s:f, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "step", (json_int_t)f->step, "generation",
	                      (json_int_t)f->generation, "devices", f->devices, "step_s", f->step_s, "checkpoint_s", f->checkpoint_s,
	                      "tokens", (json_int_t)f->tokens, "resizes", (json_int_t)f->resizes, "steps_lost", (json_int_t)f->steps_lost,
	                      "paused_s", f->paused_s, "trained_device_s", f->trained_device_s, "paused_device_s", f->paused_device_s,
	                      "lost_device_s", f->lost_device_s);
	int bad = !o || (isfinite(f->loss) && json_object_set_new(o, "loss", json_real(f->loss)));
	return hspmd_json_unless_failed(bad, o);
}

void run_rate_restart(struct run_rate *r)
{
	r->steps = 0;
}

void run_rate_step(struct run_rate *r, double tokens_per_s)
{
	if (r->steps == 2 * RUN_RATE_STEPS)
		r->steps = RUN_RATE_STEPS;
	r->rates[r->steps++ % RUN_RATE_STEPS] = tokens_per_s;
}

double run_rate_median(const struct run_rate *r)
{
	double sorted[RUN_RATE_STEPS];
	int count = r->steps < RUN_RATE_STEPS ? r->steps : RUN_RATE_STEPS;
	if (count < RUN_RATE_LEAST)
		return 0;
	memcpy(sorted, r->rates, sizeof sorted);
	qsort(sorted, (size_t)count, sizeof *sorted, hspmd_double_order);
	return sorted[count / 2];
}
