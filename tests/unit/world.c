/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold in every order of events:
 *  - generations only grow; `start` goes to members that have prepared this very generation, and never while one of them still trains;
 *  - what `start` says about the state is true: each holder has that step under that plan, and together they have every slice;
 *  - a step is told of with the loss that the undisturbed job has, in order, each after the one before it or after a resize that says how many were lost;
 *  - after each event the next deadline lies ahead;
 *  - replies are given once.
 */
#include "tests/unit/world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/run/cover.h"

#define NODES 8
#define DEVICES 4
#define QUEUE 4096
#define LAYERS 6

struct queue {
	json_t *item[QUEUE];
	int first, count;
};

struct sim {
	char address[64];
	int node;
	bool alive, hung;
	int64_t serial;
	int64_t prepared;    /* generation, 0: none */
	bool prepared_in_plan, stays;
	int64_t runs;        /* generation whose steps it runs; 0: none */
	int64_t loading;     /* generation that is being started */
	json_t *start;
	int64_t holds, step, ready, applied;
	int64_t stop, aborted; /* generations */
	json_t *checkpoint;
	bool reporter;
};

struct world {
	struct world_options o;
	uint64_t random;
	struct run_config config;
	struct hspmd_job job;
	struct hspmd_machine *m;
	double now;
	bool held[NODES], agent[NODES];
	struct queue up[NODES], down[NODES];
	struct sim sim[NODES][DEVICES];
	json_t *solve, *grow, *shrink; /* asked of the surroundings */
	int64_t solve_id, grow_id, shrink_id;
	bool poll;
	int64_t generation;            /* newest prepared */
	json_t *plans;                 /* generation -> { cluster, plan } */
	int64_t next_line, lost;
	int resizes, ok, refused, commands;
	bool replied[4096];
	int64_t saved_step;            /* of a complete checkpoint */
	json_t *saved;                 /* stands for its manifest */
	bool ended;
	int status;
	char text[1200];
};

static uint64_t pick(struct world *w, uint64_t n)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (w->random >> 11) % n;
}

static double loss_of(int64_t step)
{
	return 5 + sin((double)step);
}

static int64_t integer(const json_t *m, const char *key)
{
	json_t *v = json_object_get(m, key);
	return json_is_integer(v) ? json_integer_value(v) : -1;
}

static const char *word(const json_t *m, const char *key)
{
	const char *s = json_string_value(json_object_get(m, key));
	return s ? s : "";
}

/* ---- queues */

static void put(struct queue *q, json_t *m)
{
	assert_non_null(m);
	assert_true(q->count < QUEUE);
	q->item[(q->first + q->count++) % QUEUE] = m;
}

static json_t *get(struct queue *q)
{
	json_t *m = q->item[q->first];
	q->first = (q->first + 1) % QUEUE;
	q->count--;
	return m;
}

static void empty(struct queue *q)
{
	while (q->count)
		json_decref(get(q));
}

static void say_up(struct world *w, struct sim *s, json_t *m)
{
	json_object_set_new(m, "from", json_string(s->address));
	put(&w->up[s->node], m);
}

/* ---- what the machine asks for */

static struct sim *find(struct world *w, const char *address)
{
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++)
			if (!strcmp(w->sim[n][d].address, address))
				return &w->sim[n][d];
	fail_msg("no device %s", address);
	return NULL;
}

static void check_line(struct world *w, const json_t *line)
{
	if (json_object_get(line, "event")) {
		assert_string_equal(word(line, "event"), "resize");
		w->resizes++;
		int64_t lost = integer(line, "steps_lost");
		assert_true(lost >= 0 && lost <= w->next_line);
		w->next_line -= lost;
		w->lost += lost;
		assert_int_equal(integer(line, "step") <= w->next_line, 1);
		assert_true(json_number_value(json_object_get(line, "pause_s")) >= 0);
		return;
	}
	if (integer(line, "step") != w->next_line)
		fail_msg("line of step %lld where %lld was expected", (long long)integer(line, "step"), (long long)w->next_line);
	if (json_number_value(json_object_get(line, "loss")) != loss_of(w->next_line))
		fail_msg("wrong loss at step %lld", (long long)w->next_line);
	w->next_line++;
}

