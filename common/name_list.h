/* SPDX-License-Identifier: Apache-2.0 */
/* Names with commas between them, as Slurm writes features, partitions and QOS. */
#ifndef HSPMD_COMMON_NAME_LIST_H
#define HSPMD_COMMON_NAME_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* Returns true if one of the list's names is the first `length` characters of `name`. */
bool hspmd_name_list_has(const char *list, const char *name, size_t length);

#endif
