/* SPDX-License-Identifier: Apache-2.0 */
/* What happens in the simulated cluster: random moves, faults drawn at random, and those that a test asks for. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/run/coverage.h"
#include "tests/unit/world_internal.h"

/* ---- random moves and faults */

/* Returns false if workers are so far ahead of the reported steps that they must wait. */
static bool heard(const struct world *w)
{
	for (int n = 0; n < NODES; n++)
		if (w->up[n].count > QUEUE / 16)
			return false;
	return true;
}

bool world_move(struct world *w)
{
	if (w->ended)
		return false;
	/* The first of the possible moves, from a random start. */
	int start = (int)world_pick(w, 2 * NODES + 5);
	for (int k = 0; k < 2 * NODES + 5; k++) {
		int what = (start + k) % (2 * NODES + 5);
		if (what < NODES && world_second_moves(w, what))
			return true;
		if (what < NODES && w->away[what] && !w->silent[what]) {
			world_call(w, what);
			return true;
		}
		if (what < NODES && w->up[what].count && !w->away[what] && !(w->silent[what] && !w->agent[what])) {
			world_deliver(w, what);
			return true;
		}
		if (what >= NODES && what < 2 * NODES && w->down[what - NODES].count) {
			json_t *m = world_get(&w->down[what - NODES]);
			if (w->agent[what - NODES] && !w->vanished[what - NODES])
				world_agent_hears(w, what - NODES, m);
			json_decref(m);
			return true;
		}
		if (what == 2 * NODES && world_solve(w))
			return true;
		if (what == 2 * NODES + 1 && w->poll) {
			world_tell_allocation(w);
			return true;
		}
		if (what == 2 * NODES + 2 && (w->grow || world_shrink_is_due(w))) {
			world_resize(w);
			return true;
		}
		if (what == 2 * NODES + 3 && heard(w) && !(w->o.long_steps && world_pick(w, 8)) && world_work(w))
			return true;
		if (what == 2 * NODES + 4 && w->waiting && world_member_starts(w))
			return true;
	}
	return w->o.long_steps && world_work(w);
}

void world_wait(struct world *w)
{
	double next = hspmd_controller_deadline(w->m);
	if (w->ended)
		return;
	for (int n = 0; n < NODES; n++)
		if (w->vanished[n])
			next = fmin(next, w->vanished_at[n] + WORLD_UNNOTICED_S);
	if (isinf(next))
		fail_msg("nothing can happen and nothing is waited for");
	w->now = next;
	world_feed(w, (struct run_event){ .kind = EVENT_TICK });
}

int world_events_with(const struct world *w, const char *words)
{
	int count = 0;
	for (size_t i = 0; i < json_array_size(w->events); i++)
		count += strstr(world_word(json_array_get(w->events, i), "text"), words) != NULL;
	return count;
}

void world_stop(struct world *w, double seconds)
{
	w->now += seconds;
	world_feed(w, (struct run_event){ .kind = EVENT_TICK });
}

static void command(struct world *w, json_t *value)
{
	assert_true(w->commands + 1 < (int)(sizeof w->replied));
	world_feed(w, (struct run_event){ .kind = EVENT_COMMAND, .id = ++w->commands, .value = value });
	json_decref(value);
}

static void killed(struct world *w, struct sim *s)
{
	if (!s->alive)
		return;
	world_put(&w->up[s->node], json_pack("{s:s, s:s, s:I, s:s}", "type", "exited", "device", s->address, "serial",
	                                     (json_int_t)s->serial, "text", "killed by signal 9"));
	world_killed(s);
}

void world_kill(struct world *w, int node, int device, enum world_how how)
{
	struct sim *s = &w->sim[node][device];
	if (w->ended)
		return;
	if (how == WORLD_AGENT && w->agent[node])
		world_agent_dies(w, node);
	else if (how == WORLD_HANG)
		s->hung |= s->alive;
	else if (how == WORLD_KILL)
		killed(w, s);
}

bool world_member_times_out(struct world *w, int n)
{
	char id[24];
	if (!w->member[n] || !w->agent[n] || w->away[n] || w->ending[n])
		return false;
	snprintf(id, sizeof id, "%lld", (long long)w->member[n]);
	json_object_set_new(w->over, id, json_string("has timed out"));
	w->ending[n] = true;
	w->poll |= w->member[n] % 4 == 1; /* or the agent tells first */
	world_put(&w->up[n], json_pack("{s:s, s:s}", "type", "terminating", "text", "Terminated"));
	return true;
}

