/* SPDX-License-Identifier: Apache-2.0 */
/* cgroups (both versions) and Slurm's environment: limits that are given as numbers, not as bindings. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/topology/topology_internal.h"

static bool read_line(const char *path, char *line, size_t size)
{
	FILE *f = fopen(path, "re");
	if (!f)
		return false;
	bool ok = fgets(line, (int)size, f) != NULL;
	fclose(f);
	if (ok)
		line[strcspn(line, "\n")] = '\0';
	return ok;
}

/* Parse a positive number; 0: none, "max", or invalid. */
static int64_t number(const char *text)
{
	char *end;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	return end != text && !errno && v > 0 ? v : 0;
}

static void lower(int64_t *limit, int64_t value)
{
	/* cgroup 1 expresses "no limit" by a number near 2^63. */
	if (value > 0 && value < INT64_C(1) << 60 && (!*limit || value < *limit))
		*limit = value;
}

static void lower_cpus(struct hspmd_cgroup_limits *l, int64_t cpus)
{
	if (cpus > 0 && cpus < 1 << 20 && (!l->cpus || cpus < l->cpus))
		l->cpus = (int)cpus;
}

/* Limits apply to a group and all below it: read every level up to the root. */
static void read_group(struct hspmd_cgroup_limits *l, const char *root, char *path, bool v2)
{
	for (;;) {
		char file[4400], line[128];
		snprintf(file, sizeof file, "%s%s/%s", root, path, v2 ? "memory.max" : "memory.limit_in_bytes");
		if (read_line(file, line, sizeof line))
			lower(&l->memory_bytes, number(line));
		long long quota = 0, period = 0;
		snprintf(file, sizeof file, "%s%s/%s", root, path, v2 ? "cpu.max" : "cpu.cfs_quota_us");
		if (read_line(file, line, sizeof line)) {
			if (v2) {
				sscanf(line, "%lld %lld", &quota, &period);
			} else {
				quota = number(line);
				snprintf(file, sizeof file, "%s%s/cpu.cfs_period_us", root, path);
				period = read_line(file, line, sizeof line) ? number(line) : 0;
			}
		}
		if (quota > 0 && period > 0)
			lower_cpus(l, (quota + period - 1) / period);
		char *cut = strrchr(path, '/');
		if (!cut)
			return;
		*cut = '\0';
	}
}

static void read_groups(struct hspmd_cgroup_limits *l, const char *root)
{
	char list[256], folder[256], line[4200];
	snprintf(list, sizeof list, "%s/proc/self/cgroup", root);
	FILE *f = fopen(list, "re");
	while (f && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = '\0';
		char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		controllers++;
		if (!strcmp(path, "/"))
			*path = '\0';
		bool v2 = !*controllers, memory = strstr(controllers, "memory"),
		     cpu = strstr(controllers, "cpu") && !strstr(controllers, "cpuset");
		snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, v2 ? "" : memory ? "/memory" : "/cpu");
		if (v2 || memory || cpu)
			read_group(l, folder, path, v2);
	}
	if (f)
		fclose(f);
}

void hspmd_cgroup_limits_read(struct hspmd_cgroup_limits *l, const char *root)
{
	*l = (struct hspmd_cgroup_limits){ 0 };
	read_groups(l, root);
	const char *cpus = getenv("SLURM_CPUS_ON_NODE"), *node = getenv("SLURM_MEM_PER_NODE"), *each = getenv("SLURM_MEM_PER_CPU");
	if (cpus)
		lower_cpus(l, number(cpus));
	if (node)
		lower(&l->memory_bytes, number(node) << 20);
	else if (each && cpus)
		lower(&l->memory_bytes, (number(each) << 20) * number(cpus));
}
