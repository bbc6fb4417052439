/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are complete or absent. The linker's --wrap makes system calls fail; the tests of checkpoints check what a crash leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/durable.h"
#include "tests/unit/own_folder.h"

/* ---- system calls that fail on request */

static const char *failing; /* name of the call that fails with EIO, or NULL */
static int until_failure;   /* calls of that name that still succeed */

static int fails(const char *call)
{
	if (!failing || strcmp(failing, call) || until_failure-- > 0)
		return 0;
	errno = EIO;
	return 1;
}

int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_fchmod(int fd, mode_t mode);
ssize_t __real_write(int fd, const void *data, size_t size);

int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_fchmod(int fd, mode_t mode);
ssize_t __wrap_write(int fd, const void *data, size_t size);

int __wrap_fsync(int fd)
{
	return fails("fsync") ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
	return fails("rename") ? -1 : __real_rename(from, to);
}

int __wrap_fchmod(int fd, mode_t mode)
{
	return fails("fchmod") ? -1 : __real_fchmod(fd, mode);
}

/* At most 3 bytes at a time, so that writing has to continue where it stopped. */
ssize_t __wrap_write(int fd, const void *data, size_t size)
{
	return fails("write") ? -1 : __real_write(fd, data, size < 3 ? size : 3);
}

/* ---- the tests */

static struct hspmd_error err;
static char path[512];

