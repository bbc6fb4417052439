/* SPDX-License-Identifier: Apache-2.0 */
/* Several errors of one input. A function that can find more than one takes a `struct hspmd_mistakes` in addition to its error: the error
 * then holds the last mistake, and those before it were reported, in order. NULL, or one without a function: the error holds the first. */
#ifndef HSPMD_COMMON_MISTAKES_H
#define HSPMD_COMMON_MISTAKES_H

#include <stdbool.h>

#include "common/error.h"

#define HSPMD_MISTAKES_MAX 20

struct hspmd_mistakes {
	void (*report)(void *context, const char *text);
	void *context;
	int count; /* found so far */
};

/* Adds one, of the file or option `whose`. `err` is not NULL if there is a function. Returns false if the caller should look for no more:
 * nobody reads them, or there are HSPMD_MISTAKES_MAX before this one, and the error says so. */
bool hspmd_mistakes_add(struct hspmd_mistakes *all, struct hspmd_error *err, const char *whose, const char *text);

/* Those whose mistakes are logged as errors. */
struct hspmd_mistakes hspmd_mistakes_logged(void);

#endif
