/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of hspmd top: what they say of an answer, that they keep to their width and height, and what hostile answers do to them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/top/view.h"

static const char answer[] =
        "{\"job\": \"7\", \"phase\": \"training\", \"node_count\": 2, \"devices\": 3, \"generation\": 4, \"up_s\": 3700, "
        "\"step\": 250, \"steps\": 1000, \"step_s\": 2, \"tokens_per_s\": 12345, \"loss\": 2.5, \"plan\": \"1 pipeline\", "
        "\"repaired\": {\"text\": \"after a loss\"}, \"waiting_for\": \"\", \"state\": [{\"where\": \"memory\", \"step\": 250, \"age_s\": "
        "1}, {\"where\": \"shared\", "
        "\"step\": 200, \"age_s\": 600}], \"history\": [[247, 4], [248, null], [249, 2]], \"device_list\": "
        "[{\"device\": \"n0:0\", \"type\": \"H100\", \"pipeline\": 0, \"stage\": 0, \"layers\": [0, 8], \"busy\": 0.75, "
        "\"memory_bytes\": 4e10, \"memory_total_bytes\": 8e10, \"sent_per_s\": 1.5e9}, {\"device\": \"n1:0\", \"type\": "
        "\"A100\", \"pipeline\": 0, \"stage\": 1, \"layers\": [8, 16], \"memory_total_bytes\": 8e10}, {\"device\": \"n1:1\", "
        "\"type\": \"A100\"}], \"events\": [{\"number\": 3, \"time\": 1790000000, \"text\": \"generation 4 on 2 nodes\"}]}";

/* The page as text, a line per line; every line is at most `width` columns wide. */
static char *text_of(struct top_page *p)
{
	static char text[1 << 20];
	size_t n = 0;
	int line = 0, columns = 0;
	assert_false(p->failed);
	for (size_t i = 0; i < p->span_count; i++) {
		for (; line < p->spans[i].line; line++, columns = 0)
			text[n++] = '\n';
		columns += p->spans[i].columns;
		assert_true(columns <= p->width);
		assert_true(n + p->spans[i].bytes + 2 < sizeof text);
		memcpy(text + n, p->text + p->spans[i].at, p->spans[i].bytes);
		n += p->spans[i].bytes;
	}
	text[n] = 0;
	top_page_free(p);
	return text;
}

static char *drawn(struct top_view *v, int width, int height, bool unicode, double now)
{
	struct top_page p;
	top_page_begin(&p, width, unicode);
	top_view_draw(v, &p, height, now, 1790000000);
	assert_true(p.lines <= height);
	return text_of(&p);
}

static void has(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in:\n%s", part, text);
}

static void update(struct top_view *v, const char *json, double now)
{
	json_t *status = json_loads(json, 0, NULL);
	assert_non_null(status);
	top_view_update(v, status, NULL, now);
	json_decref(status);
}

static void a_job(void **state)
{
	struct top_view v = { 0 };
	(void)state;
	has(drawn(&v, 80, 24, false, 0), "asking");
	top_view_update(&v, NULL, "no such job", 0);
	has(drawn(&v, 80, 24, false, 0), "no such job");
	update(&v, answer, 100);
	const char *page = drawn(&v, 80, 24, false, 100);
	has(page, "job 7  training  2 nodes, 3 devices, generation 4  up 61 min");
	has(page, "step  250 of 1000 [|||||.............] 25.0 %, 25 min left\n"); /* 750 steps of 2 s */
	has(page, "speed 1.234e+04 tokens/s, 2 s per step\n");
	has(page, "# _  2 to 4 in 3 steps");
	has(page, "plan  1 pipeline\n      repaired after a loss\n");
	has(page, "saved memory step 250 (1 s old), shared step 200 (10 min old)\n");
	has(page, "n0:0           H100      0.0 L0-7    [||||||..] 75%  [|||..] 40.0 GB   1.5 GB/s\n");
	has(page, "n1:0           A100      0.1 L8-15   [        ]");
	has(page, "n1:1           A100      not in the plan\n");
	has(page, "generation 4 on 2 nodes\n");
	has(page, "g grow  s shrink  c checkpoint");
	has(drawn(&v, 80, 24, true, 100), "█ ▁");
	has(drawn(&v, 60, 24, false, 100), "saved memory step 250 (1 s old), \n      shared step 200 (10 min old)\n");
	/* An answer that is old, or does not come. */
	has(drawn(&v, 80, 24, false, 110), "no answer for 10 s: the controller is busy");
	top_view_update(&v, NULL, "connection refused", 110);
	page = drawn(&v, 80, 24, false, 111);
	has(page, "no answer for 11 s: connection refused");
	has(page, "step  250 of 1000");
	update(&v, answer, 112);
	assert_null(strstr(drawn(&v, 80, 24, false, 112), "no answer"));
	snprintf(v.notice, sizeof v.notice, "grow: 4 nodes");
	has(drawn(&v, 80, 24, false, 112), "\ngrow: 4 nodes");
	top_view_clear(&v);
}

