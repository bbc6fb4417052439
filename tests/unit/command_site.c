/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/command_site.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/format/job_command.h"
#include "controller/run/command_plan.h"

uint64_t site_pick(struct site *s, uint64_t n)
{
	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	return (s->random >> 11) % n;
}

static void name_of(int i, char *name)
{
	sprintf(name, "n%d", i);
}

static void handle(struct site *s, struct run_event *e);

void site_say(struct place *p, json_t *m)
{
	json_array_append_new(p->up, m);
}

static void lose_stand_in(struct place *p)
{
	p->stand_in = p->runs = p->noticed = p->finished = false;
	p->prepared = p->generation = p->connected = p->given_up = 0;
}

/* As the first thing in a generation, rank 0 tells again what it has saved: lines of these steps may have been lost. */
static void tell_again(struct site *s, struct place *p)
{
	for (int64_t step = 0; p->first && step < s->step; step++)
		site_say(p, json_pack("{s:s, s:I, s:I, s:n, s:i, s:f, s:b}", "type", "step", "generation", (json_int_t)p->generation,
		                      "step", (json_int_t)step, "loss", "tokens", 1, "step_s", 0.0, "again", 1));
}

void site_rank_ended(struct place *p, const char *type, int status)
{
	json_t *m = json_pack("{s:s, s:I, s:I, s:b, s:[]}", "type", type, "generation", (json_int_t)p->generation, "step", (json_int_t)0,
	                      "finished", p->finished, "losses");
	if (status >= 0)
		json_object_set_new(m, "status", json_integer(status));
	p->runs = p->noticed = false;
	site_say(p, m);
}

/* A message to the agent or its stand-in. */
static void receive(struct site *s, int i, json_t *m)
{
	struct place *p = &s->place[i];
	const char *type = json_string_value(json_object_get(m, "type"));
	int64_t g = json_integer_value(json_object_get(m, "generation"));
	char device[16];
	sprintf(device, "n%d:0", i);
	if (!strcmp(type, "spawn")) {
		assert_string_equal(json_string_value(json_object_get(m, "command")), "device");
		assert_false(p->stand_in);
		p->stand_in = true;
		p->serial = json_integer_value(json_object_get(m, "serial"));
		site_say(p, json_pack("{s:s}", "type", "hello"));
	} else if (!strcmp(type, "kill")) {
		if (p->stand_in && p->serial == json_integer_value(json_object_get(m, "serial")))
			lose_stand_in(p);
	} else if (!strcmp(type, "quit") && !json_object_get(m, "to")) {
		lose_stand_in(p);
		p->agent = false;
		char name[16];
		name_of(i, name);
		struct run_event e = { .kind = EVENT_AGENT_LOST, .node = name, .text = "it quit" };
		handle(s, &e);
	} else if (!p->stand_in || !strcmp(type, "job") || !strcmp(type, "list_checkpoints")) {
		assert_string_not_equal(type, "list_checkpoints"); /* the state is the command's own */
	} else if (!strcmp(type, "quit")) {
		lose_stand_in(p);
	} else if (!strcmp(type, "ping")) {
		site_say(p, json_pack("{s:s}", "type", "pong"));
	} else if (!strcmp(type, "prepare")) {
		p->prepared = g;
		p->members = (int)json_array_size(json_object_get(m, "members"));
		if (p->slow)
			return;
		site_say(p, json_pack("{s:s, s:I, s:s, s:o*}", "type", "prepared", "generation", (json_int_t)g, "address", "aDox",
		                      "needs_preconnect", p->elastic ? json_true() : NULL));
	} else if (!strcmp(type, "preconnect")) {
		assert_int_equal(json_object_size(json_object_get(m, "addresses")), 1);
		if (p->prepared != g || !p->elastic)
			return;
		p->connected = g;
		if (!p->hangs)
			site_say(p, json_pack("{s:s, s:I}", "type", "preconnected", "generation", (json_int_t)g));
	} else if (!strcmp(type, "start")) {
		assert_int_equal(p->prepared, g);
		assert_int_not_equal(p->given_up, g);
		assert_false(p->runs);
		assert_int_equal(json_object_size(json_object_get(m, "addresses")), 1); /* where the ranks meet */
		p->generation = g;
		p->runs = true;
		p->finished = false;
		p->first = json_object_get(json_object_get(m, "addresses"), device);
		site_say(p, json_pack("{s:s, s:I, s:I}", "type", "started", "generation", (json_int_t)g, "step",
		                      json_integer_value(json_object_get(m, "step"))));
		tell_again(s, p);
	} else if (!strcmp(type, "stop")) {
		if (g != p->generation)
			return;
		p->noticed = p->runs && !p->elastic;
		if (p->runs && p->elastic)
			site_say(p, json_pack("{s:s, s:I, s:I, s:[]}", "type", "stopped", "generation", (json_int_t)g, "step",
			                      (json_int_t)0, "losses"));
		p->runs &= !p->elastic;
		if (!p->runs && !p->elastic)
			site_rank_ended(p, "stopped", p->finished ? s->ends_with : -1);
	} else if (!strcmp(type, "abort")) {
		bool holds = p->elastic ? p->runs : p->generation > 0;
		p->given_up = p->connected;
		p->runs = p->noticed = false;
		site_say(p, json_pack("{s:s, s:I, s:I, s:o, s:n, s:n, s:[], s:[]}", "type", "aborted", "generation", (json_int_t)g, "step",
		                      (json_int_t)0, "holds", holds ? json_integer(p->generation) : json_null(), "ready", "applied", "sums",
		                      "losses"));
	} else if (!strcmp(type, "settle")) {
		site_say(p, json_pack("{s:s, s:I, s:I, s:[]}", "type", "settled", "generation", (json_int_t)g, "step", (json_int_t)0,
		                      "losses"));
	} else {
		fail_msg("unexpected %s", type);
	}
}

