/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/device_runs.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define ADDRESSES_MAX (1 << 20)
#define INDEX_DIGITS 9

/* Parses the digits at *text. Returns -1 if there are none, or too many. */
static int read_index(const char **text)
{
	char *end;
	if (!isdigit((unsigned char)**text))
		return -1;
	long value = strtol(*text, &end, 10);
	bool fits = end - *text <= INDEX_DIGITS;
	*text = end;
	return fits ? (int)value : -1;
}

/* The node's part of "node:index" (its length into *node) and the index; -1: it has another form. */
static int split(const char *address, size_t *node)
{
	const char *colon = strrchr(address, ':'), *at = colon ? colon + 1 : NULL;
	*node = colon ? (size_t)(colon - address) : 0;
	int index = *node ? read_index(&at) : -1;
	return index >= 0 && !*at ? index : -1;
}

json_t *hspmd_device_runs(const char *const *address, int count)
{
	json_t *list = json_array();
	for (int i = 0; list && i < count;) {
		size_t node, other;
		int first = split(address[i], &node), next = i + 1;
		while (first >= 0 && next < count && split(address[next], &other) == first + next - i && other == node &&
		       !memcmp(address[i], address[next], node))
			next++;
		json_t *run = next - i == 1 ? json_string(address[i]) : json_sprintf("%s-%d", address[i], first + next - i - 1);
		if (json_array_append_new(list, run)) {
			json_decref(list);
			list = NULL;
		}
		i = next;
	}
	return list;
}

int hspmd_device_runs_expand(const json_t *runs, char (**address)[HSPMD_DEVICE_RUNS_ADDRESS], struct hspmd_error *err)
{
	char(*list)[HSPMD_DEVICE_RUNS_ADDRESS] = NULL;
	size_t capacity = 0;
	int count = 0;
	*address = NULL;
	for (size_t i = 0; i < json_array_size(runs); i++) {
		const char *run = json_string_value(json_array_get(runs, i)), *colon = run ? strrchr(run, ':') : NULL,
		           *at = colon ? colon + 1 : NULL;
		int first = at && colon > run ? read_index(&at) : -1, last = first;
		if (first >= 0 && *at == '-') {
			at++;
			last = read_index(&at);
		}
		bool good = first >= 0 && last >= first && !*at && last - first < ADDRESSES_MAX - count;
		for (int d = first; good && d <= last; d++) {
			if (hspmd_array_grow(&list, &capacity, (size_t)count, sizeof *list)) {
				free(list);
				return hspmd_fail_memory(err, "reading a list of devices");
			}
			int n = snprintf(list[count], sizeof *list, "%.*s:%d", (int)(colon - run), run, d);
			good = n < (int)sizeof *list;
			count++;
		}
		if (!good) {
			free(list);
			return hspmd_fail(err, "\"%.80s\": expected node:index or node:first-last", run ? run : "?");
		}
	}
	*address = list;
	return count;
}
