/* SPDX-License-Identifier: Apache-2.0 */
/* All transports alike: random traffic arrives completely and in order, sums have the same bits on all members, waits end (deadline,
 * abort flag, dead peer), close returns with any requests pending, and strangers are rejected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "runtime/comm/socket_address.h"
#include "runtime/comm/socket_connection.h"
#include "runtime/comm/transport.h"
#include "tests/unit/transport_members.h"

/* In place of UCX's own function, which aborts the process if the context has lost a message and UCX was built with assertions. Counts its
 * calls. */
void ucp_cleanup(void *context);
static atomic_int cleanups;
void ucp_cleanup(void *context)
{
	void (*real)(void *context) = (void (*)(void *))dlsym(RTLD_NEXT, "ucp_cleanup");
	atomic_fetch_add(&cleanups, 1);
	if (real)
		real(context);
}

/* Close a transport. Returns -1 unless it has cleaned its context of UCX up, which it must not do if a message is lost. */
static int close_and_count(struct hspmd_transport *t, bool lost, struct hspmd_error *err)
{
	int before = atomic_load(&cleanups), expected = !strcmp(t->ops->name, "ucx") && !lost;
	t->ops->close(t);
	int calls = atomic_load(&cleanups) - before;
	return calls == expected ? 0 : hspmd_fail(err, "UCX's context was cleaned up %d times, not %d", calls, expected);
}

/* ---- random traffic */

#define MESSAGES 24 /* per pair and direction */

static size_t size_of(int from, int to, int number)
{
	static const size_t most[] = { 1, 64, 5000, 70000, 300000, 3000000 };
	uint64_t x = mix((uint64_t)(from * 1009 + to * 31 + number + 1));
	return number % 7 ? (size_t)(mix(x) % most[x % 6]) : 0;
}

static unsigned char byte_of(int from, int to, int number, size_t i)
{
	return (unsigned char)(from * 5 + to * 11 + number * 17 + (int)(i % 251) + (int)(i / 65536));
}

static int check_message(const unsigned char *data, size_t bytes, int from, int to, int number, struct hspmd_error *err)
{
	for (size_t i = 0; i < bytes; i++)
		if (data[i] != byte_of(from, to, number, i))
			return hspmd_fail(err, "message %d from %d to %d differs at byte %zu of %zu", number, from, to, i, bytes);
	return 0;
}

/* Two tags, so that both the order within a tag and the independence of tags matter. Receives are posted in three groups: before, among
 * and after the sends. */
static int traffic(struct shared *s, const struct hspmd_transport_ops *ops, int rank)
{
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport *t = members_join(s, ops, rank, MEMBERS, LIMIT_S);
	if (!t)
		return -1;
	enum { ALL = MEMBERS * MESSAGES };
	static _Thread_local unsigned char *in[ALL], *out[ALL];
	struct hspmd_request *r[2 * ALL] = { NULL };
	int n = 0;
	for (int lot = 0; lot < 4; lot++) {
		for (int k = 0; k < ALL; k++) {
			int peer = (k / MESSAGES + rank) % MEMBERS, number = k % MESSAGES;
			size_t comes = size_of(peer, rank, number), goes = size_of(rank, peer, number);
			uint64_t tag = (uint64_t)(number & 1) << 40 | 7;
			if (lot == 1) {
				out[k] = malloc(goes + 1);
				for (size_t i = 0; i < goes; i++)
					out[k][i] = byte_of(rank, peer, number, i);
				if (ops->send(t, peer, tag, out[k], goes, &r[n++], err))
					return -1;
			} else if ((lot == 0 && number < MESSAGES / 2) || (lot == 2 && number >= MESSAGES / 2)) {
				in[k] = malloc(comes + 1);
				if (ops->receive(t, peer, tag, in[k], comes, &r[n++], err))
					return -1;
			}
			ops->progress(t);
		}
	}
	if (hspmd_transport_wait(t, r, n, err))
		return -1;
	for (int k = 0; k < ALL; k++) {
		int peer = (k / MESSAGES + rank) % MEMBERS, number = k % MESSAGES;
		if (check_message(in[k], size_of(peer, rank, number), peer, rank, number, err))
			return -1;
		free(in[k]);
		free(out[k]);
	}
	ops->close(t);
	return 0;
}

