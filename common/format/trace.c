/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/trace.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hostlist.h"
#include "common/json.h"

const char *const hspmd_trace_kind_names[] = { "add", "remove", "submit", NULL };

#define MAX_SECONDS (10 * 366.0 * 86400)
#define MAX_RATE 1e18

/* Maps names to numbers while reading: open addressing, the table size is a power of two, -1 is empty. */
struct names {
	char **names;
	size_t room;
	int count;
	int *places;
	size_t place_count;
};

static uint64_t hash(const char *text)
{
	uint64_t h = UINT64_C(14695981039346656037);
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * UINT64_C(1099511628211);
	return h;
}

static size_t place_of(const struct names *n, const char *name)
{
	size_t at = hash(name) & (n->place_count - 1);
	while (n->places[at] >= 0 && strcmp(n->names[n->places[at]], name) != 0)
		at = (at + 1) & (n->place_count - 1);
	return at;
}

static int names_widen(struct names *n)
{
	size_t wanted = n->place_count ? n->place_count * 2 : 64;
	int *places = malloc(wanted * sizeof *places);
	if (!places)
		return -1;
	memset(places, 0xff, wanted * sizeof *places);
	free(n->places);
	n->places = places;
	n->place_count = wanted;
	for (int i = 0; i < n->count; i++)
		n->places[place_of(n, n->names[i])] = i;
	return 0;
}

/* The number of a name, a new one if it is new; -1: out of memory. */
static int names_get(struct names *n, const char *name)
{
	if ((size_t)n->count * 2 >= n->place_count && names_widen(n) < 0)
		return -1;
	size_t at = place_of(n, name);
	if (n->places[at] >= 0)
		return n->places[at];
	if (hspmd_array_grow(&n->names, &n->room, (size_t)n->count, sizeof *n->names) < 0 || !(n->names[n->count] = strdup(name)))
		return -1;
	n->places[at] = n->count;
	return n->count++;
}

/* ---- reading */

struct reading {
	struct hspmd_trace *t;
	struct names nodes, partitions;
	unsigned char *there; /* per node */
	size_t there_room, event_room, job_room;
	double last_s;
};

static void copy_string(struct hspmd_json *obj, const char *key, char **out)
{
	const char *text = hspmd_json_string_or(obj, key, NULL);
	if (text && !(*out = strdup(text)))
		hspmd_json_fail_memory(obj);
}

static int partition_number(struct reading *r, struct hspmd_json *at, const char *name)
{
	int n = names_get(&r->partitions, name);
	if (n < 0)
		hspmd_json_fail_memory(at);
	return n;
}

static void read_curve(struct hspmd_json *obj, struct hspmd_trace_job *j)
{
	struct hspmd_json array = hspmd_json_array(obj, "tokens_per_s", 1, 65536);
	size_t n = hspmd_json_length(&array);
	if (!n)
		return;
	j->tokens_per_s = hspmd_calloc(n, sizeof *j->tokens_per_s);
	if (!j->tokens_per_s) {
		hspmd_json_fail_memory(&array);
		return;
	}
	j->curve_count = (int)n;
	for (size_t i = 0; i < n && !hspmd_json_failed(obj); i++) {
		struct hspmd_json at = hspmd_json_at(&array, i);
		j->tokens_per_s[i] = hspmd_json_number_value(&at, 0, MAX_RATE);
	}
}

static void read_elastic(struct hspmd_json *obj, struct hspmd_trace_job *j)
{
	j->min_nodes = (int)hspmd_json_int_or(obj, "min_nodes", 1, HSPMD_TRACE_MAX_NODES, 1);
	j->max_nodes = (int)hspmd_json_int(obj, "max_nodes", j->min_nodes > 0 ? j->min_nodes : 1, HSPMD_TRACE_MAX_NODES);
	j->nodes = (int)hspmd_json_int_or(obj, "nodes", j->min_nodes, HSPMD_TRACE_MAX_NODES, j->min_nodes);
	j->run_s = hspmd_json_number_or(obj, "run_s", 0, MAX_SECONDS, 0);
	j->tokens = hspmd_json_number_or(obj, "tokens", 0, MAX_RATE * MAX_SECONDS, 0);
	j->pause_s = hspmd_json_number_or(obj, "pause_s", 0, MAX_SECONDS, 2);
	read_curve(obj, j);
	if (!hspmd_json_failed(obj) && j->nodes > j->max_nodes)
		hspmd_json_fail(obj, "nodes (%d) is more than max_nodes (%d)", j->nodes, j->max_nodes);
}

