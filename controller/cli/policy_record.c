/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/policy_record.h"

#include <fnmatch.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "common/format/job.h"
#include "common/format/trace.h"
#include "common/hostlist.h"
#include "common/json.h"
#include "controller/cli/sacct.h"

#define EFFICIENCY 0.95 /* tokens per second grow as nodes to this power */

struct job {
	uint32_t id;
	double submit, start, end; /* wall clock; NAN: not yet */
	int nodes;                 /* at its start */
	bool elastic;
	double tokens, priority;
	char *user, *account, *partition, *qos;
};

struct recording {
	const struct policy_record_options *o;
	struct policy_record_counts *counts;
	struct sacct sacct;
	struct job *jobs;
	size_t count, capacity;
	json_t *nodes; /* object: names */
	double first, last;
};

static void job_clear(struct job *j)
{
	free(j->user);
	free(j->account);
	free(j->partition);
	free(j->qos);
}

static bool is_elastic(const struct recording *r, const struct sacct_line *l)
{
	static const struct {
		const char *key;
		enum sacct_column column;
	} keys[] = { { "partition", SACCT_PARTITION },
		     { "account", SACCT_ACCOUNT },
		     { "user", SACCT_USER },
		     { "qos", SACCT_QOS },
		     { "name", SACCT_NAME } };
	const char *equals = r->o->elastic ? strchr(r->o->elastic, '=') : NULL;
	if (!equals)
		return !strcmp(sacct_get(&r->sacct, l, SACCT_COMMENT), HSPMD_JOB_COMMENT);
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (strlen(keys[i].key) == (size_t)(equals - r->o->elastic) && !strncmp(keys[i].key, r->o->elastic, strlen(keys[i].key)))
			return !fnmatch(equals + 1, sacct_get(&r->sacct, l, keys[i].column), 0);
	return false;
}

/* Adds the names of a node list: "n[0-3]"; "None assigned" while a job waits. */
static int add_nodes(struct recording *r, const char *list, struct hspmd_error *err)
{
	char **names;
	if (!*list || strchr(list, ' '))
		return 0;
	int n = hspmd_hostlist_expand(list, HSPMD_TRACE_MAX_NODES, &names, err), rc = n < 0 ? -1 : 0;
	for (int i = 0; i < n && !rc; i++)
		if (json_object_set_new(r->nodes, names[i], json_true()))
			rc = hspmd_fail_memory(err, "recording");
	if (n >= 0)
		hspmd_hostlist_free(names, n);
	return rc;
}

static double rate(int nodes)
{
	return 1000 * pow(nodes, EFFICIENCY);
}

static void leave_out(struct recording *r, int line, const char *why)
{
	if (!r->counts->bad_lines++)
		snprintf(r->counts->first_bad, sizeof r->counts->first_bad, "line %d: %s", line, why);
}

static double later(double a, double b)
{
	return isnan(a) || b > a ? b : a;
}

/* A further line of a job that was resized. */
static void extend(struct job *j, double start, double end, int nodes)
{
	if (!isnan(start) && (isnan(j->start) || start < j->start)) {
		j->start = start;
		j->nodes = nodes;
	}
	j->end = isnan(end) || isnan(j->end) ? NAN : fmax(j->end, end);
}

/* A member's work is that of the elastic job to which it brought nodes. */
static void add_to_anchor(struct recording *r, uint32_t anchor, double work)
{
	for (size_t i = r->count; i > 0; i--)
		if (r->jobs[i - 1].id == anchor) {
			r->jobs[i - 1].tokens += work;
			break;
		}
}

static int add_job(struct recording *r, const struct sacct_line *l, struct hspmd_error *err)
{
	char *end;
	if (hspmd_array_grow(&r->jobs, &r->capacity, r->count, sizeof *r->jobs))
		return hspmd_fail_memory(err, "recording");
	struct job *j = &r->jobs[r->count++];
	double priority = strtod(sacct_get(&r->sacct, l, SACCT_PRIORITY), &end);
	*j = (struct job){ .id = l->id, .submit = l->submit, .start = l->start, .end = l->end, .nodes = l->nodes };
	j->priority = priority > 0 && priority < 4294967296.0 ? floor(priority) : 0;
	j->elastic = is_elastic(r, l);
	j->user = strdup(sacct_get(&r->sacct, l, SACCT_USER));
	j->account = strdup(sacct_get(&r->sacct, l, SACCT_ACCOUNT));
	j->partition = strdup(sacct_get(&r->sacct, l, SACCT_PARTITION));
	j->qos = strdup(sacct_get(&r->sacct, l, SACCT_QOS));
	return j->user && j->account && j->partition && j->qos ? 0 : hspmd_fail_memory(err, "recording");
}

