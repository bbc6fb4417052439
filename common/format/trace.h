/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-trace-1: the history of a cluster: nodes added and removed, jobs submitted. Plain data, events ordered by time. */
#ifndef HSPMD_FORMAT_TRACE_H
#define HSPMD_FORMAT_TRACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

#define HSPMD_TRACE_FORMAT "hspmd-trace-1"
#define HSPMD_TRACE_MAX_NODES (1 << 20)
#define HSPMD_TRACE_MAX_EVENTS (1 << 22)

enum hspmd_trace_kind { HSPMD_TRACE_ADD, HSPMD_TRACE_REMOVE, HSPMD_TRACE_SUBMIT };
extern const char *const hspmd_trace_kind_names[]; /* "add", "remove", "submit" */

struct hspmd_trace_job {
	uint32_t id;
	bool elastic;
	double priority;                     /* default 0 */
	char *partition;                     /* default "default" */
	char *user, *account, *qos, *policy; /* default NULL */
	int nodes;                           /* nodes requested from Slurm; elastic: default min_nodes */
	double run_s;                        /* rigid: duration; elastic: 0, or the duration after which it ends in any case */
	/* elastic */
	int min_nodes, max_nodes;
	int curve_count;
	double *tokens_per_s; /* [i] on i + 1 nodes, up to max_nodes; the last value holds for more nodes */
	double tokens;        /* the job ends after so many; 0: it does not end */
	double pause_s;       /* pause of a resize; default 2 */
};

struct hspmd_trace_event {
	double time_s;
	enum hspmd_trace_kind kind;
	int node_count; /* add, remove: indexes into nodes */
	int *nodes;
	int job; /* submit: index into jobs; else -1 */
	/* add: the nodes' properties */
	int partition;     /* index into partitions; -1: in all */
	char *device_type; /* default NULL */
	int devices;       /* per node; default 1 */
	double price_per_hour;
};

struct hspmd_trace {
	char *name;
	double end_s;
	double began_s; /* Unix time of second 0; 0: not known (simulated as a Monday, 00:00) */
	int node_count, partition_count, job_count, event_count;
	char **nodes;      /* every name that occurs */
	char **partitions; /* every partition that a job or node names */
	struct hspmd_trace_job *jobs;
	struct hspmd_trace_event *events;
};

/* Read and check: times do not decrease and are within 0 .. end_s, a node is not added twice nor removed while absent, job ids differ.
 * Node names may be hostlist expressions. */
struct hspmd_trace *hspmd_trace_read(const char *path, struct hspmd_error *err);
struct hspmd_trace *hspmd_trace_from_json(json_t *value, const char *name, struct hspmd_error *err);
json_t *hspmd_trace_to_json(const struct hspmd_trace *t);
void hspmd_trace_destroy(struct hspmd_trace *t);

#endif
