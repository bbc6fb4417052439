/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/timeline.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/op/op.h"

#define STEPS_MAX 256 /* that are recorded before they must be written */
/* Perfetto drops a span that ends after the next of its thread has begun, or after the span around it. Decimal microseconds, which it makes
 * binary and cuts off, may be wrong by a nanosecond at each end. */
#define GAP_NS 2

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

/* ---- events */

static void write_span(const struct hspmd_trace_origin *o, enum hspmd_lane lane, const char *name, const char *category, double began,
                       double ended, bool around, const char *more, FILE *f)
{
	long long start = llround((began - o->seconds) * 1e9), length = llround((ended - o->seconds) * 1e9) - start;
	if (!around)
		length = length > GAP_NS ? length - GAP_NS : 0;
	start = start > 0 ? start : 0;
	fprintf(f, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03lld,\"dur\":%lld.%03lld,\"name\":\"%s\",\"cat\":\"%s\"%s}",
	        o->first_process + o->place->process, o->place->thread + (int)lane, start / 1000, start % 1000, length / 1000,
	        length % 1000, name, category, more);
}

void hspmd_trace_write_span(const struct hspmd_trace_origin *o, enum hspmd_lane lane, const char *name, const char *category, double began,
                            double ended, const char *more, FILE *f)
{
	write_span(o, lane, name, category, began, ended, false, more, f);
}

void hspmd_trace_write_names(const struct hspmd_trace_origin *o, FILE *f)
{
	int process = o->first_process + o->place->process;
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

static void write_part(const struct hspmd_trace_origin *o, const struct span *s, int64_t step, FILE *f)
{
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
	enum hspmd_step_part part = (enum hspmd_step_part) ~s->what;
	char name[48], more[48];
	snprintf(name, sizeof name, part == HSPMD_PART_STEP ? "%s %" PRId64 : "%s", parts[part].name, step);
	snprintf(more, sizeof more, ",\"args\":{\"step\":%" PRId64 "}", step);
	write_span(o, s->lane, name, parts[part].category, s->began, s->ended, part == HSPMD_PART_STEP, more, f);
}

static void write_instruction(const struct hspmd_trace_origin *o, const struct span *s, const struct step *of, FILE *f)
{
	static const char *const communication[] = { [HSPMD_LANE_TRANSFERS] = "communication", [HSPMD_LANE_SUMS] = "synchronisation" };
	const struct hspmd_program *p = of->program;
	const struct hspmd_instruction *in = &p->instructions[s->what];
	bool message = in->kind == HSPMD_INSTRUCTION_COMM;
	const char *name = message                              ? hspmd_comm_kind_names[in->transfer->steps[in->step].kind]
	                   : in->kind == HSPMD_INSTRUCTION_READ ? "read"
	                                                        : hspmd_opcode_names[in->opcode];
	const char *category = message && communication[s->lane] ? communication[s->lane] : in->backward ? "backward" : "forward";
	int slot = in->output_count && in->out[0] >= 0 ? in->out[0] : in->in[0];
	const struct hspmd_slot_type *type = slot < 0 ? NULL : &p->slot_types[p->slots[slot].slot_type];
	char more[512], tensor[256] = "";
	json_t *quoted = type ? json_string(p->graph->tensors[type->tensor].name) : NULL;
	size_t length = quoted ? json_dumpb(quoted, tensor, sizeof tensor - 1, JSON_ENCODE_ANY) : 0;
	json_decref(quoted);
	if (!length || length >= sizeof tensor)
		length = (size_t)snprintf(tensor, sizeof tensor, "null");
	tensor[length] = 0;
	int n = snprintf(more, sizeof more, ",\"args\":{\"step\":%" PRId64 ",\"layer\":%d,\"micro_batch\":%d,\"tensor\":%s", of->number,
	                 in->layer, in->micro_batch, tensor);
	if (message)
		n += snprintf(more + n, sizeof more - (size_t)n, ",\"bytes\":%zu,\"sends\":%s", type ? type->bytes : 0,
		              in->sends ? "true" : "false");
	snprintf(more + n, sizeof more - (size_t)n, "}");
	hspmd_trace_write_span(o, s->lane, name, category, s->began, s->ended, more, f);
}

size_t hspmd_timeline_write(const struct hspmd_timeline *t, const struct hspmd_trace_origin *o, size_t from, size_t most, FILE *f)
{
	size_t count = hspmd_timeline_count(t), end = count - from < most ? count : from + most;
	int k = 0;
	for (size_t i = from; i < end; i++) {
		const struct span *s = &t->spans[i];
		while (k + 1 < t->step_count && t->steps[k + 1].first <= i)
			k++;
		if (s->what < 0)
			write_part(o, s, t->steps[k].number, f);
		else
			write_instruction(o, s, &t->steps[k], f);
	}
	return end;
}
