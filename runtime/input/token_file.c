/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/format/megatron_index.h"

static const int width_bytes[] = {
	[HSPMD_TOKEN_U8] = 1, [HSPMD_TOKEN_U16] = 2, [HSPMD_TOKEN_U32] = 4, [HSPMD_TOKEN_I16] = 2, [HSPMD_TOKEN_I64] = 8
};

/* path: malloc'd, taken over; NULL: out of memory. */
static int map_file(struct hspmd_mapping *m, char *path, struct hspmd_error *err)
{
	struct stat st;
	m->path = path;
	if (!path)
		return hspmd_fail_memory(err, "opening data");
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		hspmd_fail_errno(err, "%s", path);
		if (fd >= 0)
			close(fd);
		return -1;
	}
	m->size = (size_t)st.st_size;
	m->changed_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	void *map = m->size ? mmap(NULL, m->size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
	int saved = errno;
	close(fd);
	if (map == MAP_FAILED) {
		errno = saved;
		return hspmd_fail_errno(err, "%s: cannot be mapped", path);
	}
	m->bytes = map;
	if (map)
		madvise(map, m->size, MADV_RANDOM);
	return 0;
}

static void unmap_file(struct hspmd_mapping *m)
{
	if (m->bytes)
		munmap((void *)m->bytes, m->size);
	free(m->path);
}

/* The numbers in an index are not aligned. */
static int64_t number_at(const struct hspmd_mapping *m, size_t offset)
{
	int64_t v;
	memcpy(&v, m->bytes + offset, sizeof v);
	return v;
}

static int open_megatron(struct hspmd_token_file *f, bool documents, const char *path, struct hspmd_error *err)
{
	static const enum hspmd_token_width of_code[] = {
		0, HSPMD_TOKEN_U8, HSPMD_TOKEN_U8, HSPMD_TOKEN_I16, HSPMD_TOKEN_U32, HSPMD_TOKEN_I64, 0, 0, HSPMD_TOKEN_U16, HSPMD_TOKEN_U32
	};
	int base = hspmd_megatron_base_length(path);
	if (map_file(&f->index, hspmd_asprintf("%.*s.idx", base, path), err))
		return -1;
	int code = hspmd_megatron_code(f->index.bytes, f->index.size);
	if (code < 0)
		return hspmd_fail(err, "%s: not an index of Megatron data (version 1)", f->index.path);
	if (!hspmd_megatron_width(code))
		return hspmd_fail(err, "%s: tokens of type code %d, expected an integer type", f->index.path, code);
	f->width = of_code[code];
	if (map_file(&f->data, hspmd_asprintf("%.*s.bin", base, path), err))
		return -1;
	if (!documents)
		return 0;
	if (hspmd_megatron_index_read(&f->layout, f->index.path, width_bytes[f->width], (int64_t)f->data.size, err))
		return -1;
	f->documents = f->layout.documents;
	return f->layout.bytes <= f->index.size ? 0 : hspmd_fail(err, "%s: has changed while it was read", f->index.path);
}

int hspmd_token_file_open(struct hspmd_token_file *f, const struct hspmd_job *job, const char *path, struct hspmd_error *err)
{
	static const enum hspmd_token_width of_kind[] = {
		[HSPMD_DATA_BYTES] = HSPMD_TOKEN_U8, [HSPMD_DATA_UINT16] = HSPMD_TOKEN_U16, [HSPMD_DATA_UINT32] = HSPMD_TOKEN_U32
	};
	*f = (struct hspmd_token_file){ 0 };
	if (job->data_kind == HSPMD_DATA_MEGATRON) {
		if (open_megatron(f, hspmd_job_uses_index(job), path, err))
			return -1;
	} else {
		f->width = of_kind[job->data_kind];
		if (map_file(&f->data, strdup(path), err))
			return -1;
	}
	f->tokens = (int64_t)(f->data.size / (size_t)width_bytes[f->width]);
	if (!job->mask)
		return 0;
	if (map_file(&f->mask, hspmd_job_mask_path(job, path), err))
		return -1;
	if (f->mask.size != (size_t)f->tokens)
		return hspmd_fail(err, "%s: %zu bytes, expected one for each of the %" PRId64 " tokens of %s", f->mask.path, f->mask.size,
		                  f->tokens, f->data.path);
	return 0;
}

