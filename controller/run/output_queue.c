/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/output_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/condition.h"
#include "common/contact.h"
#include "common/durable.h"
#include "common/log.h"
#include "controller/run/trace_file.h"

enum entry_kind { STEP_LINE, CHANGE_LINE, EVENT_LINE, SAMPLE_LINE, FILE_SAVED, TRACE_PART, LOG_LINE, CONTACT_REMOVED };

/* One thing to write. */
struct entry {
	struct entry *next;
	enum entry_kind kind;
	enum run_trace_part part;
	char *name;    /* FILE_SAVED: of the file; CONTACT_REMOVED: its path */
	char *text;    /* LOG_LINE; */
	json_t *value; /* ... all others: the thread's own copy; CONTACT_REMOVED: the process whose contact it is */
	size_t bytes;  /* of memory, about */
};

struct run_output_queue {
	struct run_output *output;
	size_t most_bytes;
	void (*failed)(void *context);
	void *context;
	pthread_t thread;
	pthread_mutex_t lock; /* for all that follows */
	pthread_cond_t more, less;
	struct entry *first, **last; /* the thread takes the first one out, and writes it without the lock */
	size_t bytes;
	struct run_output_waits waits;
	double answered; /* when the last write ended, or the first of those that wait came */
	bool writing, closing, abandoned, late, has_failed;
	struct hspmd_error why;      /* of has_failed */
	struct run_trace_file trace; /* the thread's */
};

static void entry_free(struct entry *e)
{
	if (!e)
		return;
	json_decref(e->value);
	free(e->name);
	free(e->text);
	free(e);
}

