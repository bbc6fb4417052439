/* SPDX-License-Identifier: Apache-2.0 */
/* Every member plans its own moves of state. Together they must be one plan: what one sends another expects, and everything that is needed
 * arrives once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/generation/state_moves.h"
#include "runtime/model/model.h"
#include "runtime/program/program.h"
#include "runtime/state/manifest.h"
#include "tests/unit/trainer.h"

#define DEVICES 8
#define KINDS 3

static const char cluster_text[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n[0-3]\",\"devices\":[{\"type\":\"c\",\"count\":2}]}],\"links\":["
        "{\"scope\":\"node\",\"alpha_s\":1e-7,\"gbytes_per_s\":100},{\"scope\":\"cluster\",\"alpha_s\":1e-6,\"gbytes_per_s\":0.1}]}";

#define HEAD(zero)                                                                                                                         \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"zero_stage\":" zero ",\"pipelines\":["
#define PIPELINE(batches, stages) "{\"micro_batches\":" batches ",\"stages\":[" stages "]}"
#define STAGE(first, end, ...) "{\"layers\":[" first "," end "],\"devices\":[" __VA_ARGS__ "]}"

/* Of widths, depths and numbers of pipelines that have little in common. */
static const char *const plans[] = {
	HEAD("0") PIPELINE("8", STAGE("0", "5", "\"n0:0\"")) "]}",
	HEAD("1") PIPELINE("4", STAGE("0", "5", "\"n0:0-1\"")) "," PIPELINE(
	        "4", STAGE("0", "2", "\"n1:0\"") "," STAGE("2", "5", "\"n1:1\"")) "]}",
	HEAD("0") PIPELINE("2", STAGE("0", "5", "\"n0:0-1\"")) "," PIPELINE("2", STAGE("0", "5", "\"n1:0-1\"")) "," PIPELINE(
	        "2", STAGE("0", "5", "\"n2:0-1\"")) "," PIPELINE("2", STAGE("0", "5", "\"n3:0-1\"")) "]}",
	HEAD("1") PIPELINE("3", STAGE("0", "3", "\"n3:0-1\"") "," STAGE("3", "5", "\"n2:0-1\"")) "," PIPELINE(
	        "3", STAGE("0", "1", "\"n0:0\"") "," STAGE("1", "4", "\"n0:1\"") "," STAGE(
	                     "4", "5", "\"n1:0\"")) "," PIPELINE("2", STAGE("0", "5", "\"n1:1\"")) "]}",
	HEAD("1") PIPELINE("8", STAGE("0", "5", "\"n0:0-1\",\"n1:0-1\"")) "]}",
};
#define PLANS (sizeof plans / sizeof *plans)

struct scene {
	struct hspmd_cluster *cluster;
	struct hspmd_model *model;
	struct hspmd_graph *graph;
	struct hspmd_plan *plan[PLANS];
	struct hspmd_parameter_layouts *layouts[PLANS];
	size_t *element_bytes;
};

static int setup(void **state)
{
	struct hspmd_error err = { "" };
	struct scene *s = calloc(1, sizeof *s);
	json_t *c = json_loads(cluster_text, 0, NULL), *m = json_loads(trainer_gpt2, 0, NULL);
	s->cluster = hspmd_cluster_from_json(c, "cluster", &err);
	s->model = hspmd_model_from_json(m, "model", &err);
	if (!s->cluster || !s->model)
		fail_msg("%s", err.text);
	struct hspmd_graph_source source = hspmd_graph_source_model(s->model);
	struct hspmd_model_build_options how = { .batch = 1, .seq_len = 16, .vocab_parts = 1, .widest = 4, .loss_scale = 1 };
	s->graph = source.build(source.context, &how, &err);
	if (!s->graph)
		fail_msg("%s", err.text);
	for (size_t i = 0; i < PLANS; i++) {
		json_t *p = json_loads(plans[i], 0, NULL);
		s->plan[i] = hspmd_plan_from_json(p, "plan", s->cluster, hspmd_model_layers(s->model), &err);
		s->layouts[i] = s->plan[i] ? hspmd_parameter_layouts_build(s->graph, s->plan[i], &err) : NULL;
		if (!s->layouts[i])
			fail_msg("plan %zu: %s", i, err.text);
		json_decref(p);
	}
	s->element_bytes = calloc((size_t)s->layouts[0]->parameter_count * HSPMD_STATE_KIND_COUNT, sizeof *s->element_bytes);
	for (int i = 0; i < s->layouts[0]->parameter_count * HSPMD_STATE_KIND_COUNT; i++)
		s->element_bytes[i] = 4;
	json_decref(c);
	json_decref(m);
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;
	for (size_t i = 0; i < PLANS; i++) {
		hspmd_parameter_layouts_destroy(s->layouts[i]);
		hspmd_plan_destroy(s->plan[i]);
	}
	hspmd_graph_destroy(s->graph);
	hspmd_model_destroy(s->model);
	hspmd_cluster_destroy(s->cluster);
	free(s->element_bytes);
	free(s);
	return 0;
}

