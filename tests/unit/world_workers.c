/* SPDX-License-Identifier: Apache-2.0 */
/* Workers whose only state is a step number, and that make a step part by part. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/format/device_runs.h"
#include "common/format/workspace_limit.h"
#include "tests/unit/world_internal.h"

void world_forget(struct sim *s)
{
	json_decref(s->start);
	json_decref(s->checkpoint);
	json_decref(s->hanging);
	json_decref(s->told);
	s->start = s->checkpoint = s->hanging = s->told = NULL;
	s->alive = s->set_up = s->hung = s->stays = s->reporter = false;
	s->prepared = s->runs = s->loading = s->holds = s->done = s->stop = s->stopped = s->aborted = 0;
	while (s->waiting_count)
		json_decref(s->waiting[--s->waiting_count]);
	memset(s->choice, 0, sizeof s->choice);
	s->step = 0;
	s->ready = s->applied = -1;
}

void world_killed(struct sim *s)
{
	if (s->alive && s->holds) {
		s->left.holds = s->holds;
		s->left.step = s->step;
		s->left.ready = s->ready;
		s->left.applied = s->applied;
	}
	world_forget(s);
}

/* A new process takes up its predecessor's state. */
static void revive(struct sim *s)
{
	s->holds = s->left.holds;
	s->step = s->left.step;
	s->ready = s->left.ready;
	s->applied = s->left.applied;
	s->left.holds = 0;
}

static json_t *losses(int64_t step)
{
	json_t *l = json_array();
	for (int64_t s = 0; s < step; s++)
		json_array_append_new(l, json_pack("[I, f]", (json_int_t)s, world_loss(s)));
	return l;
}

static json_t *maybe(int64_t x)
{
	return x < 0 ? json_null() : json_integer(x);
}

static void report(struct world *w, struct sim *s, const char *type, int64_t g)
{
	world_say_up(w, s,
	             json_pack("{s:s, s:I, s:I, s:o}", "type", type, "generation", (json_int_t)g, "step", (json_int_t)s->step, "losses",
	                       losses(s->step)));
}

static void tell_stopped(struct world *w, struct sim *s, int64_t g)
{
	s->stopped = g;
	report(w, s, "stopped", g);
}

/* In every other world the devices of every other node take long to connect. */
static bool world_has_gpu(const struct world *w, const struct sim *s)
{
	return w->o.seed % 2 && s->node % 2;
}

int world_preconnects(const struct world *w, int *informed)
{
	int meetings = 0;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++) {
			meetings += w->sim[n][d].preconnects;
			*informed += w->sim[n][d].informed;
		}
	return meetings;
}

static void take_choices(struct sim *s, const json_t *lines)
{
	for (size_t i = 0; i < json_array_size(lines); i++) {
		int key, value;
		const char *line = json_string_value(json_array_get(lines, i));
		if (!strncmp(line, HSPMD_CHOICE_LEAST, strlen(HSPMD_CHOICE_LEAST))) {
			uint32_t most = hspmd_workspace_limit_of(lines);
			s->least = s->least && s->least < most ? s->least : most;
			continue;
		}
		assert_int_equal(sscanf(line, "key %d = %d", &key, &value), 2);
		s->choice[key] = value;
	}
}

static bool measures(const struct sim *s, int key)
{
	return key == 0 || key == 1 + s->node % (CHOICES - 1);
}

/* Measures what it was not told. Returns the choices that the plan does not have; NULL: there are none. */
static json_t *measure(struct sim *s, const json_t *plan)
{
	json_t *lines = json_array();
	int told[CHOICES];
	s->least = 0; /* each program has its own */
	take_choices(s, json_object_get(plan, "choices"));
	memcpy(told, s->choice, sizeof told);
	for (int key = 0; key < CHOICES; key++) {
		bool known = false;
		for (size_t i = 0; i < json_array_size(json_object_get(plan, "choices")); i++)
			known |= atoi(json_string_value(json_array_get(json_object_get(plan, "choices"), i)) + 4) == key;
		if (!measures(s, key) || known)
			continue;
		if (!told[key]) /* each process another */
			s->choice[key] = 1 + (int)((s->serial + s->node * 3 + key) % 7);
		json_array_append_new(lines, json_sprintf("key %d = %d", key, s->choice[key]));
	}
	/* Some are short of memory, each process more or less. */
	uint32_t most = s->node % 2 ? UINT32_C(1) << (10 + (s->serial + s->node) % 9) : 0;
	s->own_least = most;
	if (most && (!s->least || most < s->least))
		json_array_append_new(lines, hspmd_workspace_limit_line(s->least = most));
	if (json_array_size(lines))
		return lines;
	json_decref(lines);
	return NULL;
}

