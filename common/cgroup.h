/* SPDX-License-Identifier: Apache-2.0 */
/* What the cgroups of this process (version 1 and 2) allow it as numbers, not as bindings. A limit holds for a group and all groups below,
 * so every level from the process's group up to the root counts. */
#ifndef HSPMD_COMMON_CGROUP_H
#define HSPMD_COMMON_CGROUP_H

#include <stdint.h>

struct hspmd_cgroup {
	int cpus;                    /* hardware threads of the least quota, rounded up; 0: no quota */
	int64_t memory_bytes;        /* the least limit; 0: none */
	int64_t memory_unused_bytes; /* what the fullest group may still take; caches of files, which the kernel would free, count as
	                                unused. INT64_MAX: no limit, or the use of the groups that have one is unknown */
};

/* root: prefix of /proc/self/cgroup and /sys/fs/cgroup; "" except in tests. What cannot be read or understood is no limit. */
void hspmd_cgroup_read(struct hspmd_cgroup *c, const char *root);

/* The first number after `key` at the start of a line of the file; -1: there is none. */
int64_t hspmd_number_after(const char *path, const char *key);

#endif