static void queue_free(struct run_output_queue *q)
{
	pthread_cond_destroy(&q->more);
	pthread_cond_destroy(&q->less);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

/* ---- the thread */

static int write_trace(struct run_output_queue *q, const struct entry *e, struct hspmd_error *err)
{
	const char *folder = q->output->folder;
	switch (e->part) {
	case RUN_TRACE_TEXT:
		return run_trace_file_text(&q->trace, folder, e->value, err);
	case RUN_TRACE_SPANS:
		return run_trace_file_spans(&q->trace, e->value, err);
	default:
		return run_trace_file_end(&q->trace, folder, e->value, err);
	}
}

static int write_entry(struct run_output_queue *q, const struct entry *e, struct hspmd_error *err)
{
	switch (e->kind) {
	case STEP_LINE:
	case CHANGE_LINE:
		return run_output_line(q->output, e->value, err);
	case EVENT_LINE:
		return run_output_event(q->output, e->value, err);
	case SAMPLE_LINE:
		return run_output_sample(q->output, e->value, err);
	case FILE_SAVED:
		return run_output_save(q->output, e->name, e->value, err);
	case TRACE_PART:
		return write_trace(q, e, err);
	case CONTACT_REMOVED:
		hspmd_contact_remove(e->name, json_string_value(e->value));
		return 0;
	case LOG_LINE:
		break;
	}
	hspmd_write_all(q->output->log, e->text, e->bytes); /* a failure to log cannot be logged */
	return 0;
}

static void *write_all(void *context)
{
	struct run_output_queue *q = context;
	pthread_mutex_lock(&q->lock);
	for (;;) {
		struct hspmd_error err = { "" };
		while (!q->first && !q->closing)
			pthread_cond_wait(&q->more, &q->lock);
		struct entry *e = q->first;
		if (!e)
			break;
		if (!(q->first = e->next))
			q->last = &q->first;
		q->bytes -= e->bytes;
		q->waits.entries--;
		q->writing = true;
		pthread_mutex_unlock(&q->lock);
		int status = write_entry(q, e, &err);
		bool metrics = e->kind == STEP_LINE || e->kind == CHANGE_LINE;
		if (status && !metrics)
			hspmd_warn("%s", err.text);
		pthread_mutex_lock(&q->lock);
		q->writing = false;
		q->answered = hspmd_now();
		bool first_failure = status && metrics && !q->has_failed;
		if (first_failure) {
			q->has_failed = true;
			q->why = err;
		}
		pthread_cond_broadcast(&q->less);
		if (first_failure && q->failed)
			q->failed(q->context);
		entry_free(e);
	}
	run_trace_file_close(&q->trace);
	bool abandoned = q->abandoned;
	pthread_mutex_unlock(&q->lock);
	if (abandoned)
		queue_free(q);
	return NULL;
}

/* ---- what waits */

static long *dropped_of(struct run_output_queue *q, enum entry_kind kind)
{
	switch (kind) {
	case STEP_LINE:
		return &q->waits.steps_dropped;
	case LOG_LINE:
		return &q->waits.log_dropped;
	case TRACE_PART:
		return &q->waits.trace_dropped;
	default:
		return NULL;
	}
}

/* Drops the oldest entries that may be dropped, until the rest is not too much. */
static void make_room(struct run_output_queue *q)
{
	for (struct entry **at = &q->first; *at && q->bytes > q->most_bytes;) {
		struct entry *e = *at;
		long *dropped = dropped_of(q, e->kind);
		if (!dropped) {
			at = &e->next;
			continue;
		}
		(*dropped)++;
		*at = e->next;
		if (!e->next)
			q->last = at;
		q->bytes -= e->bytes;
		q->waits.entries--;
		entry_free(e);
	}
}

/* A file that waits gets its newest contents. Returns true if one did. */
static bool replace(struct run_output_queue *q, struct entry *e)
{
	for (struct entry *old = q->first; old && e->kind == FILE_SAVED; old = old->next) {
		if (old->kind != FILE_SAVED || strcmp(old->name, e->name) != 0)
			continue;
		json_t *value = old->value;
		q->bytes += e->bytes - old->bytes;
		old->value = e->value;
		old->bytes = e->bytes;
		e->value = value;
		return true;
	}
	return false;
}

/* Takes over the entry. */
static void put(struct run_output_queue *q, struct entry *e, enum entry_kind kind)
{
	pthread_mutex_lock(&q->lock);
	if (!e) {
		long *dropped = dropped_of(q, kind);
		*(dropped ? dropped : &q->waits.log_dropped) += 1;
	} else if (replace(q, e)) {
		entry_free(e);
	} else {
		if (!q->first && !q->writing)
			q->answered = hspmd_now();
		*q->last = e;
		q->last = &e->next;
		q->bytes += e->bytes;
		q->waits.entries++;
		make_room(q);
		pthread_cond_signal(&q->more);
	}
	pthread_mutex_unlock(&q->lock);
}

static struct entry *entry_create(enum entry_kind kind, const char *name, const json_t *value)
{
	struct entry *e = calloc(1, sizeof *e);
	if (!e)
		return NULL;
	e->kind = kind;
	e->name = name ? strdup(name) : NULL;
	e->value = value ? json_deep_copy(value) : NULL; /* threads must not share reference counts */
	e->bytes = sizeof *e + (value ? json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) : 0);
	if ((!name || e->name) && (!value || e->value))
		return e;
	entry_free(e);
	return NULL;
}

void run_output_queue_line(struct run_output_queue *q, const json_t *line)
{
	enum entry_kind kind = json_object_get(line, "event") ? CHANGE_LINE : STEP_LINE;
	put(q, entry_create(kind, NULL, line), kind);
}

void run_output_queue_event(struct run_output_queue *q, const json_t *event)
{
	put(q, entry_create(EVENT_LINE, NULL, event), EVENT_LINE);
}

void run_output_queue_sample(struct run_output_queue *q, const json_t *sample)
{
	put(q, entry_create(SAMPLE_LINE, NULL, sample), SAMPLE_LINE);
}

void run_output_queue_save(struct run_output_queue *q, const char *name, const json_t *value)
{
	put(q, entry_create(FILE_SAVED, name, value), FILE_SAVED);
}

