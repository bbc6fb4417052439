/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/synthesis/synthesis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/synthesis/synthesis_internal.h"

#define MAX_ROUNDS 3 /* over all windows */
#define MAX_TURNS 4  /* of shares and programs; one if the search had to leave programs out, which takes seconds */
#define ENOUGH 1e-4  /* relative gain that is worth another */

static int check(const struct hspmd_graph *g, struct hspmd_error *err)
{
	for (size_t t = 0; t < g->tensor_count; t++)
		if (g->tensors[t].annotation)
			return hspmd_fail(err, "tensor %s is annotated by hand: there is nothing to search", g->tensors[t].name);
	for (size_t i = 0; i < g->op_count; i++)
		if (!hspmd_op_types[g->ops[i].opcode]->rule)
			return hspmd_fail(err, "operator %s is never part of a graph", hspmd_opcode_names[g->ops[i].opcode]);
	return 0;
}

static int allocate(struct hspmd_synthesis *s)
{
	size_t n = (size_t)s->stage.device_count;
	s->arena = hspmd_arena_create();
	s->cost = hspmd_link_cost_of_cluster(s->stage.cluster);
	s->cost.cache = hspmd_resolve_cache_create();
	if (!s->arena || !s->cost.cache)
		return -1;
	s->rate = hspmd_arena_alloc(s->arena, n, sizeof *s->rate);
	s->memory_rate = hspmd_arena_alloc(s->arena, n, sizeof *s->memory_rate);
	s->order = hspmd_arena_alloc(s->arena, n, sizeof *s->order);
	s->tensors = hspmd_arena_alloc(s->arena, s->g->tensor_count, sizeof *s->tensors);
	s->rest = hspmd_arena_alloc(s->arena, s->g->op_count + 1, sizeof *s->rest);
	s->chosen = hspmd_arena_alloc(s->arena, s->g->op_count, sizeof *s->chosen);
	s->watched = hspmd_arena_alloc(s->arena, n, sizeof *s->watched);
	s->watched_memory = hspmd_arena_alloc(s->arena, n, sizeof *s->watched_memory);
	s->least_bytes = hspmd_arena_alloc(s->arena, n * (s->g->op_count + 1), sizeof *s->least_bytes);
	s->most_bytes = hspmd_arena_alloc(s->arena, n * (s->g->op_count + 1), sizeof *s->most_bytes);
	for (size_t d = 0; s->order && d < n; d++)
		s->order[d] = (int)d;
	bool all = s->watched && s->watched_memory && s->least_bytes && s->most_bytes;
	return all && s->rate && s->memory_rate && s->order && s->tensors && s->rest && s->chosen ? 0 : -1;
}

/* Memory is watched only if the parameters' state and all activations, whole, would not fit on some device. */
static bool is_limited(const struct hspmd_synthesis *s)
{
	const struct hspmd_cluster *c = s->stage.cluster;
	double bytes = 0;
	for (size_t t = 0; t < s->g->tensor_count; t++) {
		const struct hspmd_tensor *what = &s->g->tensors[t];
		double elements = (double)hspmd_shape_elements(&what->shape);
		if (what->role == HSPMD_TENSOR_PARAMETER)
			bytes += elements * s->stage.state_bytes;
		else if (what->role == HSPMD_TENSOR_ACTIVATION)
			bytes += elements * (double)hspmd_dtype_bytes(what->dtype);
	}
	for (int d = 0; s->stage.state_bytes > 0 && d < s->stage.device_count; d++)
		if (bytes > (double)c->types[c->devices[s->stage.devices[d]].type].memory_bytes)
			return true;
	return false;
}

static bool are_alike(const struct hspmd_synthesis_stage *stage)
{
	const struct hspmd_cluster *c = stage->cluster;
	const struct hspmd_cluster_device *first = &c->devices[stage->devices[0]];
	for (int d = 1; d < stage->device_count; d++) {
		const struct hspmd_cluster_device *device = &c->devices[stage->devices[d]];
		if (device->type != first->type || c->nodes[device->node].slowdown != c->nodes[first->node].slowdown)
			return false;
	}
	return true;
}

struct hspmd_synthesis *hspmd_synthesis_create(const struct hspmd_graph *g, const struct hspmd_synthesis_stage *stage,
                                               struct hspmd_error *err)
{
	struct hspmd_synthesis *s = calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "searching a program");
		return NULL;
	}
	s->g = g;
	s->stage = *stage;
	int status = check(g, err);
	if (!status && allocate(s))
		status = hspmd_fail_memory(err, "searching a program");
	if (status || hspmd_synthesis_rates(stage, s->rate, s->memory_rate, err) || hspmd_synthesis_segments(s, err) ||
	    hspmd_synthesis_groups(s, err)) {
		hspmd_synthesis_destroy(s);
		return NULL;
	}
	hspmd_synthesis_forget(s, -1);
	s->alike = are_alike(stage);
	s->limited = is_limited(s);
	return s;
}