/* Steps that were lost are replaced by those that were made again, and old ones leave. */
static void history(void **state)
{
	struct top_view v = { 0 };
	char json[128];
	(void)state;
	for (int i = 0; i < TOP_HISTORY + 10; i++) {
		snprintf(json, sizeof json, "{\"history\": [[%d, %d]]}", i, i);
		update(&v, json, 0);
	}
	assert_int_equal(v.count, TOP_HISTORY);
	assert_int_equal(v.steps[0], 10);
	assert_float_equal(v.losses[TOP_HISTORY - 1], TOP_HISTORY + 9, 0);
	update(&v, "{\"history\": [[12, -1], [13, null]]}", 0);
	assert_int_equal(v.count, 4);
	assert_float_equal(v.losses[2], -1, 0);
	assert_true(isnan(v.losses[3]));
	top_view_clear(&v);
}

/* Names with control characters, wrong types, numbers beyond all bounds: no byte that moves a cursor gets onto the page. */
static void hostile_answers(void **state)
{
	static const char *const answers[] = {
		"{}",
		"{\"job\": \"\\u001b[2J\\u009b\\n\\té\", \"phase\": \"a\\rb\", \"plan\": \"\\u001b]0;x\\u0007\", "
		"\"last_error\": \"\\u202e\"}",
		"{\"job\": 7, \"phase\": [], \"steps\": \"x\", \"device_list\": {}, \"events\": 3, \"history\": [1, [], [null, {}]], "
		"\"state\": [4]}",
		"{\"steps\": 1e308, \"step\": -1e308, \"step_s\": 1e308, \"up_s\": -1, \"device_list\": [{\"device\": 3}, 4, null, "
		"{\"stage\": 1e300, \"busy\": 1e300, \"memory_bytes\": -1e300, \"sent_per_s\": 1e300, \"layers\": 7}], "
		"\"state\": [{\"age_s\": 1e300}]}",
	};
	(void)state;
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
		for (int width = 1; width < 200; width += width < 8 ? 1 : 37)
			for (int height = 1; height < 40; height += 7) {
				struct top_view v = { 0 };
				update(&v, answers[i], 0);
				for (const char *s = drawn(&v, width, height, false, 0); *s; s++)
					assert_true(*s == '\n' || (*s >= 0x20 && *s < 0x7f));
				struct top_page p;
				top_page_begin(&p, 500, false);
				top_view_describe(&v, &p, 0);
				for (const char *s = text_of(&p); *s; s++)
					assert_true(*s == '\n' || (*s >= 0x20 && *s < 0x7f));
				top_view_clear(&v);
			}
}

/* Of ten thousand devices a page shows those from the scroll position on. */
static void many_devices(void **state)
{
	struct top_view v = { 0 };
	json_t *status = json_loads(answer, 0, NULL), *list = json_array();
	(void)state;
	for (int i = 0; i < 10240; i++) {
		char name[32];
		snprintf(name, sizeof name, "n%d:%d", i / 8, i % 8);
		json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i, s:[i,i], s:f}", "device", name, "type", "H100", "pipeline", 0,
		                                      "stage", i, "layers", 0, 1, "busy", 0.5));
	}
	json_object_set_new(status, "device_list", list);
	top_view_update(&v, status, NULL, 0);
	v.scroll = 5000;
	const char *page = drawn(&v, 80, 24, false, 0);
	has(page, "\nn625:0");
	has(page, "devices 5001 to 5012 of 10240");
	assert_null(strstr(page, "n624:7"));
	v.scroll = 10239;
	has(drawn(&v, 80, 24, false, 0), "devices 10240 to 10240 of 10240");
	json_object_set_new(status, "device_list", json_array()); /* the job has shrunk */
	top_view_update(&v, status, NULL, 0);
	assert_int_equal(v.scroll, 0);
	json_decref(status);
	top_view_clear(&v);
}

