/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller requests of the search. */
#ifndef HSPMD_SEARCH_REQUEST_H
#define HSPMD_SEARCH_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/format/cluster.h"
#include "common/format/plan.h"
#include "common/format/program_search.h"

/* What the runtime that will run the plan supports. The search produces only such plans. */
struct hspmd_runtime_caps {
	int max_tp;               /* largest tensor-parallel group; 1: no tensor parallelism */
	bool tp_across_nodes;     /* a group may span nodes */
	bool mixed_stage;         /* a group may hold devices of several types */
	bool unequal_shards;      /* shard_ratio may be uneven (in whole heads); otherwise tp must divide heads and kv_heads */
	bool unequal_micro_batch; /* a pipeline may have its own micro_batch */
	bool sequence_parallel; /* a group may divide the activations between the sharded parts along the sequence (Megatron, 2205.05198) */
	unsigned recompute;       /* set of 1 << enum hspmd_recompute; of lists of operators, those that there are for the model */
	unsigned schedules;       /* set of 1 << enum hspmd_schedule */
	int max_zero_stage;       /* 0 to 3 */
	bool offload;             /* a stage may have the optimizer's state and activations in its hosts' memory */
};

#define HSPMD_SEARCH_THREADS_MAX 64 /* most threads of a search */

/* What hspmd's own runtime supports. */
struct hspmd_runtime_caps hspmd_runtime_caps_default(void);

/* What a site or user allows and prefers. All zero: no limits, and speed alone counts. */
struct hspmd_solve_limits {
	int max_devices, max_nodes; /* 0: no limit */
	int type_count;             /* 0: all types */
	const char *const *types;   /* names of the device types that are allowed; names that the cluster does not know are ignored */
	double max_price_per_hour;  /* of the nodes used; 0: no limit */
	double cost_weight;         /* w from 0 (fastest step) to 1 (cheapest step): minimises step_s^(1-w) * (step_s * price)^w */
};

struct hspmd_solve_request {
	int global_batch;               /* samples per step */
	int seq_len;                    /* 0: the profile's */
	int micro_batch;                /* 0: the search chooses */
	enum hspmd_precision precision; /* of the arithmetic, if layers are computed from a model; a profile has its own element sizes */
	bool fp32_elements;             /* set by the search, with FP8: not all devices that it uses compute in BF16 */
	double known_s;                 /* step time of a plan that is known: slower ones need not be found; 0: none */
	double time_limit_s;            /* the best plan found by then is returned; 0: no limit */
	/* Threads that search, at most HSPMD_SEARCH_THREADS_MAX; all find the same plan. 0: the number that the environment's
	 * HSPMD_SEARCH_THREADS says, else one for each usable core, at most 16. */
	int threads;
	const atomic_bool *cancelled;   /* once it is true, the search ends soon, with whatever it has or with an error; NULL: never */
	/* Fewest nodes to which the job may be shrunk. Among equal nodes, the plan is placed so that no shrink by count (nodes in Slurm's
	 * order, as the cluster lists them) and no loss of a rack or member job removes all holders of a layer, unless that makes the step
	 * slower by more than 2 %. 0: place it anywhere. */
	int least_nodes;
	struct hspmd_solve_limits limits;
	const struct hspmd_program_search *programs; /* also plans of one stage with a program; NULL: only others. Needs facts */
	const struct hspmd_runtime_caps *caps; /* NULL: hspmd_runtime_caps_default() */
	/* The plan that runs now; NULL: none. The search starts from it, and of the plans within 2 % of the best one the plan that moves
	 * the least state is chosen. */
	const struct hspmd_plan *current;
	/* The cluster that current's device indexes refer to; NULL: the cluster given. Devices are matched by address. */
	const struct hspmd_cluster *current_cluster;
	/* Nothing is searched for: the result is the current plan, repaired with what is left of its devices (repair.c). This takes a small
	 * part of a search's time, also for many devices. For hspmd_repair_plan(). */
	bool repair;
	/* Not every sequence of stages is tried, however few devices there are, but even distributions alone (candidates.c). Among 16 equal
	 * devices this takes a hundredth of the work, and plans are seldom slower: for plans that others are made of, or compared with. */
	bool even_only;
};

static inline bool hspmd_request_is_cancelled(const struct hspmd_solve_request *r)
{
	return r->cancelled && atomic_load_explicit(r->cancelled, memory_order_relaxed);
}

/* The request for samples of another length, from the beginning: without a current plan, programs, or a known time. */
static inline struct hspmd_solve_request hspmd_request_of_length(const struct hspmd_solve_request *r, int seq_len)
{
	struct hspmd_solve_request of = *r;
	of.seq_len = seq_len;
	of.programs = NULL;
	of.current = NULL;
	of.current_cluster = NULL;
	of.known_s = 0;
	return of;
}

#endif
