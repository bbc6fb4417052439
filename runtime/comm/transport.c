/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/comm/transport.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"

/* How long a wait spins before it sleeps: about the cost of sleeping and waking, so that spinning at most doubles the cost of a wait. */
#define SPIN_S 30e-6
/* The longest sleep: setting the abort flag does not wake a sleeping thread. */
#define NAP_S 5e-3

int hspmd_transport_init(struct hspmd_transport *t, const struct hspmd_transport_ops *ops, const struct hspmd_transport_options *o,
                         struct hspmd_error *err)
{
	if (o->size < 1 || o->size > HSPMD_TRANSPORT_MAX_RANKS || o->rank < 0 || o->rank >= o->size)
		return hspmd_fail(err, "transport: rank %d of %d is out of range", o->rank, o->size);
	if (!(o->timeout_s > 0) || !isfinite(o->timeout_s))
		return hspmd_fail(err, "transport: invalid time limit of %g s", o->timeout_s);
	t->ops = ops;
	t->options = *o;
	t->options.names = NULL;
	t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->wake_fd < 0)
		return hspmd_fail_errno(err, "making an event descriptor");
	if (o->names) {
		t->options.names = hspmd_calloc((size_t)o->size, sizeof *o->names);
		if (!t->options.names) {
			close(t->wake_fd);
			return hspmd_fail_memory(err, "opening a transport");
		}
		memcpy(t->options.names, o->names, (size_t)o->size * sizeof *o->names);
	}
	return 0;
}

void hspmd_transport_free_on_close(struct hspmd_transport *t, struct hspmd_deferred_free *deferred)
{
	deferred->next = t->deferred;
	t->deferred = deferred;
}

void hspmd_transport_fini(struct hspmd_transport *t)
{
	while (t->deferred) {
		struct hspmd_deferred_free *next = t->deferred->next;
		free(t->deferred);
		t->deferred = next;
	}
	free(t->options.names);
	t->options.names = NULL;
	close(t->wake_fd);
}

