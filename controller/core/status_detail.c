/* SPDX-License-Identifier: Apache-2.0 */
/* What a live view needs beyond the status, if a request for it has `detail`: true:
 *
 *   device_list  [{ device, type, memory_total_bytes; of a device in the plan also pipeline, stage, layers: [first, end]; once it has
 *                reported in this generation also memory_bytes: at its peak; busy: the part of a step in which it computes; sent_per_s:
 *                bytes to other devices }], in the order of the plan, then those that the plan does not use
 *   history      [[step, loss or null]] of the last steps, the oldest first
 *   events       the last lines of events.jsonl */
#include <math.h>
#include <string.h>

#include "controller/core/controller_internal.h"

#define DETAIL_EVENTS 32

void device_load_note(struct worker *w, const json_t *message)
{
	double steps = json_number_value(json_object_get(message, "steps"));
	const json_t *compute = json_object_get(message, "compute_s"), *memory = json_object_get(message, "memory_bytes"),
	             *sent = json_object_get(message, "sent_bytes");
	if (json_integer_value(json_object_get(message, "generation")) != w->load.generation)
		w->load.computed_s = w->load.steps = 0;
	if (json_is_number(compute)) {
		w->load.compute_s = json_number_value(compute);
		w->load.computed_s += w->load.compute_s * fmax(1, steps);
		w->load.steps += fmax(1, steps);
	}
	if (json_is_integer(memory))
		w->load.memory_bytes = json_integer_value(memory);
	if (json_is_number(sent))
		w->load.sent_per_step = json_number_value(sent) / fmax(1, steps);
	w->load.generation = json_integer_value(json_object_get(message, "generation"));
}

void device_loads_save(struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	json_t *list = check_alloc(m, json_array());
	for (int i = 0; l && i < l->devices && !m->failed; i++) {
		const struct worker *w = l->device[i];
		if (w->load.generation != l->generation || w->load.steps < 1)
			continue;
		json_t *one = json_pack("{s:s, s:I, s:f}", "device", w->address, "steps", (json_int_t)w->load.steps, "compute_s",
		                        w->load.computed_s / w->load.steps);
		if (!check_alloc(m, one) || json_array_append_new(list, one))
			m->failed = true;
	}
	if (l && json_array_size(list))
		emit(m, ACTION_SAVE_DEVICES, NULL, check_alloc(m, json_pack("{s:O}", "devices", list)), l->generation);
	json_decref(list);
}

void history_note(struct hspmd_controller *m, int64_t step, double loss)
{
	m->history[m->history_count++ % HISTORY_STEPS] = (struct past_step){ step, loss };
}

static json_t *history(const struct hspmd_controller *m)
{
	json_t *list = json_array();
	for (int64_t i = m->history_count > HISTORY_STEPS ? m->history_count - HISTORY_STEPS : 0; i < m->history_count; i++) {
		const struct past_step *s = &m->history[i % HISTORY_STEPS];
		json_array_append_new(list, json_pack("[I,o]", (json_int_t)s->step, isfinite(s->loss) ? json_real(s->loss) : json_null()));
	}
	return list;
}

/* One device; stage NULL: the plan does not use it. */
static json_t *device(const struct hspmd_controller *m, const struct worker *w, const struct hspmd_device_type *type,
                      const struct hspmd_stage *stage, int pipeline, int rank)
{
	json_t *d = json_pack("{s:s, s:s, s:I}", "device", w->address, "type", type->name, "memory_total_bytes",
	                      (json_int_t)type->memory_bytes);
	if (stage)
		json_object_update_new(d, json_pack("{s:i, s:i, s:[i,i]}", "pipeline", pipeline, "stage", rank, "layers", stage->layers[0],
		                                    stage->layers[1]));
	const struct bound_plan *l = m->current.bound_plan;
	if (!stage || w->load.generation != l->generation)
		return d;
	json_object_set_new(d, "memory_bytes", json_integer((json_int_t)w->load.memory_bytes));
	if (m->step_s > 0)
		json_object_update_new(d, json_pack("{s:f, s:f}", "busy", fmin(1, w->load.compute_s / m->step_s), "sent_per_s",
		                                    w->load.sent_per_step / m->step_s));
	return d;
}

static json_t *devices(const struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	json_t *list = json_array(), *used = json_object();
	int at = 0;
	for (int p = 0; l && p < l->plan->pipeline_count; p++)
		for (int s = 0; s < l->plan->pipelines[p].stage_count / l->plan->virtual_stages; s++) {
			const struct hspmd_stage *stage = &l->plan->pipelines[p].stages[s];
			for (int d = 0; d < stage->device_count; d++, at++) {
				const struct hspmd_device_type *type = &l->cluster->types[l->cluster->devices[stage->devices[d]].type];
				json_array_append_new(list, device(m, l->device[at], type, stage, p, s));
				json_object_set_new(used, l->device[at]->address, json_true());
			}
		}
	for (size_t i = 0; i < m->nodes; i++) {
		const struct node *n = m->node[i];
		for (int d = 0; n->held && n->part && d < n->workers && d < n->part->device_count; d++)
			if (!json_object_get(used, n->worker[d]->address))
				json_array_append_new(
				        list, device(m, n->worker[d], &n->part->types[n->part->devices[d].type], NULL, -1, -1));
	}
	json_decref(used);
	return list;
}

int status_add_detail(const struct hspmd_controller *m, json_t *status)
{
	json_t *events = json_array();
	size_t count = json_array_size(m->events);
	for (size_t i = count > DETAIL_EVENTS ? count - DETAIL_EVENTS : 0; i < count; i++)
		json_array_append(events, json_array_get(m->events, i));
	return json_object_set_new(status, "device_list", devices(m)) || json_object_set_new(status, "history", history(m)) ||
	                       json_object_set_new(status, "events", events)
	               ? -1
	               : 0;
}
