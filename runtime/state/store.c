/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and removes shards, manifests and old checkpoints in a location. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/json.h"
#include "common/log.h"
#include "runtime/state/state_internal.h"

/* Bytes per write. */
#define CHUNK ((size_t)8 << 20)

char *hspmd_checkpoint_make_folder(const char *location, int64_t step, int64_t generation, struct hspmd_error *err)
{
	char name[64];
	char *folder = hspmd_asprintf("%s/%s", location, hspmd_checkpoint_name(step, generation, name, sizeof name));
	if (!folder)
		hspmd_fail_memory(err, "making a checkpoint's folder");
	else if (!hspmd_durable_mkdir(folder, 0777, err))
		return folder;
	free(folder);
	return NULL;
}

/* By errno. */
static int fail_to_write(const struct hspmd_atomic_file *s, struct hspmd_error *err)
{
	if (errno != ENOSPC && errno != EDQUOT)
		return hspmd_fail_errno(err, "%s", s->path);
	return hspmd_fail(err, "%s: %s for its %llu bytes: free as many, or keep fewer checkpoints there (checkpoint.keep)", s->path,
	                  strerror(errno), (unsigned long long)s->bytes);
}

int hspmd_atomic_file_open(struct hspmd_atomic_file *s, const char *folder, const char *file, uint64_t bytes, struct hspmd_error *err)
{
	*s = (struct hspmd_atomic_file){ .fd = -1,
		                         .bytes = bytes,
		                         .folder = strdup(folder),
		                         .path = hspmd_asprintf("%s/%s", folder, file),
		                         .temporary = hspmd_asprintf("%s/.%s.new", folder, file) };
	if (!s->folder || !s->path || !s->temporary) {
		hspmd_fail_memory(err, "writing a shard");
		return hspmd_atomic_file_close(s, false, NULL);
	}
	s->fd = open(s->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (s->fd < 0) {
		fail_to_write(s, err);
		return hspmd_atomic_file_close(s, false, NULL);
	}
	/* Reserve space for the whole file, so that a full disk is reported before time is spent. Not every file system supports it. */
	if (fallocate(s->fd, 0, 0, (off_t)bytes) && errno == ENOSPC) {
		fail_to_write(s, err);
		return hspmd_atomic_file_close(s, false, NULL);
	}
	/* Direct I/O if the file system supports it: the state is not read again soon, and training needs the memory. */
	int flags = fcntl(s->fd, F_GETFL);
	s->direct = flags >= 0 && !fcntl(s->fd, F_SETFL, flags | O_DIRECT);
	return 0;
}

static int end_direct_io(struct hspmd_atomic_file *s)
{
	int flags = fcntl(s->fd, F_GETFL);
	s->direct = false;
	return flags < 0 || fcntl(s->fd, F_SETFL, flags & ~O_DIRECT) ? -1 : 0;
}

/* Write a part of the data: all of it, or less when direct I/O ends; -1 errno. */
static ssize_t write_some(struct hspmd_atomic_file *s, const char *data, size_t bytes)
{
	size_t n = bytes < CHUNK ? bytes : CHUNK, whole = n / HSPMD_IMAGE_ALIGN * HSPMD_IMAGE_ALIGN;
	if (s->direct && ((uintptr_t)data % HSPMD_IMAGE_ALIGN || s->done % HSPMD_IMAGE_ALIGN || !whole) && end_direct_io(s))
		return -1;
	if (s->direct) {
		ssize_t done = write(s->fd, data, whole);
		if (done >= 0 || (errno != EINVAL && errno != ENOTSUP))
			return done;
		if (end_direct_io(s))
			return -1;
	}
	if (hspmd_write_all(s->fd, data, n))
		return -1;
	/* Start writing to disk now rather than at the fsync. */
	sync_file_range(s->fd, (off_t)s->done, (off_t)n, SYNC_FILE_RANGE_WRITE);
	return (ssize_t)n;
}

int hspmd_atomic_file_write(struct hspmd_atomic_file *s, const void *data, size_t bytes, struct hspmd_error *err)
{
	const char *at = data;
	while (bytes) {
		ssize_t n = write_some(s, at, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? fail_to_write(s, err) : hspmd_fail(err, "%s: nothing can be written", s->path);
		s->done += (uint64_t)n;
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int hspmd_atomic_file_close(struct hspmd_atomic_file *s, bool good, struct hspmd_error *err)
{
	int rv = good ? 0 : -1;
	if (!rv && fsync(s->fd))
		rv = fail_to_write(s, err);
	if (s->fd >= 0 && close(s->fd) && !rv)
		rv = fail_to_write(s, err);
	if (!rv && rename(s->temporary, s->path))
		rv = fail_to_write(s, err);
	else if (!rv)
		rv = hspmd_durable_sync(s->folder, err);
	if (rv && s->fd >= 0)
		unlink(s->temporary);
	free(s->folder);
	free(s->path);
	free(s->temporary);
	*s = (struct hspmd_atomic_file){ .fd = -1 };
	return rv;
}

int hspmd_atomic_file_write_all(const char *folder, const char *file, const void *data, size_t bytes, struct hspmd_error *err)
{
	struct hspmd_atomic_file s;
	if (hspmd_atomic_file_open(&s, folder, file, bytes, err))
		return -1;
	bool good = !hspmd_atomic_file_write(&s, data, bytes, err);
	return hspmd_atomic_file_close(&s, good, err);
}

int hspmd_image_write(const struct hspmd_image *im, const char *location, int64_t step, int64_t generation, const char *file,
                      struct hspmd_error *err)
{
	char *folder = hspmd_checkpoint_make_folder(location, step, generation, err);
	int rv = folder ? hspmd_atomic_file_write_all(folder, file, im->data, im->bytes, err) : -1;
	free(folder);
	return rv;
}

int hspmd_shard_store(const char *location, const char *node, int64_t step, int64_t generation, const char *file, const void *image,
                      size_t bytes, json_t **shard, struct hspmd_error *err)
{
	struct hspmd_extent *extents;
	size_t count;
	*shard = NULL;
	if (hspmd_image_check(image, bytes, &extents, &count, err))
		return hspmd_error_prefix(err, "%s", file);
	char *folder = hspmd_checkpoint_make_folder(location, step, generation, err);
	int rv = folder ? hspmd_atomic_file_write_all(folder, file, image, bytes, err) : -1;
	if (!rv) {
		char *name = (char *)(uintptr_t)node;
		*shard = hspmd_shard_json(file, bytes, &name, 1, extents, (int)count);
		rv = *shard ? 0 : hspmd_fail_memory(err, "describing a shard");
	}
	hspmd_extents_free(extents, count);
	free(folder);
	return rv;
}

int hspmd_checkpoint_commit(const char *location, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	char *folder = hspmd_checkpoint_make_folder(location, m->step, m->generation, err);
	char *path = folder ? hspmd_asprintf("%s/" HSPMD_MANIFEST_FILE, folder) : NULL;
	json_t *value = hspmd_manifest_to_json(m);
	/* One line: a manifest of many devices has very many extents. */
	char *text = value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
	int rv = -1;
	if (folder && path && text)
		rv = hspmd_durable_write(path, text, strlen(text), err);
	else if (folder)
		hspmd_fail_memory(err, "writing a manifest");
	json_decref(value);
	free(text);
	free(path);
	free(folder);
	return rv;
}

/* ---- removing */

struct stored_checkpoint {
	char *folder;
	int64_t step, generation;
	bool committed, old; /* old: to be removed */
};
struct kept_list {
	struct stored_checkpoint *items;
	size_t count, capacity;
};

static int newest_first(const void *a, const void *b)
{
	const struct stored_checkpoint *x = a, *y = b;
	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	return x->generation > y->generation ? -1 : x->generation < y->generation;
}

static int list_location(const char *location, struct kept_list *list, struct hspmd_error *err)
{
	DIR *d = opendir(location);
	struct dirent *entry;
	int rv = 0;
	if (!d)
		return errno == ENOENT ? 0 : hspmd_fail_errno(err, "%s", location);
	while (!rv && (entry = readdir(d))) {
		struct stored_checkpoint k = { 0 };
		if (!hspmd_checkpoint_parse(entry->d_name, &k.step, &k.generation))
			continue;
		k.folder = hspmd_asprintf("%s/%s", location, entry->d_name);
		char *manifest = k.folder ? hspmd_asprintf("%s/" HSPMD_MANIFEST_FILE, k.folder) : NULL;
		k.committed = manifest && !access(manifest, F_OK);
		if (!manifest || hspmd_array_grow(&list->items, &list->capacity, list->count, sizeof *list->items)) {
			free(k.folder);
			rv = hspmd_fail_memory(err, "listing checkpoints");
		} else {
			list->items[list->count++] = k;
		}
		free(manifest);
	}
	closedir(d);
	return rv;
}

/* Remove the manifest first, durably, so that a partly removed checkpoint never appears complete. */
static int remove_checkpoint(const struct stored_checkpoint *k, struct hspmd_error *err)
{
	char *manifest = hspmd_asprintf("%s/" HSPMD_MANIFEST_FILE, k->folder);
	int rv = 0;
	if (!manifest)
		return hspmd_fail_memory(err, "removing a checkpoint");
	if (k->committed && unlink(manifest) && errno != ENOENT)
		rv = hspmd_fail_errno(err, "%s", manifest);
	else if (k->committed)
		rv = hspmd_durable_sync(k->folder, err);
	free(manifest);
	return rv ? rv : hspmd_remove_tree(k->folder, err);
}

/* Remove those that are marked as old. Frees the list. */
static int remove_old(struct kept_list *list, int rv, struct hspmd_error *err)
{
	for (size_t i = 0; i < list->count; i++) {
		if (!rv && list->items[i].old)
			rv = remove_checkpoint(&list->items[i], err);
		free(list->items[i].folder);
	}
	free(list->items);
	return rv;
}

int hspmd_checkpoint_prune(const char *location, int keep, struct hspmd_error *err)
{
	struct kept_list list = { 0 };
	int rv = list_location(location, &list, err), committed = 0;
	if (list.count)
		qsort(list.items, list.count, sizeof *list.items, newest_first);
	for (size_t i = 0; i < list.count; i++) {
		struct stored_checkpoint *k = &list.items[i];
		/* One that is newer than the newest committed one may still be being written. */
		k->old = committed > 0 && (!k->committed || committed >= keep);
		committed += k->committed;
	}
	return remove_old(&list, rv, err);
}

/* Negative: a was written before b. */
static int written_order(int64_t a_step, int64_t a_generation, const struct hspmd_checkpoint_id *b)
{
	if (a_generation != b->generation)
		return a_generation < b->generation ? -1 : 1;
	return a_step < b->step ? -1 : a_step > b->step;
}

int hspmd_checkpoint_keep(const char *location, const struct hspmd_checkpoint_id *kept, size_t count, struct hspmd_error *err)
{
	struct kept_list list = { 0 };
	int rv = count ? list_location(location, &list, err) : 0;
	for (size_t i = 0; i < list.count; i++) {
		struct stored_checkpoint *k = &list.items[i];
		bool stands = false;
		for (size_t j = 0; j < count; j++) {
			int order = written_order(k->step, k->generation, &kept[j]);
			k->old |= order < 0;
			stands |= order == 0;
		}
		k->old &= !stands;
	}
	return remove_old(&list, rv, err);
}
