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

static size_t pointers_at(const struct hspmd_token_file *f)
{
	return HSPMD_MEGATRON_HEAD_BYTES + (size_t)f->sequences * sizeof(int32_t);
}

static size_t documents_at(const struct hspmd_token_file *f)
{
	return pointers_at(f) + (size_t)f->sequences * sizeof(int64_t);
}

/* After the head come the lengths of the sequences, their offsets in bytes, and for each document, and the end, the number of its first
 * sequence. Only the ends are checked here, since an index may be large; document_start keeps within the file whatever it reads. */
static int read_documents(struct hspmd_token_file *f, struct hspmd_error *err)
{
	const struct hspmd_mapping *m = &f->index;
	int64_t most = (int64_t)(m->size / sizeof(int32_t)), entries = number_at(m, 26);
	int32_t last;
	f->sequences = number_at(m, 18);
	if (f->sequences < 1 || f->sequences > most || entries < 2 || entries > most ||
	    m->size < documents_at(f) + (size_t)entries * sizeof(int64_t))
		return hspmd_fail(err, "%s: shorter than its %" PRId64 " sequences and %" PRId64 " documents take", m->path, f->sequences,
		                  entries - 1);
	f->documents = entries - 1;
	memcpy(&last, m->bytes + HSPMD_MEGATRON_HEAD_BYTES + (size_t)(f->sequences - 1) * sizeof last, sizeof last);
	int64_t end = number_at(m, pointers_at(f) + (size_t)(f->sequences - 1) * sizeof(int64_t)) + (int64_t)last * width_bytes[f->width];
	if (number_at(m, documents_at(f)) != 0 || number_at(m, documents_at(f) + (size_t)f->documents * sizeof(int64_t)) != f->sequences)
		return hspmd_fail(err, "%s: its documents are not those of its %" PRId64 " sequences", m->path, f->sequences);
	if (end != (int64_t)f->data.size)
		return hspmd_fail(err, "%s: its sequences end at byte %" PRId64 ", but %s has %zu bytes", m->path, end, f->data.path,
		                  f->data.size);
	return 0;
}

static int open_megatron(struct hspmd_token_file *f, bool documents, const char *path, struct hspmd_error *err)
{
	static const enum hspmd_token_width of_code[] = {
		0, HSPMD_TOKEN_U8, HSPMD_TOKEN_U8, HSPMD_TOKEN_I16, HSPMD_TOKEN_U32, HSPMD_TOKEN_I64, 0, 0, HSPMD_TOKEN_U16, HSPMD_TOKEN_U32
	};
	int base = hspmd_job_megatron_base_length(path);
	if (map_file(&f->index, hspmd_asprintf("%.*s.idx", base, path), err))
		return -1;
	int code = hspmd_job_megatron_code(f->index.bytes, f->index.size);
	if (code < 0)
		return hspmd_fail(err, "%s: not an index of Megatron data (version 1)", f->index.path);
	if (!hspmd_job_megatron_width(code))
		return hspmd_fail(err, "%s: tokens of type code %d, expected an integer type", f->index.path, code);
	f->width = of_code[code];
	if (map_file(&f->data, hspmd_asprintf("%.*s.bin", base, path), err))
		return -1;
	return documents ? read_documents(f, err) : 0;
}

int hspmd_token_file_open(struct hspmd_token_file *f, const struct hspmd_job *job, const char *path, struct hspmd_error *err)
{
	static const enum hspmd_token_width of_kind[] = {
		[HSPMD_DATA_BYTES] = HSPMD_TOKEN_U8, [HSPMD_DATA_UINT16] = HSPMD_TOKEN_U16, [HSPMD_DATA_UINT32] = HSPMD_TOKEN_U32
	};
	bool indexed = job->documents && job->document_end < 0;
	*f = (struct hspmd_token_file){ 0 };
	if (job->data_kind == HSPMD_DATA_MEGATRON) {
		if (open_megatron(f, indexed, path, err))
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

int64_t hspmd_token_file_document_start(const struct hspmd_token_file *f, int64_t document)
{
	if (document >= f->documents)
		return f->tokens;
	int64_t sequence = number_at(&f->index, documents_at(f) + (size_t)document * sizeof(int64_t));
	if (sequence < 0 || sequence >= f->sequences)
		return f->tokens;
	int64_t start = number_at(&f->index, pointers_at(f) + (size_t)sequence * sizeof(int64_t)) / width_bytes[f->width];
	return start < 0 ? 0 : start > f->tokens ? f->tokens : start;
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
