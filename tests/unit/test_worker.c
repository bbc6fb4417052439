/* SPDX-License-Identifier: Apache-2.0 */
/* Real workers between this test, which speaks for controller and agent, and each other: messages that come too early, twice or to nobody;
 * a checkpoint that is asked for when no step is left; a stop and an abort between and within steps; the loss of a peer. Whatever happens,
 * the losses are those of an undisturbed run. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/wire.h"
#include "runtime/worker/worker.h"

#define WAIT_S 60
#define STEPS 8

static char folder[] = "/tmp/hspmd-worker.XXXXXX";
static char corpus[64], pace[64];
static double undisturbed[STEPS];

static const char model_text[] = "{\"model_type\":\"gpt2\",\"n_embd\":16,\"n_layer\":1,\"n_head\":2,\"n_positions\":8,\"vocab_size\":256,"
                                 "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
static const char cluster_text[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":1}]},"
        "{\"name\":\"o\",\"devices\":[{\"type\":\"c\",\"count\":1}]}],"
        "\"links\":[{\"scope\":\"cluster\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";

/* ---- the workers, one on each of nodes n and o */

struct peer {
	int fd;
	pid_t pid;
	struct hspmd_wire_reader *reader;
};

struct scene {
	struct peer peer[2];
	double loss[STEPS]; /* as reported; 0: not yet */
};

static void tell(struct peer *p, json_t *m)
{
	struct hspmd_error err;
	assert_non_null(m);
	assert_int_equal(hspmd_wire_send(p->fd, m, WAIT_S, &err), 0);
	json_decref(m);
}

/* The next message except `step` and `heartbeat`, which must be of type `want`. Keeps the losses of steps. */
static json_t *next(struct scene *s, int d, const char *want)
{
	for (;;) {
		struct hspmd_error err = { "" };
		json_t *m;
		if (hspmd_wire_receive(s->peer[d].fd, s->peer[d].reader, WAIT_S, &m, &err) != 1)
			fail_msg("device %d, waiting for %s: %s", d, want, err.text);
		const char *type = json_string_value(json_object_get(m, "type"));
		bool step = !strcmp(type, "step");
		if (step)
			s->loss[json_integer_value(json_object_get(m, "step"))] = json_number_value(json_object_get(m, "loss"));
		if (!strcmp(type, want))
			return m;
		if (!step && strcmp(type, "heartbeat") != 0 && strcmp(type, "preconnected") != 0) {
			char *text = json_dumps(m, 0);
			fail_msg("device %d, waiting for %s, got %s", d, want, text);
		}
		json_decref(m);
	}
}

static void expect(struct scene *s, int d, const char *type)
{
	json_decref(next(s, d, type));
}

/* Expects a message in which the number `key` has this value; null: -1. */
static void expect_number(struct scene *s, int d, const char *type, const char *key, int value)
{
	json_t *m = next(s, d, type), *got = json_object_get(m, key);
	assert_non_null(got);
	assert_int_equal(json_is_null(got) ? -1 : json_integer_value(got), value);
	json_decref(m);
}

static void expect_fault(struct scene *s, int d, const char *words)
{
	json_t *m = next(s, d, "fault");
	const char *text = json_string_value(json_object_get(m, "text"));
	if (!strstr(text, words))
		fail_msg("device %d: fault \"%s\", expected \"%s\"", d, text, words);
	json_decref(m);
}

static void tell_number(struct scene *s, int d, const char *type, int generation)
{
	tell(&s->peer[d], json_pack("{ss,si}", "type", type, "generation", generation));
}

