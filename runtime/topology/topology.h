/* SPDX-License-Identifier: Apache-2.0 */
/* The hardware of this node, within the cgroup and affinity of this process, as its part of the cluster file; and the parts of all nodes
 * of a Slurm step, merged over PMIx. */
#ifndef HSPMD_TOPOLOGY_TOPOLOGY_H
#define HSPMD_TOPOLOGY_TOPOLOGY_H

#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"

struct hspmd_topology_options {
	const char *node; /* the node's name; NULL: SLURMD_NODENAME, or else the host name up to its first dot */
	int devices;      /* number of CPU devices to make of the node's cores; 0: see below; more than the number of cores is an error */
	int cores_per_device; /* instead of `devices`: cores per device (left-over cores stay unused); 0: see below; both 0: one device per
	                         NUMA node */
	bool cpu, gpu;        /* device kinds to report; both false: GPUs if there are any, otherwise the cores */
	bool skip_measure;    /* do not run the short products and copies; tflops are then 0 and types differ by model only */
};

/* The resources that the worker of one device is bound to. */
struct hspmd_binding {
	enum hspmd_device_kind kind;
	int cores;  /* threads of a device of cores; of a GPU: cores for its host side */
	char *cpus; /* these cores in the format of taskset and cpuset ("0-3,8"); never NULL */
	int gpu;    /* index among the visible GPUs, as for cudaSetDevice; -1: none of them */
	char *uuid; /* of a GPU: "GPU-..." or "MIG-..."; NULL if unknown */
};

struct hspmd_topology {
	struct hspmd_cluster *cluster; /* one node, its device types, and default links (topology.c defines the constants) */
	int binding_count;             /* = cluster->device_count */
	struct hspmd_binding *bindings;
};

/* Discover the node's hardware. NULL options: all zero. NULL and err if the node has no usable device or an option asks for hardware
 * that is not there. The measurement takes about 0.3 s; processes of one user on one machine measure one after another. The caller
 * destroys the result. */
struct hspmd_topology *hspmd_topology_discover(const struct hspmd_topology_options *options, struct hspmd_error *err);
void hspmd_topology_destroy(struct hspmd_topology *t);

/* Under srun with PMIx: publish `own`, wait for all tasks of the step, and on task 0 merge the parts (one per node: that of local task
 * 0) into *all (the caller destroys it); NULL on the other tasks. *rank (may be NULL): this task's number. Outside of a step with
 * several tasks *all is a copy of own. PMIx is initialised and finalised within the call, so that a later failure does not end the step.
 * -1 and err: no PMIx although it is needed (names --mpi=pmix), or a part that cannot be read. own NULL: this node has no part (its
 * discovery failed), but takes part in the exchange so that the others do not wait in vain. They wait for HSPMD_PMIX_WAIT_S. */
int hspmd_topology_exchange(const struct hspmd_cluster *own, struct hspmd_cluster **all, int *rank, struct hspmd_error *err);

/* hspmd_topology_text: a cluster as one line of JSON (the caller frees it; NULL: no cluster, or memory). hspmd_topology_merge: the
 * cluster of several such parts (NULL entries are left out). */
char *hspmd_topology_text(const struct hspmd_cluster *c);
struct hspmd_cluster *hspmd_topology_merge(char *const *texts, int count, struct hspmd_error *err);

#define HSPMD_PMIX_WAIT_S 120.0 /* for tasks that start together, and before they give up waiting for each other's hardware */

/* For tasks that exchange data more than once. From open to close all tasks of the step must make the same calls, even after errors, or
 * the others wait in vain; a task that dies in between ends the step. Outside of a step with several tasks there is one task. */
struct hspmd_pmix;
struct hspmd_pmix *hspmd_pmix_open(struct hspmd_error *err);
int hspmd_pmix_rank(const struct hspmd_pmix *s);
int hspmd_pmix_size(const struct hspmd_pmix *s);
int hspmd_pmix_local_rank(const struct hspmd_pmix *s); /* rank among the tasks of this node */
/* Every task passes a text (NULL: none) and, if all is not NULL, receives the texts of all tasks: `size` of them, NULL for none. Blocks
 * until all tasks have called it, or for wait_s; then all further calls fail at once. */
int hspmd_pmix_gather(struct hspmd_pmix *s, const char *own, char ***all, double wait_s, struct hspmd_error *err);
void hspmd_pmix_free_texts(char **texts, int count);
int hspmd_pmix_close(struct hspmd_pmix *s, struct hspmd_error *err); /* NULL is fine; s is freed in any case */
/* Instead of hspmd_pmix_close, for a task that cannot continue while the others would wait for long: the end of this process then ends
 * the step. */
void hspmd_pmix_leave(struct hspmd_pmix *s);

#endif
