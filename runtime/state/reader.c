/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/log.h"
#include "common/progress.h"
#include "runtime/state/state_internal.h"

/* One shard in one folder. */
struct copy {
	int fd; /* -1: does not exist, or no longer used */
	char *path;
};

/* What is in a shard: its extents, from the manifest or from a copy's header; and their block checksums, after a copy's header provided
 * them and they agree with the manifest. */
struct contents {
	int first, count;  /* range in `extents` */
	uint64_t **blocks; /* per extent; NULL: not known yet */
};

struct hspmd_reader {
	const struct hspmd_manifest *m;
	const struct hspmd_extent *extents; /* the manifest's; of a root: `listed` */
	int extent_count;
	struct extent_list listed; /* by the headers that were read, shard after shard */
	bool all_listed;
	int folder_count;
	struct copy *copies;       /* [shard][folder] */
	struct contents *contents; /* [shard] */
	uint64_t *bytes_read;      /* per folder */
	int bad;              /* number of damaged blocks and headers */
	char *block;          /* the last block of which only a part was needed */
	int block_extent;     /* -1: none */
	size_t block_number;
};

void hspmd_reader_destroy(struct hspmd_reader *r)
{
	if (!r)
		return;
	for (int s = 0; s < r->m->shard_count; s++) {
		for (int f = 0; r->copies && f < r->folder_count; f++) {
			struct copy *c = &r->copies[s * r->folder_count + f];
			if (c->fd >= 0)
				close(c->fd);
			free(c->path);
		}
		for (int e = 0; r->contents && r->contents[s].blocks && e < r->contents[s].count; e++)
			free(r->contents[s].blocks[e]);
		if (r->contents)
			free(r->contents[s].blocks);
	}
	hspmd_extents_free(r->listed.items, r->listed.count);
	free(r->copies);
	free(r->contents);
	free(r->bytes_read);
	free(r->block);
	free(r);
}

static int open_copy(struct copy *c, const char *folder, const struct hspmd_shard *s, struct hspmd_error *err)
{
	struct stat st;
	c->path = hspmd_asprintf("%s/%s", folder, s->file);
	if (!c->path)
		return hspmd_fail_memory(err, "opening a checkpoint");
	c->fd = open(c->path, O_RDONLY | O_CLOEXEC);
	if (c->fd < 0) {
		if (errno != ENOENT)
			hspmd_warn("%s: %s", c->path, strerror(errno));
		return 0;
	}
	if (fstat(c->fd, &st) || (uint64_t)st.st_size != s->bytes) {
		hspmd_warn("%s: expected a file of %" PRIu64 " bytes, found %jd: not used", c->path, s->bytes, (intmax_t)st.st_size);
		close(c->fd);
		c->fd = -1;
	}
	return 0;
}

struct hspmd_reader *hspmd_reader_create(const struct hspmd_manifest *m, const bool *wanted, const char *const *folders, int count,
                                         struct hspmd_error *err)
{
	struct hspmd_reader *r = hspmd_calloc(1, sizeof *r);
	if (!r) {
		hspmd_fail_memory(err, "opening a checkpoint");
		return NULL;
	}
	r->m = m;
	r->extents = m->extents;
	r->extent_count = m->extent_count;
	r->folder_count = count;
	r->block_extent = -1;
	size_t copies = (size_t)m->shard_count * (size_t)count;
	r->copies = hspmd_calloc(copies, sizeof *r->copies);
	r->contents = hspmd_calloc((size_t)m->shard_count, sizeof *r->contents);
	r->bytes_read = hspmd_calloc((size_t)count, sizeof *r->bytes_read);
	r->block = malloc(HSPMD_BLOCK_BYTES);
	int rv = r->copies && r->contents && r->bytes_read && r->block ? 0 : hspmd_fail_memory(err, "opening a checkpoint");
	for (size_t i = 0; r->copies && i < copies; i++)
		r->copies[i].fd = -1;
	for (int s = 0; s < m->shard_count && !rv; s++) {
		r->contents[s].first = m->shards[s].first_extent;
		r->contents[s].count = m->shards[s].extent_count;
		for (int f = 0; f < count && !rv && (!wanted || wanted[s]); f++)
			rv = open_copy(&r->copies[s * count + f], folders[f], &m->shards[s], err);
	}
	if (rv) {
		hspmd_reader_destroy(r);
		return NULL;
	}
	return r;
}

