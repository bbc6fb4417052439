/* SPDX-License-Identifier: Apache-2.0 */
/* Runs an operator's case (tests/unit/op_case.h) on the GPU and on the CPU device, and compares the results. */
#ifndef TESTS_GPU_MIRROR_H
#define TESTS_GPU_MIRROR_H

#include "runtime/device/device.h"
#include "tests/unit/op_case.h"

/* The device under test. */
extern struct hspmd_device *gpu;

/* Checks every output, forward and backward, of `gpu` in `type`: within `bound` by norm of the CPU device's in double precision, and with
 * the same bits the second time. */
void mirror_check_case(const struct op_case *c, enum hspmd_dtype type, double bound);

/* Fails the test with err's text unless status is 0. */
void mirror_must(int status, const struct hspmd_error *err);
/* Allocate memory of `gpu`, and copy it to the host; the copy is malloc'd. */
void *mirror_allocate(size_t bytes);
void *mirror_take_back(const void *data, size_t bytes);

#endif
