/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of a trace: what is read is what was written, and damage is named instead of believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "common/format/trace_spans.h"

#define PROCESS 65537
#define THREAD 8
#define SPANS 5000
#define LABELS 3

struct sample_span {
	int64_t step, began, length;
	int lane, kind;
};

/* Kinds of every label and some micro-batches. */
#define MICRO_BATCHES 4 /* -2 to 1 */
#define KINDS (LABELS * MICRO_BATCHES)
static const char *const labels[LABELS] = { "\"name\":\"linear\",\"cat\":\"forward\",\"args\":{\"tensor\":\"a\\\"b\",",
	                                    "\"name\":\"add\",\"cat\":\"backward\",\"args\":{\"layer\":-1,",
	                                    "\"name\":\"vote\",\"cat\":\"vote\",\"args\":{" };

static int pick(uint64_t *random, int below)
{
	*random = *random * UINT64_C(6364136223846793005) + 1;
	return (int)((*random >> 33) % (uint64_t)below);
}

static struct sample_span random_span(uint64_t *random, const struct sample_span *last)
{
	struct sample_span s = *last;
	if (!pick(random, 10))
		s.step += 1 + pick(random, 3);
	s.lane = pick(random, 5) ? HSPMD_LANE_COMPUTE : pick(random, 2) ? HSPMD_LANE_TRANSFERS : HSPMD_LANE_SUMS;
	s.kind = pick(random, 2) ? (last->kind + 1) % KINDS : pick(random, KINDS);
	/* Most follow the last one, soon or less soon. Also some within it, one around the last ones, and one long after them. */
	s.began = last->began + (pick(random, 3) ? last->length : 0) + pick(random, 1500);
	if (!pick(random, 20))
		s.began -= pick(random, 100000);
	if (!pick(random, 200))
		s.began += (int64_t)3600 * 1000000000;
	s.began = s.began > 0 ? s.began : 0;
	s.length = pick(random, 10) ? pick(random, 100000) : (int64_t)pick(random, 1000) << 30;
	return s;
}

static json_t *make_part(const struct sample_span *spans, int count, uint64_t *random)
{
	struct hspmd_trace_kinds kinds = { 0 };
	struct hspmd_trace_spans out = { 0 };
	json_t *names = json_array();
	for (int i = 0; i < LABELS; i++)
		json_array_append_new(names, json_string(labels[i]));
	for (int i = 0; i < KINDS; i++)
		hspmd_trace_kinds_add(&kinds, i % LABELS, i / LABELS + HSPMD_TRACE_NO_MICRO_BATCH);
	for (int i = 0; i < count; i++) {
		if (!i || spans[i].step != spans[i - 1].step)
			hspmd_trace_spans_step(&out, spans[i].step);
		hspmd_trace_spans_add(&out, (enum hspmd_lane)spans[i].lane, spans[i].kind, !pick(random, 4), spans[i].began,
		                      spans[i].length);
	}
	json_t *part = json_pack("{s:i, s:i, s:o, s:o, s:o}", "process", PROCESS, "thread", THREAD, "labels", names, "kinds",
	                         hspmd_vlq_take(&kinds.out), "spans", hspmd_vlq_take(&out.out));
	assert_non_null(part);
	return part;
}

/* A text that grows. */
struct grown_text {
	char *text;
	size_t size;
	int pieces, pieces_max;
};

static int append(void *context, const char *text, size_t size, struct hspmd_error *err)
{
	struct grown_text *t = context;
	if (++t->pieces > t->pieces_max)
		return hspmd_fail(err, "the disk is full");
	t->text = realloc(t->text, t->size + size + 1);
	memcpy(t->text + t->size, text, size);
	t->size += size;
	return 0;
}

static json_t *events_of(const struct grown_text *t)
{
	char *text = hspmd_asprintf("[0%.*s]", (int)t->size, t->text ? t->text : "");
	json_error_t wrong;
	json_t *events = json_loads(text, 0, &wrong);
	if (!events)
		fail_msg("%s: %.200s", wrong.text, text);
	free(text);
	json_array_remove(events, 0);
	return events;
}

static void assert_event(const json_t *event, const struct sample_span *s)
{
	static const char *const names[LABELS] = { "linear", "add", "vote" };
	const json_t *args = json_object_get(event, "args");
	assert_string_equal(json_string_value(json_object_get(event, "ph")), "X");
	assert_string_equal(json_string_value(json_object_get(event, "name")), names[s->kind % LABELS]);
	assert_int_equal(json_integer_value(json_object_get(event, "pid")), PROCESS);
	assert_int_equal(json_integer_value(json_object_get(event, "tid")), THREAD + s->lane);
	assert_int_equal((int64_t)(json_real_value(json_object_get(event, "ts")) * 1000 + 0.5), s->began);
	assert_int_equal((int64_t)(json_real_value(json_object_get(event, "dur")) * 1000 + 0.5), s->length);
	assert_int_equal(json_integer_value(json_object_get(args, "step")), s->step);
	int micro_batch = s->kind / LABELS + HSPMD_TRACE_NO_MICRO_BATCH;
	const json_t *named = json_object_get(args, "micro_batch");
	assert_int_equal(named != NULL, micro_batch != HSPMD_TRACE_NO_MICRO_BATCH);
	assert_true(!named || json_integer_value(named) == micro_batch);
}