static void poll(struct site *s)
{
	json_t *nodes = json_array();
	for (int i = 0; i < NODES; i++) {
		char name[16];
		name_of(i, name);
		if (s->place[i].held)
			json_array_append_new(nodes, json_string(name));
	}
	json_t *v = json_pack("{s:o, s:s, s:n}", "nodes", nodes, "state", "running", "end_in_s");
	struct run_event e = { .kind = EVENT_ALLOCATION, .value = v };
	handle(s, &e);
	json_decref(v);
}

static int node_of(const char *name)
{
	return name[1] - '0';
}

static void perform(struct site *s, struct run_action *x, bool *polls, bool *starts)
{
	switch (x->kind) {
	case ACTION_SEND:
		if (s->place[node_of(x->node)].agent)
			json_array_append(s->place[node_of(x->node)].down, x->value);
		break;
	case ACTION_START_AGENT:
		starts[node_of(x->node)] = true;
		break;
	case ACTION_SOLVE:
		json_decref(s->question);
		s->question = json_incref(x->value);
		s->solve = x->id;
		break;
	case ACTION_POLL_SLURM:
		*polls = true;
		break;
	case ACTION_SHRINK: {
		size_t i;
		json_t *v;
		json_array_foreach(x->value, i, v)
			s->place[node_of(json_string_value(v))].held = false;
		s->resize = x->id;
		break;
	}
	case ACTION_GROW:
		for (int i = 0, more = x->count; i < NODES && more > 0; i++)
			if (!s->place[i].held) {
				s->place[i].held = true;
				more--;
			}
		s->resize = x->id;
		break;
	case ACTION_REPLY:
		s->agreed = json_is_true(json_object_get(x->value, "ok"));
		break;
	case ACTION_EXIT:
		s->status = x->count;
		snprintf(s->why, sizeof s->why, "%s", x->text ? x->text : "");
		break;
	case ACTION_METRICS_LINE:
		if (json_object_get(x->value, "loss"))
			s->lines[json_integer_value(json_object_get(x->value, "step"))]++;
		else
			s->lost += (int)json_integer_value(json_object_get(x->value, "steps_lost"));
		break;
	case ACTION_LOG:
		if (getenv("HSPMD_SAY"))
			printf("%.3f %s\n", s->now, x->text);
		break;
	default:
		break;
	}
}

static void agent_up(struct site *s, int i)
{
	struct place *p = &s->place[i];
	char name[16];
	name_of(i, name);
	lose_stand_in(p);
	json_array_clear(p->up);
	json_array_clear(p->down);
	p->agent = true;
	json_t *hello = json_pack("{s:{s:s, s:{s:{s:s, s:I, s:i, s:{s:f}}}, s:[{s:s, s:[{s:s, s:i}]}], s:[]}, s:[{s:i}], s:[]}", "cluster",
	                          "format", "hspmd-cluster-1", "device_types", "c", "kind", "cpu", "memory_bytes", (json_int_t)1 << 30,
	                          "gbytes_per_s", 10, "peak_tflops", "fp32", 0.1, "nodes", "name", name, "devices", "type", "c", "count", 1,
	                          "links", "bindings", "threads", 1, "workers");
	struct run_event e = { .kind = EVENT_AGENT_UP, .node = name, .value = hello };
	handle(s, &e);
	json_decref(hello);
}

