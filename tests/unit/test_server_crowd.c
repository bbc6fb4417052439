/* SPDX-License-Identifier: Apache-2.0 */
/* The server of job controllers and of hspmdctld when many call, or its munged hangs: who must make room for whom. */
#include "tests/unit/server_calls.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>

#include "common/log_limit.h"
#include "controller/server/strangers_internal.h"
#include "tests/unit/own_munged.h"

#define MANY 20

/* So many silent strangers that no place for them is left: who proves himself is heard all the same, and the log stays short. */
static void test_the_silent_keep_nobody_out(void **state)
{
	struct hspmd_stream *silent[300];
	const struct variant *v = *state;
	double began = hspmd_now();
	log_begin();
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
		silent[i] = call();
		expect(silent[i], "challenge", NULL);
	}
	assert_in_range(hspmd_server_counts(server).strangers, 1, v->limits->source_strangers);
	struct hspmd_stream *s = known();
	expect_refused(silent[0], "too many");
	for (size_t i = 1; i < sizeof silent / sizeof *silent; i++)
		hspmd_stream_destroy(silent[i]);
	int lines_logged = log_end(), most = 2 * (HSPMD_LOG_LIMIT_BURST + (int)((hspmd_now() - began) / HSPMD_LOG_LIMIT_EVERY_S));
	assert_in_range(lines_logged, 1, most); /* of two kinds: crowded out, and too slow */
	assert_int_equal(seen.closed, 0);
	hspmd_stream_destroy(s);
}

static void flood(struct hspmd_stream **calls, int n)
{
	for (int i = 0; i < n; i++)
		calls[i] = call();
}

static void end_flood(struct hspmd_stream **calls, int n)
{
	for (int i = 0; i < n; i++)
		hspmd_stream_destroy(calls[i]);
}

/* All agents of a large job call at one moment, some have no room, and they call again: nothing to warn of, unless that lasts. */
static void test_a_crowd_at_the_start_is_no_warning(void **state)
{
	const struct variant *v = *state;
	struct hspmd_stream *calls[200];
	const int many = v->limits->source_strangers + 1;
	log_begin();
	for (int i = 0; i < many; i++) {
		calls[i] = call();
		expect(calls[i], "challenge", NULL);
	}
	expect_refused(calls[0], "too many");
	end_flood(calls + 1, many - 1);
	assert_int_equal(log_lines("no room yet for a connection from 127.0.0.1: there are too many"), 1);
	assert_int_equal(log_lines("warning"), 0);
	stop();
	start(v, "127.0.0.1:0", 0, 0.2);
	for (double until = hspmd_now() + PATIENCE_S; !log_lines("warning: refused a connection from 127.0.0.1: there are too many");) {
		assert_true(hspmd_now() < until);
		for (int i = 0; i < many; i++) {
			calls[i] = call();
			uv_run(&loop, UV_RUN_NOWAIT);
		}
		end_flood(calls, many);
	}
	log_end();
}

/* Others at the caller's own address flood the server. Its hello arrives before more of them are accepted, and it is next to make room. */
static void test_who_has_answered_is_not_crowded_out(void **state)
{
	struct hspmd_stream *strangers[400];
	const struct variant *v = *state;
	int full = v->limits->source_strangers - 1;
	struct hspmd_stream *s = call();
	json_t *challenge = next(s);
	for (int i = 0; i < full; i++) {
		flood(strangers + i, 1);
		expect(strangers[i], "challenge", NULL);
	}
	assert_int_equal(hspmd_server_counts(server).strangers, full + 1);
	flood(strangers + full, 200);
	say(s, sealed_hello(auth, json_string_value(json_object_get(challenge, "nonce")), honest()));
	json_decref(challenge);
	expect_welcome(s);
	end_flood(strangers, full + 200);
	hspmd_stream_destroy(s);
}

/* The machine's first address that others can reach; false: it has none. */
static bool own_address(struct in_addr *address)
{
	struct ifaddrs *all = NULL;
	bool found = false;
	if (getifaddrs(&all))
		return false;
	for (struct ifaddrs *i = all; i && !found; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK)) {
			*address = ((struct sockaddr_in *)i->ifa_addr)->sin_addr;
			found = true;
		}
	freeifaddrs(all);
	return found;
}

