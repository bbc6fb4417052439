/* SPDX-License-Identifier: Apache-2.0 */
/* Agents, Slurm and the solver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/world_internal.h"

json_t *world_part(const struct world *w, int n)
{
	char name[16];
	snprintf(name, sizeof name, "n%d", n);
	return json_pack("{s:s, s:{s:{s:s, s:I, s:i, s:{s:f}}}, s:[{s:s, s:[{s:s, s:i}]}], s:[{s:s, s:f, s:f}, {s:s, s:f, s:f}]}", "format",
	                 HSPMD_CLUSTER_FORMAT, "device_types", "core", "kind", "cpu", "memory_bytes", (json_int_t)1 << 32, "gbytes_per_s",
	                 20, "peak_tflops", "fp32", 0.05, "nodes", "name", name, "devices", "type", "core", "count", w->o.devices_per_node,
	                 "links", "scope", "node", "alpha_s", 1e-6, "gbytes_per_s", 5.0, "scope", "cluster", "alpha_s", 1e-5,
	                 "gbytes_per_s", 1.0);
}

/* What an agent says of a checkpoint: the manifest's name, and in the place of its shards the nodes of each. */
static json_t *named(const char *place, json_t *manifest)
{
	char sum[WORLD_SUM];
	return json_pack("{s:s, s:I, s:s, s:O*}", "place", place, "step", (json_int_t)world_integer(manifest, "step"), "sum",
	                 world_sum(manifest, sum), "on", json_object_get(manifest, "on"));
}

/* With noise, some agents refuse, send another manifest, or do not answer. */
static void send_manifest(struct world *w, int n, const json_t *m)
{
	char sum[WORLD_SUM];
	const char *wanted = world_word(m, "sum");
	json_t *all[] = { w->saved, w->copied }, *text = NULL;
	for (size_t i = 0; i < 2; i++)
		if (all[i] && !strcmp(world_sum(all[i], sum), wanted))
			text = all[i];
	int how = w->bad_senders >> n & 1 ? 1 + w->manifests.asked % 3 : w->o.noise ? (int)world_pick(w, 6) : 0;
	w->manifests.asked++;
	w->manifests.last = n;
	json_t *answer = json_pack("{s:s, s:I, s:s}", "type", "manifest", "id", (json_int_t)world_integer(m, "id"), "sum", wanted);
	if (how == 1 || !text)
		json_object_set_new(answer, "error", json_string("it cannot be read"));
	else if (how == 2)
		json_object_set_new(answer, "manifest", json_pack("{s:i}", "step", 123456));
	else
		json_object_set(answer, "manifest", text);
	if (how == 3)
		json_decref(answer);
	else
		world_put(&w->up[n], answer);
	w->manifests.sent += text && (how < 1 || how > 3);
}

void world_agent_hears(struct world *w, int n, json_t *m)
{
	const char *type = world_word(m, "type");
	json_t *to = json_object_get(m, "to");
	for (int d = 0; to && d < DEVICES; d++)
		if (w->sim[n][d].alive && !w->sim[n][d].hung && world_named(to, w->sim[n][d].address))
			world_worker_hears(w, &w->sim[n][d], m);
	if (to)
		return;
	if (!strcmp(type, "spawn")) {
		struct sim *s = world_find(w, world_word(m, "device"));
		assert_false(s->alive);
		world_forget(s);
		s->alive = true;
		s->serial = world_integer(m, "serial");
		if (w->o.noise && world_pick(w, 50) == 0)
			s->hung = true;
		else
			world_say_up(w, s, json_pack("{s:s, s:i}", "type", "hello", "pid", 1));
	} else if (!strcmp(type, "kill")) {
		struct sim *s = world_find(w, world_word(m, "device"));
		if (s->alive && s->serial == world_integer(m, "serial")) {
			world_killed(s);
			world_put(&w->up[n],
			          json_pack("{s:s, s:s, s:I}", "type", "exited", "device", s->address, "serial", (json_int_t)s->serial));
		}
	} else if (!strcmp(type, "list_checkpoints")) {
		json_t *list = json_array();
		if (w->saved)
			json_array_append_new(list, named("shared", w->saved));
		if (w->copied)
			json_array_append_new(list, named("memory", w->copied));
		world_put(&w->up[n], json_pack("{s:s, s:I, s:o}", "type", "checkpoint_list", "id", (json_int_t)world_integer(m, "id"),
		                               "checkpoints", list));
	} else if (!strcmp(type, "ping")) {
		world_put(&w->up[n], json_pack("{s:s}", "type", "pong"));
	} else if (!strcmp(type, "read_manifest")) {
		send_manifest(w, n, m);
	} else if (!strcmp(type, "quit")) {
		world_put(&w->up[n], json_pack("{s:s}", "type", "bye"));
	}
}

