/* SPDX-License-Identifier: Apache-2.0 */
/* Orders for qsort() and bsearch(). */
#ifndef HSPMD_COMMON_ORDER_H
#define HSPMD_COMMON_ORDER_H

#include <stddef.h>

/* Order by name of two structs whose first member is their name, a `char *`; as the key of tsearch() a pointer to a name will do. */
int hspmd_name_order(const void *a, const void *b);
/* Ascending order of two ints: below 0, 0 or above 0. */
int hspmd_int_order(const void *a, const void *b);
/* The same of two doubles. */
int hspmd_double_order(const void *a, const void *b);

/* qsort for lists that mostly are sorted already: then it only compares each element with the next. */
void hspmd_sort_if_needed(void *list, size_t count, size_t size, int (*order)(const void *, const void *));

#endif