/* A caller from another address keeps its place however many come. */
static void test_a_flood_from_one_address_crowds_out_itself_only(void **state)
{
	enum { FLOOD = 700 };
	static struct hspmd_stream *strangers[FLOOD];
	const struct variant *v = *state;
	struct in_addr address = { 0 };
	if (!own_address(&address))
		skip();
	stop();
	start(v, ":0", 0, 2 * PATIENCE_S);
	struct hspmd_stream *s = call_at(address);
	for (int i = 0; i < FLOOD; i++) {
		flood(strangers + i, 1);
		expect(strangers[i], "challenge", NULL);
	}
	assert_int_equal(hspmd_server_counts(server).strangers, v->limits->source_strangers + 1);
	expect_welcome(answer(s, auth, honest()));
	end_flood(strangers, FLOOD);
	hspmd_stream_destroy(s);
}

/* All places are taken: strangers make room, known peers do not. */
static void test_strangers_make_room_for_callers(void **state)
{
	struct hspmd_stream *strangers[3], *peers[3];
	stop();
	start(*state, "127.0.0.1:0", 3, 2 * PATIENCE_S);
	flood(strangers, 3);
	for (int i = 0; i < 3; i++)
		expect(strangers[i], "challenge", NULL);
	for (int i = 0; i < 3; i++) {
		peers[i] = known();
		expect_refused(strangers[i], "too many");
	}
	struct hspmd_stream *more = call();
	expect(more, NULL, NULL);
	assert_int_equal(hspmd_server_counts(server).peers, 3);
	assert_int_equal(hspmd_server_counts(server).refused, 4);
	hspmd_stream_destroy(more);
	end_flood(peers, 3);
	assert_int_equal(seen.closed, 0);
}

/* The process has no descriptor left: a stranger gives back its own. */
static void test_no_descriptor_is_left(void **state)
{
	struct rlimit old, few;
	int held[64], n = 0;
	(void)state;
	struct hspmd_stream *first = call();
	expect(first, "challenge", NULL);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = (rlim_t)hspmd_stream_fd(first) + 40;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while (n < 64 && (held[n] = dup(STDERR_FILENO)) >= 0)
		n++;
	assert_in_range(n, 1, 63);
	close(held[--n]); /* for the client's end */
	struct hspmd_stream *s = greet(auth, honest());
	expect_welcome(s);
	while (n)
		close(held[--n]);
	setrlimit(RLIMIT_NOFILE, &old);
	expect_refused(first, "too many");
	hspmd_stream_destroy(s);
}

static struct sockaddr_in6 address_of(const char *text)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6 };
	assert_int_equal(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
	return a;
}

/* Peers are told apart by pointers into an array that stands for them. */
static void test_who_must_make_room(void **state)
{
	static char peers[8];
	static const char *const from[8] = { "::ffff:10.0.0.1",  "::ffff:127.0.0.1", "::1",
		                             "::ffff:127.9.9.9", "2001:db8::1",      "2001:db8:0:1::2" };
	const struct hspmd_server_limits limits = { .strangers = 6, .source_strangers = 3 };
	struct strangers all = { 0 };
	struct stranger s[6];
	struct sockaddr_in6 a;
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK + 5) } };
	(void)state;
	assert_null(strangers_of_largest_source(&all));
	for (int i = 0; i < 6; i++) {
		a = address_of(from[i]);
		assert_null(strangers_in_the_way(&all, (struct sockaddr *)&a, &limits));
		s[i].peer = (struct hspmd_peer *)&peers[i];
		assert_int_equal(strangers_add(&all, &s[i], (struct sockaddr *)&a), 0);
	}
	/* One more from this machine: for the oldest from there. One more from anywhere else: for the same, because most are from there. */
	assert_ptr_equal(strangers_in_the_way(&all, (struct sockaddr *)&v4, &limits), &peers[1]);
	a = address_of("2001:db8:0:2::3");
	assert_ptr_equal(strangers_in_the_way(&all, (struct sockaddr *)&a, &limits), &peers[1]);
	/* A machine may have all addresses of a network of IPv6: they are one source. */
	const struct hspmd_server_limits one = { .strangers = 7, .source_strangers = 1 };
	a = address_of("2001:db8::3");
	assert_ptr_equal(strangers_in_the_way(&all, (struct sockaddr *)&a, &one), &peers[4]);
	strangers_remove(&all, &s[1]);
	strangers_remove(&all, &s[1]);
	assert_null(strangers_in_the_way(&all, (struct sockaddr *)&v4, &limits));
	assert_ptr_equal(strangers_of_largest_source(&all), &peers[2]);
	strangers_remove(&all, &s[2]);
	assert_ptr_equal(strangers_of_largest_source(&all), &peers[0]); /* all have one: the oldest */
	for (int i = 0; i < 6; i++)
		strangers_remove(&all, &s[i]);
	assert_int_equal(all.count, 0);
	assert_null(all.sources);
}

