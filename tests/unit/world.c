/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants in every order of events:
 *   - numbers of generations only grow; `start` is sent only to members that have prepared this very generation, and never while one of
 *     them still trains;
 *   - `start` is right about the state: each holder has that step under that plan, and together they have every slice;
 *   - it starts from the newest checkpoint that nodes have, also those that the plan does not use, and members read each part of it;
 *   - steps are reported in order, with the loss of the undisturbed job, each after the previous one or after a resize line that has the
 *     number of lost steps;
 *   - after each event the next deadline is in the future;
 *   - replies are sent once, a change of the allocation is reported once, before the first step after it, and events are numbered
 *     consecutively, also across the controller's incarnations;
 *   - no checkpoint is requested of a worker that does not answer, unless it hangs, which is found sooner than the wait for the checkpoint
 *     ends;
 *   - no two processes have one serial number, and no two incarnations of the controller request a checkpoint of one name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/address_tree.h"
#include "common/format/device_runs.h"
#include "controller/run/coverage.h"
#include "tests/unit/world_internal.h"

uint64_t world_pick(struct world *w, uint64_t n)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (w->random >> 11) % n;
}

double world_loss(int64_t step)
{
	return 5 + sin((double)step);
}

int64_t world_integer(const json_t *m, const char *key)
{
	json_t *v = json_object_get(m, key);
	return json_is_integer(v) ? json_integer_value(v) : -1;
}

const char *world_word(const json_t *m, const char *key)
{
	const char *s = json_string_value(json_object_get(m, key));
	return s ? s : "";
}

bool world_named(const json_t *list, const char *address)
{
	size_t i;
	json_t *v;
	json_array_foreach(list, i, v)
		if (!strcmp(json_string_value(v), address))
			return true;
	return false;
}

/* ---- queues */

void world_put(struct queue *q, json_t *m)
{
	assert_non_null(m);
	assert_true(q->count < QUEUE);
	q->item[(q->first + q->count++) % QUEUE] = m;
}

json_t *world_get(struct queue *q)
{
	json_t *m = q->item[q->first];
	q->first = (q->first + 1) % QUEUE;
	q->count--;
	return m;
}

void world_empty(struct queue *q)
{
	while (q->count)
		json_decref(world_get(q));
}

void world_say_up(struct world *w, struct sim *s, json_t *m)
{
	json_object_set_new(m, "from", json_string(s->address));
	world_put(&w->up[s->node], m);
}

/* ---- the controller's actions */

struct sim *world_find(struct world *w, const char *address)
{
	int n = address[0] == 'n' ? address[1] - '0' : -1, d = n >= 0 && address[2] == ':' ? address[3] - '0' : -1;
	if (n < 0 || n >= NODES || d < 0 || d >= DEVICES || address[4])
		fail_msg("no device %s", address);
	return &w->sim[n][d];
}

static void check_line(struct world *w, const json_t *line)
{
	if (json_object_get(line, "event")) {
		assert_string_equal(world_word(line, "event"), "resize");
		w->resizes++;
		assert_true(world_integer(line, "generation") > w->resize_reported);
		w->resize_reported = world_integer(line, "generation");
		snprintf(w->cause, sizeof w->cause, "%s", world_word(line, "cause"));
		bool asked = !strcmp(w->cause, "grow") || !strcmp(w->cause, "shrink");
		assert_true(!asked || world_integer(line, "from_nodes") > 0);
		int64_t lost = world_integer(line, "steps_lost");
		assert_true(lost >= 0 && lost <= w->next_line);
		w->next_line -= lost;
		w->lost += lost;
		assert_true(json_is_integer(json_object_get(line, "at_step")) && world_integer(line, "at_step") <= w->next_line);
		assert_null(json_object_get(line, "step")); /* whoever looks for steps finds no other line */
		assert_true(json_number_value(json_object_get(line, "pause_s")) >= 0);
		return;
	}
	if (world_integer(line, "step") != w->next_line)
		fail_msg("line of step %lld where %lld was expected", (long long)world_integer(line, "step"), (long long)w->next_line);
	if (json_number_value(json_object_get(line, "loss")) != world_loss(w->next_line))
		fail_msg("wrong loss at step %lld", (long long)w->next_line);
	int64_t generation = world_integer(line, "generation");
	if (generation < w->told_generation || (generation > w->told_generation && w->told_generation && generation != w->resize_reported))
		fail_msg("step %lld is generation %lld's, after generation %lld and the resize line of %lld", (long long)w->next_line,
		         (long long)generation, (long long)w->told_generation, (long long)w->resize_reported);
	w->told_generation = generation;
	w->next_line++;
	w->nodes = (int)world_integer(line, "nodes");
}

