/* SPDX-License-Identifier: Apache-2.0 */
#include <glpk.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/synthesis/shares.h"

#define ALIKE 1e-9 /* relative difference of rows that are multiples of each other */

/* An operator's rows: per class the seconds at the shares x = 0, then the slopes of all segments. Columns of the program: x, [used][class],
 * as a part of all steps, then a time for each kind of operator, then the rest, in units of what operators take now. */
struct rows {
	const struct balance *b;
	size_t width;    /* of a class */
	size_t count;    /* kinds of operators */
	double *value;   /* [count][class][width] */
	double unit;     /* seconds */
	double constant; /* seconds of operators that no share changes */
	glp_prob *lp;
	int *columns; /* of a row of the program */
	double *entries;
};

static int rep_of(const struct balance *b, int class)
{
	int d = 0;
	while (b->class_of[d] != class)
		d++;
	return d;
}

/* Fills an operator's rows. Returns false if no share changes them. */
static bool rows_of(const struct rows *r, size_t op, double *out)
{
	const struct balance *b = r->b;
	bool any = false;
	for (int k = 0; k < b->class_count; k++) {
		int d = rep_of(b, k);
		double *row = out + (size_t)k * r->width;
		row[0] = b->base.seconds[op * (size_t)b->n + (size_t)d];
		for (int u = 0; u < b->used_count; u++) {
			row[1 + u] = *slope_of(b, op, k, u);
			row[0] -= row[1 + u] * (double)b->at[(size_t)u * (size_t)b->n + (size_t)d];
			any |= row[1 + u] != 0;
		}
	}
	return any;
}

static bool is_multiple(const double *a, const double *b, size_t n, double by, double largest)
{
	for (size_t i = 0; i < n; i++)
		if (fabs(a[i] - by * b[i]) > ALIKE * largest)
			return false;
	return true;
}

/* Adds the rows to a kind of which they are a multiple, or as a new kind. */
static void add_rows(struct rows *r, const double *what)
{
	size_t n = (size_t)r->b->class_count * r->width, at = 0;
	for (size_t i = 0; i < n; i++)
		at = fabs(what[i]) > fabs(what[at]) ? i : at;
	for (size_t k = 0; k < r->count; k++) {
		double *kind = r->value + k * n, by = kind[at] != 0 ? what[at] / kind[at] : 0;
		if (by > 0 && is_multiple(what, kind, n, by, fabs(what[at]))) {
			for (size_t i = 0; i < n; i++)
				kind[i] += what[i];
			return;
		}
	}
	memcpy(r->value + r->count++ * n, what, n * sizeof *what);
}

static int collect(struct rows *r)
{
	const struct balance *b = r->b;
	size_t n = (size_t)b->class_count * r->width;
	double *one = hspmd_calloc(n, sizeof *one);
	r->value = hspmd_calloc(b->base.count * n, sizeof *r->value);
	for (size_t o = 0; one && r->value && o < b->base.count; o++) {
		if (rows_of(r, o, one)) {
			add_rows(r, one);
			continue;
		}
		double slowest = 0;
		for (int d = 0; d < b->n; d++)
			slowest = fmax(slowest, b->base.seconds[o * (size_t)b->n + (size_t)d]);
		r->constant += slowest;
	}
	free(one);
	return one && r->value ? 0 : -1;
}

static double steps_of(const struct balance *b, int u)
{
	return (double)b->s->segments[b->used[u]].steps;
}

static int column_of(const struct balance *b, int u, int class)
{
	return 1 + u * b->class_count + class;
}

static void add_row(struct rows *r, int length, int type, double low, double high)
{
	int row = glp_add_rows(r->lp, 1);
	glp_set_row_bnds(r->lp, row, type, low, high);
	glp_set_mat_row(r->lp, row, length, r->columns, r->entries);
}

static int entry(struct rows *r, int length, int column, double value)
{
	if (value == 0)
		return length;
	r->columns[length + 1] = column;
	r->entries[length + 1] = value;
	return length + 1;
}

static void add_columns(struct rows *r)
{
	const struct balance *b = r->b;
	int shares = b->used_count * b->class_count, times = (int)r->count + 1;
	glp_add_cols(r->lp, shares + times);
	for (int u = 0; u < b->used_count; u++)
		for (int k = 0; k < b->class_count; k++) {
			double all = steps_of(b, u);
			double at = of_class(b, b->at + (size_t)u * (size_t)b->n, k) / b->class_size[k] / all;
			bool fixed = b->fixed[(size_t)u * (size_t)b->class_count + (size_t)k];
			glp_set_col_bnds(r->lp, column_of(b, u, k), fixed ? GLP_FX : GLP_LO, fixed ? at : 1 / all, at);
		}
	for (int t = 1; t <= times; t++) {
		glp_set_col_bnds(r->lp, shares + t, GLP_LO, 0, 0);
		glp_set_obj_coef(r->lp, shares + t, 1);
	}
}