static int read_job(struct reading *r, struct hspmd_json *obj)
{
	struct hspmd_trace *t = r->t;
	if (hspmd_array_grow(&t->jobs, &r->job_room, (size_t)t->job_count, sizeof *t->jobs) < 0)
		return hspmd_json_fail_memory(obj);
	struct hspmd_trace_job *j = &t->jobs[t->job_count++];
	j->id = (uint32_t)hspmd_json_int(obj, "id", 1, UINT32_MAX);
	j->elastic = hspmd_json_bool_or(obj, "elastic", false);
	j->priority = hspmd_json_number_or(obj, "priority", 0, 4294967295.0, 0);
	copy_string(obj, "partition", &j->partition);
	copy_string(obj, "user", &j->user);
	copy_string(obj, "account", &j->account);
	copy_string(obj, "qos", &j->qos);
	copy_string(obj, "policy", &j->policy);
	if (!j->partition && !(j->partition = strdup("default")))
		return hspmd_json_fail_memory(obj);
	partition_number(r, obj, j->partition);
	if (j->elastic) {
		read_elastic(obj, j);
	} else {
		j->nodes = (int)hspmd_json_int(obj, "nodes", 1, HSPMD_TRACE_MAX_NODES);
		j->run_s = hspmd_json_number(obj, "run_s", 0, MAX_SECONDS);
	}
	return hspmd_json_check_keys(obj);
}

static int read_node(struct reading *r, struct hspmd_json *at, struct hspmd_trace_event *e, size_t *room, const char *name)
{
	int n = names_get(&r->nodes, name);
	if (n < 0 || n >= HSPMD_TRACE_MAX_NODES || hspmd_array_grow(&e->nodes, room, (size_t)e->node_count, sizeof *e->nodes) < 0)
		return hspmd_json_fail(at, "out of memory, or more than %d nodes", HSPMD_TRACE_MAX_NODES);
	while ((size_t)n >= r->there_room)
		if (hspmd_array_grow(&r->there, &r->there_room, r->there_room, 1) < 0)
			return hspmd_json_fail_memory(at);
	bool adds = e->kind == HSPMD_TRACE_ADD;
	if (r->there[n] == adds)
		return hspmd_json_fail(at, adds ? "node %s is there already" : "node %s is not there", name);
	r->there[n] = adds;
	e->nodes[e->node_count++] = n;
	return 0;
}

static int read_nodes(struct reading *r, struct hspmd_json *obj, struct hspmd_trace_event *e)
{
	struct hspmd_json array = hspmd_json_array(obj, "nodes", 1, HSPMD_TRACE_MAX_NODES);
	size_t room = 0;
	for (size_t i = 0; i < hspmd_json_length(&array) && !hspmd_json_failed(obj); i++) {
		struct hspmd_json at = hspmd_json_at(&array, i);
		const char *text = hspmd_json_string_value(&at);
		struct hspmd_error err = { "" };
		char **names;
		int n = text ? hspmd_hostlist_expand(text, HSPMD_TRACE_MAX_NODES, &names, &err) : 0;
		if (n < 0)
			return hspmd_json_fail(&at, "%s", err.text);
		int rc = 0;
		for (int k = 0; k < n && rc == 0; k++)
			rc = read_node(r, &at, e, &room, names[k]);
		if (text)
			hspmd_hostlist_free(names, n);
	}
	return hspmd_json_failed(obj) ? -1 : 0;
}

static int read_event(struct reading *r, struct hspmd_json *obj)
{
	struct hspmd_trace *t = r->t;
	if (!hspmd_json_expect_object(obj))
		return -1;
	if (hspmd_array_grow(&t->events, &r->event_room, (size_t)t->event_count, sizeof *t->events) < 0)
		return hspmd_json_fail_memory(obj);
	struct hspmd_trace_event *e = &t->events[t->event_count++];
	*e = (struct hspmd_trace_event){ .job = -1, .partition = -1, .devices = 1 };
	e->time_s = hspmd_json_number(obj, "time_s", r->last_s, t->end_s);
	r->last_s = e->time_s;
	e->kind = (enum hspmd_trace_kind)hspmd_json_enum(obj, "event", hspmd_trace_kind_names);
	if (hspmd_json_failed(obj))
		return -1;
	if (e->kind == HSPMD_TRACE_SUBMIT) {
		struct hspmd_json job = hspmd_json_object(obj, "job");
		e->job = t->job_count;
		if (hspmd_json_failed(obj) || read_job(r, &job) < 0)
			return -1;
		return hspmd_json_check_keys(obj);
	}
	if (e->kind == HSPMD_TRACE_ADD) {
		const char *partition = hspmd_json_string_or(obj, "partition", NULL);
		e->partition = partition ? partition_number(r, obj, partition) : -1;
		e->devices = (int)hspmd_json_int_or(obj, "devices", 0, 4096, 1);
		e->price_per_hour = hspmd_json_number_or(obj, "price_per_hour", 0, 1e9, 0);
		copy_string(obj, "device_type", &e->device_type);
	}
	return read_nodes(r, obj, e) < 0 ? -1 : hspmd_json_check_keys(obj);
}

