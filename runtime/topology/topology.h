/* SPDX-License-Identifier: Apache-2.0 */
/* What this node has, within the cgroup and affinity this process runs in, as its part of the cluster file; and the parts of all nodes of a
 * Slurm step put together over PMIx. */
#ifndef HSPMD_TOPOLOGY_TOPOLOGY_H
#define HSPMD_TOPOLOGY_TOPOLOGY_H

#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"

struct hspmd_topology_options {
	const char *node;     /* the node's name; NULL: SLURMD_NODENAME, else the host name up to its first dot */
	int devices;          /* CPU devices to make of the node's cores, 0: see below; more than there are cores is an error */
	int cores_per_device; /* instead of `devices`: cores each (what is left over stays unused), 0: see below; both 0: one device a NUMA
	                         node */
	bool cpu, gpu;        /* which kinds to report; both false: GPUs where there are any, else the cores */
	bool skip_measure;    /* do not run the short products and copies; tflops then stay 0 and types are told apart by model alone */
};

/* Where one device of the node is: what its worker is started with. */
struct hspmd_binding {
	enum hspmd_device_kind kind;
	int cores;  /* CPU: threads of the device; CUDA: cores of its share for the host side */
	char *cpus; /* those cores, as taskset and cpuset write them ("0-3,8"); never NULL */
	int gpu;    /* CUDA: index among the visible GPUs, as cudaSetDevice takes it; -1 for CPU */
	char *uuid; /* CUDA: "GPU-..." or "MIG-..."; NULL where unknown */
};

struct hspmd_topology {
	struct hspmd_cluster *cluster; /* one node, its device types, and default links (topology.c names the constants) */
	int binding_count;             /* = cluster->device_count */
	struct hspmd_binding *bindings;
};

/* Look. NULL options: all zero. NULL and err when the node has no usable device or an option asks for what is not there. Takes about 0.3 s
 * for the measurement; processes of one user on one machine measure one after another. The caller destroys the result. */
struct hspmd_topology *hspmd_topology_discover(const struct hspmd_topology_options *options, struct hspmd_error *err);
void hspmd_topology_destroy(struct hspmd_topology *t);

/* Under srun with PMIx: put `own` up, wait for all tasks of the step, and on task 0 merge what came (one part a node: the task with local
 * number 0 counts) into *all (the caller destroys it); NULL on the other tasks. *rank (may be NULL) is this task's number. Outside of a
 * step of several tasks *all is a copy of own. PMIx is initialised and finalised within the call, so that work that fails later does not
 * end the step. -1 and err: no PMIx where it is needed (names --mpi=pmix), or a part that cannot be read. own NULL: this node has nothing
 * to give (its discovery failed), but takes its place so that the others do not wait for it in vain. */
int hspmd_topology_exchange(const struct hspmd_cluster *own, struct hspmd_cluster **all, int *rank, struct hspmd_error *err);

/* A cluster as one line of JSON, malloc'd (NULL: none, or memory), and the cluster that several such parts make (NULL entries are left
 * out). */
char *hspmd_topology_text(const struct hspmd_cluster *c);
struct hspmd_cluster *hspmd_topology_merge(char *const *texts, int count, struct hspmd_error *err);

/* For tasks that have more than one thing to tell one another: from open to close all tasks of the step make the same calls, whatever
 * happens to them, or the others wait in vain; a task that dies in between takes the step with it. Outside of a step of several tasks there
 * is one task. */
struct hspmd_pmix;
struct hspmd_pmix *hspmd_pmix_open(struct hspmd_error *err);
int hspmd_pmix_rank(const struct hspmd_pmix *s);
int hspmd_pmix_size(const struct hspmd_pmix *s);
int hspmd_pmix_local_rank(const struct hspmd_pmix *s); /* among the tasks of this node */
/* Every task gives a text (NULL: nothing) and, where all is not NULL, gets everybody's: size of them, NULL for nothing. */
int hspmd_pmix_gather(struct hspmd_pmix *s, const char *own, char ***all, struct hspmd_error *err);
void hspmd_pmix_free_texts(char **texts, int count);
int hspmd_pmix_close(struct hspmd_pmix *s, struct hspmd_error *err); /* NULL is fine; s is gone in any case */
/* Instead of closing it, for who cannot go on while the others would wait for long: the end of this process takes the step with it. */
void hspmd_pmix_leave(struct hspmd_pmix *s);

#endif
