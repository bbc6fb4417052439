/* SPDX-License-Identifier: Apache-2.0 */
/* What `hspmd top` knows of a job over time, and the pages that it draws of it: for the screen, and in words for plain mode. Pure. */
#ifndef HSPMD_CONTROLLER_TOP_VIEW_H
#define HSPMD_CONTROLLER_TOP_VIEW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "controller/top/page.h"

#define TOP_HISTORY 512

/* Zeroed at first. */
struct top_view {
	json_t *status;                   /* the last answer to `status` with detail (controller/core/status_detail.c); NULL: none yet */
	double losses[TOP_HISTORY];       /* of the last steps, the oldest first; NaN: not finite */
	int64_t steps[TOP_HISTORY];       /* their numbers */
	int count;
	double answered_at;               /* when the last answer came, seconds of the monotonic clock */
	char error[512];                  /* why there is no newer answer; "": the last question was answered */
	char notice[512];                 /* what became of the last request */
	int scroll;                       /* first device that is shown */
	int64_t events_seen;              /* plain mode: number of the last event that was printed */
};

/* Takes over an answer, or the reason why there is none (status NULL). The view owns what it keeps. */
void top_view_update(struct top_view *v, const json_t *status, const char *error, double now);
void top_view_clear(struct top_view *v);
int top_view_devices(const struct top_view *v);

/* A page of at most `height` lines: the job, its plan and state, as many devices from v->scroll on as fit, and the last events.
 * wall: seconds since 1970; now: of the monotonic clock. */
void top_view_draw(struct top_view *v, struct top_page *p, int height, double now, double wall);
/* The same in sentences, one fact per line, without bars or pictures, for screen readers and files. Events are those that came since the
 * last call. */
void top_view_describe(struct top_view *v, struct top_page *p, double now);

/* The user's jobs: the list that hspmd_control_jobs returns. chosen: index of the line that is marked; -1: none. */
void top_jobs_draw(const json_t *jobs, int chosen, const char *error, struct top_page *p, int height);
void top_jobs_describe(const json_t *jobs, struct top_page *p);

#endif
