/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/report/explain_mixed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAID_LEAST 0.005 /* part of a length's samples, of those pipelines that are named */

static const struct hspmd_pipeline_length *length_of(const struct hspmd_pipeline *p, int seq_len)
{
	for (int i = 0; i < p->length_count; i++)
		if (p->lengths[i].seq_len >= seq_len)
			return &p->lengths[i];
	return NULL;
}

/* The same of both: alike pipelines are named together. */
static bool alike(const struct hspmd_pipeline *a, const struct hspmd_pipeline *b, int seq_len)
{
	const struct hspmd_pipeline_length *x = length_of(a, seq_len), *y = length_of(b, seq_len);
	return x && y && x->micro_batch == y->micro_batch && x->micro_batch_s == y->micro_batch_s;
}

static bool takes_some(const struct hspmd_mixed_report *r, int pipeline, int length)
{
	return r->parts[pipeline * r->count + length] >= SAID_LEAST;
}

static void write_length(FILE *f, const struct hspmd_plan *plan, const struct hspmd_mixed_report *r, int l)
{
	double tokens = 0;
	int said = 0;
	for (int k = 0; k < r->count; k++)
		tokens += r->share[k] * r->seq_len[k];
	fprintf(f, "Samples of %d tokens (%.3g%% of all, %.3g%% of the tokens): ", r->seq_len[l], 100 * r->share[l],
	        100 * r->share[l] * r->seq_len[l] / tokens);
	for (int i = 0; i < plan->pipeline_count; i++) {
		bool named = false;
		double part = 0;
		for (int k = 0; k < i; k++)
			named |= takes_some(r, k, l) && alike(&plan->pipelines[k], &plan->pipelines[i], r->seq_len[l]);
		if (named || !takes_some(r, i, l))
			continue;
		const struct hspmd_pipeline_length *of = length_of(&plan->pipelines[i], r->seq_len[l]);
		int pipelines = 0, written = 0;
		for (int k = i; k < plan->pipeline_count; k++)
			if (takes_some(r, k, l) && alike(&plan->pipelines[i], &plan->pipelines[k], r->seq_len[l])) {
				pipelines++;
				part += r->parts[k * r->count + l];
			}
		fprintf(f, "%spipeline%s", said ? "; " : "", pipelines > 1 ? "s" : "");
		for (int k = i; k < plan->pipeline_count; k++)
			if (takes_some(r, k, l) && alike(&plan->pipelines[i], &plan->pipelines[k], r->seq_len[l]))
				fprintf(f, "%s %d", written++ ? "," : "", k);
		fprintf(f, " compute%s %.3g%%, at most %d in a micro-batch (%.3g s)", pipelines > 1 ? "" : "s", 100 * part, of->micro_batch,
		        of->micro_batch_s);
		said++;
	}
	fputs(said ? ".\n" : "too few to be in the steps that were looked at.\n", f);
}

char *hspmd_plan_explain_mixed(const struct hspmd_plan *plan, const struct hspmd_mixed_report *r)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = r->count ? open_memstream(&text, &size) : NULL;
	if (!f)
		return r->count ? NULL : strdup("");
	fprintf(f, "Steps mix samples of %d lengths, and each pipeline computes those that let all end together.\n", r->count);
	for (int l = 0; l < r->count; l++)
		write_length(f, plan, r, l);
	fprintf(f, "A step is expected to take %.4g s.", r->mixed_s);
	if (r->given_s > 0)
		fprintf(f,
		        " The plan for the longest samples would take %.3g times as long (%.4g s), and %.3g times (%.4g s) if each step "
		        "had "
		        "samples of one length.",
		        r->given_s / r->mixed_s, r->given_s, r->unmixed_s / r->mixed_s, r->unmixed_s);
	fputs(" Its busiest stage computes for", f);
	for (int i = 0; i < r->pipeline_count && i < 16; i++)
		fprintf(f, "%s %.0f%%", i ? "," : "", 100 * r->busy[i]);
	fputs(r->pipeline_count > 16 ? " ... of the passes in the pipelines.\n" : " of the passes in the pipelines.\n", f);
	int failed = ferror(f);
	if (fclose(f) || failed) {
		free(text);
		return NULL;
	}
	return text;
}