static void start_worker(struct scene *s, int d)
{
	int ends[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	struct peer *p = &s->peer[d];
	p->pid = fork();
	assert_true(p->pid >= 0);
	if (!p->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		for (int k = 0; k < 2; k++)
			if (k != d && s->peer[k].pid)
				close(s->peer[k].fd);
		_exit(hspmd_worker_main(ends[1]));
	}
	close(ends[1]);
	p->fd = ends[0];
	p->reader = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	expect_number(s, d, "hello", "pid", p->pid);
}

static json_t *job_message(int d)
{
	const char *device = d ? "o:0" : "n:0";
	json_t *job = json_pack("{ss,ss,ss,s{s[s],ss},si,si,si,si,s{ss,sf}}", "format", "hspmd-job-1", "model", "/none", "init", "random",
	                        "data", "train", corpus, "kind", "bytes", "seq_len", 8, "global_batch", 4, "steps", STEPS, "seed", 5,
	                        "optimizer", "type", "adamw", "lr", 1e-2);
	return json_pack("{ss,so,so,ss,ss,ss,ss,ss,sf}", "type", "job", "job", job, "model", json_loads(model_text, 0, NULL), "output",
	                 folder, "node", d ? "o" : "n", "device", device, "kind", "cpu", "transport", "socket", "timeout_s",
	                 (double)WAIT_S);
}

static void end_worker(struct scene *s, int d, int expected)
{
	int status;
	close(s->peer[d].fd);
	assert_int_equal(waitpid(s->peer[d].pid, &status, 0), s->peer[d].pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), expected);
	hspmd_wire_reader_destroy(s->peer[d].reader);
}

static void open_scene(struct scene *s)
{
	*s = (struct scene){ 0 };
	for (int d = 0; d < 2; d++)
		start_worker(s, d);
	for (int d = 0; d < 2; d++)
		tell(&s->peer[d], job_message(d));
}

static void quit(struct scene *s, int d)
{
	tell(&s->peer[d], json_pack("{ss}", "type", "quit"));
	end_worker(s, d, 0);
}

/* ---- generations */

/* Two pipelines of one device each, or with stages: one pipeline of two. */
static json_t *plan_of(bool stages)
{
	json_t *pipelines = stages ? json_pack("[{si,s[{s[ii],s[s]},{s[ii],s[s]}]}]", "micro_batches", 4, "stages", "layers", 0, 2,
	                                       "devices", "n:0", "layers", 2, 3, "devices", "o:0")
	                           : json_pack("[{si,s[{s[ii],s[s]}]},{si,s[{s[ii],s[s]}]}]", "micro_batches", 2, "stages", "layers", 0, 3,
	                                       "devices", "n:0", "micro_batches", 2, "stages", "layers", 0, 3, "devices", "o:0");
	return json_pack("{ss,si,si,si,ss,si,so}", "format", "hspmd-plan-1", "global_batch", 4, "micro_batch", 1, "seq_len", 8, "schedule",
	                 "1f1b", "zero_stage", 0, "pipelines", pipelines);
}

/* `live` of messages: both hold the state under that kind of plan. */
static json_t *live_under(bool stages)
{
	return json_pack("[{so,so,s[ss]}]", "cluster", json_loads(cluster_text, 0, NULL), "plan", plan_of(stages), "holders", "n:0", "o:0");
}

/* live: who is expected to hold the state; NULL: not known. */
static void tell_prepare(struct scene *s, int d, int generation, bool stages, json_t *live)
{
	tell(&s->peer[d], json_pack("{ss,si,so,so,s[ss],sO*}", "type", "prepare", "generation", generation, "cluster",
	                            json_loads(cluster_text, 0, NULL), "plan", plan_of(stages), "members", "n:0", "o:0", "live", live));
}

/* Both prepare. Takes `live` over. Returns their addresses. */
static json_t *prepare_expecting(struct scene *s, int generation, bool stages, json_t *live)
{
	json_t *addresses = json_object();
	for (int d = 0; d < 2; d++)
		tell_prepare(s, d, generation, stages, live);
	json_decref(live);
	for (int d = 0; d < 2; d++) {
		json_t *m = next(s, d, "prepared");
		assert_int_equal(json_integer_value(json_object_get(m, "generation")), generation);
		json_object_set(addresses, d ? "o:0" : "n:0", json_object_get(m, "address"));
		json_decref(m);
	}
	return addresses;
}

static json_t *prepare(struct scene *s, int generation, bool stages)
{
	return prepare_expecting(s, generation, stages, NULL);
}

enum { AS_PREPARED = -2, INITIALISED = -1 };

