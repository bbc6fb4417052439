/* SPDX-License-Identifier: Apache-2.0 */
/* Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2. */
#define adamw_MOMENTS 2

#ifdef HSPMD_UPDATE_TYPES
#include <math.h>

static void adamw_rates(const double *values, double lr, int64_t update, double *rates)
{
	rates[0] = values[0];
	rates[1] = 1 - values[0];
	rates[2] = values[1];
	rates[3] = 1 - values[1];
	rates[4] = values[2];
	rates[5] = lr / (1 - pow(values[0], (double)update));
	rates[6] = 1 / sqrt(1 - pow(values[1], (double)update));
}

static const struct hspmd_optimizer_type adamw_type = {
	.name = "adamw",
	.moments = adamw_MOMENTS,
	.keys = { { "beta1", 0, 1 - 1e-9, 0.9 }, { "beta2", 0, 1 - 1e-9, 0.95 }, { "eps", HSPMD_JSON_POSITIVE, 1, 1e-8 } },
	.rates = adamw_rates,
};
#endif

#ifdef HSPMD_UPDATE_REAL
HSPMD_UPDATE_FUNCTION HSPMD_UPDATE_REAL adamw_update(const HSPMD_UPDATE_REAL *rates, HSPMD_UPDATE_REAL keep, HSPMD_UPDATE_REAL gradient,
                                                     HSPMD_UPDATE_REAL parameter, HSPMD_UPDATE_REAL *moments)
{
	HSPMD_UPDATE_REAL m = rates[0] * moments[0] + rates[1] * gradient, v = rates[2] * moments[1] + rates[3] * gradient * gradient;
	moments[0] = m;
	moments[1] = v;
	return keep * parameter - rates[5] * m / (HSPMD_UPDATE_SQRT(v) * rates[6] + rates[4]);
}
#endif
