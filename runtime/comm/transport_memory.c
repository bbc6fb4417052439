/* SPDX-License-Identifier: Apache-2.0 */
/* Between threads of one process: a send finishes when the receiver has copied directly from the sender's buffer. Strict on purpose
 * (nothing is buffered), so that a program that works only because other transports buffer small messages fails here. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/condition.h"
#include "runtime/comm/transport.h"

struct message {
	struct hspmd_request request;
	TAILQ_ENTRY(message) own;  /* in its owner's list `sent` or `posted` */
	TAILQ_ENTRY(message) laid; /* sends: in the receiver's mailbox until received */
	struct mailbox *at;        /* that mailbox; NULL once received */
	int sender;
	void *data;
	bool done;
	size_t offered; /* receives: size of the message that arrived */
};
TAILQ_HEAD(message_list, message);

/* Messages that other members have sent to one member. It exists until its owner and all members that connected to it have closed. */
struct mailbox {
	TAILQ_ENTRY(mailbox) registered;
	uint64_t id;
	int references;
	bool closed;
	bool news;   /* something has changed since its owner last slept */
	int waiting; /* threads that sleep on `changed`: a signal that nobody waits for is a call of the system for nothing */
	pthread_cond_t changed;
	struct message_list laid;
};

struct memory_transport {
	struct hspmd_transport base;
	struct mailbox *own, **peers;
	struct mailbox **woken;           /* by a call of progress, after it has released the lock */
	struct message_list sent, posted; /* not yet reported; in the order in which they were started */
};

struct memory_address {
	pid_t pid;
	uint64_t id;
};

/* One lock for everything: this transport is for tests, in which simplicity matters more than speed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static TAILQ_HEAD(, mailbox) registry = TAILQ_HEAD_INITIALIZER(registry);
static uint64_t last_id;

/* With the lock held. */
static void unreference(struct mailbox *box)
{
	if (--box->references)
		return;
	TAILQ_REMOVE(&registry, box, registered);
	pthread_cond_destroy(&box->changed);
	free(box);
}

/* With the lock held. Returns true if the caller must wake the owner, which it may do without the lock, in which the owner would otherwise
 * have to wait again. Who told it before, and has not been heard yet, does so. */
static bool notify(struct mailbox *box)
{
	bool sleeps = box->waiting > 0 && !box->news;
	box->news = true;
	return sleeps;
}

static void wake(struct mailbox *box)
{
	pthread_cond_broadcast(&box->changed);
}

static void free_messages(struct message_list *list)
{
	struct message *m;
	while ((m = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, m, own);
		if (m->at)
			TAILQ_REMOVE(&m->at->laid, m, laid);
		free(m);
	}
}

static void memory_close(struct hspmd_transport *base)
{
	struct memory_transport *t = (struct memory_transport *)base;
	if (!t)
		return;
	pthread_mutex_lock(&lock);
	free_messages(&t->sent);
	free_messages(&t->posted);
	if (t->own) {
		struct message *m;
		while ((m = TAILQ_FIRST(&t->own->laid))) {
			TAILQ_REMOVE(&t->own->laid, m, laid);
			m->at = NULL;
		}
		t->own->closed = true;
		unreference(t->own);
	}
	for (int r = 0; t->peers && r < base->options.size; r++) {
		if (!t->peers[r])
			continue;
		if (notify(t->peers[r]))
			wake(t->peers[r]); /* it may not exist any longer when the lock is released */
		unreference(t->peers[r]);
	}
	pthread_mutex_unlock(&lock);
	free(t->peers);
	free(t->woken);
	hspmd_transport_fini(base);
	free(t);
}

static int memory_open(const struct hspmd_transport_options *o, struct hspmd_transport **out, struct hspmd_error *err)
{
	struct memory_transport *t = hspmd_calloc(1, sizeof *t);
	if (!t)
		return hspmd_fail_memory(err, "opening a transport");
	TAILQ_INIT(&t->sent);
	TAILQ_INIT(&t->posted);
	if (hspmd_transport_init(&t->base, &hspmd_transport_memory, o, err)) {
		free(t);
		return -1;
	}
	struct mailbox *box = hspmd_calloc(1, sizeof *box);
	t->peers = hspmd_calloc((size_t)o->size, sizeof *t->peers);
	t->woken = hspmd_calloc((size_t)o->size, sizeof *t->woken);
	if (!box || !t->peers || !t->woken) {
		free(box);
		memory_close(&t->base);
		return hspmd_fail_memory(err, "opening a transport");
	}
	hspmd_condition_init(&box->changed);
	TAILQ_INIT(&box->laid);
	box->references = 1;
	pthread_mutex_lock(&lock);
	box->id = ++last_id;
	TAILQ_INSERT_TAIL(&registry, box, registered);
	pthread_mutex_unlock(&lock);
	t->own = box;
	*out = &t->base;
	return 0;
}

static int memory_address(struct hspmd_transport *base, struct hspmd_address *own, struct hspmd_error *err)
{
	struct memory_transport *t = (struct memory_transport *)base;
	struct memory_address *a = hspmd_calloc(1, sizeof *a);
	if (!a)
		return hspmd_fail_memory(err, "making an address");
	a->pid = getpid();
	a->id = t->own->id;
	own->data = a;
	own->size = sizeof *a;
	return 0;
}