/* from_stages: the kind of plan under which both hold the state; or AS_PREPARED, or INITIALISED. */
static void tell_start(struct scene *s, int d, int generation, json_t *addresses, int step, int from_stages)
{
	json_t *state = from_stages == INITIALISED   ? json_pack("{sb}", "init", 1)
	                : from_stages == AS_PREPARED ? json_pack("{sb}", "live", 1)
	                                             : json_pack("{so}", "live", live_under(from_stages));
	tell(&s->peer[d], json_pack("{ss,si,sO,si,so}", "type", "start", "generation", generation, "addresses", addresses, "step", step,
	                            "state", state));
}

/* Returns whether the workers planned moves when they started. */
static bool start(struct scene *s, int generation, json_t *addresses, int step, int from_stages)
{
	bool planned[2];
	for (int d = 0; d < 2; d++)
		tell_start(s, d, generation, addresses, step, from_stages);
	for (int d = 0; d < 2; d++) {
		json_t *m = next(s, d, "started");
		assert_int_equal(json_integer_value(json_object_get(m, "step")), step);
		planned[d] = json_number_value(json_object_get(json_object_get(m, "seconds"), "plan")) > 0;
		json_decref(m);
	}
	assert_int_equal(planned[0], planned[1]);
	json_decref(addresses);
	return planned[0];
}

static void finish(struct scene *s)
{
	for (int d = 0; d < 2; d++)
		expect_number(s, d, "finished", "step", STEPS);
	for (int i = 0; i < STEPS; i++)
		assert_float_equal(s->loss[i], undisturbed[i], 1e-6 * undisturbed[i]);
	for (int d = 0; d < 2; d++)
		quit(s, d);
}

/* While the file exists, workers wait after each step for messages. */
static void hold_steps(bool hold)
{
	unlink(pace);
	if (!hold)
		return;
	FILE *f = fopen(pace, "w");
	assert_non_null(f);
	fputs("3000", f);
	assert_int_equal(fclose(f), 0);
}

/* ---- tests */

static void test_undisturbed(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "finished", "step", STEPS);
	for (int i = 0; i < STEPS; i++) {
		assert_true(s.loss[i] > 0);
		undisturbed[i] = s.loss[i];
	}
	assert_true(undisturbed[STEPS - 1] < undisturbed[0]);
	quit(&s, 0);
	end_worker(&s, 1, 1); /* whose agent is gone */
}

/* What comes before it can be done, or twice, is refused or answered, and changes nothing. */
static void test_odd_order(void **state)
{
	(void)state;
	struct scene s = { 0 };
	json_t *none = json_object(), *m;
	for (int d = 0; d < 2; d++)
		start_worker(&s, d);
	struct peer *p = &s.peer[0];
	tell(p, json_pack("{ss}", "no type", "at all"));
	tell(p, json_pack("{ss}", "type", "unheard of"));
	tell_prepare(&s, 0, 1, false, NULL);
	expect_fault(&s, 0, "prepare before job");
	tell_start(&s, 0, 1, none, 0, -1);
	expect_fault(&s, 0, "start of generation 1, which is not prepared");
	tell_number(&s, 0, "stop", 1); /* no answer: nothing trains */
	tell_number(&s, 0, "query", 1);
	m = next(&s, 0, "query_reply");
	assert_true(json_is_null(json_object_get(m, "holds")));
	assert_true(json_is_false(json_object_get(m, "training")));
	json_decref(m);
	tell(p, json_pack("{ss,si,sb}", "type", "abort", "generation", 1, "revive", 1));
	expect_number(&s, 0, "aborted", "holds", -1);
	tell(p, json_pack("{ss,si,si,s[ff]}", "type", "settle", "generation", 1, "apply", 0, "sums", 1.0, 1.0));
	expect_number(&s, 0, "settled", "step", 0);
	tell(p, json_pack("{ss,si,ss,ss}", "type", "checkpoint", "generation", 1, "id", "early", "local", folder));
	m = next(&s, 0, "checkpoint_written");
	assert_non_null(json_object_get(m, "error"));
	json_decref(m);
	tell(p, json_pack("{ss}", "type", "ping"));
	expect(&s, 0, "pong");
	for (int d = 0; d < 2; d++)
		tell(&s.peer[d], job_message(d));
	tell(p, job_message(0));
	expect_fault(&s, 0, "a second job message");
	tell_number(&s, 0, "preconnect", 1);
	expect_fault(&s, 0, "preconnect of generation 1, which is not prepared");
	/* A later generation replaces one that was prepared. */
	json_decref(prepare(&s, 1, true));
	json_t *addresses = prepare(&s, 2, false);
	tell_start(&s, 0, 1, addresses, 0, -1);
	expect_fault(&s, 0, "start of generation 1, which is not prepared");
	tell_number(&s, 1, "abort", 1);
	expect_number(&s, 1, "aborted", "holds", -1);
	start(&s, 2, addresses, 0, -1);
	finish(&s);
	json_decref(none);
}