static void test_traffic(void **state)
{
	(void)state;
	each_transport(MEMBERS, traffic, NULL);
}

/* ---- sums and gathers */

static double addend(int rank, int i)
{
	return (i ? 1e16 : 1.0 / 3) * (rank % 2 ? -1 : 1) + rank * 0.7 + i;
}

static int summing(struct shared *s, const struct hspmd_transport_ops *ops, int rank)
{
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport *t = members_join(s, ops, rank, MEMBERS, LIMIT_S);
	if (!t)
		return -1;
	for (int round = 0; round < 3; round++) {
		double v[3] = { addend(rank, 0), addend(rank, 1), addend(rank, 2) };
		if (hspmd_transport_all_reduce_f64(t, 9, v, 3, err))
			return -1;
		memcpy(s->sums[rank], v, sizeof v);
	}
	static const int some[] = { 3, 0, 4 };
	int32_t own = 100 + rank, all[3];
	if (rank == 3 || rank == 0 || rank == 4) {
		if (hspmd_transport_all_gather(t, some, 3, 10, &own, sizeof own, all, err))
			return -1;
		if (all[0] != 103 || all[1] != 100 || all[2] != 104)
			return hspmd_fail(err, "gathered %d %d %d", all[0], all[1], all[2]);
	}
	return close_and_count(t, false, err);
}

static void check_sums(struct shared *s)
{
	double sum[3];
	for (int i = 0; i < 3; i++) {
		sum[i] = addend(0, i);
		for (int r = 1; r < MEMBERS; r++)
			sum[i] += addend(r, i);
	}
	for (int r = 0; r < MEMBERS; r++)
		assert_memory_equal(s->sums[r], sum, sizeof sum);
}

static void test_sum(void **state)
{
	(void)state;
	each_transport(MEMBERS, summing, check_sums);
}

/* ---- waits that must end */

static int deadline(struct shared *s, const struct hspmd_transport_ops *ops, int rank)
{
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport *t = members_join(s, ops, rank, 2, 0.05);
	if (!t)
		return -1;
	char data[8];
	struct hspmd_request *r = NULL;
	/* Neither a message with another tag nor the peer's silence ends the wait early. */
	if (!rank) {
		if (ops->receive(t, 1, 5, data, sizeof data, &r, err) || !hspmd_transport_wait(t, &r, 1, err))
			return hspmd_fail(err, "a message came that nobody sent");
		if (strcmp(err->text, "waited 0.05 s for 8 B from b:0"))
			return -1;
	}
	atomic_fetch_add(&s->done, 1);
	if (members_wait_for(&s->done, 2, err))
		return -1;
	ops->close(t);
	return 0;
}

static void test_deadline(void **state)
{
	(void)state;
	each_transport(2, deadline, NULL);
}

/* A wait ends soon after the flag was set, however long it may last otherwise: the other member waits LIMIT_S for that. */
static int aborting(struct shared *s, const struct hspmd_transport_ops *ops, int rank)
{
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport *t = members_join(s, ops, rank, 2, 60 * LIMIT_S);
	if (!t)
		return -1;
	if (rank) {
		if (members_wait_for(&s->progress, 1, err))
			return -1;
		atomic_store(&s->abort, 1);
	} else {
		static char big[4 << 20];
		struct hspmd_request *r[2] = { NULL };
		if (ops->send(t, 1, 5, big, sizeof big, &r[0], err) || ops->receive(t, 1, 5, big, 1, &r[1], err))
			return -1;
		atomic_fetch_add(&s->progress, 1);
		if (!hspmd_transport_wait(t, r, 2, err))
			return hspmd_fail(err, "the wait did not end as it should");
		if (strncmp(err->text, "aborted while waiting for ", 26))
			return -1;
	}
	atomic_fetch_add(&s->done, 1);
	if (members_wait_for(&s->done, 2, err))
		return -1;
	ops->close(t);
	return 0;
}

static void test_abort(void **state)
{
	(void)state;
	each_transport(2, aborting, NULL);
}

