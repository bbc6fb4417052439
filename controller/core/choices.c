/* SPDX-License-Identifier: Apache-2.0 */
/* What devices have chosen by measurement (`choose` of runtime/device/device.h). Two nodes that measure may choose differently, and then
 * their results differ in the last bits. So the first choice that is reported counts for the whole job: it stands in the plan (its key
 * `choices`), with which it gets to those who prepare, into checkpoints and into the journal; and `start` has those that were made while
 * the generation was prepared. Of limits of memory the least counts, whoever reports it (common/format/workspace_limit.h). */
#include <stdlib.h>
#include <string.h>

#include "common/format/workspace_limit.h"
#include "common/json.h"
#include "controller/core/controller_internal.h"

#define BETWEEN " = "

/* Returns true if the value counts, and not the one known for the same key. */
static bool counts(const char *key, const char *value, const char *known, bool instead)
{
	if (!strncmp(key, HSPMD_CHOICE_LEAST, strlen(HSPMD_CHOICE_LEAST)))
		return strtoull(value + strlen(BETWEEN), NULL, 10) < strtoull(known + strlen(BETWEEN), NULL, 10);
	return instead && strcmp(value, known) != 0;
}

/* Takes over a line. instead: it counts instead of one for the same key. */
static void take(struct hspmd_controller *m, const char *line, bool instead)
{
	const char *value = line ? strstr(line, BETWEEN) : NULL;
	char *key = value ? strndup(line, (size_t)(value - line)) : NULL;
	const json_t *known = key && m->choices ? json_object_get(m->choices, key) : NULL;
	if (value && !key)
		m->failed = true;
	if (key && (!known || counts(key, value, json_string_value(known), instead))) {
		if (!m->choices)
			m->choices = check_alloc(m, json_object());
		if (m->choices && json_object_set_new(m->choices, key, json_string(value)))
			m->failed = true;
		m->new_choices = true;
	}
	free(key);
}

static void take_lines(struct hspmd_controller *m, const json_t *lines, bool instead)
{
	for (size_t i = 0; i < json_array_size(lines); i++)
		take(m, json_string_value(json_array_get(lines, i)), instead);
}

void choices_take_plan(struct hspmd_controller *m, const json_t *plan, bool instead)
{
	take_lines(m, json_object_get(plan, "choices"), instead);
}

void choices_take_answers(struct hspmd_controller *m, const struct generation *g)
{
	for (int i = 0; i < g->members; i++)
		take_lines(m, json_object_get(g->answer[i], "choices"), false);
}

void choices_put(struct hspmd_controller *m, struct bound_plan *l)
{
	const char *key;
	json_t *value, *lines, *plan;
	if (!m->choices)
		return;
	lines = check_alloc(m, json_array());
	plan = check_alloc(m, json_copy(l->plan_json));
	json_object_foreach(m->choices, key, value)
		if (json_array_append_new(lines, json_sprintf("%s%s", key, json_string_value(value))))
			m->failed = true;
	if (json_object_set(plan, "choices", lines))
		m->failed = true;
	json_decref(lines);
	if (plan) {
		json_decref(l->plan_json);
		l->plan_json = plan;
	}
}
