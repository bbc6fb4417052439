/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "runtime/state/checkpoint.h"

#define RUN_PREFIX "run-"

struct found_list {
	struct hspmd_listed_checkpoint *items;
	size_t count, capacity;
};

static int add(struct found_list *l, const char *folder, struct hspmd_error *err)
{
	struct hspmd_error why = { "" };
	char *path = hspmd_asprintf("%s/" HSPMD_MANIFEST_FILE, folder);
	struct hspmd_listed_checkpoint f = { .folder = strdup(folder) };
	if (path && access(path, F_OK)) {
		f.no_file = errno == ENOENT;
		f.error = strdup(f.no_file ? "no manifest here: never committed, or it is on another node" : strerror(errno));
	}
	if (path && !f.error && !(f.manifest = hspmd_manifest_read(path, &why)))
		f.error = strdup(why.text);
	int rv = !path || !f.folder || (!f.manifest && !f.error) || hspmd_array_grow(&l->items, &l->capacity, l->count, sizeof *l->items)
	                 ? -1
	                 : 0;
	free(path);
	if (rv) {
		free(f.folder);
		free(f.error);
		hspmd_manifest_destroy(f.manifest);
		return hspmd_fail_memory(err, "listing checkpoints");
	}
	l->items[l->count++] = f;
	return 0;
}

static int search_folder(struct found_list *l, const char *path, int depth, struct hspmd_error *err)
{
	DIR *d = opendir(path);
	struct dirent *entry;
	int rv = 0;
	if (!d)
		return errno == ENOENT || errno == ENOTDIR ? 0 : hspmd_fail_errno(err, "%s", path);
	while (!rv && (entry = readdir(d))) {
		int64_t step, generation;
		if (entry->d_name[0] == '.')
			continue;
		char *child = hspmd_asprintf("%s/%s", path, entry->d_name);
		struct stat st;
		bool folder = child && !lstat(child, &st) && S_ISDIR(st.st_mode);
		if (!child)
			rv = hspmd_fail_memory(err, "listing checkpoints");
		else if (folder && hspmd_checkpoint_parse(entry->d_name, &step, &generation))
			rv = add(l, child, err);
		else if (folder && depth > 0)
			rv = search_folder(l, child, depth - 1, err);
		free(child);
	}
	closedir(d);
	return rv;
}

static int by_age(const void *a, const void *b)
{
	const char *x = strrchr(((const struct hspmd_listed_checkpoint *)a)->folder, '/'),
	           *y = strrchr(((const struct hspmd_listed_checkpoint *)b)->folder, '/');
	int64_t s[2] = { 0, 0 }, g[2] = { 0, 0 };
	hspmd_checkpoint_parse(x ? x + 1 : "", &s[0], &g[0]);
	hspmd_checkpoint_parse(y ? y + 1 : "", &s[1], &g[1]);
	if (s[0] != s[1])
		return s[0] < s[1] ? -1 : 1;
	if (g[0] != g[1])
		return g[0] < g[1] ? -1 : 1;
	return strcmp(((const struct hspmd_listed_checkpoint *)a)->folder, ((const struct hspmd_listed_checkpoint *)b)->folder);
}

char *hspmd_checkpoint_run_folder(const char *folder, const char *run)
{
	return hspmd_asprintf("%s/" RUN_PREFIX "%.12s", folder, run);
}

bool hspmd_checkpoint_same_run(const char *a, const char *b)
{
	const char *x = strstr(a, "/" RUN_PREFIX), *y = strstr(b, "/" RUN_PREFIX);
	if (!x || !y)
		return !x && !y;
	size_t n = strcspn(x + 1, "/");
	return n == strcspn(y + 1, "/") && !strncmp(x + 1, y + 1, n);
}

int hspmd_checkpoint_list(const char *path, int depth, struct hspmd_listed_checkpoint **found, struct hspmd_error *err)
{
	struct found_list l = { 0 };
	char *manifest = hspmd_asprintf("%s/" HSPMD_MANIFEST_FILE, path);
	int rv = manifest ? 0 : hspmd_fail_memory(err, "listing checkpoints");
	if (!rv)
		rv = access(manifest, F_OK) ? search_folder(&l, path, depth, err) : add(&l, path, err);
	free(manifest);
	if (rv) {
		hspmd_checkpoint_list_free(l.items, (int)l.count);
		*found = NULL;
		return -1;
	}
	if (l.count)
		qsort(l.items, l.count, sizeof *l.items, by_age);
	*found = l.items;
	return (int)l.count;
}

void hspmd_checkpoint_list_free(struct hspmd_listed_checkpoint *found, int count)
{
	for (int i = 0; i < count; i++) {
		free(found[i].folder);
		free(found[i].error);
		hspmd_manifest_destroy(found[i].manifest);
	}
	free(found);
}
