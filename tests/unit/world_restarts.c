/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and destruction of the world, and the incarnations of the job controller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/core/controller_internal.h"
#include "controller/run/coverage.h"
#include "tests/unit/world_internal.h"

static json_t *manifest(const struct run_config *c, const char *id, json_t *cluster, json_t *plan, json_t *written, struct hspmd_error *err)
{
	json_t *one;
	size_t i;
	json_array_foreach(written, i, one) /* whichever answer of a worker had its shard */
		if (!json_object_get(one, "error"))
			assert_string_equal(world_word(json_object_get(one, "shard"), "file"), id);
	(void)c, (void)cluster;
	json_array_foreach(written, i, one)
		if (json_object_get(one, "error")) {
			hspmd_fail(err, "%s", world_word(one, "error"));
			return NULL;
		}
	return json_pack("{s:s, s:I, s:{s:O}}", "id", id, "step", (json_int_t)world_integer(json_array_get(written, 0), "step"), "job",
	                 "plan", plan);
}

const char *world_sum(const json_t *manifest, char *sum)
{
	snprintf(sum, WORLD_SUM, "%c%015lld", json_object_get(manifest, "on") ? 'c' : 's', (long long)world_integer(manifest, "step"));
	return sum;
}

static int check_manifest(const json_t *manifest, const char *sum, struct hspmd_error *err)
{
	char its[WORLD_SUM];
	return strcmp(world_sum(manifest, its), sum) ? hspmd_fail(err, "it is %s instead of %s", its, sum) : 0;
}

/* Returns true if the nodes whose files are read have each layer of a copy in memory. readers NULL: all are. */
static bool copy_is_whole(json_t *found, const json_t *readers, const json_t *copy)
{
	bool there[LAYERS] = { false }, whole = true;
	const char *node, *key;
	size_t i;
	json_t *list, *one, *v;
	if (!json_object_get(copy, "on"))
		return true;
	json_object_foreach(found, node, list)
		json_array_foreach(list, i, one)
			json_object_foreach(json_object_get(copy, "on"), key, v)
				there[atoi(key)] |= (!readers || json_object_get(readers, node)) &&
				                    !strcmp(world_word(one, "place"), "memory") && world_named(v, node);
	for (int layer = 0; layer < LAYERS; layer++)
		whole &= there[layer];
	return whole;
}

/* Borrowed; NULL: there is none. */
static const json_t *newest(json_t *found, json_t *manifests, const json_t *readers)
{
	const char *key;
	size_t i;
	json_t *list, *one, *best = NULL;
	json_object_foreach(found, key, list)
		json_array_foreach(list, i, one)
			if (!json_is_null(json_object_get(manifests, world_word(one, "sum"))) &&
			    (strcmp(world_word(one, "place"), "memory") || copy_is_whole(found, readers, one)) &&
			    (!best || world_integer(one, "step") > world_integer(best, "step")))
				best = one;
	return best;
}

/* Chooses the newest checkpoint. */
static int choose(const struct run_config *c, json_t *found, json_t *manifests, json_t *readers, struct run_checkpoint_choice *choice,
                  struct hspmd_error *err)
{
	const json_t *best = newest(found, manifests, readers);
	struct world *w = c->state;
	(void)err;
	world_forget_choice(w);
	w->found = json_incref(found);
	w->known = json_copy(manifests);
	if (!best)
		return 0;
	snprintf(choice->sum, sizeof choice->sum, "%s", world_word(best, "sum"));
	choice->manifest = json_incref(json_object_get(manifests, choice->sum));
	if (!choice->manifest)
		return 2;
	choice->files = json_object();
	choice->step = world_integer(choice->manifest, "step");
	choice->durable = !strcmp(world_word(best, "place"), "shared");
	return 1;
}

void world_forget_choice(struct world *w)
{
	json_decref(w->found);
	json_decref(w->known);
	w->found = w->known = NULL;
}

void world_check_choice(struct world *w, int64_t step)
{
	json_t *there = json_object(), *list;
	const char *node;
	json_object_foreach(w->found, node, list)
		if (w->agent[node[1] - '0'] && !w->away[node[1] - '0'] && !w->vanished[node[1] - '0'] &&
		    node_readable(node_find(w->m, node)))
			json_object_set(there, node, list);
	const json_t *best = newest(there, w->known, NULL);
	if (best && world_integer(best, "step") > step)
		fail_msg("it goes on from step %lld, but nodes have step %lld", (long long)step, (long long)world_integer(best, "step"));
	json_decref(there);
}

