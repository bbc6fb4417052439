/* SPDX-License-Identifier: Apache-2.0 */
/* State that outlived its workers. The worker of a CPU device keeps its state in memory that stays on the node if the process is killed
 * (runtime/state/persistent.h). If the living workers do not hold all state together, a new process is started for the device at once,
 * which takes up that state. From then on it is a survivor: it is asked what it holds and told to settle like all others, and the next
 * generation gets state from it. If the living workers hold all state, nothing is waited for. */
#include <math.h>
#include <stdlib.h>

#include "common/format/device_traits.h"
#include "common/alloc.h"
#include "controller/core/controller_internal.h"

#define REVIVALS 10 /* of a worker, without a committed step between */

/* Returns true if living workers hold all state under the bound plan. They may be a step apart until they have settled. */
static bool held_by_living(const struct hspmd_controller *m, const struct bound_plan *l)
{
	int *device = hspmd_calloc((size_t)l->devices, sizeof *device), count = 0;
	for (int i = 0; device && i < l->devices; i++)
		if (l->device[i]->process == PROC_UP && l->device[i]->holds == l->generation)
			device[count++] = hspmd_cluster_find_device(l->cluster, l->device[i]->address, NULL);
	bool yes = count > 0 && m->config->covered(l->plan, l->cluster, device, count);
	free(device);
	return yes;
}

/* Returns true if the node may still have this worker's state, and a process can be started there. If the node's agent has not connected
 * since the controller was restarted, its devices are those of the bound plan. */
static bool may_revive(const struct hspmd_controller *m, const struct bound_plan *l, const struct worker *w)
{
	int device = hspmd_cluster_find_device(l->cluster, w->address, NULL);
	const struct node *n = w->node;
	bool agent = n->agent == PROC_UP || n->agent == PROC_STARTING || m->now < m->slurm_confirm_until;
	return w->process == PROC_NONE && !w->reviving && w->revivals < REVIVALS && n->held && !n->terminating && agent &&
	       w->index < n->workers && device >= 0 &&
	       hspmd_device_traits(l->cluster->types[l->cluster->devices[device].type].kind)->host_memory;
}

static void begin(struct hspmd_controller *m, struct worker *w)
{
	w->reviving = true;
	w->revivals++;
	w->revive_by = m->now + (w->node->agent == PROC_UP ? m->config->timeouts.revive : m->config->timeouts.revive_agent);
	m->current.deadline = fmax(m->current.deadline, w->revive_by);
	note_event(m, "revive", "worker %s: its state is taken up from its node's memory", w->address);
	if (w->node->agent == PROC_UP)
		worker_spawn(m, w);
}

bool revive_missing(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	struct bound_plan *of[2] = { g->bound_plan, m->older };
	bool any = false;
	if (!m->config->memory || m->end != END_NONE)
		return false;
	for (int k = 0; k < 2; k++)
		if (of[k] && held_by_living(m, of[k]))
			return false;
	for (int k = 0; k < 2; k++)
		for (int i = 0; of[k] && (k == 0 || of[1] != of[0]) && i < of[k]->devices; i++) {
			struct worker *w = of[k]->device[i];
			if (!may_revive(m, of[k], w) || generation_add_member(m, g, w))
				continue;
			begin(m, w);
			any = true;
		}
	return any;
}

void revive_agent_up(struct hspmd_controller *m, struct node *n)
{
	for (int i = 0; i < n->workers; i++)
		if (n->worker[i]->reviving && n->worker[i]->process == PROC_NONE) {
			n->worker[i]->revive_by = m->now + m->config->timeouts.revive;
			m->current.deadline = fmax(m->current.deadline, n->worker[i]->revive_by);
			worker_spawn(m, n->worker[i]);
		}
}

void revive_ask(struct hspmd_controller *m, struct worker *w)
{
	if (w->reviving && m->current.bound_plan)
		send_workers(m, &w, 1,
		             check_alloc(m, json_pack("{s:s, s:I, s:b}", "type", "abort", "generation",
		                                      (json_int_t)m->current.bound_plan->generation, "revive", 1)));
}

void revive_drop(struct hspmd_controller *m, struct worker *w)
{
	if (!w->reviving)
		return;
	w->reviving = false;
	generation_remove_member(&m->current, w);
}

void revive_give_up(struct hspmd_controller *m, struct worker *w)
{
	w->revivals = REVIVALS;
	revive_drop(m, w);
}

void revive_drop_node(struct hspmd_controller *m, struct node *n)
{
	for (int i = 0; i < n->workers; i++)
		if (n->worker[i]->process == PROC_NONE && n->worker[i]->reviving)
			revive_give_up(m, n->worker[i]);
}
