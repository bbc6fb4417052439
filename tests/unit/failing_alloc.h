/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates a shortage of memory: makes every allocation of a call fail, one per repetition of the call. Each time the call must fail,
 * report it, and free everything it allocated. A program that uses this is linked with FAILING_ALLOC_LINK, which puts functions of
 * failing_alloc.c before the allocating ones of libc. */
#ifndef HSPMD_UNIT_FAILING_ALLOC_H
#define HSPMD_UNIT_FAILING_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"

struct failing_alloc_call {
	const char *name;
	bool (*call)(void); /* returns true if it succeeded; frees everything it made */
	bool fills_err;     /* on failure */
};
void failing_alloc_try(const struct failing_alloc_call *calls, size_t count, struct hspmd_error *err);
/* Returns true if an allocation of the current call has failed. */
bool failing_alloc_failed(void);

/* For jansson's json_set_alloc_funcs. */
void *failing_alloc_jansson(size_t size);
void failing_alloc_free(void *p);

#endif
