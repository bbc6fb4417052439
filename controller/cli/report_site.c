/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/report_site.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/format/job.h"
#include "common/log.h"
#include "controller/cli/sacct.h"
#include "controller/report/site_page.h"

#define SACCT_S "600" /* for sacct to answer */

extern char **environ;

struct reading {
	struct report_site_row *rows;
	struct report_site_event *events;
	size_t row_count, row_capacity, event_count, event_capacity, bad;
	char first_bad[200];
	double now;
};

static void note_bad(struct reading *r, const char *file, size_t line, const char *why)
{
	if (!r->bad++)
		snprintf(r->first_bad, sizeof r->first_bad, "%s: line %zu: %s", file, line, why);
}

/* ---- the accounting */

/* GPUs that accounting counts: "...,gres/gpu=4,gres/gpu:a100=4,...". */
static int gpus_of(const char *tres)
{
	const char *gpu = strstr(tres, "gres/gpu=");
	long n = gpu && (gpu == tres || gpu[-1] == ',') ? strtol(gpu + strlen("gres/gpu="), NULL, 10) : 0;
	return n > 0 && n < 1 << 20 ? (int)n : 0;
}

static int take_row(struct reading *r, const struct sacct *s, const struct sacct_line *l)
{
	uint32_t anchor = 0;
	int gpus = gpus_of(sacct_get(s, l, SACCT_TRES));
	if (isnan(l->start) || !l->nodes) /* it has not run */
		return 0;
	if (hspmd_array_grow(&r->rows, &r->row_capacity, r->row_count, sizeof *r->rows))
		return -1;
	struct report_site_row *row = &r->rows[r->row_count++];
	*row = (struct report_site_row){ .id = l->id,
		                         .submit = l->submit,
		                         .start = l->start,
		                         .end = isnan(l->end) ? fmax(r->now, l->start) : l->end,
		                         .nodes = l->nodes,
		                         .devices = gpus ? gpus : l->nodes,
		                         .elastic = !strcmp(sacct_get(s, l, SACCT_COMMENT), HSPMD_JOB_COMMENT),
		                         .user = strdup(sacct_get(s, l, SACCT_USER)),
		                         .account = strdup(sacct_get(s, l, SACCT_ACCOUNT)),
		                         .partition = strdup(sacct_get(s, l, SACCT_PARTITION)) };
	if (sacct_is_member(s, l, &anchor) && anchor != l->id)
		row->anchor = anchor;
	return row->user && row->account && row->partition ? 0 : -1;
}

static int read_accounting(struct reading *r, FILE *in, const char *name, struct hspmd_error *err)
{
	struct sacct s;
	struct sacct_line l;
	const char *why;
	char *line = NULL;
	size_t size = 0;
	int rc = getline(&line, &size, in) < 0 ? hspmd_fail(err, "%s: expected the output of sacct --parsable2, got nothing", name)
	                                       : sacct_header(&s, line, err);
	if (rc)
		hspmd_error_prefix(err, "%s", name);
	for (size_t number = 2; !rc && getline(&line, &size, in) >= 0; number++) {
		enum sacct_kind kind = sacct_read(&s, line, &l, &why);
		if (kind == SACCT_BAD)
			note_bad(r, name, number, why);
		else if (kind == SACCT_JOB && take_row(r, &s, &l))
			rc = hspmd_fail_memory(err, "reading the accounting");
	}
	free(line);
	return rc;
}

static pid_t start_sacct(const struct report_site_options *o, int *from, struct hspmd_error *err)
{
	/* timeout ends a sacct that waits for slurmdbd. Times in seconds: local ones are ambiguous in one hour of the year. */
	const char *const words[] = { "timeout",
		                      SACCT_S,
		                      "env",
		                      "SLURM_TIME_FORMAT=%s",
		                      "sacct",
		                      "--allusers",
		                      "--allocations",
		                      "--duplicates",
		                      "--truncate",
		                      "--parsable2",
		                      "-S",
		                      o->since,
		                      "-E",
		                      o->until ? o->until : "now",
		                      "-o",
		                      "JobIDRaw,JobName,User,Account,Partition,Submit,Start,End,NNodes,AllocTRES,Comment",
		                      NULL };
	posix_spawn_file_actions_t files;
	int ends[2];
	pid_t child;
	if (pipe2(ends, O_CLOEXEC)) {
		hspmd_fail_errno(err, "running sacct: pipe");
		return -1;
	}
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, ends[1], 1);
	int failed = posix_spawnp(&child, words[0], &files, NULL, (char *const *)words, environ);
	posix_spawn_file_actions_destroy(&files);
	close(ends[1]);
	*from = ends[0];
	if (!failed)
		return child;
	close(ends[0]);
	errno = failed;
	hspmd_fail_errno(err, "sacct cannot be started");
	return -1;
}