/* Parameters share annotations exactly if they have the same, and each has the one that it would have alone. */
static void like_parameters_share(void **state)
{
	const struct scene *s = *state;
	for (size_t k = 0; k < PLANS; k++) {
		int shared = 0;
		for (int i = 0; i < s->layouts[k]->parameter_count; i++) {
			const struct hspmd_parameter_layout *a = &s->layouts[k]->parameters[i];
			const struct hspmd_tensor *x = &s->graph->tensors[a->tensor];
			for (int j = 0; j < i; j++) {
				const struct hspmd_parameter_layout *b = &s->layouts[k]->parameters[j];
				const struct hspmd_tensor *y = &s->graph->tensors[b->tensor];
				bool like = x->split_dim == y->split_dim && x->split_unit == y->split_unit &&
				            a->shape.rank == b->shape.rank && a->holder_count == b->holder_count;
				for (int d = 0; like && d < a->shape.rank; d++)
					like = a->shape.dim[d] == b->shape.dim[d];
				for (int h = 0; like && h < a->holder_count; h++)
					like = a->holders[h].pipeline == b->holders[h].pipeline &&
					       a->holders[h].stage == b->holders[h].stage;
				assert_int_equal(a->used == b->used, like);
				assert_int_equal(a->state == b->state, like);
				assert_true(!like || a->cut == b->cut);
				shared += like;
			}
			for (int h = 0; h < a->holder_count; h++) { /* on the devices of its holders, one subgroup each */
				const struct hspmd_stage *st = &s->plan[k]->pipelines[a->holders[h].pipeline].stages[a->holders[h].stage];
				assert_int_equal(a->used->groups[h].device_count, st->device_count);
				assert_memory_equal(a->used->groups[h].devices, st->devices, (size_t)st->device_count * sizeof(int));
			}
		}
		assert_true(shared > 0);
	}
}

struct own {
	struct hspmd_planned_move *moves;
	size_t count;
};

static bool same_move(const struct hspmd_planned_move *a, const struct hspmd_planned_move *b)
{
	return a->tensor == b->tensor && a->from == b->from && a->to == b->to && hspmd_box_equal(&a->box, &b->box);
}

/* The n-th move between two members in one member's list; NULL: it has fewer. */
static const struct hspmd_planned_move *between(const struct own *o, int from, int to, size_t n)
{
	for (size_t i = 0; i < o->count; i++)
		if (o->moves[i].from == from && o->moves[i].to == to && n-- == 0)
			return &o->moves[i];
	return NULL;
}

/* Sender and receiver list the same slices in the same order, as they go into messages. */
static void check_pairs(const struct own *own)
{
	for (int a = 0; a < DEVICES; a++)
		for (int b = 0; b < DEVICES; b++)
			for (size_t n = 0;; n++) {
				const struct hspmd_planned_move *x = between(&own[a], a, b, n), *y = between(&own[b], a, b, n);
				assert_int_equal(!x, !y);
				if (!x)
					break;
				assert_true(same_move(x, y));
			}
}