static void in_words(void **state)
{
	struct top_view v = { 0 };
	struct top_page p;
	(void)state;
	update(&v, answer, 0);
	top_page_begin(&p, 1000, false);
	top_view_describe(&v, &p, 0);
	const char *text = text_of(&p);
	has(text, "job 7: training\n2 nodes, 3 devices, generation 4\nstep 250 of 1000, loss 2.5, ");
	has(text, "plan repaired after a loss\n");
	has(text,
	    "device n0:0, H100, pipeline 0 stage 0, layers 0 to 7, busy 75 percent, waits 25 percent, memory 40.0 GB of 80.0 GB, sends "
	    "1.5 GB per second\n");
	has(text, "device n1:1, A100, not in the plan\n");
	has(text, "generation 4 on 2 nodes");
	top_page_begin(&p, 1000, false);
	top_view_describe(&v, &p, 0);
	assert_null(strstr(text_of(&p), "generation 4 on")); /* events are told once */
	top_view_clear(&v);
}

static void jobs(void **state)
{
	struct top_page p;
	json_t *list =
	        json_loads("[{\"job\": \"12\", \"phase\": \"training\", \"node_count\": 4, \"step\": 3, \"steps\": 9, \"loss\": 1.5, "
	                   "\"tokens_per_s\": 100}, {\"job\": \"13\", \"phase\": \"pending\", \"node_count\": 2, "
	                   "\"reason\": \"Priority\"}]",
	                   0, NULL);
	(void)state;
	top_page_begin(&p, 80, false);
	top_jobs_draw(list, 1, NULL, &p, 24);
	assert_int_equal(p.lines, 24);
	const char *text = text_of(&p);
	has(text, "12          training          4  step 3 of 9, loss 1.5, 100 tokens/s\n");
	has(text, "13          pending           2  Priority\n");
	top_page_begin(&p, 80, false);
	top_jobs_describe(list, &p);
	has(text_of(&p), "job 13: pending, 2 nodes, Priority");
	json_decref(list);
	list = json_array();
	top_page_begin(&p, 80, false);
	top_jobs_draw(list, 0, NULL, &p, 24);
	has(text_of(&p), "no elastic job of this user");
	top_page_begin(&p, 80, false);
	top_jobs_draw(NULL, 0, "no contact", &p, 24);
	has(text_of(&p), "no contact");
	json_decref(list);
}

static void units(void **state)
{
	static const struct {
		double bytes;
		const char *text;
	} sizes[] = { { 0, "0 B" },          { 999, "999 B" },      { 1000, "1.0 kB" }, { 99.94e3, "99.9 kB" },
		      { 99.96e3, "100 kB" }, { 999.6e6, "1.0 GB" }, { 8e18, "8000 PB" } };
	static const struct {
		double seconds;
		const char *text;
	} spans[] = { { 0, "0 s" },           { 119.4, "119 s" },         { 120, "2 min" }, { 7199, "119 min" }, { 7200, "2 h 00 min" },
		      { 172800, "2 d 0 h" }, { 183600, "2 d 3 h" }, { -1, "?" },     { NAN, "?" } };
	char buf[32];
	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		assert_string_equal(top_bytes(sizes[i].bytes, buf, sizeof buf), sizes[i].text);
	for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
		assert_string_equal(top_duration(spans[i].seconds, buf, sizeof buf), spans[i].text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job),        cmocka_unit_test(history),  cmocka_unit_test(hostile_answers),
		cmocka_unit_test(many_devices), cmocka_unit_test(in_words), cmocka_unit_test(jobs),
		cmocka_unit_test(units),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
