/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cgroup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 4400

/* Names of the files of one version. */
struct names {
	const char *limit, *usage, *cache, *quota;
};
static const struct names names_of[2] = {
	{ "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "cpu.cfs_quota_us" },
	{ "memory.max", "memory.current", "inactive_file ", "cpu.max" },
};

static bool read_line(const char *folder, const char *name, char *line, size_t size)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "re");
	bool ok = f && fgets(line, (int)size, f);
	if (f)
		fclose(f);
	if (ok)
		line[strcspn(line, "\n")] = '\0';
	return ok;
}

/* Parses a number that is not negative; -1: none, "max", or invalid. */
static int64_t parse(const char *text)
{
	char *end;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	return end != text && !errno && v >= 0 ? v : -1;
}

static int64_t read_number(const char *folder, const char *name)
{
	char line[128];
	return read_line(folder, name, line, sizeof line) ? parse(line) : -1;
}

int64_t hspmd_number_after(const char *path, const char *key)
{
	char line[256];
	int64_t value = -1;
	FILE *f = fopen(path, "re");
	while (f && value < 0 && fgets(line, sizeof line, f))
		if (!strncmp(line, key, strlen(key)))
			value = parse(line + strlen(key));
	if (f)
		fclose(f);
	return value;
}

static void read_memory(struct hspmd_cgroup *c, const char *folder, const struct names *n)
{
	char stat[PATH_BYTES];
	int64_t limit = read_number(folder, n->limit), used = read_number(folder, n->usage);
	/* cgroup 1 expresses "no limit" by a number near 2^63. */
	if (limit <= 0 || limit >= INT64_C(1) << 60)
		return;
	if (!c->memory_bytes || limit < c->memory_bytes)
		c->memory_bytes = limit;
	if (used < 0)
		return;
	snprintf(stat, sizeof stat, "%s/memory.stat", folder);
	int64_t cache = hspmd_number_after(stat, n->cache);
	if (cache > 0)
		used -= cache < used ? cache : used;
	int64_t unused = limit > used ? limit - used : 0;
	if (unused < c->memory_unused_bytes)
		c->memory_unused_bytes = unused;
}

static void read_cpus(struct hspmd_cgroup *c, const char *folder, bool v2)
{
	char line[128];
	long long quota = 0, period = 0;
	if (!v2) {
		quota = read_number(folder, names_of[0].quota);
		period = read_number(folder, "cpu.cfs_period_us");
	} else if (read_line(folder, names_of[1].quota, line, sizeof line)) {
		sscanf(line, "%lld %lld", &quota, &period);
	}
	if (quota <= 0 || period <= 0)
		return;
	long long cpus = quota / period + (quota % period > 0);
	if (cpus < 1 << 20 && (!c->cpus || cpus < c->cpus))
		c->cpus = (int)cpus;
}

/* Reads the group `path` below `top` and all groups above it. Cuts the path. */
static void read_group(struct hspmd_cgroup *c, const char *top, char *path, bool v2)
{
	for (;;) {
		char folder[PATH_BYTES - 64];
		snprintf(folder, sizeof folder, "%s%s", top, path);
		read_memory(c, folder, &names_of[v2]);
		read_cpus(c, folder, v2);
		char *cut = strrchr(path, '/');
		if (!cut)
			return;
		*cut = '\0';
	}
}

void hspmd_cgroup_read(struct hspmd_cgroup *c, const char *root)
{
	char list[256], top[256], line[4000];
	*c = (struct hspmd_cgroup){ .memory_unused_bytes = INT64_MAX };
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
		snprintf(top, sizeof top, "%s/sys/fs/cgroup%s", root, v2 ? "" : memory ? "/memory" : "/cpu");
		if (v2 || memory || cpu)
			read_group(c, top, path, v2);
	}
	if (f)
		fclose(f);
}
