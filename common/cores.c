/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cores.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"

void hspmd_bind_to_cores(const char *cpus)
{
	cpu_set_t want, may;
	CPU_ZERO(&want);
	for (const char *at = cpus; *at;) {
		char *end;
		long first = strtol(at, &end, 10), last = first;
		if (end == at)
			return;
		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		for (long c = first; c >= 0 && c <= last && c < CPU_SETSIZE; c++)
			CPU_SET((size_t)c, &want);
		at = *end == ',' ? end + 1 : end;
		if (*end && *end != ',')
			return;
	}
	if (sched_getaffinity(0, sizeof may, &may))
		return;
	CPU_AND(&want, &want, &may);
	if (CPU_COUNT(&want) && sched_setaffinity(0, sizeof want, &want))
		hspmd_warn("cannot be bound to cores %s: %s", cpus, strerror(errno));
}

int hspmd_usable_cores(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0)
		return CPU_COUNT(&set);
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (int)n : 1;
}
