/* SPDX-License-Identifier: Apache-2.0 */
/* Annotations as text:
 *
 *     annotation = "{" group { "|" group } "}" [ "h" dim cut ]
 *     group      = "[" run { "," run } "]" [ ":" { dim ":" parts cut } ]
 *     run        = device [ "-" device ]          inclusive, ascending
 *     cut        = [ "/" unit ] [ "(" weight { ":" weight } ")" ]
 *     dim        = a dimension, "-1" duplicate, "-2" partial
 *
 * Tokens may be separated by spaces. Defaults: unit 1, even weights, hdim -1. Rows of experts are written behind it and not read back:
 * " rows of " annotation " of " count "/" per token.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/annotation/annotation.h"

static void print_cut(FILE *f, int parts, int64_t unit, const int64_t *weights)
{
	if (unit != 1)
		fprintf(f, "/%" PRId64, unit);
	for (int i = 0; weights && i < parts; i++)
		fprintf(f, "%s%" PRId64, i ? ":" : "(", weights[i]);
	if (weights)
		fputc(')', f);
}

static void print_group(FILE *f, const struct hspmd_subgroup *g)
{
	for (int i = 0; i < g->device_count;) {
		int end = i + 1;
		while (end < g->device_count && g->devices[end] == g->devices[end - 1] + 1)
			end++;
		fprintf(f, "%s%d", i ? "," : "[", g->devices[i]);
		if (end - i > 2)
			fprintf(f, "-%d", g->devices[end - 1]);
		else
			end = i + 1;
		i = end;
	}
	fputs(g->split_count ? "]:" : "]", f);
	for (int s = 0; s < g->split_count; s++) {
		fprintf(f, " %d:%d", g->splits[s].dim, g->splits[s].parts);
		print_cut(f, g->splits[s].parts, g->splits[s].unit, g->splits[s].weights);
	}
}

char *hspmd_annotation_text(const struct hspmd_annotation *a)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	for (int g = 0; g < a->hsize; g++) {
		fputs(g ? " | " : "{", f);
		print_group(f, &a->groups[g]);
	}
	fputc('}', f);
	if (a->hdim != HSPMD_DUPLICATE) {
		fprintf(f, " h%d", a->hdim);
		print_cut(f, a->hsize, a->hunit, a->hweights);
	}
	if (a->rows) {
		char *experts = hspmd_annotation_text(a->rows->experts);
		fprintf(f, " rows of %s of %" PRId64 "/%d", experts ? experts : "?", a->rows->count, a->rows->per_token);
		free(experts);
	}
	bool failed = ferror(f);
	if (fclose(f) != 0 || failed) {
		free(text);
		return NULL;
	}
	return text;
}