static void test_what_is_written_is_read(void **state)
{
	(void)state;
	uint64_t random = 20;
	struct sample_span *spans = calloc(SPANS, sizeof *spans), last = { .step = 7, .kind = -1 };
	for (int i = 0; i < SPANS; i++)
		last = spans[i] = random_span(&random, &last);
	json_t *part = make_part(spans, SPANS, &random);
	struct grown_text t = { .pieces_max = 1000 };
	struct hspmd_error err;
	assert_int_equal(hspmd_trace_spans_write(part, append, &t, &err), 0);
	assert_true(t.pieces > 2);
	json_t *events = events_of(&t);
	assert_int_equal(json_array_size(events), SPANS);
	for (int i = 0; i < SPANS; i++)
		assert_event(json_array_get(events, (size_t)i), &spans[i]);
	/* A sink that fails ends it. */
	struct grown_text full = { .pieces_max = 1 };
	assert_int_equal(hspmd_trace_spans_write(part, append, &full, &err), -1);
	assert_string_equal(err.text, "the disk is full");
	assert_int_equal(full.pieces, 2);
	free(full.text);
	free(t.text);
	json_decref(events);
	json_decref(part);
	free(spans);
}

static json_t *small_part(void)
{
	const struct sample_span spans[] = { { 3, 1000, 500, HSPMD_LANE_COMPUTE, 4 },
		                             { 3, 2000, 70000, HSPMD_LANE_SUMS, 5 },
		                             { 4, 90000, 1, 0, 11 } };
	uint64_t random = 1;
	return make_part(spans, 3, &random);
}

/* Each character is replaced by each other: the part is refused, or what comes is JSON. */
static void test_damage(void **state)
{
	(void)state;
	static const char *const keys[] = { "kinds", "spans" };
	json_t *part = small_part();
	int refused = 0;
	for (int k = 0; k < 2; k++) {
		const char *whole = json_string_value(json_object_get(part, keys[k]));
		size_t length = strlen(whole);
		for (size_t at = 0; at < length; at++)
			for (int c = 32; c < 127; c++) {
				char *text = strdup(whole);
				text[at] = (char)c;
				json_t *damaged = json_copy(part);
				json_object_set_new(damaged, keys[k], json_string(text));
				struct grown_text t = { .pieces_max = 1000 };
				struct hspmd_error err = { "" };
				int status = hspmd_trace_spans_write(damaged, append, &t, &err);
				refused += status < 0;
				assert_true(status == 0 || strstr(err.text, "damaged at character"));
				json_decref(events_of(&t));
				free(t.text);
				json_decref(damaged);
				free(text);
			}
	}
	assert_true(refused > 0);
	json_decref(part);
}

static void test_cut_short(void **state)
{
	(void)state;
	json_t *part = small_part(), *spans = json_incref(json_object_get(part, "spans"));
	int whole = 0;
	for (size_t length = 0; length < json_string_length(spans); length++) {
		json_object_set_new(part, "spans", json_stringn(json_string_value(spans), length));
		struct grown_text t = { .pieces_max = 1000 };
		struct hspmd_error err;
		whole += !hspmd_trace_spans_write(part, append, &t, &err);
		json_decref(events_of(&t));
		free(t.text);
	}
	assert_int_equal(whole, 1 + 2 + 2); /* nothing; a step or a span was the last; but the last span is not */
	json_decref(spans);
	json_decref(part);
}

static void test_keys(void **state)
{
	(void)state;
	static const char *const keys[] = { "process", "thread", "labels", "kinds", "spans" };
	struct hspmd_error err;
	struct grown_text t = { .pieces_max = 1000 };
	for (int k = 0; k < 5; k++) {
		json_t *part = small_part();
		json_object_set_new(part, keys[k], json_null());
		assert_int_equal(hspmd_trace_spans_write(part, append, &t, &err), -1);
		json_decref(part);
	}
	json_t *part = small_part();
	json_array_set_new(json_object_get(part, "labels"), 1, json_integer(1));
	assert_int_equal(hspmd_trace_spans_write(part, append, &t, &err), -1);
	assert_non_null(strstr(err.text, "damaged"));
	json_decref(part);
	free(t.text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_written_is_read),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_cut_short),
		cmocka_unit_test(test_keys),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