static void check_covered(struct world *w, json_t *live, int64_t step)
{
	struct hspmd_error err;
	struct hspmd_cluster *c = hspmd_cluster_from_json(json_object_get(live, "cluster"), "cluster", &err);
	struct hspmd_plan *p = hspmd_plan_from_json(json_object_get(live, "plan"), "plan", c, LAYERS, &err);
	int device[NODES * DEVICES], count = 0;
	size_t i;
	json_t *v;
	json_array_foreach(json_object_get(live, "holders"), i, v) {
		struct sim *s = find(w, json_string_value(v));
		if (!s->alive)
			continue; /* died since; the machine cannot know */
		char key[32];
		snprintf(key, sizeof key, "%lld", (long long)s->holds);
		json_t *of = json_object_get(w->plans, key);
		if (!of || !json_equal(json_object_get(of, "plan"), json_object_get(live, "plan")) || s->step != step)
			fail_msg("%s does not hold step %lld under that plan", s->address, (long long)step);
		device[count++] = hspmd_cluster_device(c, s->address, &err);
	}
	if (count == (int)json_array_size(json_object_get(live, "holders")))
		assert_true(hspmd_stages_cover(p, c, device, count));
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
}

static void check_start(struct world *w, const json_t *m)
{
	json_t *state = json_object_get(m, "state"), *live = json_object_get(state, "live");
	int64_t step = integer(m, "step");
	assert_int_equal(integer(m, "generation"), w->generation);
	if (live)
		check_covered(w, live, step);
	else if (json_object_get(state, "manifest"))
		assert_int_equal(integer(json_object_get(state, "manifest"), "step"), step);
	else
		assert_int_equal(step, 0);
}

static void carry_out(struct world *w, struct run_actions *a)
{
	for (size_t i = 0; i < a->count; i++) {
		struct run_action *x = &a->list[i];
		int n = x->node ? x->node[1] - '0' : 0;
		switch (x->kind) {
		case RUN_SEND: {
			int64_t g = integer(x->value, "generation");
			if (!strcmp(word(x->value, "type"), "prepare") && g != w->generation) {
				assert_true(g > w->generation);
				w->generation = g;
				char key[32];
				snprintf(key, sizeof key, "%lld", (long long)g);
				json_object_set_new(w->plans, key, json_pack("{s:O, s:O}", "cluster", json_object_get(x->value, "cluster"), "plan",
									     json_object_get(x->value, "plan")));
			}
			if (!strcmp(word(x->value, "type"), "start"))
				check_start(w, x->value);
			if (w->agent[n])
				put(&w->down[n], json_incref(x->value));
			break;
		}
		case RUN_SOLVE:
			json_decref(w->solve);
			w->solve = json_incref(x->value);
			w->solve_id = x->id;
			break;
		case RUN_LINE:
			check_line(w, x->value);
			break;
		case RUN_START_AGENT:
			if (w->held[n])
				put(&w->up[n], json_pack("{s:s}", "type", "boot"));
			break;
		case RUN_DROP_AGENT:
			for (int d = 0; d < DEVICES; d++)
				w->sim[n][d].alive = false;
			w->agent[n] = false;
			empty(&w->up[n]);
			empty(&w->down[n]);
			break;
		case RUN_POLL:
			w->poll = true;
			break;
		case RUN_GROW:
			w->grow = json_integer(x->count);
			w->grow_id = x->id;
			break;
		case RUN_SHRINK:
			w->shrink = json_incref(x->value);
			w->shrink_id = x->id;
			break;
		case RUN_REPLY:
			assert_true(x->id > 0 && x->id <= w->commands && x->last);
			assert_false(w->replied[x->id]);
			w->replied[x->id] = true;
			if (json_is_true(json_object_get(x->value, "ok")))
				w->ok++;
			else
				w->refused++;
			break;
		case RUN_EXIT:
			assert_false(w->ended);
			w->ended = true;
			w->status = x->count;
			snprintf(w->text, sizeof w->text, "%s", x->text ? x->text : "");
			break;
		case RUN_LOG:
			if (getenv("HSPMD_WORLD"))
				fprintf(stderr, "%9.3f %s\n", w->now, x->text);
			break;
		case RUN_SAVE_PLAN:
			break;
		}
	}
	run_actions_clear(a);
}

