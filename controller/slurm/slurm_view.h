/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster and its queue as slurmctld reports them, in plain data, so that code that works on them can be tested without Slurm. A view
 * is read with as few RPCs as possible: one for jobs and one for nodes per poll, each answered "no change" if nothing has changed. */
#ifndef HSPMD_SLURM_SLURM_VIEW_H
#define HSPMD_SLURM_SLURM_VIEW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "common/error.h"
#include "controller/slurm/accounts.h"
#include "controller/slurm/qos.h"

enum hspmd_slurm_view_node_state {
	HSPMD_SLURM_VIEW_IDLE,    /* no job has a part of it, and Slurm would start one on it */
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
	char *features, *gres; /* "" if there are none */
	int weight;
};

struct hspmd_slurm_view_partition {
	char *name;
	int tier;
	bool up, preemptable; /* preemptable: by jobs of higher tiers */
	unsigned char *nodes; /* [node]: 1 if the partition has it */
};

enum hspmd_slurm_view_job_state { HSPMD_SLURM_VIEW_PENDING, HSPMD_SLURM_VIEW_RUNNING, HSPMD_SLURM_VIEW_COMPLETING };

struct hspmd_slurm_view_job {
	uint32_t id;
	uid_t uid;
	enum hspmd_slurm_view_job_state state;
	bool ready;             /* PENDING: it waits for nothing but nodes */
	bool wants_named_nodes; /* it requests or excludes nodes by name, or requests a reservation */
	char *user, *account, *partition, *qos;
	char *features, *tres_per_node; /* "" if not requested */
	char *tres;                     /* that it has, as accounting counts: "cpu=8,mem=64G,node=2,gres/gpu=4"; "" if none */
	bool elastic;                   /* its comment is HSPMD_JOB_COMMENT */
	char *batch_host;
	int nodes; /* PENDING: the fewest on which it can start; otherwise the number it has */
	int node_cpus;
	int64_t node_memory_mb; /* requested per node */
	double priority;        /* within its tier */
	double limit_s;         /* time limit; INFINITY: none */
	time_t submitted, started, ends, resized;
	int held_count;
	int *held; /* indexes into nodes */
};

struct hspmd_slurm_view {
	int node_count, partition_count, job_count;
	struct hspmd_slurm_view_node *nodes;
	struct hspmd_slurm_view_partition *partitions;
	struct hspmd_slurm_view_job *jobs;           /* pending, running and completing ones */
	struct hspmd_slurm_qos_table qos;            /* empty unless the site preempts by QOS: then partitions do not matter for that */
	const struct hspmd_slurm_accounts *accounts; /* fairshare, and limits of associations; borrowed; NULL: not known */
	time_t jobs_at, nodes_at;                    /* slurmctld's time stamps of the replies, for the next poll */
	int *by_id, *by_name; /* jobs in the order of their ids, nodes in that of their names; NULL: looked up one by one */
};

/* Settings of the site that do not change while slurmctld runs. Strings are malloc'd; hspmd_slurm_view_settings_clear() frees them. */
struct hspmd_slurm_view_settings {
	char *state_folder; /* slurmctld's StateSaveLocation: files in it change when the queue does */
	char *user;         /* SlurmUser */
	char *munge_socket; /* of AuthInfo; NULL: the default one */
	bool without_munge; /* AuthType is another: munged may not run */
	bool private_jobs;  /* PrivateData has "jobs" */
	char *limited;      /* the cluster's name, if AccountingStorageEnforce has "limits"; NULL: it has not */
};

/* Reads the settings by one RPC. Returns 0, or -1 and err; the settings are then empty. */
int hspmd_slurm_view_settings(struct hspmd_slurm_view_settings *s, struct hspmd_error *err);
void hspmd_slurm_view_settings_clear(struct hspmd_slurm_view_settings *s);

/* Polls slurmctld. Returns 1 and the new view in *new (the caller destroys it), 0 if nothing has changed since `old` (NULL: read
 * everything), or -1 and err. Adds the number of RPCs to *rpcs. Partitions are read only every five minutes. Blocks as long as slurmctld
 * does: to be called off the event loop, one call at a time. At a site that preempts by QOS, sacctmgr is asked for them with the
 * partitions; if that fails, those of the last answer stay. */
int hspmd_slurm_view_refresh(const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err);
void hspmd_slurm_view_destroy(struct hspmd_slurm_view *v);
/* Makes look-ups quick; jobs and nodes do not change afterwards. Without memory for that, they stay slow. */
void hspmd_slurm_view_index(struct hspmd_slurm_view *v);

/* Returns true if the nodes, partitions and jobs are the same, in the same states and on the same nodes. Priorities, times and loads, which
 * Slurm changes all the time, are not compared. */
bool hspmd_slurm_view_equal(const struct hspmd_slurm_view *a, const struct hspmd_slurm_view *b);

/* Returns the index of a node by name, or -1. */
int hspmd_slurm_view_find_node(const struct hspmd_slurm_view *v, const char *name);
/* Returns a job by id, or NULL. v may be NULL. */
const struct hspmd_slurm_view_job *hspmd_slurm_view_find_job(const struct hspmd_slurm_view *v, uint32_t id);

#endif
