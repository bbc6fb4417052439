/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/comm/engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"

/* The longest sleep while messages are in transit. The transport wakes the thread when it can make progress, so this only bounds the
 * cost of a lost wake-up. */
#define NAP_S 10e-3

enum kind { RUN, POST_RECEIVES, FLUSH };

struct task {
	enum kind kind;
	struct hspmd_engine_job job; /* FLUSH: only in and in_bytes */
};

/* Memory that issued steps still read or write; only the caller uses this list. */
struct span {
	uint64_t ticket;
	const char *in, *out;
	size_t in_bytes, out_bytes;
};

struct hspmd_engine {
	struct hspmd_comm *comm;
	struct hspmd_transport *transport;
	hspmd_engine_on_done *on_done;
	void *context;
	int self;
	bool threaded;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	/* protected by the lock */
	struct task *tasks; /* ring of `capacity` entries: the tickets finished + 1 .. issued, except the one that runs */
	size_t first, waiting, capacity;
	uint64_t issued, finished; /* tickets count from 1 */
	uint64_t sent;             /* no send up to this ticket is in transit any more */
	bool busy;                 /* a thread uses comm and transport */
	bool traffic;              /* messages are in transit that need progress */
	bool stop, failed;
	struct hspmd_error error;
	/* used by the caller only */
	struct span *spans;
	size_t span_count, span_capacity;
};

/* ---- for the thread that has set `busy` */

/* The job itself (0), or one that is joined with it. */
static const struct hspmd_engine_job *part_of(const struct hspmd_engine_job *j, int number)
{
	return number ? &j->joined[number - 1] : j;
}

static int run_joined(struct hspmd_engine *e, const struct hspmd_engine_job *j, struct hspmd_error *err)
{
	struct hspmd_comm_part *parts = hspmd_calloc((size_t)j->joined_count + 1, sizeof *parts);
	if (!parts)
		return hspmd_fail_memory(err, "communicating");
	for (int i = 0; i <= j->joined_count; i++) {
		const struct hspmd_engine_job *one = part_of(j, i);
		parts[i] = (struct hspmd_comm_part){ one->transfer, one->step, one->in, one->out };
	}
	int status = hspmd_comm_run_joined(e->comm, parts, j->joined_count + 1, j->dtype, j->tag, err);
	free(parts);
	return status;
}

/* The memory that is written must no longer be the source of a message in transit. */
static int flush_outputs(struct hspmd_engine *e, const struct hspmd_engine_job *j, struct hspmd_error *err)
{
	for (int i = 0; i <= j->joined_count; i++) {
		const struct hspmd_engine_job *one = part_of(j, i);
		if (one->out && hspmd_comm_flush(e->comm, one->out, one->out_bytes, err))
			return -1;
	}
	return 0;
}

static int run_step(struct hspmd_engine *e, const struct hspmd_engine_job *j, struct hspmd_error *err)
{
	double began = hspmd_now();
	if (flush_outputs(e, j, err) ||
	    (hspmd_comm_chooses_rows(j->step)
	             ? hspmd_comm_run_rows(e->comm, j->transfer, j->step, j->dtype, j->in, j->out, &j->choice, j->tag, err)
	     : j->joined_count ? run_joined(e, j, err)
	                       : hspmd_comm_run(e->comm, j->transfer, j->step, j->dtype, j->in, j->out, j->tag, err))) {
		const char *word = hspmd_comm_kind_names[j->step->kind];
		return j->micro_batch < 0 ? hspmd_error_prefix(err, "%s of %s", word, j->tensor)
		                          : hspmd_error_prefix(err, "%s of %s, micro-batch %d", word, j->tensor, j->micro_batch);
	}
	if (e->on_done)
		e->on_done(e->context, j->number, began, hspmd_now());
	return 0;
}

static int run_task(struct hspmd_engine *e, const struct task *t, struct hspmd_error *err)
{
	switch (t->kind) {
	case RUN:
		return run_step(e, &t->job, err);
	case POST_RECEIVES:
		return hspmd_comm_post_receives(e->comm, t->job.transfer, t->job.step, t->job.dtype, t->job.tag, err) < 0 ? -1 : 0;
	case FLUSH:
		break;
	}
	return hspmd_comm_flush(e->comm, t->job.in, t->job.in_bytes, err);
}

/* Called and returns with the lock held; releases it in between. task NULL: make progress on messages in transit. */
static void run_unlocked(struct hspmd_engine *e, const struct task *task)
{
	struct hspmd_error err = { "" };
	bool sending = false;
	int under_way = 0;
	e->busy = true;
	pthread_mutex_unlock(&e->lock);
	int status = task ? run_task(e, task, &err) : 0;
	if (!status)
		status = under_way = hspmd_comm_poll(e->comm, &sending, &err);
	if (!task && under_way > 0)
		e->transport->ops->block(e->transport, NAP_S);
	pthread_mutex_lock(&e->lock);
	e->busy = false;
	if (status < 0) {
		e->failed = true;
		e->error = err;
	}
	e->traffic = under_way > 0;
	if (task && !e->failed)
		e->finished++;
	if (!sending)
		e->sent = e->finished;
	pthread_cond_signal(&e->done);
}

