/* SPDX-License-Identifier: Apache-2.0 */
/* Memory running short: every allocation that a call makes is made to fail in its turn. Each time the call must fail, say so, and give back
 * all it took. A program that uses this is linked with FAILING_ALLOC_LINK, which put functions of failing_alloc.c before the allocating
 * ones of libc. */
#ifndef HSPMD_UNIT_FAILING_ALLOC_H
#define HSPMD_UNIT_FAILING_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"

struct failing_alloc_call {
	const char *name;
	bool (*call)(void); /* whether it succeeded; gives back all it made */
	bool tells;         /* fills err */
};
void failing_alloc_try(const struct failing_alloc_call *calls, size_t count, struct hspmd_error *err);
/* Whether an allocation of the present call has failed. */
bool failing_alloc_failed(void);

/* For jansson's json_set_alloc_funcs. */
void *failing_alloc_jansson(size_t size);
void failing_alloc_free(void *p);

#endif
