/* SPDX-License-Identifier: Apache-2.0 */
#include "common/durable.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"

#define TEMPORARY_TRIES 1000
#define READ_CHUNK ((size_t)64 << 10)
#define WRITER_MS 10000 /* time for a writer of a pipe to appear */

int hspmd_write_all(int fd, const void *data, size_t size)
{
	const char *p = data;
	while (size) {
		ssize_t n = write(fd, p, size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			if (n == 0)
				errno = EIO;
			return -1;
		}
		p += n;
		size -= (size_t)n;
	}
	return 0;
}

int hspmd_read_at(int fd, void *data, size_t size, uint64_t offset)
{
	for (size_t got = 0; got < size;) {
		ssize_t n = pread(fd, (char *)data + got, size - got, (off_t)(offset + got));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			errno = n ? errno : ENODATA;
			return -1;
		}
		got += (size_t)n;
	}
	return 0;
}

static void close_keeping_errno(int fd)
{
	int saved = errno;
	close(fd);
	errno = saved;
}

/* ---- reading */

/* All bytes of fd, at most `max`, in a buffer with initial room for `hint`. */
static char *read_all(int fd, size_t hint, size_t max, size_t *size)
{
	size_t length = 0, capacity = (hint < max ? hint : max) + 2;
	char *text = malloc(capacity);
	while (text) {
		if (capacity - length < 2) {
			size_t wanted = capacity * 2 < max + 2 ? capacity * 2 : max + 2;
			char *grown = realloc(text, wanted);
			if (!grown)
				break;
			text = grown;
			capacity = wanted;
		}
		ssize_t n = read(fd, text + length, capacity - length - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		if (n == 0) {
			text[length] = '\0';
			*size = length;
			return text;
		}
		length += (size_t)n;
		if (length > max) {
			errno = EFBIG;
			break;
		}
	}
	int saved = errno;
	free(text);
	errno = saved;
	return NULL;
}

static char *read_fd(int fd, const char *name, size_t max, size_t *size, struct hspmd_error *err)
{
	struct stat st;
	if (fstat(fd, &st) < 0) {
		hspmd_fail_errno(err, "%s", name);
		return NULL;
	}
	size_t hint = S_ISREG(st.st_mode) ? (size_t)st.st_size : READ_CHUNK;
	char *text = NULL;
	if (S_ISREG(st.st_mode) && hint > max)
		errno = EFBIG;
	else
		text = read_all(fd, hint, max, size);
	if (!text && errno == EFBIG)
		hspmd_fail(err, "%s: more than %zu bytes, too large to be what is expected here", name, max);
	else if (!text)
		hspmd_fail_errno(err, "%s", name);
	return text;
}

/* Open without blocking: opening a pipe without a writer would block forever. *silent: nobody has written to the pipe, or closed it, in
 * time. */
static int open_to_read(const char *path, bool *silent)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), n = 1;
	struct pollfd writer = { .fd = fd, .events = POLLIN };
	if (fd >= 0 && !fstat(fd, &st) && S_ISFIFO(st.st_mode))
		while ((n = poll(&writer, 1, WRITER_MS)) < 0 && errno == EINTR)
			;
	*silent = n == 0;
	/* A pipe with a slow writer is waited for; without a writer there is nothing to read. */
	if (fd >= 0)
		fcntl(fd, F_SETFL, O_RDONLY);
	return fd;
}

char *hspmd_read_file(const char *path, size_t max, size_t *size, struct hspmd_error *err)
{
	size_t unused, *length = size ? size : &unused;
	bool silent;
	if (!strcmp(path, "-"))
		return read_fd(STDIN_FILENO, "standard input", max, length, err);
	int fd = open_to_read(path, &silent);
	if (fd < 0) {
		hspmd_fail_errno(err, "%s", path);
		return NULL;
	}
	char *text = read_fd(fd, path, max, length, err);
	close_keeping_errno(fd);
	if (text && silent && !*length) {
		hspmd_fail(err, "%s: nobody writes to this pipe (waited %d s)", path, WRITER_MS / 1000);
		free(text);
		return NULL;
	}
	return text;
}

/* ---- writing */

static int sync_fd(int fd)
{
	if (!fsync(fd))
		return 0;
	/* Some file systems cannot sync a folder and say so; they offer nothing better. */
	struct stat st;
	if ((errno == EINVAL || errno == ENOTSUP) && !fstat(fd, &st) && S_ISDIR(st.st_mode))
		return 0;
	return -1;
}

int hspmd_durable_sync(const char *path, struct hspmd_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return hspmd_fail_errno(err, "%s", path);
	int rc = sync_fd(fd);
	if (rc)
		hspmd_fail_errno(err, "%s: sync", path);
	close_keeping_errno(fd);
	return rc;
}

/* Sync the folder that holds path's last name. */
static int sync_parent(const char *path, struct hspmd_error *err)
{
	size_t n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n > 0 && path[n - 1] != '/')
		n--;
	char *parent = n ? strndup(path, n) : strdup(".");
	if (!parent)
		return hspmd_fail_memory(err, path);
	int rc = hspmd_durable_sync(parent, err);
	free(parent);
	return rc;
}

