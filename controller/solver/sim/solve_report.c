/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/sim/solve_report.h"

#include <stdlib.h>
#include <string.h>

#include "common/format/plan_precision.h"

void hspmd_solve_report_clear(struct hspmd_solve_report *r)
{
	for (int i = 0; i < r->warning_count; i++)
		free(r->warnings[i]);
	free(r->warnings);
	free(r->shortages);
	*r = (struct hspmd_solve_report){ 0 };
}

int hspmd_report_shortage(struct hspmd_solve_report *r, const struct hspmd_shortage *s, struct hspmd_error *err)
{
	if (r->shortage_count++ >= HSPMD_SHORTAGE_MAX)
		return 0;
	struct hspmd_shortage *grown = realloc(r->shortages, (size_t)r->shortage_count * sizeof *grown);
	if (!grown) {
		r->shortage_count--;
		return hspmd_fail_memory(err, "reporting what is short");
	}
	r->shortages = grown;
	grown[r->shortage_count - 1] = *s;
	return 0;
}

void hspmd_report_take_warnings(struct hspmd_solve_report *r, struct hspmd_costs *c)
{
	if (!c->warning_count)
		return;
	char **grown = realloc(r->warnings, (size_t)(r->warning_count + c->warning_count) * sizeof *grown);
	if (!grown)
		return;
	r->warnings = grown;
	memcpy(grown + r->warning_count, c->warnings, (size_t)c->warning_count * sizeof *grown);
	r->warning_count += c->warning_count;
	c->warning_count = 0;
}

void hspmd_report_warn(struct hspmd_solve_report *r, const char *text)
{
	char **grown = realloc(r->warnings, (size_t)(r->warning_count + 1) * sizeof *grown);
	if (!grown)
		return;
	r->warnings = grown;
	grown[r->warning_count] = strdup(text);
	r->warning_count += grown[r->warning_count] != NULL;
}

void hspmd_report_precision(struct hspmd_solve_report *r, const struct hspmd_cluster *c, const struct hspmd_plan *p,
                            enum hspmd_precision requested)
{
	char why[400] = "the plan ";
	size_t n = strlen(why);
	if (hspmd_plan_precision_differs(p, c, requested, why + n, sizeof why - n))
		hspmd_report_warn(r, why);
}