void world_agent_dies(struct world *w, int n)
{
	char name[16];
	snprintf(name, sizeof name, "n%d", n);
	bool was = w->agent[n];
	was &= !w->away[n];
	w->agent[n] = w->away[n] = w->vanished[n] = false;
	for (int d = 0; d < DEVICES; d++)
		world_killed(&w->sim[n][d]);
	world_empty(&w->up[n]);
	world_empty(&w->down[n]);
	world_empty(&w->steps[n]);
	if (w->ending[n])
		world_member_ends(w, n, "");
	if (was)
		world_feed(w, (struct run_event){ .kind = EVENT_AGENT_LOST, .node = name, .text = "connection closed" });
}

/* ---- a second agent of a node */

/* Without the folder in memory no agent knows of another. If the first one is not connected, each has it here. */
static json_t *alone(struct world *w, int n)
{
	bool first = w->agent[n] && !w->vanished[n];
	if (first && w->away[n])
		return json_false();
	return world_pick(w, 3) == 0 ? NULL : json_boolean(!first);
}

static void second_arrives(struct world *w, int n)
{
	char name[16];
	snprintf(name, sizeof name, "n%d", n);
	w->second_starts[n] = false;
	if (!w->held[n] || w->member[n])
		return;
	if (!w->agent[n]) { /* the first one has died meanwhile */
		world_put(&w->up[n], json_pack("{s:s}", "type", "boot"));
		return;
	}
	json_t *hello = json_pack("{s:s, s:s, s:o, s:s, s:i, s:o*}", "node", name, "job", "7", "cluster", world_part(w, n), "version",
	                          w->version[n] ? w->version[n] : PACKAGE_VERSION, "pid", 2, "alone", alone(w, n));
	w->second[n] = true;
	w->second_first += w->away[n];
	w->second_told[n] = !json_is_false(json_object_get(hello, "alone"));
	world_feed(w, (struct run_event){ .kind = EVENT_NEWCOMER, .node = name, .value = hello });
	json_decref(hello);
}

bool world_second_moves(struct world *w, int n)
{
	char name[16];
	snprintf(name, sizeof name, "n%d", n);
	bool first = w->agent[n] && !w->vanished[n];
	if (w->vanished[n] && w->now >= w->vanished_at[n] + WORLD_UNNOTICED_S) {
		world_agent_dies(w, n);
	} else if (w->second_starts[n] && !w->silent[n] && !(w->away[n] && world_pick(w, 2))) {
		second_arrives(w, n);
	} else if (w->second[n] && !w->held[n]) { /* Slurm has ended it */
		w->second[n] = false;
		world_feed(w, (struct run_event){ .kind = EVENT_NEWCOMER_GONE, .node = name });
	} else if (w->second[n] && !first && !w->second_told[n]) {
		json_t *m = json_pack("{s:s}", "type", "alone");
		w->second_told[n] = true;
		world_feed(w, (struct run_event){ .kind = EVENT_NEWCOMER_MESSAGE, .node = name, .value = m });
		json_decref(m);
	} else {
		return false;
	}
	return true;
}