static void add_operators(struct rows *r)
{
	const struct balance *b = r->b;
	int shares = b->used_count * b->class_count;
	for (size_t o = 0; o < r->count; o++)
		for (int k = 0; k < b->class_count; k++) {
			const double *row = r->value + (o * (size_t)b->class_count + (size_t)k) * r->width;
			int length = entry(r, 0, shares + 1 + (int)o, -1);
			for (int u = 0; u < b->used_count; u++)
				length = entry(r, length, column_of(b, u, k), row[1 + u] * steps_of(b, u) / r->unit);
			add_row(r, length, GLP_UP, 0, -row[0] / r->unit);
		}
}

static void add_cuts(struct rows *r)
{
	const struct balance *b = r->b;
	int rest = b->used_count * b->class_count + (int)r->count + 1;
	for (int c = 0; c < b->cut_count; c++) {
		const struct cut *cut = &b->cuts[c];
		double constant = cut->rest;
		int length = entry(r, 0, rest, -1);
		for (int u = 0; u < b->used_count; u++)
			for (int k = 0; k < b->class_count; k++) {
				size_t at = (size_t)u * (size_t)b->class_count + (size_t)k;
				length = entry(r, length, column_of(b, u, k),
				               cut->gradient[at] * b->class_size[k] * steps_of(b, u) / r->unit);
				constant -= cut->gradient[at] * cut->at[at];
			}
		add_row(r, length, GLP_UP, 0, -constant / r->unit);
	}
}

static void add_memory(struct rows *r)
{
	const struct balance *b = r->b;
	const struct hspmd_cluster *c = b->s->stage.cluster;
	for (int k = 0; b->s->limited && k < b->class_count; k++) {
		int d = rep_of(b, k), length = 0;
		double memory = (double)c->types[c->devices[b->s->stage.devices[d]].type].memory_bytes, room = memory - b->base_bytes[d];
		for (int u = 0; u < b->used_count; u++) {
			double slope = b->byte_slope[(size_t)d * (size_t)b->used_count + (size_t)u];
			length = entry(r, length, column_of(b, u, k), slope * steps_of(b, u) / memory);
			room += slope * (double)b->at[(size_t)u * (size_t)b->n + (size_t)d];
		}
		add_row(r, length, GLP_UP, 0, room / memory);
	}
}

static void add_totals(struct rows *r)
{
	const struct balance *b = r->b;
	for (int u = 0; u < b->used_count; u++) {
		int length = 0;
		for (int k = 0; k < b->class_count; k++)
			length = entry(r, length, column_of(b, u, k), b->class_size[k]);
		add_row(r, length, GLP_FX, 1, 1);
	}
}

static int solve(struct rows *r, double *bound)
{
	struct balance *b = (struct balance *)r->b;
	glp_smcp how;
	add_columns(r);
	add_operators(r);
	add_cuts(r);
	add_memory(r);
	add_totals(r);
	glp_init_smcp(&how);
	how.msg_lev = GLP_MSG_OFF;
	if (glp_simplex(r->lp, &how) || glp_get_status(r->lp) != GLP_OPT)
		return 1;
	*bound = glp_get_obj_val(r->lp) * r->unit + r->constant;
	for (int u = 0; u < b->used_count; u++)
		for (int k = 0; k < b->class_count; k++)
			b->best[u * b->class_count + k] = glp_get_col_prim(r->lp, column_of(b, u, k)) * steps_of(b, u);
	return 0;
}

int hspmd_synthesis_shares_lp(struct balance *b, double *bound)
{
	struct rows r = { .b = b, .width = (size_t)b->used_count + 1, .lp = glp_create_prob(), .unit = 1e-30 };
	for (size_t i = 0; i < b->base.count * (size_t)b->n; i++)
		r.unit += b->base.seconds[i] / b->n;
	size_t most = (size_t)b->used_count * (size_t)b->class_count + 2;
	r.columns = hspmd_calloc(most + 1, sizeof *r.columns);
	r.entries = hspmd_calloc(most + 1, sizeof *r.entries);
	int status = r.lp && r.columns && r.entries && !collect(&r) ? 0 : -1;
	if (!status)
		status = solve(&r, bound);
	free(r.columns);
	free(r.entries);
	free(r.value);
	if (r.lp)
		glp_delete_prob(r.lp);
	return status;
}
