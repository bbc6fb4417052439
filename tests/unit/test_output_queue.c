/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that writes a job's output folder: order, a folder that does not answer (metrics.jsonl is a full pipe), what is dropped then,
 * a disk that fails; and the journal in memory, whose writer is killed at any time. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "controller/run/journal_memory.h"
#include "controller/run/output_queue.h"
#include "tests/unit/own_folder.h"

#define PATIENCE_S 60
#define PIPE 4096

struct output_scene {
	struct run_output output;
	int pipe; /* the other side of metrics.jsonl */
	char *metrics, *events;
	pthread_t reader;
};

static int open_in(const char *name)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
}

static void *read_all(void *fd)
{
	char *text = calloc(1, 1 << 20);
	size_t used = 0;
	for (ssize_t n; (n = read(*(int *)fd, text + used, (1 << 20) - 1 - used)) > 0;)
		used += (size_t)n;
	return text;
}

/* Nothing can be written to metrics.jsonl before output_answers(). */
static void output_hangs(struct output_scene *s)
{
	int ends[2];
	char full[PIPE];
	memset(full, 'x', sizeof full);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(fcntl(ends[1], F_SETPIPE_SZ, PIPE), PIPE);
	assert_int_equal(write(ends[1], full, sizeof full), PIPE);
	*s = (struct output_scene){
		.output = { .folder = folder, .metrics = ends[1], .events_fd = open_in("events.jsonl"), .log = open_in("log") },
		.pipe = ends[0]
	};
}

static void output_answers(struct output_scene *s)
{
	assert_int_equal(pthread_create(&s->reader, NULL, read_all, &s->pipe), 0);
}

static char *text_of(const char *name)
{
	char path[128];
	struct hspmd_error err;
	size_t size;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return hspmd_read_file(path, 1 << 20, &size, &err);
}

/* The thread is done. */
static void output_read(struct output_scene *s)
{
	void *text;
	close(s->output.metrics);
	pthread_join(s->reader, &text);
	s->metrics = text;
	s->events = text_of("events.jsonl");
	close(s->pipe);
	close(s->output.events_fd);
	close(s->output.log);
}

static void output_clear(struct output_scene *s)
{
	free(s->metrics);
	free(s->events);
}

static void put_step(struct run_output_queue *q, int step)
{
	json_t *line = json_pack("{s:i, s:f}", "step", step, "loss", 1.5);
	run_output_queue_line(q, line);
	json_decref(line);
}

static void put_event(struct run_output_queue *q, int number)
{
	json_t *event = json_pack("{s:i}", "number", number);
	run_output_queue_event(q, event);
	json_decref(event);
}

static void unexpected(void *context)
{
	(void)context;
	fail_msg("a line could not be written");
}

static void wait_until_it_hangs(struct run_output_queue *q)
{
	while (run_output_queue_waits(q).entries || !(run_output_queue_waits(q).seconds > 0))
		usleep(1000);
}

/* The steps in the text, in order; returns how many there are. */
static int steps_in(const char *metrics, int *step, int most)
{
	int count = 0;
	for (const char *at = metrics; (at = strstr(at, "\"step\":")) && count < most; at++)
		step[count++] = atoi(at + strlen("\"step\":"));
	return count;
}

static void test_order(void **state)
{
	(void)state;
	struct output_scene s;
	struct hspmd_error err;
	json_t *old = json_pack("{s:i}", "plan", 1), *now = json_pack("{s:i}", "plan", 2);
	int step[64];
	output_hangs(&s);
	struct run_output_queue *q = run_output_queue_open(&s.output, RUN_OUTPUT_QUEUE_BYTES, unexpected, NULL, &err);
	put_step(q, 0);
	wait_until_it_hangs(q);
	run_output_queue_save(q, "status.json", old);
	for (int i = 1; i <= 20; i++) {
		put_step(q, i);
		put_event(q, i);
	}
	run_output_queue_save(q, "status.json", now);
	run_output_queue_log(q, "a line\n", 7);
	run_output_queue_settle(q, 0.01); /* it returns, and the next one at once */
	run_output_queue_settle(q, 1e6);
	struct run_output_waits w = run_output_queue_waits(q);
	assert_int_equal(w.entries, 42);
	assert_int_equal(w.steps_dropped + w.log_dropped + w.trace_dropped, 0);
	assert_true(w.seconds > 0);
	output_answers(&s);
	run_output_queue_settle(q, PATIENCE_S);
	while (run_output_queue_waits(q).seconds > 0)
		usleep(1000);
	put_step(q, 21);
	run_output_queue_settle(q, PATIENCE_S);
	assert_int_equal(run_output_queue_close(q, PATIENCE_S, &err), 0);
	output_read(&s);
	assert_int_equal(steps_in(s.metrics, step, 64), 22);
	for (int i = 0; i < 22; i++)
		assert_int_equal(step[i], i);
	char *at = s.events;
	for (int i = 1; i <= 20; i++) {
		char line[32];
		int n = snprintf(line, sizeof line, "{\"number\":%d}\n", i);
		assert_memory_equal(at, line, (size_t)n);
		at += n;
	}
	assert_string_equal(at, "");
	char *status = text_of("status.json"), *log = text_of("log");
	assert_non_null(strstr(status, "2"));
	assert_string_equal(log, "a line\n");
	free(status);
	free(log);
	output_clear(&s);
	json_decref(old);
	json_decref(now);
}

