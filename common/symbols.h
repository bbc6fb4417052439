/* SPDX-License-Identifier: Apache-2.0 */
/* Table-driven lookup of functions in a library that is loaded at run time. */
#ifndef HSPMD_COMMON_SYMBOLS_H
#define HSPMD_COMMON_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

struct hspmd_symbol {
	const char *name;
	void *slot;    /* address of a function pointer; the pointer becomes NULL if the library has no such function */
	bool optional; /* not in every version */
};

/* Fill in the slots from a library that dlopen() returned. Returns NULL, or the name of the first missing function that is not optional. */
const char *hspmd_symbols_find(void *library, const struct hspmd_symbol *symbols, size_t count);

#endif