void world_fault(struct world *w)
{
	int n = (int)world_pick(w, (uint64_t)w->o.nodes);
	struct sim *s = &w->sim[n][world_pick(w, (uint64_t)w->o.devices_per_node)];
	if (w->ended)
		return;
	switch (world_pick(w, w->o.cuts ? 13 : 10)) {
	case 0: /* kill -9 of a worker */
		killed(w, s);
		break;
	case 1: /* kill -9 of an agent and its workers */
		if (w->agent[n])
			world_agent_dies(w, n);
		world_member_ends(w, n, "has failed");
		break;
	case 2: /* SIGSTOP */
		if (s->alive)
			s->hung = true;
		break;
	case 3: /* a false report of a fault */
		if (s->alive && s->runs)
			world_say_up(w, s,
			             json_pack("{s:s, s:I, s:s}", "type", "fault", "generation", (json_int_t)s->runs, "text",
			                       "peer does not answer"));
		break;
	case 4: /* scontrol takes a node without notice */
		if (n > 0 && w->held[n]) {
			world_member_ends(w, n, "was preempted");
			w->held[n] = false;
			w->poll = true;
			world_agent_dies(w, n);
		}
		break;
	case 5: /* a request of hspmdctld or of an administrator */
		if (!w->held[n]) {
			w->held[n] = true;
			w->poll = true;
		}
		break;
	case 6:
		world_ask(w, "grow", 1 + (int)world_pick(w, 2));
		break;
	case 7:
		world_ask(w, "shrink", 1 + (int)world_pick(w, 2));
		break;
	case 9: /* a member is preempted, with grace time, or every other one has run out of time */
		if (w->member[n] % 2)
			world_member_times_out(w, n);
		else if (w->member[n] && w->agent[n])
			world_put(&w->up[n], json_pack("{s:s, s:s}", "type", "terminating", "text", "Terminated"));
		break;
	case 8:
		world_checkpoint(w);
		break;
	case 10:
		world_cut(w, n);
		break;
	case 11:
		world_vanish(w, n);
		break;
	case 12:
		world_start_second(w, n);
		break;
	}
}

void world_hold(struct world *w, int node, bool held)
{
	w->held[node] = held;
	w->poll = true;
	if (!held)
		world_agent_dies(w, node);
}

void world_poll(struct world *w)
{
	w->poll = true;
}

bool world_polled(const struct world *w)
{
	return w->polled;
}

void world_cut(struct world *w, int n)
{
	char name[16];
	snprintf(name, sizeof name, "n%d", n);
	if (w->ended || !w->agent[n] || w->away[n] || w->vanished[n] || w->ending[n])
		return;
	world_lose_controller(w, n);
	if (w->second[n] && world_pick(w, 2)) { /* the connection of the second one breaks first; it connects again */
		w->second[n] = false;
		w->second_starts[n] = true;
		world_feed(w, (struct run_event){ .kind = EVENT_NEWCOMER_GONE, .node = name });
	}
	world_feed(w, (struct run_event){ .kind = EVENT_AGENT_LOST, .node = name, .text = "connection timed out" });
}

void world_vanish(struct world *w, int n)
{
	if (w->ended || !w->agent[n] || w->away[n] || w->vanished[n] || w->member[n])
		return;
	for (int d = 0; d < DEVICES; d++)
		world_killed(&w->sim[n][d]);
	world_empty(&w->up[n]);
	world_empty(&w->down[n]);
	world_empty(&w->steps[n]);
	w->vanished[n] = true;
	w->vanished_at[n] = w->now;
}

void world_start_second(struct world *w, int n)
{
	w->second_starts[n] |= w->held[n] && w->agent[n] && !w->member[n];
}

int world_turned_away(const struct world *w)
{
	return w->turned_away;
}

int world_replaced(const struct world *w)
{
	return w->replaced;
}

int world_second_came_first(const struct world *w)
{
	return w->second_first;
}

void world_set_version(struct world *w, int node, const char *version)
{
	w->version[node] = version;
}

void world_refuse(struct world *w, int node, int times)
{
	w->refusals[node] = times;
}

void world_silence(struct world *w, int node, bool silent)
{
	w->silent[node] = silent;
}

int world_starts(const struct world *w, int node)
{
	return w->starts[node];
}

double world_started_at(const struct world *w, int node)
{
	return w->started_at[node];
}

double world_now(const struct world *w)
{
	return w->now;
}

void world_ask(struct world *w, const char *what, int by)
{
	command(w, json_pack("{s:s, s:i, s:i}", "command", what, "by", by, "timeout_s", 1000));
}

void world_heal(struct world *w)
{
	for (int n = 0; n < w->o.nodes; n++)
		w->held[n] = true;
	w->poll = true;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++)
			if (w->sim[n][d].hung)
				killed(w, &w->sim[n][d]);
}

bool world_prolong(struct world *w, int more)
{
	if (w->ended || w->furthest + 10 > w->o.steps)
		return false;
	w->job.steps = w->o.steps = (int)w->furthest + more;
	return true;
}

int world_steps(const struct world *w)
{
	return w->o.steps;
}

void world_shutdown(struct world *w)
{
	if (!w->ended)
		world_feed(w, (struct run_event){ .kind = EVENT_SHUTDOWN, .text = "SIGTERM", .seconds = 20 });
}

void world_risk(struct world *w, double losses_per_node_s, double correlated)
{
	json_t *v = json_pack("{s:f, s:f}", "losses_per_node_s", losses_per_node_s, "together", correlated);
	world_feed(w, (struct run_event){ .kind = EVENT_RISK, .value = v });
	json_decref(v);
}

int world_copies(const struct world *w)
{
	return w->copies;
}

void world_checkpoint(struct world *w)
{
	if (!w->ended)
		command(w, json_pack("{s:s}", "command", "checkpoint"));
}