/* Asks device d for a checkpoint. */
static void ask_checkpoint(struct scene *s, int d, const char *id)
{
	tell(&s->peer[d], json_pack("{ss,si,ss,ss}", "type", "checkpoint", "generation", 1, "id", id, "local", folder));
}

static void expect_checkpoint(struct scene *s, int d, const char *id, int step)
{
	json_t *m = next(s, d, "checkpoint_written");
	const char *error = json_string_value(json_object_get(m, "error"));
	if (error)
		fail_msg("device %d: %s", d, error);
	assert_string_equal(json_string_value(json_object_get(m, "id")), id);
	assert_int_equal(json_integer_value(json_object_get(m, "step")), step);
	/* It reports for a root: the list's sum, and which parameters it has written. */
	const json_t *shard = json_object_get(m, "shard");
	const char *list = json_string_value(json_object_get(shard, "list")), *set = json_string_value(json_object_get(shard, "set"));
	assert_true(list && strlen(list) == 16 && set && strspn(set, "0123456789abcdef") == strlen(set) && strspn(set, "0") < strlen(set));
	assert_null(json_object_get(shard, "extents"));
	json_decref(m);
}

static void expect_pong(struct scene *s, int d)
{
	tell(&s->peer[d], json_pack("{ss}", "type", "ping"));
	expect(s, d, "pong");
}

/* One worker is asked while steps are left, the other after its last: no step serves both, so both write the state after the last. */
static void test_checkpoint_in_the_last_step(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	ask_checkpoint(&s, 0, "last");
	expect_number(&s, 1, "finished", "step", STEPS);
	ask_checkpoint(&s, 1, "last");
	expect_checkpoint(&s, 1, "last", STEPS);
	expect_number(&s, 0, "finished", "step", STEPS);
	expect_checkpoint(&s, 0, "last", STEPS);
	/* The next is served at once; one of a generation that is not this one's is refused. */
	for (int d = 0; d < 2; d++)
		ask_checkpoint(&s, d, "later");
	for (int d = 0; d < 2; d++)
		expect_checkpoint(&s, d, "later", STEPS);
	tell(&s.peer[0], json_pack("{ss,si,ss,ss}", "type", "checkpoint", "generation", 7, "id", "other", "local", folder));
	json_t *m = next(&s, 0, "checkpoint_written");
	assert_non_null(strstr(json_string_value(json_object_get(m, "error")), "does not hold that generation's state"));
	json_decref(m);
	for (int d = 0; d < 2; d++)
		quit(&s, d);
}

/* Both were asked before a vote: the checkpoint is that of the step that they voted on. */
static void test_checkpoint_at_a_vote(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	hold_steps(true);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	for (int d = 0; d < 2; d++) {
		ask_checkpoint(&s, d, "second");
		expect_pong(&s, d); /* it has heard the request, too */
	}
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "stop", 1);
	for (int d = 0; d < 2; d++) {
		bool written = false, stopped = false;
		while (!written || !stopped) { /* the writer and the worker report at the same time */
			struct hspmd_error err;
			json_t *m;
			assert_int_equal(hspmd_wire_receive(s.peer[d].fd, s.peer[d].reader, WAIT_S, &m, &err), 1);
			const char *type = json_string_value(json_object_get(m, "type"));
			assert_string_not_equal(type, "fault");
			stopped = stopped || !strcmp(type, "stopped");
			if (!strcmp(type, "checkpoint_written")) {
				assert_null(json_object_get(m, "error"));
				assert_int_equal(json_integer_value(json_object_get(m, "step")), 2);
				written = true;
			}
			json_decref(m);
		}
	}
	hold_steps(false);
	for (int d = 0; d < 2; d++)
		quit(&s, d);
}

