/* SPDX-License-Identifier: Apache-2.0 */
/* A program in words: for every operator how it is divided, what that takes, what it sends, and how much longer a step would be if this
 * operator alone were divided in the next best way. Operators with the same shapes, divided alike, are one paragraph. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/synthesis/synthesis_internal.h"

struct explainer {
	struct hspmd_synthesis *s;
	FILE *f;
	struct live *before, *after, *scratch;
	double *moves; /* per group, of the program: seconds for what it reads, and for gradients that it gives */
	bool *told;    /* per group */
	int samples;   /* the segment of samples; -1: none */
};

static const struct hspmd_tensor *tensor_of(const struct explainer *e, int tensor)
{
	return &e->s->g->tensors[tensor];
}

static const char *name_of(const struct explainer *e, int tensor)
{
	return tensor_of(e, tensor)->name ? tensor_of(e, tensor)->name : "a result";
}

static const struct choice *chosen(const struct explainer *e, int number)
{
	return &e->s->groups[number].choices[e->s->chosen[number]];
}

/* ---- words */

/* A segment, as the operator `op` sees it: by its weight, or else by what it reads or makes. */
static void write_segment(const struct explainer *e, const struct hspmd_op *op, int segment)
{
	int dim;
	if (segment == e->samples) {
		fputs("samples", e->f);
		return;
	}
	for (int weights = 1; weights >= 0; weights--)
		for (int k = 0; k < op->input_count + op->output_count; k++) {
			int t = k < op->input_count ? op->in[k] : op->out[k - op->input_count];
			if (t < 0 || (weights && tensor_of(e, t)->role != HSPMD_TENSOR_PARAMETER) ||
			    (dim = hspmd_synthesis_split_by(e->s, t, segment)) == LAYOUT_WHOLE)
				continue;
			fprintf(e->f, "dimension %d of %s (%lld)", dim, name_of(e, t), (long long)tensor_of(e, t)->shape.dim[dim]);
			return;
		}
	fputs("a dimension of other operators", e->f);
}

static void write_layout(const struct explainer *e, const struct hspmd_op *op, int tensor, int layout)
{
	if (layout == LAYOUT_WHOLE) {
		fputs("whole on every device", e->f);
	} else if (layout == LAYOUT_SUM) {
		fputs("as parts of sums", e->f);
	} else if (layout == LAYOUT_ROWS) {
		fputs("in the rows that chose one of the device's experts", e->f);
	} else if (layout == LAYOUT_ROW_SUM) {
		fputs("as parts of sums, by each device in the rows of its experts", e->f);
	} else {
		fputs("divided by ", e->f);
		write_segment(e, op, e->s->tensors[tensor].segment[layout]);
	}
}

static void write_way(const struct explainer *e, const struct hspmd_op *op, const struct choice *c)
{
	if (c->segment >= 0 || c->backward >= 0) {
		fputs("dividing ", e->f);
		write_segment(e, op, c->segment >= 0 ? c->segment : c->backward);
		fputs(c->segment >= 0 ? "" : " in the backward pass only", e->f);
	} else {
		fputs("computing all of it on every device", e->f);
	}
	fputs(c->rows ? ", sending only rows that chose a device's experts" : "", e->f);
	fputs(c->factors ? ", with its weight's gradient from gathered factors" : "", e->f);
	fputs(c->kept_how == KEPT_IN_PARTS ? ", with its weights kept in parts" : "", e->f);
}

/* "5 : 3", or "40 each" for equal ones, with runs of equal shares as one. */
static void write_shares(const struct explainer *e, int segment)
{
	const struct segment *g = &e->s->segments[segment];
	int n = e->s->stage.device_count, written = 0;
	for (int d = 0, run; d < n; d += run) {
		int64_t lo, hi, low, high;
		hspmd_split_range(g->steps, 1, n, g->weights, d, &lo, &hi);
		for (run = 1; d + run < n; run++) {
			hspmd_split_range(g->steps, 1, n, g->weights, d + run, &low, &high);
			if (llabs((high - low) - (hi - lo)) > 1)
				break;
		}
		fprintf(e->f, "%s%.1f%%", written++ ? " : " : "", 100.0 * (double)(hi - lo) / (double)g->steps);
		if (run > 1)
			fprintf(e->f, " on %d devices each", run);
	}
}

