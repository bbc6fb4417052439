/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a library that is loaded while a program runs, looked up by a table. */
#ifndef HSPMD_COMMON_SYMBOLS_H
#define HSPMD_COMMON_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

struct hspmd_symbol {
	const char *name;
	void *slot;    /* of a pointer to a function, which becomes NULL where the library has none of that name */
	bool optional; /* not in every version */
};

/* Fill in the slots from a library that dlopen() gave. NULL, or the name of the first that is missing and not optional. */
const char *hspmd_symbols_find(void *library, const struct hspmd_symbol *symbols, size_t count);

#endif