int hspmd_reader_folder(const struct hspmd_reader *r, int shard)
{
	for (int f = 0; f < r->folder_count; f++)
		if (r->copies[shard * r->folder_count + f].fd >= 0)
			return f;
	return -1;
}

bool hspmd_reader_has(const struct hspmd_reader *r, int shard)
{
	return hspmd_reader_folder(r, shard) >= 0;
}

/* ---- headers: extents and block checksums */

/* How many parameters a root says that the shard has. */
static int parameters_of(const struct hspmd_manifest *m, const struct hspmd_shard *s)
{
	int count = 0;
	for (int p = 0; p < 4 * m->set_digits; p++)
		count += hspmd_manifest_set_has(m, s->set, p);
	return count;
}

/* The extents of a root's shard are those of its header. */
static int adopt_extents(struct hspmd_reader *r, int shard, struct hspmd_shard_header *h, const char *path, struct hspmd_error *err)
{
	struct contents *c = &r->contents[shard];
	int parameters = 0, said = parameters_of(r->m, &r->m->shards[shard]);
	for (size_t i = 0; i < h->count; i++)
		parameters += h->extents[i].kind == HSPMD_STATE_PARAM;
	if (parameters != said)
		return hspmd_fail(err, "%s: has %d parameters, the manifest says %d", path, parameters, said);
	while (r->listed.capacity < r->listed.count + h->count)
		if (hspmd_array_grow(&r->listed.items, &r->listed.capacity, r->listed.capacity, sizeof *r->listed.items))
			return hspmd_fail_memory(err, "reading a checkpoint");
	c->first = (int)r->listed.count;
	c->count = (int)h->count;
	for (size_t i = 0; i < h->count; i++) {
		r->listed.items[r->listed.count] = h->extents[i];
		r->listed.items[r->listed.count++].shard = shard;
		h->extents[i].tensor = NULL;
	}
	r->extents = r->listed.items;
	r->extent_count = (int)r->listed.count;
	return 0;
}

static int store_sums(struct hspmd_reader *r, int shard, const struct hspmd_shard_header *h, const char *path, struct hspmd_error *err)
{
	const struct contents *s = &r->contents[shard];
	uint64_t **blocks = hspmd_calloc((size_t)s->count, sizeof *blocks);
	int rv = blocks ? 0 : hspmd_fail_memory(err, "reading a checkpoint");
	for (int e = 0; e < s->count && !rv; e++) {
		const struct hspmd_extent *want = &r->extents[s->first + e];
		size_t at = 0, count = hspmd_block_count(want->bytes);
		while (at < h->count && (h->extents[at].offset != want->offset || h->extents[at].bytes != want->bytes))
			at++;
		if (at == h->count || h->extents[at].xxh3 != want->xxh3) {
			rv = hspmd_fail(err, "%s: its header does not agree with the manifest", path);
			break;
		}
		blocks[e] = malloc(count * sizeof **blocks);
		if (!blocks[e])
			rv = hspmd_fail_memory(err, "reading a checkpoint");
		else
			memcpy(blocks[e], h->blocks + h->first[at], count * sizeof **blocks);
	}
	for (int e = 0; rv && blocks && e < s->count; e++)
		free(blocks[e]);
	if (rv)
		free(blocks);
	else
		r->contents[shard].blocks = blocks;
	return rv;
}

/* Check a copy's header against the manifest, and take from it what is not known yet. */
static int take_header(struct hspmd_reader *r, int shard, struct hspmd_shard_header *h, const char *path, struct hspmd_error *err)
{
	if (r->m->root && h->list != r->m->shards[shard].list)
		return hspmd_fail(err, "%s: its header is not the one that the manifest names", path);
	if (r->contents[shard].blocks)
		return 0;
	if (r->m->root && !r->contents[shard].count && adopt_extents(r, shard, h, path, err))
		return -1;
	return store_sums(r, shard, h, path, err);
}

/* From the first copy with an intact header. */
static int learn_contents(struct hspmd_reader *r, int shard, struct hspmd_error *err)
{
	struct hspmd_error why = { "it is in none of the folders" };
	if (r->contents[shard].blocks)
		return 0;
	for (int f = 0; f < r->folder_count; f++) {
		struct copy *c = &r->copies[shard * r->folder_count + f];
		struct hspmd_shard_header h;
		if (c->fd < 0)
			continue;
		int rv = hspmd_shard_header_read(c->fd, c->path, &h, &why);
		if (!rv) {
			rv = take_header(r, shard, &h, c->path, &why);
			hspmd_shard_header_free(&h);
		}
		if (!rv)
			return 0;
		hspmd_warn("%s", why.text);
		r->bad++;
	}
	return hspmd_fail(err, "shard %s cannot be read: %s", r->m->shards[shard].file, why.text);
}

