/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/collective_cost.h"

#include <math.h>

static double slowest_link(int n, double bytes, double (*link)(const void *context, int i, double bytes), const void *context)
{
	double most = 0;
	for (int i = 0; i < n; i++)
		most = fmax(most, link(context, i, bytes));
	return most;
}

double hspmd_ring_seconds(const double *parts, int n, double (*link)(const void *context, int i, double bytes), const void *context,
                          enum hspmd_collective_form *form)
{
	double most = 0, least = HUGE_VAL, grouped = 0;
	*form = HSPMD_FORM_EVEN;
	if (n < 2)
		return 0;
	for (int i = 0; i < n; i++) {
		most = fmax(most, parts[i]);
		least = fmin(least, parts[i]);
	}
	double longest = slowest_link(n, most, link, context), padded = (n - 1) * longest;
	if (most == least)
		return padded;
	/* Hundreds of members mostly have parts of two lengths. */
	double shortest = least > 0 ? slowest_link(n, least, link, context) : 0;
	for (int i = 0; i < n && grouped < padded; i++)
		grouped += parts[i] == most ? longest : parts[i] == least ? shortest : slowest_link(n, parts[i], link, context);
	*form = padded <= grouped ? HSPMD_FORM_PADDED : HSPMD_FORM_GROUPED;
	return fmin(padded, grouped);
}
