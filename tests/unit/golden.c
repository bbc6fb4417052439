/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>

#include "tests/unit/op_case.h"

void golden_fill(void *data, enum hspmd_dtype type, int64_t count, const char *group, const char *tensor)
{
	char name[128];
	snprintf(name, sizeof name, "%s/%s", group, tensor);
	for (int64_t i = 0; i < count; i++)
		op_value_set(data, type, i, 2 * golden_unit(golden_name(name), i));
}

void golden_check(const char *what, const char *name, const json_t *digest, const void *data, enum hspmd_dtype type, int64_t count,
                  double tolerance)
{
	static const char *const parts[] = { "norm", "projection", "first element", "last element" };
	char direction[192];
	snprintf(direction, sizeof direction, "%s direction", name);
	if (json_array_size(digest) != 4)
		fail_msg("%s of %s: not in the file", what, name);
	double got[4] = { 0, 0, op_value_get(data, type, 0), op_value_get(data, type, count - 1) };
	for (int64_t i = 0; i < count; i++) {
		double x = op_value_get(data, type, i);
		got[0] += x * x;
		got[1] += x * golden_unit(golden_name(direction), i);
	}
	got[0] = sqrt(got[0]);
	double norm = json_number_value(json_array_get(digest, 0));
	for (size_t k = 0; k < 4; k++) {
		double want = json_number_value(json_array_get(digest, k));
		if (!(fabs(got[k] - want) <= tolerance * norm))
			fail_msg("%s of %s (%s): the %s is %.12g, PyTorch's %.12g (%.2g of the norm off, at most %g)", what, name,
			         hspmd_dtype_names[type], parts[k], got[k], want, fabs(got[k] - want) / norm, tolerance);
	}
}

void golden_check_number(const char *what, int64_t at, double want, double got, double tolerance)
{
	if (!(fabs(got - want) <= tolerance * fabs(want)))
		fail_msg("%s %lld is %.12g, PyTorch's %.12g (%.2g off, at most %g)", what, (long long)at, got, want,
		         fabs(got - want) / fabs(want), tolerance);
}