static struct task dequeue(struct hspmd_engine *e)
{
	struct task t = e->tasks[e->first];
	e->first = (e->first + 1) % e->capacity;
	e->waiting--;
	return t;
}

static void *run_thread(void *argument)
{
	struct hspmd_engine *e = argument;
	pthread_mutex_lock(&e->lock);
	while (!e->stop) {
		if (e->busy || e->failed || !(e->waiting || e->traffic)) {
			pthread_cond_wait(&e->work, &e->lock);
		} else if (e->waiting) {
			struct task t = dequeue(e);
			run_unlocked(e, &t);
		} else {
			run_unlocked(e, NULL);
		}
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

/* ---- for the caller */

struct hspmd_engine *hspmd_engine_create(const struct hspmd_engine_options *o, struct hspmd_error *err)
{
	struct hspmd_engine *e = hspmd_calloc(1, sizeof *e);
	if (!e) {
		hspmd_fail_memory(err, "preparing communication");
		return NULL;
	}
	e->transport = o->transport;
	e->self = o->self;
	e->on_done = o->on_done;
	e->context = o->context;
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->work, NULL);
	pthread_cond_init(&e->done, NULL);
	e->comm = hspmd_comm_create(o->device, o->transport, o->rank_of, o->count, o->self, err);
	if (e->comm && !o->threaded)
		hspmd_comm_use_devcomm(e->comm, o->devcomm);
	if (e->comm && o->threaded) {
		e->threaded = !pthread_create(&e->thread, NULL, run_thread, e);
		if (!e->threaded)
			hspmd_fail(err, "cannot start a thread for communication");
	}
	if (e->comm && e->threaded == o->threaded)
		return e;
	hspmd_engine_destroy(e);
	return NULL;
}

void hspmd_engine_destroy(struct hspmd_engine *e)
{
	if (!e)
		return;
	if (e->threaded) {
		pthread_mutex_lock(&e->lock);
		e->stop = true;
		pthread_cond_signal(&e->work);
		pthread_mutex_unlock(&e->lock);
		e->transport->ops->wake(e->transport);
		pthread_join(e->thread, NULL);
	}
	hspmd_comm_destroy(e->comm);
	pthread_cond_destroy(&e->done);
	pthread_cond_destroy(&e->work);
	pthread_mutex_destroy(&e->lock);
	free(e->tasks);
	free(e->spans);
	free(e);
}

static int failed(struct hspmd_engine *e, struct hspmd_error *err)
{
	if (err)
		*err = e->error;
	return -1;
}

/* With the lock held. */
static int queue(struct hspmd_engine *e, const struct task *t, struct hspmd_error *err)
{
	if (e->failed)
		return failed(e, err);
	if (e->waiting == e->capacity) {
		size_t more = e->capacity ? 2 * e->capacity : 16;
		struct task *tasks = hspmd_calloc(more, sizeof *tasks);
		if (!tasks)
			return hspmd_fail_memory(err, "communicating");
		for (size_t i = 0; i < e->waiting; i++)
			tasks[i] = e->tasks[(e->first + i) % e->capacity];
		free(e->tasks);
		e->tasks = tasks;
		e->capacity = more;
		e->first = 0;
	}
	e->tasks[(e->first + e->waiting++) % e->capacity] = *t;
	e->issued++;
	return 0;
}

/* The thread sleeps on its condition while it waits for work, or in the transport while messages are in transit: wake it. */
static int enqueue(struct hspmd_engine *e, const struct task *t, struct hspmd_error *err)
{
	pthread_mutex_lock(&e->lock);
	int status = queue(e, t, err);
	bool wake = !status && e->threaded && e->busy;
	if (!status && e->threaded)
		pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
	if (wake)
		e->transport->ops->wake(e->transport);
	return status;
}

/* Wait until this many tasks are finished. */
static int wait_for_ticket(struct hspmd_engine *e, uint64_t ticket, struct hspmd_error *err)
{
	int status = 0;
	pthread_mutex_lock(&e->lock);
	while (!e->failed && e->finished < ticket) {
		if (e->threaded) {
			pthread_cond_wait(&e->done, &e->lock); /* this ends: every wait of a task has a deadline */
		} else {
			struct task t = dequeue(e);
			run_unlocked(e, &t);
		}
	}
	if (e->failed)
		status = failed(e, err);
	pthread_mutex_unlock(&e->lock);
	return status;
}

/* Run the task now in this thread if the queue is empty; otherwise queue it for the engine's thread, and, if `wait`, wait for it. */
static int do_now(struct hspmd_engine *e, const struct task *t, bool wait, struct hspmd_error *err)
{
	pthread_mutex_lock(&e->lock);
	bool free_now = !e->busy && !e->waiting && !e->failed;
	int status = 0;
	if (free_now) {
		e->issued++;
		run_unlocked(e, t);
		status = e->failed ? failed(e, err) : 0;
		if (e->threaded && e->traffic)
			pthread_cond_signal(&e->work);
	}
	pthread_mutex_unlock(&e->lock);
	if (free_now)
		return status;
	return enqueue(e, t, err) || (wait && wait_for_ticket(e, e->issued, err)) ? -1 : 0;
}

/* Drop spans that are no longer read or written. */
static void prune(struct hspmd_engine *e)
{
	size_t left = 0;
	pthread_mutex_lock(&e->lock);
	uint64_t finished = e->finished, sent = e->sent;
	pthread_mutex_unlock(&e->lock);
	for (size_t i = 0; i < e->span_count; i++) {
		struct span *s = &e->spans[i];
		if (s->ticket > finished || (s->in && s->ticket > sent))
			e->spans[left++] = *s;
	}
	e->span_count = left;
}

/* Note what a task reads and writes that is about to be issued with ticket e->issued + 1. */
static int note_memory(struct hspmd_engine *e, const struct hspmd_engine_job *j, struct hspmd_error *err)
{
	if (e->span_count >= 16)
		prune(e);
	for (int i = 0; i <= j->joined_count; i++) {
		const struct hspmd_engine_job *one = part_of(j, i);
		if (hspmd_array_grow(&e->spans, &e->span_capacity, e->span_count, sizeof *e->spans))
			return hspmd_fail_memory(err, "communicating");
		e->spans[e->span_count++] = (struct span){ e->issued + 1, one->in, one->out, one->in_bytes, one->out_bytes };
	}
	return 0;
}

int hspmd_engine_issue(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err)
{
	struct task t = { RUN, *job };
	if (note_memory(e, job, err))
		return -1;
	return !e->threaded && hspmd_comm_step_uses_devcomm(e->comm, job->step) ? do_now(e, &t, false, err) : enqueue(e, &t, err);
}

int hspmd_engine_run(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err)
{
	struct task t = { RUN, *job };
	return note_memory(e, job, err) || do_now(e, &t, true, err) ? -1 : 0;
}

int hspmd_engine_start(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err)
{
	struct task t = { RUN, *job };
	return note_memory(e, job, err) || do_now(e, &t, false, err) ? -1 : 0;
}

static bool receives(const struct hspmd_engine_job *j, int self)
{
	const struct hspmd_comm_step *s = j->step;
	if (s->kind == HSPMD_COMM_SEND_RECEIVE)
		return s->members[1] == self && s->members[0] != self;
	for (int i = 0; s->kind == HSPMD_COMM_BATCHED && i < s->move_count; i++)
		if (s->moves[i].to == self && s->moves[i].from != self)
			return true;
	return false;
}

int hspmd_engine_post_receives(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err)
{
	struct task t = { POST_RECEIVES, *job };
	if (job->joined_count || !receives(job, e->self))
		return 0;
	return do_now(e, &t, false, err) ? -1 : 1;
}

static bool overlaps(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
	return a && a < b + b_bytes && b < a + a_bytes;
}

int hspmd_engine_wait_range(struct hspmd_engine *e, const void *data, size_t bytes, bool writing, struct hspmd_error *err)
{
	uint64_t ticket = 0;
	bool flush = false;
	for (size_t i = 0; i < e->span_count; i++) {
		const struct span *s = &e->spans[i];
		bool sends = writing && overlaps(s->in, s->in_bytes, data, bytes);
		if (sends || overlaps(s->out, s->out_bytes, data, bytes))
			ticket = s->ticket;
		flush |= sends;
	}
	if ((ticket && wait_for_ticket(e, ticket, err)) || (!e->threaded && hspmd_comm_stream_wait(e->comm, data, bytes, err)))
		return -1;
	if (!ticket)
		return 0;
	prune(e);
	for (size_t i = 0; flush && i < e->span_count; i++)
		if (e->spans[i].ticket <= ticket && overlaps(e->spans[i].in, e->spans[i].in_bytes, data, bytes)) {
			struct task t = { FLUSH, { .in = e->spans[i].in, .in_bytes = e->spans[i].in_bytes } };
			if (do_now(e, &t, true, err))
				return -1;
			e->spans[i].in = NULL;
		}
	return 0;
}

int hspmd_engine_drain(struct hspmd_engine *e, struct hspmd_error *err)
{
	struct task all = { .kind = FLUSH };
	if (!e->span_count)
		return wait_for_ticket(e, e->issued, err) || (!e->threaded && hspmd_comm_stream_wait(e->comm, NULL, 0, err)) ? -1 : 0;
	if (do_now(e, &all, true, err) || wait_for_ticket(e, e->issued, err))
		return -1;
	e->span_count = 0;
	return 0;
}

uint64_t hspmd_engine_sent_bytes(const struct hspmd_engine *e)
{
	return e ? hspmd_comm_sent_bytes(e->comm) : 0;
}
