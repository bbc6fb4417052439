/* SPDX-License-Identifier: Apache-2.0 */
/* Gain curves: nodes -> tokens per second. Arrays of count values, [i] for i + 1 nodes; 0 nodes make 0. */
#ifndef HSPMD_POLICIES_CURVE_H
#define HSPMD_POLICIES_CURVE_H

#include <stdbool.h>

/* What was seen to be reached on so many nodes. */
struct hspmd_curve_sample {
	int nodes;
	double tokens_per_s;
};

/* Scale what a solver predicts to what was measured, in place: its shape says what a further node brings, the measured rates how much that
 * is. Between two measured sizes the ratio of both changes by straight lines, outside it is that of the nearest. */
void hspmd_curve_scale(double *curve, int count, const struct hspmd_curve_sample *seen, int seen_count);

/* Bound what a controller claims by what was measured, in place: on a measured size what was measured, else no more than a larger measured
 * size reached, and never more than in proportion from any smaller measured one: measurements are the controller's own word too, and of two
 * that cannot both be true the smaller counts. Before anything was measured the claim is held to itself in this way. Values that are no
 * numbers become 0; the curve is made non-decreasing (a job need not use a node). `slack` (1.05) lets noise pass. */
void hspmd_curve_bound(double *curve, int count, const struct hspmd_curve_sample *seen, int seen_count, double slack);

/* The least concave curve that lies nowhere below: out[0..count). Plateaus that divisibility leaves ("7 nodes do no more than 6, 8 do") do
 * not hide what lies behind them. */
void hspmd_curve_hull(const double *curve, int count, double *out);

/* Value at a size between whole numbers, by straight lines; flat beyond the end. */
double hspmd_curve_at(const double *curve, int count, double size);

#endif
