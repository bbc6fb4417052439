/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's notation for generic resources: "gpu:2", "gpu:H20:8(S:0-1)", with the prefix "gres:" or "gres/", comma-separated. */
#ifndef HSPMD_COMMON_GRES_H
#define HSPMD_COMMON_GRES_H

#include <stdbool.h>
#include <stddef.h>

/* Returns true if a node that has `has` satisfies `wanted`. A text that cannot be parsed does not. */
bool hspmd_gres_fit(const char *wanted, const char *has);
/* Writes a list as --gres of Slurm's commands takes it, "gpu:a100:2,nic:1": without prefixes, and without types if !typed. -1: the list
 * cannot be parsed, or the text is too long. */
int hspmd_gres_request(const char *list, bool typed, char *text, size_t size);
/* Returns the number of devices and writes their type: 8 and "H20"; for several types the name of the first; "gpu" if no type is given;
 * without GPUs 1 and "cpu". */
int hspmd_gres_devices(const char *gres, char *type, size_t size);

#endif
