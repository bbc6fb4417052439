/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/megatron_index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int hspmd_megatron_base_length(const char *path)
{
	size_t n = strlen(path);
	bool suffix = n > 4 && (!strcmp(path + n - 4, ".bin") || !strcmp(path + n - 4, ".idx"));
	return (int)(suffix ? n - 4 : n);
}

/* The type codes are fairseq's, which has 9 as well. */
int hspmd_megatron_code(const unsigned char *head, size_t size)
{
	return size >= HSPMD_MEGATRON_HEAD_BYTES && !memcmp(head, "MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17) ? head[17] : -1;
}

int hspmd_megatron_width(int code)
{
	static const int widths[] = { [1] = 1, [2] = 1, [3] = 2, [4] = 4, [5] = 8, [8] = 2, [9] = 4 };
	return code > 0 && code < (int)(sizeof widths / sizeof *widths) ? widths[code] : 0;
}

static int64_t number_at(int fd, size_t offset, bool *failed)
{
	int64_t value = 0;
	*failed |= pread(fd, &value, sizeof value, (off_t)offset) != sizeof value;
	return value;
}

static int read_sizes(struct hspmd_megatron_index *x, int fd, size_t size, bool *failed)
{
	int64_t most = (int64_t)(size / sizeof(int32_t)), entries = number_at(fd, 26, failed);
	x->sequences = number_at(fd, 18, failed);
	x->documents = entries > 0 ? entries - 1 : 0;
	if (x->sequences < 1 || x->sequences > most || x->documents < 1 || entries > most)
		return -1;
	x->offsets_at = HSPMD_MEGATRON_HEAD_BYTES + (size_t)x->sequences * sizeof(int32_t);
	x->documents_at = x->offsets_at + (size_t)x->sequences * sizeof(int64_t);
	x->bytes = x->documents_at + (size_t)entries * sizeof(int64_t);
	return size < x->bytes ? -1 : 0;
}

static int check_ends(const struct hspmd_megatron_index *x, int fd, const char *path, int width, int64_t data_bytes,
                      struct hspmd_error *err)
{
	bool failed = false;
	int32_t last = 0;
	size_t last_sequence = (size_t)(x->sequences - 1);
	failed |= pread(fd, &last, sizeof last, (off_t)(x->offsets_at - sizeof last)) != sizeof last;
	int64_t begin = number_at(fd, x->offsets_at, &failed),
	        offset = number_at(fd, x->offsets_at + last_sequence * sizeof(int64_t), &failed),
	        first_document = number_at(fd, x->documents_at, &failed),
	        last_document = number_at(fd, x->bytes - sizeof(int64_t), &failed);
	if (failed)
		return hspmd_fail(err, "%s: cannot be read", path);
	if (first_document != 0 || last_document != x->sequences)
		return hspmd_fail(err, "%s: its documents are not those of its %" PRId64 " sequences", path, x->sequences);
	if (begin != 0 || offset < 0 || last < 0 || offset > data_bytes || data_bytes - offset != (int64_t)last * width)
		return hspmd_fail(err,
		                  "%s: its sequences are from byte %" PRId64 " to %" PRId64
		                  " + %d tokens of %d bytes, but the tokens beside "
		                  "it have %" PRId64 " bytes",
		                  path, begin, offset, last, width, data_bytes);
	return 0;
}

int hspmd_megatron_index_read(struct hspmd_megatron_index *index, const char *path, int width, int64_t data_bytes, struct hspmd_error *err)
{
	struct stat st;
	bool failed = false;
	int status = -1, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	*index = (struct hspmd_megatron_index){ 0 };
	if (fd < 0 || fstat(fd, &st))
		hspmd_fail_errno(err, "%s", path);
	else if (read_sizes(index, fd, (size_t)st.st_size, &failed) || failed)
		hspmd_fail(err, "%s: shorter than its %" PRId64 " sequences and %" PRId64 " documents take", path, index->sequences,
		           index->documents);
	else
		status = check_ends(index, fd, path, width, data_bytes, err);
	if (fd >= 0)
		close(fd);
	return status;
}