static int read_line(struct recording *r, int number, char *line, struct hspmd_error *err)
{
	struct sacct_line l;
	const char *why;
	uint32_t anchor;
	enum sacct_kind kind = sacct_read(&r->sacct, line, &l, &why);
	if (kind == SACCT_BAD)
		leave_out(r, number, why);
	if (kind != SACCT_JOB)
		return 0;
	if (isnan(l.start) || !l.nodes) {
		r->counts->never_started++;
		return 0;
	}
	double work = isnan(l.end) ? 0 : rate(l.nodes) * (l.end - l.start);
	const char *nodes = sacct_get(&r->sacct, &l, SACCT_NODE_LIST);
	if (sacct_is_member(&r->sacct, &l, &anchor)) {
		add_to_anchor(r, anchor, work);
		return r->o->nodes ? 0 : add_nodes(r, nodes, err);
	}
	struct job *j = r->count && r->jobs[r->count - 1].id == l.id ? &r->jobs[r->count - 1] : NULL;
	if (j)
		extend(j, l.start, l.end, l.nodes);
	else if (add_job(r, &l, err))
		return -1;
	j = &r->jobs[r->count - 1];
	j->tokens += work;
	r->first = isnan(r->first) || l.submit < r->first ? l.submit : r->first;
	r->last = later(later(later(r->last, l.submit), l.start), l.end);
	return r->o->nodes ? 0 : add_nodes(r, nodes, err);
}

/* ---- writing */

