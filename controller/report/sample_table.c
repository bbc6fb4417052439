/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/sample_table.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/report/markup.h"

static bool is_sample(const json_t *v)
{
	return json_is_integer(json_object_get(v, "step")) && json_is_string(json_object_get(v, "prompt")) &&
	       json_is_string(json_object_get(v, "text"));
}

static bool same(const json_t *a, const json_t *b)
{
	return json_equal(json_object_get(a, "step"), json_object_get(b, "step")) &&
	       json_equal(json_object_get(a, "prompt"), json_object_get(b, "prompt"));
}

/* A run that went back to an earlier step may have sampled one twice. */
static int keep(json_t *list, json_t *v)
{
	for (size_t i = json_array_size(list); i-- > 0;)
		if (same(json_array_get(list, i), v)) {
			json_array_remove(list, i);
			break;
		}
	if (json_array_size(list) == REPORT_SAMPLES_MAX)
		json_array_remove(list, 0);
	return json_array_append(list, v);
}

json_t *report_samples_read(const struct report_run *r)
{
	char *path = hspmd_asprintf("%s/samples.jsonl", r->folder), *line = NULL;
	FILE *f = path ? fopen(path, "re") : NULL;
	json_t *list = json_array();
	size_t capacity = 0;
	ssize_t n;
	int bad = !path || !list;
	while (f && !bad && (n = getline(&line, &capacity, f)) > 0) {
		json_t *v = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
		if (is_sample(v))
			bad = keep(list, v);
		json_decref(v);
	}
	if (f)
		fclose(f);
	free(line);
	free(path);
	if (bad)
		json_decref(list);
	return bad ? NULL : list;
}

/* A text with the NULs that a model may say. */
static void write_text(FILE *out, const json_t *text)
{
	const char *at = json_string_value(text), *end = at + json_string_length(text);
	for (; at <= end; at += strlen(at) + 1) {
		report_text(out, at);
		if (at + strlen(at) < end)
			fputs("\357\277\275", out);
	}
}

void report_samples_write(FILE *out, const struct report_run *r, const json_t *samples)
{
	size_t i;
	json_t *one;
	if (!json_array_size(samples))
		return;
	fputs("<h3>Samples: ", out);
	report_text(out, r->name);
	fputs("</h3>\n<p class=\"small\">What the model said while it trained: each prompt, and how it went on.</p>\n"
	      "<table class=\"samples\"><thead><tr><th>steps<th>text</tr></thead><tbody>\n",
	      out);
	json_array_foreach(samples, i, one) {
		fprintf(out, "<tr><td class=\"n\">%lld<td><b>", (long long)json_integer_value(json_object_get(one, "step")));
		write_text(out, json_object_get(one, "prompt"));
		fputs("</b>", out);
		write_text(out, json_object_get(one, "text"));
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table>\n", out);
}
