/* SPDX-License-Identifier: Apache-2.0 */
/* An operator's case (tests/unit/op_case.h) on the GPU beside the CPU device. */
#ifndef TESTS_GPU_MIRROR_H
#define TESTS_GPU_MIRROR_H

#include "runtime/device/device.h"
#include "tests/unit/op_case.h"

/* The device under test. */
extern struct hspmd_device *gpu;

/* Every output, forward and backward, on `gpu` in `type` is within `bound` by norm of the CPU device's in double precision, and has the
 * same bits the second time. */
void mirror_check_case(const struct op_case *c, enum hspmd_dtype type, double bound);

/* A status other than 0 fails the test with err's text. */
void mirror_must(int status, const struct hspmd_error *err);
/* Memory of `gpu`, and a copy of it on the host: malloc'd. */
void *mirror_allocate(size_t bytes);
void *mirror_take_back(const void *data, size_t bytes);

#endif