/* The first one lives: the second is not sent away for another reason, unless the job ends. */
void world_turns_away(struct world *w, int n, const char *why)
{
	assert_true(w->second[n]);
	assert_true((w->agent[n] && !w->vanished[n] && !w->away[n]) || !strcmp(why, "the job ends"));
	w->second[n] = false;
	w->turned_away++;
}

/* An agent that answers is not replaced. */
void world_replaces(struct world *w, int n)
{
	assert_true(w->second[n]);
	assert_true(!w->agent[n] || w->vanished[n] || w->away[n]);
	for (int d = 0; d < DEVICES; d++)
		world_killed(&w->sim[n][d]);
	world_empty(&w->up[n]);
	world_empty(&w->down[n]);
	world_empty(&w->steps[n]);
	w->agent[n] = true;
	w->away[n] = w->vanished[n] = w->second[n] = false;
	w->replaced++;
}

/* The message that follows in the agent's queue; NULL: none, or it is not for the controller as it is. */
static json_t *next_message(const struct world *w, int n)
{
	json_t *m = w->up[n].count ? w->up[n].item[w->up[n].first] : NULL;
	return m && strcmp(world_word(m, "type"), "boot") != 0 && strcmp(world_word(m, "type"), "bye") != 0 ? m : NULL;
}

/* Some messages arrive together with the next. */
static void hear_message(struct world *w, int n, const char *name, json_t *m)
{
	if (!strcmp(world_word(m, "type"), "step")) {
		world_put(&w->steps[n], json_incref(m));
		if (w->steps[n].count > STEPS)
			json_decref(world_get(&w->steps[n]));
	}
	bool more = (w->o.noise || w->o.ends > 0) && next_message(w, n) && world_pick(w, 2) == 0;
	int life = w->life;
	world_feed(w, (struct run_event){ .kind = EVENT_MESSAGE, .node = name, .value = m, .more = more });
	if (!more || w->ended || w->life != life) /* the next controller gets what the agent keeps for it */
		return;
	json_t *next = world_get(&w->up[n]);
	hear_message(w, n, name, next);
	json_decref(next);
}

void world_deliver(struct world *w, int n)
{
	char name[16];
	snprintf(name, sizeof name, "n%d", n);
	json_t *m = world_get(&w->up[n]);
	if (!strcmp(world_word(m, "type"), "boot") && w->refusals[n] > 0) {
		w->refusals[n]--;
		world_feed(w, (struct run_event){ .kind = EVENT_AGENT_LOST, .node = name, .text = "what started it ended with status 1" });
	} else if (!strcmp(world_word(m, "type"), "boot")) {
		if (w->held[n] && !w->agent[n]) {
			char job[24] = "7";
			if (w->member[n])
				snprintf(job, sizeof job, "%lld", (long long)w->member[n]);
			json_t *hello =
			        json_pack("{s:s, s:s, s:o, s:s, s:o*}", "node", name, "job", job, "cluster", world_part(w, n), "version",
			                  w->version[n] ? w->version[n] : PACKAGE_VERSION, "alone", w->o.seed % 2 ? json_true() : NULL);
			w->agent[n] = true;
			world_feed(w, (struct run_event){ .kind = EVENT_AGENT_UP, .node = name, .value = hello });
			json_decref(hello);
		}
	} else if (!strcmp(world_word(m, "type"), "bye")) {
		world_member_ends(w, n, "has ended");
		world_agent_dies(w, n);
	} else {
		hear_message(w, n, name, m);
	}
	json_decref(m);
}

/* ---- Slurm and the solver */

void world_tell_allocation(struct world *w)
{
	json_t *nodes = json_array(), *members = json_object(), *ending = json_object();
	for (int n = 0; n < NODES; n++)
		if (w->held[n]) {
			char name[16];
			snprintf(name, sizeof name, "n%d", n);
			if (!w->ending[n])
				json_array_append_new(nodes, json_string(name));
			if (w->member[n])
				json_object_set_new(w->ending[n] ? ending : members, name, json_integer(w->member[n]));
		}
	json_t *value = json_pack("{s:o, s:s, s:o, s:o, s:o, s:O}", "nodes", nodes, "state", "running", "end_in_s",
	                          w->o.ends > 0 ? json_real(w->o.ends - world_now(w)) : json_null(), "members", members, "ending", ending,
	                          "over", w->over);
	w->poll = false;
	w->polled = true;
	world_feed(w, (struct run_event){ .kind = EVENT_ALLOCATION, .value = value });
	json_decref(value);
}

