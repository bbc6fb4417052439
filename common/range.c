/* SPDX-License-Identifier: Apache-2.0 */
#include "common/range.h"

/* Parses a run of digits and returns its end; NULL if the number is too large. */
static const char *number(const char *at, int *value)
{
	const char *start = at;
	long n = 0;
	for (; *at >= '0' && *at <= '9'; at++)
		if ((n = n * 10 + (*at - '0')) > HSPMD_RANGE_MAX)
			return NULL;
	*value = (int)n;
	return at == start ? NULL : at;
}

int hspmd_range_parse(const char *text, int *min, int *max, struct hspmd_error *err)
{
	int low = 0, high = 0;
	const char *at = number(text, &low);
	high = low;
	if (at && *at == '-')
		at = number(at + 1, &high);
	if (!at || *at || low < 1 || high < low)
		return hspmd_fail(err, "expected MIN-MAX or N, whole numbers 1..%d, got \"%s\"", HSPMD_RANGE_MAX, text);
	*min = low;
	*max = high;
	return 0;
}