void hspmd_synthesis_destroy(struct hspmd_synthesis *s)
{
	if (!s)
		return;
	if (s->tensors)
		hspmd_synthesis_forget(s, -1);
	hspmd_resolve_cache_destroy(s->cost.cache);
	hspmd_arena_destroy(s->arena);
	free(s);
}

int hspmd_synthesis_samples(const struct hspmd_synthesis *s)
{
	for (size_t t = 0; t < s->g->tensor_count; t++)
		if (s->g->tensors[t].role == HSPMD_TENSOR_INPUT && s->g->tensors[t].shape.rank > 0)
			return s->tensors[t].segment[0];
	return -1;
}

/* Excludes all but dividing these segments where an operator has them, with weights kept as they are read (those that several operators
 * read: whole) and gradients summed: so few choices that nothing has to be left out. */
static void allow_segments(struct hspmd_synthesis *s, const bool *allowed)
{
	for (int n = 0; n < s->group_count; n++) {
		struct group *g = &s->groups[n];
		bool divided = false;
		for (int k = 0; k < g->choice_count; k++) {
			struct choice *c = &g->choices[k];
			c->excluded = (c->segment >= 0 && !allowed[c->segment]) || c->backward >= 0 || c->factors ||
			              (c->kept_how != KEPT_AS_READ && c->kept_how != KEPT_LAYOUT + LAYOUT_WHOLE);
			divided |= !c->excluded && c->segment >= 0;
		}
		for (int k = 0; k < g->choice_count; k++)
			g->choices[k].excluded |= divided && g->choices[k].segment < 0;
	}
}

/* Adds the segments of experts: what tensor parallelism divides of weights with a matrix for each. Returns true if there are some. */
static bool add_experts(const struct hspmd_synthesis *s, bool *allowed)
{
	bool any = false;
	for (size_t t = 0; t < s->g->tensor_count; t++) {
		const struct hspmd_tensor *what = &s->g->tensors[t];
		int segment = what->role == HSPMD_TENSOR_PARAMETER && what->shape.rank == 3 && what->split_dim == 0
		                      ? s->tensors[t].segment[0]
		                      : -1;
		if (segment >= 0)
			any = allowed[segment] = true;
	}
	return any;
}

/* Searches among the divisions that people write by hand: samples, as data parallelism does; and these with whole experts. */
static void search_by_hand(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result, bool *allowed, int *chosen)
{
	int samples = hspmd_synthesis_samples(s);
	if (samples >= 0)
		allowed[samples] = true;
	allow_segments(s, allowed);
	hspmd_synthesis_search_again(s, result, chosen);
	if (!add_experts(s, allowed))
		return;
	allow_segments(s, allowed);
	hspmd_synthesis_search_again(s, result, chosen);
}

/* A search that had to leave something out is repeated with fewer choices: as people divide by hand (unless a program is known from other
 * shares); then any way to divide a few groups in turn, with the others as they are, until that helps no more. */
static int search_parts(struct hspmd_synthesis *s, bool known, struct hspmd_synthesis_result *result, struct hspmd_error *err)
{
	int *chosen = hspmd_calloc((size_t)s->group_count, sizeof *chosen);
	bool *allowed = hspmd_calloc((size_t)s->segment_count + 1, sizeof *allowed);
	int status = chosen && allowed ? 0 : hspmd_fail_memory(err, "searching a program");
	if (!status && !known)
		search_by_hand(s, result, allowed, chosen);
	free(chosen);
	free(allowed);
	return status ? -1 : hspmd_synthesis_improve_windows(s, known ? 1 : MAX_ROUNDS, result, err);
}

/* Under the present shares. Returns 1 if programs that the stage wants are none. */
static int search_programs(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result, struct hspmd_error *err)
{
	if (hspmd_synthesis_choices(s, err))
		return -1;
	result->first_bound = s->rest[0];
	if (!s->found && hspmd_synthesis_is_beaten(s, result))
		return 1;
	int rc = hspmd_synthesis_astar(s, s->alike && s->stage.below_s > 0 ? s->stage.below_s : HUGE_VAL, result, err);
	if (rc)
		return rc;
	result->settled = true;
	return result->bound < result->seconds ? search_parts(s, false, result, err) : 0;
}

static void set_shares_by_memory(struct hspmd_synthesis *s)
{
	const struct hspmd_cluster *c = s->stage.cluster;
	for (int g = 0; g < s->segment_count; g++)
		for (int d = 0; d < s->stage.device_count; d++)
			s->segments[g].weights[d] = 1 + c->types[c->devices[s->stage.devices[d]].type].memory_bytes / 1024;
	hspmd_synthesis_forget(s, -1);
}

int hspmd_synthesis_choose_again(struct hspmd_synthesis *s, const struct program *p, struct hspmd_error *err)
{
	for (int n = 0; n < s->group_count; n++)
		if ((s->chosen[n] = hspmd_synthesis_find_choice(s, n, &p->choices[n])) < 0)
			return hspmd_fail(err, "the program that was found cannot be repeated under other shares");
	return 0;
}