/* All devices compute alike, whichever of them measured, and as long as the job lives. */
static void check_choices(struct world *w, const struct sim *s, int64_t generation)
{
	if (w->least_of != generation)
		w->least = s->least;
	w->least_of = generation;
	assert_int_equal(s->least, w->least);
	assert_true(!s->own_least || s->least <= s->own_least);
	for (int key = 0; key < CHOICES; key++) {
		if (!measures(s, key))
			continue;
		assert_true(s->choice[key] > 0);
		if (!w->chosen[key])
			w->chosen[key] = s->choice[key];
		assert_int_equal(s->choice[key], w->chosen[key]);
	}
}

/* The main thread's part of handling a message. */
static void handle(struct world *w, struct sim *s, json_t *m)
{
	const char *type = world_word(m, "type");
	int64_t g = world_integer(m, "generation");
	if (!strcmp(type, "job")) {
		s->set_up = true;
	} else if (!strcmp(type, "prepare")) {
		struct hspmd_error err;
		assert_true(s->set_up);
		assert_true(g > s->prepared);
		s->prepared = g;
		struct hspmd_cluster *c = hspmd_cluster_from_json(json_object_get(m, "cluster"), "cluster", &err);
		struct hspmd_plan *p = hspmd_plan_from_json(json_object_get(m, "plan"), "plan", c, LAYERS, &err);
		int d = hspmd_cluster_find_device(c, s->address, NULL);
		s->prepared_in_plan = s->reporter = false;
		for (int i = 0; p && i < p->pipeline_count; i++)
			for (int k = 0; k < p->pipelines[i].stage_count; k++)
				for (int j = 0; j < p->pipelines[i].stages[k].device_count; j++)
					s->prepared_in_plan |= p->pipelines[i].stages[k].devices[j] == d;
		assert_non_null(p);
		hspmd_plan_destroy(p);
		hspmd_cluster_destroy(c);
		if (w->o.noise && world_pick(w, 60) == 0)
			world_say_up(w, s,
			             json_pack("{s:s, s:I, s:s}", "type", "fault", "generation", (json_int_t)g, "text", "cannot prepare"));
		else
			world_say_up(w, s,
			             json_pack("{s:s, s:I, s:s, s:o*, s:o*}", "type", "prepared", "generation", (json_int_t)g, "address",
			                       s->address, "needs_preconnect", world_has_gpu(w, s) ? json_true() : NULL, "choices",
			                       measure(s, json_object_get(m, "plan"))));
	} else if (!strcmp(type, "preconnect")) {
		assert_int_equal(s->prepared, g);
		assert_int_equal(s->loading, 0);
		s->preconnects += world_has_gpu(w, s);
		world_check_addresses(s, m);
		/* Some never answer: that costs only time, and addresses that are sent again. */
		s->exchanged = world_has_gpu(w, s) && w->o.noise && world_pick(w, 10) == 0 ? 0 : g;
		if (s->exchanged)
			world_say_up(w, s, json_pack("{s:s, s:I}", "type", "preconnected", "generation", (json_int_t)g));
	} else if (!strcmp(type, "start")) {
		assert_int_equal(s->prepared, g);
		assert_int_equal(s->runs, 0);
		if (s->exchanged != g || json_object_get(m, "addresses")) /* it knows all of them, and has said so */
			world_check_addresses(s, m);
		s->informed += !json_object_get(m, "addresses");
		take_choices(s, json_object_get(m, "choices"));
		s->loading = g;
		json_decref(s->start);
		s->start = json_incref(m);
	} else if (!strcmp(type, "stop")) {
		if (!s->runs && s->holds == g && s->aborted < g && s->stopped != g)
			tell_stopped(w, s, g);
	} else if (!strcmp(type, "query")) {
		world_say_up(w, s,
		             json_pack("{s:s, s:I, s:I, s:o, s:b, s:o}", "type", "query_reply", "generation", (json_int_t)g, "step",
		                       (json_int_t)s->step, "holds", s->holds ? json_integer(s->holds) : json_null(), "training",
		                       s->runs == g && s->stop != g, "losses", losses(s->step)));
	} else if (!strcmp(type, "abort")) {
		if (json_is_true(json_object_get(m, "revive")) && s->set_up && !s->holds && s->left.holds)
			revive(s);
		if (s->loading == g)
			s->loading = 0;
		if (s->done == g)
			s->done = 0;
		s->aborted = g;
		json_t *a = json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "type", "aborted", "generation", (json_int_t)g, "step",
		                      (json_int_t)s->step, "holds", s->holds ? json_integer(s->holds) : json_null(), "ready",
		                      maybe(s->ready), "applied", maybe(s->applied), "sums",
		                      s->applied >= 0 ? json_pack("[f]", world_loss(s->applied)) : json_null(), "losses", losses(s->step));
		world_say_up(w, s, a);
	} else if (!strcmp(type, "settle")) {
		int64_t apply = world_integer(m, "apply");
		if (apply >= 0) {
			assert_int_equal(apply, s->ready);
			assert_int_equal(apply, s->step);
			assert_true(json_number_value(json_array_get(json_object_get(m, "sums"), 0)) == world_loss(apply));
			s->applied = s->step++;
		}
		s->ready = -1;
		report(w, s, "settled", g);
	} else if (!strcmp(type, "checkpoint")) {
		if (!s->runs)
			world_serve(w, s, NULL);
	} else if (!strcmp(type, "write_manifest")) {
		json_t *manifest = json_object_get(m, "manifest");
		int64_t of = atoll(world_word(m, "id") + 1); /* the worker may hold a later generation by now than that of "g7-15" */
		world_say_up(w, s,
		             json_pack("{s:s, s:s, s:O}", "type", "manifest_written", "id", world_word(m, "id"), "shared",
		                       json_object_get(m, "shared")));
		if (!strcmp(json_string_value(json_array_get(json_object_get(m, "folders"), 0)), "/memory")) {
			json_decref(w->copied);
			w->copied = w->o.halves ? world_lay_copy(w, manifest, of) : json_incref(manifest);
		}
		json_t *folders = json_object_get(m, "folders");
		json_t *id = json_pack("[I, I]", (json_int_t)world_integer(manifest, "step"), (json_int_t)of);
		size_t known = json_array_size(w->local);
		if (world_named(folders, "/local") && !(known && json_equal(json_array_get(w->local, known - 1), id)))
			json_array_append(w->local, id);
		json_decref(id);
		if (world_named(folders, "/shared"))
			w->shared_step = world_integer(manifest, "step");
		if (world_named(folders, "/shared") || world_named(folders, "/local")) {
			w->saved_step = world_integer(manifest, "step");
			if (world_integer(w->saved, "step") <= w->saved_step) {
				json_decref(w->saved);
				w->saved = json_incref(manifest);
			}
		}
	} else if (!strcmp(type, "committed")) {
		world_check_committed(w, m);
	} else if (!strcmp(type, "quit")) {
		world_forget(s);
	}
}

