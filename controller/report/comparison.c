/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/comparison.h"

#include <math.h>

#include "common/json.h"
#include "controller/report/markup.h"

int report_comparison_make(const struct report_run *a, const struct report_run *b, struct report_comparison *c)
{
	struct report_curve other = { 0 };
	*c = (struct report_comparison){ .worst_step = -1 };
	if (report_curve_of(a, REPORT_LOSS, &c->curve) || report_curve_of(b, REPORT_LOSS, &other)) {
		report_curve_free(&c->curve);
		report_curve_free(&other);
		return -1;
	}
	for (int i = 0, k = 0; i < c->curve.count && k < other.count;) {
		double step = c->curve.points[i][0], size = fabs(other.points[k][1]);
		if (step != other.points[k][0]) {
			step < other.points[k][0] ? i++ : k++;
			continue;
		}
		double difference = fabs(c->curve.points[i++][1] - other.points[k++][1]) / (size > 0 ? size : 1);
		c->curve.points[c->steps][0] = step; /* steps < i: what is overwritten has been read */
		c->curve.points[c->steps++][1] = difference;
		if (c->worst_step >= 0 && difference <= c->worst)
			continue;
		c->worst = difference;
		c->worst_step = (int64_t)step;
	}
	c->curve.count = (int)c->steps;
	report_curve_free(&other);
	return 0;
}

void report_comparison_write(FILE *out, const struct report_comparison *c, const char *a, const char *b)
{
	fputs("<p class=\"comparison\">", out);
	if (c->worst_step < 0)
		report_textf(out, "%s and %s have no step in common.", a, b);
	else
		report_textf(out,
		             "%s beside %s: %lld step%s in common; the largest relative difference of the losses is %.2g, at step %lld. %s",
		             a, b, (long long)c->steps, c->steps == 1 ? "" : "s", c->worst, (long long)c->worst_step,
		             c->worst <= REPORT_TOLERANCE ? "That is rounding (up to 1e-5): the same training."
		                                          : "That is more than rounding (1e-5) explains in 100 steps of one job in fp32.");
	fputs("</p>\n", out);
}

json_t *report_comparison_json(const struct report_comparison *c)
{
	return json_pack("{s:I, s:o, s:I}", "steps", (json_int_t)c->steps, "worst", hspmd_json_real(c->worst), "worst_step",
	                 (json_int_t)c->worst_step);
}
