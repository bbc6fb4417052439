/* SPDX-License-Identifier: Apache-2.0 */
/* How workers write checkpoints, and where their copies in memory are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/generation/checkpoint_placement.h"
#include "tests/unit/world_internal.h"

/* error NULL: it is. Both parts have the same shard, which the first answer about a checkpoint describes. */
static void say_written(struct world *w, struct sim *s, json_t *m, bool shared, int64_t step, const char *error)
{
	json_t *a = json_pack("{s:s, s:s, s:b, s:s*}", "type", "checkpoint_written", "id", world_word(m, "id"), "shared", (int)shared,
	                      "error", error);
	if (!error) {
		json_object_set_new(a, "step", json_integer(step));
		if (s->told != m)
			json_object_set_new(a, "shard", json_pack("{s:s}", "file", world_word(m, "id")));
		json_decref(s->told);
		s->told = json_incref(m);
	}
	world_say_up(w, s, a);
}

static bool wants_own(const json_t *m)
{
	return json_is_string(json_object_get(m, "local")) || json_is_string(json_object_get(m, "memory"));
}

static bool wants_shared(const json_t *m)
{
	return json_is_string(json_object_get(m, "shared"));
}

static void refuse(struct world *w, struct sim *s, json_t *m, const char *why)
{
	if (wants_own(m))
		say_written(w, s, m, false, 0, why);
	if (wants_shared(m))
		say_written(w, s, m, true, 0, why);
}

void world_shared_away(struct world *w, bool away)
{
	w->shared_away = away;
	for (int n = 0; n < NODES; n++)
		for (int d = 0; d < DEVICES; d++) {
			struct sim *s = &w->sim[n][d];
			if (!away && s->hanging)
				say_written(w, s, s->hanging, true, s->hanging_step, NULL);
			json_decref(away ? NULL : s->hanging);
			s->hanging = away ? s->hanging : NULL;
		}
}

static void write_shared(struct world *w, struct sim *s, json_t *m, bool bad)
{
	w->shared_asked += s->node == 0;
	if (s->hanging) {
		say_written(w, s, m, true, 0, "the shared folder is still busy with an earlier checkpoint");
	} else if (w->shared_away) {
		s->hanging = json_incref(m);
		s->hanging_step = s->step;
	} else {
		say_written(w, s, m, true, s->step, bad ? "No space left on device" : NULL);
	}
}

static void write_checkpoint(struct world *w, struct sim *s, json_t *m)
{
	if (w->o.stuck)
		return;
	bool bad = w->o.noise && world_pick(w, 40) == 0, shared_bad = w->o.noise && world_pick(w, 40) == 0;
	bool shared_first = world_pick(w, 2);
	if (wants_shared(m) && shared_first)
		write_shared(w, s, m, shared_bad);
	if (wants_own(m))
		say_written(w, s, m, false, s->step, bad ? "No space left on device" : NULL);
	if (wants_shared(m) && !shared_first)
		write_shared(w, s, m, shared_bad);
}

void world_serve(struct world *w, struct sim *s, const char *why_not)
{
	json_t *m = s->checkpoint;
	s->checkpoint = NULL;
	if (m && !why_not && world_integer(m, "generation") != s->holds)
		why_not = "it does not hold that";
	if (m && why_not)
		refuse(w, s, m, why_not);
	else if (m)
		write_checkpoint(w, s, m);
	json_decref(m);
}

/* The nodes on which this generation's workers put each layer of a copy in memory: { layer: [nodes] }. */
static json_t *spread(const json_t *of)
{
	struct hspmd_error err;
	struct hspmd_cluster *c = hspmd_cluster_from_json(json_object_get(of, "cluster"), "cluster", &err);
	struct hspmd_plan *p = hspmd_plan_from_json(json_object_get(of, "plan"), "plan", c, LAYERS, &err);
	struct hspmd_parameter_layout parameter[LAYERS] = { 0 };
	struct hspmd_parameter_layouts layouts = { .parameters = parameter, .parameter_count = LAYERS };
	json_t *on = json_object();
	int rank_of[NODES];
	for (int d = 0; d < c->device_count; d++)
		rank_of[d] = -1;
	for (int layer = 0; layer < LAYERS; layer++) {
		char text[128] = "{", key[8];
		for (int i = 0; i < p->pipeline_count; i++)
			for (int k = 0; k < p->pipelines[i].stage_count; k++) {
				const struct hspmd_stage *st = &p->pipelines[i].stages[k];
				rank_of[st->devices[0]] = st->devices[0];
				if (st->layers[0] <= layer && layer < st->layers[1])
					sprintf(text + strlen(text), "%s[%d]:", i ? " | " : "", st->devices[0]);
			}
		strcat(text, p->pipeline_count > 1 ? "} h-1" : "}");
		parameter[layer].shape = (struct hspmd_shape){ 1, { 8 } };
		parameter[layer].state = hspmd_annotation_parse(text, &err);
		assert_non_null(parameter[layer].state);
		snprintf(key, sizeof key, "%d", layer);
		json_object_set_new(on, key, json_array());
	}
	for (int d = 0; d < c->device_count; d++) {
		struct hspmd_checkpoint_placement plan;
		if (rank_of[d] < 0)
			continue;
		assert_int_equal(hspmd_checkpoint_placement_plan(&layouts, c, rank_of, d, (int)world_integer(of, "replicas"),
		                                                 (int)world_integer(of, "keep"), &plan, &err),
		                 0);
		for (int layer = 0; layer < LAYERS; layer++)
			for (int k = -1; plan.writes[layer] && k < plan.to_count; k++) {
				char key[8];
				struct hspmd_local_shard share;
				if (!hspmd_annotation_local_shard(parameter[layer].state, &parameter[layer].shape, d, &share))
					continue;
				snprintf(key, sizeof key, "%d", layer);
				json_array_append_new(json_object_get(on, key),
				                      json_string(c->nodes[c->devices[k < 0 ? d : plan.to[k]].node].name));
			}
		hspmd_checkpoint_placement_free(&plan);
	}
	for (int layer = 0; layer < LAYERS; layer++)
		hspmd_annotation_destroy(parameter[layer].state);
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
	return on;
}

json_t *world_lay_copy(struct world *w, const json_t *manifest, int64_t generation)
{
	char key[32];
	json_t *copy = json_copy((json_t *)(uintptr_t)manifest);
	snprintf(key, sizeof key, "%lld", (long long)generation);
	json_object_set_new(copy, "on", spread(json_object_get(w->plans, key)));
	return copy;
}
