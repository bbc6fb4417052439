/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/report_run.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define NODES_MAX (1 << 20)
#define NUMBER_MAX 1e100

const char *const report_value_names[] = { "loss", "valid_loss", "lr", "grad_norm", "step_s", "compute_s", "tokens", "time", NULL };

/* A number that sums and differences with others leave finite. */
static double number(const json_t *object, const char *key, double absent)
{
	const json_t *v = json_object_get(object, key);
	return json_is_number(v) && fabs(json_number_value(v)) < NUMBER_MAX ? json_number_value(v) : absent;
}

/* A whole number in [0, max]; -1: there is none. */
static int64_t whole(const json_t *object, const char *key, int64_t max)
{
	const json_t *v = json_object_get(object, key);
	int64_t n = json_is_integer(v) ? json_integer_value(v) : -1;
	return n <= max ? n : -1;
}

static const char *text(const json_t *object, const char *key)
{
	const char *t = json_string_value(json_object_get(object, key));
	return t ? t : "";
}

static int warn(struct report_run *r, char *sentence)
{
	if (!sentence || hspmd_array_grow(&r->warnings, &r->warning_capacity, r->warning_count, sizeof *r->warnings)) {
		free(sentence);
		return -1;
	}
	r->warnings[r->warning_count++] = sentence;
	return 0;
}

/* ---- lines. Each returns 1: taken, 0: not such a line, -1: out of memory */

static int take_step(struct report_run *r, const json_t *line)
{
	struct report_step s = { .step = whole(line, "step", INT64_MAX / 2), .generation = whole(line, "generation", INT64_MAX) };
	int64_t nodes = whole(line, "nodes", NODES_MAX);
	if (s.step < 0 || !json_object_get(line, "loss") || json_object_get(line, "event"))
		return 0;
	s.nodes = nodes < 0 ? 0 : (int)nodes;
	s.devices = (int)fmax(0, (double)whole(line, "devices", NODES_MAX));
	for (int v = 0; v < REPORT_VALUES; v++)
		s.values[v] = number(line, report_value_names[v], NAN);
	if (hspmd_array_grow(&r->steps, &r->step_capacity, r->step_count, sizeof *r->steps))
		return -1;
	r->steps[r->step_count++] = s;
	return 1;
}

static int take_change(struct report_run *r, json_t *line)
{
	int64_t from = whole(line, "from_nodes", NODES_MAX), nodes = whole(line, "nodes", NODES_MAX),
	        lost = whole(line, "steps_lost", INT64_MAX), at_step = whole(line, "at_step", INT64_MAX / 2);
	if (strcmp(text(line, "event"), "resize"))
		return 0;
	if (hspmd_array_grow(&r->changes, &r->change_capacity, r->change_count, sizeof *r->changes))
		return -1;
	struct report_change *c = &r->changes[r->change_count++];
	*c = (struct report_change){
		.line = json_incref(line),
		.generation = whole(line, "generation", INT64_MAX),
		.step = at_step < 0 ? whole(line, "step", INT64_MAX / 2) : at_step, /* "step" in runs of earlier versions */
		.steps_lost = lost < 0 ? 0 : lost,
		.from_nodes = from < 0 ? 0 : (int)from,
		.nodes = nodes < 0 ? 0 : (int)nodes,
		.time = number(line, "time", NAN),
		.pause_s = fmax(0, number(line, "pause_s", 0)),
		.bytes_from_disk = number(line, "bytes_from_disk", 0),
		.bytes_from_peers = number(line, "bytes_from_peers", 0),
		.bytes_from_shared = number(line, "bytes_from_shared", 0),
		.cause = text(line, "cause"),
		.state = text(line, "state"),
	};
	c->bytes_from_local = fmax(0, number(line, "bytes_from_local", 0) - c->bytes_from_disk); /* the line counts disks as local */
	if (c->step < 0)
		c->step = r->step_count ? r->steps[r->step_count - 1].step + 1 : 0;
	return 1;
}

static int take_metrics(struct report_run *r, json_t *line)
{
	int taken = take_step(r, line);
	return taken ? taken : take_change(r, line);
}

