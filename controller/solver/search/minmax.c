/* SPDX-License-Identifier: Apache-2.0 */
/* A linear program as in HAP (arXiv 2401.05965, section 4.3), with the memory constraint that it leaves out:
 *
 *     least t   with   fixed_i + each_i x_i <= t,   1 <= x_i <= max_i (memory),   sum copies_i x_i = total
 *
 * and then whole parts. The optimum in whole parts takes at least as long as the linear one, so no worker gets less than the linear
 * optimum rounded down. The parts that are left go, one after another, to the worker that would finish first with one more; this is
 * optimal because every worker's time grows with its parts. */
#include "controller/solver/search/minmax.h"

#include <glpk.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"

#define SLACK 1e-9

/* Compute the linear optimum into x. Returns 0; 1 if there is none; -1 if memory runs out. */
static int relax(const struct hspmd_minmax_worker *workers, int count, int total, double *x)
{
	glp_prob *lp = glp_create_prob();
	glp_smcp how;
	int *columns = hspmd_calloc((size_t)count + 2, sizeof *columns);
	double *values = hspmd_calloc((size_t)count + 2, sizeof *values);
	int rc = -1;
	if (!lp || !columns || !values)
		goto out;
	glp_add_cols(lp, count + 1);
	glp_add_rows(lp, count + 1);
	glp_set_col_bnds(lp, count + 1, GLP_FR, 0, 0);
	glp_set_obj_coef(lp, count + 1, 1);
	for (int i = 0; i < count; i++) {
		const struct hspmd_minmax_worker *k = &workers[i];
		if (k->max_parts == 1)
			glp_set_col_bnds(lp, i + 1, GLP_FX, 1, 1);
		else
			glp_set_col_bnds(lp, i + 1, k->max_parts < INT_MAX ? GLP_DB : GLP_LO, 1, k->max_parts);
		glp_set_row_bnds(lp, i + 1, GLP_UP, 0, -k->fixed);
		columns[1] = i + 1;
		values[1] = k->each;
		columns[2] = count + 1;
		values[2] = -1;
		glp_set_mat_row(lp, i + 1, 2, columns, values);
	}
	for (int i = 0; i < count; i++) {
		columns[i + 1] = i + 1;
		values[i + 1] = workers[i].copies;
	}
	glp_set_row_bnds(lp, count + 1, GLP_FX, total, total);
	glp_set_mat_row(lp, count + 1, count, columns, values);
	glp_init_smcp(&how);
	how.msg_lev = GLP_MSG_OFF;
	rc = glp_simplex(lp, &how) || glp_get_status(lp) != GLP_OPT ? 1 : 0;
	for (int i = 0; i < count; i++)
		x[i] = glp_get_col_prim(lp, i + 1);
out:
	free(columns);
	free(values);
	if (lp)
		glp_delete_prob(lp);
	return rc;
}

/* Seconds of a worker with one part more than `parts`; INFINITY if it can take no more. */
static double done_with_next(const struct hspmd_minmax_worker *k, int parts)
{
	return parts + 1 > k->max_parts ? INFINITY : k->fixed + k->each * (parts + 1);
}

int hspmd_minmax_divide(const struct hspmd_minmax_worker *workers, int count, int total, int *parts, int *extra)
{
	long long least = 0, left = total;
	double *x = hspmd_calloc((size_t)count, sizeof *x);
	if (!x)
		return -1;
	for (int i = 0; i < count; i++)
		least += workers[i].copies;
	int rc = least > total ? 1 : relax(workers, count, total, x);
	for (int i = 0; !rc && i < count; i++) {
		parts[i] = (int)fmax(1, floor(x[i] + SLACK));
		extra[i] = 0;
		left -= (long long)parts[i] * workers[i].copies;
	}
	while (!rc && left > 0) {
		int first = -1;
		double soonest = INFINITY;
		for (int i = 0; i < count; i++)
			if (done_with_next(&workers[i], parts[i]) < soonest) {
				soonest = done_with_next(&workers[i], parts[i]);
				first = i;
			}
		if (first < 0) {
			rc = 1;
			break;
		}
		long long give = workers[first].copies - extra[first];
		give = give < left ? give : left;
		extra[first] += (int)give;
		left -= give;
		if (extra[first] == workers[first].copies) {
			parts[first]++;
			extra[first] = 0;
		}
	}
	free(x);
	return rc ? rc : left < 0 ? 1 : 0;
}
