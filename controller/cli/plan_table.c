/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines that differ only in their devices' addresses are printed once, with their number. A text that does not fit its column is cut in
 * the middle, because names of nodes and device types differ at their ends; sentences are broken between words. */
#include "controller/cli/plan_table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/recompute_sets.h"

#define LEAD 19 /* columns of the table; with a space between them they leave 19 for memory */
#define LAYERS 9
#define DEVICES 26
#define TYPES 13
#define RECOMPUTE 9

/* ---- cutting and breaking */

static bool within_character(const char *at)
{
	return ((unsigned char)*at & 0xc0) == 0x80; /* UTF-8 */
}

/* Cut a text to `width` bytes: keep its beginning and twice as much of its end, which says more. */
static void cut(char *text, size_t width)
{
	size_t length = strlen(text), head = (width - 2) / 3, tail = length - (width - 2 - head);
	if (length <= width)
		return;
	while (head && within_character(text + head))
		head--;
	while (within_character(text + tail))
		tail++;
	memcpy(text + head, "..", 2);
	memmove(text + head + 2, text + tail, length - tail + 1);
}

void hspmd_plan_wrap(FILE *to, const char *text)
{
	for (size_t column = 0; *text;) {
		size_t spaces = strspn(text, " "), word = strcspn(text + spaces, " \n");
		if (*text == '\n') {
			putc(*text++, to);
			column = 0;
			continue;
		}
		if (column && column + spaces + word > HSPMD_PLAN_COLUMNS) {
			text += spaces;
			spaces = 0;
			fputs("\n  ", to);
			column = 2;
		}
		if (column + spaces + word > HSPMD_PLAN_COLUMNS) /* wider than a line: continues in the next one */
			for (word = HSPMD_PLAN_COLUMNS - column - spaces; within_character(text + spaces + word);)
				word--;
		fprintf(to, "%.*s", (int)(spaces + word), text);
		column += spaces + word;
		text += spaces + word;
	}
}

__attribute__((format(printf, 2, 3))) static void say(FILE *to, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	hspmd_plan_wrap(to, text);
}

/* ---- a stage */

static double device_bytes(const struct hspmd_plan *p, int device)
{
	for (int i = 0; i < p->predicted.device_count; i++)
		if (p->predicted.devices[i] == device)
			return p->predicted.memory_bytes[i];
	return 0;
}

static int device_type(const struct hspmd_cluster *c, int device)
{
	return c->devices[device].type;
}

static bool same_shape(const struct hspmd_cluster *c, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b)
{
	if (a->stage_count != b->stage_count || a->micro_batches != b->micro_batches || a->micro_batch != b->micro_batch)
		return false;
	for (int s = 0; s < a->stage_count; s++) {
		const struct hspmd_stage *x = &a->stages[s], *y = &b->stages[s];
		if (x->layers[0] != y->layers[0] || x->layers[1] != y->layers[1] || x->device_count != y->device_count ||
		    x->recompute != y->recompute || x->offload != y->offload || x->offload_activations != y->offload_activations ||
		    x->sequence_parallel != y->sequence_parallel)
			return false;
		for (int d = 0; d < x->device_count; d++)
			if (device_type(c, x->devices[d]) != device_type(c, y->devices[d]))
				return false;
	}
	return true;
}

/* "n0:0-3", "n0:0 n0:2", "n0:0-1 n1:4": runs of a stage's devices; ".." stands for runs without room. */
static void device_runs(const struct hspmd_cluster *c, const struct hspmd_stage *s, char out[DEVICES + 1])
{
	size_t used = 0;
	out[0] = '\0';
	for (int i = 0, end; i < s->device_count; i = end) {
		const struct hspmd_cluster_device *a = &c->devices[s->devices[i]];
		for (end = i + 1;
		     end < s->device_count && s->devices[end] == s->devices[end - 1] + 1 && c->devices[s->devices[end]].node == a->node;
		     end++)
			;
		char run[300];
		size_t room = DEVICES - (end < s->device_count ? 3 : 0);
		if (end - i > 1)
			snprintf(run, sizeof run, "%.256s:%d-%d", c->nodes[a->node].name, a->index, a->index + end - i - 1);
		else
			snprintf(run, sizeof run, "%.256s:%d", c->nodes[a->node].name, a->index);
		if (i == 0)
			cut(run, room);
		if (used + (i > 0) + strlen(run) > room) {
			snprintf(out + used, DEVICES + 1 - used, " ..");
			return;
		}
		used += (size_t)snprintf(out + used, DEVICES + 1 - used, "%s%s", i ? " " : "", run);
	}
}

