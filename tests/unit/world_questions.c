/* SPDX-License-Identifier: Apache-2.0 */
/* What a test asks of the simulated cluster: what happened so far, what was counted, and two settings. */
#include "tests/unit/world_internal.h"

void world_slow(struct world *w, int node, double factor)
{
	w->slow[node] = factor;
}

double world_slowdown(const struct world *w, int node)
{
	return w->told_slow[node];
}

bool world_ended(const struct world *w, int *status)
{
	*status = w->status;
	return w->ended;
}

int world_steps_told(const struct world *w)
{
	return (int)w->next_line;
}

int64_t world_last_start(const struct world *w)
{
	return w->last_start;
}

int world_generations(const struct world *w)
{
	return (int)json_object_size(w->plans);
}

int world_unexpected(const struct world *w)
{
	return w->unexpected;
}

const char *world_cause(const struct world *w)
{
	return w->cause;
}

int world_nodes(const struct world *w)
{
	return w->nodes;
}

int world_resizes(const struct world *w)
{
	return w->resizes;
}

int64_t world_steps_lost(const struct world *w)
{
	return w->lost;
}

int world_readers(const struct world *w)
{
	return w->readers;
}

int world_began_anew(const struct world *w)
{
	return w->anew;
}

int world_commands(const struct world *w)
{
	return w->commands;
}

int world_replies(const struct world *w, bool ok)
{
	return ok ? w->ok : w->refused;
}

int world_samples(const struct world *w)
{
	return w->samples;
}

int world_shared_asked(const struct world *w)
{
	return w->shared_asked;
}

int world_written(const struct world *w)
{
	return (int)json_array_size(w->local);
}

int world_kept(const struct world *w)
{
	size_t written = json_array_size(w->local), kept = 0;
	while (kept < written && json_equal(json_array_get(w->kept, kept), json_array_get(w->local, written - 1 - kept)))
		kept++;
	return (int)kept;
}

void world_set_bad_senders(struct world *w, unsigned nodes)
{
	w->bad_senders = nodes;
}

struct world_manifests world_manifests(const struct world *w)
{
	return w->manifests;
}

bool world_saved(const struct world *w)
{
	return w->saved_step == w->next_line && w->shared_step == w->next_line;
}

json_t *world_status(const struct world *w)
{
	return hspmd_controller_status(w->m, w->now, w->now);
}

const char *world_exit_text(const struct world *w)
{
	return w->text;
}