static void feed(struct world *w, struct run_event e)
{
	struct run_actions actions = { 0 };
	e.now = w->now;
	e.wall = 1.7e9 + w->now;
	assert_int_equal(hspmd_machine_feed(w->m, &e, &actions), 0);
	carry_out(w, &actions);
	double next = hspmd_machine_deadline(w->m);
	if (next <= w->now)
		fail_msg("the next deadline has passed already: %g at %g", next, w->now);
}

/* ---- workers */

static void forget(struct sim *s)
{
	json_decref(s->start);
	json_decref(s->checkpoint);
	s->start = s->checkpoint = NULL;
	s->alive = s->hung = s->stays = s->reporter = false;
	s->prepared = s->runs = s->loading = s->holds = s->stop = s->aborted = 0;
	s->step = 0;
	s->ready = s->applied = -1;
}

static bool named(const json_t *list, const char *address)
{
	size_t i;
	json_t *v;
	json_array_foreach(list, i, v)
		if (!strcmp(json_string_value(v), address))
			return true;
	return false;
}

static json_t *losses(int64_t step)
{
	json_t *l = json_array();
	for (int64_t s = 0; s < step; s++)
		json_array_append_new(l, json_pack("[I, f]", (json_int_t)s, loss_of(s)));
	return l;
}

static json_t *maybe(int64_t x)
{
	return x < 0 ? json_null() : json_integer(x);
}

static void report(struct world *w, struct sim *s, const char *type, int64_t g)
{
	say_up(w, s, json_pack("{s:s, s:I, s:I, s:o}", "type", type, "generation", (json_int_t)g, "step", (json_int_t)s->step, "losses", losses(s->step)));
}

static void write_checkpoint(struct world *w, struct sim *s, json_t *m)
{
	bool bad = w->o.noise && pick(w, 40) == 0;
	say_up(w, s, bad ? json_pack("{s:s, s:s, s:s}", "type", "written", "id", word(m, "id"), "error", "No space left on device")
			 : json_pack("{s:s, s:s, s:I}", "type", "written", "id", word(m, "id"), "step", (json_int_t)s->step));
}

static void worker_hears(struct world *w, struct sim *s, json_t *m)
{
	const char *type = word(m, "type");
	int64_t g = integer(m, "generation");
	if (!strcmp(type, "prepare")) {
		struct hspmd_error err;
		assert_true(g > s->prepared);
		s->prepared = g;
		struct hspmd_cluster *c = hspmd_cluster_from_json(json_object_get(m, "cluster"), "cluster", &err);
		struct hspmd_plan *p = hspmd_plan_from_json(json_object_get(m, "plan"), "plan", c, LAYERS, &err);
		int d = hspmd_cluster_device(c, s->address, NULL);
		s->prepared_in_plan = s->reporter = false;
		for (int i = 0; p && i < p->pipeline_count; i++)
			for (int k = 0; k < p->pipelines[i].stage_count; k++)
				for (int j = 0; j < p->pipelines[i].stages[k].device_count; j++)
					s->prepared_in_plan |= p->pipelines[i].stages[k].devices[j] == d;
		assert_non_null(p);
		hspmd_plan_destroy(p);
		hspmd_cluster_destroy(c);
		if (w->o.noise && pick(w, 60) == 0)
			say_up(w, s, json_pack("{s:s, s:I, s:s}", "type", "fault", "generation", (json_int_t)g, "text", "cannot prepare"));
		else
			say_up(w, s, json_pack("{s:s, s:I, s:s}", "type", "prepared", "generation", (json_int_t)g, "address", s->address));
	} else if (!strcmp(type, "start")) {
		assert_int_equal(s->prepared, g);
		assert_int_equal(s->runs, 0);
		s->loading = g;
		json_decref(s->start);
		s->start = json_incref(m);
	} else if (!strcmp(type, "stop")) {
		s->stop = g;
		if (!s->runs && s->holds == g && s->aborted < g)
			report(w, s, "stopped", g);
	} else if (!strcmp(type, "abort")) {
		if (s->loading == g)
			s->loading = 0;
		if (s->runs == g)
			s->runs = 0;
		s->aborted = g;
		json_t *a = json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "type", "aborted", "generation", (json_int_t)g, "step", (json_int_t)s->step,
				      "holds", s->holds ? json_integer(s->holds) : json_null(), "ready", maybe(s->ready), "applied", maybe(s->applied), "sums",
				      s->applied >= 0 ? json_pack("[f]", loss_of(s->applied)) : json_null(), "losses", losses(s->step));
		say_up(w, s, a);
	} else if (!strcmp(type, "settle")) {
		int64_t apply = integer(m, "apply");
		if (apply >= 0) {
			assert_int_equal(apply, s->ready);
			assert_int_equal(apply, s->step);
			assert_true(json_number_value(json_array_get(json_object_get(m, "sums"), 0)) == loss_of(apply));
			s->applied = s->step++;
		}
		s->ready = -1;
		report(w, s, "settled", g);
	} else if (!strcmp(type, "checkpoint")) {
		if (s->runs) {
			json_decref(s->checkpoint);
			s->checkpoint = json_incref(m);
		} else {
			write_checkpoint(w, s, m);
		}
	} else if (!strcmp(type, "manifest")) {
		json_t *manifest = json_object_get(m, "manifest");
		say_up(w, s, json_pack("{s:s, s:s}", "type", "manifested", "id", word(m, "id")));
		if (json_array_size(json_object_get(m, "folders")) == 2) { /* the shared one */
			w->saved_step = integer(manifest, "step");
			if (integer(w->saved, "step") <= w->saved_step) {
				json_decref(w->saved);
				w->saved = json_incref(manifest);
			}
		}
	} else if (!strcmp(type, "quit")) {
		forget(s);
	}
}

