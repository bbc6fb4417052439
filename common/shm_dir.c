/* SPDX-License-Identifier: Apache-2.0 */
#include "common/shm_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/durable.h"
#include "common/log.h"
#include "common/memory_left.h"

#define TMPFS "/dev/shm"
#define LOCK ".lock"
#define KILL_S 2.0 /* time for a killed process to be gone */
#define NO_GROUP 65534
#define LEFT_S 1800 /* a controller waits less long for a lost agent */

char *hspmd_shm_dir(const char *run)
{
	return access(TMPFS, W_OK | X_OK) ? NULL : hspmd_asprintf(TMPFS "/hspmd-%u-%s", (unsigned)geteuid(), run);
}

int hspmd_shm_dir_create(const char *folder, struct hspmd_error *err)
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

/* ---- free memory */

int hspmd_shm_dir_check_space(const char *folder, uint64_t bytes, struct hspmd_error *err)
{
	struct statvfs fs;
	if (statvfs(folder, &fs))
		return hspmd_fail_errno(err, "%s", folder);
	uint64_t there = (uint64_t)fs.f_bavail * fs.f_frsize, left = hspmd_memory_left(), wanted = bytes + bytes / 4;
	there = left < there ? left : there;
	if (there < wanted)
		return hspmd_fail(err, "%s: copies in memory need %" PRIu64 " MiB, and %" PRIu64 " MiB are free", folder, wanted >> 20,
		                  there >> 20);
	return 0;
}

/* ---- agents */

/* Another process may hold the lock for a moment, to test whether the folder was left behind. Returns HSPMD_SHM_DIR_TAKEN if it is held
 * for longer, or its holder has removed the file meanwhile. */
static int lock(int fd, double wait_s)
{
	double until = hspmd_now() + wait_s;
	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -1;
		if (hspmd_now() > until)
			return HSPMD_SHM_DIR_TAKEN;
		nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	}
	struct stat st;
	return fstat(fd, &st) ? -1 : st.st_nlink ? 0 : HSPMD_SHM_DIR_TAKEN;
}

int hspmd_shm_dir_lock(const char *folder, const char *node, const char *job, double wait_s, struct hspmd_error *err)
{
	if (hspmd_shm_dir_create(folder, err))
		return -1;
	char *path = hspmd_asprintf("%s/%s" LOCK, folder, node);
	int fd = path ? open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600) : -1, locked = fd < 0 ? -1 : lock(fd, wait_s);
	if (!path)
		hspmd_fail_memory(err, "taking a place in memory");
	else if (fd < 0)
		hspmd_fail_errno(err, "%s", path);
	else if (locked) {
		if (locked == HSPMD_SHM_DIR_TAKEN)
			hspmd_fail(err, "%s: another agent has it", path);
		else
			hspmd_fail_errno(err, "%s", path);
		close(fd);
		fd = locked;
	} else if (ftruncate(fd, 0) || (job && hspmd_write_all(fd, job, strlen(job)))) {
		hspmd_fail_errno(err, "%s", path);
		close(fd);
		fd = -1;
	}
	free(path);
	return fd;
}

void hspmd_shm_dir_remove(const char *folder, const char *node)
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

/* The job whose end is the reason for the sweep. */
struct over {
	const char *node, *job; /* NULL: none */
};

static bool holds_text(int fd, const char *text)
{
	char said[64];
	ssize_t n = pread(fd, said, sizeof said, 0);
	return n >= 0 && (size_t)n == strlen(text) && !memcmp(said, text, (size_t)n);
}

/* True if nobody holds the lock, and the folder belongs to the job that is over or nothing was written for long. */
static bool left_behind(const char *folder, const char *lock_name, const struct over *over)
{
	struct stat st;
	size_t n = strlen(lock_name) - strlen(LOCK);
	char *path = hspmd_asprintf("%s/%s", folder, lock_name);
	int fd = path ? open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC) : -1;
	bool left = fd >= 0 && !flock(fd, LOCK_SH | LOCK_NB); /* others may test as well */
	bool its = left && over->job && strlen(over->node) == n && !memcmp(lock_name, over->node, n) && holds_text(fd, over->job);
	if (fd >= 0)
		close(fd);
	if (left && !its) {
		path[strlen(path) - strlen(LOCK)] = '\0';
		left = stat(path, &st) ? errno == ENOENT : time(NULL) - st.st_mtime > LEFT_S;
	}
	free(path);
	return left;
}

static void sweep_folder(const char *folder, const struct over *over)
{
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));) {
		size_t n = strlen(e->d_name);
		if (n <= strlen(LOCK) || strcmp(e->d_name + n - strlen(LOCK), LOCK) || !left_behind(folder, e->d_name, over))
			continue;
		char node[256];
		snprintf(node, sizeof node, "%.*s", (int)(n - strlen(LOCK)), e->d_name);
		hspmd_shm_dir_remove(folder, node);
	}
	if (d)
		closedir(d);
}

/* The name of a run's folder contains its owner's number; other folders are not ours. */
static bool is_own(const char *name, const char *path)
{
	char own[40];
	struct stat st;
	snprintf(own, sizeof own, "hspmd-%u-", (unsigned)geteuid());
	return !strncmp(name, own, strlen(own)) && !lstat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

static void sweep(const struct over *over)
{
	DIR *d = opendir(TMPFS);
	for (struct dirent *e; d && (e = readdir(d));) {
		char *path = strncmp(e->d_name, "hspmd-", 6) ? NULL : hspmd_asprintf(TMPFS "/%s", e->d_name);
		if (path && is_own(e->d_name, path))
			sweep_folder(path, over);
		free(path);
	}
	if (d)
		closedir(d);
}

void hspmd_shm_dir_sweep(void)
{
	sweep(&(struct over){ 0 });
}

/* Become the user. The group does not matter: a run's folder is accessible to its owner only. */
static int become(uid_t owner)
{
	if (owner == geteuid())
		return 0;
	return setgroups(0, NULL) || setresgid(NO_GROUP, NO_GROUP, NO_GROUP) || setresuid(owner, owner, owner) ? -1 : 0;
}

void hspmd_shm_dir_sweep_job(uid_t owner, const char *node, const char *job, double limit_s)
{
	double until = hspmd_now() + limit_s;
	pid_t pid = fork();
	if (!pid) {
		if (!become(owner))
			sweep(&(struct over){ node, job });
		_exit(0);
	}
	/* The user's other processes can stop this one, and make it work for ever; they cannot keep it from being killed. */
	bool killed = false;
	while (pid > 0 && !waitpid(pid, NULL, WNOHANG) && hspmd_now() < until + KILL_S) {
		if (!killed && hspmd_now() >= until)
			killed = !kill(pid, SIGKILL);
		nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	}
}
