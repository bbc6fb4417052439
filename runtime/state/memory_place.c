/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/memory_place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/log.h"

#define TMPFS "/dev/shm"
#define LOCK ".lock"
#define LEFT_S 1800 /* a controller's patience with a lost agent is shorter */

char *hspmd_memory_place(const char *run)
{
	return access(TMPFS, W_OK | X_OK) ? NULL : hspmd_asprintf(TMPFS "/hspmd-%u-%s", (unsigned)geteuid(), run);
}

int hspmd_memory_place_make(const char *folder, struct hspmd_error *err)
{
	struct stat st;
	if (mkdir(folder, 0700) && errno != EEXIST)
		return hspmd_fail_errno(err, "%s", folder);
	if (lstat(folder, &st))
		return hspmd_fail_errno(err, "%s", folder);
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
		return hspmd_fail(err, "%s: it belongs to somebody else, or others may use it", folder);
	return 0;
}

/* ---- room */

/* The first number after `key` in a file; or, key NULL, the file's first word. -1: there is none. */
static int64_t number_in(const char *path, const char *key)
{
	char line[256];
	long long value = -1;
	FILE *f = fopen(path, "re");
	while (f && value < 0 && fgets(line, sizeof line, f))
		if ((!key || !strncmp(line, key, strlen(key))) && sscanf(key ? line + strlen(key) : line, "%lld", &value) != 1) {
			value = -1;
			if (!key)
				break;
		}
	if (f)
		fclose(f);
	return value;
}

/* What is left within this process's group (cgroup 2); INT64_MAX: there is no limit. */
static int64_t left_in_group(void)
{
	char line[4096], path[4200];
	int64_t limit = -1, used = -1;
	FILE *f = fopen("/proc/self/cgroup", "re");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, "0::", 3)) {
			line[strcspn(line, "\n")] = '\0';
			snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
			limit = number_in(path, NULL);
			snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", line + 3);
			used = number_in(path, NULL);
		}
	if (f)
		fclose(f);
	return limit >= 0 && used >= 0 ? limit - used : INT64_MAX;
}

int hspmd_memory_place_room(const char *folder, uint64_t bytes, struct hspmd_error *err)
{
	struct statvfs fs;
	if (statvfs(folder, &fs))
		return hspmd_fail_errno(err, "%s", folder);
	int64_t kib = number_in("/proc/meminfo", "MemAvailable:"), group = left_in_group();
	uint64_t there = (uint64_t)fs.f_bavail * fs.f_frsize, machine = kib >= 0 ? (uint64_t)kib * 1024 : UINT64_MAX, wanted = bytes + bytes / 4;
	there = machine < there ? machine : there;
	there = group < 0 ? 0 : (uint64_t)group < there ? (uint64_t)group : there;
	if (there < wanted)
		return hspmd_fail(err, "%s: copies in memory need %" PRIu64 " MiB, and %" PRIu64 " MiB are free", folder, wanted >> 20, there >> 20);
	return 0;
}

/* ---- agents */

int hspmd_memory_place_take(const char *folder, const char *node, struct hspmd_error *err)
{
	if (hspmd_memory_place_make(folder, err))
		return -1;
	char *path = hspmd_asprintf("%s/%s" LOCK, folder, node);
	int fd = path ? open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
	if (!path)
		hspmd_fail_memory(err, "taking a place in memory");
	else if (fd < 0)
		hspmd_fail_errno(err, "%s", path);
	else if (flock(fd, LOCK_EX | LOCK_NB)) {
		hspmd_fail_errno(err, "%s: another agent has it", path);
		close(fd);
		fd = -1;
	}
	free(path);
	return fd;
}

void hspmd_memory_place_remove(const char *folder, const char *node)
{
	struct hspmd_error err;
	char *own = hspmd_asprintf("%s/%s", folder, node), *lock = hspmd_asprintf("%s/%s" LOCK, folder, node);
	if (own && hspmd_remove_tree(own, &err))
		hspmd_warn("%s", err.text);
	if (lock)
		unlink(lock);
	rmdir(folder); /* fails while another node's part is there */
	free(own);
	free(lock);
}

/* Nobody holds the lock, and nothing was written for long. */
static bool left_behind(const char *folder, const char *lock_name)
{
	struct stat st;
	char *path = hspmd_asprintf("%s/%s", folder, lock_name);
	int fd = path ? open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC) : -1;
	bool left = fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB);
	if (fd >= 0)
		close(fd);
	if (left && path) {
		path[strlen(path) - strlen(LOCK)] = '\0';
		left = stat(path, &st) ? errno == ENOENT : time(NULL) - st.st_mtime > LEFT_S;
	}
	free(path);
	return left;
}

static void sweep_folder(const char *folder)
{
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));) {
		size_t n = strlen(e->d_name);
		if (n <= strlen(LOCK) || strcmp(e->d_name + n - strlen(LOCK), LOCK) || !left_behind(folder, e->d_name))
			continue;
		char node[256];
		snprintf(node, sizeof node, "%.*s", (int)(n - strlen(LOCK)), e->d_name);
		hspmd_memory_place_remove(folder, node);
	}
	if (d)
		closedir(d);
}

void hspmd_memory_place_sweep(void)
{
	char own[40];
	snprintf(own, sizeof own, "hspmd-%u-", (unsigned)geteuid());
	DIR *d = opendir(TMPFS);
	for (struct dirent *e; d && (e = readdir(d));) {
		struct stat st;
		char *path = strncmp(e->d_name, own, strlen(own)) ? NULL : hspmd_asprintf(TMPFS "/%s", e->d_name);
		if (path && !lstat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid())
			sweep_folder(path);
		free(path);
	}
	if (d)
		closedir(d);
}
