/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are there whole or not at all (the old file stands until the new one is durable): temporary file beside the target, fsync,
 * rename, fsync of the folder. */
#ifndef HSPMD_COMMON_DURABLE_H
#define HSPMD_COMMON_DURABLE_H

#include <stddef.h>
#include <sys/types.h>

#include "common/error.h"

/* Write `size` bytes to path. The old file, if any, stands until the new one is safely on disk. 0 or -1. */
int hspmd_durable_write(const char *path, const void *data, size_t size, struct hspmd_error *err);
/* fsync a file or folder by path. */
int hspmd_durable_sync(const char *path, struct hspmd_error *err);
/* mkdir -p; every folder it makes is synced into its parent. */
int hspmd_durable_mkdir(const char *path, mode_t mode, struct hspmd_error *err);
/* Remove a folder and all in it (does not follow links). Not there: fine. */
int hspmd_remove_tree(const char *path, struct hspmd_error *err);
/* Whole file into a malloc'd, NUL-terminated buffer, refused above max bytes. */
char *hspmd_read_file(const char *path, size_t max, size_t *size, struct hspmd_error *err);
/* write(2)/pwrite until all is written, or -1 with errno. */
int hspmd_write_all(int fd, const void *data, size_t size);

#endif
