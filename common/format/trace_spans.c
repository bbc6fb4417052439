/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/trace_spans.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define DIGITS_MAX 13             /* of a number of 64 bits */
#define SPAN_MAX (4 * DIGITS_MAX) /* more than the characters of a span or a kind */
#define TIME_MAX (INT64_MAX / 4)  /* ns */
#define STEP_MAX (INT64_MAX / 4)
#define BUFFER_BYTES 65536

/* The first character of most spans, of HSPMD_LANE_COMPUTE and the kind that is expected, has the highest bits of the time since the last
 * one, below; the next has the others; then come two or three with the length. */
#define SHORT_GAP 1024          /* ns */
#define SHORT_LENGTH (1 << 18)  /* ns */
#define SHORT_SHORTER (1 << 12) /* ns: the length has two characters */
#define HEAD_SHORTER 16
/* The first character of other spans has this bit, their lane, and ASIDE. A step has the lane in which no span is. Then come numbers: how
 * far the kind is from the one expected, the time since the lane's last one, the length. Of a step: how far it is from the next one. */
#define HEAD_LONG 32
#define HEAD_ASIDE 4
#define HEAD_LANES 4
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

static void put_digit(struct hspmd_vlq *v, unsigned digit)
{
	v->text[v->size++] = digits[digit];
}

static void put(struct hspmd_vlq *v, uint64_t number)
{
	for (; number > 31; number >>= 5)
		put_digit(v, 32 + (number & 31));
	put_digit(v, (unsigned)number);
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
	put_digit(&s->out, HEAD_LONG | HEAD_STEP);
	put(&s->out, folded(step - s->step - 1));
	s->step = step;
	memset(s->next, 0, sizeof s->next);
}

static void put_short(struct hspmd_vlq *v, unsigned gap, unsigned length)
{
	bool shorter = length < SHORT_SHORTER;
	put_digit(v, gap >> 6 | (shorter ? HEAD_SHORTER : 0));
	put_digit(v, gap & 63);
	put_digit(v, length & 63);
	put_digit(v, length >> 6 & 63);
	if (!shorter)
		put_digit(v, length >> 12);
}

