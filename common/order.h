/* SPDX-License-Identifier: Apache-2.0 */
/* Orders for qsort() and bsearch(). */
#ifndef HSPMD_COMMON_ORDER_H
#define HSPMD_COMMON_ORDER_H

/* Ascending order of two ints: below 0, 0 or above 0. */
int hspmd_int_order(const void *a, const void *b);

#endif
