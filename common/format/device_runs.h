/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of device addresses in control messages, written as runs: ["n0:0-7", "n1:3", "n1:1"]. The order counts. Unlike a plan's devices
 * they need no cluster: a device may be on a node that has left it. */
#ifndef HSPMD_FORMAT_DEVICE_RUNS_H
#define HSPMD_FORMAT_DEVICE_RUNS_H

#include <jansson.h>

#include "common/error.h"

#define HSPMD_DEVICE_RUNS_ADDRESS 64 /* bytes of an address, with its end */

/* The runs of `count` addresses. A new reference, or NULL: out of memory. */
json_t *hspmd_device_runs(const char *const *address, int count);
/* The addresses of an array of runs, in *address, which the caller frees. Returns their number; or -1 and err: an entry is no run, an
 * address is longer than HSPMD_DEVICE_RUNS_ADDRESS - 1, or there are more than 2^20 addresses. */
int hspmd_device_runs_expand(const json_t *runs, char (**address)[HSPMD_DEVICE_RUNS_ADDRESS], struct hspmd_error *err);

#endif