/* `start` may add choices to the plan of `prepare`. */
static bool same_plan(const json_t *a, const json_t *b)
{
	json_t *x = json_copy((json_t *)(uintptr_t)a), *y = json_copy((json_t *)(uintptr_t)b);
	json_object_del(x, "choices");
	json_object_del(y, "choices");
	bool same = json_equal(x, y);
	json_decref(x);
	json_decref(y);
	return same;
}

/* Checks that the listed workers hold that step under that plan. Returns true if they hold all state together, or if one of them has died
 * since, which the controller cannot know. */
static bool covers(struct world *w, json_t *live, int64_t step)
{
	struct hspmd_error err;
	struct hspmd_cluster *c = hspmd_cluster_from_json(json_object_get(live, "cluster"), "cluster", &err);
	struct hspmd_plan *p = hspmd_plan_from_json(json_object_get(live, "plan"), "plan", c, LAYERS, &err);
	int device[NODES * DEVICES], count = 0;
	char(*holder)[HSPMD_DEVICE_RUNS_ADDRESS];
	int holders = hspmd_device_runs_expand(json_object_get(live, "holders"), &holder, &err);
	assert_true(holders > 0);
	for (int i = 0; i < holders; i++) {
		struct sim *s = world_find(w, holder[i]);
		if (!s->alive)
			continue; /* died since; the controller cannot know */
		char key[32];
		snprintf(key, sizeof key, "%lld", (long long)s->holds);
		json_t *of = json_object_get(w->plans, key);
		if (!of || !same_plan(json_object_get(of, "plan"), json_object_get(live, "plan")) || s->step != step)
			fail_msg("%s does not hold step %lld under that plan", s->address, (long long)step);
		device[count++] = hspmd_cluster_find_device(c, s->address, &err);
	}
	free(holder);
	bool yes = count < holders || hspmd_stages_cover(p, c, device, count);
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
	return yes;
}

/* Members that only read are counted; each part of a copy in the nodes' memory has a member on a node where it is. */
static void check_readers(struct world *w, const json_t *of)
{
	struct hspmd_error err;
	bool there[LAYERS] = { false };
	char(*member)[HSPMD_DEVICE_RUNS_ADDRESS];
	json_t *on = json_object_get(json_object_get(w->stored, "manifest"), "on"), *nodes;
	const char *layer;
	int count = hspmd_device_runs_expand(json_object_get(of, "members"), &member, &err);
	assert_true(count > 0);
	for (int i = 0; i < count; i++) {
		w->readers += !world_find(w, member[i])->prepared_in_plan;
		member[i][2] = '\0'; /* the node */
		json_object_foreach(on, layer, nodes)
			there[atoi(layer)] |= world_named(nodes, member[i]);
	}
	json_object_foreach(on, layer, nodes)
		assert_true(there[atoi(layer)]);
	free(member);
}

/* What is stored of the state goes to one worker. */
static void take_stored(struct world *w, const json_t *m)
{
	assert_int_equal(json_array_size(json_object_get(m, "to")), 1);
	json_decref(w->stored);
	w->stored = json_incref(json_object_get(m, "state"));
	w->stored_generation = world_integer(m, "generation");
}