static void stop_all(struct scene *s, int generation, int step)
{
	for (int d = 0; d < 2; d++)
		tell_number(s, d, "stop", generation);
	for (int d = 0; d < 2; d++)
		expect_number(s, d, "stopped", "step", step);
}

/* Moves that were planned while the generation was prepared are not planned again, unless the state comes from elsewhere. */
static void test_expected_moves(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	hold_steps(true);
	assert_false(start(&s, 1, prepare(&s, 1, false), 0, -1));
	expect_number(&s, 0, "step", "step", 0);
	json_t *addresses = prepare_expecting(&s, 2, true, live_under(false));
	stop_all(&s, 1, 2);
	assert_false(start(&s, 2, addresses, 2, AS_PREPARED));
	expect_number(&s, 0, "step", "step", 2);
	json_t *live = live_under(true); /* too little, so that it is not even a plan of moves */
	json_array_remove(json_object_get(json_array_get(live, 0), "holders"), 1);
	addresses = prepare_expecting(&s, 3, false, live);
	stop_all(&s, 2, 4);
	assert_true(start(&s, 3, addresses, 4, true));
	expect_number(&s, 0, "step", "step", 4);
	addresses = prepare(&s, 4, true); /* which says nothing of it */
	stop_all(&s, 3, 6);
	for (int d = 0; d < 2; d++)
		tell_start(&s, d, 4, addresses, 6, AS_PREPARED);
	for (int d = 0; d < 2; d++)
		expect_fault(&s, d, "live as in prepare");
	json_decref(addresses);
	live = live_under(false); /* enough, but not what happens */
	json_array_remove(json_object_get(json_array_get(live, 0), "holders"), 1);
	addresses = prepare_expecting(&s, 5, true, live);
	hold_steps(false);
	assert_true(start(&s, 5, addresses, 6, false));
	finish(&s);
}

/* Workers that are told to stop do so after one more step; a later generation of another shape goes on from there. */
static void test_stop(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	hold_steps(true);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	json_t *addresses = prepare(&s, 2, true); /* while the first trains */
	tell_number(&s, 1, "stop", 9);            /* another generation: nothing happens */
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "stop", 1);
	for (int d = 0; d < 2; d++) {
		json_t *m = next(&s, d, "stopped");
		assert_int_equal(json_integer_value(json_object_get(m, "step")), 2);
		assert_int_equal(json_array_size(json_object_get(m, "losses")), 2);
		json_decref(m);
		tell_number(&s, d, "stop", 1); /* once is enough */
		tell_number(&s, d, "query", 1);
		expect_number(&s, d, "query_reply", "holds", 1);
	}
	hold_steps(false);
	start(&s, 2, addresses, 2, false);
	finish(&s);
}

static void tell_preconnect(struct scene *s, int d, int generation, json_t *addresses)
{
	tell(&s->peer[d], json_pack("{ss,si,sO}", "type", "preconnect", "generation", generation, "addresses", addresses));
}

/* Addresses are exchanged before the start, if the controller says so. Meanwhile a worker that trains goes on: its peer may not hear of it
 * before both have made a step. */
static void test_preconnect(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	json_t *addresses = prepare(&s, 1, false);
	for (int d = 0; d < 2; d++)
		tell_preconnect(&s, d, 1, addresses);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "preconnected", "generation", 1);
	hold_steps(true);
	start(&s, 1, addresses, 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	json_decref(prepare(&s, 2, true));
	addresses = prepare(&s, 3, true);
	tell_preconnect(&s, 0, 3, addresses);
	tell_number(&s, 0, "query", 1);
	expect_number(&s, 0, "query_reply", "holds", 1);
	json_decref(addresses);
	addresses = prepare(&s, 4, true); /* which ends the exchange that nobody answers */
	for (int d = 0; d < 2; d++)
		tell_preconnect(&s, d, 4, addresses);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "stop", 1);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "stopped", "step", 2);
	hold_steps(false);
	start(&s, 4, addresses, 2, false);
	finish(&s);
}

