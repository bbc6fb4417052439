/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/timeline.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/op/op.h"

struct span {
	int instruction;
	double began, ended;
};

struct hspmd_timeline {
	int64_t step;
	size_t capacity;
	size_t count[HSPMD_LANE_COUNT];
	struct span *spans[HSPMD_LANE_COUNT];
};

struct hspmd_timeline *hspmd_timeline_create(size_t instructions)
{
	struct hspmd_timeline *t = hspmd_calloc(1, sizeof *t);
	if (!t)
		return NULL;
	t->capacity = instructions;
	for (int l = 0; l < HSPMD_LANE_COUNT; l++)
		if (!(t->spans[l] = hspmd_calloc(instructions, sizeof *t->spans[l]))) {
			hspmd_timeline_destroy(t);
			return NULL;
		}
	return t;
}

void hspmd_timeline_destroy(struct hspmd_timeline *t)
{
	for (int l = 0; t && l < HSPMD_LANE_COUNT; l++)
		free(t->spans[l]);
	free(t);
}

void hspmd_timeline_begin(struct hspmd_timeline *t, int64_t step)
{
	t->step = step;
	for (int l = 0; l < HSPMD_LANE_COUNT; l++)
		t->count[l] = 0;
}

void hspmd_timeline_add(struct hspmd_timeline *t, enum hspmd_lane lane, int instruction, double began, double ended)
{
	if (t->count[lane] < t->capacity)
		t->spans[lane][t->count[lane]++] = (struct span){ instruction, began, ended };
}

static json_t *event_of(const struct hspmd_program *p, const struct span *s, int process, int lane)
{
	const struct hspmd_instruction *in = &p->instructions[s->instruction];
	const char *name = in->kind == HSPMD_INSTRUCTION_COMM   ? hspmd_comm_kind_names[in->transfer->steps[in->step].kind]
	                   : in->kind == HSPMD_INSTRUCTION_READ ? "read"
	                                                        : hspmd_opcode_names[in->opcode];
	int slot = in->output_count && in->out[0] >= 0 ? in->out[0] : in->in[0];
	const char *tensor = slot < 0 ? NULL : p->graph->tensors[p->slot_types[p->slots[slot].slot_type].tensor].name;
	return json_pack("{ss, ss, ss, si, si, sf, sf, s{si, si, ss*}}", "name", name, "cat", in->backward ? "backward" : "forward", "ph",
	                 "X", "pid", process, "tid", lane, "ts", s->began * 1e6, "dur", (s->ended - s->began) * 1e6, "args", "layer",
	                 in->layer, "micro_batch", in->micro_batch, "tensor", tensor);
}

int hspmd_timeline_write(const struct hspmd_timeline *t, const struct hspmd_program *p, int process, const char *name, const char *path,
                         struct hspmd_error *err)
{
	static const char *const lanes[] = { "computation", "transfers between operators", "sums of gradients" };
	json_t *events = json_array();
	json_array_append_new(events, json_pack("{ss, ss, si, s{ss, sI}}", "name", "process_name", "ph", "M", "pid", process, "args",
	                                        "name", name, "step", (json_int_t)t->step));
	for (int l = 0; l < HSPMD_LANE_COUNT; l++) {
		json_array_append_new(events, json_pack("{ss, ss, si, si, s{ss}}", "name", "thread_name", "ph", "M", "pid", process, "tid",
		                                        l, "args", "name", lanes[l]));
		for (size_t i = 0; i < t->count[l]; i++)
			json_array_append_new(events, event_of(p, &t->spans[l][i], process, l));
	}
	json_t *doc = json_pack("{so*}", "traceEvents", events);
	int status = doc ? json_dump_file(doc, path, JSON_COMPACT) : -1;
	json_decref(doc);
	return status ? hspmd_fail(err, "%s: cannot be written", path) : 0;
}
