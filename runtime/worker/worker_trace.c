/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's part of a trace (`trace` in common/wire.h): it records the steps that the controller has named, and meanwhile what changes
 * of the plan take. What it has recorded is sent after the last step, or between two when there is no more room. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "runtime/worker/inbox.h"
#include "runtime/worker/worker_internal.h"

#define SPANS_LEAST 32768 /* that are kept until they are sent: 1 MiB */
#define SPANS_MOST ((size_t)1 << 20)
#define CHANGES_MOST 256 /* parts of changes that are kept until they are sent */

struct change_part {
	const char *name;
	int generation;
	double began, ended;
	struct hspmd_trace_place place;
};

struct trace_order {
	int64_t id, first, end; /* steps [first, end) */
	int64_t generation;     /* the first one in the trace */
	double origin;          /* of times, by this process's clock */
};

struct worker_trace {
	pthread_mutex_t lock; /* protects the order and the changes, which several threads use */
	struct trace_order order;
	struct change_part changes[CHANGES_MOST];
	int change_count;
	/* used by the training thread only */
	struct hspmd_timeline *timeline; /* NULL: nothing has been recorded yet */
	int64_t recorded;                /* steps */
	int named;                       /* generation whose lanes have been named; 0: none */
	bool active;                     /* the executor has the timeline */
};

int worker_trace_create(struct worker *w, struct hspmd_error *err)
{
	w->trace = calloc(1, sizeof *w->trace);
	if (!w->trace)
		return hspmd_fail_memory(err, "starting the worker");
	pthread_mutex_init(&w->trace->lock, NULL);
	return 0;
}

void worker_trace_destroy(struct worker *w)
{
	if (!w->trace)
		return;
	hspmd_timeline_destroy(w->trace->timeline);
	pthread_mutex_destroy(&w->trace->lock);
	free(w->trace);
	w->trace = NULL;
}

void worker_trace_order(struct worker *w, json_t *m)
{
	struct worker_trace *t = w->trace;
	json_int_t id, first, end, generation;
	double origin;
	if (json_unpack(m, "{sI,sI,sI,sI,sF}", "trace", &id, "first", &first, "end", &end, "generation", &generation, "origin", &origin))
		return;
	pthread_mutex_lock(&t->lock);
	t->order = (struct trace_order){ id, first, end, generation, origin };
	t->change_count = 0;
	pthread_mutex_unlock(&t->lock);
	atomic_store(&w->traced, 1);
}

static struct trace_order order_of(struct worker_trace *t)
{
	pthread_mutex_lock(&t->lock);
	struct trace_order o = t->order;
	pthread_mutex_unlock(&t->lock);
	return o;
}

static struct hspmd_trace_place place_in(const struct hspmd_generation *g)
{
	struct hspmd_error not_there;
	int device = hspmd_cluster_find_device(g->cluster, g->setup->address, &not_there);
	return hspmd_trace_place_find(g->plan, g->cluster, device, g->setup->address, g->rank);
}

/* Processes of generations before the trace began are those of the first. */
static struct hspmd_trace_origin origin_of(const struct trace_order *o, int generation, const struct hspmd_trace_place *place)
{
	int process = generation > o->generation ? (int)(generation - o->generation) * HSPMD_TRACE_PROCESSES : 0;
	return (struct hspmd_trace_origin){ place, process, o->origin };
}

void worker_trace_change(struct worker *w, const struct hspmd_generation *g, const char *name, double began)
{
	struct worker_trace *t = w->trace;
	double ended = hspmd_now();
	if (!atomic_load_explicit(&w->traced, memory_order_relaxed))
		return;
	struct hspmd_trace_place place = place_in(g);
	pthread_mutex_lock(&t->lock);
	if (t->change_count < CHANGES_MOST)
		t->changes[t->change_count++] = (struct change_part){ name, g->number, began, ended, place };
	pthread_mutex_unlock(&t->lock);
}

/* ---- sending */

/* Events as text, which is written like a file. */
struct part {
	char *text;
	size_t size;
	FILE *f;
};

static int part_open(struct part *p)
{
	*p = (struct part){ 0 };
	p->f = open_memstream(&p->text, &p->size);
	return p->f ? 0 : -1;
}

/* Send a part of the trace: events as text, and spans (NULL: none; freed). -1: the controller cannot be told. */
static int part_send(struct worker *w, struct part *p, json_t *spans, bool last)
{
	struct worker_trace *t = w->trace;
	json_t *message = NULL;
	if (!fclose(p->f))
		message = json_pack("{ss,sI,ss%,sb,sI,sI}", "type", "trace_part", "trace", (json_int_t)order_of(t).id, "text", p->text,
		                    p->size, "last", last, "steps", (json_int_t)t->recorded, "dropped",
		                    (json_int_t)(t->timeline ? hspmd_timeline_dropped(t->timeline) : 0));
	free(p->text);
	if (message && spans && json_object_update(message, spans)) {
		json_decref(message);
		message = NULL;
	}
	json_decref(spans);
	return hspmd_inbox_send(w->inbox, message);
}

