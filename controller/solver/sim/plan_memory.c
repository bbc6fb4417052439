/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a plan's devices at the fullest instant of a step, by its schedule: which micro-batches are in flight together. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/schedule.h"
#include "controller/solver/cost/cost_constants.h"
#include "controller/solver/sim/evaluate.h"

/* What micro-batches have on a device at one time: on it, or in the host's memory. */
struct levels {
	double device, host;
};

/* Most bytes at one time on stage `stage` of every chunk, in the order of its schedule. INFINITY if memory runs out. */
static struct levels fullest(const struct hspmd_plan *p, int pipeline, int stage, const struct hspmd_memory *chunks)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	struct hspmd_pipeline_rank rank = { stage, pipe->stage_count / p->virtual_stages, p->virtual_stages, pipe->micro_batches };
	int entries = hspmd_schedule_length(p->schedule, &rank);
	struct hspmd_schedule_entry *entry = hspmd_calloc((size_t)entries, sizeof *entry);
	struct levels now = { 0, 0 }, most = { 0, 0 };
	if (!entry)
		return (struct levels){ INFINITY, INFINITY };
	hspmd_schedule(p->schedule, &rank, entry);
	for (int i = 0; i < entries; i++) {
		const struct hspmd_memory *m = &chunks[entry[i].chunk];
		now.device -= entry[i].backward ? m->in_flight : 0;
		now.host -= entry[i].backward ? m->offloaded_activations : 0;
		most.device = fmax(most.device, now.device + m->running);
		most.host = fmax(most.host, now.host + m->offloaded_activations - m->last_offloads);
		now.device += entry[i].backward ? 0 : m->in_flight;
		now.host += entry[i].backward ? 0 : m->offloaded_activations;
	}
	free(entry);
	return most;
}

/* Bytes of messages between stages beyond `in_flight` sent activations, by hspmd's programs under 1F1B. As the pipeline fills, every sent
 * activation stays allocated. From then on a stage is told with each gradient that an activation has arrived, so that one stays, and with
 * each activation that a gradient has. */
static double more_messages(const struct hspmd_plan *p, int pipeline, int in_flight, const struct hspmd_memory *m)
{
	if (p->schedule != HSPMD_SCHEDULE_1F1B || p->pipelines[pipeline].micro_batches <= in_flight + 1)
		return 0;
	return fmax(0, m->returned + (in_flight ? m->sent : 0) - in_flight * m->sent);
}

/* The same for a schedule without chunks. */
static double fullest_plain(const struct hspmd_plan *p, int pipeline, int stage, const struct hspmd_memory *m)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	int in_flight = hspmd_in_flight(stage, pipe->stage_count, pipe->micro_batches, p->schedule) - 1; /* without the one that runs */
	int deferred = hspmd_deferred_weight_grads(stage, pipe->micro_batches, p->schedule);
	deferred -= deferred > 0;
	return (in_flight - deferred) * m->in_flight + deferred * m->deferred + m->running + more_messages(p, pipeline, in_flight, m);
}

double hspmd_plan_memory(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage, int which)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	struct hspmd_layer_copies copies;
	struct hspmd_memory one, *chunks = p->virtual_stages > 1 ? hspmd_calloc((size_t)p->virtual_stages, sizeof *chunks) : &one;
	const struct hspmd_device_type *type = &c->cluster->types[c->cluster->devices[pipe->stages[stage].devices[which]].type];
	int step = pipe->stage_count / p->virtual_stages;
	bool deferring = p->schedule == HSPMD_SCHEDULE_ZB_H1;
	double state = 0, end = 0, workspace = 0;
	if (!chunks)
		return INFINITY;
	for (int r = 0; r < p->virtual_stages; r++) {
		copies = hspmd_costs_copies(c, p, pipeline, stage + r * step);
		chunks[r] = hspmd_costs_memory(c, &pipe->stages[stage + r * step], which, pipe->micro_batch, deferring, &copies);
		state += chunks[r].state;
		end = fmax(end + chunks[r].end, chunks[r].ending);
		workspace = fmax(workspace, chunks[r].workspace);
	}
	double passes = chunks == &one ? fullest_plain(p, pipeline, stage, &one) : fullest(p, pipeline, stage, chunks).device;
	if (c->facts && deferring)
		passes *= HSPMD_PLAN_GAPS;
	if (c->facts && copies.turn && pipe->stages[stage].offload_activations)
		passes *= HSPMD_PLAN_GAPS_AHEAD;
	if (c->facts && copies.turn && p->virtual_stages > 1)
		passes *= HSPMD_PLAN_GAPS_INTERLEAVED;
	if (chunks != &one)
		free(chunks);
	return hspmd_device_bytes(c, type, state + workspace + fmax(passes, end));
}

struct hspmd_host_bytes hspmd_plan_host_bytes(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage, int which)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	struct hspmd_memory *chunks = NULL;
	struct hspmd_host_bytes bytes = { 0, 0 };
	int step = pipe->stage_count / p->virtual_stages;
	bool any = false;
	for (int s = stage; s < pipe->stage_count; s += step)
		any = any || pipe->stages[s].offload || pipe->stages[s].offload_activations;
	if (!any)
		return bytes;
	if (!(chunks = hspmd_calloc((size_t)p->virtual_stages, sizeof *chunks)))
		return (struct hspmd_host_bytes){ INFINITY, INFINITY };
	for (int r = 0; r < p->virtual_stages; r++) {
		const struct hspmd_layer_copies copies = hspmd_costs_copies(c, p, pipeline, stage + r * step);
		chunks[r] = hspmd_costs_memory(c, &pipe->stages[stage + r * step], which, pipe->micro_batch,
		                               p->schedule == HSPMD_SCHEDULE_ZB_H1, &copies);
		bytes.optimizer += chunks[r].offloaded;
	}
	int in_flight = hspmd_in_flight(stage, step, pipe->micro_batches, p->schedule);
	int deferred = hspmd_deferred_weight_grads(stage, pipe->micro_batches, p->schedule);
	deferred -= deferred > 0;
	bytes.activations = p->virtual_stages > 1 ? fullest(p, pipeline, stage, chunks).host
	                                          : (in_flight - deferred) * chunks[0].offloaded_activations +
	                                                    deferred * chunks[0].offloaded_later - chunks[0].last_offloads;
	free(chunks);
	return bytes;
}

double hspmd_plan_host_memory(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage, int which)
{
	struct hspmd_host_bytes bytes = hspmd_plan_host_bytes(c, p, pipeline, stage, which);
	return HSPMD_HOST_COPIES * bytes.optimizer + bytes.activations;
}
