/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/trace_spans.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define DIGITS_MAX 13             /* of 64 bits */
#define SPAN_MAX (6 * DIGITS_MAX) /* more than the characters of a span */
#define TIME_MAX (INT64_MAX / 4)  /* ns */
#define STEP_MAX (INT64_MAX / 4)
#define BUFFER_BYTES 65536

/* Of a span: the lane, ASIDE, and what its kind is away from the one expected. A step has the lane in which no span is: how many steps
 * after the next one it is. */
#define HEAD_LANES 4
#define HEAD_ASIDE 4
#define HEAD_SHIFT 3
#define HEAD_STEP HSPMD_LANE_CHANGES
_Static_assert(HSPMD_LANE_COUNT == HEAD_LANES, "a lane is two bits");

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* ---- writing */

static int make_room(struct hspmd_vlq *v)
{
	if (v->failed)
		return -1;
	if (v->capacity - v->size >= SPAN_MAX)
		return 0;
	size_t wanted = 2 * v->capacity + 64 * SPAN_MAX;
	char *text = realloc(v->text, wanted);
	if (!text) {
		v->failed = true;
		return -1;
	}
	v->text = text;
	v->capacity = wanted;
	return 0;
}

static void put(struct hspmd_vlq *v, uint64_t number)
{
	for (; number > 31; number >>= 5)
		v->text[v->size++] = digits[32 + (number & 31)];
	v->text[v->size++] = digits[number];
}

/* The sign is the lowest bit. */
static uint64_t folded(int64_t number)
{
	return (uint64_t)number << 1 ^ (uint64_t)(number >> 63);
}

/* `number` differs so much from `last`; it may wrap around, as it comes from outside. */
static int64_t unfold(uint64_t number, int64_t last)
{
	return (int64_t)((uint64_t)last + (number >> 1 ^ -(number & 1)));
}

json_t *hspmd_vlq_take(struct hspmd_vlq *v)
{
	json_t *text = v->failed ? NULL : json_stringn_nocheck(v->text ? v->text : "", v->size);
	free(v->text);
	*v = (struct hspmd_vlq){ .failed = v->failed };
	return text;
}

void hspmd_trace_kinds_add(struct hspmd_trace_kinds *k, int label, int micro_batch)
{
	if (make_room(&k->out))
		return;
	put(&k->out, folded(label - k->label));
	put(&k->out, folded(micro_batch - k->micro_batch));
	k->label = label;
	k->micro_batch = micro_batch;
}

void hspmd_trace_spans_step(struct hspmd_trace_spans *s, int64_t step)
{
	if (make_room(&s->out))
		return;
	put(&s->out, folded(step - s->step - 1) << HEAD_SHIFT | HEAD_STEP);
	s->step = step;
	memset(s->next, 0, sizeof s->next);
}

void hspmd_trace_spans_add(struct hspmd_trace_spans *s, enum hspmd_lane lane, int kind, bool aside, int64_t began, int64_t length)
{
	if (make_room(&s->out))
		return;
	put(&s->out, folded(kind - s->next[lane]) << HEAD_SHIFT | (aside ? HEAD_ASIDE : 0) | lane);
	put(&s->out, folded(began - s->ended[lane]));
	put(&s->out, (uint64_t)length);
	s->ended[lane] = began + length;
	if (!aside)
		s->next[lane] = kind + 1;
}

/* ---- reading */

struct vlq_reader {
	const unsigned char *text, *at, *end;
	signed char value[256]; /* of a character; -1: none of ours */
};

static void reader_open(struct vlq_reader *r, const json_t *string)
{
	r->at = r->text = (const unsigned char *)json_string_value(string);
	r->end = r->at + json_string_length(string);
	memset(r->value, -1, sizeof r->value);
	for (int i = 0; i < 64; i++)
		r->value[(unsigned char)digits[i]] = (signed char)i;
}

