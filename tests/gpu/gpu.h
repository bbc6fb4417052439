/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CUDA device share. They run on the device that environment HSPMD_CUDA_MODULE names: the real one where there is a
 * GPU, or, where it names none, on the emulated one of the build folder. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include "runtime/device/device.h"
#include "tests/gpu/emulate/counts.h"

/* The CUDA device's first GPU; ends the program with "skipped: no GPU" (status 77) when there is none. */
struct hspmd_device *gpu_open(void);
/* Is it the emulated one, which is slow? */
bool gpu_is_emulated(void);

/* What the emulated device has been asked for so far, by tests/gpu/emulate/counts.h; zeros on a real one. */
void gpu_counts(long counts[EMULATE_COUNTS]);

#endif