static json_t *stage(int first, int end, json_t *devices)
{
	return json_pack("{s:[i, i], s:o}", "layers", first, end, "devices", devices);
}

/* Data parallel over all devices, or pipelines of two stages, some with two devices per stage. */
static json_t *plan_for(struct world *w, const struct hspmd_cluster *c)
{
	json_t *pipelines = json_array();
	char a[64];
	if (w->o.avoids) { /* one device: the first of the least slow ones */
		int best = 0;
		for (int d = 1; d < c->device_count; d++)
			if (c->nodes[c->devices[d].node].slowdown < c->nodes[c->devices[best].node].slowdown)
				best = d;
		bool even = c->nodes[c->devices[best].node].slowdown == c->nodes[c->devices[c->device_count - 1].node].slowdown;
		for (int d = 0; d < c->device_count; d++)
			if (even || d == best)
				json_array_append_new(
				        pipelines,
				        json_pack("{s:i, s:[o]}", "micro_batches", even ? 48 / c->device_count : 48, "stages",
				                  stage(0, LAYERS, json_pack("[s]", hspmd_cluster_device_address(c, d, a, sizeof a)))));
		return json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o}", "format", HSPMD_PLAN_FORMAT, "global_batch", 48, "micro_batch", 1,
		                 "seq_len", 8, "schedule", "1f1b", "zero_stage", 0, "pipelines", pipelines);
	}
	if (w->o.halves) { /* in any order of devices, as with measured links */
		int order[NODES * DEVICES], used = c->device_count - (w->o.unused && c->device_count > 1 && world_pick(w, 2));
		int rows = used == 4 && world_pick(w, 3) ? 2 : 1, stages = used / rows;
		for (int d = 0; d < c->device_count; d++) {
			int other = (int)world_pick(w, (uint64_t)d + 1);
			order[d] = order[other];
			order[other] = d;
		}
		for (int i = 0; i < rows; i++) {
			json_t *row = json_array();
			for (int k = 0; k < stages; k++)
				json_array_append_new(
				        row, stage(LAYERS * k / stages, LAYERS * (k + 1) / stages,
				                   json_pack("[s]", hspmd_cluster_device_address(c, order[i * stages + k], a, sizeof a))));
			json_array_append_new(pipelines, json_pack("{s:i, s:o}", "micro_batches", 48 / rows, "stages", row));
		}
		return json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o}", "format", HSPMD_PLAN_FORMAT, "global_batch", 48, "micro_batch", 1,
		                 "seq_len", 8, "schedule", "1f1b", "zero_stage", 0, "pipelines", pipelines);
	}
	int kind = w->o.sole ? 1 : (int)world_pick(w, 3), at = 0, left = 48;
	while (at < c->device_count) {
		json_t *stages = json_array();
		int take = w->o.sole                                ? c->device_count
		           : kind == 0 || c->device_count - at < 2  ? 1
		           : kind == 2 && c->device_count - at >= 4 ? 4
		                                                    : 2;
		json_t *devices[2] = { json_array(), json_array() };
		for (int i = 0; i < take; i++)
			json_array_append_new(devices[take > 1 && i >= take / 2],
			                      json_string(hspmd_cluster_device_address(c, at + i, a, sizeof a)));
		json_array_append_new(stages, stage(0, take > 1 ? 2 : LAYERS, devices[0]));
		if (take > 1)
			json_array_append_new(stages, stage(2, LAYERS, devices[1]));
		else
			json_decref(devices[1]);
		at += take;
		int micro = at < c->device_count ? 1 : left;
		left -= micro;
		json_array_append_new(pipelines, json_pack("{s:i, s:o}", "micro_batches", micro, "stages", stages));
	}
	return json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o}", "format", HSPMD_PLAN_FORMAT, "global_batch", 48, "micro_batch", 1,
	                 "seq_len", 8, "schedule", "1f1b", "zero_stage", 0, "pipelines", pipelines);
}

