/* SPDX-License-Identifier: Apache-2.0 */
#include "common/memory_left.h"

#include "common/cgroup.h"

uint64_t hspmd_memory_left(void)
{
	struct hspmd_cgroup group;
	hspmd_cgroup_read(&group, "");
	int64_t kib = hspmd_number_after("/proc/meminfo", "MemAvailable:");
	uint64_t machine = kib >= 0 ? (uint64_t)kib * 1024 : UINT64_MAX, left = (uint64_t)group.memory_unused_bytes;
	return left < machine ? left : machine;
}