static void drain(struct world *w, struct sim *s)
{
	while (s->waiting_count) {
		json_t *m = s->waiting[0];
		memmove(s->waiting, s->waiting + 1, (size_t)--s->waiting_count * sizeof *s->waiting);
		handle(w, s, m);
		json_decref(m);
	}
}

/* The steps are over, as agreed or, with why_not, because they were aborted. */
static void end_steps(struct world *w, struct sim *s, const char *why_not)
{
	s->done = why_not ? 0 : s->runs;
	s->runs = 0;
	world_serve(w, s, why_not);
	drain(w, s);
}

static void finish(struct world *w, struct sim *s)
{
	report(w, s, "finished", s->runs);
	end_steps(w, s, NULL);
}

/* Messages that a worker's reading thread handles at once; all others wait for the end of a step. */
void world_worker_hears(struct world *w, struct sim *s, json_t *m)
{
	const char *type = world_word(m, "type");
	int64_t g = world_integer(m, "generation");
	if (!strcmp(type, "ping")) {
		world_say_up(w, s, json_pack("{s:s}", "type", "pong"));
		return;
	}
	if (!strcmp(type, "stop"))
		s->stop = g;
	if (!strcmp(type, "checkpoint") || !strcmp(type, "query")) {
		json_decref(s->checkpoint);
		s->checkpoint = !strcmp(type, "checkpoint") ? json_incref(m) : NULL;
	}
	if (!strcmp(type, "abort") && s->runs == g)
		end_steps(w, s, "called off");
	if (s->runs && strcmp(type, "quit") != 0) {
		assert_true(s->waiting_count < WAITING);
		s->waiting[s->waiting_count++] = json_incref(m);
	} else {
		handle(w, s, m);
	}
}