/* All who load generation g together: done when every member does. */
static void loaded(struct world *w, int64_t g)
{
	bool first = true;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++) {
			struct sim *s = &w->sim[n][d];
			if (s->loading != g)
				continue;
			s->loading = 0;
			s->step = integer(s->start, "step");
			s->holds = s->prepared_in_plan ? g : 0;
			s->runs = s->prepared_in_plan ? g : 0;
			s->ready = s->applied = -1;
			s->stop = 0;
			s->reporter = s->prepared_in_plan && first;
			first = first && !s->prepared_in_plan;
			say_up(w, s, json_pack("{s:s, s:I, s:I, s:{s:i, s:i}}", "type", "started", "generation", (json_int_t)g, "step", (json_int_t)s->step,
					       "bytes", "peers", 10, "shared", 1));
		}
}

/* Members of the plan of g, those that take part in its steps; false when one of them is dead, hung or called off. */
static int team(struct world *w, int64_t g, bool loading, struct sim **member, bool *complete)
{
	char key[32];
	int count = 0;
	snprintf(key, sizeof key, "%lld", (long long)g);
	json_t *of = json_object_get(w->plans, key);
	*complete = true;
	struct hspmd_error err;
	struct hspmd_cluster *c = hspmd_cluster_from_json(json_object_get(of, "cluster"), "cluster", &err);
	struct hspmd_plan *p = hspmd_plan_from_json(json_object_get(of, "plan"), "plan", c, LAYERS, &err);
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count; k++)
			for (int j = 0; j < p->pipelines[i].stages[k].device_count; j++) {
				char address[64];
				struct sim *s = find(w, hspmd_cluster_address(c, p->pipelines[i].stages[k].devices[j], address, sizeof address));
				*complete &= s->alive && !s->hung && (loading ? s->loading == g : s->runs == g);
				member[count++] = s;
			}
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
	return count;
}