static int take_event(struct report_run *r, json_t *line)
{
	if (!*text(line, "event"))
		return 0;
	if (hspmd_array_grow(&r->events, &r->event_capacity, r->event_count, sizeof *r->events))
		return -1;
	r->events[r->event_count++] = (struct report_event){ json_incref(line), whole(line, "generation", INT64_MAX),
		                                             number(line, "time", NAN), text(line, "event"), text(line, "text") };
	return 1;
}

/* ---- files */

struct reading {
	const char *name;
	size_t lines, bad, first_bad;
};

static int take_lines(struct report_run *r, FILE *f, struct reading *at, int (*take)(struct report_run *r, json_t *line))
{
	char *line = NULL;
	size_t capacity = 0;
	ssize_t n;
	int rc = 0;
	while (rc >= 0 && (n = getline(&line, &capacity, f)) > 0) {
		json_t *v = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
		rc = json_is_object(v) ? take(r, v) : 0;
		json_decref(v);
		at->lines++;
		if (rc)
			continue;
		at->first_bad = at->bad ? at->first_bad : at->lines;
		at->bad++;
	}
	free(line);
	return rc < 0 ? -1 : 0;
}

static int read_lines(struct report_run *r, const char *name, int (*take)(struct report_run *r, json_t *line), bool needed,
                      struct hspmd_error *err)
{
	struct reading at = { .name = name };
	char *path = hspmd_asprintf("%s/%s", r->folder, name);
	FILE *f = path ? fopen(path, "re") : NULL;
	int rc = path ? 0 : hspmd_fail_memory(err, "reading a run");
	if (path && !f && needed)
		rc = hspmd_fail_errno(err, "%s", path);
	else if (!f)
		rc = rc ? rc : warn(r, hspmd_asprintf("there is no %s", name));
	else if (take_lines(r, f, &at, take))
		rc = hspmd_fail_memory(err, "reading a run");
	else if (ferror(f))
		rc = hspmd_fail_errno(err, "%s", path);
	if (f)
		fclose(f);
	free(path);
	if (!rc && needed && at.lines && at.bad == at.lines)
		return hspmd_fail(err, "%s/%s: none of its %zu lines can be read", r->folder, name, at.lines);
	if (!rc && at.bad &&
	    warn(r, hspmd_asprintf("%zu of %zu lines of %s cannot be read, the first is line %zu", at.bad, at.lines, name, at.first_bad)))
		return hspmd_fail_memory(err, "reading a run");
	return rc;
}

static int by_generation(const void *a, const void *b)
{
	const struct report_plan *x = *(const struct report_plan *const *)a, *y = *(const struct report_plan *const *)b;
	return (x->generation > y->generation) - (x->generation < y->generation);
}

static int read_plan(struct report_run *r, int64_t generation)
{
	struct hspmd_error why = { "" };
	struct report_plan *p = report_plan_read(r->folder, generation, &why);
	if (!p)
		return warn(r, strdup(why.text));
	if (hspmd_array_grow(&r->plans, &r->plan_capacity, r->plan_count, sizeof(struct report_plan *))) {
		report_plan_destroy(p);
		return -1;
	}
	r->plans[r->plan_count++] = p;
	return 0;
}

static int read_plans(struct report_run *r, struct hspmd_error *err)
{
	DIR *d = opendir(r->folder);
	int rc = 0;
	if (!d)
		return hspmd_fail_errno(err, "%s", r->folder);
	for (struct dirent *e; !rc && (e = readdir(d));) {
		long long generation;
		int end = 0;
		if (sscanf(e->d_name, "plan-%18lld.json%n", &generation, &end) == 1 && end && !e->d_name[end] && generation >= 0)
			rc = read_plan(r, generation);
	}
	closedir(d);
	if (r->plan_count)
		qsort(r->plans, r->plan_count, sizeof(struct report_plan *), by_generation);
	return rc ? hspmd_fail_memory(err, "reading plans") : 0;
}

/* The clusters of the journal's last two generations, and a run's own without Slurm. Without them only the types of devices are unknown. */
static void read_clusters(struct report_run *r)
{
	static const char *const parts[] = { "current", "older" };
	char *path = hspmd_asprintf("%s/journal.json", r->folder);
	json_t *journal = path ? json_load_file(path, 0, NULL) : NULL;
	free(path);
	for (int i = 0; i < 2; i++) {
		const json_t *c = json_object_get(json_object_get(journal, parts[i]), "cluster");
		r->clusters[i] = c ? hspmd_cluster_from_json(c, "journal.json", NULL) : NULL;
	}
	json_decref(journal);
	path = hspmd_asprintf("%s/cluster.json", r->folder);
	r->clusters[2] = path ? hspmd_cluster_read(path, NULL) : NULL;
	free(path);
}

