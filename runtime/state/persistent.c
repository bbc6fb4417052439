/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/persistent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/shm_dir.h"

#define MAGIC "hspmd-persist-1"
#define PAGE ((size_t)4096)
#define UNDO_BYTES (HSPMD_PERSISTENT_PARTS * HSPMD_PERSISTENT_BLOCK)
#define MUCH ((size_t)16 << 20) /* freeing this many bytes takes milliseconds */

enum { COMPUTING, READY, UPDATING, PHASES };

struct totals {
	int64_t step;
	double sum[HSPMD_PERSISTENT_TOTALS];
};

/* The beginning of the file; followed by the text, the undo log and the data. */
struct record {
	char magic[16];
	uint64_t layout, text_bytes, data_at, bytes;
	_Atomic uint64_t whole; /* the data are a complete state */
	_Atomic uint64_t phase; /* PHASES * step + phase */
	_Atomic uint64_t
	        progress; /* of the update: 2 * block, plus 1 while the block's undo data are valid and the block may be partly changed */
	struct totals recent[HSPMD_PERSISTENT_RECENT]; /* by step; an entry is written before its step is UPDATING */
};

struct hspmd_persistent {
	struct record *record;
	char *data, *undo;
	size_t mapped;
	int fd;
	char *folder, *name, *path;
};

static size_t round_to_pages(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

size_t hspmd_persistent_overhead(const char *text)
{
	return round_to_pages(sizeof(struct record) + strlen(text) + 1) + UNDO_BYTES;
}

/* ---- files */

static struct hspmd_persistent *make(const char *folder, const char *name, int64_t generation, struct hspmd_error *err)
{
	struct hspmd_persistent *l = calloc(1, sizeof *l);
	if (l) {
		l->fd = -1;
		l->folder = strdup(folder);
		l->name = strdup(name);
		l->path = hspmd_asprintf("%s/%s.g%" PRId64 ".live", folder, name, generation);
	}
	if (l && l->folder && l->name && l->path)
		return l;
	hspmd_persistent_close(l, true);
	hspmd_fail_memory(err, "taking memory for the state");
	return NULL;
}

static void *let_go(void *of)
{
	struct hspmd_persistent *l = of;
	if (l->record)
		munmap(l->record, l->mapped);
	if (l->fd >= 0)
		close(l->fd);
	free(l->folder);
	free(l->name);
	free(l->path);
	free(l);
	return NULL;
}

/* Freeing a gigabyte takes as long as copying it, so a thread does that. */
void hspmd_persistent_close(struct hspmd_persistent *l, bool keep)
{
	pthread_attr_t alone;
	pthread_t thread;
	if (!l)
		return;
	if (!keep && l->fd >= 0)
		unlink(l->path);
	bool beside = !keep && l->mapped >= MUCH && !pthread_attr_init(&alone);
	if (beside) {
		pthread_attr_setdetachstate(&alone, PTHREAD_CREATE_DETACHED);
		beside = !pthread_create(&thread, &alone, let_go, l);
		pthread_attr_destroy(&alone);
	}
	if (!beside)
		let_go(l);
}

static int map(struct hspmd_persistent *l, size_t bytes, struct hspmd_error *err)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0);
	if (at == MAP_FAILED)
		return hspmd_fail_errno(err, "%s: %zu bytes", l->path, bytes);
#ifdef MADV_HUGEPAGE
	madvise(at, bytes, MADV_HUGEPAGE); /* if the system allows huge pages in tmpfs */
#endif
	l->record = at;
	l->mapped = bytes;
	return 0;
}

static void point(struct hspmd_persistent *l)
{
	l->data = (char *)l->record + l->record->data_at;
	l->undo = l->data - UNDO_BYTES;
}

