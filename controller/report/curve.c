/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/curve.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/json.h"

int report_curve_of(const struct report_run *r, enum report_value value, struct report_curve *c)
{
	*c = (struct report_curve){ .points = hspmd_calloc(r->step_count, sizeof *c->points) };
	if (!c->points)
		return -1;
	for (size_t i = 0; i < r->step_count; i++) {
		const struct report_step *s = &r->steps[i];
		if (s->repeated || isnan(s->values[value]))
			continue;
		c->points[c->count][0] = (double)s->step;
		c->points[c->count++][1] = s->values[value];
	}
	return 0;
}

static void keep(struct report_curve *c, int *kept, int from)
{
	double x = c->points[from][0], y = c->points[from][1];
	c->points[*kept][0] = x;
	c->points[(*kept)++][1] = y;
}

void report_curve_thin(struct report_curve *c)
{
	int kept = 0, all = c->count;
	if (all <= 2 * REPORT_COLUMNS)
		return;
	double first = c->points[0][0], width = (c->points[all - 1][0] - first) / REPORT_COLUMNS;
	for (int i = 0, end; i < all; i = end) {
		int column = (int)((c->points[i][0] - first) / width), low = i, high = i;
		for (end = i + 1; end < all && (int)((c->points[end][0] - first) / width) == column; end++) {
			low = c->points[end][1] < c->points[low][1] ? end : low;
			high = c->points[end][1] > c->points[high][1] ? end : high;
		}
		int two[2] = { low < high ? low : high, low < high ? high : low };
		if (i == 0 && two[0] != 0)
			keep(c, &kept, 0);
		keep(c, &kept, two[0]);
		if (two[1] != two[0])
			keep(c, &kept, two[1]);
		if (end == all && two[1] != all - 1)
			keep(c, &kept, all - 1);
	}
	c->count = kept;
}

json_t *report_curve_json(const struct report_curve *c)
{
	json_t *list = json_array();
	int bad = !list;
	for (int i = 0; i < c->count && !bad; i++)
		bad |= json_array_append_new(list, json_pack("[o, o]", hspmd_json_real(c->points[i][0]), hspmd_json_real(c->points[i][1])));
	return hspmd_json_unless_failed(bad, list);
}

void report_curve_free(struct report_curve *c)
{
	free(c->points);
	*c = (struct report_curve){ 0 };
}