void hspmd_token_file_close(struct hspmd_token_file *f)
{
	unmap_file(&f->data);
	unmap_file(&f->index);
	unmap_file(&f->mask);
}

int64_t hspmd_token_file_get(const struct hspmd_token_file *f, int64_t i)
{
	const unsigned char *at = f->data.bytes + i * width_bytes[f->width];
	switch (f->width) {
	case HSPMD_TOKEN_U8:
		return *at;
	case HSPMD_TOKEN_U16:
		return at[0] | at[1] << 8;
	case HSPMD_TOKEN_I16:
		return (int16_t)(at[0] | at[1] << 8);
	case HSPMD_TOKEN_U32: {
		uint32_t v;
		memcpy(&v, at, sizeof v);
		return v;
	}
	case HSPMD_TOKEN_I64: {
		int64_t v;
		memcpy(&v, at, sizeof v);
		return v;
	}
	}
	return -1;
}

static int64_t first_sequence(const struct hspmd_token_file *f, int64_t document)
{
	return number_at(&f->index, f->layout.documents_at + (size_t)document * sizeof(int64_t));
}

static int64_t sequence_offset(const struct hspmd_token_file *f, int64_t sequence)
{
	return number_at(&f->index, f->layout.offsets_at + (size_t)sequence * sizeof(int64_t));
}

/* Stays within the file whatever the index says. */
int64_t hspmd_token_file_document_start(const struct hspmd_token_file *f, int64_t document)
{
	if (document >= f->documents)
		return f->tokens;
	int64_t sequence = first_sequence(f, document);
	if (sequence < 0 || sequence >= f->layout.sequences)
		return f->tokens;
	int64_t start = sequence_offset(f, sequence) / width_bytes[f->width];
	return start < 0 ? 0 : start > f->tokens ? f->tokens : start;
}

int hspmd_token_file_check_document(const struct hspmd_token_file *f, int64_t document, struct hspmd_error *err)
{
	int64_t before = document > 0 ? first_sequence(f, document - 1) : 0, first = first_sequence(f, document),
	        next = first_sequence(f, document + 1);
	int32_t length;
	if (before < 0 || before > first || first > next || next > f->layout.sequences)
		return hspmd_fail(err,
		                  "%s: its document %" PRId64 " begins with sequence %" PRId64 ", the one before with %" PRId64
		                  ", the next with %" PRId64 ", and there are %" PRId64 " sequences",
		                  f->index.path, document, first, before, next, f->layout.sequences);
	if (first == 0 || first == f->layout.sequences)
		return 0;
	memcpy(&length, f->index.bytes + HSPMD_MEGATRON_HEAD_BYTES + (size_t)(first - 1) * sizeof length, sizeof length);
	int64_t offset = sequence_offset(f, first), last = sequence_offset(f, first - 1);
	if (last < 0 || offset < last || offset - last != (int64_t)length * width_bytes[f->width])
		return hspmd_fail(err,
		                  "%s: its sequence %" PRId64 " begins at byte %" PRId64 ", but the one before at byte %" PRId64
		                  " with %d tokens of %d bytes",
		                  f->index.path, first, offset, last, length, width_bytes[f->width]);
	return 0;
}

int64_t hspmd_token_file_document(const struct hspmd_token_file *f, int64_t at)
{
	int64_t low = 0, high = f->documents; /* document `low` begins at or before `at`, `high` after it */
	while (high - low > 1) {
		int64_t middle = low + (high - low) / 2;
		if (hspmd_token_file_document_start(f, middle) <= at)
			low = middle;
		else
			high = middle;
	}
	return low;
}
