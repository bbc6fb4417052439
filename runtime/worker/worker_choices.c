/* SPDX-License-Identifier: Apache-2.0 */
/* What devices choose by measurement, between the device and the controller (controller/core/choices.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/workspace_limit.h"
#include "runtime/worker/worker_internal.h"

/* Lines as the device has them; NULL: it has none. The caller frees the text. */
static char *text_of(const json_t *lines)
{
	char *text = NULL;
	size_t size = 0, i;
	json_t *line;
	FILE *f = json_array_size(lines) ? open_memstream(&text, &size) : NULL;
	json_array_foreach((json_t *)lines, i, line)
		if (f)
			fprintf(f, "%s\n", json_string_value(line) ? json_string_value(line) : "");
	if (f && !fclose(f))
		return text;
	free(text);
	return NULL;
}

int worker_take_choices(struct worker *w, const json_t *lines, struct hspmd_error *err)
{
	const struct hspmd_device_ops *ops = w->setup.device->ops;
	if (!ops->choose || !json_array_size(lines))
		return 0;
	char *text = text_of(lines);
	int status = text ? ops->choose(w->setup.device, text) : -1;
	free(text);
	return status ? hspmd_fail_memory(err, "taking over choices of algorithms") : 0;
}

json_t *worker_new_choices(struct worker *w, const json_t *known, uint32_t most)
{
	const struct hspmd_device_ops *ops = w->setup.device->ops;
	char *had = text_of(known), *text = ops->choices ? ops->choices(w->setup.device) : NULL, *rest = text, *line;
	json_t *lines = json_array();
	while ((line = strsep(&rest, "\n"))) {
		char *value = strstr(line, " = "), *at = NULL;
		size_t key = value ? (size_t)(value - line) + 1 : 0;
		for (at = had; key && at && strncmp(at, line, key) != 0; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
			;
		if (key && !at)
			json_array_append_new(lines, json_string(line));
	}
	if (most && most != hspmd_workspace_limit_of(known))
		json_array_append_new(lines, hspmd_workspace_limit_line(most));
	free(had);
	free(text);
	if (json_array_size(lines))
		return lines;
	json_decref(lines);
	return NULL;
}