static int refuse(const struct run_config *c, json_t *found, json_t *manifests, json_t *readers, struct run_checkpoint_choice *choice,
                  struct hspmd_error *err)
{
	int chosen = choose(c, found, manifests, readers, choice, err);
	if (chosen != 1)
		return chosen;
	json_decref(choice->manifest);
	json_decref(choice->files);
	choice->manifest = choice->files = NULL;
	return hspmd_fail(err, "the checkpoint is of another model");
}

/* All devices are equally fast, and have equal shares. */
static int expected_busy(const struct run_config *c, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, double *busy_s)
{
	int n = hspmd_plan_device_count(plan), at = 0;
	(void)c;
	for (int p = 0; p < plan->pipeline_count; p++)
		for (int s = 0; s < plan->pipelines[p].stage_count; s++)
			for (int d = 0; d < plan->pipelines[p].stages[s].device_count; d++, at++)
				busy_s[at] = 0.02 * cluster->nodes[cluster->devices[plan->pipelines[p].stages[s].devices[d]].node].slowdown;
	assert_int_equal(at, n);
	return 0;
}

static int unfit(const struct run_config *c, struct hspmd_plan *plan, const struct hspmd_cluster *cluster, struct hspmd_error *err)
{
	(void)plan, (void)cluster;
	return hspmd_fail(err, "%s: pipelines[0].stages[0]: it cannot be run", c->first_plan_name);
}

struct world *world_create(const struct world_options *o)
{
	struct world *w = calloc(1, sizeof *w);
	struct hspmd_error err;
	assert_non_null(w);
	w->o = *o;
	w->random = o->seed * UINT64_C(0x9e3779b97f4a7c15) + 88172645463325252u;
	w->plans = json_object();
	w->shrinks = json_array();
	w->over = json_object();
	w->events = json_array();
	w->saves = json_object();
	w->solves = json_array();
	w->local = json_array();
	w->saved_step = w->shared_step = -1;
	w->job.steps = o->steps;
	w->job.global_batch = 48;
	w->job.seq_len = 8;
	w->job.file = "job.json";
	w->job.elastic.min_nodes = 1;
	w->job.elastic.max_nodes = o->nodes;
	w->job.checkpoint.every_s = o->every_steps ? 0 : 0.5;
	w->job.checkpoint.every_steps = o->every_steps;
	w->job.checkpoint.shared_every_s = o->shared_every_s > 0 ? o->shared_every_s : 0.7;
	w->job.checkpoint.replicas = 1;
	w->job.checkpoint.keep = 2;
	w->job.samples.every_steps = o->samples_every;
	w->config = (struct run_config){
		.job = &w->job,
		.facts = o->facts,
		.job_json = json_object(),
		.model_json = json_object(),
		.layers = LAYERS,
		.job_id = "7",
		.output = "/nowhere",
		.local = o->checkpoints ? "/local" : NULL,
		.shared = o->checkpoints ? "/shared" : NULL,
		.memory = o->sole || o->halves || o->seed % 4 < 2 ? "/memory" : NULL,
		.resizable = true,
		.members = true,
		.max_attempts = o->attempts ? o->attempts : 1000,
		.timeouts = run_timeouts_default(),
		.covered = hspmd_stages_cover,
		.state = w,
		.manifest = manifest,
		.choose = o->foreign ? refuse : choose,
		.check_manifest = check_manifest,
		.first_plan = o->given,
		.first_plan_name = "given.json",
		.runnable = o->unfit ? unfit : NULL,
	};
	if (o->gather > 0)
		w->config.timeouts.startup = o->gather;
	if (o->stragglers) {
		w->config.expected_busy = expected_busy;
		w->config.policy_terms = (struct run_policy_terms){ .slower_than = 1.5, .slower_for_s = 3, .back_below = 1.2 };
	}
	if (o->min_gain > 0)
		w->config.policy_terms.min_gain = o->min_gain;
	for (int n = 0; n < NODES; n++)
		w->slow[n] = 1;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++) {
			w->sim[n][d].node = n;
			snprintf(w->sim[n][d].address, sizeof w->sim[n][d].address, "n%d:%d", n, d);
			world_forget(&w->sim[n][d]);
		}
	for (int n = 0; n < o->held; n++)
		w->held[n] = true;
	w->now = 100;
	w->m = hspmd_controller_create(&w->config, w->now, &err);
	assert_non_null(w->m);
	w->poll = true;
	return w;
}

