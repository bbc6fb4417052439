/* SPDX-License-Identifier: Apache-2.0 */
/* Which QOS may preempt which, at sites with PreemptType=preempt/qos. */
#ifndef HSPMD_SLURM_QOS_H
#define HSPMD_SLURM_QOS_H

#include <stdbool.h>

#include "common/error.h"

struct hspmd_slurm_qos {
	char *name;
	char *preempts;   /* names with commas: jobs of this QOS preempt jobs of those; "" if none */
	bool preemptable; /* its jobs may be preempted at all: its own PreemptMode is not OFF */
	int level;        /* longest chain of QOS, each preempting the next, that begins here; 0: it preempts none */
};

struct hspmd_slurm_qos_table {
	int count;
	struct hspmd_slurm_qos *qos;
};

/* Reads the table with sacctmgr, which asks slurmdbd. Blocks for at most 15 s. Returns 0, or -1 and err; the table is then empty. */
int hspmd_slurm_qos_read(struct hspmd_slurm_qos_table *t, struct hspmd_error *err);
/* Reads it from what `sacctmgr --parsable2 --noheader show qos format=Name,Preempt,PreemptMode` prints. Cuts text into lines. */
int hspmd_slurm_qos_parse(struct hspmd_slurm_qos_table *t, char *text, struct hspmd_error *err);
int hspmd_slurm_qos_copy(struct hspmd_slurm_qos_table *to, const struct hspmd_slurm_qos_table *from);
void hspmd_slurm_qos_clear(struct hspmd_slurm_qos_table *t);

/* NULL: no such QOS. */
const struct hspmd_slurm_qos *hspmd_slurm_qos_find(const struct hspmd_slurm_qos_table *t, const char *name);
/* Returns true if jobs of one QOS preempt jobs of another. */
bool hspmd_slurm_qos_preempts(const struct hspmd_slurm_qos_table *t, const char *name, const char *other);

#endif