/* "a", or "a+b" if the stage has devices of several types. */
static void type_names(const struct hspmd_cluster *c, const struct hspmd_stage *s, char *out, size_t size)
{
	size_t used = 0;
	out[0] = '\0';
	for (int i = 0; i < s->device_count; i++) {
		bool named = false;
		for (int k = 0; k < i; k++)
			named = named || device_type(c, s->devices[k]) == device_type(c, s->devices[i]);
		if (!named && used < size)
			used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "+" : "",
			                         c->types[device_type(c, s->devices[i])].name);
	}
}

/* Gigabytes in at most 7 characters. */
static const char *gigabytes(double bytes, char out[16])
{
	double gb = bytes / 1e9;
	snprintf(out, 16, gb < 999.5 ? "%.2f" : gb < 9.9e6 ? "%.0f" : "%.1e", gb);
	return out;
}

static void stage_row(FILE *to, const struct hspmd_plan *p, const struct hspmd_cluster *c, const struct hspmd_stage *s, const char *lead)
{
	char runs[DEVICES + 1], layers[32], types[512], one[16], other[16];
	double worst = 0, there = 0;
	device_runs(c, s, runs);
	type_names(c, s, types, sizeof types);
	for (int d = 0; d < s->device_count; d++) {
		double used = device_bytes(p, s->devices[d]), have = (double)c->types[device_type(c, s->devices[d])].memory_bytes;
		if (d == 0 || used / have > worst / there) {
			worst = used;
			there = have;
		}
	}
	snprintf(layers, sizeof layers, "%d-%d", s->layers[0], s->layers[1] - 1);
	cut(layers, LAYERS);
	cut(types, TYPES);
	fprintf(to, "%-*s %-*s %-*s %-*s %-*s %7s of %s\n", LEAD, lead, LAYERS, layers, DEVICES, runs, TYPES, types, RECOMPUTE,
	        hspmd_recompute_names[s->recompute], gigabytes(worst, one), gigabytes(there, other));
}

/* ---- the whole */

/* The lists of operators that the table calls sets. */
static void write_sets(FILE *to, const struct hspmd_plan *p)
{
	for (int k = HSPMD_RECOMPUTE_SET; k < HSPMD_RECOMPUTE_FULL; k++) {
		const json_t *set = hspmd_recompute_set(p->recompute_sets, (enum hspmd_recompute)k);
		bool used = false;
		for (int i = 0; i < p->pipeline_count; i++)
			for (int s = 0; s < p->pipelines[i].stage_count; s++)
				used |= (int)p->pipelines[i].stages[s].recompute == k;
		char *names = set && used ? hspmd_recompute_set_text(set) : NULL;
		if (names)
			say(to, "recompute %s: %s\n", hspmd_recompute_names[k], names);
		free(names);
	}
}

/* What the rows do not say of a stage. */
enum feature { OPTIMIZER_OFFLOAD, ACTIVATION_OFFLOAD, SEQUENCE_PARALLEL, FEATURES };

static bool has(const struct hspmd_stage *s, enum feature f)
{
	return f == SEQUENCE_PARALLEL ? s->sequence_parallel : f == ACTIVATION_OFFLOAD ? s->offload_activations != 0 : s->offload != 0;
}

/* How many stages have the feature, and the first of them. */
static void write_feature(FILE *to, const struct hspmd_plan *p, enum feature f)
{
	static const char *const what[FEATURES] = { "optimizer in the host's memory", "activations in the host's memory",
		                                    "sequence parallelism" };
	int count = 0, pipeline = 0, stage = 0;
	for (int i = p->pipeline_count - 1; i >= 0; i--)
		for (int s = p->pipelines[i].stage_count - 1; s >= 0; s--)
			if (has(&p->pipelines[i].stages[s], f)) {
				count++;
				pipeline = i;
				stage = s;
			}
	if (count > 1)
		say(to, "%s: stage %d of pipeline %d, and %d more\n", what[f], stage, pipeline, count - 1);
	else if (count)
		say(to, "%s: stage %d of pipeline %d\n", what[f], stage, pipeline);
}

