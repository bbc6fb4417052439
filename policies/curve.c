/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/curve.h"

#include <math.h>
#include <stddef.h>

static bool predicted(const double *curve, int count, const struct hspmd_curve_sample *seen)
{
	return seen->nodes >= 1 && seen->nodes <= count && isfinite(curve[seen->nodes - 1]) && curve[seen->nodes - 1] > 0;
}

/* Returns the sample of the greatest number of nodes up to n; NULL: none. */
static const struct hspmd_curve_sample *seen_below(const double *curve, int count, const struct hspmd_curve_sample *seen, int seen_count,
                                                   int n)
{
	const struct hspmd_curve_sample *best = NULL;
	for (int k = 0; k < seen_count; k++)
		if (seen[k].nodes <= n && predicted(curve, count, &seen[k]) && (!best || seen[k].nodes > best->nodes))
			best = &seen[k];
	return best;
}

static double ratio(const double *curve, const struct hspmd_curve_sample *seen)
{
	return seen->tokens_per_s / curve[seen->nodes - 1];
}

void hspmd_curve_scale(double *curve, int count, const struct hspmd_curve_sample *seen, int seen_count)
{
	/* Downwards, because the ratio at a size needs the unscaled predictions of the sizes up to it; the ratio of the next measured size
	 * above is kept. */
	const struct hspmd_curve_sample *above = NULL;
	double above_ratio = 1;
	for (int n = count; n >= 1; n--) {
		const struct hspmd_curve_sample *below = seen_below(curve, count, seen, seen_count, n);
		double r = above_ratio;
		if (below) {
			r = ratio(curve, below);
			if (above)
				r += (above_ratio - r) * (n - below->nodes) / (above->nodes - below->nodes);
			if (below->nodes == n) {
				above = below;
				above_ratio = r = ratio(curve, below);
			}
		}
		curve[n - 1] *= r;
	}
}

void hspmd_curve_bound(double *curve, int count, const struct hspmd_curve_sample *seen, int seen_count, double slack)
{
	for (int i = 0; i < count; i++) {
		int n = i + 1;
		const struct hspmd_curve_sample *measured = NULL;
		for (int k = 0; k < seen_count && !measured; k++)
			measured = seen[k].nodes == n ? &seen[k] : NULL;
		double v = measured ? measured->tokens_per_s : isfinite(curve[i]) && curve[i] > 0 ? curve[i] : 0;
		for (int k = 0; k < seen_count; k++) {
			double reached = seen[k].tokens_per_s * slack;
			if (seen[k].nodes > n && !measured)
				v = fmin(v, reached);
			else if (seen[k].nodes > 0 && seen[k].nodes < n)
				v = fmin(v, reached * n / seen[k].nodes);
		}
		curve[i] = v;
	}
	double least = INFINITY; /* smallest rate per node so far */
	for (int i = 0; i < count; i++) {
		if (!(curve[i] > 0))
			continue;
		curve[i] = fmin(curve[i], slack * least * (i + 1));
		least = fmin(least, curve[i] / (i + 1));
	}
	for (int i = 1; i < count; i++)
		curve[i] = fmax(curve[i], curve[i - 1]);
}

static double value(const double *curve, int n)
{
	return n ? curve[n - 1] : 0;
}

void hspmd_curve_hull(const double *curve, int count, double *out)
{
	int at = 0;
	while (at < count) {
		int next = at + 1;
		double best = -INFINITY;
		for (int n = at + 1; n <= count; n++) {
			double slope = (value(curve, n) - value(curve, at)) / (n - at);
			if (slope >= best) {
				best = slope;
				next = n;
			}
		}
		double from = value(curve, at);
		for (int n = at + 1; n < next; n++)
			out[n - 1] = from + best * (n - at);
		out[next - 1] = value(curve, next);
		at = next;
	}
}

double hspmd_curve_at(const double *curve, int count, double size)
{
	if (!count || !(size > 0))
		return 0;
	if (size >= count)
		return curve[count - 1];
	int low = (int)size;
	return value(curve, low) + (size - low) * (value(curve, low + 1) - value(curve, low));
}
