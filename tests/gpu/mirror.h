/* SPDX-License-Identifier: Apache-2.0 */
/* Runs an operator's case (tests/unit/op_case.h) on the GPU and on the CPU device, and compares the results. */
#ifndef TESTS_GPU_MIRROR_H
#define TESTS_GPU_MIRROR_H

#include "runtime/device/device.h"
#include "tests/unit/op_case.h"

/* The device under test. */
extern struct hspmd_device *gpu;

/* Distance by norm that rounding explains: a few units of the last place of the type, times the depth of the sums. */
#define F32_BOUND 2e-5
#define BF16_BOUND 3e-2

/* One output of a case, forward or backward. error: its distance by norm, relative, from the CPU device's in double precision. same_bits:
 * the second time, prepared, it had the same bits. */
struct mirror_result {
	const char *name, *tensor;
	enum hspmd_dtype type;
	double error;
	uint64_t bits; /* a hash of them */
	bool same_bits;
};

/* Runs a case twice on `gpu` in `type`, the second time with prepared calls, and passes every output to `take`. A prepared call that still
 * decides something fails the test. */
void mirror_measure_case(const struct op_case *c, enum hspmd_dtype type, void (*take)(const struct mirror_result *r, void *context),
                         void *context);
/* Fails the test unless every output's error is less than `bound`, and its bits are the same. */
void mirror_check_case(const struct op_case *c, enum hspmd_dtype type, double bound);

/* What the outputs of a case come to. */
struct mirror_sum {
	double bound; /* given */
	uint64_t bits;
};
/* For `take`, with a struct mirror_sum: adds the bits, and fails the test as mirror_check_case does. */
void mirror_add_result(const struct mirror_result *r, void *sum);

/* Fails the test with err's text unless status is 0. */
void mirror_must(int status, const struct hspmd_error *err);
/* Allocate memory of `gpu`, and copy it to the host; the copy is malloc'd. */
void *mirror_allocate(size_t bytes);
void *mirror_take_back(const void *data, size_t bytes);

#endif
