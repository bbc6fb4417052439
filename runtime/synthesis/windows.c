/* SPDX-License-Identifier: Apache-2.0 */
/* A program is improved a few consecutive groups (a window) at a time, with the others as they are. Most graphs consist of blocks that are
 * repeated: what was found for the window of one block is tried for those of the others, instead of searching each of them. A window is
 * searched again only if its groups, or those around it, are divided otherwise than those of each window that was searched before. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/fnv.h"
#include "runtime/synthesis/synthesis_internal.h"

#define WINDOW 12           /* groups that are searched together */
#define AROUND (WINDOW / 2) /* groups before and behind a window that must be alike, too */
#define FAR (2 * WINDOW)    /* what was made by more groups before is read by all blocks, or by none */
#define STEP (WINDOW / 2)   /* from one window to the next */

/* What a search of a window has found. */
struct searched {
	uint64_t key;
	bool better;
	int chosen[WINDOW];
};

struct windows {
	struct hspmd_synthesis *s;
	uint64_t *alike; /* per group: equal if groups have the same choices, of the same costs, and read the same groups before them */
	struct live *before, *after, *scratch;
	double *bytes; /* per device */
	struct searched *known;
	size_t known_count, known_capacity;
	int *was;          /* per group: the program before a search */
	int begin, period; /* of repeated blocks: groups before the first, and of one; 0: there are none */
};

static uint64_t mix(uint64_t h, const void *what, size_t bytes)
{
	const uint64_t parts[] = { h, hspmd_fnv1a(what, bytes) };
	return hspmd_fnv1a(parts, sizeof parts);
}

static uint64_t mix_choice(uint64_t h, const struct hspmd_op *op, const struct choice *c)
{
	const int how[] = { c->kept_how, c->factors, c->rows, c->need_count, c->backward >= 0 };
	h = mix(h, &c->seconds, sizeof c->seconds);
	h = mix(h, how, sizeof how);
	h = mix(h, c->take, (size_t)op->input_count);
	return mix(h, c->out, (size_t)op->output_count);
}

/* Which group makes a tensor, seen from another one: by how many groups it is before it, unless all blocks read it. */
static int maker_of(const struct hspmd_synthesis *s, int number, const struct hspmd_tensor *t)
{
	int maker = t && t->role == HSPMD_TENSOR_ACTIVATION && t->producer >= 0 ? s->group_of_op[t->producer] : number;
	return number - maker <= FAR ? number - maker : -1 - maker;
}

static uint64_t alike_of(const struct hspmd_synthesis *s, int number)
{
	const struct group *g = &s->groups[number];
	const struct hspmd_op *op = &s->g->ops[g->op];
	const int counts[] = { (int)op->opcode, g->choice_count, g->backward_count, g->contribution_count };
	uint64_t h = mix(0, counts, sizeof counts);
	for (int i = 0; i < op->input_count; i++) {
		const struct hspmd_tensor *t = op->in[i] < 0 ? NULL : &s->g->tensors[op->in[i]];
		int from[] = { t ? (int)t->role : -1, maker_of(s, number, t) };
		h = mix(h, from, sizeof from);
		if (t)
			h = mix(h, t->shape.dim, (size_t)t->shape.rank * sizeof *t->shape.dim);
	}
	for (int k = 0; k < g->choice_count; k++)
		h = mix_choice(h, op, &g->choices[k]);
	return h;
}

/* How many groups are like the one `period` groups later. */
static int repeated(const struct windows *w, int period)
{
	int count = 0;
	for (int n = 0; n + period < w->s->group_count; n++)
		count += w->alike[n] == w->alike[n + period];
	return count;
}

/* The shortest period with which most groups are repeated. */
static void find_blocks(struct windows *w)
{
	int most = w->s->group_count / 3;
	for (int period = 1; period <= w->s->group_count / 2; period++) {
		int count = repeated(w, period);
		if (count > most + period) {
			most = count;
			w->period = period;
		}
	}
	while (w->period && w->begin + w->period < w->s->group_count && w->alike[w->begin] != w->alike[w->begin + w->period])
		w->begin++;
}

/* Where the window after the one from `first` on begins: windows are at the same places in all blocks. */
static int next_of(const struct windows *w, int first)
{
	int next = first + STEP;
	if (!w->period)
		return next;
	if (first < w->begin)
		return next < w->begin ? next : w->begin;
	int block = (first - w->begin) / w->period, end = w->begin + (block + 1) * w->period;
	return next < end ? next : end;
}

static uint64_t key_of(const struct windows *w, int first)
{
	uint64_t h = 0;
	for (int n = first - AROUND; n < first + WINDOW + AROUND; n++) {
		bool is = n >= 0 && n < w->s->group_count;
		const uint64_t parts[] = { h, is ? w->alike[n] : 0, is ? (uint64_t)w->s->chosen[n] + 1 : 0 };
		h = hspmd_fnv1a(parts, sizeof parts);
	}
	return h;
}

