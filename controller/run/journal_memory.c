/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/journal_memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/durable.h"

/* Two texts, of which one is valid and the other may be half written. */
struct shared {
	_Atomic int64_t generation;
	atomic_long waiting;
	atomic_int valid; /* which one; -1: none */
	size_t size[2];
};

struct run_journal_memory {
	struct shared *shared;
	int fd[2];
};

struct run_journal_memory *run_journal_memory_create(struct hspmd_error *err)
{
	struct run_journal_memory *j = malloc(sizeof *j);
	if (!j) {
		hspmd_fail_memory(err, "keeping the journal");
		return NULL;
	}
	j->fd[0] = memfd_create("hspmd-journal", MFD_CLOEXEC);
	j->fd[1] = memfd_create("hspmd-journal", MFD_CLOEXEC);
	j->shared = mmap(NULL, sizeof *j->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (j->fd[0] < 0 || j->fd[1] < 0 || j->shared == MAP_FAILED) {
		hspmd_fail_errno(err, "keeping the journal");
		run_journal_memory_destroy(j);
		return NULL;
	}
	atomic_store(&j->shared->valid, -1);
	return j;
}

void run_journal_memory_destroy(struct run_journal_memory *j)
{
	if (!j)
		return;
	for (int i = 0; i < 2; i++)
		if (j->fd[i] >= 0)
			close(j->fd[i]);
	if (j->shared != MAP_FAILED)
		munmap(j->shared, sizeof *j->shared);
	free(j);
}

int run_journal_memory_save(struct run_journal_memory *j, const json_t *journal, struct hspmd_error *err)
{
	int next = atomic_load(&j->shared->valid) == 0;
	char *text = json_dumps(journal, JSON_COMPACT | JSON_REAL_PRECISION(17));
	size_t size = text ? strlen(text) : 0;
	int status = 0;
	if (!text)
		status = hspmd_fail_memory(err, "keeping the journal");
	else if (ftruncate(j->fd[next], 0) || lseek(j->fd[next], 0, SEEK_SET) < 0 || hspmd_write_all(j->fd[next], text, size))
		status = hspmd_fail_errno(err, "keeping the journal");
	free(text);
	if (status)
		return -1;
	j->shared->size[next] = size;
	atomic_store(&j->shared->valid, next);
	return 0;
}

json_t *run_journal_memory_load(const struct run_journal_memory *j)
{
	int valid = atomic_load(&j->shared->valid);
	size_t size = valid < 0 ? 0 : j->shared->size[valid];
	char *text = size ? malloc(size) : NULL;
	json_t *journal = text && !hspmd_read_at(j->fd[valid], text, size, 0) ? json_loadb(text, size, 0, NULL) : NULL;
	free(text);
	return journal;
}

void run_journal_memory_begin(struct run_journal_memory *j, int64_t generation)
{
	atomic_store(&j->shared->generation, generation);
}

int64_t run_journal_memory_generation(const struct run_journal_memory *j)
{
	return atomic_load(&j->shared->generation);
}

void run_journal_memory_set_waiting(struct run_journal_memory *j, long count)
{
	atomic_store(&j->shared->waiting, count);
}

long run_journal_memory_waiting(const struct run_journal_memory *j)
{
	return atomic_load(&j->shared->waiting);
}
