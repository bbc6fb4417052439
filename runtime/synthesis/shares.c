/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of the segments for a program that is given: by the linear program of shares_lp.c around the present shares, rounded to whole
 * steps; as far towards its optimum as the program really gets faster; then by moving steps between types of devices. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/synthesis/shares.h"

#define MAX_ROUNDS 5     /* linear programs */
#define MAX_HALVINGS 3   /* of the way to the optimum of one */
#define MAX_VALUED 10000 /* groups of operators that are valued; then the shares stay as they are */
#define ENOUGH 1e-4      /* relative gain that is worth another round */

/* ---- a program's seconds */

void hspmd_synthesis_program_close(struct program *p)
{
	free(p->choices);
	free(p->before);
	free(p->after);
	free(p->scratch);
}

int hspmd_synthesis_program_open(const struct hspmd_synthesis *s, struct program *p)
{
	p->choices = hspmd_calloc((size_t)s->group_count, sizeof *p->choices);
	p->before = hspmd_calloc(MAX_LIVE, sizeof *p->before);
	p->after = hspmd_calloc(MAX_LIVE, sizeof *p->after);
	p->scratch = hspmd_calloc(s->g->tensor_count, sizeof *p->scratch);
	if (!p->choices || !p->before || !p->after || !p->scratch) {
		hspmd_synthesis_program_close(p);
		return -1;
	}
	for (int n = 0; n < s->group_count; n++) {
		p->choices[n] = s->groups[n].choices[s->chosen[n]];
		p->choices[n].backward_take = NULL; /* of its own */
		p->choices[n].bytes = NULL;
	}
	return 0;
}

static bool fits(const struct hspmd_synthesis *s, const double *bytes)
{
	const struct hspmd_cluster *c = s->stage.cluster;
	for (int d = 0; s->limited && d < s->stage.device_count; d++)
		if (bytes[d] > (double)c->types[c->devices[s->stage.devices[d]].type].memory_bytes)
			return false;
	return true;
}

double hspmd_synthesis_program_seconds(struct hspmd_synthesis *s, struct program *p, double *bytes)
{
	double seconds = 0;
	for (int d = 0; d < s->stage.device_count; d++)
		bytes[d] = 0;
	for (int n = 0; n < s->group_count; n++) {
		if (hspmd_synthesis_revalue(s, n, &p->choices[n]))
			return HUGE_VAL;
		seconds += hspmd_synthesis_advance(s, n, &p->choices[n], p->before, p->after, p->scratch);
		for (int d = 0; s->limited && d < s->stage.device_count; d++)
			bytes[d] += p->choices[n].bytes[d];
		struct live *next = p->before;
		p->before = p->after;
		p->after = next;
	}
	return fits(s, bytes) ? seconds : HUGE_VAL;
}

/* ---- steps of segments on devices */

static void read_steps(const struct balance *b, int u, int64_t *steps)
{
	const struct segment *g = &b->s->segments[b->used[u]];
	for (int d = 0; d < b->n; d++) {
		int64_t lo, hi;
		hspmd_split_range(g->steps, 1, b->n, g->weights, d, &lo, &hi);
		steps[d] = hi - lo;
	}
}

static void write_steps(struct balance *b, int u, const int64_t *steps)
{
	int64_t *weights = b->s->segments[b->used[u]].weights;
	size_t bytes = (size_t)b->n * sizeof *steps;
	if (!memcmp(weights, steps, bytes))
		return;
	memcpy(weights, steps, bytes);
	hspmd_synthesis_forget(b->s, b->used[u]);
}

static void write_all(struct balance *b, const int64_t *steps)
{
	for (int u = 0; u < b->used_count; u++)
		write_steps(b, u, steps + (size_t)u * (size_t)b->n);
}

static double seconds_now(struct balance *b)
{
	b->record.count = 0;
	b->valued += b->s->group_count;
	return hspmd_synthesis_program_seconds(b->s, b->p, b->bytes);
}

/* The device of a class that has most (sign 1) or fewest (-1) steps. */
static int extreme(const struct balance *b, const int64_t *steps, int class, int sign)
{
	int best = -1;
	for (int d = 0; d < b->n; d++)
		if (b->class_of[d] == class && (best < 0 || sign * steps[d] > sign * steps[best]))
			best = d;
	return best;
}

/* Moves steps from devices of one class to those of another. Returns false, and leaves `steps` spoilt, if a device would have none. */
static bool move_steps(const struct balance *b, int64_t *steps, int from, int to, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		int giver = extreme(b, steps, from, 1);
		if (steps[giver] <= 1)
			return false;
		steps[giver]--;
		steps[extreme(b, steps, to, -1)]++;
	}
	return true;
}

