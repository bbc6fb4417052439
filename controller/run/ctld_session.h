/* SPDX-License-Identifier: Apache-2.0 */
/* The job's line to hspmdctld on the loop: says what the job has and what more would bring, hands over what is asked of it. */
#ifndef HSPMD_RUN_CTLD_SESSION_H
#define HSPMD_RUN_CTLD_SESSION_H

#include <jansson.h>
#include <stdint.h>
#include <uv.h>

#include "common/auth.h"
#include "common/format/job.h"
#include "common/format/model.h"

struct run_ctld_session;

/* Something is asked: a request as `hspmd grow` and `hspmd shrink` make it. It is answered once, with this id. */
typedef void run_ctld_on_request(void *context, int64_t id, json_t *request);

/* hspmdctld has seen nodes being lost otherwise than it said before: { losses_per_node_s, correlated }. */
typedef void run_ctld_on_risk(void *context, json_t *risk);

/* `where` is HSPMD_CTLD. All borrowed. NULL and err: it is ill-formed, or memory is short. */
struct run_ctld_session *run_ctld_session_open(uv_loop_t *uv, const char *where, const char *job_id, const struct hspmd_auth *auth,
                                               const struct hspmd_job *job, const struct hspmd_model *model, run_ctld_on_request *ask,
                                               run_ctld_on_risk *risk, void *context, struct hspmd_error *err);
/* NULL is fine. The loop must run on until its handles, and a reckoning that is under way, are gone. */
void run_ctld_session_close(struct run_ctld_session *s);

void run_ctld_session_answer(struct run_ctld_session *s, int64_t id, const json_t *reply);
/* The cluster as it was when a plan was wanted: what the gains are reckoned from, when its device types are new. */
void run_ctld_session_set_cluster(struct run_ctld_session *s, const json_t *cluster);
/* What the job holds, as EVENT_ALLOCATION of controller.h: the jobs of its members are told. */
void run_ctld_session_set_allocation(struct run_ctld_session *s, const json_t *allocation);
/* A line of metrics.jsonl: rate, nodes and pauses are read from it. */
void run_ctld_session_metrics_line(struct run_ctld_session *s, const json_t *line);

#endif