/* Every member gets each element of what it needs once. Moves of one receiver do not overlap. */
static void check_arrivals(const struct scene *s, size_t to, const struct own *own)
{
	for (int d = 0; d < DEVICES; d++) {
		int64_t wanted = 0, arrived = 0;
		for (int i = 0; i < s->layouts[to]->parameter_count; i++) {
			const struct hspmd_parameter_layout *l = &s->layouts[to]->parameters[i];
			struct hspmd_local_shard shard;
			if (!hspmd_annotation_local_shard(l->state, &l->shape, d, &shard))
				continue;
			wanted += KINDS * hspmd_box_elements(&shard.box);
			for (size_t k = 0; k < own[d].count; k++) {
				struct hspmd_box common;
				if (own[d].moves[k].to == d && own[d].moves[k].tensor / HSPMD_STATE_KIND_COUNT == i) {
					assert_true(hspmd_box_contains(&shard.box, &own[d].moves[k].box));
					arrived += hspmd_box_elements(&own[d].moves[k].box);
				}
				for (size_t j = 0; j < k; j++)
					if (own[d].moves[k].to == d && own[d].moves[j].to == d &&
					    own[d].moves[j].tensor == own[d].moves[k].tensor)
						assert_false(hspmd_box_intersect(&own[d].moves[j].box, &own[d].moves[k].box, &common));
			}
		}
		assert_int_equal(arrived, wanted);
	}
}

/* What nodes have as files: every member of the plan can read what it holds. */
static size_t store(const struct scene *s, size_t plan, struct hspmd_holding *out)
{
	size_t count = 0;
	for (int i = 0; i < s->layouts[plan]->parameter_count; i++)
		for (int d = 0; d < DEVICES; d++) {
			const struct hspmd_parameter_layout *l = &s->layouts[plan]->parameters[i];
			struct hspmd_local_shard shard;
			for (int k = 0; k < KINDS && hspmd_annotation_local_shard(l->state, &l->shape, d, &shard); k++)
				out[count++] = (struct hspmd_holding){ i * HSPMD_STATE_KIND_COUNT + k, d, shard.box };
		}
	return count;
}

/* The files of a checkpoint with a root. Of what several devices hold, not all have everything that they hold. */
static bool file_has(const void *context, int device, int parameter)
{
	const struct hspmd_parameter_layout *l = &((const struct hspmd_parameter_layouts *)context)->parameters[parameter];
	struct hspmd_local_shard shard;
	return hspmd_annotation_local_shard(l->state, &l->shape, device, &shard) && (!shard.replica || (device + parameter) % 2);
}

static bool reads(const struct hspmd_file_side *f, int device, int rank)
{
	for (int i = f->first_reader[device]; i < f->first_reader[device + 1]; i++)
		if (f->readers[i] == rank)
			return true;
	return false;
}

/* Whether the sender can read all of a slice, in one file or in several. */
static bool is_readable(const struct hspmd_file_side *f, const struct hspmd_planned_move *m)
{
	int parameter = m->tensor / HSPMD_STATE_KIND_COUNT, count = 1;
	const struct hspmd_parameter_layout *l = &f->layouts->parameters[parameter];
	struct hspmd_box rest[64] = { m->box };
	for (int x = 0; x < DEVICES; x++) {
		struct hspmd_local_shard shard;
		if (!file_has(f->context, x, parameter) || !(reads(f, x, m->from) || (f->everybody[x] && m->from == m->to)) ||
		    !hspmd_annotation_local_shard(l->state, &l->shape, x, &shard))
			continue;
		for (int i = count - 1; i >= 0; i--) {
			struct hspmd_box whole = rest[i];
			rest[i] = rest[--count];
			assert_true(count + 2 * HSPMD_MAX_RANK < 64);
			count += hspmd_box_subtract(&whole, &shard.box, rest + count);
		}
	}
	return count == 0;
}

/* Every move comes from files that have the slice and that the sender can read. */
static void check_sources(const struct hspmd_file_side *f, const struct own *own)
{
	for (int d = 0; d < DEVICES; d++)
		for (size_t k = 0; k < own[d].count; k++)
			assert_true(is_readable(f, &own[d].moves[k]));
}

/* From files alone; shared: a bit for each device whose file everybody can read. The others are read by one member of the writer's node,
 * some also by one of the next. */