/* A piece of a step. Returns false when there is none to be done. */
static bool work(struct world *w)
{
	struct sim *member[NODES * DEVICES];
	bool complete;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++) {
			struct sim *s = &w->sim[n][d];
			if (!s->alive || s->hung)
				continue;
			if (s->loading) {
				bool all = true;
				team(w, s->loading, true, member, &complete);
				for (int a = 0; a < NODES; a++)
					for (int b = 0; b < DEVICES; b++)
						if (w->sim[a][b].loading == s->loading && w->sim[a][b].hung)
							all = false;
				if (complete && all) {
					loaded(w, s->loading);
					return true;
				}
				continue;
			}
			if (!s->runs)
				continue;
			int count = team(w, s->runs, false, member, &complete);
			if (!complete)
				continue;
			int64_t step = INT64_MAX;
			for (int i = 0; i < count; i++)
				step = member[i]->step < step ? member[i]->step : step;
			if (step >= w->o.steps)
				continue;
			struct sim *one = member[pick(w, (uint64_t)count)];
			bool all_ready = true;
			for (int i = 0; i < count; i++)
				all_ready &= member[i]->step > step || member[i]->ready == step;
			w->now += 0.01;
			if (!all_ready) {
				if (one->step == step)
					one->ready = step;
				return true;
			}
			if (one->step > step)
				return true;
			/* The vote: what anybody asked for before it is agreed by the first who learns its result. */
			bool stop = false, save = true;
			for (int i = 0; i < count; i++) {
				stop |= member[i]->stop == member[i]->runs;
				save &= member[i]->checkpoint != NULL;
			}
			one->applied = one->step++;
			one->ready = -1;
			if (one == member[0])
				say_up(w, one, json_pack("{s:s, s:I, s:I, s:f, s:f}", "type", "step", "generation", (json_int_t)one->runs, "step",
							 (json_int_t)step, "loss", loss_of(step), "step_s", 0.01));
			bool last = true;
			for (int i = 0; i < count; i++)
				last &= member[i]->step > step;
			if (!last)
				return true;
			for (int i = 0; i < count; i++) {
				if (save) {
					write_checkpoint(w, member[i], member[i]->checkpoint);
					json_decref(member[i]->checkpoint);
					member[i]->checkpoint = NULL;
				}
				if (member[i]->step >= w->o.steps)
					report(w, member[i], "finished", member[i]->runs);
				else if (stop)
					report(w, member[i], "stopped", member[i]->runs);
				if (!stop && member[i]->step < w->o.steps)
					continue;
				member[i]->runs = 0;
				if (member[i]->checkpoint) /* it was asked too late for the vote */
					write_checkpoint(w, member[i], member[i]->checkpoint);
				json_decref(member[i]->checkpoint);
				member[i]->checkpoint = NULL;
			}
			return true;
		}
	return false;
}

/* ---- agents */

static json_t *part(const struct world *w, int n)
{
	char name[8];
	snprintf(name, sizeof name, "n%d", n);
	return json_pack("{s:s, s:{s:{s:s, s:I, s:i, s:{s:f}}}, s:[{s:s, s:[{s:s, s:i}]}], s:[{s:s, s:f, s:f}, {s:s, s:f, s:f}]}", "format",
			 HSPMD_CLUSTER_FORMAT, "device_types", "core", "kind", "cpu", "memory_bytes", (json_int_t)1 << 32, "gbytes_per_s", 20,
			 "peak_tflops", "fp32", 0.05, "nodes", "name", name, "devices", "type", "core", "count", w->o.devices_per_node, "links", "scope",
			 "node", "alpha_s", 1e-6, "gbytes_per_s", 5.0, "scope", "cluster", "alpha_s", 1e-5, "gbytes_per_s", 1.0);
}

static void agent_hears(struct world *w, int n, json_t *m)
{
	const char *type = word(m, "type");
	json_t *to = json_object_get(m, "to");
	for (int d = 0; to && d < DEVICES; d++)
		if (w->sim[n][d].alive && !w->sim[n][d].hung && named(to, w->sim[n][d].address))
			worker_hears(w, &w->sim[n][d], m);
	if (to)
		return;
	if (!strcmp(type, "spawn")) {
		struct sim *s = find(w, word(m, "device"));
		assert_false(s->alive);
		forget(s);
		s->alive = true;
		s->serial = integer(m, "serial");
		if (w->o.noise && pick(w, 50) == 0)
			s->hung = true;
		else
			say_up(w, s, json_pack("{s:s, s:i}", "type", "hello", "pid", 1));
	} else if (!strcmp(type, "kill")) {
		struct sim *s = find(w, word(m, "device"));
		if (s->alive && s->serial == integer(m, "serial")) {
			forget(s);
			put(&w->up[n], json_pack("{s:s, s:s, s:I}", "type", "exited", "device", s->address, "serial", (json_int_t)s->serial));
		}
	} else if (!strcmp(type, "find")) {
		json_t *list = w->saved ? json_pack("[O]", w->saved) : json_array();
		put(&w->up[n], json_pack("{s:s, s:I, s:o}", "type", "found", "id", (json_int_t)integer(m, "id"), "checkpoints", list));
	} else if (!strcmp(type, "quit")) {
		put(&w->up[n], json_pack("{s:s}", "type", "bye"));
	}
}

