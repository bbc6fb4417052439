/* SPDX-License-Identifier: Apache-2.0 */
/* Memory running short: every allocation that a call makes is made to fail in its turn. Each time the call must fail, say so, and give back
 * all it took. A program that uses this is linked with SHORT_MEMORY_LINK, which put functions of short_memory.c before the allocating ones
 * of libc. */
#ifndef HSPMD_TEST_SHORT_MEMORY_H
#define HSPMD_TEST_SHORT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"

struct short_memory_call {
	const char *name;
	bool (*call)(void); /* whether it succeeded; gives back all it made */
	bool tells;         /* fills err */
};
void short_memory_try(const struct short_memory_call *calls, size_t count, struct hspmd_error *err);
/* Whether an allocation of the present call has failed. */
bool short_memory_failed(void);

/* For jansson's json_set_alloc_funcs. */
void *short_memory_jansson(size_t size);
void short_memory_free(void *p);

#endif