static int memory_connect(struct hspmd_transport *base, const struct hspmd_address *addresses, struct hspmd_error *err)
{
	struct memory_transport *t = (struct memory_transport *)base;
	int rv = 0;
	pthread_mutex_lock(&lock);
	for (int r = 0; r < base->options.size && !rv; r++) {
		struct memory_address a = { 0 };
		struct mailbox *box = NULL;
		if (!addresses[r].size || t->peers[r])
			continue;
		if (addresses[r].size == sizeof a)
			memcpy(&a, addresses[r].data, sizeof a);
		TAILQ_FOREACH(box, &registry, registered)
		if (box->id == a.id && a.pid == getpid())
			break;
		char peer[80];
		if (!box) {
			rv = hspmd_fail(err, "%s is not a thread of this process", hspmd_transport_peer(base, r, peer, sizeof peer));
			break;
		}
		box->references++;
		t->peers[r] = box;
	}
	pthread_mutex_unlock(&lock);
	return rv;
}

static struct message *start(struct memory_transport *t, int peer, bool sending, uint64_t tag, void *data, size_t bytes,
                             struct hspmd_error *err)
{
	if (hspmd_transport_check(&t->base, peer, tag, err))
		return NULL;
	if (!t->peers[peer]) {
		hspmd_transport_fail_unknown(&t->base, peer, err);
		return NULL;
	}
	struct message *m = hspmd_calloc(1, sizeof *m);
	if (!m) {
		hspmd_fail_memory(err, "starting a message");
		return NULL;
	}
	m->request = (struct hspmd_request){ .peer = peer, .sending = sending, .bytes = bytes, .tag = tag };
	m->data = data;
	m->sender = sending ? t->base.options.rank : peer;
	return m;
}

static int memory_send(struct hspmd_transport *base, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                       struct hspmd_error *err)
{
	struct memory_transport *t = (struct memory_transport *)base;
	struct message *m = start(t, to, true, tag, (void *)(uintptr_t)data, bytes, err);
	if (!m)
		return -1;
	bool sleeps = false;
	pthread_mutex_lock(&lock);
	TAILQ_INSERT_TAIL(&t->sent, m, own);
	if (!t->peers[to]->closed) {
		m->at = t->peers[to];
		TAILQ_INSERT_TAIL(&m->at->laid, m, laid);
		sleeps = notify(m->at);
	}
	pthread_mutex_unlock(&lock);
	if (sleeps)
		wake(t->peers[to]);
	*r = &m->request;
	return 0;
}

static int memory_receive(struct hspmd_transport *base, int from, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r,
                          struct hspmd_error *err)
{
	struct memory_transport *t = (struct memory_transport *)base;
	struct message *m = start(t, from, false, tag, data, bytes, err);
	if (!m)
		return -1;
	TAILQ_INSERT_TAIL(&t->posted, m, own);
	*r = &m->request;
	return 0;
}

static void memory_progress(struct hspmd_transport *base)
{
	struct memory_transport *t = (struct memory_transport *)base;
	struct message *m, *s;
	int woken = 0; /* each peer once: after that it has news */
	pthread_mutex_lock(&lock);
	TAILQ_FOREACH(m, &t->posted, own)
	{
		if (m->done)
			continue;
		TAILQ_FOREACH(s, &t->own->laid, laid)
		if (s->sender == m->sender && s->request.tag == m->request.tag)
			break;
		if (!s)
			continue;
		TAILQ_REMOVE(&t->own->laid, s, laid);
		s->at = NULL;
		s->done = m->done = true;
		m->offered = s->request.bytes;
		if (m->offered == m->request.bytes && m->offered)
			memcpy(m->data, s->data, m->offered);
		if (t->peers[m->sender] && notify(t->peers[m->sender]))
			t->woken[woken++] = t->peers[m->sender];
	}
	pthread_mutex_unlock(&lock);
	while (woken)
		wake(t->woken[--woken]);
}

static void memory_block(struct hspmd_transport *base, double seconds)
{
	struct memory_transport *t = (struct memory_transport *)base;
	struct timespec until = hspmd_condition_deadline(seconds);
	pthread_mutex_lock(&lock);
	if (!t->own->news) {
		t->own->waiting++;
		pthread_cond_timedwait(&t->own->changed, &lock, &until);
		t->own->waiting--;
	}
	t->own->news = false;
	pthread_mutex_unlock(&lock);
}

static void memory_wake(struct hspmd_transport *base)
{
	struct memory_transport *t = (struct memory_transport *)base;
	pthread_mutex_lock(&lock);
	bool sleeps = notify(t->own);
	pthread_mutex_unlock(&lock);
	if (sleeps)
		wake(t->own);
}

static int memory_test(struct hspmd_transport *base, struct hspmd_request *r, struct hspmd_error *err)
{
	struct memory_transport *t = (struct memory_transport *)base;
	struct message *m = (struct message *)r;
	int rv = 0;
	pthread_mutex_lock(&lock);
	if (m->done)
		rv = r->sending || m->offered == r->bytes ? 1 : hspmd_fail(err, "received %zu bytes", m->offered);
	else if (t->peers[r->peer]->closed)
		rv = hspmd_fail(err, "it has closed its connections");
	if (rv) {
		if (m->at)
			TAILQ_REMOVE(&m->at->laid, m, laid);
		TAILQ_REMOVE(r->sending ? &t->sent : &t->posted, m, own);
		free(m);
	}
	pthread_mutex_unlock(&lock);
	return rv;
}

const struct hspmd_transport_ops hspmd_transport_memory = {
	.name = "memory",
	.sleeps_at_once = true,
	.open = memory_open,
	.address = memory_address,
	.connect = memory_connect,
	.send = memory_send,
	.receive = memory_receive,
	.progress = memory_progress,
	.block = memory_block,
	.wake = memory_wake,
	.test = memory_test,
	.close = memory_close,
};