static int by_id(const void *a, const void *b)
{
	const struct hspmd_trace_job *x = *(struct hspmd_trace_job *const *)a, *y = *(struct hspmd_trace_job *const *)b;
	return x->id < y->id ? -1 : x->id > y->id;
}

static int check_ids(struct hspmd_json *root, const struct hspmd_trace *t)
{
	const struct hspmd_trace_job **sorted = hspmd_calloc((size_t)t->job_count, sizeof(void *));
	uint32_t twice = 0;
	if (!sorted)
		return hspmd_json_fail_memory(root);
	for (int i = 0; i < t->job_count; i++)
		sorted[i] = &t->jobs[i];
	qsort(sorted, (size_t)t->job_count, sizeof *sorted, by_id);
	for (int i = 1; i < t->job_count; i++)
		if (sorted[i]->id == sorted[i - 1]->id)
			twice = sorted[i]->id;
	free(sorted);
	return twice ? hspmd_json_fail(root, "two jobs have id %u", twice) : 0;
}

static int read_document(struct reading *r, struct hspmd_json_doc *doc)
{
	struct hspmd_json root = hspmd_json_root(doc);
	struct hspmd_trace *t = r->t;
	if (hspmd_json_format(&root, HSPMD_TRACE_FORMAT) < 0)
		return -1;
	copy_string(&root, "name", &t->name);
	t->end_s = hspmd_json_number(&root, "end_s", 0, MAX_SECONDS);
	t->began_s = hspmd_json_number_or(&root, "began_s", 0, 1e11, 0);
	struct hspmd_json events = hspmd_json_array(&root, "events", 0, HSPMD_TRACE_MAX_EVENTS);
	size_t n = hspmd_json_length(&events);
	for (size_t i = 0; i < n && !hspmd_json_failed(&root); i++) {
		struct hspmd_json at = hspmd_json_at(&events, i);
		read_event(r, &at);
	}
	hspmd_json_check_keys(&root);
	return hspmd_json_failed(&root) ? -1 : check_ids(&root, t);
}

static struct hspmd_trace *read_open(struct hspmd_json_doc *doc, struct hspmd_error *err)
{
	struct reading r = { .t = hspmd_calloc(1, sizeof *r.t) };
	int rc = r.t ? read_document(&r, doc) : hspmd_fail_memory(err, "reading a trace");
	hspmd_json_close(doc);
	free(r.there);
	free(r.nodes.places);
	free(r.partitions.places);
	if (r.t) {
		r.t->nodes = r.nodes.names;
		r.t->node_count = r.nodes.count;
		r.t->partitions = r.partitions.names;
		r.t->partition_count = r.partitions.count;
	}
	if (rc == 0)
		return r.t;
	hspmd_trace_destroy(r.t);
	return NULL;
}

struct hspmd_trace *hspmd_trace_read(const char *path, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	return hspmd_json_open(&doc, path, err) < 0 ? NULL : read_open(&doc, err);
}

struct hspmd_trace *hspmd_trace_from_json(json_t *value, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	return hspmd_json_wrap(&doc, name, value, err) < 0 ? NULL : read_open(&doc, err);
}

void hspmd_trace_destroy(struct hspmd_trace *t)
{
	if (!t)
		return;
	for (int i = 0; i < t->node_count; i++)
		free(t->nodes[i]);
	for (int i = 0; i < t->partition_count; i++)
		free(t->partitions[i]);
	for (int i = 0; i < t->job_count; i++) {
		struct hspmd_trace_job *j = &t->jobs[i];
		free(j->partition);
		free(j->user);
		free(j->account);
		free(j->qos);
		free(j->policy);
		free(j->tokens_per_s);
	}
	for (int i = 0; i < t->event_count; i++) {
		free(t->events[i].nodes);
		free(t->events[i].device_type);
	}
	free(t->name);
	free(t->nodes);
	free(t->partitions);
	free(t->jobs);
	free(t->events);
	free(t);
}