static void handle(struct site *s, struct run_event *e)
{
	struct run_actions actions = { 0 };
	bool polls = false, starts[NODES] = { false };
	e->now = e->wall = s->now;
	assert_int_equal(hspmd_controller_handle(s->m, e, &actions), 0);
	for (size_t i = 0; i < actions.count; i++)
		perform(s, &actions.list[i], &polls, starts);
	run_actions_clear(&actions);
	assert_true(s->status >= 0 || e->more || hspmd_controller_deadline(s->m) > s->now);
	for (int i = 0; i < NODES; i++)
		if (starts[i] && s->status < 0)
			agent_up(s, i);
	if (polls && s->status < 0)
		poll(s);
	if (s->resize && s->status < 0) {
		struct run_event done = { .kind = EVENT_RESIZED, .id = s->resize };
		s->resize = 0;
		handle(s, &done);
		poll(s);
	}
}

/* Delivers a message of the agent, or all that have come from it at once. */
static void deliver_up(struct site *s, int i)
{
	struct place *p = &s->place[i];
	bool more = true, all = site_pick(s, 2);
	char name[16], device[16];
	name_of(i, name);
	sprintf(device, "n%d:0", i);
	while (more && p->agent && s->status < 0) {
		json_t *m = json_incref(json_array_get(p->up, 0));
		json_array_remove(p->up, 0);
		more = all && json_array_size(p->up) > 0;
		if (strcmp(json_string_value(json_object_get(m, "type")), "exited"))
			json_object_set_new(m, "from", json_string(device));
		struct run_event e = { .kind = EVENT_MESSAGE, .node = name, .value = m, .more = more };
		handle(s, &e);
		json_decref(m);
	}
}

bool site_deliver(struct site *s, int i)
{
	struct place *p = &s->place[i];
	bool up = site_pick(s, 2);
	if (!json_array_size(up ? p->up : p->down))
		return false;
	if (up && p->agent) {
		deliver_up(s, i);
	} else {
		json_t *m = json_incref(json_array_get(up ? p->up : p->down, 0));
		json_array_remove(up ? p->up : p->down, 0);
		if (!up)
			receive(s, i, m);
		json_decref(m);
	}
	return true;
}

void site_tell_step(struct site *s, struct place *p)
{
	site_say(p, json_pack("{s:s, s:I, s:I, s:n, s:i, s:f}", "type", "step", "generation", (json_int_t)p->generation, "step",
	                      (json_int_t)s->step, "loss", "tokens", 1, "step_s", 0.1));
	s->step++;
}

void site_fail_rank(struct place *p)
{
	p->runs = false;
	site_say(p, json_pack("{s:s, s:I, s:s}", "type", "fault", "generation", (json_int_t)p->generation, "text", "rank: exit status 3"));
}

/* The ranks do something: they obey a notice, make a step together, or end after the last. */
static bool ranks_move(struct site *s)
{
	int i = (int)site_pick(s, NODES);
	struct place *p = &s->place[i];
	if (p->runs && p->noticed) {
		site_rank_ended(p, "stopped", site_pick(s, 2) ? 85 : -1);
		return true;
	}
	if (!p->runs)
		return false;
	if (s->step < STEPS) {
		if (p->first)
			site_tell_step(s, p);
		return p->first;
	}
	p->finished = true;
	site_rank_ended(p, "finished", s->ends_with);
	return true;
}

bool site_solve(struct site *s)
{
	struct hspmd_error err = { "" };
	if (!s->question)
		return false;
	json_t *cluster = json_object_get(s->question, "cluster");
	struct hspmd_cluster *c = hspmd_cluster_from_json(cluster, "cluster", &err);
	json_t *plan = run_command_plan(s->job, c, &err), *v = plan ? json_pack("{s:o, s:O}", "plan", plan, "cluster", cluster) : NULL;
	hspmd_cluster_destroy(c);
	json_decref(s->question);
	s->question = NULL;
	struct run_event e = { .kind = EVENT_PLAN, .id = s->solve, .value = v, .text = v ? NULL : err.text };
	handle(s, &e);
	json_decref(v);
	return true;
}

