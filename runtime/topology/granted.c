/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of cgroups and of Slurm's environment together. */
#include <errno.h>
#include <stdlib.h>

#include "common/cgroup.h"
#include "runtime/topology/topology_internal.h"

/* A positive number; 0: none, or invalid. */
static int64_t number(const char *text)
{
	char *end;
	errno = 0;
	long long v = text ? strtoll(text, &end, 10) : 0;
	return v > 0 && end != text && !errno ? v : 0;
}

static int64_t lesser(int64_t limit, int64_t value)
{
	return value > 0 && (!limit || value < limit) ? value : limit;
}

void hspmd_granted_read(struct hspmd_granted *g, const char *root)
{
	struct hspmd_cgroup c;
	int64_t cpus = number(getenv("SLURM_CPUS_ON_NODE")), node_mib = number(getenv("SLURM_MEM_PER_NODE")),
	        each_mib = number(getenv("SLURM_MEM_PER_CPU")), memory = 0;
	hspmd_cgroup_read(&c, root);
	if (cpus >= 1 << 20)
		cpus = 0;
	/* Slurm sets one of the two. */
	if (__builtin_mul_overflow(node_mib ? node_mib : each_mib * (cpus > 0), INT64_C(1) << 20, &memory) ||
	    (!node_mib && __builtin_mul_overflow(memory, cpus, &memory)))
		memory = 0;
	g->cpus = (int)lesser(c.cpus, cpus);
	g->memory_bytes = lesser(c.memory_bytes, memory);
}