void world_asks_plan(struct world *w, const struct run_action *x)
{
	json_t *one;
	size_t i;
	w->asks++;
	json_array_append_new(w->solves, json_pack("{s:I, s:O}", "id", (json_int_t)x->id, "value", x->value));
	/* Those that are not needed were cancelled. One that is urgent is the only one. */
	int wanted = 0, urgent = 0;
	json_array_foreach(w->solves, i, one) {
		wanted += !json_is_true(json_object_get(one, "cancelled"));
		urgent += !json_is_true(json_object_get(one, "cancelled")) &&
		          json_is_true(json_object_get(json_object_get(one, "value"), "urgent"));
	}
	assert_int_equal(wanted, 1);
	assert_true(urgent <= 1);
}

/* Nobody waits for a search that has been cancelled, but it may have ended just before. */
void world_cancels_plan(struct world *w, int64_t id)
{
	json_t *one;
	size_t i;
	json_array_foreach(w->solves, i, one) {
		if (world_integer(one, "id") != id)
			continue;
		w->cancelled++;
		if (w->o.repairs > 0)
			json_object_set_new(one, "cancelled", json_true());
		else
			json_array_remove(w->solves, i);
		return;
	}
}

int world_plans_asked(const struct world *w)
{
	json_t *one;
	size_t i;
	int count = 0;
	json_array_foreach(w->solves, i, one)
		count += !json_is_true(json_object_get(one, "cancelled"));
	return count;
}

/* A repaired plan's steps take `repairs` times as long as those of one that was searched for. */
static void predict(const struct world *w, json_t *answer, bool repaired, json_t *current)
{
	bool was = json_number_value(json_object_get(current, "behind")) > 0;
	if (repaired) /* it differs from any other */
		json_object_set_new(json_object_get(answer, "plan"), "schedule", json_string("gpipe"));
	json_object_set_new(json_object_get(answer, "plan"), "predicted",
	                    json_pack("{s:f, s:{}}", "step_s", repaired ? w->o.repairs : 1.0, "memory_bytes"));
	if (repaired)
		json_object_set_new(answer, "behind", json_real(w->o.repairs));
	else
		json_object_set_new(answer, "current_step_s", json_real(was ? w->o.repairs : 1.0));
}

static bool is_repaired(const struct world *w, const json_t *request)
{
	json_t *asked = json_object_get(request, "value");
	return w->o.repairs > 0 && json_is_true(json_object_get(asked, "urgent")) && json_is_object(json_object_get(asked, "current"));
}

bool world_solve(struct world *w)
{
	struct hspmd_error err = { "" };
	size_t count = json_array_size(w->solves), at = count > 1 ? (size_t)world_pick(w, count) : 0;
	for (size_t i = 0; w->searching && i < count && !is_repaired(w, json_array_get(w->solves, at)); i++)
		at = (at + 1) % count;
	json_t *one = json_array_get(w->solves, at), *asked = json_object_get(one, "value"), *cluster = json_object_get(asked, "cluster");
	bool repaired = is_repaired(w, one);
	if (!one || (w->searching && !repaired))
		return false;
	struct hspmd_cluster *c = hspmd_cluster_from_json(cluster, "cluster", &err);
	if (!c)
		fail_msg("%s", err.text);
	for (int i = 0; i < c->node_count; i++)
		w->told_slow[c->nodes[i].name[1] - '0'] = c->nodes[i].slowdown;
	bool few = c->device_count < w->o.needs;
	json_t *value = few ? json_object() : json_pack("{s:O, s:o}", "cluster", cluster, "plan", plan_for(w, c));
	if (!few && w->o.repairs > 0)
		predict(w, value, repaired, json_object_get(asked, "current"));
	hspmd_cluster_destroy(c);
	bool late = json_is_true(json_object_get(one, "cancelled"));
	int64_t id = world_integer(one, "id");
	int asks = w->asks, cancelled = w->cancelled;
	json_array_remove(w->solves, at);
	world_feed(w, (struct run_event){ .kind = EVENT_PLAN, .id = id, .value = value, .text = few ? "too few devices" : NULL });
	if (late && !w->dead) { /* nothing follows from it */
		w->late++;
		assert_int_equal(w->asks, asks);
		assert_int_equal(w->cancelled, cancelled);
	}
	json_decref(value);
	return true;
}