/* Workers that wait between steps, and one that waits for a peer that does not start, hear an abort; the state stays. */
static void test_abort(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	json_t *addresses = prepare(&s, 1, false);
	tell_start(&s, 0, 1, addresses, 0, -1);
	json_decref(addresses);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "abort", 1);
	expect(&s, 0, "fault");
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "aborted", "holds", -1);
	hold_steps(true);
	start(&s, 2, prepare(&s, 2, true), 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "abort", 1); /* an old one: generation 2 keeps its connections */
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "aborted", "holds", 2);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "stop", 2);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "stopped", "step", 2);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "abort", 2);
	for (int d = 0; d < 2; d++) {
		json_t *m = next(&s, d, "aborted");
		assert_int_equal(json_integer_value(json_object_get(m, "step")), 2);
		assert_int_equal(json_integer_value(json_object_get(m, "applied")), 1);
		assert_true(json_is_null(json_object_get(m, "ready")));
		json_decref(m);
		tell(&s.peer[d], json_pack("{ss,si,sn}", "type", "settle", "generation", 2, "apply"));
		expect_number(&s, d, "settled", "step", 2);
	}
	hold_steps(false);
	start(&s, 3, prepare(&s, 3, false), 2, true);
	finish(&s);
}

/* A worker whose peer hangs and dies keeps its state, and goes on with another peer. */
static void test_lost_peer(void **state)
{
	(void)state;
	struct scene s;
	int status;
	open_scene(&s);
	hold_steps(true);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	/* The peer hangs: the other's step ends with the abort, not with the deadline of a message. */
	kill(s.peer[1].pid, SIGSTOP);
	tell_number(&s, 0, "stop", 1);
	tell_number(&s, 0, "abort", 1);
	expect_number(&s, 0, "aborted", "holds", 1);
	kill(s.peer[1].pid, SIGKILL);
	assert_int_equal(waitpid(s.peer[1].pid, &status, 0), s.peer[1].pid);
	close(s.peer[1].fd);
	hspmd_wire_reader_destroy(s.peer[1].reader);
	s.peer[1].pid = 0;
	start_worker(&s, 1);
	tell(&s.peer[1], job_message(1));
	hold_steps(false);
	json_t *addresses = prepare(&s, 2, false);
	for (int d = 0; d < 2; d++)
		tell(&s.peer[d],
		     json_pack("{ss,si,sO,si,s{s[{so,so,s[s]}]}}", "type", "start", "generation", 2, "addresses", addresses, "step", 1,
		               "state", "live", "cluster", json_loads(cluster_text, 0, NULL), "plan", plan_of(false), "holders", "n:0"));
	json_decref(addresses);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "started", "step", 1);
	finish(&s);
}

static int make_folder(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(corpus, sizeof corpus, "%s/corpus", folder);
	snprintf(pace, sizeof pace, "%s/pace", folder);
	FILE *f = fopen(corpus, "w");
	for (int i = 0; f && i < 4000; i++)
		fputc('a' + i * i % 23, f);
	return !f || fclose(f) || setenv("HSPMD_TEST_STEP_S", pace, 1);
}

static int remove_folder(void **state)
{
	(void)state;
	char command[128];
	snprintf(command, sizeof command, "rm -rf '%s'", folder);
	return system(command);
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_undisturbed), /* first: the others compare losses with its */
		cmocka_unit_test(test_odd_order),
		cmocka_unit_test(test_checkpoint_in_the_last_step),
		cmocka_unit_test(test_checkpoint_at_a_vote),
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_preconnect),
		cmocka_unit_test(test_expected_moves),
		cmocka_unit_test(test_abort),
		cmocka_unit_test(test_lost_peer),
	};
	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
