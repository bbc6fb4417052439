/* SPDX-License-Identifier: Apache-2.0 */
/* State in nodes' memory that agents left when they died: who may remove it, and when. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/cgroup.h"
#include "common/durable.h"
#include "common/shm_dir.h"

#define NOBODY 65534

/* Of this process alone: other tests may run at the same time. */
static char folder[128], job[24], another[24], shorter[24], longer[24];

static const char *in(const char *name)
{
	static char path[4][256];
	static int turn;
	turn = (turn + 1) % 4;
	snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
	return path[turn];
}

static bool there(const char *name)
{
	struct stat st;
	return !lstat(in(name), &st);
}

static void put(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
}

static void age(const char *path, int seconds)
{
	struct timespec t[2];
	clock_gettime(CLOCK_REALTIME, &t[0]);
	t[0].tv_sec -= seconds;
	t[1] = t[0];
	assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

/* Makes a node's folder with a file in it, of an agent that is gone; or, with held, of one that is alive: returns its lock's descriptor. */
static int part(const char *node, const char *of, bool held)
{
	struct hspmd_error err;
	char file[64];
	int fd = hspmd_shm_dir_lock(folder, node, of, HSPMD_SHM_DIR_LOOK_S, &err);
	assert_true(fd >= 0);
	assert_true(!mkdir(in(node), 0700));
	snprintf(file, sizeof file, "%s/%s-0.g1.live", node, node);
	put(in(file));
	if (!held)
		close(fd);
	return held ? fd : -1;
}

static int set_up(void **state)
{
	char name[32];
	(void)state;
	snprintf(name, sizeof name, "test%d", (int)getpid());
	snprintf(shorter, sizeof shorter, "%d", (int)getpid());
	snprintf(job, sizeof job, "%d7", (int)getpid());
	snprintf(another, sizeof another, "%d8", (int)getpid());
	snprintf(longer, sizeof longer, "%d81", (int)getpid());
	char *path = hspmd_shm_dir(name);
	if (!path)
		return 0;
	snprintf(folder, sizeof folder, "%s", path);
	free(path);
	return 0;
}

/* What the job's cgroups leave, instead of what those of this test do. */
static int64_t unused_memory = INT64_MAX;

void __real_hspmd_cgroup_read(struct hspmd_cgroup *c, const char *root);
void __wrap_hspmd_cgroup_read(struct hspmd_cgroup *c, const char *root);

void __wrap_hspmd_cgroup_read(struct hspmd_cgroup *c, const char *root)
{
	__real_hspmd_cgroup_read(c, root);
	c->memory_unused_bytes = unused_memory;
}

/* A copy is begun only if a quarter more than it takes is unused, in the file system and in the job's cgroups. */
static void test_copies_that_do_not_fit(void **state)
{
	struct hspmd_error err = { "" };
	(void)state;
	if (!*folder)
		skip();
	assert_int_equal(hspmd_shm_dir_create(folder, &err), 0);
	assert_int_equal(hspmd_shm_dir_check_space(folder, 4096, &err), 0);
	assert_int_equal(hspmd_shm_dir_check_space(folder, UINT64_C(1) << 60, &err), -1);
	unused_memory = 10 << 20;
	assert_int_equal(hspmd_shm_dir_check_space(folder, 8 << 20, &err), 0);
	assert_int_equal(hspmd_shm_dir_check_space(folder, (8 << 20) + 4, &err), -1);
	assert_non_null(strstr(err.text, "copies in memory need 10 MiB, and 10 MiB are free"));
	unused_memory = 0;
	assert_int_equal(hspmd_shm_dir_check_space(folder, 4, &err), -1);
	unused_memory = INT64_MAX;
}

static int tear_down(void **state)
{
	struct hspmd_error err;
	(void)state;
	return *folder ? hspmd_remove_tree(folder, &err) : 0;
}

static void test_the_end_of_a_job(void **state)
{
	(void)state;
	if (!*folder)
		skip();
	int alive = part("n0", job, true);
	part("n1", job, false);
	part("n2", another, false);
	part("n3", NULL, false);
	/* Not this node's, not this job's, or in use. */
	hspmd_shm_dir_sweep_job(geteuid(), "n0", job, 5);
	hspmd_shm_dir_sweep_job(geteuid(), "n2", shorter, 5);
	hspmd_shm_dir_sweep_job(geteuid(), "n2", longer, 5);
	hspmd_shm_dir_sweep_job(geteuid(), "n", job, 5);
	assert_true(there("n0") && there("n1") && there("n2") && there("n3"));
	hspmd_shm_dir_sweep_job(geteuid(), "n1", job, 5);
	assert_true(there("n0") && !there("n1") && !there("n1.lock") && there("n2") && there("n3"));
	close(alive);
	hspmd_shm_dir_sweep_job(geteuid(), "n0", job, 5);
	hspmd_shm_dir_sweep_job(geteuid(), "n2", another, 5);
	assert_true(!there("n0") && !there("n2") && there("n3"));
}

/* Long after, whatever job it belongs to. */
static void test_what_is_old(void **state)
{
	(void)state;
	if (!*folder)
		skip();
	int alive = part("n5", job, true);
	part("n6", job, false);
	part("n7", job, false);
	age(in("n5"), 86400);
	age(in("n6"), 86400);
	hspmd_shm_dir_sweep();
	assert_true(there("n5") && !there("n6") && there("n7"));
	age(in("n7"), 86400);
	hspmd_shm_dir_sweep_job(geteuid(), "elsewhere", shorter, 5);
	assert_true(there("n5") && !there("n7"));
	close(alive);
}

/* Root removes other users' folders with their rights: files that they cannot remove, and targets of links, stay. */
static void test_as_root(void **state)
{
	char outside[] = "/tmp/hspmd-outside-XXXXXX", link[256];
	struct hspmd_error err;
	(void)state;
	if (!*folder || geteuid())
		skip();
	char own[128];
	snprintf(own, sizeof own, "%s", folder);
	snprintf(folder, sizeof folder, "/dev/shm/hspmd-%d-test%d", NOBODY, (int)getpid());
	part("n1", job, false);
	assert_non_null(mkdtemp(outside));
	snprintf(link, sizeof link, "%s/precious", outside);
	put(link);
	assert_int_equal(symlink(outside, in("n1/link")), 0);
	part("n2", job, false);
	assert_true(!mkdir(in("n2/roots"), 0700));
	put(in("n2/roots/file"));
	const char *const theirs[] = { "", "n1", "n1.lock", "n1/n1-0.g1.live", "n2", "n2.lock" };
	for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
		assert_int_equal(chown(in(theirs[i]), NOBODY, NOBODY), 0);
	hspmd_shm_dir_sweep();
	assert_true(there("n1/n1-0.g1.live"));
	/* The end of another user's job. */
	hspmd_shm_dir_sweep_job(0, "n1", job, 5);
	hspmd_shm_dir_sweep_job(NOBODY - 1, "n1", job, 5);
	assert_true(there("n1/n1-0.g1.live"));
	hspmd_shm_dir_sweep_job(NOBODY, "n1", job, 5);
	hspmd_shm_dir_sweep_job(NOBODY, "n2", job, 5);
	assert_false(there("n1") || there("n1.lock"));
	assert_true(there("n2/roots/file"));
	assert_int_equal(access(link, F_OK), 0);
	/* A folder named after the id of another user. */
	char lie[128];
	snprintf(lie, sizeof lie, "/dev/shm/hspmd-%d-test%d", NOBODY - 1, (int)getpid());
	assert_int_equal(hspmd_remove_tree(folder, &err), 0);
	snprintf(folder, sizeof folder, "%s", lie);
	part("n1", job, false);
	hspmd_shm_dir_sweep_job(NOBODY - 1, "n1", job, 5);
	assert_true(there("n1"));
	assert_int_equal(hspmd_remove_tree(folder, &err), 0);
	assert_int_equal(hspmd_remove_tree(outside, &err), 0);
	snprintf(folder, sizeof folder, "%s", own);
}

/* A process of user NOBODY that stops the first child of `parent` that it may stop. */
static pid_t stopper(pid_t parent)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
	if (setgid(NOBODY) || setuid(NOBODY))
		_exit(1);
	for (;;) {
		FILE *f = fopen(path, "re");
		for (int child; f && fscanf(f, "%d", &child) == 1;)
			if (child != getpid() && !kill(child, SIGSTOP))
				_exit(0);
		if (f)
			fclose(f);
	}
}