static void check_files(const struct scene *s, size_t from, size_t to, unsigned shared)
{
	struct hspmd_error err = { "" };
	struct own own[DEVICES];
	int all[DEVICES], first[DEVICES + 1], readers[2 * DEVICES], count = 0;
	bool everybody[DEVICES];
	for (int d = 0; d < DEVICES; d++) {
		all[d] = d;
		first[d] = count;
		everybody[d] = shared >> d & 1;
		if (!everybody[d])
			readers[count++] = d / 2 * 2;
		if (!everybody[d] && d % 3 == 0)
			readers[count++] = (d / 2 * 2 + 2) % DEVICES;
	}
	first[DEVICES] = count;
	struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(s->cluster);
	struct hspmd_state_side now = { s->layouts[to], all, DEVICES };
	struct hspmd_file_side files = { .layouts = s->layouts[from],
		                         .device_count = DEVICES,
		                         .first_reader = first,
		                         .readers = readers,
		                         .everybody = everybody,
		                         .has = file_has,
		                         .context = s->layouts[from] };
	for (int d = 0; d < DEVICES; d++) {
		struct hspmd_state_moves m = {
			.self = d, .kinds = KINDS, .element_bytes = s->element_bytes, .now = &now, .files = &files, .cost = &cost
		};
		if (hspmd_state_moves_plan(&m, &own[d].moves, &own[d].count, &err))
			fail_msg("plan %zu to %zu, device %d: %s", from, to, d, err.text);
	}
	check_pairs(own);
	check_arrivals(s, to, own);
	check_sources(&files, own);
	for (int d = 0; d < DEVICES; d++)
		free(own[d].moves);
}

static void all_files(void **state)
{
	const struct scene *s = *state;
	for (size_t from = 0; from < PLANS; from++)
		for (size_t to = 0; to < PLANS; to++) {
			check_files(s, from, to, 0);
			check_files(s, from, to, 0xff);
			check_files(s, from, to, 0x69);
		}
}

/* From one plan to another; from memory, from files, or from the memory of some and the files of all. */
static void check_change(const struct scene *s, size_t from, size_t to, bool live, bool files, int gone)
{
	static struct hspmd_holding stored[4096];
	struct hspmd_error err = { "" };
	struct own own[DEVICES];
	int there[DEVICES], all[DEVICES];
	for (int d = 0; d < DEVICES; d++) {
		all[d] = d;
		there[d] = d == gone ? -1 : d;
	}
	struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(s->cluster);
	struct hspmd_state_side now = { s->layouts[to], all, DEVICES }, held = { s->layouts[from], there, DEVICES };
	for (int d = 0; d < DEVICES; d++) {
		struct hspmd_state_moves m = {
			.self = d,
			.kinds = KINDS,
			.element_bytes = s->element_bytes,
			.now = &now,
			.live = &held,
			.live_count = live,
			.stored = stored,
			.stored_count = files ? store(s, from, stored) : 0,
			.cost = &cost,
		};
		if (hspmd_state_moves_plan(&m, &own[d].moves, &own[d].count, &err))
			fail_msg("plan %zu to %zu, device %d: %s", from, to, d, err.text);
		for (size_t i = 0; i < own[d].count; i++)
			assert_true(own[d].moves[i].from == d || own[d].moves[i].to == d);
	}
	check_pairs(own);
	check_arrivals(s, to, own);
	for (int d = 0; d < DEVICES; d++)
		free(own[d].moves);
}

static void all_changes(void **state)
{
	const struct scene *s = *state;
	for (size_t from = 0; from < PLANS; from++)
		for (size_t to = 0; to < PLANS; to++) {
			check_change(s, from, to, true, false, -1);
			check_change(s, from, to, false, true, -1);
			check_change(s, from, to, true, true, (int)((from + to) % DEVICES));
		}
}

/* Members that need a slice that is nowhere say so; the others do not plan for it. */
static void lost_slices(void **state)
{
	const struct scene *s = *state;
	struct hspmd_error err = { "" };
	struct hspmd_planned_move *moves;
	size_t count;
	int all[DEVICES], there[DEVICES];
	for (int d = 0; d < DEVICES; d++) {
		all[d] = d;
		there[d] = d == 0 ? -1 : d;
	}
	struct hspmd_state_side now = { s->layouts[2], all, DEVICES }, held = { s->layouts[1], there, DEVICES };
	struct hspmd_state_moves m = {
		.self = 5, .kinds = KINDS, .element_bytes = s->element_bytes, .now = &now, .live = &held, .live_count = 1
	};
	assert_int_equal(hspmd_state_moves_plan(&m, &moves, &count, &err), -1);
	assert_non_null(strstr(err.text, "no copy of"));
	now.layouts = s->layouts[0];
	assert_int_equal(hspmd_state_moves_plan(&m, &moves, &count, &err), 0);
	assert_int_equal(count, 0);
	free(moves);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(like_parameters_share), cmocka_unit_test(all_changes),
		                            cmocka_unit_test(all_files), cmocka_unit_test(lost_slices) };
	return cmocka_run_group_tests(tests, setup, teardown);
}