void world_destroy(struct world *w)
{
	hspmd_controller_destroy(w->m);
	for (int n = 0; n < NODES; n++) {
		world_empty(&w->up[n]);
		world_empty(&w->down[n]);
		world_empty(&w->steps[n]);
		for (int d = 0; d < DEVICES; d++)
			world_forget(&w->sim[n][d]);
	}
	json_decref(w->solves);
	json_decref(w->grow);
	json_decref(w->shrinks);
	json_decref(w->over);
	json_decref(w->plans);
	json_decref(w->saved);
	json_decref(w->local);
	json_decref(w->kept);
	json_decref(w->copied);
	json_decref(w->stored);
	world_forget_choice(w);
	json_decref(w->config.job_json);
	json_decref(w->config.model_json);
	json_decref(w->config.journal);
	json_decref(w->journal);
	json_decref(w->events);
	json_decref(w->saves);
	free(w);
}

/* ---- incarnations */

/* The agent of node n when the controller is dead: it carries out what it has received, and will report the last steps again; all other
 * messages in transit are lost. */
void world_lose_controller(struct world *w, int n)
{
	for (uint64_t heard = world_pick(w, (uint64_t)w->down[n].count + 1); heard && w->down[n].count; heard--) {
		json_t *m = world_get(&w->down[n]);
		world_agent_hears(w, n, m);
		json_decref(m);
	}
	world_empty(&w->down[n]);
	struct queue *kept = &w->steps[n];
	while (w->up[n].count) {
		json_t *m = world_get(&w->up[n]);
		const char *type = world_word(m, "type");
		if (!strcmp(type, "step") || !strcmp(type, "boot") || !strcmp(type, "bye"))
			world_put(kept, json_incref(m));
		json_decref(m);
	}
	while (kept->count)
		world_put(&w->up[n], world_get(kept));
	w->away[n] = w->agent[n];
}

void world_restart(struct world *w)
{
	struct hspmd_error err;
	if (w->ended)
		return;
	w->life++;
	hspmd_controller_destroy(w->m);
	json_array_clear(w->solves);
	json_decref(w->grow);
	w->grow = NULL;
	json_array_clear(w->shrinks);
	for (int n = 0; n < NODES; n++) {
		if (w->vanished[n]) { /* nobody receives what was sent there */
			w->agent[n] = w->vanished[n] = false;
			world_empty(&w->down[n]);
		}
		w->second_starts[n] |= w->second[n]; /* it connects again */
		w->second[n] = false;
		world_lose_controller(w, n);
	}
	json_decref(w->config.journal);
	w->config.journal = w->journal ? json_deep_copy(w->journal) : NULL;
	w->config.events = w->events;
	w->config.generation = w->planned;
	w->config.last_step = w->next_line;
	w->config.resize_reported = w->resize_reported;
	w->config.resumed = "controller";
	w->now += 0.01;
	w->m = hspmd_controller_create(&w->config, w->now, &err);
	assert_non_null(w->m);
	w->dies = w->dead = w->polled = false;
	w->poll = true;
}

void world_dies(struct world *w, int after)
{
	w->dies = true;
	w->actions_left = after;
}

void world_dies_at(struct world *w, const char *type)
{
	w->dies_at = type;
}

void world_dies_in_switch(struct world *w)
{
	w->dies_in_switch = true;
}

void world_call(struct world *w, int n)
{
	char name[16], job[24] = "7";
	bool ends = false;
	for (int i = 0; i < w->up[n].count; i++)
		ends |= !strcmp(world_word(w->up[n].item[(w->up[n].first + i) % QUEUE], "type"), "bye");
	if (ends) { /* it does not connect, and nothing reports its end */
		world_member_ends(w, n, "has ended");
		world_agent_dies(w, n);
		return;
	}
	snprintf(name, sizeof name, "n%d", n);
	if (w->member[n])
		snprintf(job, sizeof job, "%lld", (long long)w->member[n]);
	json_t *workers = json_array(), *hello;
	for (int d = 0; d < DEVICES; d++)
		if (w->sim[n][d].alive)
			json_array_append_new(workers, json_pack("{s:s, s:I, s:i}", "device", w->sim[n][d].address, "serial",
			                                         (json_int_t)w->sim[n][d].serial, "pid", 1));
	hello = json_pack("{s:s, s:s, s:o, s:o}", "node", name, "job", job, "cluster", world_part(w, n), "workers", workers);
	w->away[n] = false;
	world_feed(w, (struct run_event){ .kind = EVENT_AGENT_UP, .node = name, .value = hello });
	json_decref(hello);
}