/* ---- what a way takes */

/* Seconds of the program, with choice k for group `number`; HUGE_VAL: not possible. moves: filled per group; may be NULL. */
static double total_with(struct explainer *e, int number, int k, double *moves)
{
	double seconds = 0;
	for (int n = 0; n < e->s->group_count && seconds < HUGE_VAL; n++) {
		const struct choice *c = n == number ? &e->s->groups[n].choices[k] : chosen(e, n);
		double more = hspmd_synthesis_advance(e->s, n, c, e->before, e->after, e->scratch);
		struct live *next = e->before;
		e->before = e->after;
		e->after = next;
		seconds += more;
		if (moves)
			moves[n] = more - c->seconds;
	}
	return seconds;
}

/* The part of a choice's own cost that its operators compute; the rest are messages of its weights and their gradients. -1: memory. */
static double compute_seconds(struct explainer *e, int number, const struct choice *c)
{
	struct hspmd_synthesis *s = e->s;
	struct op_record record = { 0 };
	struct choice copy = *c;
	double seconds = 0;
	copy.backward_take = NULL;
	copy.bytes = NULL;
	s->record = &record;
	int status = hspmd_synthesis_revalue(s, number, &copy);
	s->record = NULL;
	for (size_t r = 0; !status && r < record.count; r++) {
		double slowest = 0;
		for (int d = 0; d < s->stage.device_count; d++)
			slowest = fmax(slowest, record.seconds[r * (size_t)s->stage.device_count + (size_t)d]);
		seconds += slowest;
	}
	free(record.seconds);
	return status ? -1 : seconds;
}

/* The next best way to divide one group (to keep its weights otherwise is no other way), the others as they are. *more: seconds that it
 * takes more. -1: there is none. */
static int next_best(struct explainer *e, int number, double now, bool samples, double *more)
{
	const struct group *g = &e->s->groups[number];
	const struct choice *own = chosen(e, number);
	int best = -1;
	for (int k = 0; k < g->choice_count; k++) {
		const struct choice *c = &g->choices[k];
		bool same =
		        c->segment == own->segment && c->backward == own->backward && c->factors == own->factors && c->rows == own->rows;
		if (same || (samples && (c->segment != e->samples || c->factors)))
			continue;
		double seconds = total_with(e, number, k, NULL) - now;
		if (seconds < HUGE_VAL && (best < 0 || seconds < *more)) {
			best = k;
			*more = seconds;
		}
	}
	return best;
}

/* ---- one paragraph */

static bool same_shape(const struct hspmd_shape *a, const struct hspmd_shape *b)
{
	return a->rank == b->rank && !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim);
}

static bool same_shapes(const struct explainer *e, const struct hspmd_op *a, const struct hspmd_op *b)
{
	if (a->opcode != b->opcode || a->input_count != b->input_count)
		return false;
	for (int i = 0; i < a->input_count; i++)
		if ((a->in[i] < 0) != (b->in[i] < 0) ||
		    (a->in[i] >= 0 && !same_shape(&tensor_of(e, a->in[i])->shape, &tensor_of(e, b->in[i])->shape)))
			return false;
	return true;
}

/* Returns true if two groups would be described in the same words. */
static bool alike(const struct explainer *e, int a, int b)
{
	const struct choice *x = chosen(e, a), *y = chosen(e, b);
	const struct hspmd_op *p = &e->s->g->ops[e->s->groups[a].op], *q = &e->s->g->ops[e->s->groups[b].op];
	if (!same_shapes(e, p, q) || (x->segment == e->samples) != (y->segment == e->samples) || x->factors != y->factors ||
	    x->rows != y->rows || x->kept_how != y->kept_how || x->need_count != y->need_count ||
	    fabs(x->seconds - y->seconds) > 1e-9 + 1e-3 * x->seconds || fabs(e->moves[a] - e->moves[b]) > 1e-9 + 1e-2 * fabs(e->moves[a]))
		return false;
	for (int i = 0; i < p->input_count; i++)
		if (x->take[i] != y->take[i] || x->kept[i] != y->kept[i])
			return false;
	return true;
}