static void agent_dies(struct world *w, int n)
{
	char name[8];
	snprintf(name, sizeof name, "n%d", n);
	bool was = w->agent[n];
	w->agent[n] = false;
	for (int d = 0; d < DEVICES; d++)
		forget(&w->sim[n][d]);
	empty(&w->up[n]);
	empty(&w->down[n]);
	if (was)
		feed(w, (struct run_event){ .kind = RUN_AGENT_LOST, .node = name, .text = "connection closed" });
}

static void deliver(struct world *w, int n)
{
	char name[8];
	snprintf(name, sizeof name, "n%d", n);
	json_t *m = get(&w->up[n]);
	if (!strcmp(word(m, "type"), "boot")) {
		if (w->held[n] && !w->agent[n]) {
			json_t *hello = json_pack("{s:s, s:o}", "node", name, "cluster", part(w, n));
			w->agent[n] = true;
			feed(w, (struct run_event){ .kind = RUN_AGENT_UP, .node = name, .value = hello });
			json_decref(hello);
		}
	} else if (!strcmp(word(m, "type"), "bye")) {
		agent_dies(w, n);
	} else {
		feed(w, (struct run_event){ .kind = RUN_MESSAGE, .node = name, .value = m });
	}
	json_decref(m);
}

/* ---- Slurm and the solver */

static void tell_allocation(struct world *w)
{
	json_t *nodes = json_array();
	for (int n = 0; n < NODES; n++)
		if (w->held[n]) {
			char name[8];
			snprintf(name, sizeof name, "n%d", n);
			json_array_append_new(nodes, json_string(name));
		}
	json_t *value = json_pack("{s:o, s:s, s:n}", "nodes", nodes, "state", "running", "end_in_s");
	w->poll = false;
	feed(w, (struct run_event){ .kind = RUN_ALLOCATION, .value = value });
	json_decref(value);
}

static json_t *stage(int first, int end, json_t *devices)
{
	return json_pack("{s:[i, i], s:o}", "layers", first, end, "devices", devices);
}

/* Data parallel over all devices, or pipelines of two stages, some with two devices a stage. */
static json_t *plan_for(struct world *w, const struct hspmd_cluster *c)
{
	json_t *pipelines = json_array();
	char a[64];
	int kind = (int)pick(w, 3), at = 0, left = 48;
	while (at < c->device_count) {
		json_t *stages = json_array();
		int take = kind == 0 || c->device_count - at < 2 ? 1 : kind == 2 && c->device_count - at >= 4 ? 4 : 2;
		json_t *devices[2] = { json_array(), json_array() };
		for (int i = 0; i < take; i++)
			json_array_append_new(devices[take > 1 && i >= take / 2], json_string(hspmd_cluster_address(c, at + i, a, sizeof a)));
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
	return json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o}", "format", HSPMD_PLAN_FORMAT, "global_batch", 48, "micro_batch", 1, "seq_len", 8, "schedule",
			 "1f1b", "zero_stage", 0, "pipelines", pipelines);
}

static void solve(struct world *w)
{
	struct hspmd_error err = { "" };
	json_t *cluster = json_object_get(w->solve, "cluster");
	struct hspmd_cluster *c = hspmd_cluster_from_json(cluster, "cluster", &err);
	if (!c)
		fail_msg("%s", err.text);
	json_t *value = json_pack("{s:O, s:o}", "cluster", cluster, "plan", plan_for(w, c));
	hspmd_cluster_destroy(c);
	json_decref(w->solve);
	w->solve = NULL;
	feed(w, (struct run_event){ .kind = RUN_PLAN, .id = w->solve_id, .value = value });
	json_decref(value);
}

