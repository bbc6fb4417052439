/* SPDX-License-Identifier: Apache-2.0 */
/* The solver: from what there is (cluster), what is trained (model, profile or both) and what is wanted (request) to the fastest plan and
 * the time it will take. Pure: no I/O, no global state; the same input gives the same plan to the bit (unless a time limit cuts the search
 * short).
 *
 * The cost model and the search follow and join: Megatron-LM (arXiv 2104.04473; 1F1B, tensor parallelism, 2205.05198 selective recompute),
 * PipeDream-flush, Alpa (OSDI'22; stages by dynamic programming), AMP (NeurIPS'22), HAP (arXiv 2401.05965; shard ratios by linear
 * programming), HSPMD / Hetu v2 (2504.20490; pipelines that differ in everything), H2 (2505.17548; search in two stages), AutoHet
 * (2512.20953; layer-wise gradient synchronisation across unequal pipelines) and Sailor (SOSP'25). Each file's head says what it takes from
 * where.
 *
 * Times are seconds, memory bytes. Devices are indexes into the cluster's devices.
 */
#ifndef HSPMD_CONTROLLER_SOLVER_SOLVER_H
#define HSPMD_CONTROLLER_SOLVER_SOLVER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model.h"
#include "common/format/plan.h"
#include "common/format/profile.h"

/* What the program that will run the plan can do; the solver chooses nothing else. */
struct hspmd_runtime_caps {
	int max_tp;               /* largest tensor-parallel group; 1: none */
	bool tp_across_nodes;     /* a group may span nodes */
	bool mixed_stage;         /* a group may hold devices of several types */
	bool unequal_shards;      /* shard_ratio other than even (in whole heads); else tp divides heads and kv_heads */
	bool unequal_micro_batch; /* a pipeline may have its own micro_batch */
	bool sequence_parallel;   /* activations between the sharded parts are sharded along the sequence (Megatron 2205.05198) */
	unsigned recompute;       /* 1 << enum hspmd_recompute, or-ed */
	unsigned schedules;       /* 1 << enum hspmd_schedule, or-ed */
	int max_zero_stage;       /* 0 or 1 */
};

/* What hspmd's own runtime does. */
struct hspmd_runtime_caps hspmd_runtime_caps_default(void);

/* What a site or user allows and prefers. All zero: no limit, speed alone. */
struct hspmd_solve_limits {
	int max_devices, max_nodes; /* 0: no limit */
	int type_count;             /* 0: all types */
	const char *const *types;   /* names of the device types allowed; names the cluster does not know are ignored */
	double max_price_per_hour;  /* of the nodes used; 0: no limit */
	double cost_weight;         /* 0: the fastest step; 1: the cheapest; between: the least step_s^(1-w) * (step_s * price)^w */
};

struct hspmd_solve_request {
	int global_batch;               /* samples a step */
	int seq_len;                    /* 0: the profile's */
	int micro_batch;                /* 0: chosen */
	enum hspmd_precision precision; /* of the arithmetic when it is computed from a model; a profile brings its own element sizes */
	double time_limit_s;            /* 0: none. The best plan so far is returned when time is up */
	int least_nodes; /* that the job may be shrunk to: among nodes that are alike the plan is laid so that no shrink by count (the
	                  * cluster names nodes in Slurm's order), nor a rack or member job that goes, takes all holders of a layer, as far
	                  * as that costs a step nothing (2 %). 0: wherever */
	struct hspmd_solve_limits limits;
	const struct hspmd_runtime_caps *caps; /* NULL: hspmd_runtime_caps_default() */
	const struct hspmd_plan *current; /* NULL: none. Search starts here, and among plans within 2 % the one that moves least wins */
	bool no_diagnosis;                /* when nothing fits, say so and no more: why takes a few seconds to find out */
	const struct hspmd_cluster
	        *current_cluster; /* what current's device indexes refer to; NULL: the cluster given. Matched by address */
};

/* A device on which a plan needs more than there is. */
struct hspmd_shortage {
	int device, pipeline, stage;
	double need_bytes, have_bytes;
};

/* What else there is to say. Zero it before; hspmd_solve_report_clear() frees what it holds. */
struct hspmd_solve_report {
	int warning_count;
	char **warnings;   /* one line each: what was interpolated, what was left out */
	bool timed_out;    /* the time limit cut the search short */
	int64_t evaluated; /* plans that were simulated */
	double elapsed_s;
	int shortage_count; /* devices on which the plan does not fit; the first HSPMD_SHORTAGE_MAX are listed */
	struct hspmd_shortage *shortages;
	double moved_bytes;    /* from `current` to the plan: bytes of training state that change device; NaN without current */
	double price_per_hour; /* of the nodes the plan uses; 0: not known */
};
#define HSPMD_SHORTAGE_MAX 64
void hspmd_solve_report_clear(struct hspmd_solve_report *r);

/* The fastest plan found, with `predicted` filled; the caller destroys it. At least one of model and profile. NULL and err when there is no
 * plan (the message says what is short, where, by how much, and the nearest change that would do) or the input is wrong. report may be
 * NULL. */
struct hspmd_plan *hspmd_solve(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
                               const struct hspmd_solve_request *request, struct hspmd_solve_report *report, struct hspmd_error *err);

/* Fill plan->predicted. A plan that does not fit in memory is evaluated all the same: report->shortages tells. 0, or -1 with err when the
 * plan cannot be evaluated (a device pair without a link, a type the profile has no times for and no model to compute them from). */
int hspmd_evaluate(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
                   enum hspmd_precision precision, struct hspmd_plan *plan, struct hspmd_solve_report *report, struct hspmd_error *err);

/* Seconds that each device of a plan is busy in a step, in the order of the plan: of pipelines, their stages, and the devices of these. */
int hspmd_plan_busy_time(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_plan *plan, double *busy_s, struct hspmd_error *err);

/* What limits a plan (with `predicted` filled), a sentence a line: where the time goes, the limiting stage and pipeline, the gradients that
 * are together last, the fullest device, and, with a request, what one more device of each type would bring, each in a node of its own
 * (solves once more for each). malloc'd; NULL when memory is short. */
char *hspmd_plan_explain(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_solve_request *request, const struct hspmd_plan *plan);

/* The predicted schedule of a plan as Chrome trace events (a new object {"traceEvents": [...]}), one process a pipeline, two threads a
 * stage: what it computes and what it sends (trace.c). */
json_t *hspmd_plan_trace(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_plan *plan, struct hspmd_error *err);

#endif