/* "linear, layers 1-12 (24 operators; the first reads w)" */
static void write_title(struct explainer *e, int number)
{
	const struct hspmd_op *op = &e->s->g->ops[e->s->groups[number].op];
	int count = 0, last = op->layer;
	for (int n = number; n < e->s->group_count; n++)
		if (!e->told[n] && alike(e, number, n)) {
			e->told[n] = true;
			last = e->s->g->ops[e->s->groups[n].op].layer;
			count++;
		}
	fprintf(e->f, "%s, layer%s %d", hspmd_opcode_names[op->opcode], last > op->layer ? "s" : "", op->layer);
	if (last > op->layer)
		fprintf(e->f, "-%d", last);
	if (count > 1)
		fprintf(e->f, ", %d alike", count);
	for (int i = 0; i < op->input_count; i++)
		if (op->in[i] >= 0 && tensor_of(e, op->in[i])->role == HSPMD_TENSOR_PARAMETER) {
			fprintf(e->f, " (%s%s)", count > 1 ? "the first with " : "", name_of(e, op->in[i]));
			break;
		}
}

static void write_weights(struct explainer *e, const struct group *g, const struct choice *c, double seconds)
{
	const struct hspmd_op *op = &e->s->g->ops[g->op];
	for (int i = 0; i < op->input_count; i++) {
		int t = op->in[i];
		if (t < 0 || tensor_of(e, t)->role != HSPMD_TENSOR_PARAMETER || c->kept[i] == LAYOUT_NONE || op->in[0] == t)
			continue;
		double mb = (double)hspmd_shape_elements(&tensor_of(e, t)->shape) * (double)hspmd_dtype_bytes(tensor_of(e, t)->dtype) / 1e6;
		if (mb < 0.01)
			continue;
		fprintf(e->f, " %s (%.4g MB) is kept ", name_of(e, t), mb);
		write_layout(e, op, t, c->kept[i]);
		fputs(c->kept[i] != c->take[i] ? " and gathered where it is read" : "", e->f);
		if (c->sum[i] == LAYOUT_SUM)
			fputs(c->kept[i] == LAYOUT_WHOLE ? "; its gradient is summed over the devices once per step"
			                                 : "; its gradient is summed into these parts once per step",
			      e->f);
		else if (c->sum[i] != LAYOUT_NONE && c->sum[i] != c->kept[i])
			fputs("; its gradient is brought there once per step", e->f);
		else if (c->factors)
			fputs("; the factors of its gradient are gathered in every micro-batch, so no sum is needed", e->f);
		else if (c->sum[i] != LAYOUT_NONE)
			fputs(", where each device computes its gradient", e->f);
		fputc('.', e->f);
	}
	if (seconds > 1e-9)
		fprintf(e->f, " Messages of weights and their gradients: %.4g ms of a micro-batch.", 1e3 * seconds);
}

/* Says what it saves to send only the rows of experts. Returns false if all rows are sent. */
static bool write_rows_sent(const struct explainer *e, int tensor, int made, int taken)
{
	int all_made = made == LAYOUT_ROW_SUM ? LAYOUT_SUM : made, all_taken = taken == LAYOUT_ROWS ? LAYOUT_WHOLE : taken;
	double seconds = hspmd_synthesis_reshard(e->s, tensor, made, taken),
	       all = hspmd_synthesis_reshard(e->s, tensor, all_made, all_taken);
	if (!(seconds < all))
		return false;
	fprintf(e->f, ": only the rows of experts are sent, in %.4g ms instead of %.4g ms for all rows.", 1e3 * seconds, 1e3 * all);
	return true;
}

/* What the group reads in another layout than that in which it was made. */
static void write_reads(const struct explainer *e, int number)
{
	const struct group *g = &e->s->groups[number];
	const struct choice *c = chosen(e, number);
	const struct hspmd_op *op = &e->s->g->ops[g->op];
	for (int i = 0; i < op->input_count; i++) {
		int t = op->in[i], made = LAYOUT_NONE;
		if (t < 0 || tensor_of(e, t)->role != HSPMD_TENSOR_ACTIVATION)
			continue;
		int from = e->s->group_of_op[tensor_of(e, t)->producer];
		const struct hspmd_op *maker = &e->s->g->ops[e->s->groups[from].op];
		for (int o = 0; o < maker->output_count; o++)
			made = maker->out[o] == t ? chosen(e, from)->out[o] : made;
		if (made == c->take[i])
			continue;
		fprintf(e->f, " Its input %d is made ", i);
		write_layout(e, op, t, made);
		fputs(" and read ", e->f);
		write_layout(e, op, t, c->take[i]);
		if (write_rows_sent(e, t, made, c->take[i]))
			continue;
		fputs(hspmd_synthesis_is_sum(made) ? ": it is summed."
		      : c->take[i] == LAYOUT_WHOLE ? ": it is gathered."
		      : made == LAYOUT_WHOLE       ? ", so nothing is sent."
		                                   : ": every device sends parts to every other.",
		      e->f);
	}
	if (e->moves[number] > 1e-9)
		fprintf(e->f, " Messages of activations and their gradients: %.4g ms.", 1e3 * e->moves[number]);
}