int hspmd_reader_extents(struct hspmd_reader *r, const struct hspmd_extent **extents)
{
	struct hspmd_error why;
	for (int s = 0; r->m->root && !r->all_listed && s < r->m->shard_count; s++)
		if (hspmd_reader_has(r, s))
			learn_contents(r, s, &why);
	r->all_listed = true;
	*extents = r->extents;
	return r->extent_count;
}

/* A parameter of which all shards are missing is in no header: its name is not known here. */
static int check_sets(const struct hspmd_reader *r, const bool *there, struct hspmd_error *err)
{
	const struct hspmd_manifest *m = r->m;
	for (int p = 0; p < 4 * m->set_digits; p++) {
		int without = -1;
		bool found = false;
		for (int s = 0; s < m->shard_count && !found; s++) {
			bool has = hspmd_manifest_set_has(m, m->shards[s].set, p);
			found = has && there[s];
			without = has && without < 0 ? s : without;
		}
		if (!found && without >= 0)
			return hspmd_fail(err, "parameter %d of the model is in %s, which cannot be read", p, m->shards[without].file);
	}
	return 0;
}

/* Some shards of a root are missing: whether the others contain their parts too. */
static int rest_covered(struct hspmd_reader *r, bool *there, struct hspmd_error *err)
{
	struct hspmd_error why;
	const struct hspmd_extent *extents;
	const char *file = NULL;
	int count = hspmd_reader_extents(r, &extents), missing = 0;
	for (int s = 0; s < r->m->shard_count; s++) {
		there[s] = r->contents[s].blocks != NULL;
		file = there[s] || file ? file : r->m->shards[s].file;
		missing += !there[s];
	}
	if (check_sets(r, there, err))
		return -1;
	if (!hspmd_extents_covered(r->m, extents, (size_t)count, there, &why))
		return 0;
	return hspmd_fail(err, "%s; %d of %d shards cannot be read, such as %s", why.text, missing, r->m->shard_count, file);
}

int hspmd_reader_covered(struct hspmd_reader *r, struct hspmd_error *err)
{
	bool *there = hspmd_calloc((size_t)r->m->shard_count, sizeof *there), all = true;
	if (!there)
		return hspmd_fail_memory(err, "looking through a checkpoint");
	for (int s = 0; s < r->m->shard_count; s++) {
		there[s] = hspmd_reader_has(r, s);
		all = all && there[s];
	}
	int rv = 0;
	if (!r->m->root)
		rv = hspmd_extents_covered(r->m, r->m->extents, (size_t)r->m->extent_count, there, err);
	else if (!all)
		rv = rest_covered(r, there, err);
	free(there);
	return rv;
}

/* ---- blocks */

static size_t block_bytes(const struct hspmd_extent *e, size_t block)
{
	uint64_t rest = e->bytes - (uint64_t)block * HSPMD_BLOCK_BYTES;
	return rest < HSPMD_BLOCK_BYTES ? (size_t)rest : HSPMD_BLOCK_BYTES;
}

/* Read one block from one copy, and check it. */
static int try_block(struct hspmd_reader *r, const struct hspmd_extent *e, size_t block, int folder, char *data)
{
	struct copy *c = &r->copies[e->shard * r->folder_count + folder];
	size_t bytes = block_bytes(e, block);
	uint64_t at = e->offset + (uint64_t)block * HSPMD_BLOCK_BYTES;
	int number = (int)(e - r->extents) - r->contents[e->shard].first;
	if (c->fd < 0)
		return -1;
	if (hspmd_read_at(c->fd, data, bytes, at)) {
		hspmd_warn("%s: %zu bytes at %" PRIu64 ": %s", c->path, bytes, at, strerror(errno));
		r->bad++;
		return -1;
	}
	if (hspmd_checksum_block(data, bytes) != r->contents[e->shard].blocks[number][block]) {
		hspmd_warn("%s: wrong checksum of %zu bytes at %" PRIu64 " (%s of %s)", c->path, bytes, at, hspmd_state_kind_names[e->kind],
		           e->tensor);
		r->bad++;
		return -1;
	}
	r->bytes_read[folder] += bytes;
	return 0;
}