/* All workers that load generation g together: the load ends when every member does. */
static void loaded(struct world *w, int64_t g)
{
	bool first = true;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++) {
			struct sim *s = &w->sim[n][d];
			if (s->loading != g)
				continue;
			s->loading = 0;
			s->step = world_integer(s->start, "step");
			check_choices(w, s, g);
			s->holds = s->prepared_in_plan ? g : 0;
			s->runs = s->prepared_in_plan ? g : 0;
			s->done = s->stopped = 0;
			s->ready = s->applied = -1;
			s->left.holds = 0;
			s->stop = 0;
			s->reporter = s->prepared_in_plan && first;
			first = first && !s->prepared_in_plan;
			world_say_up(w, s,
			             json_pack("{s:s, s:I, s:I, s:{s:i, s:i}}", "type", "started", "generation", (json_int_t)g, "step",
			                       (json_int_t)s->step, "bytes", "peers", 10, "shared", 1));
			if (s->runs && s->step >= w->o.steps)
				finish(w, s);
		}
}

/* The addresses of the workers of a plan, kept with it: a plan is read at every part of every step. Borrowed. */
static json_t *team_addresses(json_t *of)
{
	struct hspmd_error err;
	json_t *list = json_object_get(of, "team");
	if (list)
		return list;
	struct hspmd_cluster *c = hspmd_cluster_from_json(json_object_get(of, "cluster"), "cluster", &err);
	struct hspmd_plan *p = hspmd_plan_from_json(json_object_get(of, "plan"), "plan", c, LAYERS, &err);
	list = json_array();
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count; k++)
			for (int j = 0; j < p->pipelines[i].stages[k].device_count; j++) {
				char address[64];
				int device = p->pipelines[i].stages[k].devices[j];
				json_array_append_new(list, json_string(hspmd_cluster_device_address(c, device, address, sizeof address)));
			}
	json_object_set_new(of, "team", list);
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
	return list;
}

/* Fills in the workers of the plan of g, and returns their number. *complete: false if one of them is dead, hung or aborted. */
static int team(struct world *w, int64_t g, bool loading, struct sim **member, bool *complete)
{
	char key[32];
	snprintf(key, sizeof key, "%lld", (long long)g);
	json_t *addresses = team_addresses(json_object_get(w->plans, key)), *one;
	size_t i;
	*complete = true;
	json_array_foreach(addresses, i, one) {
		struct sim *s = world_find(w, json_string_value(one));
		*complete &= s->alive && !s->hung && (loading ? s->loading == g : s->runs == g || s->done == g);
		member[i] = s;
	}
	return (int)json_array_size(addresses);
}

