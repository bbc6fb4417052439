/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster and its queue as Slurm tells it, in plain data, so that what is made of it can be tested without a Slurm. Read with as few
 * RPCs as there can be: one for jobs and one for nodes a round, each answered "no change" where nothing changed. */
#ifndef HSPMD_SLURM_SLURM_VIEW_H
#define HSPMD_SLURM_SLURM_VIEW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "common/error.h"

enum hspmd_slurm_view_node_state {
	HSPMD_SLURM_VIEW_IDLE,    /* wholly free, and Slurm would start a job on it */
	HSPMD_SLURM_VIEW_BUSY,    /* a job has at least a part of it */
	HSPMD_SLURM_VIEW_LEAVING, /* its last job is completing */
	HSPMD_SLURM_VIEW_UNUSABLE /* down, drained, reserved, powered off */
};

struct hspmd_slurm_view_node {
	char *name;
	enum hspmd_slurm_view_node_state state;
	time_t last_busy;
	int cpus;
	int64_t memory_mb;
	char *features, *gres; /* "" when there are none */
	int weight;
};

struct hspmd_slurm_view_partition {
	char *name;
	int tier;
	bool up, preemptable; /* jobs of higher tiers may take its jobs' nodes */
	unsigned char *nodes; /* [node]: is in it */
};

enum hspmd_slurm_view_job_state { HSPMD_SLURM_VIEW_PENDING, HSPMD_SLURM_VIEW_RUNNING, HSPMD_SLURM_VIEW_COMPLETING };

struct hspmd_slurm_view_job {
	uint32_t id;
	uid_t uid;
	enum hspmd_slurm_view_job_state state;
	bool ready;             /* WAITING: for nothing but nodes */
	bool wants_named_nodes; /* asks for nodes by name, or for a reservation */
	char *user, *account, *partition, *qos;
	char *features, *tres_per_node; /* "" when not asked for */
	bool elastic;                   /* its comment is HSPMD_JOB_COMMENT */
	char *batch_host;
	int nodes; /* WAITING: the fewest it can start on; else those it has */
	int node_cpus;
	int64_t node_memory_mb; /* asked for on each node */
	double priority;        /* within its tier */
	double limit_s;         /* INFINITY: none */
	time_t submitted, started, ends, resized;
	int held_count;
	int *held; /* indexes into nodes */
};

struct hspmd_slurm_view {
	int node_count, partition_count, job_count;
	struct hspmd_slurm_view_node *nodes;
	struct hspmd_slurm_view_partition *partitions;
	struct hspmd_slurm_view_job *jobs; /* waiting, running and completing ones */
	time_t jobs_at, nodes_at;          /* Slurm's time stamps, for the next round */
};

/* What a site has set once and for all. Strings are owned by the caller. */
struct hspmd_slurm_view_settings {
	char *state_folder; /* slurmctld's StateSaveLocation: files change there when the queue does */
	char *user;         /* SlurmUser */
	char *munge_socket; /* of AuthInfo; NULL: the usual one */
};

/* Once a process, before anything else here. */
void hspmd_slurm_view_init(void);
int hspmd_slurm_view_settings(struct hspmd_slurm_view_settings *s, struct hspmd_error *err);
void hspmd_slurm_view_settings_clear(struct hspmd_slurm_view_settings *s);

/* Look again: 1 and *new is what there is now, 0: nothing has changed since `old` (NULL: read it whole), -1 with err. *rpcs counts the
 * calls made. Partitions are asked for every five minutes only. Blocks as long as slurmctld does: call it off the event loop, one call at a
 * time. */
int hspmd_slurm_view_refresh(const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err);
void hspmd_slurm_view_destroy(struct hspmd_slurm_view *v);

/* Has nothing come, gone or changed hands? Priorities, times and loads, which Slurm touches all the time, do not count. */
bool hspmd_slurm_view_equal(const struct hspmd_slurm_view *a, const struct hspmd_slurm_view *b);

/* Index of a node by name, -1: none. */
int hspmd_slurm_view_find_node(const struct hspmd_slurm_view *v, const char *name);

#endif