/* Allocate everything now, so that a full tmpfs is an error here and not a signal in the middle of a step. */
static int reserve(struct hspmd_persistent *l, size_t bytes, struct hspmd_error *err)
{
	l->fd = open(l->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (l->fd < 0 && errno == EEXIST && !unlink(l->path))
		l->fd = open(l->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (l->fd < 0)
		return hspmd_fail_errno(err, "%s", l->path);
	if (flock(l->fd, LOCK_EX | LOCK_NB))
		return hspmd_fail_errno(err, "%s", l->path);
	if (hspmd_shm_dir_check_space(l->folder, bytes, err))
		return -1;
	if (fallocate(l->fd, 0, 0, (off_t)bytes))
		return hspmd_fail_errno(err, "%s: %zu bytes", l->path, bytes);
	if (map(l, bytes, err))
		return -1;
#ifdef MADV_POPULATE_WRITE
	madvise(l->record, bytes, MADV_POPULATE_WRITE); /* otherwise every page is mapped when it is first written; no training that matters
	                                                   runs on systems without it */
#endif
	return 0;
}

struct hspmd_persistent *hspmd_persistent_create(const struct hspmd_persistent_spec *spec, struct hspmd_error *err)
{
	size_t head = hspmd_persistent_overhead(spec->text);
	if (mkdir(spec->folder, 0700) && errno != EEXIST) {
		hspmd_fail_errno(err, "%s", spec->folder);
		return NULL;
	}
	struct hspmd_persistent *l = make(spec->folder, spec->name, spec->generation, err);
	if (l && reserve(l, head + round_to_pages(spec->bytes), err)) {
		hspmd_persistent_close(l, false);
		return NULL;
	}
	if (!l)
		return NULL;
	struct record *r = l->record;
	memcpy(r->magic, MAGIC, sizeof MAGIC);
	r->layout = spec->layout;
	r->text_bytes = strlen(spec->text) + 1;
	r->data_at = head;
	r->bytes = spec->bytes;
	for (int i = 0; i < HSPMD_PERSISTENT_RECENT; i++)
		r->recent[i].step = -1;
	memcpy(r + 1, spec->text, r->text_bytes);
	point(l);
	return l;
}

/* The generation of a file of `name`; -1: another file. */
static int64_t generation_of(const char *file, const char *name)
{
	size_t n = strlen(name);
	int64_t generation;
	int end = 0;
	if (strncmp(file, name, n) || sscanf(file + n, ".g%" SCNd64 ".live%n", &generation, &end) != 1 || !end || file[n + (size_t)end])
		return -1;
	return generation;
}

/* Its process may have been killed a moment ago. */
static int lock(struct hspmd_persistent *l, double wait_s, struct hspmd_error *err)
{
	double until = hspmd_now() + wait_s;
	while (flock(l->fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return hspmd_fail_errno(err, "%s", l->path);
		if (hspmd_now() > until)
			return hspmd_fail(err, "%s: waited %.1f s for its process to end", l->path, wait_s);
		nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	}
	return 0;
}

static int check(const struct hspmd_persistent *l, struct hspmd_error *err)
{
	const struct record *r = l->record;
	if (memcmp(r->magic, MAGIC, sizeof MAGIC) || r->data_at % PAGE || r->data_at > l->mapped || r->data_at < sizeof *r + UNDO_BYTES ||
	    r->bytes > l->mapped - r->data_at || !r->text_bytes || r->text_bytes > r->data_at - sizeof *r - UNDO_BYTES ||
	    ((const char *)(r + 1))[r->text_bytes - 1])
		return hspmd_fail(err, "%s: not the memory of a worker", l->path);
	return atomic_load(&r->whole) ? 0 : hspmd_fail(err, "%s: its state was not complete yet", l->path);
}

static int open_locked(struct hspmd_persistent *l, double wait_s, struct hspmd_error *err)
{
	struct stat st;
	l->fd = open(l->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (l->fd < 0 || fstat(l->fd, &st))
		return hspmd_fail_errno(err, "%s", l->path);
	if (!S_ISREG(st.st_mode) || (size_t)st.st_size < sizeof(struct record))
		return hspmd_fail(err, "%s: not the memory of a worker", l->path);
	if (lock(l, wait_s, err) || map(l, (size_t)st.st_size, err) || check(l, err))
		return -1;
	point(l);
	return 0;
}

/* The highest generation below `below` that has a file; -1: none. */
static int64_t newest_below(const char *folder, const char *name, int64_t below)
{
	int64_t best = -1;
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));) {
		int64_t g = generation_of(e->d_name, name);
		best = g < below && g > best ? g : best;
	}
	if (d)
		closedir(d);
	return best;
}

struct hspmd_persistent *hspmd_persistent_open(const char *folder, const char *name, double wait_s, struct hspmd_error *err)
{
	hspmd_fail(err, "%s: no file of %s", folder, name);
	for (int64_t g = INT64_MAX; (g = newest_below(folder, name, g)) >= 0;) {
		struct hspmd_persistent *l = make(folder, name, g, err);
		if (!l)
			return NULL;
		if (!open_locked(l, wait_s, err))
			return l;
		hspmd_persistent_close(l, true);
	}
	return NULL;
}

static void remove_others(const struct hspmd_persistent *l)
{
	const char *own = strrchr(l->path, '/') + 1;
	DIR *d = opendir(l->folder);
	for (struct dirent *e; d && (e = readdir(d));)
		if (generation_of(e->d_name, l->name) >= 0 && strcmp(e->d_name, own))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

void *hspmd_persistent_data(const struct hspmd_persistent *l)
{
	return l->data;
}

const char *hspmd_persistent_text(const struct hspmd_persistent *l)
{
	return (const char *)(l->record + 1);
}

uint64_t hspmd_persistent_layout(const struct hspmd_persistent *l)
{
	return l->record->layout;
}

size_t hspmd_persistent_bytes(const struct hspmd_persistent *l)
{
	return l->record->bytes;
}

/* ---- the record */

static uint64_t phase(const struct hspmd_persistent *l)
{
	return atomic_load(&l->record->phase);
}

static void set_phase(struct hspmd_persistent *l, int64_t step, uint64_t to)
{
	atomic_store(&l->record->phase, PHASES * (uint64_t)step + to);
}

int64_t hspmd_persistent_step(const struct hspmd_persistent *l)
{
	return (int64_t)(phase(l) / PHASES);
}

bool hspmd_persistent_is_ready(const struct hspmd_persistent *l)
{
	return phase(l) % PHASES == READY;
}

bool hspmd_persistent_is_torn(const struct hspmd_persistent *l)
{
	return phase(l) % PHASES == UPDATING;
}

void hspmd_persistent_begin(struct hspmd_persistent *l, int64_t step)
{
	set_phase(l, step, COMPUTING);
	atomic_store(&l->record->whole, 1);
	remove_others(l);
}

void hspmd_persistent_ready(struct hspmd_persistent *l, bool ready)
{
	set_phase(l, hspmd_persistent_step(l), ready ? READY : COMPUTING);
}

bool hspmd_persistent_totals(const struct hspmd_persistent *l, int64_t step, double totals[HSPMD_PERSISTENT_TOTALS])
{
	const struct totals *s = &l->record->recent[step < 0 ? 0 : step % HSPMD_PERSISTENT_RECENT];
	if (step < 0 || s->step != step)
		return false;
	memcpy(totals, s->sum, sizeof s->sum);
	return true;
}

void hspmd_persistent_update(struct hspmd_persistent *l, const double totals[HSPMD_PERSISTENT_TOTALS])
{
	int64_t step = hspmd_persistent_step(l);
	if (hspmd_persistent_is_torn(l))
		return;
	struct totals *s = &l->record->recent[step % HSPMD_PERSISTENT_RECENT];
	memcpy(s->sum, totals, sizeof s->sum);
	s->step = step;
	atomic_store(&l->record->progress, 0);
	set_phase(l, step, UPDATING);
}

bool hspmd_persistent_block(struct hspmd_persistent *l, uint64_t block, void *const parts[HSPMD_PERSISTENT_PARTS], size_t bytes)
{
	uint64_t progress = atomic_load(&l->record->progress);
	if (progress / 2 > block)
		return false;
	bool torn = progress == 2 * block + 1;
	for (int k = 0; k < HSPMD_PERSISTENT_PARTS; k++) {
		void *undo = l->undo + (size_t)k * HSPMD_PERSISTENT_BLOCK;
		if (parts[k])
			memcpy(torn ? parts[k] : undo, torn ? undo : parts[k], bytes);
	}
	atomic_store(&l->record->progress, 2 * block + 1);
	return true;
}

void hspmd_persistent_block_done(struct hspmd_persistent *l, uint64_t block)
{
	atomic_store(&l->record->progress, 2 * block + 2);
}

void hspmd_persistent_updated(struct hspmd_persistent *l)
{
	set_phase(l, hspmd_persistent_step(l) + 1, COMPUTING);
}
