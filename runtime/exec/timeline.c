/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/timeline.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/trace_spans.h"
#include "runtime/op/op.h"

#define STEPS_MAX 256 /* that are recorded before they must be written */
/* Perfetto drops a span that ends after the next of its thread has begun, or after the span around it. Decimal microseconds, which it makes
 * binary and cuts off, may be wrong by a nanosecond at each end. */
#define GAP_NS 2
#define PART_SPANS 32768 /* in one message: about 0.3 MB */

struct span {
	double began, ended;
	int what; /* instruction; ~part: a part of the step */
	enum hspmd_lane lane;
};

struct step {
	const struct hspmd_program *program;
	int64_t number;
	size_t first; /* span */
};

struct hspmd_timeline {
	size_t capacity;
	atomic_size_t count; /* may exceed the capacity */
	size_t dropped;      /* of spans that were cleared */
	struct span *spans;
	struct step steps[STEPS_MAX];
	int step_count;
};

struct hspmd_timeline *hspmd_timeline_create(size_t spans)
{
	struct hspmd_timeline *t = hspmd_calloc(1, sizeof *t);
	if (!t)
		return NULL;
	t->capacity = spans;
	if (!(t->spans = hspmd_calloc(spans, sizeof *t->spans))) {
		free(t);
		return NULL;
	}
	return t;
}

void hspmd_timeline_destroy(struct hspmd_timeline *t)
{
	if (!t)
		return;
	free(t->spans);
	free(t);
}

void hspmd_timeline_begin(struct hspmd_timeline *t, const struct hspmd_program *p, int64_t step)
{
	if (t->step_count == STEPS_MAX)
		t->step_count--; /* the spans of the last are then counted to this one */
	t->steps[t->step_count++] = (struct step){ p, step, hspmd_timeline_count(t) };
}

static void add(struct hspmd_timeline *t, enum hspmd_lane lane, int what, double began, double ended)
{
	size_t at = atomic_fetch_add_explicit(&t->count, 1, memory_order_relaxed);
	if (at < t->capacity)
		t->spans[at] = (struct span){ began, ended, what, lane };
}

void hspmd_timeline_add(struct hspmd_timeline *t, enum hspmd_lane lane, int instruction, double began, double ended)
{
	add(t, lane, instruction, began, ended);
}

void hspmd_timeline_add_part(struct hspmd_timeline *t, enum hspmd_step_part part, double began, double ended)
{
	add(t, HSPMD_LANE_COMPUTE, ~(int)part, began, ended);
}

size_t hspmd_timeline_count(const struct hspmd_timeline *t)
{
	size_t count = atomic_load_explicit(&t->count, memory_order_relaxed);
	return count < t->capacity ? count : t->capacity;
}

bool hspmd_timeline_is_full(const struct hspmd_timeline *t)
{
	size_t count = hspmd_timeline_count(t), steps = (size_t)t->step_count;
	return steps + 2 > STEPS_MAX || (steps && count + 2 * count / steps > t->capacity);
}

size_t hspmd_timeline_dropped(const struct hspmd_timeline *t)
{
	return t->dropped + atomic_load_explicit(&t->count, memory_order_relaxed) - hspmd_timeline_count(t);
}

void hspmd_timeline_clear(struct hspmd_timeline *t)
{
	t->dropped = hspmd_timeline_dropped(t);
	atomic_store_explicit(&t->count, 0, memory_order_relaxed);
	t->step_count = 0;
}

/* ---- parts of a trace */

static const struct {
	const char *name, *category;
} parts[] = {
	[HSPMD_PART_STEP] = { "step", "step" },
	[HSPMD_PART_WAIT] = { "wait", "wait" },
	[HSPMD_PART_SUMS] = { "wait for sums of gradients", "synchronisation" },
	[HSPMD_PART_VOTE] = { "vote", "vote" },
	[HSPMD_PART_UPDATE] = { "optimizer", "optimizer" },
	[HSPMD_PART_PARAMETERS] = { "parameters", "synchronisation" },
	[HSPMD_PART_VALIDATION] = { "validation", "validation" },
};
#define PART_COUNT ((int)(sizeof parts / sizeof *parts))

/* What of an instruction does not depend on its micro-batch. */
struct label {
	const char *name, *category;
	int layer, tensor; /* tensor -1: none */
	size_t bytes;
	enum { NO_MESSAGE, MESSAGE_IN, MESSAGE_OUT } message;
};

