/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/liveput.h"

#include <math.h>

#define STEPS 64 /* of Simpson's rule over the horizon; even */

double hspmd_state_loss_probability(const struct hspmd_risk *risk, int replicas)
{
	return replicas > 0 ? pow(risk->correlated, replicas) : 1;
}

/* Probability that k of n nodes are lost if each one is lost with probability q. */
static double loss_probability(int n, int k, double q)
{
	if (q <= 0)
		return k == 0;
	if (q >= 1)
		return k == n;
	return exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(q) + (n - k) * log1p(-q));
}

static double rate_with(const struct hspmd_liveput_plan *p, int lost)
{
	int working = p->nodes - p->spares, left = p->nodes - lost;
	if (left < working)
		working = left;
	return working > 0 ? p->tokens_per_s[working - 1] : 0;
}

/* Expected rate of committed tokens at a time, less the cost of the losses at that time. */
static double rate_at(const struct hspmd_liveput_plan *p, const struct hspmd_risk *risk, double t)
{
	double q = -expm1(-risk->losses_per_s * t), sum = 0;
	double lost_s = p->pause_s + hspmd_state_loss_probability(risk, p->replicas) * p->rollback_s;
	for (int k = 0; k < p->nodes; k++) {
		double chance = loss_probability(p->nodes, k, q);
		double losses = (p->nodes - k) * risk->losses_per_s;
		/* As in decision_state.c: 1/losses seconds of work between two losses, then lost_s. */
		sum += chance * rate_with(p, k) / (1 + losses * lost_s);
	}
	return sum;
}

double hspmd_liveput(const struct hspmd_liveput_plan *plan, const struct hspmd_risk *risk, double horizon_s)
{
	double h = horizon_s / STEPS, sum = rate_at(plan, risk, 0) + rate_at(plan, risk, horizon_s);
	for (int i = 1; i < STEPS; i++)
		sum += (i % 2 ? 4 : 2) * rate_at(plan, risk, i * h);
	return fmax(0, sum * h / 3);
}

int hspmd_liveput_best(const struct hspmd_liveput_plan *plans, int count, const struct hspmd_risk *risk, double horizon_s)
{
	int best = -1;
	double most = -1;
	for (int i = 0; i < count; i++) {
		double v = hspmd_liveput(&plans[i], risk, horizon_s);
		if (v > most) {
			most = v;
			best = i;
		}
	}
	return best;
}