static void resize(struct world *w)
{
	if (w->grow) {
		int64_t left = json_integer_value(w->grow);
		for (int n = 0; n < w->o.nodes && left > 0; n++)
			if (!w->held[n]) {
				w->held[n] = true;
				left--;
			}
		json_decref(w->grow);
		w->grow = NULL;
		feed(w, (struct run_event){ .kind = RUN_RESIZED, .id = w->grow_id, .text = left ? "no nodes are free" : NULL });
	} else {
		for (int n = 0; n < NODES; n++) {
			char name[8];
			snprintf(name, sizeof name, "n%d", n);
			if (w->held[n] && !named(w->shrink, name)) {
				for (int d = 0; d < DEVICES; d++)
					assert_false(w->sim[n][d].alive); /* given back only when nothing runs there */
				w->held[n] = false;
				agent_dies(w, n); /* one that came up too late */
			}
		}
		json_decref(w->shrink);
		w->shrink = NULL;
		feed(w, (struct run_event){ .kind = RUN_RESIZED, .id = w->shrink_id });
	}
}

bool world_move(struct world *w)
{
	if (w->ended)
		return false;
	/* Any of the things that can happen, at random; the first that can, from a random start. */
	int start = (int)pick(w, 2 * NODES + 4);
	for (int k = 0; k < 2 * NODES + 4; k++) {
		int what = (start + k) % (2 * NODES + 4);
		if (what < NODES && w->up[what].count) {
			deliver(w, what);
			return true;
		}
		if (what >= NODES && what < 2 * NODES && w->down[what - NODES].count) {
			json_t *m = get(&w->down[what - NODES]);
			if (w->agent[what - NODES])
				agent_hears(w, what - NODES, m);
			json_decref(m);
			return true;
		}
		if (what == 2 * NODES && w->solve) {
			solve(w);
			return true;
		}
		if (what == 2 * NODES + 1 && w->poll) {
			tell_allocation(w);
			return true;
		}
		if (what == 2 * NODES + 2 && (w->grow || w->shrink)) {
			resize(w);
			return true;
		}
		if (what == 2 * NODES + 3 && work(w))
			return true;
	}
	return false;
}

void world_wait(struct world *w)
{
	double next = hspmd_machine_deadline(w->m);
	if (w->ended)
		return;
	if (isinf(next))
		fail_msg("nothing can happen and nothing is waited for");
	w->now = next;
	feed(w, (struct run_event){ .kind = RUN_TIME });
}

static void command(struct world *w, json_t *value)
{
	assert_true(w->commands + 1 < (int)(sizeof w->replied));
	feed(w, (struct run_event){ .kind = RUN_COMMAND, .id = ++w->commands, .value = value });
	json_decref(value);
}

void world_fault(struct world *w)
{
	int n = (int)pick(w, (uint64_t)w->o.nodes);
	struct sim *s = &w->sim[n][pick(w, (uint64_t)w->o.devices_per_node)];
	if (w->ended)
		return;
	switch (pick(w, 9)) {
	case 0: /* kill -9 of a worker */
		if (s->alive) {
			put(&w->up[n], json_pack("{s:s, s:s, s:I, s:s}", "type", "exited", "device", s->address, "serial", (json_int_t)s->serial, "text",
						 "killed by signal 9"));
			forget(s);
		}
		break;
	case 1: /* of an agent and all below it */
		if (w->agent[n])
			agent_dies(w, n);
		break;
	case 2: /* SIGSTOP */
		if (s->alive)
			s->hung = true;
		break;
	case 3: /* a false alarm */
		if (s->alive && s->runs)
			say_up(w, s, json_pack("{s:s, s:I, s:s}", "type", "fault", "generation", (json_int_t)s->runs, "text", "peer does not answer"));
		break;
	case 4: /* scontrol, without a warning */
		if (n > 0 && w->held[n]) {
			w->held[n] = false;
			w->poll = true;
			agent_dies(w, n);
		}
		break;
	case 5: /* as hspmdctld or an administrator would */
		if (!w->held[n]) {
			w->held[n] = true;
			w->poll = true;
		}
		break;
	case 6:
		command(w, json_pack("{s:s, s:i, s:i}", "command", "grow", "by", 1 + (int)pick(w, 2), "timeout_s", 1000));
		break;
	case 7:
		command(w, json_pack("{s:s, s:i, s:i}", "command", "shrink", "by", 1 + (int)pick(w, 2), "timeout_s", 1000));
		break;
	case 8:
		command(w, json_pack("{s:s}", "command", "checkpoint"));
		break;
	}
}