static int wrong_size(struct shared *s, const struct hspmd_transport_ops *ops, int rank)
{
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport *t = members_join(s, ops, rank, 2, LIMIT_S);
	if (!t)
		return -1;
	char data[16] = "";
	struct hspmd_request *r = NULL;
	if (rank) {
		if (ops->send(t, 0, 1, data, 8, &r, err) || hspmd_transport_wait(t, &r, 1, err))
			return -1;
	} else if (ops->receive(t, 1, 1, data, 16, &r, err) || !hspmd_transport_wait(t, &r, 1, err)) {
		return hspmd_fail(err, "half a message was taken for a whole one");
	}
	atomic_fetch_add(&s->done, 1);
	if (members_wait_for(&s->done, 2, err))
		return -1;
	ops->close(t);
	return rank || !strcmp(err->text, "16 B from b:0: received 8 bytes") ? 0 : -1;
}

static void test_wrong_size(void **state)
{
	(void)state;
	each_transport(2, wrong_size, NULL);
}

/* ---- a peer that is killed while messages are in transit */

enum { CHUNK = 8 << 20, DEPTH = 4 };

/* Endless large messages in both directions. Member 1 is killed; member 0 reports how its waits ended. */
static int endless(struct shared *s, const struct hspmd_transport_ops *ops, int rank)
{
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport *t = members_join(s, ops, rank, 2, LIMIT_S);
	if (!t)
		return -1;
	char *in = malloc((size_t)CHUNK * DEPTH), *out = calloc(DEPTH, CHUNK);
	for (;;) {
		struct hspmd_request *r[2 * DEPTH] = { NULL };
		int rv = 0;
		for (int i = 0; i < DEPTH && !rv; i++)
			rv = ops->receive(t, 1 - rank, 1, in + (size_t)i * CHUNK, CHUNK, &r[2 * i], err) ||
			     ops->send(t, 1 - rank, 1, out + (size_t)i * CHUNK, CHUNK, &r[2 * i + 1], err);
		if (rv || hspmd_transport_wait(t, r, 2 * DEPTH, err))
			break;
		atomic_fetch_add(&s->progress, 1);
	}
	struct hspmd_error why = { "" };
	int bad = close_and_count(t, true, &why);
	if (bad)
		*err = why;
	free(in);
	free(out);
	return bad || !strncmp(err->text, "waited", 6) ? -1 : 0;
}

static void kill_peer(const char *name, bool notices)
{
	const struct hspmd_transport_ops *ops = hspmd_transport_find(name, NULL);
	if (!ops)
		skip();
	struct shared *s = members_share();
	pid_t survivor = members_run_process(s, ops, endless, 0), victim = members_run_process(s, ops, endless, 1);
	struct hspmd_error err = { "" };
	int early = members_wait_for(&s->progress, 6, &err), status;
	kill(victim, SIGKILL);
	waitpid(victim, &status, 0);
	/* A transport that cannot detect the death gets the abort flag, as from the controller. */
	if (!notices || early)
		atomic_store(&s->abort, 1);
	assert_int_equal(waitpid(survivor, &status, 0), survivor);
	if (early || status)
		print_error("%s: %s%s\n", name, err.text, s->err[0].text);
	assert_int_equal(early, 0);
	assert_int_equal(status, 0);
	if (notices)
		assert_null(strstr(s->err[0].text, "aborted"));
	munmap(s, sizeof *s);
}

static void test_kill_socket(void **state)
{
	(void)state;
	kill_peer("socket", true);
}

static void test_kill_ucx(void **state)
{
	(void)state;
	kill_peer("ucx", false);
}

/* ---- strangers on the socket transport's port */

enum { KINDS = HSPMD_FRAME_DATA + 2, SUM_TAG = 2 }; /* every kind of frame, and an unknown one */

/* The frames of a member with a valid HELLO: the HELLO, and a frame of each kind that fits the sum that follows. */
struct speech {
	struct hspmd_frame hello;
	uint8_t token[HSPMD_SOCKET_TOKEN];
	struct hspmd_frame frame;
	double body;
};