void hspmd_trace_spans_add(struct hspmd_trace_spans *s, enum hspmd_lane lane, int kind, bool aside, int64_t began, int64_t length)
{
	int64_t gap = began - s->ended[lane];
	if (make_room(&s->out))
		return;
	if (lane == HSPMD_LANE_COMPUTE && !aside && kind == s->next[lane] && gap >= 0 && gap < SHORT_GAP && length < SHORT_LENGTH) {
		put_short(&s->out, (unsigned)gap, (unsigned)length);
	} else {
		put_digit(&s->out, HEAD_LONG | (aside ? HEAD_ASIDE : 0) | lane);
		put(&s->out, folded(kind - s->next[lane]));
		put(&s->out, folded(gap));
		put(&s->out, (uint64_t)length);
	}
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

struct kind {
	const char *label; /* of the part's */
	size_t label_length;
	char middle[48]; /* between the label and the step's number */
	size_t middle_length;
};

/* Events on their way to the sink. */
struct event_output {
	char *buffer, *at, *limit; /* at: less than limit, behind which there is room for any event */
	hspmd_trace_sink *sink;
	void *context;
	struct hspmd_error *err;
	struct kind *kinds;
	size_t kind_count, longest; /* characters of a label */
	struct {
		char text[80]; /* of an event of this lane, up to its time */
		size_t length;
	} begin[HSPMD_LANE_COUNT];
	char step[32]; /* the number, and the end of an event */
	size_t step_length;
};

/* -1: no memory. Damage ends the list. */
static int read_kinds(struct event_output *o, const json_t *labels, const json_t *kinds)
{
	struct vlq_reader r;
	int64_t label = 0, micro_batch = 0;
	uint64_t next_label, next_micro_batch;
	size_t capacity = 0;
	reader_open(&r, kinds);
	while (r.at < r.end && !get(&r, &next_label) && !get(&r, &next_micro_batch)) {
		label = unfold(next_label, label);
		micro_batch = unfold(next_micro_batch, micro_batch);
		const json_t *text = label < 0 ? NULL : json_array_get(labels, (size_t)label);
		if (!json_is_string(text))
			break;
		if (hspmd_array_grow(&o->kinds, &capacity, o->kind_count, sizeof *o->kinds))
			return -1;
		struct kind *k = &o->kinds[o->kind_count++];
		k->label = json_string_value(text);
		k->label_length = json_string_length(text);
		k->middle_length =
		        (size_t)(micro_batch == HSPMD_TRACE_NO_MICRO_BATCH
		                         ? snprintf(k->middle, sizeof k->middle, "\"step\":")
		                         : snprintf(k->middle, sizeof k->middle, "\"micro_batch\":%" PRId64 ",\"step\":", micro_batch));
		o->longest = k->label_length > o->longest ? k->label_length : o->longest;
	}
	return 0;
}

static int flush(struct event_output *o)
{
	size_t size = (size_t)(o->at - o->buffer);
	o->at = o->buffer;
	return size ? o->sink(o->context, o->buffer, size, o->err) : 0;
}

static char *append(char *at, const char *text, size_t length)
{
	memcpy(at, text, length);
	return at + length;
}

/* Nanoseconds as microseconds with three decimals; printf takes ten times as long. */
static char *append_time(char *at, int64_t ns)
{
	char text[24], *first = text + sizeof text;
	uint64_t left = (uint64_t)ns;
	for (int i = 0; i < 4 || left; i++, left /= 10) {
		if (i == 3)
			*--first = '.';
		*--first = (char)('0' + left % 10);
	}
	return append(at, first, (size_t)(text + sizeof text - first));
}

static void set_step(struct event_output *o, int64_t step)
{
	o->step_length = (size_t)snprintf(o->step, sizeof o->step, "%" PRId64 "}}", step);
}

static int write_span(struct event_output *o, int lane, const struct kind *k, int64_t began, int64_t length)
{
	static const char duration[] = ",\"dur\":";
	char *at = append(o->at, o->begin[lane].text, o->begin[lane].length);
	at = append_time(at, began);
	at = append(at, duration, sizeof duration - 1);
	at = append_time(at, length);
	*at++ = ',';
	at = append(at, k->label, k->label_length);
	at = append(at, k->middle, k->middle_length);
	o->at = append(at, o->step, o->step_length);
	return o->at > o->limit ? flush(o) : 0;
}

enum { SPANS_OVER, SPANS_MORE, SPANS_DAMAGED, SPANS_NOT_WRITTEN };

/* What follows a first character: how far the kind is from the one expected, the gap, and the length. */
static int get_span(struct vlq_reader *r, int head, uint64_t *away, uint64_t *gap, uint64_t *length)
{
	int digit[4] = { 0 }, count = head & HEAD_SHORTER ? 3 : 4;
	if (head & HEAD_LONG)
		return get(r, away) || get(r, gap) || get(r, length) ? -1 : 0;
	for (int i = 0; i < count; i++)
		if (r->at == r->end || (digit[i] = r->value[*r->at++]) < 0)
			return -1;
	*away = 0;
	*gap = folded((head & (HEAD_SHORTER - 1)) << 6 | digit[0]);
	*length = (uint64_t)(digit[1] | digit[2] << 6 | digit[3] << 12);
	return 0;
}

static int read_span(struct vlq_reader *r, struct hspmd_trace_spans *s, struct event_output *o)
{
	uint64_t away, gap, length;
	if (r->at == r->end)
		return SPANS_OVER;
	int head = r->value[*r->at++];
	if (head < 0)
		return SPANS_DAMAGED;
	int lane = head & HEAD_LONG ? head & (HEAD_LANES - 1) : HSPMD_LANE_COMPUTE;
	if (lane == HEAD_STEP) {
		if (get(r, &away))
			return SPANS_DAMAGED;
		s->step = unfold(away, s->step + 1);
		memset(s->next, 0, sizeof s->next);
		set_step(o, s->step);
		return s->step < 0 || s->step > STEP_MAX ? SPANS_DAMAGED : SPANS_MORE;
	}
	if (get_span(r, head, &away, &gap, &length))
		return SPANS_DAMAGED;
	int64_t kind = unfold(away, s->next[lane]), began = unfold(gap, s->ended[lane]);
	if (kind < 0 || kind >= (int64_t)o->kind_count || began < 0 || began > TIME_MAX || length > TIME_MAX)
		return SPANS_DAMAGED;
	s->ended[lane] = began + (int64_t)length;
	if (!(head & HEAD_LONG) || !(head & HEAD_ASIDE))
		s->next[lane] = (int)kind + 1;
	return write_span(o, lane, &o->kinds[kind], began, (int64_t)length) ? SPANS_NOT_WRITTEN : SPANS_MORE;
}

static int write_spans(struct event_output *o, const json_t *spans)
{
	struct vlq_reader r;
	struct hspmd_trace_spans s = { 0 };
	int status;
	reader_open(&r, spans);
	set_step(o, 0);
	do
		status = read_span(&r, &s, o);
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
	struct event_output o = { .sink = sink, .context = context, .err = err };
	for (int l = 0; l < HSPMD_LANE_COUNT; l++)
		o.begin[l].length =
		        (size_t)snprintf(o.begin[l].text, sizeof o.begin[l].text,
		                         ",\n{\"ph\":\"X\",\"pid\":%" JSON_INTEGER_FORMAT ",\"tid\":%" JSON_INTEGER_FORMAT ",\"ts\":",
		                         json_integer_value(process), json_integer_value(thread) + l);
	int status = read_kinds(&o, labels, kinds);
	if (!status && (o.buffer = o.at = malloc(BUFFER_BYTES + o.longest + 512))) {
		o.limit = o.buffer + BUFFER_BYTES;
		status = write_spans(&o, spans);
	} else {
		status = hspmd_fail_memory(err, "writing a trace");
	}
	free(o.buffer);
	free(o.kinds);
	return status;
}