void site_ask(struct site *s, const char *what)
{
	json_t *v = json_pack("{s:s, s:i}", "command", what, "by", 1);
	struct run_event e = { .kind = EVENT_COMMAND, .id = 7, .value = v };
	handle(s, &e);
	json_decref(v);
}

static void fault(struct site *s)
{
	int i = (int)site_pick(s, NODES);
	struct place *p = &s->place[i];
	char name[16], device[16];
	name_of(i, name);
	sprintf(device, "n%d:0", i);
	switch (site_pick(s, 6)) {
	case 0: /* the rank fails */
		if (p->runs && !p->noticed) {
			site_fail_rank(p);
			s->failures++;
		}
		break;
	case 1: /* its stand-in is killed */
		if (p->stand_in) {
			site_say(p, json_pack("{s:s, s:s, s:I, s:s}", "type", "exited", "device", device, "serial", p->serial, "text",
			                      "signal 9"));
			lose_stand_in(p);
			s->failures++;
		}
		break;
	case 2:
		if (p->agent && p->held) {
			p->agent = false;
			lose_stand_in(p);
			json_array_clear(p->up);
			json_array_clear(p->down);
			struct run_event e = { .kind = EVENT_AGENT_LOST, .node = name, .text = "gone" };
			handle(s, &e);
		}
		break;
	case 3:
		if (i && p->held) { /* scontrol takes the node */
			p->held = p->agent = false;
			lose_stand_in(p);
			poll(s);
		}
		break;
	case 4:
		site_ask(s, "shrink");
		break;
	default:
		site_ask(s, "grow");
	}
}

void site_wait_for_deadline(struct site *s)
{
	double next = hspmd_controller_deadline(s->m);
	assert_false(isinf(next));
	s->now = fmax(s->now + 1e-3, next);
	struct run_event e = { .kind = EVENT_TICK };
	handle(s, &e);
}

void site_begin(struct site *s, uint64_t seed, const char *argument)
{
	struct hspmd_error err = { "" };
	*s = (struct site){ .random = seed * 2654435761u + 1, .now = 1000, .status = -1, .ends_with = site_pick(s, 3) ? 0 : 85 };
	s->job = hspmd_job_from_command((char *[]){ "train", (char *)argument }, 2, "test", &err);
	s->config = (struct run_config){ .job = s->job,
		                         .job_json = hspmd_job_to_json(s->job),
		                         .model_json = json_null(),
		                         .layers = RUN_COMMAND_LAYERS,
		                         .job_id = "1",
		                         .output = "/o",
		                         .run = "r",
		                         .resizable = true,
		                         .max_attempts = 1000,
		                         .policy_terms = { .max_nodes = 100, .max_devices = 100 },
		                         .timeouts = run_timeouts_default(),
		                         .covered = run_command_covered };
	s->m = hspmd_controller_create(&s->config, s->now, &err);
	for (int i = 0; i < NODES; i++)
		s->place[i] = (struct place){ .held = i < 3, .down = json_array(), .up = json_array() };
	poll(s);
}

void site_run(struct site *s, uint64_t seed, const char *argument, int faults, int shutdown_at)
{
	site_begin(s, seed, argument);
	int moves = 0;
	for (; s->status < 0 && moves < MOVES; moves++) {
		if (moves == shutdown_at) {
			struct run_event e = { .kind = EVENT_SHUTDOWN, .text = "SIGTERM", .seconds = 20 };
			handle(s, &e);
		} else if (faults && !site_pick(s, 12)) {
			faults--;
			fault(s);
		} else {
			bool moved = false;
			for (int i = 0; i < 30 && !moved && s->status < 0; i++)
				moved = site_pick(s, 3)   ? site_deliver(s, (int)site_pick(s, NODES))
				        : site_pick(s, 2) ? ranks_move(s)
				                          : site_solve(s);
			moved = moved || s->status >= 0 || site_solve(s);
			for (int i = 0; i < 4 * NODES && !moved; i++)
				moved = site_deliver(s, i % NODES);
			s->now += 1e-3;
			if (!moved && s->status < 0)
				site_wait_for_deadline(s);
		}
	}
	if (s->status < 0)
		fail_msg("seed %llu: the job has not ended: step %lld", (unsigned long long)seed, (long long)s->step);
}

void site_clear(struct site *s)
{
	for (int i = 0; i < NODES; i++) {
		json_decref(s->place[i].down);
		json_decref(s->place[i].up);
	}
	hspmd_controller_destroy(s->m);
	json_decref(s->config.job_json);
	json_decref(s->question);
	hspmd_job_destroy(s->job);
}