void run_output_queue_trace(struct run_output_queue *q, enum run_trace_part part, const json_t *value)
{
	struct entry *e = entry_create(TRACE_PART, NULL, value);
	if (e)
		e->part = part;
	put(q, e, TRACE_PART);
}

void run_output_queue_log(struct run_output_queue *q, const char *line, size_t size)
{
	struct entry *e = entry_create(LOG_LINE, NULL, NULL);
	if (e && !(e->text = malloc(size))) {
		entry_free(e);
		e = NULL;
	}
	if (e) {
		memcpy(e->text, line, size);
		e->bytes = size;
	}
	put(q, e, LOG_LINE);
}

void run_output_queue_remove_contact(struct run_output_queue *q, const char *path, const char *process)
{
	json_t *value = json_string(process);
	put(q, value ? entry_create(CONTACT_REMOVED, path, value) : NULL, CONTACT_REMOVED);
	json_decref(value);
}

struct run_output_waits run_output_queue_waits(struct run_output_queue *q)
{
	pthread_mutex_lock(&q->lock);
	struct run_output_waits w = q->waits;
	w.seconds = q->first || q->writing ? hspmd_now() - q->answered : 0;
	pthread_mutex_unlock(&q->lock);
	return w;
}

bool run_output_queue_has_failed(struct run_output_queue *q, struct hspmd_error *why)
{
	pthread_mutex_lock(&q->lock);
	bool failed = q->has_failed;
	if (failed)
		*why = q->why;
	pthread_mutex_unlock(&q->lock);
	return failed;
}

/* With the lock. Returns true if nothing waits any more. */
static bool wait_for_all(struct run_output_queue *q, double timeout_s)
{
	struct timespec until = hspmd_condition_deadline(timeout_s);
	while (q->first || q->writing)
		if (pthread_cond_timedwait(&q->less, &q->lock, &until) == ETIMEDOUT)
			break;
	return !q->first && !q->writing;
}

/* ---- its life */

struct run_output_queue *run_output_queue_open(struct run_output *output, size_t most_bytes, void (*failed)(void *context), void *context,
                                               struct hspmd_error *err)
{
	struct run_output_queue *q = calloc(1, sizeof *q);
	if (!q) {
		hspmd_fail_memory(err, "writing the output folder");
		return NULL;
	}
	*q = (struct run_output_queue){ .output = output, .most_bytes = most_bytes, .failed = failed, .context = context, .trace.fd = -1 };
	q->last = &q->first;
	pthread_mutex_init(&q->lock, NULL);
	hspmd_condition_init(&q->more);
	hspmd_condition_init(&q->less);
	int status = pthread_create(&q->thread, NULL, write_all, q);
	if (!status)
		return q;
	hspmd_fail(err, "writing the output folder: %s", strerror(status));
	queue_free(q);
	return NULL;
}

void run_output_queue_settle(struct run_output_queue *q, double timeout_s)
{
	pthread_mutex_lock(&q->lock);
	q->late = !wait_for_all(q, q->late ? 0 : timeout_s);
	pthread_mutex_unlock(&q->lock);
}

int run_output_queue_close(struct run_output_queue *q, double timeout_s, struct hspmd_error *err)
{
	if (!q)
		return 0;
	pthread_mutex_lock(&q->lock);
	q->closing = true;
	pthread_cond_signal(&q->more);
	bool done = wait_for_all(q, timeout_s);
	long left = q->waits.entries + q->writing;
	q->failed = NULL; /* nobody listens any more */
	q->abandoned = !done;
	pthread_t thread = q->thread;
	if (!done) {
		hspmd_fail(err, "%s has not answered for %.0f s: %ld lines and files that wait for it are lost", q->output->folder,
		           timeout_s, left);
		pthread_detach(thread);
	}
	pthread_mutex_unlock(&q->lock);
	if (!done)
		return -1;
	pthread_join(thread, NULL);
	queue_free(q);
	return 0;
}
