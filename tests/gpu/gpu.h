/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CUDA device share. They run on the device that environment HSPMD_CUDA_MODULE names, the real one on a machine with
 * a GPU; if it is not set, on the emulated device of the build folder. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include "runtime/device/device.h"
#include "tests/gpu/emulate/counts.h"

/* Opens the CUDA device's first GPU; ends the program with "skipped: no GPU" (status 77) if there is none. */
struct hspmd_device *gpu_open(void);
/* Returns true on the emulated device, which is slow. */
bool gpu_is_emulated(void);

/* Gets what the emulated device has counted so far, indexed as in tests/gpu/emulate/counts.h; zeros on a real device. */
void gpu_counts(long counts[EMULATE_COUNTS]);
/* Returns how many blocks with products of warp-groups have run since the last call. */
long gpu_wgmma_runs(void);

#endif