static void check_start(struct world *w, const json_t *m)
{
	json_t *state = json_object_get(m, "state"), *live = json_object_get(state, "live");
	bool stored = json_is_true(json_object_get(state, "stored"));
	assert_null(json_object_get(state, "manifest"));
	int64_t step = world_integer(m, "step");
	assert_int_equal(world_integer(m, "generation"), w->generation);
	bool first = w->last_start != w->generation; /* of the nodes to which it is sent */
	w->last_start = w->generation;
	size_t i;
	json_t *part;
	bool whole = false;
	char key[32];
	snprintf(key, sizeof key, "%lld", (long long)w->generation);
	w->unexpected += live && !json_is_true(live);
	if (json_is_true(live))
		live = json_object_get(json_object_get(w->plans, key), "live");
	json_array_foreach(live, i, part)
		whole |= covers(w, part, step);
	if (live && !stored) {
		assert_true(whole);
	} else if (stored) {
		assert_int_equal(w->stored_generation, w->generation);
		assert_int_equal(world_integer(json_object_get(w->stored, "manifest"), "step"), step);
		if (first)
			check_readers(w, json_object_get(w->plans, key));
	} else {
		assert_int_equal(step, 0);
		w->anew += w->next_line > 0;
	}
	if (first && (!live || stored))
		world_check_choice(w, step);
}

/* A worker is told the addresses of the members of its node and of few others, whatever the number of nodes. */
void world_check_addresses(const struct sim *s, const json_t *m)
{
	json_t *addresses = json_object_get(m, "addresses"), *v;
	const char *member;
	assert_in_range(json_object_size(addresses), 1, DEVICES + 1 + HSPMD_ADDRESS_TREE_FANOUT);
	assert_non_null(json_object_get(addresses, s->address));
	json_object_foreach(addresses, member, v)
		assert_string_equal(json_string_value(v), member);
}

/* Nodes keep what the controller says: checkpoints that were committed, the newest first. */
void world_check_committed(struct world *w, json_t *m)
{
	json_t *list = json_object_get(m, "checkpoints"), *one, *known;
	json_int_t before[2] = { INT64_MAX, INT64_MAX };
	size_t i, k, count = json_array_size(list);
	bool memory = !strcmp(world_word(m, "folder"), "/memory");
	assert_in_range(count, 1, memory ? 1 : w->job.checkpoint.keep);
	json_array_foreach(list, i, one) {
		json_int_t step = json_integer_value(json_array_get(one, 0)), generation = json_integer_value(json_array_get(one, 1));
		assert_true(generation < before[1] || (generation == before[1] && step < before[0]));
		before[0] = step;
		before[1] = generation;
		bool there = memory;
		json_array_foreach(w->local, k, known)
			there |= json_equal(one, known);
		assert_true(there);
	}
	if (memory)
		return;
	json_decref(w->kept);
	w->kept = json_incref(list);
}

/* What is sent to workers of several nodes is one object but for the addressees, what each node knows of addresses, and folders, so that
 * its text is made once. */
static void check_body(const struct run_action *x, const struct run_action *last)
{
	json_t *rest = json_copy(x->value);
	assert_int_equal(!x->body, json_object_del(rest, "to") != 0);
	if (x->body) {
		json_object_del(rest, "addresses");
		json_object_del(rest, "folders");
		assert_true(json_equal(rest, x->body));
	}
	const char *type = world_word(x->value, "type");
	if (x->body && last && last->body && (!strcmp(type, "prepare") || !strcmp(type, "start")) && json_equal(rest, last->body))
		assert_ptr_equal(x->body, last->body);
	json_decref(rest);
}

