/* SPDX-License-Identifier: Apache-2.0 */
/* The page of a user's jobs. */
#include <stdio.h>

#include "controller/top/view.h"

static const char *text(const json_t *o, const char *key, char *buf, size_t size)
{
	return top_clean(json_string_value(json_object_get(o, key)), buf, size);
}

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* What a job does, behind its phase. */
static void put_doing(const json_t *s, struct top_page *p, enum top_style style)
{
	char reason[256];
	if (json_object_get(s, "reason"))
		top_page_put(p, style, text(s, "reason", reason, sizeof reason));
	else if (number(s, "steps") > 0)
		top_page_print(p, style, "step %.0f of %.0f, loss %.5g, %.4g tokens/s", number(s, "step"), number(s, "steps"),
		               number(s, "loss"), number(s, "tokens_per_s"));
	else
		top_page_print(p, style, "step %.0f", number(s, "step"));
	if (json_object_get(s, "checkpoints_fail"))
		top_page_put(p, TOP_BAD, ", checkpoints FAIL");
}

void top_jobs_draw(const json_t *jobs, int chosen, const char *error, struct top_page *p, int height)
{
	const json_t *s;
	char name[64], phase[64];
	size_t i, from = chosen > height - 6 ? (size_t)(chosen - height + 6) : 0;
	top_page_put(p, TOP_TITLE, "JOB");
	top_page_to(p, 12);
	top_page_put(p, TOP_TITLE, "STATE");
	top_page_to(p, 26);
	top_page_put(p, TOP_TITLE, "NODES");
	top_page_to(p, 33);
	top_page_put(p, TOP_TITLE, "DOES");
	top_page_end_line(p);
	if (error && *error) {
		top_page_put(p, TOP_BAD, error);
		top_page_end_line(p);
	} else if (!json_array_size(jobs)) {
		top_page_put(p, TOP_NORMAL, jobs ? "no elastic job of this user runs or waits" : "asking ...");
		top_page_end_line(p);
	}
	json_array_foreach((json_t *)jobs, i, s) {
		enum top_style style = (int)i == chosen ? TOP_CHOSEN : TOP_NORMAL;
		if (i < from || p->lines >= height - 1)
			continue;
		top_page_print(p, style, "%.11s", text(s, "job", name, sizeof name));
		top_page_to(p, 12);
		top_page_print(p, style, "%.13s", text(s, "phase", phase, sizeof phase));
		top_page_to(p, 26);
		top_page_print(p, style, "%5.0f", number(s, "node_count"));
		top_page_to(p, 33);
		put_doing(s, p, style);
		top_page_end_line(p);
	}
	while (p->lines < height - 1)
		top_page_end_line(p);
	top_page_put(p, TOP_DIM, "arrows choose  enter shows the job  q quit");
	top_page_end_line(p);
}

void top_jobs_describe(const json_t *jobs, struct top_page *p)
{
	const json_t *s;
	char name[64], phase[64];
	size_t i;
	if (!json_array_size(jobs)) {
		top_page_put(p, TOP_NORMAL, "no elastic job of this user runs or waits");
		top_page_end_line(p);
	}
	json_array_foreach((json_t *)jobs, i, s) {
		top_page_print(p, TOP_NORMAL, "job %s: %s, %.0f nodes, ", text(s, "job", name, sizeof name),
		               text(s, "phase", phase, sizeof phase), number(s, "node_count"));
		put_doing(s, p, TOP_NORMAL);
		top_page_end_line(p);
	}
}