static void write_why(struct explainer *e, int number, double now)
{
	const struct hspmd_op *op = &e->s->g->ops[e->s->groups[number].op];
	const struct group *g = &e->s->groups[number];
	double more = 0, samples_more = 0;
	int other = next_best(e, number, now, false, &more), samples = next_best(e, number, now, true, &samples_more);
	if (other < 0) {
		fputs(" No other way is possible here.", e->f);
		return;
	}
	fputs(" The next best for it alone, ", e->f);
	write_way(e, op, &g->choices[other]);
	if (fabs(more) <= 1e-4 * now)
		fputs(", would take as long.", e->f);
	else
		fprintf(e->f, ", would take %.4g ms %s.", 1e3 * fabs(more), more > 0 ? "more" : "less: the search left this out");
	if (samples >= 0 && samples != other)
		fprintf(e->f, " Dividing samples, %.4g ms more.", 1e3 * samples_more);
}

static int write_group(struct explainer *e, int number, double now)
{
	const struct group *g = &e->s->groups[number];
	const struct choice *c = chosen(e, number);
	double compute = compute_seconds(e, number, c);
	int segment = c->segment >= 0 ? c->segment : c->backward;
	if (compute < 0)
		return -1;
	write_title(e, number);
	fputs(": ", e->f);
	write_way(e, &e->s->g->ops[g->op], c);
	if (segment >= 0) {
		fputs(", ", e->f);
		write_shares(e, segment);
	}
	fprintf(e->f, ". Computing: %.4g ms of a micro-batch.", 1e3 * compute);
	write_weights(e, g, c, c->seconds - compute);
	write_reads(e, number);
	write_why(e, number, now);
	fputc('\n', e->f);
	return 0;
}

/* Makes all choices of all groups again, under the shares of the program, which stays. */
static int all_choices(struct hspmd_synthesis *s, struct hspmd_error *err)
{
	struct program p;
	if (hspmd_synthesis_program_open(s, &p))
		return hspmd_fail_memory(err, "explaining a program");
	for (int n = 0; n < s->group_count; n++)
		p.choices[n] = s->groups[n].choices[s->chosen[n]];
	int status = hspmd_synthesis_choices(s, err);
	if (!status)
		status = hspmd_synthesis_choose_again(s, &p, err);
	hspmd_synthesis_program_close(&p);
	return status;
}

int hspmd_synthesis_explain(struct hspmd_synthesis *s, FILE *f, struct hspmd_error *err)
{
	struct explainer e = { .s = s, .f = f, .samples = hspmd_synthesis_samples(s) };
	e.before = hspmd_calloc(MAX_LIVE, sizeof *e.before);
	e.after = hspmd_calloc(MAX_LIVE, sizeof *e.after);
	e.scratch = hspmd_calloc(s->g->tensor_count, sizeof *e.scratch);
	e.moves = hspmd_calloc((size_t)s->group_count + 1, sizeof *e.moves);
	e.told = hspmd_calloc((size_t)s->group_count + 1, sizeof *e.told);
	int status = e.before && e.after && e.scratch && e.moves && e.told ? all_choices(s, err)
	                                                                   : hspmd_fail_memory(err, "explaining a program");
	double now = status ? 0 : total_with(&e, -1, 0, e.moves);
	for (int n = 0; !status && n < s->group_count; n++)
		if (!e.told[n] && write_group(&e, n, now))
			status = hspmd_fail_memory(err, "explaining a program");
	free(e.before);
	free(e.after);
	free(e.scratch);
	free(e.moves);
	free(e.told);
	return status;
}
