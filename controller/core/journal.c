/* SPDX-License-Identifier: Apache-2.0 */
/* The journal: what a later incarnation of the controller must know to take over the workers of this one (adopt.c). */
#include "controller/core/controller_internal.h"

static json_t *bound_plan_json(struct hspmd_controller *m, const struct bound_plan *l)
{
	return l ? check_alloc(m, json_pack("{s:I, s:O, s:O, s:i, s:i, s:f, s:s}", "generation", (json_int_t)l->generation, "cluster",
	                                    l->cluster_json, "plan", l->plan_json, "nodes", l->nodes, "copies", l->copies, "behind",
	                                    l->behind, "found", l->found))
	         : json_null();
}

/* The change that was carried out, and whose resize line may not be written when this incarnation ends. */
static json_t *change_json(struct hspmd_controller *m)
{
	const struct change *c = &m->change;
	if (!c->open || !c->started)
		return json_null();
	return check_alloc(m, json_pack("{s:s, s:s, s:I, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "cause", c->cause, "state",
	                                c->source ? c->source : "live", "steps_lost", (json_int_t)c->steps_lost, "from_nodes",
	                                c->from_nodes, "planned", c->planned, "specialised", c->specialised, "connected", c->connected,
	                                "moved", c->moved, "local", c->local, "peers", c->peers, "disk", c->disk, "shared", c->shared));
}

/* The checkpoints in nodes' own folders, unless there may be others that the job keeps: then the next incarnation must not remove them. */
static json_t *committed_json(struct hspmd_controller *m)
{
	if (!committed_known(m))
		return NULL;
	return check_alloc(m, m->committed ? json_copy(m->committed) : json_array());
}

void journal(struct hspmd_controller *m)
{
	const struct generation *g = &m->current;
	json_t *members = check_alloc(m, json_array()), *held = check_alloc(m, json_array());
	for (int i = 0; i < g->members; i++)
		if (json_array_append_new(members, json_string(g->member[i]->address)))
			m->failed = true;
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->held && json_array_append_new(held, json_string(m->node[i]->name)))
			m->failed = true;
	emit(m, ACTION_JOURNAL, NULL,
	     check_alloc(m, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o*}", "current", bound_plan_json(m, g->bound_plan), "older",
	                              bound_plan_json(m, m->older), "members", members, "nodes", held, "change", change_json(m),
	                              "committed", committed_json(m))),
	     0);
}

void adopt_end(struct hspmd_controller *m)
{
	json_decref(m->adopt);
	m->adopt = NULL;
}