static struct speech speech_of(unsigned kind, int rank, const struct hspmd_socket_target *target)
{
	struct speech s = { .hello = { HSPMD_FRAME_MAGIC, HSPMD_FRAME_HELLO, (uint64_t)rank, HSPMD_SOCKET_TOKEN, 0 },
		            .frame = { HSPMD_FRAME_MAGIC, kind, SUM_TAG, sizeof s.body, 1 },
		            .body = 1000 };
	memcpy(s.token, target->token, sizeof s.token);
	return s;
}

/* Send `bytes` on a separate connection. */
static int say(const struct hspmd_socket_target *target, const void *data, size_t bytes, struct hspmd_error *err)
{
	int fd = socket(target->endpoints[0].name.ss_family, SOCK_STREAM, 0);
	if (connect(fd, (const struct sockaddr *)&target->endpoints[0].name, target->endpoints[0].length))
		return hspmd_fail_errno(err, "connecting as a stranger");
	send(fd, data, bytes, MSG_NOSIGNAL);
	close(fd);
	return 0;
}

/* A well-formed frame of each kind: after a HELLO with one wrong bit in its token, cut short at any position, and without a HELLO. */
static int say_wrong_token(unsigned kind, int rank, const struct hspmd_socket_target *target, struct hspmd_error *err)
{
	for (unsigned bit = 0; bit < 8 * HSPMD_SOCKET_TOKEN; bit += 9) {
		struct speech s = speech_of(kind, rank, target);
		s.token[bit / 8] ^= (uint8_t)(1u << bit % 8);
		size_t cut = bit % 2 ? mix(kind * 128 + bit) % sizeof s : 0;
		if (say(target, &s, sizeof s - cut, err))
			return -1;
	}
	struct speech s = speech_of(kind, rank, target);
	return say(target, &s.frame, sizeof s - offsetof(struct speech, frame), err);
}

static int say_noise(unsigned seed, const struct hspmd_socket_target *target, struct hspmd_error *err)
{
	uint64_t noise[64];
	for (size_t i = 0; i < 64; i++)
		noise[i] = mix(seed * 64 + i + 1);
	if (seed % 2) /* a known kind, with everything else wrong */
		memcpy(noise, (uint32_t[]){ HSPMD_FRAME_MAGIC, seed / 2 % KINDS }, 8);
	return say(target, noise, sizeof noise - seed, err);
}

/* Strangers connect to both members, pretending to be the other member, before the members themselves do. */
static int strangers(struct shared *s, const struct hspmd_transport_ops *ops, int rank)
{
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport *t = members_join(s, ops, rank, 2, LIMIT_S);
	if (!t)
		return -1;
	struct hspmd_socket_target target;
	struct hspmd_address blob = { s->blob[1 - rank].data, s->blob[1 - rank].size };
	if (hspmd_socket_target(&blob, &target, err))
		return -1;
	for (unsigned kind = 0; kind < KINDS; kind++)
		if (say_wrong_token(kind, rank, &target, err) || say_noise(2 * kind, &target, err) || say_noise(2 * kind + 1, &target, err))
			return -1;
	free(target.endpoints);
	atomic_fetch_add(&s->done, 1);
	double v = rank + 1;
	if (members_wait_for(&s->done, 2, err) || hspmd_transport_all_reduce_f64(t, SUM_TAG, &v, 1, err))
		return -1;
	ops->close(t);
	return v == 3.0 ? 0 : hspmd_fail(err, "the sum is %g", v);
}

static void test_strangers(void **state)
{
	(void)state;
	struct shared *s = members_share();
	run_members(s, hspmd_transport_find("socket", NULL), 2, strangers);
	munmap(s, sizeof *s);
}

