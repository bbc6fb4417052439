/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings of the cost tables, kept until the report takes them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/solver/cost/costs.h"

void hspmd_costs_warn(struct hspmd_costs *c, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	for (int i = 0; i < c->warning_count; i++)
		if (!strcmp(c->warnings[i], text))
			return;
	char **grown = realloc(c->warnings, ((size_t)c->warning_count + 1) * sizeof *grown);
	if (!grown)
		return;
	c->warnings = grown;
	grown[c->warning_count] = strdup(text);
	if (grown[c->warning_count])
		c->warning_count++;
}