static struct label label_of(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	bool message = in->kind == HSPMD_INSTRUCTION_COMM;
	int slot = in->output_count && in->out[0] >= 0 ? in->out[0] : in->in[0];
	const struct hspmd_slot_type *type = slot < 0 ? NULL : &p->slot_types[p->slots[slot].slot_type];
	size_t bytes = type ? type->bytes : 0;
	for (int k = 1; k <= in->joined; k++) { /* one message has them all */
		int other = in[k].out[0] >= 0 ? in[k].out[0] : in[k].in[0];
		bytes += other < 0 ? 0 : p->slot_types[p->slots[other].slot_type].bytes;
	}
	return (struct label){
		.name = message                               ? hspmd_comm_kind_names[in->transfer->steps[in->step].kind]
		        : in->kind == HSPMD_INSTRUCTION_READ  ? "read"
		        : in->kind == HSPMD_INSTRUCTION_COPY  ? "copy"
		        : in->kind == HSPMD_INSTRUCTION_AWAIT ? "await copy"
		                                              : hspmd_opcode_names[in->opcode],
		.category = message && in->micro_batch < 0 ? "synchronisation"
		            : message                      ? "communication"
		            : in->backward                 ? "backward"
		                                           : "forward",
		.layer = in->layer,
		.tensor = type ? type->tensor : -1,
		.bytes = message ? bytes : 0,
		.message = !message    ? NO_MESSAGE
		           : in->sends ? MESSAGE_OUT
		                       : MESSAGE_IN,
	};
}

static bool same_label(const struct label *a, const struct label *b)
{
	return a->name == b->name && a->category == b->category && a->layer == b->layer && a->tensor == b->tensor && a->bytes == b->bytes &&
	       a->message == b->message;
}

static size_t hash(const struct label *l)
{
	uint64_t h = (uintptr_t)l->name ^ (uintptr_t)l->category << 7;
	h = (h ^ (uint64_t)l->layer << 32 ^ (uint64_t)l->tensor) * UINT64_C(0x9e3779b97f4a7c15);
	h = (h ^ l->bytes ^ (uint64_t)l->message << 60) * UINT64_C(0x9e3779b97f4a7c15);
	return (size_t)(h >> 32);
}

/* The labels of a part, as they are found. */
struct labels {
	struct label *list;
	size_t count, capacity;
	int *places; /* open addressing; -1: empty */
	size_t place_count;
	json_t *texts;
};

static json_t *label_text(const struct hspmd_program *p, const struct label *l)
{
	char tensor[256] = "", message[64] = "";
	json_t *quoted = l->tensor < 0 ? NULL : json_string(p->graph->tensors[l->tensor].name);
	size_t length = quoted ? json_dumpb(quoted, tensor, sizeof tensor - 1, JSON_ENCODE_ANY) : 0;
	json_decref(quoted);
	if (!length || length >= sizeof tensor)
		length = (size_t)snprintf(tensor, sizeof tensor, "null");
	tensor[length] = 0;
	if (l->message != NO_MESSAGE)
		snprintf(message, sizeof message, "\"bytes\":%zu,\"sends\":%s,", l->bytes, l->message == MESSAGE_OUT ? "true" : "false");
	return json_sprintf("\"name\":\"%s\",\"cat\":\"%s\",\"args\":{\"layer\":%d,\"tensor\":%s,%s", l->name, l->category, l->layer,
	                    tensor, message);
}

/* The label's number; -1: no memory. */
static int label_number(struct labels *all, const struct hspmd_program *p, const struct label *l)
{
	size_t at = hash(l) & (all->place_count - 1);
	for (; all->places[at] >= 0; at = (at + 1) & (all->place_count - 1))
		if (same_label(&all->list[all->places[at]], l))
			return all->places[at];
	if (hspmd_array_grow(&all->list, &all->capacity, all->count, sizeof *all->list) ||
	    json_array_append_new(all->texts, label_text(p, l)))
		return -1;
	all->list[all->count] = *l;
	return all->places[at] = (int)all->count++;
}

/* A kind per instruction, then one per part of a step. */
static int add_kinds(struct labels *all, struct hspmd_trace_kinds *k, const struct hspmd_program *p)
{
	for (size_t i = 0; i < p->instruction_count; i++) {
		struct label l = label_of(p, &p->instructions[i]);
		int number = label_number(all, p, &l);
		if (number < 0)
			return -1;
		hspmd_trace_kinds_add(k, number, p->instructions[i].micro_batch);
	}
	for (int i = 0; i < PART_COUNT; i++) {
		if (json_array_append_new(all->texts,
		                          json_sprintf("\"name\":\"%s\",\"cat\":\"%s\",\"args\":{", parts[i].name, parts[i].category)))
			return -1;
		hspmd_trace_kinds_add(k, (int)json_array_size(all->texts) - 1, HSPMD_TRACE_NO_MICRO_BATCH);
	}
	return 0;
}

static int process_of(const struct hspmd_trace_origin *o)
{
	return o->first_process + o->place->process;
}

/* Nanoseconds from the beginning of the trace. */
static long long since(const struct hspmd_trace_origin *o, double seconds)
{
	return llround((seconds - o->seconds) * 1e9);
}

static long long without_gap(long long length)
{
	return length > GAP_NS ? length - GAP_NS : 0;
}