/* A connection whose peer has closed its end is dead, with the reason, which stays; it takes no more messages. */
static void test_dead_connection(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_socket_listener listener;
	struct hspmd_address own = { 0 };
	struct hspmd_socket_connection l;
	char body[8] = "body", why[sizeof l.why];
	struct hspmd_socket_item item = { .frame = { .magic = HSPMD_FRAME_MAGIC }, .body = body, .body_bytes = sizeof body };
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	assert_int_equal(hspmd_socket_listen(&listener, &err), 0);
	assert_int_equal(hspmd_socket_address(&listener, &own, &err), 0);
	hspmd_socket_connection_init(&l, epoll, NULL, LIMIT_S);
	assert_int_equal(hspmd_socket_target(&own, &l.target, &err), 0);
	hspmd_socket_connection_connect(&l, 1);
	int peer = accept(listener.unix_fd, NULL, NULL);
	assert_true(peer >= 0);
	double until = hspmd_now() + LIMIT_S;
	while (l.state == HSPMD_CONNECTION_CONNECTING && within(until))
		hspmd_socket_connection_step(&l);
	assert_int_equal(l.state, HSPMD_CONNECTION_OPEN);
	char hello[sizeof(struct hspmd_frame) + HSPMD_SOCKET_TOKEN];
	assert_int_equal(recv(peer, hello, sizeof hello, MSG_WAITALL), sizeof hello);
	close(peer);
	while (l.state == HSPMD_CONNECTION_OPEN && l.fd >= 0 && within(until))
		hspmd_socket_connection_step(&l);
	assert_int_equal(l.state, HSPMD_CONNECTION_DEAD);
	assert_non_null(strstr(l.why, "closed its connections"));
	snprintf(why, sizeof why, "%s", l.why);
	hspmd_socket_connection_queue(&l, &item);
	hspmd_socket_connection_step(&l);
	assert_false(item.waiting);
	assert_string_equal(l.why, why);
	hspmd_socket_connection_close(&l);
	hspmd_socket_unlisten(&listener);
	free(own.data);
	close(epoll);
}

/* Connections that say nothing are closed, the oldest first as they are too many, and all of them in the end. */
static int silent_strangers(struct shared *s, const struct hspmd_transport_ops *ops, int rank)
{
	enum { SILENT = 300, LEFT = 70 };
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_transport *t = members_join(s, ops, rank, 2, 16);
	int fd[SILENT], left = SILENT;
	if (!t)
		return -1;
	struct hspmd_socket_target target;
	struct hspmd_address blob = { s->blob[1 - rank].data, s->blob[1 - rank].size };
	if (hspmd_socket_target(&blob, &target, err))
		return -1;
	for (int i = 0; i < SILENT; i++) {
		fd[i] = socket(target.endpoints[0].name.ss_family, SOCK_STREAM, 0);
		if (connect(fd[i], (const struct sockaddr *)&target.endpoints[0].name, target.endpoints[0].length))
			return hspmd_fail_errno(err, "connecting as a stranger");
		double v = 1; /* the members talk meanwhile */
		if (i % 50 == 0 && hspmd_transport_all_reduce_f64(t, SUM_TAG, &v, 1, err))
			return -1;
	}
	free(target.endpoints);
	double until = hspmd_now() + LIMIT_S, ready = 0;
	for (int round = 0; ready < 2; round++) {
		for (int i = 0; i < SILENT; i++) {
			char byte;
			if (fd[i] < 0 || recv(fd[i], &byte, 1, MSG_DONTWAIT) != 0)
				continue;
			if (!round && left == SILENT && i > LEFT)
				return hspmd_fail(err, "a young stranger was closed first");
			close(fd[i]);
			fd[i] = -1;
			left--;
		}
		ready = !left;
		if (hspmd_now() > until)
			return hspmd_fail(err, "%d silent connections are left", left);
		if (hspmd_transport_all_reduce_f64(t, SUM_TAG, &ready, 1, err))
			return -1;
		usleep(2000);
	}
	ops->close(t);
	return 0;
}

static void test_silent_strangers(void **state)
{
	(void)state;
	struct shared *s = members_share();
	run_members(s, hspmd_transport_find("socket", NULL), 2, silent_strangers);
	munmap(s, sizeof *s);
}

static void test_find(void **state)
{
	(void)state;
	struct hspmd_error err;
	assert_non_null(hspmd_transport_find(NULL, &err));
	assert_null(hspmd_transport_find("pigeon", &err));
	assert_non_null(strstr(err.text, "socket"));
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_traffic),
		cmocka_unit_test(test_sum),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_abort),
		cmocka_unit_test(test_wrong_size),
		cmocka_unit_test(test_kill_socket),
		cmocka_unit_test(test_kill_ucx),
		cmocka_unit_test(test_strangers),
		cmocka_unit_test(test_dead_connection),
		cmocka_unit_test(test_silent_strangers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