/* A search that had to leave something out under other shares only improves what it found then. */
static int search_around(struct hspmd_synthesis *s, const struct program *p, double seconds, struct hspmd_synthesis_result *result,
                         struct hspmd_error *err)
{
	if (hspmd_synthesis_choices(s, err))
		return -1;
	result->seconds = seconds;
	result->first_bound = result->bound = s->rest[0];
	return hspmd_synthesis_choose_again(s, p, err) || search_parts(s, true, result, err) ? -1 : 0;
}

/* One turn: shares for the program, then a program for these. *better: it may pay to take another. */
static int turn(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result, bool *better, struct hspmd_error *err)
{
	struct program p;
	struct hspmd_synthesis_result next = { .expanded = result->expanded, .turns = result->turns + 1 };
	double balanced;
	if (hspmd_synthesis_program_open(s, &p))
		return hspmd_fail_memory(err, "searching a program");
	int status = hspmd_synthesis_balance(s, &p, &balanced, &next.shares_bound, err);
	if (!status)
		status = result->bound < result->seconds ? search_around(s, &p, balanced, &next, err) : search_programs(s, &next, err);
	bool ended = status && hspmd_synthesis_timed_out(s); /* before there was another program; that of before still stands */
	if ((!status && next.seconds > balanced) || ended) {
		next.seconds = balanced;
		status = hspmd_synthesis_choose_again(s, &p, err);
	}
	*better = !status && next.seconds < result->seconds * (1 - ENOUGH);
	if (!status)
		*result = next;
	hspmd_synthesis_program_close(&p);
	return status;
}

/* Programs and shares in turns, from the present shares on. */
static int search_from_here(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result, struct hspmd_error *err)
{
	*result = (struct hspmd_synthesis_result){ 0 };
	int rc = search_programs(s, result, err);
	if (rc < 0 && s->limited && !s->stage.keep_shares && !s->alike) {
		set_shares_by_memory(s);
		rc = search_programs(s, result, err);
	}
	if (rc)
		return rc;
	bool better = !s->stage.keep_shares && s->stage.device_count > 1 && !(s->alike && result->settled);
	s->found = true;
	result->shares_bound = result->seconds;
	while (better && !hspmd_synthesis_timed_out(s) && result->turns < (result->bound < result->seconds ? 1 : MAX_TURNS))
		if (turn(s, result, &better, err))
			return -1;
	return 0;
}

/* All segments' shares, one after another: copied to `all`, or from it. */
static void copy_shares(struct hspmd_synthesis *s, int64_t *all, bool back)
{
	size_t n = (size_t)s->stage.device_count, bytes = n * sizeof *all;
	for (int g = 0; g < s->segment_count; g++, all += n)
		memcpy(back ? s->segments[g].weights : all, back ? all : s->segments[g].weights, bytes);
	if (back)
		hspmd_synthesis_forget(s, -1);
}

/* Whole experts are coarse: shares by speed may be rounded to worse ones than equal shares, from which the search then starts again. Keeps
 * the better program and its shares. */
static int search_from_equal(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result, struct hspmd_error *err)
{
	size_t count = (size_t)s->segment_count * (size_t)s->stage.device_count;
	struct hspmd_synthesis_result other;
	struct hspmd_error why;
	struct program p = { 0 };
	int64_t *shares = hspmd_calloc(count + 1, sizeof *shares);
	int status = shares && !hspmd_synthesis_program_open(s, &p) ? 0 : hspmd_fail_memory(err, "searching a program");
	if (!status) {
		copy_shares(s, shares, false);
		for (int g = 0; g < s->segment_count; g++)
			for (int d = 0; d < s->stage.device_count; d++)
				s->segments[g].weights[d] = 1;
		hspmd_synthesis_forget(s, -1);
		bool better = search_from_here(s, &other, &why) == 0 && other.seconds < result->seconds;
		other.expanded += result->expanded;
		if (better) {
			*result = other;
		} else {
			copy_shares(s, shares, true);
			status = hspmd_synthesis_choices(s, err) || hspmd_synthesis_choose_again(s, &p, err) ? -1 : 0;
		}
	}
	hspmd_synthesis_program_close(&p);
	free(shares);
	return status;
}

int hspmd_synthesis_search(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result, struct hspmd_error *err)
{
	bool *experts = hspmd_calloc((size_t)s->segment_count + 1, sizeof *experts);
	if (!experts)
		return hspmd_fail_memory(err, "searching a program");
	bool any = add_experts(s, experts) && !s->stage.keep_shares && !s->alike;
	free(experts);
	int rc = search_from_here(s, result, err);
	return !rc && any && !hspmd_synthesis_timed_out(s) ? search_from_equal(s, result, err) : rc;
}