static int read_block(struct hspmd_reader *r, const struct hspmd_extent *e, size_t block, char *data, struct hspmd_error *err)
{
	for (int f = 0; f < r->folder_count; f++)
		if (!try_block(r, e, block, f, data))
			return 0;
	return hspmd_fail(err, "step %" PRId64 ": no good copy of %s of %s in shard %s", r->m->step, hspmd_state_kind_names[e->kind],
	                  e->tensor, r->m->shards[e->shard].file);
}

/* Read bytes [from, from + bytes) of an extent. Full blocks are read directly to their destination; of other blocks the rest may be
 * needed next. */
static int read_range(struct hspmd_reader *r, int extent, uint64_t from, size_t bytes, char *data, struct hspmd_error *err)
{
	const struct hspmd_extent *e = &r->extents[extent];
	while (bytes) {
		size_t block = (size_t)(from / HSPMD_BLOCK_BYTES), within = (size_t)(from % HSPMD_BLOCK_BYTES),
		       whole = block_bytes(e, block);
		size_t n = whole - within < bytes ? whole - within : bytes;
		bool cached = r->block_extent == extent && r->block_number == block;
		if (n == whole && !cached) {
			if (read_block(r, e, block, data, err))
				return -1;
		} else {
			if (!cached) {
				r->block_extent = -1;
				if (read_block(r, e, block, r->block, err))
					return -1;
				r->block_extent = extent;
				r->block_number = block;
			}
			memcpy(data, r->block + within, n);
		}
		data += n;
		from += n;
		bytes -= n;
	}
	return 0;
}

/* ---- boxes */

static uint64_t element_at(const struct hspmd_box *whole, const int64_t *at)
{
	int64_t o = 0;
	for (int d = 0; d < whole->rank; d++)
		o = o * (whole->hi[d] - whole->lo[d]) + (at[d] - whole->lo[d]);
	return (uint64_t)o;
}

/* Read the runs that are contiguous both in the extent and in the buffer. */
static int read_part(struct hspmd_reader *r, int extent, const struct hspmd_box *part, const struct hspmd_box *box, char *data,
                     struct hspmd_error *err)
{
	const struct hspmd_extent *e = &r->extents[extent];
	size_t element = hspmd_dtype_bytes(e->dtype);
	int64_t run, runs, other_run, other_runs, at[HSPMD_MAX_RANK], covered = 1;
	hspmd_box_runs(&e->box, part, &run, &runs);
	hspmd_box_runs(box, part, &other_run, &other_runs);
	if (other_run < run) {
		run = other_run;
		runs = other_runs;
	}
	int inner = part->rank;
	memcpy(at, part->lo, sizeof at);
	while (inner > 0 && covered < run) {
		inner--;
		covered *= part->hi[inner] - part->lo[inner];
	}
	for (int64_t i = 0; i < runs; i++) {
		if (read_range(r, extent, element_at(&e->box, at) * element, (size_t)run * element, data + element_at(box, at) * element,
		               err))
			return -1;
		for (int d = inner - 1; d >= 0; d--) {
			if (++at[d] < part->hi[d])
				break;
			at[d] = part->lo[d];
		}
	}
	return 0;
}

/* ---- loading */

struct gaps {
	struct hspmd_state_gap *items;
	size_t count, capacity;
};

/* The boxes of a need that are not yet filled. */
struct open_boxes {
	struct hspmd_box *items;
	size_t count, capacity;
};

/* Read the intersection of the extent and the open boxes; the remainder replaces the open boxes. */
static int fill_from(struct hspmd_reader *r, int extent, const struct hspmd_state_need *n, struct open_boxes *open, struct hspmd_error *err)
{
	const struct hspmd_box *box = &r->extents[extent].box;
	size_t before = open->count, left = 0;
	for (size_t i = 0; i < before; i++) {
		struct hspmd_box whole = open->items[i], part, pieces[2 * HSPMD_MAX_RANK];
		struct hspmd_error why;
		if (!hspmd_box_intersect(&whole, box, &part) || learn_contents(r, r->extents[extent].shard, &why) ||
		    read_part(r, extent, &part, &n->box, n->data, &why)) {
			open->items[left++] = whole;
			continue;
		}
		int count = hspmd_box_subtract(&whole, box, pieces);
		for (int k = 0; k < count; k++) {
			if (hspmd_array_grow(&open->items, &open->capacity, open->count, sizeof *open->items))
				return hspmd_fail_memory(err, "reading a checkpoint");
			open->items[open->count++] = pieces[k];
		}
	}
	memmove(open->items + left, open->items + before, (open->count - before) * sizeof *open->items);
	open->count -= before - left;
	return 0;
}