static int get(struct vlq_reader *r, uint64_t *number)
{
	*number = 0;
	for (int shift = 0; r->at < r->end && shift < 5 * DIGITS_MAX; shift += 5) {
		int digit = r->value[*r->at++];
		if (digit < 0)
			return -1;
		*number |= (uint64_t)(digit & 31) << shift;
		if (digit < 32)
			return 0;
	}
	return -1;
}

/* Text on its way to the sink. */
struct event_output {
	char *buffer;
	size_t used;
	hspmd_trace_sink *sink;
	void *context;
	struct hspmd_error *err;
};

static int flush(struct event_output *o)
{
	size_t size = o->used;
	o->used = 0;
	return size ? o->sink(o->context, o->buffer, size, o->err) : 0;
}

static int put_text(struct event_output *o, const char *text, size_t size)
{
	if (size > BUFFER_BYTES - o->used && flush(o))
		return -1;
	if (size > BUFFER_BYTES)
		return o->sink(o->context, text, size, o->err);
	memcpy(o->buffer + o->used, text, size);
	o->used += size;
	return 0;
}

/* A whole number; printf takes several times as long. */
static int put_number(struct event_output *o, int64_t number)
{
	char text[24], *at = text + sizeof text;
	uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
	do
		*--at = (char)('0' + left % 10);
	while (left /= 10);
	if (number < 0)
		*--at = '-';
	return put_text(o, at, (size_t)(text + sizeof text - at));
}

/* Nanoseconds as microseconds. */
static int put_time(struct event_output *o, int64_t ns)
{
	int rest = (int)(ns % 1000);
	char decimals[] = { '.', (char)('0' + rest / 100), (char)('0' + rest / 10 % 10), (char)('0' + rest % 10) };
	return put_number(o, ns / 1000) || put_text(o, decimals, sizeof decimals) ? -1 : 0;
}

struct span_label {
	const char *text;
	size_t length;
};

struct kind {
	const struct span_label *label;
	int64_t micro_batch;
};

struct part_tables {
	struct span_label *labels;
	int label_count;
	struct kind *kinds;
	size_t kind_count;
	char begin[HSPMD_LANE_COUNT][80]; /* of an event */
	size_t begin_length[HSPMD_LANE_COUNT];
};

static int read_labels(struct part_tables *p, const json_t *labels)
{
	p->label_count = (int)json_array_size(labels);
	if (!(p->labels = hspmd_calloc(json_array_size(labels), sizeof *p->labels)))
		return -1;
	for (int i = 0; i < p->label_count; i++) {
		const json_t *label = json_array_get(labels, (size_t)i);
		p->labels[i] = (struct span_label){ json_string_value(label), json_string_length(label) };
	}
	return 0;
}

/* -1: no memory. Damage ends the list. */
static int read_kinds(struct part_tables *p, const json_t *kinds)
{
	struct vlq_reader r;
	int64_t label = 0, micro_batch = 0;
	uint64_t next_label, next_micro_batch;
	size_t capacity = 0;
	reader_open(&r, kinds);
	while (r.at < r.end && !get(&r, &next_label) && !get(&r, &next_micro_batch)) {
		label = unfold(next_label, label);
		micro_batch = unfold(next_micro_batch, micro_batch);
		if (label < 0 || label >= p->label_count || !p->labels[label].text)
			break;
		if (hspmd_array_grow(&p->kinds, &capacity, p->kind_count, sizeof *p->kinds))
			return -1;
		p->kinds[p->kind_count++] = (struct kind){ &p->labels[label], micro_batch };
	}
	return 0;
}

static int write_span(struct event_output *o, const struct part_tables *p, int lane, const struct kind *k, int64_t step, int64_t began,
                      int64_t length)
{
	static const char duration[] = ",\"dur\":", comma[] = ",",
	                  micro_batch[] = "\"micro_batch\":", step_key[] = "\"step\":", end[] = "}}";
	if (put_text(o, p->begin[lane], p->begin_length[lane]) || put_time(o, began) || put_text(o, duration, sizeof duration - 1) ||
	    put_time(o, length) || put_text(o, comma, 1) || put_text(o, k->label->text, k->label->length))
		return -1;
	if (k->micro_batch != HSPMD_TRACE_NO_MICRO_BATCH &&
	    (put_text(o, micro_batch, sizeof micro_batch - 1) || put_number(o, k->micro_batch) || put_text(o, comma, 1)))
		return -1;
	return put_text(o, step_key, sizeof step_key - 1) || put_number(o, step) || put_text(o, end, sizeof end - 1) ? -1 : 0;
}