static void write_changes(struct worker_trace *t, FILE *f)
{
	pthread_mutex_lock(&t->lock);
	for (int i = 0; i < t->change_count; i++) {
		const struct change_part *c = &t->changes[i];
		struct hspmd_trace_origin o = origin_of(&t->order, c->generation, &c->place);
		char more[64];
		bool named = false;
		for (int k = 0; k < i && !named; k++)
			named = t->changes[k].generation == c->generation;
		if (!named)
			hspmd_trace_write_names(&o, f);
		snprintf(more, sizeof more, ",\"args\":{\"generation\":%d}", c->generation);
		hspmd_trace_write_span(&o, HSPMD_LANE_CHANGES, c->name, "change", c->began, c->ended, more, f);
	}
	t->change_count = 0;
	pthread_mutex_unlock(&t->lock);
}

static int send_spans(struct worker *w, const struct hspmd_generation *g)
{
	struct worker_trace *t = w->trace;
	struct hspmd_trace_place place = place_in(g);
	struct trace_order order = order_of(t);
	struct hspmd_trace_origin o = origin_of(&order, g->number, &place);
	size_t count = hspmd_timeline_count(t->timeline);
	for (size_t at = 0; at < count;) {
		struct part p;
		json_t *spans = hspmd_timeline_part(t->timeline, &o, &at);
		if (!spans || part_open(&p)) {
			json_decref(spans);
			return 0; /* memory is short: the trace is the least of it */
		}
		if (t->named != g->number)
			hspmd_trace_write_names(&o, p.f);
		t->named = g->number;
		if (part_send(w, &p, spans, false))
			return -1;
	}
	hspmd_timeline_clear(t->timeline);
	return 0;
}

int worker_trace_flush(struct worker *w, const struct hspmd_generation *g)
{
	struct worker_trace *t = w->trace;
	return t->timeline && g && hspmd_timeline_count(t->timeline) ? send_spans(w, g) : 0;
}

int worker_trace_end(struct worker *w)
{
	struct worker_trace *t = w->trace;
	struct part p;
	if (!atomic_load(&w->traced))
		return 0;
	atomic_store(&w->traced, 0);
	int status = 0;
	if (!part_open(&p)) {
		write_changes(t, p.f);
		status = part_send(w, &p, NULL, true);
	}
	hspmd_timeline_destroy(t->timeline);
	t->timeline = NULL;
	t->recorded = 0;
	t->named = 0;
	return status;
}

/* ---- steps */

void worker_trace_begin_step(struct worker *w)
{
	struct worker_trace *t = w->trace;
	struct hspmd_executor *ex = w->active->executor;
	if (!t->active && !atomic_load_explicit(&w->traced, memory_order_relaxed))
		return;
	struct trace_order o = order_of(t);
	bool within = atomic_load(&w->traced) && w->step >= o.first && w->step < o.end;
	if (within && !t->timeline) {
		/* Of all steps, if possible: each instruction, and a wait before it. */
		size_t spans = 2 * w->active->program->instruction_count * (size_t)(o.end - w->step + 1);
		spans = spans < SPANS_LEAST ? SPANS_LEAST : spans > SPANS_MOST ? SPANS_MOST : spans;
		if (!(t->timeline = hspmd_timeline_create(spans)))
			hspmd_warn("no memory to record a trace");
	}
	t->active = within && t->timeline;
	t->recorded += t->active;
	hspmd_executor_set_timeline(ex, t->active ? t->timeline : NULL);
}

void worker_trace_part(struct worker *w, enum hspmd_step_part part, double began, double ended)
{
	if (w->trace->active)
		hspmd_timeline_add_part(w->trace->timeline, part, began, ended);
}

void worker_trace_pause(struct worker *w, bool pause)
{
	if (w->trace->active)
		hspmd_executor_set_timeline(w->active->executor, pause ? NULL : w->trace->timeline);
}

int worker_trace_end_step(struct worker *w)
{
	struct worker_trace *t = w->trace;
	if (!t->active && !atomic_load_explicit(&w->traced, memory_order_relaxed))
		return 0;
	bool over = atomic_load(&w->traced) && (w->step >= order_of(t).end || w->step >= w->setup.job->steps);
	if (over) {
		hspmd_executor_set_timeline(w->active->executor, NULL);
		t->active = false;
		return worker_trace_flush(w, w->active) || worker_trace_end(w) ? -1 : 0;
	}
	/* Room for another step like the last one; the programs of steps that mix lengths do not stay. */
	bool full = t->active && (hspmd_timeline_is_full(t->timeline) || w->setup.job->mix_lengths);
	return full ? worker_trace_flush(w, w->active) : 0;
}

void worker_trace_disconnected(struct worker *w, const struct hspmd_generation *g)
{
	w->trace->active = false;
	if (worker_trace_flush(w, g))
		hspmd_warn("what was traced of generation %d is lost", g->number);
}
