/* SPDX-License-Identifier: Apache-2.0 */
/* A linear program as in HAP (arXiv 2401.05965, section 4.3), with the memory constraint that it leaves out:
 *
 *     least t   with   fixed_i + each_i x_i <= t,   1 <= x_i <= max_i (memory),   sum copies_i x_i = total
 *
 * and then whole parts. What all workers can do in t grows with t, so the least t is found by bisection. The optimum in whole parts takes
 * at least as long as the linear one, so no worker gets less than the linear optimum rounded down. The parts that are left go, one after
 * another, to the worker that would finish first with one more; this is optimal because every worker's time grows with its parts. */
#include "controller/solver/search/minmax.h"

#include <math.h>
#include <stdlib.h>

#define SLACK 1e-9
#define PRECISION 1e-14 /* relative, of t */
#define HALVINGS 200    /* at most, where t is near 0 */

/* Parts, not whole, that a worker can do in t. */
static double parts_in(const struct hspmd_minmax_worker *k, int total, double t)
{
	double most = k->max_parts < total ? k->max_parts : total, parts = (t - k->fixed) / k->each;
	if (!(k->each > 0))
		parts = t < k->fixed ? 1 : most;
	return fmin(fmax(parts, 1), most);
}

static double all_parts_in(const struct hspmd_minmax_worker *workers, int count, int total, double t)
{
	double sum = 0;
	for (int i = 0; i < count; i++)
		sum += workers[i].copies * parts_in(&workers[i], total, t);
	return sum;
}

/* The greatest time in which the workers do not do more than all parts, to rounding; NAN: they cannot do as many. */
static double relax(const struct hspmd_minmax_worker *workers, int count, int total)
{
	double low = INFINITY, high = -INFINITY;
	for (int i = 0; i < count; i++) {
		const struct hspmd_minmax_worker *k = &workers[i];
		low = fmin(low, k->fixed);
		high = fmax(high, k->fixed + fmax(k->each, 0) * (k->max_parts < total ? k->max_parts : total));
	}
	if (all_parts_in(workers, count, total, high) < total * (1 - SLACK))
		return NAN;
	for (int n = 0; n < HALVINGS && high - low > PRECISION * fmax(fabs(low), fabs(high)); n++) {
		double middle = (low + high) / 2;
		if (all_parts_in(workers, count, total, middle) < total)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Seconds of a worker with one part more than `parts`; INFINITY if it can take no more. */
static double done_with_next(const struct hspmd_minmax_worker *k, int parts)
{
	return parts + 1 > k->max_parts ? INFINITY : k->fixed + k->each * (parts + 1);
}

int hspmd_minmax_divide(const struct hspmd_minmax_worker *workers, int count, int total, int *parts, int *extra)
{
	long long least = 0, left = total;
	for (int i = 0; i < count; i++)
		least += workers[i].copies;
	double t = least > total ? NAN : relax(workers, count, total);
	int rc = isnan(t) ? 1 : 0;
	for (int i = 0; !rc && i < count; i++) {
		parts[i] = (int)fmax(1, floor(parts_in(&workers[i], total, t) + SLACK));
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
	return rc ? rc : left < 0 ? 1 : 0;
}
