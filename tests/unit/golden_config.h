/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of types of models for tests that have none of their own: those that are compared with transformers (tests/golden). */
#ifndef HSPMD_TESTS_UNIT_GOLDEN_CONFIG_H
#define HSPMD_TESTS_UNIT_GOLDEN_CONFIG_H

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The config.json of a model of this type as text, with the keys of a JSON object in place of its own. Such models have two layers of width
 * 24, and four heads, which share two of keys and values. malloc'd; NULL: there is none of this type. */
static inline char *golden_config(const char *type, const char *keys)
{
	const char *folder = HSPMD_SRCDIR "/tests/data/golden";
	char *text = NULL;
	DIR *d = opendir(folder);
	for (struct dirent *e; d && !text && (e = readdir(d));) {
		char path[4096];
		snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
		json_t *file = strncmp(e->d_name, "model-", 6) ? NULL : json_load_file(path, 0, NULL);
		json_t *config = json_object_get(file, "config"), *own = json_loads(keys, 0, NULL);
		const char *of = json_string_value(json_object_get(config, "model_type"));
		if (of && !strcmp(of, type) && !json_object_get(config, "text_config") && own && !json_object_update(config, own))
			text = json_dumps(config, JSON_COMPACT);
		json_decref(own);
		json_decref(file);
	}
	if (d)
		closedir(d);
	return text;
}

#endif
