/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of jobs, behind the labels that the site has chosen. Whose job it is, Slurm says; what it does, its controller. A job that Slurm
 * does not know has none, so that nobody can fill the page. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "controller/ctld/daemon_internal.h"

const char *const ctld_job_label_names[] = { "job", "user", "account", "partition", "qos", NULL };

enum value {
	NODES,
	DEVICES,
	TOKENS_PER_S,
	PAUSE_S,
	CHECKPOINT_AGE_S,
	STEP,
	GENERATION,
	LOSS,
	STEP_S,
	TOKENS,
	RESIZES,
	STEPS_LOST,
	PAUSED_S,
	TRAINED_DEVICE_S,
	PAUSED_DEVICE_S,
	LOST_DEVICE_S,
	VALUES
};
#define COUNTERS TOKENS /* from here on */

/* What the value of several jobs is. */
enum together { SUM, MOST, NOTHING };

static const struct row {
	const char *family, *state, *help; /* rows of one family follow one another, each with its label "state" */
	enum together together;
} rows[VALUES] = {
	[NODES] = { "job_nodes", NULL, "Nodes that elastic jobs hold.", SUM },
	[DEVICES] = { "job_devices", NULL, "Devices on which elastic jobs train.", SUM },
	[TOKENS_PER_S] = { "job_tokens_per_second", NULL, "What elastic jobs make now.", SUM },
	[PAUSE_S] = { "job_pause_seconds", NULL, "Pause of the last resize; of several jobs the longest.", MOST },
	[CHECKPOINT_AGE_S] = { "job_checkpoint_age_seconds", NULL, "Since the last complete checkpoint; of several jobs the oldest.",
	                       MOST },
	[STEP] = { "job_step", NULL, "Last step.", NOTHING },
	[GENERATION] = { "job_generation", NULL, "Generation of the plan.", NOTHING },
	[LOSS] = { "job_loss", NULL, "Loss of the last step.", NOTHING },
	[STEP_S] = { "job_step_seconds", NULL, "Time of the last step.", NOTHING },
	[TOKENS] = { "job_tokens", NULL, "Tokens trained on.", SUM },
	[RESIZES] = { "job_resizes", NULL, "Changes of jobs' nodes.", SUM },
	[STEPS_LOST] = { "job_lost_steps", NULL, "Steps that had to be made again.", SUM },
	[PAUSED_S] = { "job_paused_seconds", NULL, "Pauses of resizes.", SUM },
	[TRAINED_DEVICE_S] = { "job_device_seconds", "trained", "Time of jobs' devices: in steps that count, in pauses, in lost steps.",
	                       SUM },
	[PAUSED_DEVICE_S] = { "job_device_seconds", "paused", "", SUM },
	[LOST_DEVICE_S] = { "job_device_seconds", "lost", "", SUM },
};

/* The lines of one set of labels: NaN where there is none. */
struct series {
	char *labels; /* job="7",user="ann" */
	double values[VALUES];
};

struct ctld_job_sums {
	struct ctld_job_sums *next;
	struct series series; /* counters only */
};