/* ---- what a small change of the shares does to a program */

static int most_changed(const struct balance *b, const int64_t *at, const int64_t *changed, int class)
{
	int best = -1;
	for (int d = 0; d < b->n; d++)
		if (b->class_of[d] == class && (best < 0 || llabs(changed[d] - at[d]) > llabs(changed[best] - at[best])))
			best = d;
	return best;
}

static void note_slopes(struct balance *b, int u, int class, const int64_t *changed, const double *bytes)
{
	const int64_t *at = b->at + (size_t)u * (size_t)b->n;
	int d = most_changed(b, at, changed, class);
	double by = (double)(changed[d] - at[d]);
	size_t n = (size_t)b->n;
	for (size_t o = 0; o < b->base.count; o++)
		*slope_of(b, o, class, u) = (b->record.seconds[o * n + (size_t)d] - b->base.seconds[o * n + (size_t)d]) / by;
	for (int e = 0; b->s->limited && e < b->n; e++)
		if (b->class_of[e] == class)
			b->byte_slope[(size_t)e * (size_t)b->used_count + (size_t)u] = (b->bytes[d] - bytes[d]) / by;
}

static double slowest_sum(const struct op_record *r, int n)
{
	double sum = 0;
	for (size_t o = 0; o < r->count; o++) {
		double slowest = 0;
		for (int d = 0; d < n; d++)
			slowest = fmax(slowest, r->seconds[o * (size_t)n + (size_t)d]);
		sum += slowest;
	}
	return sum;
}

/* Moves some steps of segment u between class 0 and another. Returns false if that is impossible: then the class keeps its share. */
static bool probe(struct balance *b, int u, int class, const double *bytes)
{
	const int64_t *at = b->at + (size_t)u * (size_t)b->n;
	int64_t *steps = b->trial;
	double first = of_class(b, at, 0), other = of_class(b, at, class), spare = (first > other ? first : other) / 16;
	int64_t count = spare > 1 ? (int64_t)spare : 1;
	for (int turn = 0; turn < 2; turn++) {
		bool forward = (first > other) == (turn == 0);
		memcpy(steps, at, (size_t)b->n * sizeof *steps);
		if (!move_steps(b, steps, forward ? 0 : class, forward ? class : 0, count))
			continue;
		write_steps(b, u, steps);
		double seconds = seconds_now(b);
		bool same = b->record.count == b->base.count && isfinite(seconds);
		if (same) {
			note_slopes(b, u, 0, steps, bytes);
			note_slopes(b, u, class, steps, bytes);
			*gradient_of(b, b->cut_count, u, class) =
			        (seconds - slowest_sum(&b->record, b->n) - b->rest) / (of_class(b, steps, class) - other);
		}
		write_steps(b, u, at);
		if (same)
			return true;
	}
	return false;
}

/* Measures the program around its present shares: fills what the linear program is made of. 0, or -1: memory. */
static int measure(struct balance *b, double seconds)
{
	struct op_record swap = b->base;
	size_t slopes = b->record.count * (size_t)b->class_count * (size_t)b->used_count;
	double *bytes = b->base_bytes;
	b->base = b->record; /* of the evaluation that gave `seconds` */
	b->record = swap;
	b->record.count = 0;
	memcpy(bytes, b->bytes, (size_t)b->n * sizeof *bytes);
	free(b->slope);
	b->slope = hspmd_calloc(slopes, sizeof *b->slope);
	if (!b->slope)
		return -1;
	b->rest = seconds - slowest_sum(&b->base, b->n);
	struct cut *cut = &b->cuts[b->cut_count];
	cut->rest = b->rest;
	for (int u = 0; u < b->used_count; u++)
		for (int k = 0; k < b->class_count; k++) {
			size_t at = (size_t)u * (size_t)b->class_count + (size_t)k;
			cut->at[at] = of_class(b, b->at + (size_t)u * (size_t)b->n, k);
			cut->gradient[at] = 0;
			b->fixed[at] = k > 0 && !probe(b, u, k, bytes);
		}
	b->cut_count++;
	return 0;
}

/* ---- whole steps */