struct report_device report_run_device(const struct report_run *r, const char *devices)
{
	struct report_device found = { "", 0 };
	size_t length;
	int first, device;
	char address[300];
	if (!report_devices_split(devices, &length, &first))
		return found;
	snprintf(address, sizeof address, "%.*s:%d", (int)length, devices, first);
	for (int i = 0; i < REPORT_CLUSTERS; i++) {
		const struct hspmd_cluster *c = r->clusters[i];
		if (!c || (device = hspmd_cluster_find_device(c, address, NULL)) < 0)
			continue;
		const struct hspmd_device_type *type = &c->types[c->devices[device].type];
		return (struct report_device){ type->name, (double)type->memory_bytes };
	}
	return found;
}

static void read_wanted(struct report_run *r)
{
	char *path = hspmd_asprintf("%s/status.json", r->folder);
	json_t *v = path ? json_load_file(path, 0, NULL) : NULL;
	r->wanted = whole(v, "steps", INT64_MAX / 2);
	json_decref(v);
	free(path);
}

/* The name of the job and of the run, from run.json, if it is there. */
static int read_names(struct report_run *r, struct hspmd_error *err)
{
	char *path = hspmd_asprintf("%s/run.json", r->folder);
	json_t *v = path ? json_load_file(path, 0, NULL) : NULL;
	r->job = strdup(text(v, "job"));
	r->id = strdup(text(v, "run"));
	json_decref(v);
	free(path);
	return path && r->job && r->id ? 0 : hspmd_fail_memory(err, "reading a run");
}

/* The folder's last part. Names need not be UTF-8; JSON and HTML are. */
static char *make_name(const char *folder)
{
	char real[PATH_MAX];
	const char *path = realpath(folder, real) ? real : folder, *slash = strrchr(path, '/');
	char *name = strdup(slash && slash[1] ? slash + 1 : path);
	json_t *valid = name ? json_string(name) : NULL;
	for (char *c = name; c && *c; c++)
		if ((!valid && (*c & 0x80)) || (unsigned char)*c < ' ')
			*c = '?';
	json_decref(valid);
	return name;
}

static void mark_repeated(struct report_run *r)
{
	int64_t least = INT64_MAX;
	for (size_t i = r->step_count; i-- > 0;) {
		r->steps[i].repeated = r->steps[i].step >= least;
		least = r->steps[i].step < least ? r->steps[i].step : least;
	}
}

struct report_run *report_run_read(const char *folder, struct hspmd_error *err)
{
	struct report_run *r = calloc(1, sizeof *r);
	if (r) {
		r->folder = strdup(folder);
		r->name = make_name(folder);
	}
	if (!r || !r->folder || !r->name) {
		hspmd_fail_memory(err, "reading a run");
		report_run_destroy(r);
		return NULL;
	}
	if (read_lines(r, "metrics.jsonl", take_metrics, true, err) || read_lines(r, "events.jsonl", take_event, false, err) ||
	    read_plans(r, err) || read_names(r, err)) {
		report_run_destroy(r);
		return NULL;
	}
	read_clusters(r);
	read_wanted(r);
	mark_repeated(r);
	return r;
}

void report_run_destroy(struct report_run *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->change_count; i++)
		json_decref(r->changes[i].line);
	for (size_t i = 0; i < r->event_count; i++)
		json_decref(r->events[i].line);
	for (size_t i = 0; i < r->warning_count; i++)
		free(r->warnings[i]);
	for (size_t i = 0; i < r->plan_count; i++)
		report_plan_destroy(r->plans[i]);
	for (int i = 0; i < REPORT_CLUSTERS; i++)
		hspmd_cluster_destroy(r->clusters[i]);
	free(r->plans);
	free(r->steps);
	free(r->changes);
	free(r->events);
	free(r->warnings);
	free(r->folder);
	free(r->name);
	free(r->job);
	free(r->id);
	free(r);
}
