/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a model of the user's own: a shared object's, or what the compiler makes of a C file. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "runtime/model/own_internal.h"

static bool ends_in(const char *text, const char *end)
{
	size_t n = strlen(text), e = strlen(end);
	return n > e && !strcmp(text + n - e, end);
}

bool hspmd_own_is_named(const char *path)
{
	return ends_in(path, ".so") || ends_in(path, ".c");
}

/* Root runs nobody else's code: its objects are root's own, and nobody else can write them. */
static int check_owner(const char *path, const struct stat *st, struct hspmd_error *err)
{
	if (geteuid() || (st->st_uid == 0 && !(st->st_mode & (S_IWGRP | S_IWOTH))))
		return 0;
	return hspmd_fail(err, "%s: root loads only what root owns and nobody else can write", path);
}

static int read_object(struct hspmd_own *o, const char *path, struct hspmd_error *err)
{
	struct stat st;
	if (stat(path, &st))
		return hspmd_fail_errno(err, "%s", path);
	if (!S_ISREG(st.st_mode))
		return hspmd_fail(err, "%s: expected a plain file", path);
	if ((size_t)st.st_size > HSPMD_OWN_OBJECT_MAX)
		return hspmd_fail(err, "%s: %lld bytes, expected at most %zu", path, (long long)st.st_size, HSPMD_OWN_OBJECT_MAX);
	if (check_owner(path, &st, err))
		return -1;
	char *bytes = hspmd_read_file(path, HSPMD_OWN_OBJECT_MAX, &o->size, err);
	if (!bytes)
		return -1;
	if (o->size < 4 || memcmp(bytes, "\177ELF", 4)) {
		free(bytes);
		o->size = 0;
		return hspmd_fail(err, "%s: not a shared object; expected what 'hspmd build' makes of a C file", path);
	}
	o->object = bytes;
	return 0;
}

/* The object of a C file, made in a folder that does not stay. */
static int compile(struct hspmd_own *o, struct hspmd_error *err)
{
	const char *tmp = getenv("TMPDIR");
	struct stat st;
	char *folder = hspmd_asprintf("%s/hspmd-build.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (stat(o->path, &st) ? hspmd_fail_errno(err, "%s", o->path) : check_owner(o->path, &st, err)) {
		free(folder);
		return -1;
	}
	if (!folder || !mkdtemp(folder)) {
		hspmd_fail_errno(err, "%s: making a folder to compile it", o->path);
		free(folder);
		return -1;
	}
	char *object = hspmd_asprintf("%s/model.so", folder);
	char *const argv[] = { (char *)"hspmd", (char *)"build", (char *)"--no-check", o->path, (char *)"-o", object, NULL };
	int status = object ? hspmd_own_run(o->program, argv, err) : hspmd_fail_memory(err, "compiling");
	if (status)
		hspmd_error_prefix(err, "%s: compiling it", o->path);
	else
		status = read_object(o, object, err);
	if (object)
		unlink(object);
	rmdir(folder);
	free(object);
	free(folder);
	return status;
}

int hspmd_own_fetch(struct hspmd_own *o, struct hspmd_error *err)
{
	if (o->object)
		return 0;
	return ends_in(o->path, ".c") ? compile(o, err) : read_object(o, o->path, err);
}