void world_search(struct world *w, bool endless)
{
	w->searching = endless;
}

int world_plans_total(const struct world *w)
{
	return w->asks;
}

int world_plans_cancelled(const struct world *w)
{
	return w->cancelled;
}

int world_plans_late(const struct world *w)
{
	return w->late;
}

bool world_member_starts(struct world *w)
{
	for (int n = 1; n < w->o.nodes; n++)
		if (!w->held[n] && !w->agent[n]) {
			w->held[n] = true;
			w->member[n] = ++w->members;
			w->waiting--;
			w->poll |= world_pick(w, 2); /* or the agent connects first */
			world_put(&w->up[n], json_pack("{s:s}", "type", "boot"));
			return true;
		}
	return false;
}

void world_member_ends(struct world *w, int n, const char *how)
{
	char id[24];
	if (!w->member[n])
		return;
	snprintf(id, sizeof id, "%lld", (long long)w->member[n]);
	if (!w->ending[n])
		json_object_set_new(w->over, id, json_string(how));
	w->member[n] = 0;
	w->held[n] = w->ending[n] = false;
}

/* Grows in place, or by members, which come later. */
static void grow(struct world *w)
{
	int64_t left = json_integer_value(w->grow);
	bool by_members = world_pick(w, 2);
	if (by_members)
		w->waiting += (int)left;
	for (int n = 0; n < w->o.nodes && left > 0 && !by_members; n++)
		if (!w->held[n]) {
			w->held[n] = true;
			left--;
		}
	json_decref(w->grow);
	w->grow = NULL;
	world_feed(w,
	           (struct run_event){ .kind = EVENT_RESIZED, .id = w->grow_id, .text = left && !by_members ? "no nodes are free" : NULL });
}

bool world_shrink_is_due(const struct world *w)
{
	json_t *first = json_array_get(w->shrinks, 0);
	return first && w->now >= json_number_value(json_array_get(first, 2)) + w->o.keeps_for_s;
}

static void shrink(struct world *w, int64_t id, const json_t *nodes)
{
	if (w->o.keeps_for_s > 0) {
		world_feed(w, (struct run_event){ .kind = EVENT_RESIZED, .id = id, .text = "Slurm keeps them" });
		return;
	}
	for (int n = 0; n < NODES; n++) {
		char name[16];
		snprintf(name, sizeof name, "n%d", n);
		if (!w->held[n] || !world_named(nodes, name))
			continue;
		assert_int_not_equal(n, 0); /* node 0 runs the batch script */
		for (int d = 0; d < DEVICES; d++)
			assert_true(!w->sim[n][d].alive || w->o.cuts); /* given back only when nothing runs there, as far as is known */
		world_member_ends(w, n, "was cancelled");
		w->held[n] = false;
		world_agent_dies(w, n); /* an agent that started too late */
	}
	world_feed(w, (struct run_event){ .kind = EVENT_RESIZED, .id = id });
}

void world_resize(struct world *w)
{
	if (w->grow) {
		grow(w);
		return;
	}
	json_t *first = json_incref(json_array_get(w->shrinks, 0));
	json_array_remove(w->shrinks, 0);
	shrink(w, json_integer_value(json_array_get(first, 0)), json_array_get(first, 1));
	json_decref(first);
}
