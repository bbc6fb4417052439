/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/auth.h"
#include "common/durable.h"
#include "common/json.h"
#include "controller/core/controller.h"

static char *in_folder(const struct run_output *o, const char *name, struct hspmd_error *err)
{
	char *path = hspmd_asprintf("%s/%s", o->folder, name);
	if (!path)
		hspmd_fail_memory(err, "opening the output folder");
	return path;
}

static int open_append(const struct run_output *o, const char *name, struct hspmd_error *err)
{
	char *path = in_folder(o, name, err);
	int fd = path ? open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
	if (path && fd < 0)
		hspmd_fail_errno(err, "%s", path);
	free(path);
	return fd;
}

static void take_line(struct run_output *o, json_t *line)
{
	json_t *step = json_object_get(line, "step"), *generation = json_object_get(line, "generation");
	if (json_is_integer(generation) && json_integer_value(generation) > o->generation)
		o->generation = json_integer_value(generation);
	if (json_is_integer(step) && json_object_get(line, "loss"))
		o->steps_reported = json_integer_value(step) + 1;
	if (json_is_integer(generation) && json_object_get(line, "event"))
		o->resize_reported = json_integer_value(generation);
}

static void take_event(struct run_output *o, json_t *event)
{
	if (json_is_object(event) && !json_array_append(o->events, event) && json_array_size(o->events) > RUN_EVENTS_MAX)
		json_array_remove(o->events, 0);
}

/* Reads the lines that earlier incarnations wrote to a file, *whole bytes. An incomplete last line is removed, so that the next write
 * begins a line. */
static int read_back(struct run_output *o, int fd, const char *name, void (*take)(struct run_output *o, json_t *line), off_t *whole,
                     struct hspmd_error *err)
{
	FILE *f = fdopen(dup(fd), "r");
	char *line = NULL;
	size_t capacity = 0;
	ssize_t n;
	*whole = 0;
	if (!f)
		return hspmd_fail_errno(err, "%s/%s", o->folder, name);
	rewind(f);
	while ((n = getline(&line, &capacity, f)) > 0 && line[n - 1] == '\n') {
		json_t *v = json_loadb(line, (size_t)n, 0, NULL);
		take(o, v);
		json_decref(v);
		*whole += n;
	}
	free(line);
	fclose(f);
	return ftruncate(fd, *whole) ? hspmd_fail_errno(err, "%s/%s", o->folder, name) : 0;
}

/* run.json: the run's name, and the last generation that was begun (metrics.jsonl has only generations that made a step). */
static int take_name(struct run_output *o, struct hspmd_error *err)
{
	char *path = in_folder(o, "run.json", err);
	json_t *v = path ? json_load_file(path, 0, NULL) : NULL;
	const char *name = json_string_value(json_object_get(v, "run"));
	json_t *generation = json_object_get(v, "generation");
	int rc = path ? 0 : -1;
	if (name && o->resumed)
		snprintf(o->run, sizeof o->run, "%.64s", name);
	else
		rc = rc || hspmd_auth_nonce(o->run, err) ? -1 : 0;
	o->run[32] = 0;
	if (o->resumed && json_is_integer(generation) && json_integer_value(generation) > o->generation)
		o->generation = json_integer_value(generation);
	json_decref(v);
	free(path);
	return rc;
}

static int open_all(struct run_output *o, bool begun_counts, struct hspmd_error *err)
{
	off_t whole, events_whole;
	char *run = in_folder(o, "run.json", err);
	if (!run)
		return -1;
	bool begun = begun_counts && !access(run, F_OK);
	free(run);
	if ((o->metrics = open_append(o, "metrics.jsonl", err)) < 0 || (o->events_fd = open_append(o, "events.jsonl", err)) < 0 ||
	    (o->log = open_append(o, "hspmd.log", err)) < 0 || read_back(o, o->metrics, "metrics.jsonl", take_line, &whole, err) ||
	    read_back(o, o->events_fd, "events.jsonl", take_event, &events_whole, err))
		return -1;
	o->resumed = whole > 0 || begun;
	return 0;
}

/* Removes the events of another run, which made no step. */
static int forget_events(struct run_output *o, struct hspmd_error *err)
{
	json_array_clear(o->events);
	return ftruncate(o->events_fd, 0) ? hspmd_fail_errno(err, "%s/events.jsonl", o->folder) : 0;
}

int run_output_open(struct run_output *o, const char *folder, bool resume, bool begun_counts, struct hspmd_error *err)
{
	memset(o, 0, sizeof *o);
	o->metrics = o->events_fd = o->log = -1;
	char real[PATH_MAX];
	if (hspmd_durable_mkdir(folder, 0755, err))
		return -1;
	if (!realpath(folder, real))
		return hspmd_fail_errno(err, "%s", folder);
	if (!(o->folder = strdup(real)))
		return hspmd_fail_memory(err, "opening the output folder");
	o->events = json_array();
	int rc = open_all(o, resume && begun_counts, err) || take_name(o, err) ? -1 : 0;
	if (!rc && !resume)
		rc = o->resumed ? hspmd_fail(err,
		                             "%s/metrics.jsonl: another run has written here; --resume goes on with it, --output names "
		                             "another folder",
		                             real)
		                : forget_events(o, err);
	if (rc)
		run_output_close(o);
	return rc;
}

void run_output_close(struct run_output *o)
{
	if (o->metrics >= 0)
		close(o->metrics);
	if (o->events_fd >= 0)
		close(o->events_fd);
	if (o->log >= 0)
		close(o->log);
	json_decref(o->events);
	free(o->folder);
	memset(o, 0, sizeof *o);
	o->metrics = o->events_fd = o->log = -1;
}

static int append(const struct run_output *o, int fd, const char *name, const json_t *line, struct hspmd_error *err)
{
	char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17));
	size_t n = text ? strlen(text) : 0;
	if (!text)
		return hspmd_fail_memory(err, "writing a line");
	text[n] = '\n'; /* replaces the NUL, so that the line is one write() */
	int rc = hspmd_write_all(fd, text, n + 1);
	free(text);
	return rc ? hspmd_fail_errno(err, "%s/%s", o->folder, name) : 0;
}

int run_output_line(struct run_output *o, const json_t *line, struct hspmd_error *err)
{
	return append(o, o->metrics, "metrics.jsonl", line, err);
}

int run_output_event(struct run_output *o, const json_t *event, struct hspmd_error *err)
{
	return append(o, o->events_fd, "events.jsonl", event, err);
}

int run_output_sample(struct run_output *o, const json_t *sample, struct hspmd_error *err)
{
	int fd = open_append(o, "samples.jsonl", err);
	int rc = fd < 0 ? -1 : append(o, fd, "samples.jsonl", sample, err);
	if (fd >= 0)
		close(fd);
	return rc;
}

int run_output_save(struct run_output *o, const char *name, const json_t *value, struct hspmd_error *err)
{
	char *path = in_folder(o, name, err);
	int rc = path ? hspmd_json_save(value, path, err) : -1;
	free(path);
	return rc;
}