/* Too much waits: the oldest steps are dropped and counted; events and lines about changes are not. */
static void test_full(void **state)
{
	(void)state;
	enum { STEPS = 500 };
	struct output_scene s;
	struct hspmd_error err;
	json_t *change = json_pack("{s:s, s:i}", "event", "resize", "generation", 2);
	int step[STEPS];
	output_hangs(&s);
	struct run_output_queue *q = run_output_queue_open(&s.output, 20000, unexpected, NULL, &err);
	put_step(q, 0);
	wait_until_it_hangs(q);
	run_output_queue_line(q, change);
	for (int i = 1; i < STEPS; i++) {
		put_step(q, i);
		put_event(q, i);
	}
	long dropped = run_output_queue_waits(q).steps_dropped;
	assert_true(dropped > 0 && dropped < STEPS);
	output_answers(&s);
	assert_int_equal(run_output_queue_close(q, PATIENCE_S, &err), 0);
	output_read(&s);
	int count = steps_in(s.metrics, step, STEPS);
	assert_int_equal(count, STEPS - dropped);
	assert_int_equal(step[0], 0); /* it was being written */
	for (int i = 1; i < count; i++)
		assert_int_equal(step[i], STEPS - count + i);
	assert_non_null(strstr(s.metrics, "resize"));
	int events = 0;
	for (const char *at = s.events; (at = strchr(at, '\n')); at++)
		events++;
	assert_int_equal(events, STEPS - 1);
	output_clear(&s);
	json_decref(change);
}

static void note_failure(void *context)
{
	atomic_store((atomic_bool *)context, true);
}

static void test_failure(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	atomic_bool failed = false;
	struct run_output output = {
		.folder = folder, .metrics = open("/dev/null", O_RDONLY), .events_fd = open_in("events.jsonl"), .log = -1
	};
	struct run_output_queue *q = run_output_queue_open(&output, RUN_OUTPUT_QUEUE_BYTES, note_failure, &failed, &err);
	assert_false(run_output_queue_has_failed(q, &err));
	put_step(q, 0);
	put_event(q, 1);
	run_output_queue_settle(q, PATIENCE_S);
	assert_true(atomic_load(&failed));
	assert_true(run_output_queue_has_failed(q, &err));
	assert_non_null(strstr(err.text, "metrics.jsonl"));
	assert_int_equal(run_output_queue_close(q, PATIENCE_S, &err), 0);
	char *events = text_of("events.jsonl");
	assert_string_equal(events, "{\"number\":1}\n");
	free(events);
	close(output.metrics);
	close(output.events_fd);
}

static void test_end(void **state)
{
	(void)state;
	struct output_scene s;
	struct hspmd_error err = { "" };
	output_hangs(&s);
	struct run_output_queue *q = run_output_queue_open(&s.output, RUN_OUTPUT_QUEUE_BYTES, unexpected, NULL, &err);
	put_step(q, 0);
	put_event(q, 1);
	assert_int_equal(run_output_queue_close(q, 0.02, &err), -1);
	assert_non_null(strstr(err.text, "has not answered for 0 s: 2 lines"));
	output_answers(&s); /* the thread goes on, and ends */
	char *events = NULL;
	while (!events || !*events) {
		free(events);
		usleep(1000);
		events = text_of("events.jsonl");
	}
	free(events);
	output_read(&s);
	output_clear(&s);
}

/* A process that is killed while it keeps its journal leaves this one or the one before, whole. */
static void test_journal_memory(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct run_journal_memory *j = run_journal_memory_create(&err);
	assert_non_null(j);
	assert_null(run_journal_memory_load(j));
	assert_int_equal(run_journal_memory_generation(j), 0);
	json_int_t before = 0;
	for (int round = 0; round < 20; round++) {
		pid_t pid = fork();
		for (int n = (int)before + 1; !pid; n++) {
			json_t *pad = json_array(), *v;
			for (int i = 0; i < 2000 + n % 7 * 1000; i++)
				json_array_append_new(pad, json_integer(n));
			v = json_pack("{s:i, s:o}", "n", n, "pad", pad);
			run_journal_memory_begin(j, n);
			if (run_journal_memory_save(j, v, &err))
				_exit(1);
			json_decref(v);
		}
		json_t *v = NULL;
		json_int_t n = 0;
		while (n < before + 3) { /* another process may read it only when its writer has ended: here it may be torn */
			usleep(500 + 137 * (useconds_t)round);
			n = run_journal_memory_generation(j);
			assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
		}
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		v = run_journal_memory_load(j);
		n = json_integer_value(json_object_get(v, "n"));
		assert_true(n > before);
		assert_true(run_journal_memory_generation(j) == n || run_journal_memory_generation(j) == n + 1);
		assert_int_equal(json_array_size(json_object_get(v, "pad")), 2000 + n % 7 * 1000);
		for (size_t i = 0; i < json_array_size(json_object_get(v, "pad")); i++)
			assert_int_equal(json_integer_value(json_array_get(json_object_get(v, "pad"), i)), n);
		before = n;
		json_decref(v);
	}
	run_journal_memory_destroy(j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order), cmocka_unit_test(test_full),           cmocka_unit_test(test_failure),
		cmocka_unit_test(test_end),   cmocka_unit_test(test_journal_memory),
	};
	return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
