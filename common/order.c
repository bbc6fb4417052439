/* SPDX-License-Identifier: Apache-2.0 */
#include "common/order.h"

#include <stdlib.h>
#include <string.h>

int hspmd_name_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int hspmd_int_order(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;
	return (x > y) - (x < y);
}

int hspmd_double_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

void hspmd_sort_if_needed(void *list, size_t count, size_t size, int (*order)(const void *, const void *))
{
	const char *at = list;
	for (size_t i = 1; i < count; i++, at += size)
		if (order(at, at + size) > 0) {
			qsort(list, count, size, order);
			return;
		}
}
