/* SPDX-License-Identifier: Apache-2.0 */
/* What elasticity brought a site, from Slurm's accounting and hspmdctld's event log. Pure; hspmd-report(1) says for users what each figure
 * counts, and beside what.
 *
 * A device is a GPU, or a node of a job without GPUs. Device seconds are seconds times devices. */
#ifndef HSPMD_CONTROLLER_REPORT_SITE_H
#define HSPMD_CONTROLLER_REPORT_SITE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "controller/report/curve.h"

/* A line of the accounting: what a job held, unchanged, for some time. A job that was resized or requeued has several. Owns its strings. */
struct report_site_row {
	uint32_t id;
	uint32_t anchor; /* the elastic job to which it brought nodes; 0: none */
	double submit, start, end;
	int nodes, devices;
	bool elastic; /* by its comment */
	char *user, *account, *partition;
};

enum report_site_event_kind { REPORT_SITE_RECALL, REPORT_SITE_RESIZED };

/* A line of the event log. */
struct report_site_event {
	enum report_site_event_kind kind;
	double time;
	uint32_t job;
	uint32_t waiting; /* RECALL: the job for which nodes were asked back */
	int nodes;        /* RECALL: how many */
	int64_t resizes, steps_lost;
	double pause_s, paused_device_s, lost_device_s;
};

/* An elastic job. */
struct report_site_job {
	uint32_t id;
	const char *user, *account, *partition; /* of its first row; borrowed from the rows */
	double start, end;
	int started_with, least, most;                      /* devices, while its first job ran; the first start's */
	double held_device_s, won_device_s, given_device_s; /* won, given: above and below what it was started with */
	int64_t resizes, steps_lost;                        /* from here on by the event log */
	double pause_s, paused_device_s, lost_device_s;
};

/* A job that waited, and for which elastic jobs gave nodes back. */
struct report_site_wait {
	uint32_t id;
	int nodes;           /* that they were asked for */
	double asked, start; /* asked: the first time */
	double without;      /* the earliest time at which as many nodes would have been free without */
	double saved_s;      /* without - start, at least 0 */
};

struct report_site {
	double begin, end;            /* of what the rows tell */
	bool logged;                  /* an event log was read */
	struct report_site_job *jobs; /* by what they won, most first */
	struct report_site_wait *waits;
	size_t job_count, wait_count, job_capacity, wait_capacity, all_jobs; /* all_jobs: ids in the rows, without members */
	struct report_curve held, started_with;                              /* devices of all elastic jobs over seconds since begin */
};

/* Sorts rows and events. logged: there was an event log. 0, or -1: out of memory; clear in both cases. The rows must outlive the result. */
int report_site_make(struct report_site *s, struct report_site_row *rows, size_t row_count, struct report_site_event *events,
                     size_t event_count, bool logged);
void report_site_clear(struct report_site *s);
/* NULL: out of memory. */
json_t *report_site_json(const struct report_site *s);
/* Sums over the jobs and waits, in the form of a job. */
struct report_site_job report_site_sum(const struct report_site *s);

#endif
