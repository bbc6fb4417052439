/* SPDX-License-Identifier: Apache-2.0 */
/* The place for checkpoints in memory: a folder on the node's tmpfs. It outlives workers and agents, is read and written like any other
 * place, and is gone with the machine. The job's folder is "/dev/shm/hspmd-UID-RUN"; in it each node has a folder of its name, as in a
 * local place, and a lock that its agent holds, so that what an agent left behind can be told from what is in use. */
#ifndef HSPMD_COMMON_SHM_DIR_H
#define HSPMD_COMMON_SHM_DIR_H

#include <stdint.h>

#include "common/error.h"

/* The folder of a run (its name) for this user, malloc'd; NULL: memory is short, or this machine has no tmpfs for it. */
char *hspmd_shm_dir(const char *run);

/* Make the job's folder, for its owner alone, or check that what is there is. */
int hspmd_shm_dir_create(const char *folder, struct hspmd_error *err);
/* Is there memory for `bytes` more, and some to spare, on the file system, the machine and within this process's cgroup? -1 and err: there
 * is not. */
int hspmd_shm_dir_check_space(const char *folder, uint64_t bytes, struct hspmd_error *err);

/* For agents: take this node's part, for this Slurm job (NULL: none). Returns a descriptor that holds the lock; -1 and err: it cannot be
 * made, or another agent has it. */
int hspmd_shm_dir_lock(const char *folder, const char *node, const char *job, struct hspmd_error *err);
/* Remove the node's part, and the job's folder with the last. */
void hspmd_shm_dir_remove(const char *folder, const char *node);
/* Remove what agents of this user left behind that died without a word, unless somebody may still come back for it. */
void hspmd_shm_dir_sweep(void);
/* A Slurm job is over on this node, or the node is no longer its: remove what its agents there left behind, and what others' did as above.
 * For all users where the caller is root; never as root: each as its owner, in a process of its own that has limit_s to do so. */
void hspmd_shm_dir_sweep_job(const char *node, const char *job, unsigned limit_s);

#endif
