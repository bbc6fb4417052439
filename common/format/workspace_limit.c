/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/workspace_limit.h"

#include <stdlib.h>
#include <string.h>

#define KEY HSPMD_CHOICE_LEAST "workspace"
#define BETWEEN " = "

/* The largest power of two of at most so many that the type holds; 1 for none. */
static uint32_t power_within(size_t bytes)
{
	uint32_t power = 1;
	while (power <= bytes / 2 && power <= UINT32_MAX / 2)
		power *= 2;
	return power;
}

uint32_t hspmd_workspace_limit_of(const json_t *choices)
{
	uint32_t least = 0;
	for (size_t i = 0; i < json_array_size(choices); i++) {
		const char *line = json_string_value(json_array_get(choices, i)), *start = KEY BETWEEN;
		if (!line || strncmp(line, start, strlen(start)) != 0)
			continue;
		uint32_t most = power_within(strtoull(line + strlen(start), NULL, 10));
		least = !least || most < least ? most : least;
	}
	return least;
}

json_t *hspmd_workspace_limit_line(uint32_t most)
{
	return json_sprintf(KEY BETWEEN "%u", (unsigned)most);
}

uint32_t hspmd_workspace_limit_below(uint32_t most, size_t bytes)
{
	uint32_t next = power_within(bytes);
	return !most || next < most ? next : most > 1 ? most / 2 : 1;
}
