/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/chart.h"

#include <math.h>

#include "controller/report/markup.h"

/* report.js has the same margins. */
#define WIDTH 1000
#define LEFT 70
#define RIGHT 15
#define TOP 22
#define BOTTOM 36
#define TICKS_MAX 16
#define LABEL_ROOM 46 /* pixels that the label of a mark takes */

struct range {
	double low, high;
};

struct area {
	struct range x, y;
	int height;
};

static void include(struct range *r, double v)
{
	r->low = fmin(r->low, v);
	r->high = fmax(r->high, v);
}

static struct range widened(struct range r)
{
	double room = r.high > r.low ? 0 : fabs(r.high) > 0 ? fabs(r.high) * 0.05 : 0.5;
	return (struct range){ r.low - room, r.high + room };
}

/* False if there is no point. */
static bool measure(const struct report_chart *c, struct area *a)
{
	bool any = false;
	*a = (struct area){ { c->x_low, c->x_high }, { INFINITY, -INFINITY }, c->height };
	for (int k = 0; k < c->curve_count; k++)
		for (int i = 0; i < c->curves[k].count; i++) {
			include(&a->y, c->curves[k].points[i][1]);
			any = true;
		}
	if (any && c->from_zero)
		include(&a->y, 0);
	a->x = widened(a->x);
	a->y = widened(a->y);
	return any;
}

static double at_x(const struct area *a, double x)
{
	return LEFT + (x - a->x.low) / (a->x.high - a->x.low) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct area *a, double y)
{
	return TOP + (a->y.high - y) / (a->y.high - a->y.low) * a->height;
}

/* A round step (1, 2 or 5 times a power of ten) that divides `span` into at most `parts` parts. */
static double tick(double span, int parts)
{
	double rough = span / parts, power = pow(10, floor(log10(rough))), digit = rough / power;
	return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

/* The ticks of a range, at most parts + 1; beyond 2^53 steps from 0 there is no next one. */
static int find_ticks(struct range r, int parts, double *ticks)
{
	double step = tick(r.high - r.low, parts), first = ceil(r.low / step);
	int n = 0;
	while (n <= parts && n < TICKS_MAX && (first + n) * step <= r.high) {
		ticks[n] = (first + n) * step;
		n++;
	}
	return n;
}

static void write_ticks(FILE *out, const struct area *a)
{
	double ticks[TICKS_MAX];
	int n = find_ticks(a->x, 10, ticks);
	fputs("<g class=\"ticks\">", out);
	for (int i = 0; i < n; i++)
		fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.10g</text>", at_x(a, ticks[i]), TOP + a->height + 15,
		        ticks[i]);
	n = find_ticks(a->y, a->height / 36, ticks);
	for (int i = 0; i < n; i++)
		fprintf(out, "<path d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.10g</text>", LEFT, at_y(a, ticks[i]),
		        WIDTH - RIGHT, LEFT - 6, at_y(a, ticks[i]) + 4, ticks[i]);
	fputs("</g>\n", out);
}

static void write_curve(FILE *out, const struct area *a, const struct report_curve *c, int run)
{
	fprintf(out, "<path class=\"curve%s c%d\" data-run=\"%d\" d=\"", c->count == 1 ? " point" : "", run % REPORT_COLOURS, run);
	for (int i = 0; i < c->count; i++)
		fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', at_x(a, c->points[i][0]), at_y(a, c->points[i][1]));
	fputs(c->count == 1 ? "h.1\"/>\n" : "\"/>\n", out); /* so that one point is seen */
}

/* Labels that would cover one another are left out. */
static void write_marks(FILE *out, const struct area *a, const struct report_chart *c)
{
	static const char *const classes[] = { "change", "checkpoint", "fault" };
	double labelled = -LABEL_ROOM;
	int bottom = TOP + a->height;
	for (int i = 0; i < c->mark_count; i++) {
		const struct report_mark *m = &c->marks[i];
		if (m->x < a->x.low || m->x > a->x.high)
			continue;
		double x = at_x(a, m->x);
		fprintf(out, "<g class=\"mark %s c%d\" data-x=\"%.17g\" transform=\"translate(%.1f)\"><path d=\"", classes[m->kind],
		        m->run % REPORT_COLOURS, m->x, x);
		if (m->kind == REPORT_MARK_CHANGE)
			fprintf(out, "M0 %dV%d\"/>", TOP - 4, bottom);
		else
			fprintf(out, "M0 %dl-4 8h8z\"/>", bottom - 9);
		if (*m->label && fabs(x - labelled) >= LABEL_ROOM) {
			fprintf(out, "<text y=\"%d\" text-anchor=\"middle\">", TOP - 8);
			report_text(out, m->label);
			fputs("</text>", out);
			labelled = x;
		}
		if (*m->title) {
			fputs("<title>", out);
			report_text(out, m->title);
			fputs("</title>", out);
		}
		fputs("</g>\n", out);
	}
}

void report_chart_write(FILE *out, const struct report_chart *c)
{
	struct area a;
	if (!measure(c, &a))
		return;
	fprintf(out, "<figure id=\"%s\"><figcaption>", c->name);
	report_text(out, c->title);
	fprintf(out,
	        "</figcaption>\n<svg class=\"chart\" role=\"img\" data-curve=\"%s\" data-axis=\"%s\" data-zero=\"%d\" data-low=\"%.17g\" "
	        "data-high=\"%.17g\" data-height=\"%d\" "
	        "viewBox=\"0 0 %d %d\"><rect "
	        "class=\"area\" "
	        "x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
	        c->name, c->axis, c->from_zero, a.x.low, a.x.high, c->height, WIDTH, c->height + TOP + BOTTOM, LEFT, TOP,
	        WIDTH - LEFT - RIGHT, c->height);
	write_ticks(out, &a);
	write_marks(out, &a, c);
	for (int k = 0; k < c->curve_count; k++)
		if (c->curves[k].count)
			write_curve(out, &a, &c->curves[k], k);
	fprintf(out, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", WIDTH - RIGHT, c->height + TOP + BOTTOM - 5);
	report_text(out, c->axis);
	fputs("</text></svg></figure>\n", out);
}