/* Returns true if every device has memory for these steps of all segments, by the slopes. */
static bool steps_fit(const struct balance *b, const int64_t *all)
{
	const struct hspmd_cluster *c = b->s->stage.cluster;
	for (int d = 0; b->s->limited && d < b->n; d++) {
		double bytes = b->base_bytes[d];
		for (int u = 0; u < b->used_count; u++) {
			size_t i = (size_t)u * (size_t)b->n + (size_t)d;
			bytes += b->byte_slope[(size_t)d * (size_t)b->used_count + (size_t)u] * (double)(all[i] - b->at[i]);
		}
		if (bytes > (double)c->types[c->devices[b->s->stage.devices[d]].type].memory_bytes)
			return false;
	}
	return true;
}

/* Rounds a part `way` of the way from the present shares to the linear program's down, and gives each step that is left to the device
 * that lacks most and has memory for it. Returns false if there is none. */
static bool round_steps(const struct balance *b, double way, int64_t *all)
{
	for (int u = 0; u < b->used_count; u++) {
		const int64_t *at = b->at + (size_t)u * (size_t)b->n;
		int64_t *steps = all + (size_t)u * (size_t)b->n, left = b->s->segments[b->used[u]].steps;
		for (int d = 0; d < b->n; d++) {
			double want = b->best[(size_t)u * (size_t)b->class_count + (size_t)b->class_of[d]];
			b->want[d] = (double)at[d] + way * (want - (double)at[d]);
			steps[d] = (int64_t)fmax(1, floor(b->want[d] + 1e-9));
			left -= steps[d];
		}
		for (; left > 0; left--) {
			int to = -1;
			for (int d = 0; d < b->n; d++) {
				steps[d]++;
				if ((to < 0 || b->want[d] - (double)steps[d] + 1 > b->want[to] - (double)steps[to]) && steps_fit(b, all))
					to = d;
				steps[d]--;
			}
			if (to < 0)
				return false;
			steps[to]++;
		}
		if (left < 0)
			return false;
	}
	return true;
}

/* ---- all */

static int compare_classes(const struct hspmd_synthesis *s, int a, int b)
{
	const struct hspmd_cluster *c = s->stage.cluster;
	const struct hspmd_cluster_device *x = &c->devices[s->stage.devices[a]], *y = &c->devices[s->stage.devices[b]];
	return x->type == y->type && c->nodes[x->node].slowdown == c->nodes[y->node].slowdown;
}

static void find_classes(struct balance *b)
{
	for (int d = 0; d < b->n; d++) {
		int like = 0;
		while (like < d && !compare_classes(b->s, like, d))
			like++;
		b->class_of[d] = like < d ? b->class_of[like] : b->class_count++;
		b->class_size[b->class_of[d]]++;
	}
}

static void use_segment(void *context, int segment)
{
	struct balance *b = context;
	int u = 0;
	while (u < b->used_count && b->used[u] != segment)
		u++;
	if (segment >= 0 && u == b->used_count && b->s->segments[segment].steps > b->n)
		b->used[b->used_count++] = segment;
}

/* Segments that the program divides. */
static void find_used(struct balance *b)
{
	for (int n = 0; n < b->s->group_count; n++)
		hspmd_synthesis_each_segment(b->s, n, &b->p->choices[n], use_segment, b);
}

static int open_balance(struct balance *b)
{
	size_t n = (size_t)b->n, segments = (size_t)b->s->segment_count + 1;
	b->arena = hspmd_arena_create();
	if (!b->arena)
		return -1;
	b->class_of = hspmd_arena_alloc(b->arena, n, sizeof *b->class_of);
	b->class_size = hspmd_arena_alloc(b->arena, n, sizeof *b->class_size);
	b->used = hspmd_arena_alloc(b->arena, segments, sizeof *b->used);
	if (!b->class_of || !b->class_size || !b->used)
		return -1;
	find_classes(b);
	find_used(b);
	size_t used = (size_t)b->used_count, values = used * (size_t)b->class_count;
	b->at = hspmd_arena_alloc(b->arena, used * n, sizeof *b->at);
	b->tried = hspmd_arena_alloc(b->arena, used * n, sizeof *b->tried);
	b->trial = hspmd_arena_alloc(b->arena, n, sizeof *b->trial);
	b->want = hspmd_arena_alloc(b->arena, n, sizeof *b->want);
	b->bytes = hspmd_arena_alloc(b->arena, n, sizeof *b->bytes);
	b->base_bytes = hspmd_arena_alloc(b->arena, n, sizeof *b->base_bytes);
	b->byte_slope = hspmd_arena_alloc(b->arena, n * used, sizeof *b->byte_slope);
	b->best = hspmd_arena_alloc(b->arena, values, sizeof *b->best);
	b->fixed = hspmd_arena_alloc(b->arena, values, sizeof *b->fixed);
	b->cuts = hspmd_arena_alloc(b->arena, MAX_ROUNDS, sizeof *b->cuts);
	if (!b->at || !b->tried || !b->trial || !b->want || !b->bytes || !b->base_bytes || !b->byte_slope || !b->best || !b->fixed ||
	    !b->cuts)
		return -1;
	for (int c = 0; c < MAX_ROUNDS; c++) {
		b->cuts[c].at = hspmd_arena_alloc(b->arena, values, sizeof *b->cuts[c].at);
		b->cuts[c].gradient = hspmd_arena_alloc(b->arena, values, sizeof *b->cuts[c].gradient);
		if (!b->cuts[c].at || !b->cuts[c].gradient)
			return -1;
	}
	for (int u = 0; u < b->used_count; u++)
		read_steps(b, u, b->at + (size_t)u * n);
	return 0;
}

