/* SPDX-License-Identifier: Apache-2.0 */
/* What a command has saved last. */
#ifndef HSPMD_COMMAND_NEWEST_H
#define HSPMD_COMMAND_NEWEST_H

#include <stdint.h>

/* Returns when the newest file in the folder, or in folders in it, was changed: nanoseconds since 1970; -1: there is none. *path (unless
 * NULL): malloc'd, the file or folder directly in `folder` to which it belongs; NULL: none, or out of memory. Left out are names that begin
 * with '.' or end in ".tmp", which are not complete yet. */
int64_t hspmd_newest_save(const char *folder, char **path);

#endif