static const struct searched *find(const struct windows *w, uint64_t key)
{
	for (size_t i = 0; i < w->known_count; i++)
		if (w->known[i].key == key)
			return &w->known[i];
	return NULL;
}

static bool fits(const struct windows *w)
{
	const struct hspmd_synthesis_stage *stage = &w->s->stage;
	for (int d = 0; d < stage->device_count; d++)
		if (w->bytes[d] > (double)stage->cluster->types[stage->cluster->devices[stage->devices[d]].type].memory_bytes)
			return false;
	return true;
}

/* Seconds of the chosen program; HUGE_VAL: it does not fit. */
static double seconds_of(struct windows *w)
{
	double seconds = 0;
	for (int d = 0; d < w->s->stage.device_count; d++)
		w->bytes[d] = 0;
	for (int n = 0; n < w->s->group_count && isfinite(seconds); n++) {
		const struct choice *c = &w->s->groups[n].choices[w->s->chosen[n]];
		seconds += hspmd_synthesis_advance(w->s, n, c, w->before, w->after, w->scratch);
		for (int d = 0; w->s->limited && d < w->s->stage.device_count; d++)
			w->bytes[d] += c->bytes[d];
		struct live *next = w->before;
		w->before = w->after;
		w->after = next;
	}
	return fits(w) ? seconds : HUGE_VAL;
}

/* Excludes all but the present program outside of the window. */
static void allow(struct hspmd_synthesis *s, int first)
{
	for (int n = 0; n < s->group_count; n++)
		for (int k = 0; k < s->groups[n].choice_count; k++)
			s->groups[n].choices[k].excluded = (n < first || n >= first + WINDOW) && k != s->chosen[n];
}

/* Takes what was found for an equal window. Returns true if the program gets faster. */
static bool repeat(struct windows *w, int first, const struct searched *known, struct hspmd_synthesis_result *result)
{
	struct hspmd_synthesis *s = w->s;
	int count = s->group_count - first < WINDOW ? s->group_count - first : WINDOW;
	memcpy(w->was + first, s->chosen + first, (size_t)count * sizeof *w->was);
	memcpy(s->chosen + first, known->chosen, (size_t)count * sizeof *w->was);
	double seconds = seconds_of(w);
	if (seconds < result->seconds * (1 - 1e-9)) {
		result->seconds = seconds;
		return true;
	}
	memcpy(s->chosen + first, w->was + first, (size_t)count * sizeof *w->was);
	return false;
}

/* Returns 1 if the program got faster, 0 if not, -1 if memory is short. */
static int improve(struct windows *w, int first, struct hspmd_synthesis_result *result)
{
	struct hspmd_synthesis *s = w->s;
	struct searched now = { .key = key_of(w, first) };
	const struct searched *known = find(w, now.key);
	if (known && !known->better)
		return 0;
	if (known && repeat(w, first, known, result))
		return 1;
	allow(s, first);
	now.better = hspmd_synthesis_search_again(s, result, w->was);
	for (int n = first; n < s->group_count && n < first + WINDOW; n++)
		now.chosen[n - first] = s->chosen[n];
	if (known)
		return now.better;
	if (hspmd_array_grow(&w->known, &w->known_capacity, w->known_count, sizeof *w->known))
		return -1;
	w->known[w->known_count++] = now;
	return now.better;
}

static void windows_free(struct windows *w)
{
	free(w->alike);
	free(w->before);
	free(w->after);
	free(w->scratch);
	free(w->bytes);
	free(w->known);
	free(w->was);
}

static int windows_new(struct windows *w, struct hspmd_synthesis *s)
{
	*w = (struct windows){ .s = s,
		               .alike = hspmd_calloc((size_t)s->group_count, sizeof *w->alike),
		               .before = hspmd_calloc(MAX_LIVE, sizeof *w->before),
		               .after = hspmd_calloc(MAX_LIVE, sizeof *w->after),
		               .scratch = hspmd_calloc(s->g->tensor_count, sizeof *w->scratch),
		               .bytes = hspmd_calloc((size_t)s->stage.device_count, sizeof *w->bytes),
		               .was = hspmd_calloc((size_t)s->group_count, sizeof *w->was) };
	if (!w->alike || !w->before || !w->after || !w->scratch || !w->bytes || !w->was)
		return -1;
	for (int n = 0; n < s->group_count; n++)
		w->alike[n] = alike_of(s, n);
	find_blocks(w);
	return 0;
}

int hspmd_synthesis_improve_windows(struct hspmd_synthesis *s, int rounds, struct hspmd_synthesis_result *result, struct hspmd_error *err)
{
	struct windows w;
	int status = windows_new(&w, s);
	bool better = true;
	for (int round = 0; !status && better && round < rounds; round++) {
		better = false;
		for (int first = 0; !status && first < s->group_count && !hspmd_synthesis_timed_out(s); first = next_of(&w, first)) {
			int rc = improve(&w, first, result);
			status = rc < 0 ? -1 : 0;
			better = better || rc > 0;
		}
	}
	result->settled = !better;
	windows_free(&w);
	return status ? hspmd_fail_memory(err, "searching a program") : 0;
}
