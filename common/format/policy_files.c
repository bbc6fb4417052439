/* SPDX-License-Identifier: Apache-2.0 */
/* Where policy files come from, and whose are trusted. Everything is judged on the open file, never on a name that may lead elsewhere a
 * moment later. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/format/policy.h"

static int check_trust(const struct stat *st, const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err)
{
	if (st->st_mode & S_IWOTH)
		return hspmd_fail(err, "%s: everybody may write it (mode %04o); refused", path, st->st_mode & 07777);
	if (!trust)
		return 0;
	if (st->st_uid != 0 && st->st_uid != trust->owner)
		return hspmd_fail(err, "%s: owned by uid %u; expected root or uid %u; refused", path, st->st_uid, trust->owner);
	if (st->st_mode & S_IWGRP && st->st_gid != 0)
		return hspmd_fail(err, "%s: its group (gid %u) may write it (mode %04o); refused", path, st->st_gid, st->st_mode & 07777);
	return 0;
}

static char *read_open(int fd, size_t *length)
{
	char *text = malloc(HSPMD_POLICY_MAX_FILE + 1);
	size_t n = 0;
	while (text && n <= HSPMD_POLICY_MAX_FILE) {
		ssize_t got = read(fd, text + n, HSPMD_POLICY_MAX_FILE + 1 - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			free(text);
			return NULL;
		}
		if (got == 0)
			break;
		n += (size_t)got;
	}
	*length = n;
	return text;
}

/* Check and read an open file; takes over the descriptor. */
static int add_open(struct hspmd_policy *p, int fd, const char *path, const char *name, const struct hspmd_policy_trust *trust,
                    struct hspmd_error *err)
{
	struct stat st;
	char *text = NULL;
	size_t length = 0;
	int rc = -1;
	if (fstat(fd, &st) < 0)
		hspmd_fail_errno(err, "%s", path);
	else if (!S_ISREG(st.st_mode))
		hspmd_fail(err, "%s: not a regular file", path);
	else if (check_trust(&st, path, trust, err) < 0)
		rc = -1;
	else if (!(text = read_open(fd, &length)))
		hspmd_fail_errno(err, "%s", path);
	else if (length > HSPMD_POLICY_MAX_FILE)
		hspmd_fail(err, "%s: larger than %d bytes", path, HSPMD_POLICY_MAX_FILE);
	else
		rc = hspmd_policy_add_text(p, text, length, name, err);
	free(text);
	close(fd);
	return rc;
}

int hspmd_policy_add_file(struct hspmd_policy *p, const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return hspmd_fail_errno(err, "%s", path);
	const char *slash = strrchr(path, '/');
	return add_open(p, fd, path, slash ? slash + 1 : path, trust, err);
}

/* Open a folder's entry. A link is followed once, and only to a plain name of the same folder. */
static int open_entry(int folder, const char *entry, const char *path, struct hspmd_error *err)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
	int fd = openat(folder, entry, flags);
	if (fd >= 0 || errno != ELOOP)
		return fd >= 0 ? fd : hspmd_fail_errno(err, "%s", path);
	char target[256];
	ssize_t n = readlinkat(folder, entry, target, sizeof target - 1);
	if (n < 0)
		return hspmd_fail_errno(err, "%s", path);
	target[n] = '\0';
	if (strchr(target, '/') || !strcmp(target, ".."))
		return hspmd_fail(err, "%s: a link that leads out of the folder (to %s); refused", path, target);
	fd = openat(folder, target, flags);
	return fd >= 0 ? fd : hspmd_fail_errno(err, "%s: a link to %s", path, target);
}

static int wanted(const struct dirent *d)
{
	size_t n = strlen(d->d_name);
	return d->d_name[0] != '.' && n > 5 && !strcmp(d->d_name + n - 5, ".json");
}

/* Not alphasort, which depends on the locale: the order of the rules must not depend on the reader. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int add_entries(struct hspmd_policy *p, int folder, const char *path, const struct hspmd_policy_trust *trust,
                       struct hspmd_error *err)
{
	struct dirent **entries = NULL;
	int rc = 0, n = scandirat(folder, ".", &entries, wanted, by_name);
	if (n < 0)
		return hspmd_fail_errno(err, "%s", path);
	for (int i = 0; i < n; i++) {
		char *full = rc == 0 ? hspmd_asprintf("%s/%s", path, entries[i]->d_name) : NULL;
		int fd = -1;
		if (rc == 0 && !full)
			rc = hspmd_fail_memory(err, "reading policies");
		else if (rc == 0 && (fd = open_entry(folder, entries[i]->d_name, full, err)) < 0)
			rc = -1;
		else if (rc == 0)
			rc = add_open(p, fd, full, entries[i]->d_name, trust, err);
		free(full);
		free(entries[i]);
	}
	free(entries);
	return rc;
}

int hspmd_policy_add_path(struct hspmd_policy *p, const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err)
{
	struct stat st;
	int rc, fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOTDIR ? hspmd_policy_add_file(p, path, trust, err) : hspmd_fail_errno(err, "%s", path);
	if (fstat(fd, &st) < 0)
		rc = hspmd_fail_errno(err, "%s", path);
	else if (check_trust(&st, path, trust, err) < 0)
		rc = -1;
	else
		rc = add_entries(p, fd, path, trust, err);
	close(fd);
	return rc;
}

struct hspmd_policy *hspmd_policy_read(const char *path, const struct hspmd_policy_trust *trust, struct hspmd_error *err)
{
	struct hspmd_policy *p = hspmd_policy_create(err);
	if (p && (hspmd_policy_add_path(p, path, trust, err) < 0 || hspmd_policy_check(p, err) < 0)) {
		hspmd_policy_destroy(p);
		return NULL;
	}
	return p;
}

struct hspmd_policy *hspmd_policy_read_named(const char *where, struct hspmd_error *err)
{
	char *end;
	unsigned long uid = strtoul(where, &end, 10);
	struct hspmd_policy_trust trust = { .owner = (uid_t)uid };
	bool named = end != where && *end == '@';
	return hspmd_policy_read(named ? end + 1 : where, named ? &trust : NULL, err);
}
