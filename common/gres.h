/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's words for generic resources: "gpu:2", "gpu:H20:8(S:0-1)", with "gres:" or "gres/" before, several with commas. */
#ifndef HSPMD_COMMON_GRES_H
#define HSPMD_COMMON_GRES_H

#include <stdbool.h>
#include <stddef.h>

/* Has a node all that is wanted of it? What is not understood does not fit. */
bool hspmd_gres_fit(const char *wanted, const char *has);
/* Devices and their type: 8 of "H20", of several types the first's name, "gpu" where none is said; without GPUs 1 of "cpu". */
int hspmd_gres_devices(const char *gres, char *type, size_t size);

#endif