/* As run_steps (runtime/worker/worker.c). */
static void end_of_step(struct world *w, struct sim *s, bool stop, bool save)
{
	int64_t g = s->runs;
	if (save)
		world_serve(w, s, NULL);
	if (stop && s->step < w->o.steps) {
		tell_stopped(w, s, g);
		end_steps(w, s, NULL);
		return;
	}
	drain(w, s);
	if (s->runs == g && s->step >= w->o.steps)
		finish(w, s);
}

/* Returns true if each member of g that only reads files of a checkpoint loads, too. */
static bool readers_load(struct world *w, int64_t g)
{
	char key[32];
	struct hspmd_error err;
	char(*address)[HSPMD_DEVICE_RUNS_ADDRESS];
	bool all = true;
	if (w->stored_generation != g)
		return true;
	snprintf(key, sizeof key, "%lld", (long long)g);
	int count = hspmd_device_runs_expand(json_object_get(json_object_get(w->plans, key), "members"), &address, &err);
	for (int i = 0; i < count; i++) {
		const struct sim *s = world_find(w, address[i]);
		all &= s->prepared_in_plan || (s->alive && s->loading == g);
	}
	free(address);
	return all;
}

/* A worker that loads state ends if all can. */
static bool load(struct world *w, struct sim *s)
{
	struct sim *member[NODES * DEVICES];
	bool complete, all = true, have = true;
	if (!s->alive || s->hung || !s->loading)
		return false;
	int count = team(w, s->loading, true, member, &complete);
	for (int a = 0; a < NODES; a++)
		for (int b = 0; b < DEVICES; b++)
			if (w->sim[a][b].loading == s->loading && w->sim[a][b].hung)
				all = false;
	/* A worker that only sends state, and starts when the others have all state, is done at once. */
	for (int i = 0; i < count; i++)
		have &= member[i]->holds == s->loading;
	if (!all || (!have && !readers_load(w, s->loading)) || (!complete && !(have && !s->prepared_in_plan)))
		return false;
	loaded(w, s->loading);
	return true;
}

bool world_work(struct world *w)
{
	struct sim *member[NODES * DEVICES];
	bool complete;
	/* The first that can work does. Sometimes loads go first: else a worker that only sends state could wait for ever. */
	bool loads_first = ++w->works % 256 == 0;
	for (int i = 0; loads_first && i < NODES * DEVICES; i++)
		if (load(w, &w->sim[i / DEVICES][i % DEVICES]))
			return true;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++) {
			struct sim *s = &w->sim[n][d];
			if (load(w, s))
				return true;
			if (!s->alive || s->hung || s->loading)
				continue;
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
			struct sim *one = member[world_pick(w, (uint64_t)count)];
			bool all_ready = true;
			for (int i = 0; i < count; i++)
				all_ready &= member[i]->step > step || member[i]->ready == step;
			w->now += 0.01;
			if (!all_ready) {
				if (one->step == step && one->ready != step) {
					one->ready = step;
					one->votes_stop = one->stop == one->runs;
					one->votes_save = one->checkpoint && world_integer(one->checkpoint, "generation") == one->runs;
				}
				return true;
			}
			if (one->step > step)
				return true;
			/* The vote: each worker learns its result separately. */
			bool stop = false, save = true;
			for (int i = 0; i < count; i++) {
				stop |= member[i]->votes_stop;
				save &= member[i]->votes_save;
			}
			one->applied = one->step++;
			w->furthest = one->step > w->furthest ? one->step : w->furthest;
			one->ready = -1;
			double busy = 0.01 * w->slow[one->node];
			if (one == member[0])
				world_say_up(w, one,
				             json_pack("{s:s, s:I, s:I, s:f, s:f, s:f}", "type", "step", "generation",
				                       (json_int_t)one->runs, "step", (json_int_t)step, "loss", world_loss(step), "step_s",
				                       0.01, "compute_s", busy));
			else if (w->o.stragglers)
				world_say_up(w, one,
				             json_pack("{s:s, s:I, s:I, s:f}", "type", "heartbeat", "generation", (json_int_t)one->runs,
				                       "step", (json_int_t)step, "compute_s", busy));
			end_of_step(w, one, stop, save);
			return true;
		}
	return false;
}
