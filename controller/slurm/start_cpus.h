/* SPDX-License-Identifier: Apache-2.0 */
/* CPUs of the nodes that the job held at its start. From 24.11 on libslurm does not say them of a running job of several nodes; sbatch's
 * variables do. */
#ifndef HSPMD_CONTROLLER_SLURM_START_CPUS_H
#define HSPMD_CONTROLLER_SLURM_START_CPUS_H

struct hspmd_slurm_start_cpus {
	char **nodes;
	int *cpus;       /* per node */
	int count, next; /* number of nodes; where the next node is looked for first */
};

/* nodes: SLURM_JOB_NODELIST; cpus: SLURM_JOB_CPUS_PER_NODE, such as "4(x2),2", for the nodes in order. Either may be NULL. Nothing is known
 * then, or if memory is short. Free with hspmd_slurm_start_cpus_clear. */
void hspmd_slurm_start_cpus_read(struct hspmd_slurm_start_cpus *s, const char *nodes, const char *cpus);
void hspmd_slurm_start_cpus_clear(struct hspmd_slurm_start_cpus *s);

/* Returns 0 for a node that came later, or if nothing is known. Fast if the nodes are asked for in their order. */
int hspmd_slurm_start_cpus_of(struct hspmd_slurm_start_cpus *s, const char *node);

#endif