/* The user stops the process that removes his files: root does not wait for it. */
static void test_a_stopped_child_is_killed(void **state)
{
	char own[128];
	bool stopped = false;
	(void)state;
	if (!*folder || geteuid() || access("/proc/self/task", R_OK))
		skip();
	snprintf(own, sizeof own, "%s", folder);
	snprintf(folder, sizeof folder, "/dev/shm/hspmd-%d-test%d", NOBODY, (int)getpid());
	for (int attempt = 0; attempt < 20 && !stopped; attempt++) { /* the child may be done first */
		struct hspmd_error err;
		int status;
		char name[48];
		part("n1", job, false);
		for (int i = 0; i < 3000; i++) {
			snprintf(name, sizeof name, "n1/%d", i);
			put(in(name));
			assert_int_equal(chown(in(name), NOBODY, NOBODY), 0);
		}
		const char *const theirs[] = { "", "n1", "n1.lock", "n1/n1-0.g1.live" };
		for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
			assert_int_equal(chown(in(theirs[i]), NOBODY, NOBODY), 0);
		pid_t pid = stopper(getpid());
		hspmd_shm_dir_sweep_job(NOBODY, "n1", job, 0.5);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		stopped = WIFEXITED(status) && WEXITSTATUS(status) == 0;
		assert_int_equal(waitpid(-1, &status, WNOHANG), -1); /* no child is left */
		if (stopped)
			assert_true(there("n1"));
		assert_int_equal(hspmd_remove_tree(folder, &err), 0);
	}
	snprintf(folder, sizeof folder, "%s", own);
	if (!stopped)
		skip();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_end_of_a_job),
		cmocka_unit_test(test_what_is_old),
		cmocka_unit_test(test_as_root),
		cmocka_unit_test(test_a_stopped_child_is_killed),
		cmocka_unit_test(test_copies_that_do_not_fit),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
