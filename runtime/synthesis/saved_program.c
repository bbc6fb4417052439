/* SPDX-License-Identifier: Apache-2.0 */
/* A program as JSON, which travels with the plan:
 *
 *     { "segments": [ { "tensor": 3, "name": "fc1.weight", "dim": 1, "shares": [5, 3] }, ... ],
 *       "operators": [ "linear 0", "relu 0", "matmul 1 backward 0", "linear 0 factors", "experts 2 rows", "linear - in-parts",
 *                      "embedding - kept 1", ... ] }
 *
 * A segment is named by the first tensor that has it. Only segments that the program divides are listed. One text per group of operators,
 * in their order: the forward operator, the segment that is divided (its place in the list), and what else the choice says. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "runtime/synthesis/synthesis_internal.h"

#define SHARE_MAX INT64_C(1000000000000)

/* ---- writing */

/* The first tensor and dimension of a segment. */
static void find_first(const struct hspmd_synthesis *s, int segment, size_t *tensor, int *dim)
{
	for (*tensor = 0; *tensor < s->g->tensor_count; ++*tensor)
		for (*dim = 0; *dim < s->g->tensors[*tensor].shape.rank; ++*dim)
			if (s->tensors[*tensor].segment[*dim] == segment)
				return;
}

static json_t *segment_json(const struct hspmd_synthesis *s, int segment)
{
	json_t *o = json_object(), *shares = json_array();
	size_t tensor;
	int dim = 0, bad = !o || !shares;
	find_first(s, segment, &tensor, &dim);
	for (int d = 0; d < s->stage.device_count; d++)
		bad |= json_array_append_new(shares, json_integer(s->segments[segment].weights[d]));
	bad |= json_object_set_new(o, "tensor", json_integer((json_int_t)tensor));
	if (s->g->tensors[tensor].name)
		bad |= json_object_set_new(o, "name", json_string(s->g->tensors[tensor].name));
	bad |= json_object_set_new(o, "dim", json_integer(dim));
	bad |= json_object_set_new(o, "shares", shares);
	return hspmd_json_unless_failed(bad, o);
}

/* The list of segments, as it is written. */
struct writer {
	const struct hspmd_synthesis *s;
	int *place; /* of each segment in the list; -1: not there yet */
	json_t *segments;
	int bad;
};

static void add_segment(void *context, int segment)
{
	struct writer *w = context;
	if (segment < 0 || w->place[segment] >= 0)
		return;
	w->place[segment] = (int)json_array_size(w->segments);
	w->bad |= json_array_append_new(w->segments, segment_json(w->s, segment));
}

static json_t *operator_json(struct writer *w, int number)
{
	const struct group *g = &w->s->groups[number];
	const struct choice *c = &g->choices[w->s->chosen[number]];
	char segment[16] = "-", backward[32] = "", kept[32] = "";
	hspmd_synthesis_each_segment(w->s, number, c, add_segment, w);
	if (c->segment >= 0)
		snprintf(segment, sizeof segment, "%d", w->place[c->segment]);
	if (c->backward >= 0)
		snprintf(backward, sizeof backward, " backward %d", w->place[c->backward]);
	if (c->kept_how >= KEPT_LAYOUT)
		snprintf(kept, sizeof kept, " kept %d", c->kept_how - KEPT_LAYOUT);
	return json_sprintf("%s %s%s%s%s%s", hspmd_opcode_names[w->s->g->ops[g->op].opcode], segment, backward,
	                    c->factors ? " factors" : "", c->rows ? " rows" : "", c->kept_how == KEPT_IN_PARTS ? " in-parts" : kept);
}

json_t *hspmd_synthesis_save(const struct hspmd_synthesis *s, struct hspmd_error *err)
{
	struct writer w = { s, hspmd_calloc((size_t)s->segment_count + 1, sizeof *w.place), json_array(), 0 };
	json_t *o = json_object(), *operators = json_array();
	w.bad = !w.place || !w.segments || !o || !operators;
	for (int g = 0; w.place && g < s->segment_count; g++)
		w.place[g] = -1;
	for (int n = 0; !w.bad && n < s->group_count; n++)
		w.bad |= json_array_append_new(operators, operator_json(&w, n));
	free(w.place);
	w.bad |= json_object_set_new(o, "segments", w.segments);
	w.bad |= json_object_set_new(o, "operators", operators);
	json_t *done = hspmd_json_unless_failed(w.bad, o);
	if (!done)
		hspmd_fail_memory(err, "writing a program");
	return done;
}

/* ---- reading */

struct reader {
	struct hspmd_synthesis *s;
	int segment_count;
	int *segments; /* by their place in the list */
};

static int read_segment(struct reader *r, struct hspmd_json *at)
{
	const struct hspmd_graph *g = r->s->g;
	size_t tensor = (size_t)hspmd_json_int(at, "tensor", 0, (int64_t)g->tensor_count - 1);
	const char *name = hspmd_json_string_or(at, "name", NULL);
	int dim = (int)hspmd_json_int(at, "dim", 0, HSPMD_MAX_RANK - 1);
	size_t devices = (size_t)r->s->stage.device_count;
	struct hspmd_json shares = hspmd_json_array(at, "shares", devices, devices);
	if (hspmd_json_failed(at))
		return -1;
	int segment = dim < g->tensors[tensor].shape.rank ? r->s->tensors[tensor].segment[dim] : -1;
	if (segment < 0 || (name && (!g->tensors[tensor].name || strcmp(name, g->tensors[tensor].name) != 0)))
		return hspmd_json_fail(at, "is of another model: tensor %zu is %s and has no such dimension to be divided", tensor,
		                       g->tensors[tensor].name ? g->tensors[tensor].name : "a result");
	for (size_t d = 0; d < devices; d++) {
		struct hspmd_json one = hspmd_json_at(&shares, d);
		r->s->segments[segment].weights[d] = hspmd_json_int_value(&one, 1, SHARE_MAX);
	}
	r->segments[r->segment_count++] = segment;
	return hspmd_json_check_keys(at);
}