enum { SPANS_OVER, SPANS_MORE, SPANS_DAMAGED, SPANS_NOT_WRITTEN };

static int read_span(struct vlq_reader *r, struct hspmd_trace_spans *s, const struct part_tables *p, struct event_output *o)
{
	uint64_t head, gap, length;
	if (r->at == r->end)
		return SPANS_OVER;
	if (get(r, &head))
		return SPANS_DAMAGED;
	int lane = (int)(head % HEAD_LANES);
	if (lane == HEAD_STEP) {
		s->step = unfold(head >> HEAD_SHIFT, s->step + 1);
		memset(s->next, 0, sizeof s->next);
		return s->step < 0 || s->step > STEP_MAX ? SPANS_DAMAGED : SPANS_MORE;
	}
	if (get(r, &gap) || get(r, &length))
		return SPANS_DAMAGED;
	int64_t kind = unfold(head >> HEAD_SHIFT, s->next[lane]), began = unfold(gap, s->ended[lane]);
	if (kind < 0 || kind >= (int64_t)p->kind_count || began < 0 || began > TIME_MAX || length > TIME_MAX)
		return SPANS_DAMAGED;
	s->ended[lane] = began + (int64_t)length;
	if (!(head & HEAD_ASIDE))
		s->next[lane] = (int)kind + 1;
	return write_span(o, p, lane, &p->kinds[kind], s->step, began, (int64_t)length) ? SPANS_NOT_WRITTEN : SPANS_MORE;
}

static int write_spans(const struct part_tables *p, const json_t *spans, struct event_output *o)
{
	struct vlq_reader r;
	struct hspmd_trace_spans s = { 0 };
	int status;
	reader_open(&r, spans);
	do
		status = read_span(&r, &s, p, o);
	while (status == SPANS_MORE);
	if (status == SPANS_NOT_WRITTEN || flush(o))
		return -1;
	return status == SPANS_OVER ? 0 : hspmd_fail(o->err, "a part of a trace is damaged at character %td of its spans", r.at - r.text);
}

int hspmd_trace_spans_write(const json_t *part, hspmd_trace_sink *sink, void *context, struct hspmd_error *err)
{
	const json_t *labels = json_object_get(part, "labels"), *kinds = json_object_get(part, "kinds"),
	             *spans = json_object_get(part, "spans"), *process = json_object_get(part, "process"),
	             *thread = json_object_get(part, "thread");
	if (!json_is_array(labels) || !json_is_string(kinds) || !json_is_string(spans) || !json_is_integer(process) ||
	    !json_is_integer(thread))
		return hspmd_fail(err, "a part of a trace has no process, thread, labels, kinds or spans");
	struct part_tables p = { 0 };
	struct event_output o = { .buffer = malloc(BUFFER_BYTES), .sink = sink, .context = context, .err = err };
	for (int l = 0; l < HSPMD_LANE_COUNT; l++)
		p.begin_length[l] =
		        (size_t)snprintf(p.begin[l], sizeof p.begin[l],
		                         ",\n{\"ph\":\"X\",\"pid\":%" JSON_INTEGER_FORMAT ",\"tid\":%" JSON_INTEGER_FORMAT ",\"ts\":",
		                         json_integer_value(process), json_integer_value(thread) + l);
	int status = !o.buffer || read_labels(&p, labels) || read_kinds(&p, kinds) ? hspmd_fail_memory(err, "writing a trace")
	                                                                           : write_spans(&p, spans, &o);
	free(o.buffer);
	free(p.labels);
	free(p.kinds);
	return status;
}