/* A new file next to target. Its name holds this process's id, but other nodes share file systems, so names in use are skipped. */
static int open_temporary(const char *target, char **name, struct hspmd_error *err)
{
	static atomic_uint serial;
	for (int i = 0; i < TEMPORARY_TRIES; i++) {
		*name = hspmd_asprintf("%s.tmp-%ld-%u", target, (long)getpid(), atomic_fetch_add(&serial, 1));
		if (!*name)
			return hspmd_fail_memory(err, target);
		int fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd >= 0)
			return fd;
		if (errno != EEXIST) {
			hspmd_fail_errno(err, "%s", target); /* the name that the caller knows */
			break;
		}
		free(*name);
		*name = NULL;
	}
	if (!*name)
		hspmd_fail(err, "%s: no free temporary name beside it", target);
	free(*name);
	*name = NULL;
	return -1;
}

/* name: for errors. */
static int write_and_close(int fd, const char *name, const void *data, size_t size, const struct stat *old, struct hspmd_error *err)
{
	int rc = 0;
	if ((old && fchmod(fd, old->st_mode & 07777)) || hspmd_write_all(fd, data, size) || sync_fd(fd))
		rc = hspmd_fail_errno(err, "%s", name);
	if (rc)
		close_keeping_errno(fd);
	else if (close(fd))
		rc = hspmd_fail_errno(err, "%s", name);
	return rc;
}

static int replace(const char *target, const void *data, size_t size, const struct stat *old, struct hspmd_error *err)
{
	char *name = NULL;
	int fd = open_temporary(target, &name, err);
	if (fd < 0)
		return -1;
	int rc = write_and_close(fd, target, data, size, old, err);
	if (!rc && rename(name, target))
		rc = hspmd_fail_errno(err, "%s", target);
	if (rc) {
		int saved = errno;
		unlink(name);
		errno = saved;
	} else {
		rc = sync_parent(target, err);
	}
	free(name);
	return rc;
}

/* A target that is no regular file (a terminal, a pipe, /dev/null) is written to, not replaced. */
static int write_special(const char *path, const void *data, size_t size, struct hspmd_error *err)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return hspmd_fail_errno(err, "%s", path);
	int rc = hspmd_write_all(fd, data, size);
	if (rc)
		hspmd_fail_errno(err, "%s", path);
	close_keeping_errno(fd);
	return rc;
}

int hspmd_durable_write(const char *path, const void *data, size_t size, struct hspmd_error *err)
{
	struct stat st;
	if (stat(path, &st))
		return errno == ENOENT ? replace(path, data, size, NULL, err) : hspmd_fail_errno(err, "%s", path);
	if (!S_ISREG(st.st_mode))
		return write_special(path, data, size, err);
	char *target = realpath(path, NULL); /* the file behind a link is replaced, and the link stays */
	if (!target)
		return hspmd_fail_errno(err, "%s", path);
	int rc = replace(target, data, size, &st, err);
	free(target);
	return rc;
}

/* ---- folders */

static int make_one(const char *path, mode_t mode, struct hspmd_error *err)
{
	if (!mkdir(path, mode))
		return sync_parent(path, err);
	int why = errno;
	struct stat st;
	if (!stat(path, &st)) {
		if (S_ISDIR(st.st_mode))
			return 0;
		why = ENOTDIR;
	}
	errno = why;
	return hspmd_fail_errno(err, "%s", path);
}

int hspmd_durable_mkdir(const char *path, mode_t mode, struct hspmd_error *err)
{
	char *prefix = strdup(path);
	if (!prefix)
		return hspmd_fail_memory(err, path);
	int rc = *path ? 0 : hspmd_fail(err, "a folder's name is empty");
	for (char *p = prefix + 1; !rc && *path && *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		rc = make_one(prefix, mode, err);
		*p = '/';
	}
	if (!rc)
		rc = make_one(prefix, mode, err);
	free(prefix);
	return rc;
}

static int remove_at(int parent, const char *name, const char *shown, struct hspmd_error *err);

static int empty_folder(int fd, const char *shown, struct hspmd_error *err)
{
	DIR *dir = fdopendir(fd);
	if (!dir) {
		hspmd_fail_errno(err, "%s", shown);
		close_keeping_errno(fd);
		return -1;
	}
	int rc = 0;
	struct dirent *entry;
	errno = 0;
	while (!rc && (entry = readdir(dir))) {
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			rc = remove_at(dirfd(dir), entry->d_name, entry->d_name, err);
		if (!rc)
			errno = 0;
	}
	if (!rc && errno)
		rc = hspmd_fail_errno(err, "%s", shown);
	closedir(dir);
	return rc;
}

/* By descriptor, so that a folder that is replaced by a link meanwhile does not lead elsewhere. */
static int remove_at(int parent, const char *name, const char *shown, struct hspmd_error *err)
{
	if (!unlinkat(parent, name, 0) || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return hspmd_fail_errno(err, "%s", shown);
	int why = errno;
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		errno = errno == ENOTDIR || errno == ELOOP ? why : errno;
		return hspmd_fail_errno(err, "%s", shown);
	}
	if (empty_folder(fd, shown, err))
		return -1;
	if (unlinkat(parent, name, AT_REMOVEDIR) && errno != ENOENT)
		return hspmd_fail_errno(err, "%s", shown);
	return 0;
}

int hspmd_remove_tree(const char *path, struct hspmd_error *err)
{
	return remove_at(AT_FDCWD, path, path, err);
}