static void close_balance(struct balance *b)
{
	b->s->record = NULL;
	free(b->base.seconds);
	free(b->record.seconds);
	free(b->slope);
	hspmd_arena_destroy(b->arena);
}

/* Takes the shares in b->tried if the program is faster with them. Returns true then. */
static bool accept(struct balance *b, double *seconds)
{
	write_all(b, b->tried);
	double tried = seconds_now(b);
	if (!(tried < *seconds * (1 - 1e-9))) {
		write_all(b, b->at);
		return false;
	}
	*seconds = tried;
	memcpy(b->at, b->tried, (size_t)b->used_count * (size_t)b->n * sizeof *b->at);
	return true;
}

/* Returns true if the program has become faster. */
static bool go_towards(struct balance *b, double *seconds)
{
	double way = 1;
	for (int h = 0; h <= MAX_HALVINGS; h++, way /= 2)
		if (round_steps(b, way, b->tried) && accept(b, seconds))
			return true;
	return false;
}

/* Moves steps of a segment from class to class, many and then fewer, as long as that helps: in small graphs every number of them, as
 * communication is not convex. Returns true if it has helped. */
static bool polish_pair(struct balance *b, int u, int from, int to, double *seconds)
{
	const int64_t *at = b->at + (size_t)u * (size_t)b->n;
	int64_t all = (int64_t)of_class(b, at, from);
	bool better = false, small = all * b->s->group_count < MAX_VALUED / 8;
	for (int64_t count = small ? all - b->class_size[from] : all / 2;
	     count > 0 && b->valued < MAX_VALUED && !hspmd_synthesis_timed_out(b->s);) {
		memcpy(b->tried, b->at, (size_t)b->used_count * (size_t)b->n * sizeof *b->at);
		if (move_steps(b, b->tried + (size_t)u * (size_t)b->n, from, to, count) && accept(b, seconds))
			better = true;
		else
			count -= small || count < 3 ? 1 : count / 3;
	}
	return better;
}

static bool polish(struct balance *b, double *seconds)
{
	bool better = false;
	for (int u = 0; u < b->used_count; u++)
		for (int from = 0; from < b->class_count; from++)
			for (int to = 0; to < b->class_count; to++)
				if (from != to)
					better |= polish_pair(b, u, from, to, seconds);
	return better;
}

int hspmd_synthesis_balance(struct hspmd_synthesis *s, struct program *p, double *seconds, double *bound, struct hspmd_error *err)
{
	struct balance b = { .s = s, .p = p, .n = s->stage.device_count };
	int status = open_balance(&b);
	if (!status) {
		s->record = &b.record;
		write_all(&b, b.at);
		*bound = *seconds = seconds_now(&b);
	}
	bool better = !status && b.class_count > 1 && b.used_count > 0 && isfinite(*seconds);
	for (int round = 0; better && round < MAX_ROUNDS && b.valued < MAX_VALUED && !hspmd_synthesis_timed_out(s); round++) {
		double before = *seconds;
		status = seconds_now(&b) < HUGE_VAL ? measure(&b, *seconds) : -1;
		if (!status)
			status = hspmd_synthesis_shares_lp(&b, bound);
		if (status < 0)
			break;
		better = (status == 0 && go_towards(&b, seconds) && *seconds < before * (1 - ENOUGH)) ||
		         (polish(&b, seconds) && *seconds < before * (1 - ENOUGH));
	}
	close_balance(&b);
	return status < 0 ? hspmd_fail_memory(err, "dividing the devices' shares") : 0;
}