/* A number at *text, which then points behind it; -1: there is none below `end`. */
static int read_number(const char **text, int end)
{
	char *rest;
	long value = strtol(*text, &rest, 10);
	if (rest == *text || (*rest && *rest != ' ') || value < 0 || value >= end)
		return -1;
	*text = rest;
	return (int)value;
}

/* Takes a word and the space before it. */
static bool skip(const char **text, const char *word)
{
	size_t n = strlen(word);
	if (**text != ' ' || strncmp(*text + 1, word, n) != 0 || ((*text)[n + 1] && (*text)[n + 1] != ' '))
		return false;
	*text += n + 1;
	return true;
}

/* Returns -1 if the text is not one that hspmd_synthesis_save writes. */
static int parse(const struct reader *r, const char *text, const char *opcode, struct choice *out)
{
	size_t n = strlen(opcode);
	int place = -1;
	*out = (struct choice){ .segment = -1, .backward = -1, .kept_how = KEPT_AS_READ };
	if (strncmp(text, opcode, n) != 0 || text[n] != ' ')
		return -1;
	text += n;
	if (!skip(&text, "-")) {
		text++;
		if ((place = read_number(&text, r->segment_count)) < 0)
			return -1;
		out->segment = r->segments[place];
	}
	if (skip(&text, "backward")) {
		text += *text == ' ';
		if ((place = read_number(&text, r->segment_count)) < 0)
			return -1;
		out->backward = r->segments[place];
	}
	out->factors = skip(&text, "factors");
	out->rows = skip(&text, "rows");
	if (skip(&text, "in-parts")) {
		out->kept_how = KEPT_IN_PARTS;
	} else if (skip(&text, "kept")) {
		text += *text == ' ';
		if ((place = read_number(&text, LAYOUT_SUM)) < 0)
			return -1;
		out->kept_how = KEPT_LAYOUT + place;
	}
	return *text ? -1 : 0;
}

static int read_operator(struct reader *r, struct hspmd_json *at, int number)
{
	struct hspmd_synthesis *s = r->s;
	struct group *g = &s->groups[number];
	const struct hspmd_op *op = &s->g->ops[g->op];
	const char *text = hspmd_json_string_value(at);
	struct choice choice;
	if (!text)
		return -1;
	if (parse(r, text, hspmd_opcode_names[op->opcode], &choice))
		return hspmd_json_fail(at, "expected \"%s\", and how it is divided, got \"%s\"", hspmd_opcode_names[op->opcode], text);
	g->choices = hspmd_arena_alloc(s->arena, 1, sizeof *g->choices);
	if (!g->choices)
		return hspmd_json_fail_memory(at);
	g->choice_count = 1;
	s->chosen[number] = 0;
	int status = hspmd_synthesis_revalue(s, number, &choice);
	g->choices[0] = choice;
	return status == 0  ? 0
	       : status < 0 ? hspmd_json_fail_memory(at)
	                    : hspmd_json_fail(at, "layer %d's operator cannot be divided so", op->layer);
}

static int read_program(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_json segments = hspmd_json_array(root, "segments", 0, (size_t)r->s->segment_count);
	struct hspmd_json operators = hspmd_json_array(root, "operators", 0, SIZE_MAX);
	for (size_t i = 0; i < hspmd_json_length(&segments); i++) {
		struct hspmd_json one = hspmd_json_at(&segments, i);
		if (read_segment(r, &one))
			return -1;
	}
	hspmd_synthesis_forget(r->s, -1);
	if (!hspmd_json_failed(root) && hspmd_json_length(&operators) != (size_t)r->s->group_count)
		return hspmd_json_fail(&operators, "is of another model: it has %zu operators, the model %d", hspmd_json_length(&operators),
		                       r->s->group_count);
	for (int n = 0; !hspmd_json_failed(root) && n < r->s->group_count; n++) {
		struct hspmd_json one = hspmd_json_at(&operators, (size_t)n);
		if (read_operator(r, &one, n))
			return -1;
	}
	return hspmd_json_failed(root) ? -1 : 0;
}

int hspmd_synthesis_load(struct hspmd_synthesis *s, const json_t *value, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	struct reader r = { .s = s, .segments = hspmd_calloc((size_t)s->segment_count + 1, sizeof *r.segments) };
	json_t *copy = r.segments ? json_deep_copy(value) : NULL; /* threads must not share reference counts */
	int status = copy ? hspmd_json_wrap(&doc, "program", copy, err) : hspmd_fail_memory(err, "reading a program");
	if (!status) {
		struct hspmd_json root = hspmd_json_root(&doc);
		status = read_program(&r, &root);
		hspmd_json_close(&doc);
	}
	json_decref(copy);
	free(r.segments);
	return status;
}