static const char *in_folder(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static int entries(const char *where)
{
	DIR *d = opendir(where);
	int n = 0;
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

static void expect_content(const char *name, const char *wanted)
{
	size_t size;
	char *text = hspmd_read_file(in_folder(name), 1 << 20, &size, &err);
	assert_non_null(text);
	assert_int_equal(size, strlen(wanted));
	assert_string_equal(text, wanted);
	free(text);
}

static void writes_and_replaces(void **state)
{
	(void)state;
	assert_int_equal(hspmd_durable_write(in_folder("f"), "one", 3, &err), 0);
	expect_content("f", "one");
	assert_int_equal(chmod(in_folder("f"), 0640), 0);
	assert_int_equal(hspmd_durable_write(in_folder("f"), "", 0, &err), 0);
	expect_content("f", "");
	struct stat st;
	assert_int_equal(stat(in_folder("f"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(entries(folder), 1);
	assert_int_equal(hspmd_durable_sync(in_folder("f"), &err), 0);
	assert_int_equal(hspmd_durable_sync(in_folder("none"), &err), -1);
}

static void keeps_links_and_devices(void **state)
{
	(void)state;
	char target[512];
	snprintf(target, sizeof target, "%s/target", folder);
	assert_int_equal(hspmd_durable_write(target, "old", 3, &err), 0);
	assert_int_equal(symlink("target", in_folder("link")), 0);
	assert_int_equal(hspmd_durable_write(in_folder("link"), "new", 3, &err), 0);
	expect_content("target", "new");
	struct stat st;
	assert_int_equal(lstat(in_folder("link"), &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(hspmd_durable_write("/dev/null", "x", 1, &err), 0);
	assert_int_equal(stat("/dev/null", &st), 0);
	assert_true(S_ISCHR(st.st_mode));
}

static void failure_leaves_the_old_file(void **state)
{
	(void)state;
	assert_int_equal(hspmd_durable_write(in_folder("nowhere/f"), "x", 1, &err), -1);
	assert_non_null(strstr(err.text, "nowhere/f"));
	assert_int_equal(hspmd_durable_write(folder, "x", 1, &err), -1);
	assert_non_null(strstr(err.text, "Is a directory"));
	if (geteuid()) {
		assert_int_equal(hspmd_durable_mkdir(in_folder("shut"), 0755, &err), 0);
		assert_int_equal(hspmd_durable_write(in_folder("shut/f"), "old", 3, &err), 0);
		assert_int_equal(chmod(in_folder("shut"), 0500), 0);
		assert_int_equal(hspmd_durable_write(in_folder("shut/f"), "new", 3, &err), -1);
		expect_content("shut/f", "old");
		assert_int_equal(chmod(in_folder("shut"), 0700), 0);
	}
	assert_int_equal(hspmd_write_all(-1, "x", 1), -1);
	assert_int_equal(hspmd_durable_write("/dev/full", "x", 1, &err), -1);
	assert_non_null(strstr(err.text, "/dev/full: No space left on device"));
}

static void failing_calls_leave_the_old_file(void **state)
{
	(void)state;
	static const struct {
		const char *call;
		int until;
		const char *left;
	} cases[] = {
		{ "fchmod", 0, "old" }, { "write", 0, "old" },  { "write", 2, "old" },
		{ "fsync", 0, "old" },  { "rename", 0, "old" }, { "fsync", 1, "new and longer" }, /* the folder's: the file is there */
	};
	assert_int_equal(hspmd_durable_mkdir(in_folder("calls"), 0755, &err), 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(hspmd_durable_write(in_folder("calls/f"), "old", 3, &err), 0);
		failing = cases[i].call;
		until_failure = cases[i].until;
		assert_int_equal(hspmd_durable_write(in_folder("calls/f"), "new and longer", 14, &err), -1);
		failing = NULL;
		assert_non_null(strstr(err.text, "Input/output error"));
		assert_null(strstr(err.text, ".tmp-")); /* the name that the caller knows */
		expect_content("calls/f", cases[i].left);
		assert_int_equal(entries(in_folder("calls")), 1);
	}
	failing = "fsync";
	until_failure = 0;
	assert_int_equal(hspmd_durable_mkdir(in_folder("calls/unsynced"), 0755, &err), -1);
	failing = NULL;
}

static void makes_and_removes_folders(void **state)
{
	(void)state;
	assert_int_equal(hspmd_durable_mkdir(in_folder("a/b//c/"), 0755, &err), 0);
	assert_int_equal(hspmd_durable_mkdir(in_folder("a/b/c"), 0755, &err), 0);
	assert_int_equal(hspmd_durable_write(in_folder("a/b/c/f"), "x", 1, &err), 0);
	assert_int_equal(hspmd_durable_mkdir(in_folder("a/b/c/f"), 0755, &err), -1);
	assert_int_equal(hspmd_durable_mkdir(in_folder("a/b/c/f/g"), 0755, &err), -1);
	assert_non_null(strstr(err.text, "a/b/c/f: Not a directory"));
	assert_int_equal(hspmd_durable_mkdir("", 0755, &err), -1);
	assert_int_equal(hspmd_durable_write(in_folder("keep"), "x", 1, &err), 0);
	assert_int_equal(symlink("../keep", in_folder("a/link")), 0);
	assert_int_equal(symlink(".", in_folder("a/self")), 0);
	assert_int_equal(hspmd_remove_tree(in_folder("a"), &err), 0);
	assert_int_equal(access(in_folder("a"), F_OK), -1);
	expect_content("keep", "x");
	assert_int_equal(hspmd_remove_tree(in_folder("a"), &err), 0);
	assert_int_equal(hspmd_remove_tree(in_folder("keep"), &err), 0);
	assert_int_equal(access(in_folder("keep"), F_OK), -1);
}

static void reads_whole_files(void **state)
{
	(void)state;
	size_t size;
	assert_int_equal(hspmd_durable_write(in_folder("r"), "12345", 5, &err), 0);
	char *text = hspmd_read_file(in_folder("r"), 5, &size, &err);
	assert_non_null(text);
	assert_int_equal(text[5], '\0');
	free(text);
	assert_null(hspmd_read_file(in_folder("r"), 4, &size, &err));
	assert_non_null(strstr(err.text, "more than 4 bytes"));
	assert_null(hspmd_read_file(in_folder("none"), 4, &size, &err));
	assert_null(hspmd_read_file(folder, 1 << 20, &size, &err));
	assert_non_null(strstr(err.text, "Is a directory"));
	assert_null(hspmd_read_file("/dev/zero", 100000, &size, &err)); /* without end, and without a known size */
	assert_non_null(strstr(err.text, "more than 100000 bytes"));
	/* A pipe is read; a pipe to which nothing is written is given up. */
	assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
	pid_t writer = fork();
	if (!writer) {
		int fd = open(in_folder("pipe"), O_WRONLY);
		_exit(fd < 0 || hspmd_write_all(fd, "piped", 5) ? 1 : 0);
	}
	expect_content("pipe", "piped");
	int status = 1;
	assert_int_equal(waitpid(writer, &status, 0), writer);
	assert_int_equal(status, 0);
	assert_null(hspmd_read_file(in_folder("pipe"), 4, &size, &err));
	assert_non_null(strstr(err.text, "nobody writes to this pipe"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_and_replaces),
		cmocka_unit_test(keeps_links_and_devices),
		cmocka_unit_test(failure_leaves_the_old_file),
		cmocka_unit_test(makes_and_removes_folders),
		cmocka_unit_test(failing_calls_leave_the_old_file),
		cmocka_unit_test(reads_whole_files),
	};
	return cmocka_run_group_tests_name("durable", tests, make_folder, drop_folder);
}
