/* SPDX-License-Identifier: Apache-2.0 */
/* A test that tries models tries all types of them: those of runtime/model/model_list.h, of which README.md's list is made. */
#ifndef HSPMD_TESTS_UNIT_MODEL_TYPES_H
#define HSPMD_TESTS_UNIT_MODEL_TYPES_H

#include <string.h>

#include "common/format/model.h"
#include "runtime/model/model.h"
#include "runtime/model/model_type.h"

/* Clears in missing[] the values of model_type that read as the type of this config.json, given as text. */
static inline void model_type_tried(const char *config, const char **missing)
{
	struct hspmd_error err = { "" };
	json_t *value = json_loads(config, 0, NULL);
	struct hspmd_model *m = value ? hspmd_model_from_json(value, "model", &err) : NULL;
	json_decref(value);
	if (!m)
		fail_msg("%s: %s", config, err.text);
	for (size_t n = 0; n < sizeof m->type->names / sizeof *m->type->names && m->type->names[n]; n++)
		for (int i = 0; hspmd_model_type_name(i); i++)
			if (missing[i] && !strcmp(missing[i], m->type->names[n]))
				missing[i] = NULL;
	hspmd_model_destroy(m);
}

#define MODEL_TYPES_MAX 256

/* Fills missing[] with the values of model_type, and with NULL for those that are among `count` configs. config(i): one of them. Returns
 * the number of all. */
static inline int model_types_missing(const char *(*config)(size_t i), size_t count, const char **missing)
{
	int types = 0;
	while ((missing[types] = hspmd_model_type_name(types)))
		types++;
	for (size_t k = 0; k < count; k++)
		model_type_tried(config(k), missing);
	return types;
}

/* Fails if a type is not among them. */
static inline void check_all_types(const char *(*config)(size_t i), size_t count)
{
	const char *missing[MODEL_TYPES_MAX];
	int types = model_types_missing(config, count, missing);
	for (int i = 0; i < types; i++)
		if (missing[i])
			fail_msg("this test has no model of type %s", missing[i]);
}

#endif
