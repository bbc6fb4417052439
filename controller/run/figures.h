/* SPDX-License-Identifier: Apache-2.0 */
/* A job's figures for hspmdctld's metrics (`figures` of protocol.h): the last step, and sums since this process began, from the lines of
 * metrics.jsonl and events.jsonl. Pure. */
#ifndef HSPMD_RUN_FIGURES_H
#define HSPMD_RUN_FIGURES_H

#include <jansson.h>
#include <stdint.h>

struct run_figures {
	int64_t step, generation; /* of the last line; -1: none yet */
	int devices;              /* that the last step trained on */
	double loss, step_s;      /* loss NaN: not told, or not finite */
	double checkpoint_s;      /* wall clock of the newest complete checkpoint; 0: none */
	int64_t tokens, resizes, steps_lost;
	double paused_s;                                         /* sum over the resizes */
	double trained_device_s, paused_device_s, lost_device_s; /* seconds of all devices together; lost is not part of trained */
	/* Private. A resize counts with the step that ends its pause. */
	int64_t new_resizes, new_lost;
	double new_pause_s, new_paused_device_s;
	double generation_device_s; /* of this generation's steps, with their number */
	int64_t generation_steps;
	/* Counted in trained_device_s and lost since. A counter must not fall: as much of the steps that follow does not count. */
	double untrained_device_s;
};

void run_figures_init(struct run_figures *f);
/* A line of metrics.jsonl. Each lost step counts the mean time of the steps of the generation that ended; if this process knows none, the
 * time of the step that follows. */
void run_figures_metrics_line(struct run_figures *f, const json_t *line);
/* A line of events.jsonl. */
void run_figures_event(struct run_figures *f, const json_t *event);
/* New reference; NULL: out of memory. */
json_t *run_figures_json(const struct run_figures *f);

/* ---- the rate on the present nodes */

#define RUN_RATE_STEPS 15 /* the last so many steps count ... */
#define RUN_RATE_LEAST 9  /* ... once there are so many: the first after a change are slow */

/* hspmdctld remembers it for this number of nodes, and may never see the job on as many again: a few slow steps must not decide. */
struct run_rate {
	double rates[RUN_RATE_STEPS]; /* tokens per second of the last steps */
	int steps;                    /* since the nodes changed */
};

void run_rate_restart(struct run_rate *r); /* the nodes have changed */
void run_rate_step(struct run_rate *r, double tokens_per_s);
/* The median of the last steps; 0: not known yet. */
double run_rate_median(const struct run_rate *r);

#endif