/* In which step the span is. */
static int step_of(const struct hspmd_timeline *t, size_t span)
{
	int k = 0;
	while (k + 1 < t->step_count && t->steps[k + 1].first <= span)
		k++;
	return k;
}

static void add_span(struct hspmd_trace_spans *out, const struct hspmd_trace_origin *o, const struct span *s, int kind)
{
	long long began = since(o, s->began), length = since(o, s->ended) - began;
	bool around = s->what == ~(int)HSPMD_PART_STEP, aside = s->what < 0;
	hspmd_trace_spans_add(out, s->lane, kind, aside, began > 0 ? began : 0, around ? length : without_gap(length));
}

/* Add the spans of one program, and not too many; returns the next one, or 0: no memory. */
static size_t add_spans(const struct hspmd_timeline *t, const struct hspmd_trace_origin *o, size_t from, struct hspmd_trace_spans *spans,
                        struct hspmd_trace_kinds *kinds, json_t *labels)
{
	int k = step_of(t, from), step_kind = -1;
	const struct hspmd_program *p = t->steps[k].program;
	int parts_from = (int)p->instruction_count, kind_count = parts_from + PART_COUNT;
	size_t i = from, end = hspmd_timeline_count(t) - from < PART_SPANS ? hspmd_timeline_count(t) : from + PART_SPANS;
	for (hspmd_trace_spans_step(spans, t->steps[k].number); i < end; i++) {
		const struct span *s = &t->spans[i];
		for (; k + 1 < t->step_count && t->steps[k + 1].first <= i; step_kind = -1)
			hspmd_trace_spans_step(spans, t->steps[++k].number);
		if (t->steps[k].program != p)
			break;
		int kind = s->what < 0 ? parts_from + ~s->what : s->what;
		if (s->what == ~(int)HSPMD_PART_STEP) {
			/* Named by its number, and so of a kind of its own. */
			if (step_kind < 0) {
				if (json_array_append_new(labels, json_sprintf("\"name\":\"step %" PRId64 "\",\"cat\":\"step\",\"args\":{",
				                                               t->steps[k].number)))
					return 0;
				hspmd_trace_kinds_add(kinds, (int)json_array_size(labels) - 1, HSPMD_TRACE_NO_MICRO_BATCH);
				step_kind = kind_count++;
			}
			kind = step_kind;
		}
		add_span(spans, o, s, kind);
	}
	return i;
}

json_t *hspmd_timeline_part(const struct hspmd_timeline *t, const struct hspmd_trace_origin *o, size_t *from)
{
	const struct hspmd_program *p = t->steps[step_of(t, *from)].program;
	struct labels all = { .texts = json_array(), .place_count = 64 };
	struct hspmd_trace_kinds kinds = { 0 };
	struct hspmd_trace_spans spans = { 0 };
	while (all.place_count < 2 * p->instruction_count)
		all.place_count *= 2;
	all.places = malloc(all.place_count * sizeof *all.places);
	if (all.places)
		memset(all.places, 0xff, all.place_count * sizeof *all.places);
	size_t next = 0;
	if (all.places && all.texts && !add_kinds(&all, &kinds, p))
		next = add_spans(t, o, *from, &spans, &kinds, all.texts);
	free(all.places);
	free(all.list);
	json_t *kinds_text = hspmd_vlq_take(&kinds.out), *spans_text = hspmd_vlq_take(&spans.out);
	if (!next) {
		json_decref(spans_text);
		spans_text = NULL; /* which json_pack refuses, and frees the others */
	}
	*from = next;
	return json_pack("{s:i, s:i, s:o, s:o, s:o}", "process", process_of(o), "thread", o->place->thread, "labels", all.texts, "kinds",
	                 kinds_text, "spans", spans_text);
}

/* ---- events as text */

void hspmd_trace_write_span(const struct hspmd_trace_origin *o, enum hspmd_lane lane, const char *name, const char *category, double began,
                            double ended, const char *more, FILE *f)
{
	long long start = since(o, began), length = without_gap(since(o, ended) - start);
	start = start > 0 ? start : 0;
	fprintf(f, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03lld,\"dur\":%lld.%03lld,\"name\":\"%s\",\"cat\":\"%s\"%s}",
	        process_of(o), o->place->thread + (int)lane, start / 1000, start % 1000, length / 1000, length % 1000, name, category,
	        more);
}

void hspmd_trace_write_names(const struct hspmd_trace_origin *o, FILE *f)
{
	int process = process_of(o);
	char text[200];
	fprintf(f, ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"%s\"}}", process,
	        o->place->process_name);
	for (int l = 0; l < HSPMD_LANE_COUNT; l++) {
		int thread = o->place->thread + l;
		fprintf(f,
		        ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}"
		        ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
		        process, thread, hspmd_trace_lane_name(o->place, (enum hspmd_lane)l, text, sizeof text), process, thread, thread);
	}
}