static void totals(FILE *to, const struct hspmd_plan *p, const struct hspmd_cluster *c, const struct hspmd_solve_report *report,
                   bool current)
{
	const struct hspmd_predicted *x = &p->predicted;
	double tokens = (double)p->global_batch * p->seq_len,
	       bubble = x->bubble_s > 1e-9 * x->step_s ? x->bubble_s : 0; /* sums leave rounding errors */
	fprintf(to, "\nstep %.4g s, %.0f tokens/s\n", x->step_s, tokens / x->step_s);
	say(to, "  compute %.4g s (%.0f%%), bubble %.4g s (%.0f%%), messages %.4g s (%.0f%%), sync %.4g s (%.0f%%)\n", x->compute_s,
	    100 * x->compute_s / x->step_s, bubble, 100 * bubble / x->step_s, x->communication_s, 100 * x->communication_s / x->step_s,
	    x->sync_s, 100 * x->sync_s / x->step_s);
	say(to, "global batch %d, micro-batch %d, sequence %d, %s, ZeRO stage %d; %d of %d devices used\n", p->global_batch, p->micro_batch,
	    p->seq_len, hspmd_schedule_names[p->schedule], p->zero_stage, hspmd_plan_device_count(p), c->device_count);
	if (report->price_per_hour > 0)
		say(to, "its nodes cost %.6g per hour, a step %.4g\n", report->price_per_hour, report->price_per_hour * x->step_s / 3600);
	write_sets(to, p);
	for (int f = 0; f < FEATURES; f++)
		write_feature(to, p, (enum feature)f);
	if (p->synthesis)
		say(to, "every operator is divided in a way of its own, which --explain describes\n");
	if (current && !isnan(report->moved_bytes))
		say(to, "%.4g GB of training state move from the current plan\n", report->moved_bytes / 1e9);
	for (int i = 0; i < report->shortage_count && i < HSPMD_SHORTAGE_MAX; i++) {
		char at[256];
		const struct hspmd_shortage *s = &report->shortages[i];
		say(to, "does not fit: %s (pipeline %d, stage %d) needs %.2f GB%s, %.2f GB short\n",
		    hspmd_cluster_device_address(c, s->device, at, sizeof at), s->pipeline, s->stage, s->need_bytes / 1e9,
		    s->host ? " of its host's memory" : "", (s->need_bytes - s->have_bytes) / 1e9);
	}
	if (report->shortage_count > HSPMD_SHORTAGE_MAX)
		say(to, "and so do %d more\n", report->shortage_count - HSPMD_SHORTAGE_MAX);
}

static void pipeline_rows(FILE *to, const struct hspmd_plan *p, const struct hspmd_cluster *c)
{
	for (int i = 0, end; i < p->pipeline_count; i = end) {
		const struct hspmd_pipeline *pipe = &p->pipelines[i];
		for (end = i + 1; end < p->pipeline_count && same_shape(c, pipe, &p->pipelines[end]); end++)
			;
		for (int s = 0; s < pipe->stage_count; s++) {
			char lead[64] = "";
			if (s == 0 && end - i > 1)
				snprintf(lead, sizeof lead, "%d-%d: %d x %d", i, end - 1, pipe->micro_batches, pipe->micro_batch);
			else if (s == 0)
				snprintf(lead, sizeof lead, "%d: %d x %d", i, pipe->micro_batches, pipe->micro_batch);
			if (strlen(lead) > LEAD) { /* numbers are not cut: a line of their own */
				fprintf(to, "%s\n", lead);
				lead[0] = '\0';
			}
			stage_row(to, p, c, &pipe->stages[s], lead);
		}
	}
}

void hspmd_plan_table(FILE *to, const struct hspmd_plan *p, const struct hspmd_cluster *c, const struct hspmd_solve_report *report,
                      bool current)
{
	fprintf(to, "%-*s %-*s %-*s %-*s %-*s %s\n", LEAD, "pipeline", LAYERS, "layers", DEVICES, "devices", TYPES, "type", RECOMPUTE,
	        "recompute", "memory, GB");
	pipeline_rows(to, p, c);
	for (int i = p->shorter_count - 1; i >= 0; i--) {
		say(to, "\nsteps of up to %d tokens: %.4g s, micro-batch %d, %s\n", p->shorter[i]->seq_len, p->shorter[i]->predicted.step_s,
		    p->shorter[i]->micro_batch, hspmd_schedule_names[p->shorter[i]->schedule]);
		pipeline_rows(to, p->shorter[i], c);
	}
	totals(to, p, c, report, current);
}
