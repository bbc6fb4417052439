/* SPDX-License-Identifier: Apache-2.0 */
/* A run's folder in a node's memory (tmpfs). It outlives workers and agents, is read and written like any other checkpoint location, and is
 * lost with the machine. The job's folder is "/dev/shm/hspmd-UID-RUN". In it each node has a folder of its name, as in a local location,
 * and a lock that the node's agent holds. The lock distinguishes folders in use from folders that a dead agent has left behind. */
#ifndef HSPMD_COMMON_SHM_DIR_H
#define HSPMD_COMMON_SHM_DIR_H

#include <stdint.h>
#include <sys/types.h>

#include "common/error.h"

/* Path of this user's folder for a run (its name), malloc'd; NULL: out of memory, or this machine has no such tmpfs. */
char *hspmd_shm_dir(const char *run);

/* Make the job's folder, accessible to its owner only, or check that an existing folder is. */
int hspmd_shm_dir_create(const char *folder, struct hspmd_error *err);
/* 0 if the file system, the machine and this process's cgroup have memory for `bytes` more, with some to spare; else -1 and err. */
int hspmd_shm_dir_check_space(const char *folder, uint64_t bytes, struct hspmd_error *err);

#define HSPMD_SHM_DIR_TAKEN (-2)
#define HSPMD_SHM_DIR_LOOK_S 1.0 /* for a process that holds the lock only to test it */

/* For agents: create this node's part, for this Slurm job (NULL: none), and lock it. Blocks for up to wait_s. Returns the descriptor that
 * holds the lock; HSPMD_SHM_DIR_TAKEN and err: another agent of the node, which lives, holds it; -1 and err: the part cannot be made. */
int hspmd_shm_dir_lock(const char *folder, const char *node, const char *job, double wait_s, struct hspmd_error *err);
/* Remove the node's part, and the job's folder with the last part. */
void hspmd_shm_dir_remove(const char *folder, const char *node);
/* Remove folders that dead agents of this user have left behind, unless somebody may still come back for them. */
void hspmd_shm_dir_sweep(void);
/* To be called when a Slurm job of user `owner` is over on this node, or the node no longer belongs to it: remove the folders that its
 * agents left here, and other folders of this user as hspmd_shm_dir_sweep does. No other user's folder is looked at. Root must not follow
 * paths that a user may change meanwhile, so a process with the owner's rights does it; it is killed after limit_s, and what it has not
 * removed stays. Blocks for at most limit_s and 2 s, whatever the user's processes do. */
void hspmd_shm_dir_sweep_job(uid_t owner, const char *node, const char *job, double limit_s);

#endif