/* HSPMD_WORLD=2 prints the messages that the controller sends and receives. */
static void trace_message(const struct world *w, const char *arrow, const char *node, json_t *m)
{
	const char *wanted = getenv("HSPMD_WORLD");
	if (!wanted || strcmp(wanted, "2") != 0 || !m)
		return;
	static const char *const keys[] = { "type",  "from",    "to",       "device", "serial", "generation", "step",    "holds",
		                            "ready", "applied", "training", "revive", "apply",  "id",         "workers", "members" };
	json_t *some = json_object();
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (json_object_get(m, keys[i]))
			json_object_set(some, keys[i], json_object_get(m, keys[i]));
	char *text = json_dumps(some, JSON_COMPACT);
	fprintf(stderr, "%9.3f %s %s %s\n", w->now, arrow, node ? node : "", text);
	free(text);
	json_decref(some);
}

static void carry_out(struct world *w, struct run_actions *a)
{
	for (size_t i = 0; i < a->count && !w->dead; i++) {
		struct run_action *x = &a->list[i];
		int n = x->node ? x->node[1] - '0' : 0;
		switch (x->kind) {
		case ACTION_SEND: {
			trace_message(w, "->", x->node, x->value);
			check_body(x, i ? x - 1 : NULL);
			int64_t g = world_integer(x->value, "generation");
			if (!strcmp(world_word(x->value, "type"), "prepare") && g != w->generation) {
				assert_true(g > w->generation);
				w->generation = g;
				world_forget_choice(w);
				w->copies = (int)world_integer(x->value, "replicas");
				char key[32];
				snprintf(key, sizeof key, "%lld", (long long)g);
				json_object_set_new(
				        w->plans, key,
				        json_pack("{s:O, s:O, s:O, s:O, s:O, s:O*}", "cluster", json_object_get(x->value, "cluster"),
				                  "plan", json_object_get(x->value, "plan"), "members",
				                  json_object_get(x->value, "members"), "replicas", json_object_get(x->value, "replicas"),
				                  "keep", json_object_get(x->value, "keep"), "live", json_object_get(x->value, "live")));
			}
			if (!strcmp(world_word(x->value, "type"), "stored"))
				take_stored(w, x->value);
			if (!strcmp(world_word(x->value, "type"), "start"))
				check_start(w, x->value);
			if (!strcmp(world_word(x->value, "type"), "checkpoint")) {
				json_t *life = json_object_get(w->saves, world_word(x->value, "id"));
				assert_true(!life || json_integer_value(life) == w->life);
				json_object_set_new(w->saves, world_word(x->value, "id"), json_integer(w->life));
			}
			if (!strcmp(world_word(x->value, "type"), "spawn")) {
				assert_true(world_integer(x->value, "serial") > w->serial);
				w->serial = world_integer(x->value, "serial");
			}
			if (w->agent[n] && !w->away[n])
				world_put(&w->down[n], json_incref(x->value));
			break;
		}
		case ACTION_SOLVE:
			if (!w->o.every_steps) {
				assert_float_equal(json_number_value(json_object_get(x->value, "every_s")), w->job.checkpoint.every_s, 0);
				assert_float_equal(json_number_value(json_object_get(x->value, "shared_every_s")),
				                   w->o.checkpoints ? w->job.checkpoint.shared_every_s : w->job.checkpoint.every_s, 0);
			}
			world_asks_plan(w, x);
			break;
		case ACTION_CANCEL_SOLVE:
			world_cancels_plan(w, x->id);
			break;
		case ACTION_METRICS_LINE:
			check_line(w, x->value);
			break;
		case ACTION_START_AGENT:
			if (w->member[n])
				fail_msg("the agent of n%d is started, but its member job has its own", n);
			w->starts[n]++;
			w->started_at[n] = w->now;
			if (w->o.cuts && w->held[n] && w->agent[n])
				w->second_starts[n] = true;
			else if (w->held[n])
				world_put(&w->up[n], json_pack("{s:s}", "type", "boot"));
			break;
		case ACTION_DISCONNECT_AGENT:
			if (w->away[n])
				break;
			for (int d = 0; d < DEVICES; d++)
				w->sim[n][d].alive = false;
			w->agent[n] = w->vanished[n] = false;
			world_empty(&w->up[n]);
			world_empty(&w->down[n]);
			break;
		case ACTION_TURN_AWAY:
			world_turns_away(w, n, x->text);
			break;
		case ACTION_REPLACE_AGENT:
			world_replaces(w, n);
			break;
		case ACTION_POLL_SLURM:
			w->poll = true;
			break;
		case ACTION_GROW:
			w->grow = json_integer(x->count);
			w->grow_id = x->id;
			break;
		case ACTION_SHRINK:
			json_array_append_new(w->shrinks, json_pack("[I, O, f]", (json_int_t)x->id, x->value, w->now));
			break;
		case ACTION_CANCEL_GROW:
			w->waiting = 0;
			break;
		case ACTION_REPLY:
			assert_true(x->id > 0 && x->id <= w->commands && x->last);
			assert_false(w->replied[x->id]);
			w->replied[x->id] = true;
			if (json_is_true(json_object_get(x->value, "ok")))
				w->ok++;
			else
				w->refused++;
			break;
		case ACTION_EXIT:
			assert_false(w->ended);
			w->ended = true;
			w->status = x->count;
			snprintf(w->text, sizeof w->text, "%s", x->text ? x->text : "");
			break;
		case ACTION_SAMPLE:
			assert_int_equal(x->id, w->shared_step);
			assert_true(x->id / w->o.samples_every > w->sampled_step / w->o.samples_every || x->id == w->o.steps);
			assert_true(x->id > w->sampled_step);
			w->sampled_step = x->id;
			w->samples++;
			break;
		case ACTION_LOG:
			if (getenv("HSPMD_WORLD"))
				fprintf(stderr, "%9.3f %s\n", w->now, x->text);
			break;
		case ACTION_JOURNAL:
			json_decref(w->journal);
			w->journal = json_incref(x->value);
			break;
		case ACTION_SAVE_PLAN:
			w->planned = x->id;
			break;
		case ACTION_SAVE_DEVICES:
			assert_true(x->id > 0 && json_array_size(json_object_get(x->value, "devices")) > 0);
			break;
		case ACTION_TRACE_TEXT:
		case ACTION_TRACE_SPANS:
		case ACTION_TRACE_END:
			fail_msg("a trace, for which nobody has asked");
			break;
		case ACTION_RECORD_EVENT:
			assert_int_equal(world_integer(x->value, "number"), json_array_size(w->events) + 1);
			json_array_append(w->events, x->value);
			if (!w->o.stuck && strstr(world_word(x->value, "event"), "_failed") &&
			    strstr(world_word(x->value, "text"), "failed: waited"))
				fail_msg("%s", world_word(x->value, "text"));
			break;
		}
		bool at = w->dies_at && x->kind == ACTION_SEND && !strcmp(world_word(x->value, "type"), w->dies_at);
		w->dies_at = at ? NULL : w->dies_at;
		w->dead = at || (w->dies && w->actions_left-- <= 0) ||
		          (w->dies_in_switch && x->kind == ACTION_JOURNAL && json_is_object(json_object_get(x->value, "older")));
	}
	w->dies_in_switch &= !w->dead;
	run_actions_clear(a);
}

void world_feed(struct world *w, struct run_event e)
{
	struct run_actions actions = { 0 };
	if (e.kind == EVENT_MESSAGE || e.kind == EVENT_AGENT_UP)
		trace_message(w, "<-", e.node, e.value);
	else if (e.kind == EVENT_AGENT_LOST && getenv("HSPMD_WORLD"))
		fprintf(stderr, "%9.3f agent lost %s\n", w->now, e.node);
	e.now = w->now;
	e.wall = 1.7e9 + w->now;
	assert_int_equal(hspmd_controller_handle(w->m, &e, &actions), 0);
	carry_out(w, &actions);
	if (w->dead && !w->ended)
		world_restart(w);
	double next = hspmd_controller_deadline(w->m);
	if (next <= w->now && !e.more)
		fail_msg("the next deadline has passed already: %g at %g", next, w->now);
}
