/* SPDX-License-Identifier: Apache-2.0 */
/* The job's connection to hspmdctld, on the event loop: reports what the job has and what more nodes would bring, and receives requests. */
#ifndef HSPMD_RUN_CTLD_SESSION_H
#define HSPMD_RUN_CTLD_SESSION_H

#include <jansson.h>
#include <stdint.h>
#include <uv.h>

#include "common/auth.h"
#include "common/format/job.h"
#include "common/format/model_facts.h"

struct run_ctld_session;

/* A request from hspmdctld, in the form that `hspmd grow` and `hspmd shrink` send. It must be answered once, with this id. */
typedef void run_ctld_on_request(void *context, int64_t id, json_t *request);

/* hspmdctld's estimate of node losses has changed: { losses_per_node_s, correlated }. */
typedef void run_ctld_on_risk(void *context, json_t *risk);

/* `where`: the value of HSPMD_CTLD. All pointers are borrowed. NULL and err: `where` is malformed, or memory is short. */
struct run_ctld_session *run_ctld_session_open(uv_loop_t *uv, const char *where, const char *job_id, const struct hspmd_auth *auth,
                                               const struct hspmd_job *job, const struct hspmd_model_facts *facts, run_ctld_on_request *ask,
                                               run_ctld_on_risk *risk, void *context, struct hspmd_error *err);
/* NULL is fine. The loop must run on until the session's handles are closed, and a computation under way has ended. */
void run_ctld_session_close(struct run_ctld_session *s);

void run_ctld_session_answer(struct run_ctld_session *s, int64_t id, const json_t *reply);
/* Sets the cluster of the last solve. If its device types or classes of nodes are new, the scaling curve is computed from it. */
void run_ctld_session_set_cluster(struct run_ctld_session *s, const json_t *cluster);
/* Sets what the job holds, as the value of EVENT_ALLOCATION: the ids of its member jobs are reported. */
void run_ctld_session_set_allocation(struct run_ctld_session *s, const json_t *allocation);
/* Pass a line of metrics.jsonl, from which the reported rate, nodes, pauses and figures are read, and one of events.jsonl. */
void run_ctld_session_metrics_line(struct run_ctld_session *s, const json_t *line);
void run_ctld_session_event(struct run_ctld_session *s, const json_t *event);

#endif
