/* SPDX-License-Identifier: Apache-2.0 */
/* Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2. */
#define lion_MOMENTS 1

#ifdef HSPMD_UPDATE_TYPES
static void lion_rates(const double *values, double lr, int64_t update, double *rates)
{
	(void)update;
	rates[0] = values[0];
	rates[1] = 1 - values[0];
	rates[2] = values[1];
	rates[3] = 1 - values[1];
	rates[4] = lr;
}

static const struct hspmd_optimizer_type lion_type = {
	.name = "lion",
	.moments = lion_MOMENTS,
	.keys = { { "beta1", 0, 1 - 1e-9, 0.9 }, { "beta2", 0, 1 - 1e-9, 0.99 } },
	.rates = lion_rates,
};
#endif

#ifdef HSPMD_UPDATE_REAL
HSPMD_UPDATE_FUNCTION HSPMD_UPDATE_REAL lion_update(const HSPMD_UPDATE_REAL *rates, HSPMD_UPDATE_REAL keep, HSPMD_UPDATE_REAL gradient,
                                                    HSPMD_UPDATE_REAL parameter, HSPMD_UPDATE_REAL *moments)
{
	HSPMD_UPDATE_REAL c = rates[0] * moments[0] + rates[1] * gradient;
	HSPMD_UPDATE_REAL sign = c > 0 ? 1 : c < 0 ? -1 : c; /* NaN stays NaN */
	moments[0] = rates[2] * moments[0] + rates[3] * gradient;
	return keep * parameter - rates[4] * sign;
}
#endif