static int load_need(struct hspmd_reader *r, const struct hspmd_state_need *n, size_t number, struct gaps *gaps, struct hspmd_error *err)
{
	struct open_boxes open = { 0 };
	int rv = 0;
	if (hspmd_array_grow(&open.items, &open.capacity, 0, sizeof *open.items))
		return hspmd_fail_memory(err, "reading a checkpoint");
	open.items[open.count++] = n->box;
	/* Extents that several workers have written are read from the nearest folder. */
	for (int i = 0; i < r->folder_count * r->extent_count && open.count && !rv; i++) {
		int e = i % r->extent_count;
		const struct hspmd_extent *x = &r->extents[e];
		if (x->kind != n->kind || hspmd_reader_folder(r, x->shard) != i / r->extent_count || strcmp(x->tensor, n->tensor))
			continue;
		if (x->dtype != n->dtype || x->box.rank != n->box.rank)
			rv = hspmd_fail(err, "%s is %s with %d dimensions in the checkpoint, not %s with %d", n->tensor,
			                hspmd_dtype_names[x->dtype], x->box.rank, hspmd_dtype_names[n->dtype], n->box.rank);
		else
			rv = fill_from(r, e, n, &open, err);
	}
	for (size_t i = 0; i < open.count && !rv; i++) {
		if (hspmd_array_grow(&gaps->items, &gaps->capacity, gaps->count, sizeof *gaps->items))
			rv = hspmd_fail_memory(err, "reading a checkpoint");
		else
			gaps->items[gaps->count++] = (struct hspmd_state_gap){ number, open.items[i] };
	}
	free(open.items);
	return rv;
}

int hspmd_reader_load(struct hspmd_reader *r, const struct hspmd_state_need *needs, size_t count, struct hspmd_state_gap **gaps,
                      size_t *gap_count, uint64_t *bytes_read, struct hspmd_error *err)
{
	struct gaps found = { 0 };
	const struct hspmd_extent *extents;
	int rv = 0;
	hspmd_reader_extents(r, &extents);
	memset(r->bytes_read, 0, (size_t)r->folder_count * sizeof *r->bytes_read);
	for (size_t i = 0; i < count && !rv; i++)
		rv = load_need(r, &needs[i], i, &found, err);
	if (bytes_read)
		memcpy(bytes_read, r->bytes_read, (size_t)r->folder_count * sizeof *bytes_read);
	if (!rv && !gaps && found.count) {
		char text[256];
		const struct hspmd_state_need *n = &needs[found.items[0].need];
		rv = hspmd_fail(err, "step %" PRId64 ": %s of %s %s is in no file that can be read here", r->m->step,
		                hspmd_state_kind_names[n->kind], n->tensor, hspmd_box_text(&found.items[0].box, text, sizeof text));
	}
	if (rv || !gaps) {
		free(found.items);
		return rv;
	}
	*gaps = found.items;
	*gap_count = found.count;
	return 0;
}

static int verify_copy(struct hspmd_reader *r, int shard, int folder, struct hspmd_error *err)
{
	const struct contents *s = &r->contents[shard];
	struct copy *c = &r->copies[shard * r->folder_count + folder];
	struct hspmd_shard_header h;
	if (hspmd_shard_header_read(c->fd, c->path, &h, err))
		return -1;
	int rv = take_header(r, shard, &h, c->path, err);
	hspmd_shard_header_free(&h);
	for (int e = 0; e < s->count && !rv; e++) {
		const struct hspmd_extent *x = &r->extents[s->first + e];
		for (size_t b = 0; b < hspmd_block_count(x->bytes) && !rv; b++)
			if (try_block(r, x, b, folder, r->block))
				rv = hspmd_fail(err, "%s: %s of %s is damaged", c->path, hspmd_state_kind_names[x->kind], x->tensor);
	}
	return rv;
}

int hspmd_reader_verify(struct hspmd_reader *r, int *bad, struct hspmd_error *err)
{
	struct hspmd_error why;
	int damaged = 0;
	r->block_extent = -1;
	for (int s = 0; s < r->m->shard_count; s++) {
		hspmd_progress(s, r->m->shard_count);
		for (int f = 0; f < r->folder_count; f++) {
			if (r->copies[s * r->folder_count + f].fd < 0 || !verify_copy(r, s, f, &why))
				continue;
			if (!damaged++ && err)
				*err = why;
		}
	}
	if (bad)
		*bad = damaged;
	return damaged ? -1 : 0;
}