static int run_sacct(struct reading *r, const struct report_site_options *o, struct hspmd_error *err)
{
	int from, status;
	pid_t child = start_sacct(o, &from, err);
	FILE *in = child > 0 ? fdopen(from, "r") : NULL;
	if (child < 0)
		return -1;
	int rc = in ? read_accounting(r, in, "sacct", err) : hspmd_fail_memory(err, "running sacct");
	if (in)
		fclose(in);
	else
		close(from);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 124)
		return hspmd_fail(err, "sacct did not answer within " SACCT_S " s");
	if (WIFEXITED(status) && WEXITSTATUS(status))
		return hspmd_fail(err, "sacct failed (exit status %d)", WEXITSTATUS(status));
	return rc;
}

/* ---- the event log */

static int take_event(struct reading *r, const json_t *line)
{
	const char *event = json_string_value(json_object_get(line, "event")), *cause = json_string_value(json_object_get(line, "cause"));
	json_int_t job = json_integer_value(json_object_get(line, "job")), waiting = json_integer_value(json_object_get(line, "for"));
	bool recall = event && !strcmp(event, "shrink") && cause && !strcmp(cause, "waiting") && waiting > 0;
	if (!recall && !(event && !strcmp(event, "resized")))
		return 0;
	if (hspmd_array_grow(&r->events, &r->event_capacity, r->event_count, sizeof *r->events))
		return -1;
	r->events[r->event_count++] =
	        (struct report_site_event){ .kind = recall ? REPORT_SITE_RECALL : REPORT_SITE_RESIZED,
		                            .time = json_number_value(json_object_get(line, "time")),
		                            .job = (uint32_t)job,
		                            .waiting = (uint32_t)waiting,
		                            .nodes = (int)json_array_size(json_object_get(line, "nodes")),
		                            .resizes = json_integer_value(json_object_get(line, "resizes")),
		                            .steps_lost = json_integer_value(json_object_get(line, "steps_lost")),
		                            .pause_s = json_number_value(json_object_get(line, "pause_s")),
		                            .paused_device_s = json_number_value(json_object_get(line, "paused_device_s")),
		                            .lost_device_s = json_number_value(json_object_get(line, "lost_device_s")) };
	return 0;
}

static int read_log(struct reading *r, const char *path, struct hspmd_error *err)
{
	FILE *f = fopen(path, "re");
	char *line = NULL;
	size_t capacity = 0, number = 0;
	ssize_t n;
	int rc = f ? 0 : hspmd_fail_errno(err, "%s", path);
	while (!rc && (n = getline(&line, &capacity, f)) > 0) {
		json_t *v = json_loadb(line, (size_t)n, 0, NULL);
		number++;
		if (!json_is_object(v))
			note_bad(r, path, number, "this is no event");
		else if (take_event(r, v))
			rc = hspmd_fail_memory(err, "reading an event log");
		json_decref(v);
	}
	if (!rc && ferror(f))
		rc = hspmd_fail_errno(err, "%s", path);
	if (f)
		fclose(f);
	free(line);
	return rc;
}

/* The accounting's lines are of a period; events of other times are not of it. */
static void drop_other_times(struct reading *r)
{
	double begin = NAN, end = NAN;
	size_t kept = 0;
	for (size_t i = 0; i < r->row_count; i++) {
		begin = fmin(begin, r->rows[i].start);
		end = fmax(end, r->rows[i].end);
	}
	for (size_t i = 0; i < r->event_count; i++)
		if (r->events[i].time >= begin && r->events[i].time <= end)
			r->events[kept++] = r->events[i];
	r->event_count = kept;
}

/* ---- both */

static int read_all(struct reading *r, const struct report_site_options *o, struct hspmd_error *err)
{
	int rc = 0;
	if (!o->accounting) {
		rc = run_sacct(r, o, err);
	} else if (!strcmp(o->accounting, "-")) {
		rc = read_accounting(r, stdin, "standard input", err);
	} else {
		FILE *f = fopen(o->accounting, "re");
		rc = f ? read_accounting(r, f, o->accounting, err) : hspmd_fail_errno(err, "%s", o->accounting);
		if (f)
			fclose(f);
	}
	for (int i = 0; i < o->event_log->count && !rc; i++)
		rc = read_log(r, o->event_log->items[i], err);
	if (!rc && r->bad)
		hspmd_warn("%zu line%s cannot be read, the first is %s", r->bad, r->bad == 1 ? "" : "s", r->first_bad);
	return rc;
}

int report_site_write(FILE *out, const struct report_site_options *o, struct hspmd_error *err)
{
	struct reading r = { .now = (double)time(NULL) };
	struct report_site s = { 0 };
	int rc = read_all(&r, o, err);
	if (!rc)
		drop_other_times(&r);
	if (!rc && report_site_make(&s, r.rows, r.row_count, r.events, r.event_count, o->event_log->count > 0))
		rc = hspmd_fail_memory(err, "writing a report");
	if (!rc)
		rc = report_site_page_write(out, &s, err);
	report_site_clear(&s);
	for (size_t i = 0; i < r.row_count; i++) {
		free(r.rows[i].user);
		free(r.rows[i].account);
		free(r.rows[i].partition);
	}
	free(r.rows);
	free(r.events);
	return rc;
}
