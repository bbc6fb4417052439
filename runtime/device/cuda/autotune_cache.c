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
	bool used; /* by this process */
};

struct hspmd_cuda_autotune_cache {
	char name[192]; /* for what GPU and library the choices hold */
	char *path;     /* NULL: no file */
	size_t count, capacity;
	struct entry *entry;
};

#define KEY "%" PRId64 " %" PRId64 " %" PRId64 " %" PRIx64
#define WORDS(word) word " " word " " word " " word " " word " " word " " word " " word

static char *find_folder(void)
{
	const char *own = getenv("HSPMD_CUDA_CACHE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	if (own)
		return *own ? strdup(own) : NULL;
	if (cache && *cache)
		return hspmd_asprintf("%s/hspmd", cache);
	return home && *home ? hspmd_asprintf("%s/.cache/hspmd", home) : NULL;
}

static char *find_path(const char *name)
{
	char *folder = find_folder(), *path;
	if (!folder)
		return NULL;
	mkdir(folder, 0700); /* if its parent is missing, there will be no file */
	path = hspmd_asprintf("%s/%s", folder, name);
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

/* The key and the words of a choice, with this between them. Returns false if they are not there. */
static bool read_entry(const char *text, const char *between, struct entry *e)
{
	uint64_t *w = e->choice.word;
	int keyed = 0;
	*e = (struct entry){ .used = false };
	if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNx64 "%n", &e->key.m, &e->key.n, &e->key.k, &e->key.flags, &keyed) !=
	            4 ||
	    strncmp(text + keyed, between, strlen(between)))
		return false;
	return sscanf(text + keyed + strlen(between), WORDS("%" SCNx64), &w[0], &w[1], &w[2], &w[3], &w[4], &w[5], &w[6], &w[7]) == 8;
}

static void read_file(struct hspmd_cuda_autotune_cache *c)
{
	char line[512];
	FILE *f = c->path ? fopen(c->path, "r") : NULL;
	struct entry e;
	while (f && fgets(line, sizeof line, f))
		if (strchr(line, '\n') && read_entry(line, " ", &e) && add(c, &e))
			break;
	if (f)
		fclose(f);
}

struct hspmd_cuda_autotune_cache *hspmd_cuda_autotune_cache_open(const char *library, const char *model, size_t version)
{
	struct hspmd_cuda_autotune_cache *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	snprintf(c->name, sizeof c->name, "%s-%zu-%s", library, version, model);
	for (char *at = c->name; *at; at++)
		*at = isalnum((unsigned char)*at) ? *at : '-';
	c->path = find_path(c->name);
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

static struct entry *look_up(struct hspmd_cuda_autotune_cache *c, const struct hspmd_cuda_autotune_key *key)
{
	/* If several processes measured at once, the choice written first counts for all of them. */
	for (size_t i = 0; i < c->count; i++)
		if (!memcmp(&c->entry[i].key, key, sizeof *key))
			return &c->entry[i];
	return NULL;
}

bool hspmd_cuda_autotune_cache_find(struct hspmd_cuda_autotune_cache *c, const struct hspmd_cuda_autotune_key *key,
                                    struct hspmd_cuda_autotune_entry *choice)
{
	struct entry *e = look_up(c, key);
	if (!e)
		return false;
	e->used = true;
	*choice = e->choice;
	return true;
}

static int print_entry(char *line, size_t size, const char *before, const struct entry *e, const char *between)
{
	const uint64_t *w = e->choice.word;
	const struct hspmd_cuda_autotune_key *k = &e->key;
	return snprintf(line, size, "%s" KEY "%s" WORDS("%" PRIx64) "\n", before, k->m, k->n, k->k, k->flags, between, w[0], w[1], w[2],
	                w[3], w[4], w[5], w[6], w[7]);
}

void hspmd_cuda_autotune_cache_add(struct hspmd_cuda_autotune_cache *c, const struct hspmd_cuda_autotune_key *key,
                                   const struct hspmd_cuda_autotune_entry *choice, bool measured)
{
	struct entry e = { *key, *choice, true };
	char line[512];
	if (look_up(c, key) || add(c, &e) || !c->path || !measured)
		return;
	int length = print_entry(line, sizeof line, "", &e, " ");
	int fd = open(c->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	/* A single write, so that lines of several processes do not mix. */
	if (write(fd, line, (size_t)length) != length)
		free(c->path), c->path = NULL;
	close(fd);
}

/* ---- choices that go from one process to another */

char *hspmd_cuda_autotune_cache_text(const struct hspmd_cuda_autotune_cache *c)
{
	char *text = NULL, line[512];
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	for (size_t i = 0; f && c && i < c->count; i++) {
		if (!c->entry[i].used)
			continue;
		print_entry(line, sizeof line, " ", &c->entry[i], " = ");
		fprintf(f, "%s%s", c->name, line);
	}
	if (f && !fclose(f))
		return text;
	free(text);
	return NULL;
}

int hspmd_cuda_autotune_cache_learn(struct hspmd_cuda_autotune_cache *c, const char *text)
{
	size_t named = strlen(c->name);
	for (const char *line = text; *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line)) {
		struct entry e, *known;
		if (strncmp(line, c->name, named) || line[named] != ' ' || !read_entry(line + named + 1, " = ", &e))
			continue;
		if ((known = look_up(c, &e.key)))
			known->choice = e.choice;
		else if (add(c, &e))
			return -1;
	}
	return 0;
}
