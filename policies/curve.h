/* SPDX-License-Identifier: Apache-2.0 */
/* Scaling curves: tokens per second as a function of reference nodes. Arrays of count values, [i] on i + 1 nodes; 0 on 0 nodes. */
#ifndef HSPMD_POLICIES_CURVE_H
#define HSPMD_POLICIES_CURVE_H

#include <stdbool.h>

/* A measured rate on a number of nodes. */
struct hspmd_curve_sample {
	int nodes;
	double tokens_per_s;
};

/* Scales a predicted curve to measured rates, in place: the prediction gives the shape, the samples the level. Between two measured sizes
 * the ratio of measured to predicted is interpolated linearly; beyond them it is that of the nearest. */
void hspmd_curve_scale(double *curve, int count, const struct hspmd_curve_sample *seen, int seen_count);

/* Bounds a claimed curve by samples, in place. On a measured size the value is the sample; on other sizes it is at most the sample of any
 * larger size. On every size it is at most any smaller size's sample scaled in proportion: samples are claims as well, and if two
 * contradict each other the smaller one counts. The claimed values bound each other in the same way, even without samples. Values that are
 * not finite become 0. The result is non-decreasing, since a job need not use a node. `slack` (1.05) allows for noise. */
void hspmd_curve_bound(double *curve, int count, const struct hspmd_curve_sample *seen, int seen_count, double slack);

/* Writes the least concave curve that is nowhere below `curve` to out[0..count). With it, a plateau due to divisibility ("7 nodes train no
 * faster than 6, but 8 do") does not hide the gain beyond it. */
void hspmd_curve_hull(const double *curve, int count, double *out);

/* Returns the value at any size, interpolated linearly; constant beyond the end. */
double hspmd_curve_at(const double *curve, int count, double size);

#endif