void hspmd_transport_signal(struct hspmd_transport *t)
{
	uint64_t one = 1;
	while (write(t->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
		;
}

void hspmd_transport_clear_wake(struct hspmd_transport *t)
{
	uint64_t count;
	while (read(t->wake_fd, &count, sizeof count) < 0 && errno == EINTR)
		;
}

const char *hspmd_transport_peer(const struct hspmd_transport *t, int rank, char *buf, size_t size)
{
	if (t->options.names && rank >= 0 && rank < t->options.size)
		snprintf(buf, size, "%.63s", t->options.names[rank]);
	else
		snprintf(buf, size, "rank %d", rank);
	return buf;
}

int hspmd_transport_check(const struct hspmd_transport *t, int peer, uint64_t tag, struct hspmd_error *err)
{
	if (peer < 0 || peer >= t->options.size)
		return hspmd_fail(err, "transport: rank %d of %d is out of range", peer, t->options.size);
	if (tag >= HSPMD_TAG_LIMIT)
		return hspmd_fail(err, "transport: tag %#" PRIx64 " is out of range", tag);
	return 0;
}

int hspmd_transport_fail_unknown(const struct hspmd_transport *t, int rank, struct hspmd_error *err)
{
	char peer[80];
	return hspmd_fail(err, "the address of %s is not known", hspmd_transport_peer(t, rank, peer, sizeof peer));
}

bool hspmd_transport_aborted(const struct hspmd_transport *t)
{
	return t->options.abort && atomic_load_explicit(t->options.abort, memory_order_relaxed);
}

/* "4.2 MB from n2:0" */
static const char *describe(const struct hspmd_transport *t, const struct hspmd_request *r, char *buf, size_t size)
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB" };
	double amount = (double)r->bytes;
	size_t unit = 0;
	while (amount >= 1000 && unit + 1 < sizeof units / sizeof units[0]) {
		amount /= 1000;
		unit++;
	}
	char peer[80];
	snprintf(buf, size, "%.3g %s %s %s", amount, units[unit], r->sending ? "to" : "from",
	         hspmd_transport_peer(t, r->peer, peer, sizeof peer));
	return buf;
}

/* Remove requests that are done. Returns the number still in transit, or -1 and err. *first: index of the first of these. */
static int collect(struct hspmd_transport *t, struct hspmd_request **requests, int count, int *first, struct hspmd_error *err)
{
	int left = 0;
	int start = *first;
	*first = count;
	for (int i = start; i < count; i++) {
		if (!requests[i])
			continue;
		struct hspmd_request was = *requests[i];
		int done = t->ops->test(t, requests[i], err);
		if (done) {
			requests[i] = NULL;
			char what[128];
			if (done < 0)
				return hspmd_error_prefix(err, "%s", describe(t, &was, what, sizeof what));
			continue;
		}
		left++;
		if (*first == count)
			*first = i;
	}
	return left;
}

int hspmd_transport_wait(struct hspmd_transport *t, struct hspmd_request **requests, int count, struct hspmd_error *err)
{
	int first = 0, before = count + 1;
	double since = 0; /* when a request last finished */
	for (;;) {
		t->ops->progress(t);
		int left = collect(t, requests, count, &first, err);
		if (left <= 0)
			return left;
		double now = hspmd_now();
		if (left < before) {
			before = left;
			since = now;
		}
		char what[128];
		if (hspmd_transport_aborted(t))
			return hspmd_fail(err, "aborted while waiting for %s", describe(t, requests[first], what, sizeof what));
		double waited = now - since;
		if (waited > t->options.timeout_s)
			return hspmd_fail(err, "waited %.3g s for %s", t->options.timeout_s,
			                  describe(t, requests[first], what, sizeof what));
		if (waited > SPIN_S || t->ops->sleeps_at_once)
			t->ops->block(t, fmin(NAP_S, t->options.timeout_s - waited + 1e-3));
	}
}

/* Round k of Bruck's algorithm: each member has 2^k blocks (its own first, then those of the following members). It sends as many as it
 * still lacks to the member 2^k before, and receives as many from the member 2^k after. */
int hspmd_transport_all_gather(struct hspmd_transport *t, const int *ranks, int count, uint64_t tag, const void *own, size_t bytes,
                               void *all, struct hspmd_error *err)
{
	int self = -1;
	if (!ranks)
		self = t->options.rank;
	for (int i = 0; ranks && i < count; i++)
		if (ranks[i] == t->options.rank)
			self = i;
	if (self < 0 || self >= count)
		return hspmd_fail(err, "transport: rank %d is not a member of its all-gather", t->options.rank);
	struct {
		struct hspmd_deferred_free deferred;
		char blocks[];
	} * scratch;
	if (bytes > (SIZE_MAX - sizeof *scratch) / (size_t)count || !(scratch = malloc(sizeof *scratch + (size_t)count * bytes)))
		return hspmd_fail_memory(err, "gathering from all members");
	char *blocks = scratch->blocks;
	memcpy(blocks, own, bytes);
	for (int have = 1; have < count; have *= 2) {
		int wanted = have < count - have ? have : count - have;
		int to = (self - have + count) % count, from = (self + have) % count;
		struct hspmd_request *r[2] = { NULL, NULL };
		if (t->ops->receive(t, ranks ? ranks[from] : from, tag, blocks + (size_t)have * bytes, (size_t)wanted * bytes, &r[0],
		                    err) ||
		    t->ops->send(t, ranks ? ranks[to] : to, tag, blocks, (size_t)wanted * bytes, &r[1], err) ||
		    hspmd_transport_wait(t, r, 2, err)) {
			hspmd_transport_free_on_close(t, &scratch->deferred);
			return -1;
		}
	}
	for (int i = 0; i < count; i++)
		memcpy((char *)all + (size_t)((self + i) % count) * bytes, blocks + (size_t)i * bytes, bytes);
	free(scratch);
	return 0;
}

int hspmd_transport_all_reduce_f64(struct hspmd_transport *t, uint64_t tag, double *values, int count, struct hspmd_error *err)
{
	size_t bytes = (size_t)count * sizeof *values;
	double *all = hspmd_calloc((size_t)t->options.size, bytes);
	if (!all)
		return hspmd_fail_memory(err, "summing over all members");
	int rv = hspmd_transport_all_gather(t, NULL, t->options.size, tag, values, bytes, all, err);
	for (int i = 0; !rv && i < count; i++) {
		double sum = all[i];
		for (int r = 1; r < t->options.size; r++)
			sum += all[(size_t)r * (size_t)count + (size_t)i];
		values[i] = sum;
	}
	free(all);
	return rv;
}
