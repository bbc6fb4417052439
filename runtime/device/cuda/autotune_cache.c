/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/autotune_cache.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"

struct entry {
	struct hspmd_cuda_autotune_key key;
	struct hspmd_cuda_autotune_entry choice;
};

struct hspmd_cuda_autotune_cache {
	char *path; /* NULL: no file */
	size_t count, capacity;
	struct entry *entry;
};

#define LINE                                                                                                                               \
	"%" PRId64 " %" PRId64 " %" PRId64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 \
	" %" PRIx64
#define READ                                                                                                                               \
	"%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 \
	" %" SCNx64

static char *find_folder(void)
{
	const char *own = getenv("HSPMD_CUDA_CACHE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	if (own)
		return *own ? strdup(own) : NULL;
	if (cache && *cache)
		return hspmd_asprintf("%s/hspmd", cache);
	return home && *home ? hspmd_asprintf("%s/.cache/hspmd", home) : NULL;
}

static char *find_path(const char *library, const char *model, size_t version)
{
	char name[128], *folder = find_folder(), *path;
	if (!folder)
		return NULL;
	snprintf(name, sizeof name, "%s", model);
	for (char *c = name; *c; c++)
		*c = isalnum((unsigned char)*c) ? *c : '-';
	mkdir(folder, 0700); /* if its parent is missing, there will be no file */
	path = hspmd_asprintf("%s/%s-%zu-%s", folder, library, version, name);
	free(folder);
	return path;
}

static int add(struct hspmd_cuda_autotune_cache *c, const struct entry *e)
{
	if (hspmd_array_grow(&c->entry, &c->capacity, c->count, sizeof *c->entry))
		return -1;
	c->entry[c->count++] = *e;
	return 0;
}

static void read_file(struct hspmd_cuda_autotune_cache *c)
{
	char line[512];
	FILE *f = c->path ? fopen(c->path, "r") : NULL;
	while (f && fgets(line, sizeof line, f)) {
		struct entry e;
		uint64_t *w = e.choice.word;
		if (strchr(line, '\n') &&
		    sscanf(line, READ, &e.key.m, &e.key.n, &e.key.k, &e.key.flags, &w[0], &w[1], &w[2], &w[3], &w[4], &w[5], &w[6],
		           &w[7]) == 12 &&
		    add(c, &e))
			break;
	}
	if (f)
		fclose(f);
}

struct hspmd_cuda_autotune_cache *hspmd_cuda_autotune_cache_open(const char *library, const char *model, size_t version)
{
	struct hspmd_cuda_autotune_cache *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->path = find_path(library, model, version);
	read_file(c);
	return c;
}

void hspmd_cuda_autotune_cache_close(struct hspmd_cuda_autotune_cache *c)
{
	if (!c)
		return;
	free(c->path);
	free(c->entry);
	free(c);
}

bool hspmd_cuda_autotune_cache_find(const struct hspmd_cuda_autotune_cache *c, const struct hspmd_cuda_autotune_key *key,
                                    struct hspmd_cuda_autotune_entry *choice)
{
	/* If several processes measured at once, the choice written first counts for all of them. */
	for (size_t i = 0; i < c->count; i++)
		if (!memcmp(&c->entry[i].key, key, sizeof *key)) {
			*choice = c->entry[i].choice;
			return true;
		}
	return false;
}

void hspmd_cuda_autotune_cache_add(struct hspmd_cuda_autotune_cache *c, const struct hspmd_cuda_autotune_key *key,
                                   const struct hspmd_cuda_autotune_entry *choice)
{
	struct entry e = { *key, *choice };
	const uint64_t *w = choice->word;
	struct hspmd_cuda_autotune_entry known;
	char line[512];
	if (hspmd_cuda_autotune_cache_find(c, key, &known) || add(c, &e) || !c->path)
		return;
	int length =
	        snprintf(line, sizeof line, LINE "\n", key->m, key->n, key->k, key->flags, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
	int fd = open(c->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	/* A single write, so that lines of several processes do not mix. */
	if (write(fd, line, (size_t)length) != length)
		free(c->path), c->path = NULL;
	close(fd);
}
