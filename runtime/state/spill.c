/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"

#define DIRTY_BYTES ((size_t)64 << 20) /* bytes that may wait in memory to be written */

static int open_nameless(const char *folder, struct hspmd_error *err)
{
	if (hspmd_durable_mkdir(folder, 0777, err))
		return -1;
	int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
		return fd >= 0 ? fd : hspmd_fail_errno(err, "%s: a file for the state", folder);
	char *path = hspmd_asprintf("%s/spilled-XXXXXX", folder);
	if (!path)
		return hspmd_fail_memory(err, "keeping the state on disk");
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		hspmd_fail_errno(err, "%s", path);
	else
		unlink(path);
	free(path);
	return fd;
}

/* Write piece by piece, and remove each from memory before the next: freeing memory is the purpose. */
static int write_out(int fd, const char *from, size_t bytes, const char *folder, struct hspmd_error *err)
{
	if (bytes && (errno = posix_fallocate(fd, 0, (off_t)bytes)))
		return hspmd_fail_errno(err, "%s: %zu bytes for the state", folder, bytes);
	for (size_t at = 0; at < bytes; at += DIRTY_BYTES) {
		size_t n = bytes - at < DIRTY_BYTES ? bytes - at : DIRTY_BYTES;
		if (hspmd_write_all(fd, from + at, n) || fdatasync(fd))
			return hspmd_fail_errno(err, "%s: keeping the state", folder);
		posix_fadvise(fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED);
	}
	return 0;
}

static int spill_to_disk(struct hspmd_spill *s, const void *from, size_t bytes, const char *folder, struct hspmd_error *err)
{
	int fd = open_nameless(folder, err);
	if (fd < 0)
		return -1;
	int status = write_out(fd, from, bytes, folder, err);
	if (!status) {
		void *at = mmap(NULL, bytes + 1, PROT_READ, MAP_SHARED, fd, 0);
		if (at == MAP_FAILED)
			status = hspmd_fail_errno(err, "%s: %zu bytes of state", folder, bytes);
		else
			*s = (struct hspmd_spill){ at, bytes, true };
	}
	close(fd);
	return status;
}

int hspmd_spill_write(struct hspmd_spill *s, struct hspmd_device *dev, const void *from, size_t bytes, const char *folder,
                      struct hspmd_error *err)
{
	if (folder)
		return spill_to_disk(s, from, bytes, folder, err);
	void *host = malloc(bytes + 1);
	if (!host)
		return hspmd_fail_memory(err, "keeping the state while another plan takes the device's memory");
	if (dev->ops->to_host(dev, host, from, bytes, err)) {
		free(host);
		return -1;
	}
	*s = (struct hspmd_spill){ host, bytes, false };
	return 0;
}

void hspmd_spill_free(struct hspmd_spill *s)
{
	if (s->mapped)
		munmap(s->at, s->bytes + 1);
	else
		free(s->at);
	*s = (struct hspmd_spill){ 0 };
}
