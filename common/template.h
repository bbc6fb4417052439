/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of a command with expressions in braces, such as --accumulate={64/(4*world)}. An expression has whole numbers, the names below,
 * + - * / % and parentheses. `/` must leave no remainder: a world size for which it does is not used (controller/run/command_plan.c).
 * {checkpoint} and {latest} stand alone: they are paths, of the folder for checkpoints and of the newest one in it.
 *
 * A brace begins an expression if a letter, a digit, '(', '+', '-' or a space follows. Any other brace stays as it is, so that JSON, {} and
 * the like need no care; "{{" is a plain "{" before one of those characters. */
#ifndef HSPMD_COMMON_TEMPLATE_H
#define HSPMD_COMMON_TEMPLATE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

struct hspmd_template_values {
	int64_t world, nodes, rank, local_rank;
	const char *latest, *checkpoint; /* NULL: none, which gives an empty text */
};

enum hspmd_template_result {
	HSPMD_TEMPLATE_DONE = 0,
	HSPMD_TEMPLATE_WRONG = -1,  /* wrong for every world size, or out of memory */
	HSPMD_TEMPLATE_UNEVEN = -2, /* a division that leaves a remainder with these values */
};

/* Fills in the expressions of `text`. *out is malloc'd, and NULL after a failure; `out` may be NULL, if only the result matters. err names
 * the expression. */
enum hspmd_template_result hspmd_template_expand(const char *text, const struct hspmd_template_values *v, char **out,
                                                 struct hspmd_error *err);

#endif
