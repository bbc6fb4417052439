/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/report/explain_lengths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is seen of a plan at a glance. */
struct shape {
	int pipelines, devices, stages, group; /* devices of the largest pipeline; stages of the longest; of the widest group */
	int micro_batch;                       /* the largest */
	enum hspmd_recompute recompute;        /* the most */
};

static struct shape shape_of(const struct hspmd_plan *p)
{
	struct shape s = { .pipelines = p->pipeline_count, .group = hspmd_plan_widest_group(p) };
	for (int i = 0; i < p->pipeline_count; i++) {
		const struct hspmd_pipeline *pipe = &p->pipelines[i];
		int stages = pipe->stage_count / p->virtual_stages, devices = 0;
		for (int k = 0; k < pipe->stage_count; k++) {
			devices += k < stages ? pipe->stages[k].device_count : 0;
			s.recompute = pipe->stages[k].recompute > s.recompute ? pipe->stages[k].recompute : s.recompute;
		}
		s.devices = devices > s.devices ? devices : s.devices;
		s.stages = stages > s.stages ? stages : s.stages;
		s.micro_batch = pipe->micro_batch > s.micro_batch ? pipe->micro_batch : s.micro_batch;
	}
	return s;
}

static void write_number(FILE *f, const char *what, int of, int instead, int *said)
{
	if (of != instead)
		fprintf(f, "%s%s %d instead of %d", (*said)++ ? ", " : "", what, of, instead);
}

/* In what the plan differs from the one for the longest steps. */
static void write_difference(FILE *f, const struct hspmd_plan *plan, const struct hspmd_plan *longest)
{
	struct shape a = shape_of(plan), b = shape_of(longest);
	int said = 0;
	fputs(" It has ", f);
	write_number(f, "pipelines:", a.pipelines, b.pipelines, &said);
	write_number(f, "devices of a pipeline:", a.devices, b.devices, &said);
	write_number(f, "stages:", a.stages, b.stages, &said);
	write_number(f, "devices of a tensor-parallel group:", a.group, b.group, &said);
	write_number(f, "samples of a micro-batch:", a.micro_batch, b.micro_batch, &said);
	if (a.recompute != b.recompute)
		fprintf(f, "%srecomputation: %s instead of %s", said++ ? ", " : "", hspmd_recompute_names[a.recompute],
		        hspmd_recompute_names[b.recompute]);
	fputs(said ? "." : "other shares of layers and samples.", f);
}

static void write_lengths(FILE *f, const struct hspmd_length_report *r, int which)
{
	int shortest = 0, longest = 0;
	double share = 0, s = 0, without = 0;
	for (int i = 0; i < r->count; i++)
		if (r->uses[i].which == which) {
			shortest = shortest ? shortest : r->uses[i].seq_len;
			longest = r->uses[i].seq_len;
			share += r->uses[i].share;
			s += r->uses[i].share * r->uses[i].step_s;
			without += r->uses[i].share * r->uses[i].without_s;
		}
	if (shortest == longest)
		fprintf(f, "Steps of %d tokens", longest);
	else
		fprintf(f, "Steps of %d to %d tokens", shortest, longest);
	if (!(share > 0)) {
		fprintf(f, " run %s; none is expected.", which ? "a plan of their own" : "the plan itself");
		return;
	}
	fprintf(f, " (%.3g%% of all, %.3g%% of the time) run ", 100 * share, 100 * s / r->set_s);
	if (which)
		fprintf(f, "a plan of their own: %.4g s instead of %.4g s.", s / share, without / share);
	else
		fprintf(f, "the plan itself: %.4g s.", s / share);
}

char *hspmd_plan_explain_lengths(const struct hspmd_plan *plan, const struct hspmd_length_report *report)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = report->count ? open_memstream(&text, &size) : NULL;
	if (!f)
		return report->count ? NULL : strdup("");
	fprintf(f, "Steps have %d lengths. ", report->count);
	if (!plan->shorter_count)
		fputs("Plans of their own would not make shorter ones faster by 1% of the time.", f);
	for (int which = 1; which <= plan->shorter_count; which++) {
		write_lengths(f, report, which);
		write_difference(f, hspmd_plan_of(plan, which), plan);
		fputc('\n', f);
	}
	if (plan->shorter_count) {
		write_lengths(f, report, 0);
		fprintf(f,
		        "\nA step is expected to take %.4g s: %.3g times less than by the plan alone (%.4g s), %.3g times less than by the "
		        "best "
		        "single plan that was found (%.4g s). The training state stays where the plan puts it.",
		        report->set_s, report->without_s / report->set_s, report->without_s, report->single_s / report->set_s,
		        report->single_s);
	}
	fputc('\n', f);
	int failed = ferror(f);
	if (fclose(f) || failed) {
		free(text);
		return NULL;
	}
	return text;
}