#ifdef HAVE_MUNGE
static int solved;

static void solve(uv_work_t *w)
{
	(void)w;
}

static void solve_done(uv_work_t *w, int status)
{
	(void)w, (void)status;
	solved++;
}

/* While munged hangs, those who have proved themselves are heard, and there are threads for other work; who has not is heard when munged
 * answers again. */
static void test_a_munged_that_hangs_delays_nobody_else(void **state)
{
	struct own_munged munged;
	struct hspmd_error err;
	enum { CALLERS = 6 };
	struct hspmd_stream *s[CALLERS];
	if (!own_munged_start(&munged))
		skip();
	stop();
	hspmd_auth_destroy(auth);
	auth = hspmd_auth_munge(munged.socket, &err);
	start(*state, "127.0.0.1:0", 0, 2 * PATIENCE_S);
	struct hspmd_stream *first = known();
	struct hspmd_server_counts before = hspmd_server_counts(server);
	for (int i = 0; i < CALLERS; i++)
		s[i] = greet(auth, honest());
	kill(munged.pid, SIGSTOP);
	for (int i = 0; i < 50; i++) /* the hellos arrive */
		uv_run(&loop, UV_RUN_NOWAIT);
	say(first, json_pack("{s:s}", "type", "state"));
	wait_for(&seen.messages, 1);
	assert_int_equal(hspmd_server_counts(server).refused, before.refused);
	uv_work_t work;
	solved = 0;
	assert_int_equal(uv_queue_work(&loop, &work, solve, solve_done), 0);
	wait_for(&solved, 1);
	assert_int_equal(hspmd_server_counts(server).refused, before.refused);
	assert_true(seen.hellos < 1 + CALLERS); /* those that it had not answered when it was stopped wait */
	kill(munged.pid, SIGCONT);
	wait_for(&seen.hellos, 1 + CALLERS);
	for (int i = 0; i < CALLERS; i++)
		hspmd_stream_destroy(s[i]);
	hspmd_stream_destroy(first);
	own_munged_stop(&munged);
}

/* A munged that never answers: callers are told so in time, and may call again. */
static void test_callers_do_not_wait_for_munged_for_ever(void **state)
{
	struct own_munged munged;
	struct hspmd_error err;
	if (!own_munged_start(&munged))
		skip();
	stop();
	hspmd_auth_destroy(auth);
	auth = hspmd_auth_munge(munged.socket, &err);
	start(*state, "127.0.0.1:0", 0, 0.5);
	struct hspmd_stream *s = greet(auth, honest());
	kill(munged.pid, SIGSTOP);
	json_t *m = next(s);
	assert_string_equal(json_string_value(json_object_get(m, "type")), "refused");
	assert_non_null(strstr(json_string_value(json_object_get(m, "text")), "munged hangs"));
	assert_true(json_is_true(json_object_get(m, "again")));
	json_decref(m);
	hspmd_stream_destroy(s);
	kill(munged.pid, SIGKILL); /* the thread that waits for it ends */
	own_munged_stop(&munged);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		RUN(test_the_silent_keep_nobody_out),
		RUN(test_a_crowd_at_the_start_is_no_warning),
		RUN(test_who_has_answered_is_not_crowded_out),
		RUN(test_a_flood_from_one_address_crowds_out_itself_only),
		RUN(test_strangers_make_room_for_callers),
		RUN(test_no_descriptor_is_left),
		cmocka_unit_test(test_who_must_make_room),
#ifdef HAVE_MUNGE
		RUN(test_a_munged_that_hangs_delays_nobody_else),
		RUN(test_callers_do_not_wait_for_munged_for_ever),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
