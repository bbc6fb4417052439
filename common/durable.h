/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are complete or absent: write a temporary file next to the target, fsync, rename, fsync the folder. The old file stays until
 * the new one is durable. */
#ifndef HSPMD_COMMON_DURABLE_H
#define HSPMD_COMMON_DURABLE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/error.h"

/* Write `size` bytes to path. The old file, if any, stays until the new one is on disk. 0 or -1. */
int hspmd_durable_write(const char *path, const void *data, size_t size, struct hspmd_error *err);
/* fsync a file or folder by path. */
int hspmd_durable_sync(const char *path, struct hspmd_error *err);
/* mkdir -p; syncs the parent of every folder that it makes. */
int hspmd_durable_mkdir(const char *path, mode_t mode, struct hspmd_error *err);
/* Remove a folder and its contents; does not follow links. An absent folder is no error. */
int hspmd_remove_tree(const char *path, struct hspmd_error *err);
/* The whole file in a malloc'd, NUL-terminated buffer; a file of more than `max` bytes is an error. */
char *hspmd_read_file(const char *path, size_t max, size_t *size, struct hspmd_error *err);
/* Calls write(2) until all bytes are written; -1 with errno. */
int hspmd_write_all(int fd, const void *data, size_t size);
/* Calls pread(2) until all bytes are read; -1 with errno, which is ENODATA if the file ends before. */
int hspmd_read_at(int fd, void *data, size_t size, uint64_t offset);

#endif