static void put_label(FILE *f, const char *name, const char *value)
{
	fprintf(f, "%s%s=\"", ftell(f) > 0 ? "," : "", name);
	for (; *value; value++)
		if (*value == '\n')
			fputs("\\n", f);
		else
			fprintf(f, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
	fputc('"', f);
}

/* malloc'd; NULL: Slurm does not know the job as this user's, or out of memory. */
static char *labels_of(const struct ctld *d, int at)
{
	const struct ctld_peer *p = &d->peers.peers[at];
	const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(d->view, p->job);
	char *text = NULL, number[16];
	size_t size;
	FILE *f = j && d->peers.histories[at].confirmed ? open_memstream(&text, &size) : NULL;
	if (!f)
		return NULL;
	snprintf(number, sizeof number, "%u", p->job);
	const char *const values[CTLD_LABELS] = { number, j->user, j->account, j->partition, j->qos };
	for (int i = 0; i < CTLD_LABELS; i++)
		if (d->options->job_labels >> i & 1)
			put_label(f, ctld_job_label_names[i], values[i] ? values[i] : "");
	if (!fclose(f))
		return text;
	free(text);
	return NULL;
}

static bool by_job(const struct ctld *d)
{
	return d->options->job_labels >> CTLD_LABEL_JOB & 1;
}

static void counters_of(const struct ctld_figures *f, double values[VALUES])
{
	values[TOKENS] = (double)f->tokens;
	values[RESIZES] = (double)f->resizes;
	values[STEPS_LOST] = (double)f->steps_lost;
	values[PAUSED_S] = f->paused_s;
	values[TRAINED_DEVICE_S] = f->trained_device_s;
	values[PAUSED_DEVICE_S] = f->paused_device_s;
	values[LOST_DEVICE_S] = f->lost_device_s;
}

void job_metrics_count(struct ctld *d, int at, const struct ctld_figures *more)
{
	double values[VALUES];
	char *labels = by_job(d) ? NULL : labels_of(d, at);
	if (!labels)
		return;
	struct ctld_job_sums *s = d->job_sums;
	while (s && strcmp(s->series.labels, labels) != 0)
		s = s->next;
	if (s)
		free(labels);
	else if ((s = calloc(1, sizeof *s))) {
		s->series.labels = labels;
		s->next = d->job_sums;
		d->job_sums = s;
	} else {
		free(labels);
		return;
	}
	counters_of(more, values);
	for (int v = COUNTERS; v < VALUES; v++)
		s->series.values[v] += values[v];
}

void job_metrics_clear(struct ctld *d)
{
	for (struct ctld_job_sums *s; (s = d->job_sums);) {
		d->job_sums = s->next;
		free(s->series.labels);
		free(s);
	}
}

/* ---- the page */

static void gauges_of(const struct ctld *d, int at, double values[VALUES])
{
	const struct ctld_peer *p = &d->peers.peers[at];
	const struct ctld_figures *f = &d->peers.histories[at].figures;
	values[NODES] = ctld_nodes_held(d->view, p);
	if (!p->reachable) /* what it said last may be long ago */
		return;
	values[TOKENS_PER_S] = p->tokens_per_s;
	values[PAUSE_S] = p->pause_s;
	if (!f->known)
		return;
	values[DEVICES] = f->devices;
	if (f->checkpoint_s > 0)
		values[CHECKPOINT_AGE_S] = fmax(0, hspmd_unix_time() - f->checkpoint_s);
	if (f->step < 0)
		return;
	values[STEP] = (double)f->step;
	values[GENERATION] = (double)f->generation;
	values[LOSS] = f->loss;
	values[STEP_S] = f->step_s;
}

static void join(struct series *s, const double values[VALUES])
{
	for (int v = 0; v < VALUES; v++)
		if (rows[v].together == NOTHING || isnan(values[v]))
			continue;
		else if (isnan(s->values[v]))
			s->values[v] = values[v];
		else
			s->values[v] = rows[v].together == SUM ? s->values[v] + values[v] : fmax(s->values[v], values[v]);
}

static int by_labels(const void *a, const void *b)
{
	return strcmp(((const struct series *)a)->labels, ((const struct series *)b)->labels);
}

/* One series per job, and per set of labels with counters of jobs that are gone; those of equal labels are then joined. Returns how many;
 * -1: out of memory. */
static int make_series(const struct ctld *d, struct series **list)
{
	int n = 0, joined = 0;
	size_t most = (size_t)d->peers.count;
	for (const struct ctld_job_sums *s = d->job_sums; s; s = s->next)
		most++;
	struct series *all = hspmd_calloc(most, sizeof *all);
	if (!all)
		return -1;
	for (int i = 0; i < d->peers.count; i++) {
		struct series *s = &all[n];
		const struct ctld_figures *f = &d->peers.histories[i].figures;
		for (int v = 0; v < VALUES; v++)
			s->values[v] = NAN;
		if (!(s->labels = labels_of(d, i)))
			continue;
		gauges_of(d, i, s->values);
		if (by_job(d) && f->known)
			counters_of(f, s->values);
		n++;
	}
	for (const struct ctld_job_sums *from = d->job_sums; from; from = from->next) {
		struct series *s = &all[n];
		for (int v = 0; v < VALUES; v++)
			s->values[v] = v < COUNTERS ? NAN : from->series.values[v];
		if ((s->labels = strdup(from->series.labels)))
			n++;
	}
	if (n)
		qsort(all, (size_t)n, sizeof *all, by_labels);
	for (int i = 0; i < n; i++) {
		if (joined && !strcmp(all[joined - 1].labels, all[i].labels)) {
			join(&all[joined - 1], all[i].values);
			free(all[i].labels);
			continue;
		}
		all[joined] = all[i];
		for (int v = 0; v < VALUES && !by_job(d); v++)
			if (rows[v].together == NOTHING)
				all[joined].values[v] = NAN;
		joined++;
	}
	*list = all;
	return joined;
}

void job_metrics_family(const struct ctld_page *p, const char *name, const char *type, const char *help)
{
	const char *suffix = p->plain && !strcmp(type, "counter") ? "_total" : "";
	fprintf(p->f, "# TYPE hspmd_%s%s %s\n# HELP hspmd_%s%s %s\n", name, suffix, type, name, suffix, help);
}

void job_metrics_write(const struct ctld_page *p, const struct ctld *d)
{
	FILE *f = p->f;
	struct series *list = NULL;
	int count = make_series(d, &list);
	for (int v = 0; v < VALUES && count >= 0; v++) {
		const struct row *r = &rows[v];
		bool first = !v || strcmp(rows[v - 1].family, r->family) != 0;
		if (rows[v].together == NOTHING && !by_job(d))
			continue;
		if (first)
			job_metrics_family(p, r->family, v < COUNTERS ? "gauge" : "counter", r->help);
		for (int i = 0; i < count; i++) {
			const struct series *s = &list[i];
			if (isnan(s->values[v]))
				continue;
			fprintf(f, "hspmd_%s%s", r->family, v < COUNTERS ? "" : "_total");
			if (r->state)
				fprintf(f, "{%s%sstate=\"%s\"}", s->labels, *s->labels ? "," : "", r->state);
			else if (*s->labels)
				fprintf(f, "{%s}", s->labels);
			fprintf(f, " %.15g\n", s->values[v]);
		}
	}
	for (int i = 0; i < count; i++)
		free(list[i].labels);
	free(list);
}