void world_heal(struct world *w)
{
	for (int n = 0; n < w->o.nodes; n++)
		w->held[n] = true;
	w->poll = true;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++)
			if (w->sim[n][d].hung) {
				put(&w->up[n], json_pack("{s:s, s:s, s:I}", "type", "exited", "device", w->sim[n][d].address, "serial",
							 (json_int_t)w->sim[n][d].serial));
				forget(&w->sim[n][d]);
			}
}

void world_leave(struct world *w)
{
	if (!w->ended)
		feed(w, (struct run_event){ .kind = RUN_LEAVE, .text = "SIGTERM", .seconds = 20 });
}

/* ---- making and asking */

static json_t *manifest(const struct run_config *c, const char *id, json_t *cluster, json_t *plan, json_t *written, struct hspmd_error *err)
{
	(void)c, (void)cluster, (void)plan, (void)err;
	return json_pack("{s:s, s:I}", "id", id, "step", (json_int_t)integer(json_array_get(written, 0), "step"));
}

static int choose(const struct run_config *c, json_t *found, json_t *readers, struct run_checkpoint_choice *choice)
{
	const char *key;
	json_t *list;
	(void)c, (void)readers;
	json_object_foreach(found, key, list) {
		if (!json_array_size(list))
			continue;
		choice->manifest = json_incref(json_array_get(list, 0));
		choice->files = json_object();
		choice->step = integer(choice->manifest, "step");
		return 0;
	}
	return -1;
}

struct world *world_create(const struct world_options *o)
{
	struct world *w = calloc(1, sizeof *w);
	struct hspmd_error err;
	assert_non_null(w);
	w->o = *o;
	w->random = o->seed * UINT64_C(0x9e3779b97f4a7c15) + 88172645463325252u;
	w->plans = json_object();
	w->saved_step = -1;
	w->job.steps = o->steps;
	w->job.global_batch = 48;
	w->job.seq_len = 8;
	w->job.file = "job.json";
	w->job.elastic.min_nodes = 1;
	w->job.elastic.max_nodes = o->nodes;
	w->job.checkpoint.every_s = 0.5;
	w->config = (struct run_config){
		.job = &w->job,
		.job_json = json_object(),
		.model_json = json_object(),
		.layers = LAYERS,
		.job_id = "7",
		.output = "/nowhere",
		.local = o->checkpoints ? "/local" : NULL,
		.shared = o->checkpoints ? "/shared" : NULL,
		.resizable = true,
		.max_attempts = 1000,
		.patience = run_patience_default(),
		.covered = hspmd_stages_cover,
		.manifest = manifest,
		.choose = choose,
	};
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++) {
			w->sim[n][d].node = n;
			snprintf(w->sim[n][d].address, sizeof w->sim[n][d].address, "n%d:%d", n, d);
			forget(&w->sim[n][d]);
		}
	for (int n = 0; n < o->held; n++)
		w->held[n] = true;
	w->now = 100;
	w->m = hspmd_machine_create(&w->config, w->now, &err);
	assert_non_null(w->m);
	w->poll = true;
	return w;
}

void world_destroy(struct world *w)
{
	hspmd_machine_destroy(w->m);
	for (int n = 0; n < NODES; n++) {
		empty(&w->up[n]);
		empty(&w->down[n]);
		for (int d = 0; d < DEVICES; d++)
			forget(&w->sim[n][d]);
	}
	json_decref(w->solve);
	json_decref(w->grow);
	json_decref(w->shrink);
	json_decref(w->plans);
	json_decref(w->saved);
	json_decref(w->config.job_json);
	json_decref(w->config.model_json);
	free(w);
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

int world_generations(const struct world *w)
{
	return (int)json_object_size(w->plans);
}

int world_resizes(const struct world *w)
{
	return w->resizes;
}

int64_t world_steps_lost(const struct world *w)
{
	return w->lost;
}

int world_replies(const struct world *w, bool ok)
{
	return ok ? w->ok : w->refused;
}

bool world_saved(const struct world *w)
{
	return w->saved_step == w->next_line;
}

json_t *world_status(const struct world *w)
{
	return hspmd_machine_status(w->m, w->now, w->now);
}

const char *world_exit_text(const struct world *w)
{
	return w->text;
}
