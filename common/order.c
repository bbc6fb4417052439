/* SPDX-License-Identifier: Apache-2.0 */
#include "common/order.h"

int hspmd_int_order(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;
	return (x > y) - (x < y);
}