static int by_submit(const void *a, const void *b)
{
	const struct job *x = a, *y = b;
	if (x->submit != y->submit)
		return x->submit < y->submit ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* By time; at the same time, nodes are given back before others are taken. */
static int by_change(const void *a, const void *b)
{
	const double *x = a, *y = b;
	int first = x[0] == y[0];
	return x[first] < y[first] ? -1 : x[first] > y[first];
}

/* Most nodes that jobs had at once: a cluster whose nodes are not named has at least so many. -1: memory. */
static int most_at_once(const struct recording *r)
{
	double(*change)[2] = hspmd_calloc(2 * r->count, sizeof *change);
	double now = 0, most = 0;
	for (size_t i = 0; change && i < r->count; i++) {
		change[2 * i][0] = r->jobs[i].start;
		change[2 * i][1] = r->jobs[i].nodes;
		change[2 * i + 1][0] = isnan(r->jobs[i].end) ? INFINITY : r->jobs[i].end;
		change[2 * i + 1][1] = -r->jobs[i].nodes;
	}
	if (!change)
		return -1;
	qsort(change, 2 * r->count, sizeof *change, by_change);
	for (size_t i = 0; i < 2 * r->count; i++) {
		now += change[i][1];
		most = fmax(most, now);
	}
	free(change);
	return (int)most;
}

static json_t *nodes_json(struct recording *r, struct hspmd_error *err)
{
	json_t *names = json_array(), *value;
	const char *name;
	char made[32];
	if (!json_object_size(r->nodes)) {
		int n = most_at_once(r);
		if (n > 0)
			snprintf(made, sizeof made, n > 1 ? "node-[1-%d]" : "node-1", n);
		json_array_append_new(names, n > 0 ? json_string(made) : NULL);
	}
	json_object_foreach(r->nodes, name, value)
		if (json_array_append_new(names, json_string(name))) {
			json_decref(names);
			names = NULL;
			break;
		}
	if (json_array_size(names))
		return names;
	json_decref(names);
	hspmd_fail_memory(err, "recording");
	return NULL;
}

static bool put(json_t *o, const char *key, const char *text)
{
	return !*text || !json_object_set_new(o, key, json_string(text));
}

static int clamp(double x, int least, int most)
{
	return x < least ? least : x > most ? most : (int)x;
}

static json_t *job_json(const struct recording *r, const struct job *j, int cluster)
{
	double end = isnan(j->end) ? r->last : j->end;
	json_t *o = json_pack("{s:I, s:f}", "id", (json_int_t)j->id, "priority", j->priority);
	bool fine = o && put(o, "user", j->user) && put(o, "account", j->account) && put(o, "partition", j->partition) &&
	            put(o, "qos", j->qos) && !json_object_set_new(o, "nodes", json_integer(j->nodes));
	if (fine && !j->elastic)
		fine = !json_object_set_new(o, "run_s", hspmd_json_real(end - j->start));
	if (fine && j->elastic) {
		int min = clamp(r->o->min_nodes ? r->o->min_nodes : ceil(j->nodes / 2.0), 1, j->nodes);
		int max = clamp(r->o->max_nodes ? r->o->max_nodes : 4.0 * j->nodes, j->nodes, cluster > j->nodes ? cluster : j->nodes);
		json_t *curve = json_array();
		for (int n = 1; curve && n <= max; n++)
			fine = fine && !json_array_append_new(curve, hspmd_json_real(rate(n)));
		fine = fine && !json_object_set_new(o, "elastic", json_true()) && !json_object_set_new(o, "min_nodes", json_integer(min)) &&
		       !json_object_set_new(o, "max_nodes", json_integer(max)) && !json_object_set(o, "tokens_per_s", curve) &&
		       (isnan(j->end) || !json_object_set_new(o, "tokens", hspmd_json_real(j->tokens)));
		json_decref(curve);
	}
	if (fine)
		return o;
	json_decref(o);
	return NULL;
}

static json_t *events_json(struct recording *r, struct hspmd_error *err)
{
	json_t *nodes = nodes_json(r, err),
	       *events = nodes ? json_pack("[{s:f, s:s, s:o}]", "time_s", 0.0, "event", "add", "nodes", nodes) : NULL;
	int cluster = json_object_size(r->nodes) ? (int)json_object_size(r->nodes) : most_at_once(r);
	for (size_t i = 0; events && i < r->count; i++) {
		json_t *job = job_json(r, &r->jobs[i], cluster);
		json_t *event =
		        job ? json_pack("{s:f, s:s, s:o}", "time_s", r->jobs[i].submit - r->first, "event", "submit", "job", job) : NULL;
		r->counts->elastic += r->jobs[i].elastic;
		r->counts->unfinished += isnan(r->jobs[i].end);
		if (!event || json_array_append_new(events, event)) {
			json_decref(events);
			hspmd_fail_memory(err, "recording");
			return NULL;
		}
	}
	return events;
}

static json_t *trace_json(struct recording *r, struct hspmd_error *err)
{
	char name[64], day[16];
	time_t first = (time_t)r->first;
	struct tm tm;
	qsort(r->jobs, r->count, sizeof *r->jobs, by_submit);
	for (size_t i = 1; i < r->count; i++)
		if (r->jobs[i].id == r->jobs[i - 1].id) {
			hspmd_fail(err, "job %u is there twice: sacct was run with --duplicates, or the lines of a job are apart",
			           r->jobs[i].id);
			return NULL;
		}
	json_t *events = events_json(r, err);
	strftime(day, sizeof day, "%Y-%m-%d", localtime_r(&first, &tm));
	snprintf(name, sizeof name, "sacct from %s", day);
	return events ? json_pack("{s:s, s:s, s:f, s:f, s:o}", "format", HSPMD_TRACE_FORMAT, "name", name, "began_s", r->first, "end_s",
	                          r->last - r->first, "events", events)
	              : NULL;
}

json_t *policy_record_read(FILE *in, const struct policy_record_options *o, struct policy_record_counts *counts, struct hspmd_error *err)
{
	struct recording r = { .o = o, .counts = counts, .nodes = json_object(), .first = NAN, .last = NAN };
	char *line = NULL;
	size_t size = 0;
	json_t *trace = NULL;
	*counts = (struct policy_record_counts){ 0 };
	int rc = !r.nodes ? hspmd_fail_memory(err, "recording") : o->nodes ? add_nodes(&r, o->nodes, err) : 0;
	if (!rc && getline(&line, &size, in) < 0)
		rc = hspmd_fail(err, "standard input is empty: expected the output of sacct --parsable2");
	if (!rc)
		rc = sacct_header(&r.sacct, line, err);
	for (int number = 2; !rc && getline(&line, &size, in) >= 0; number++)
		rc = read_line(&r, number, line, err);
	counts->jobs = (int)r.count;
	if (!rc && !r.count)
		rc = hspmd_fail(err, "no job that ran%s%s", *counts->first_bad ? "; " : "", counts->first_bad);
	if (!rc)
		trace = trace_json(&r, err);
	for (size_t i = 0; i < r.count; i++)
		job_clear(&r.jobs[i]);
	free(r.jobs);
	free(line);
	json_decref(r.nodes);
	return trace;
}
