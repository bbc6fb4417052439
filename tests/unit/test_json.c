/* SPDX-License-Identifier: Apache-2.0 */
/* Reading checked JSON: what is accepted, what is refused, and with which messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/durable.h"
#include "common/json.h"

static struct hspmd_error err;
static struct hspmd_json_doc doc;

static struct hspmd_json parse(const char *text)
{
	err.text[0] = '\0';
	hspmd_json_parse(&doc, "f.json", text, strlen(text), &err);
	return hspmd_json_root(&doc);
}

static void expect_error(const char *text)
{
	assert_string_equal(err.text, text);
	hspmd_json_close(&doc);
}

static void reads_values(void **state)
{
	(void)state;
	static const char *const words[] = { "one", "two", NULL };
	struct hspmd_json root = parse("{\"i\": -3, \"whole\": 4e9, \"d\": 0.25, \"t\": true, \"s\": \"x\", \"w\": \"two\", \"n\": null,"
	                               " \"a\": [1, 2, 3], \"o\": {\"k\": 7}}");
	assert_int_equal(hspmd_json_int(&root, "i", -5, 5), -3);
	assert_int_equal(hspmd_json_int(&root, "whole", 0, INT64_MAX), 4000000000);
	assert_true(hspmd_json_number(&root, "d", 0, 1) == 0.25);
	assert_true(hspmd_json_bool_or(&root, "t", false));
	assert_string_equal(hspmd_json_string(&root, "s"), "x");
	assert_int_equal(hspmd_json_enum(&root, "w", words), 1);
	assert_false(hspmd_json_has(&root, "n"));
	assert_int_equal(hspmd_json_int_or(&root, "n", 0, 9, 5), 5);
	assert_true(hspmd_json_number_or(&root, "absent", 0, 9, 2.5) == 2.5);
	struct hspmd_json a = hspmd_json_array(&root, "a", 1, 3), o = hspmd_json_object(&root, "o");
	assert_int_equal(hspmd_json_length(&a), 3);
	struct hspmd_json last = hspmd_json_at(&a, 2);
	assert_int_equal(hspmd_json_int_value(&last, 0, 9), 3);
	assert_int_equal(hspmd_json_int(&o, "k", 0, 9), 7);
	assert_int_equal(hspmd_json_check_keys(&o), 0);
	assert_int_equal(hspmd_json_check_keys(&root), 0);
	assert_string_equal(err.text, "");
	hspmd_json_close(&doc);
}

static void tells_path_and_expectation(void **state)
{
	(void)state;
	struct hspmd_json root = parse("{\"nodes\": [{}, {}, {\"devices\": [{\"count\": 0}]}]}");
	struct hspmd_json nodes = hspmd_json_array(&root, "nodes", 1, 9), node = hspmd_json_at(&nodes, 2);
	struct hspmd_json devices = hspmd_json_array(&node, "devices", 1, 9), device = hspmd_json_at(&devices, 0);
	assert_int_equal(hspmd_json_int(&device, "count", 1, 1024), 0);
	assert_true(hspmd_json_failed(&root));
	expect_error("f.json: nodes[2].devices[0].count: expected 1..1024, got 0");
}

static void names_what_is_wrong(void **state)
{
	(void)state;
	static const char *const words[] = { "node", "cluster", "rack", NULL };
	struct hspmd_json root =
	        parse("{\"i\": 1.5, \"s\": \"\", \"o\": [], \"w\": \"nodes\", \"big\": 1e300, \"long\": \"line\\nbreak\"}");
	hspmd_json_int(&root, "i", 0, 3);
	expect_error("f.json: i: expected an integer in 0..3, got 1.5");
	root = parse("{\"s\": \"\"}");
	assert_null(hspmd_json_string(&root, "s"));
	expect_error("f.json: s: expected a string that is not empty, got \"\"");
	root = parse("{\"o\": []}");
	hspmd_json_object(&root, "o");
	expect_error("f.json: o: expected an object, got an empty array");
	root = parse("{\"w\": \"no\\nde\"}");
	hspmd_json_enum(&root, "w", words);
	expect_error("f.json: w: expected \"node\", \"cluster\" or \"rack\", got \"no\\nde\"");
	root = parse("{\"rate\": 0}");
	hspmd_json_number(&root, "rate", HSPMD_JSON_POSITIVE, HSPMD_JSON_UNBOUNDED);
	expect_error("f.json: rate: expected a number above 0, got 0");
	root = parse("{}");
	hspmd_json_number(&root, "rate", HSPMD_JSON_POSITIVE, 10);
	expect_error("f.json: rate: expected a number above 0 and at most 10, but it is missing");
	root = parse("{\"a\": [1]}");
	hspmd_json_array(&root, "a", 2, 2);
	expect_error("f.json: a: expected an array of 2 elements, got an array of 1");
	root = parse("{\"a b\": {\"c\": true}}");
	struct hspmd_json odd = hspmd_json_object(&root, "a b");
	hspmd_json_int(&odd, "c", 0, 1);
	expect_error("f.json: [\"a b\"].c: expected an integer in 0..1, got true");
	root = parse("[]");
	hspmd_json_int(&root, "c", 0, 1);
	expect_error("f.json: expected an object, got an empty array");
}

static void keeps_the_first_error(void **state)
{
	(void)state;
	struct hspmd_json root = parse("{\"a\": 5, \"b\": 5}");
	hspmd_json_int(&root, "a", 0, 1);
	hspmd_json_int(&root, "b", 0, 2);
	assert_null(hspmd_json_string(&root, "c"));
	assert_int_equal(hspmd_json_check_keys(&root), -1);
	assert_int_equal(hspmd_json_fail(&root, "later"), -1);
	expect_error("f.json: a: expected 0..1, got 5");
}

static void absent_objects_are_harmless(void **state)
{
	(void)state;
	struct hspmd_json root = parse("{}");
	struct hspmd_json o = hspmd_json_object_or_none(&root, "o");
	assert_int_equal(hspmd_json_int_or(&o, "x", 0, 9, 4), 4);
	assert_int_equal(hspmd_json_int(&o, "y", 1, 9), 0);
	assert_int_equal(hspmd_json_check_keys(&o), 0);
	assert_int_equal(hspmd_json_check_keys(&root), 0);
	hspmd_json_close(&doc);
}

static void unknown_keys(void **state)
{
	(void)state;
	struct hspmd_json root = parse("{\"nodes\": 1, \"devcies\": 2}");
	hspmd_json_any(&root, "nodes");
	hspmd_json_any(&root, "devices");
	assert_int_equal(hspmd_json_check_keys(&root), -1);
	expect_error("f.json: devcies: unknown key; did you mean \"devices\"?");
	root = parse("{\"colour\": 2}");
	hspmd_json_any(&root, "nodes");
	hspmd_json_any(&root, "links");
	assert_int_equal(hspmd_json_check_keys(&root), -1);
	expect_error("f.json: colour: unknown key; known here: nodes, links");
	root = parse("{\"x\": 1, \"y\": 2}");
	const char *key;
	struct hspmd_json member;
	int64_t sum = 0;
	for (size_t i = 0; hspmd_json_member(&root, i, &key, &member); i++)
		sum += hspmd_json_int_value(&member, 0, 9) * (*key == 'x' ? 1 : 10);
	assert_int_equal(sum, 21);
	assert_int_equal(hspmd_json_check_keys(&root), 0);
	hspmd_json_close(&doc);
}

static void broken_texts(void **state)
{
	(void)state;
	static const char *const broken[] = {
		"", "{", "{\"a", "{\"a\": 1,}", "{\"a\": 1, \"a\": 2}", "{\"a\": NaN}", "{\"a\": 1e999}", "{\"a\": \"\\u0000\"}", "{} x"
	};
	for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
		struct hspmd_json root = parse(broken[i]);
		assert_true(hspmd_json_failed(&root));
		const char *expected = i < 3 ? "f.json: it ends in line 1, before its JSON is complete" : "f.json: line ";
		assert_int_equal(strncmp(err.text, expected, strlen(expected)), 0);
		assert_int_equal(hspmd_json_int(&root, "a", 0, 9), 0);
		hspmd_json_close(&doc);
	}
	struct hspmd_json large = parse("{\"a\": [7, 99999999999999999999]}"), in = hspmd_json_array(&large, "a", 0, 9);
	struct hspmd_json small = hspmd_json_at(&in, 0), beyond = hspmd_json_at(&in, 1);
	assert_int_equal(hspmd_json_int_value(&small, 0, 9), 7);
	hspmd_json_int_value(&beyond, 0, 9);
	assert_non_null(strstr(err.text, "f.json: a[1]: expected an integer in 0..9, got 1e"));
	hspmd_json_close(&doc);
	struct hspmd_json odd = parse("{\"a\nb\x1b[31m\": 1}");
	assert_true(hspmd_json_failed(&odd));
	assert_null(strpbrk(err.text, "\n\x1b"));
	hspmd_json_close(&doc);
	char deep[5001];
	memset(deep, '[', 5000);
	deep[5000] = '\0';
	struct hspmd_json root = parse(deep);
	assert_true(hspmd_json_failed(&root));
	hspmd_json_close(&doc);
	assert_int_equal(hspmd_json_open(&doc, "/nowhere/x.json", &err), -1);
	expect_error("/nowhere/x.json: No such file or directory");
	assert_int_equal(hspmd_json_open(&doc, "/", &err), -1);
	expect_error("/: Is a directory");
}

/* What a file has that no editor shows, and what jansson says in words of its own interface. */
static void texts_that_look_right(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		size_t length;
		const char *error;
	} odd[] = {
		{ "\xef\xbb\xbf{}", 5, "f.json: it begins with a byte order mark: expected UTF-8 without one" },
		{ "\xff\xfe{\0}\0", 6, "f.json: it begins with a byte order mark: expected UTF-8 without one" },
		{ "\xfe\xff\0{\0}", 6, "f.json: it begins with a byte order mark: expected UTF-8 without one" },
		{ "{}\0", 3, "f.json: line 1, column 3: something follows, though its JSON is complete" },
		{ "{} {}", 5, "f.json: line 1, column 4: something follows, though its JSON is complete" },
		{ "{\"a\": \"\\u0000\"}", 15, "f.json: line 1, column 14: a text may not have the character \\u0000" },
		{ "{\"\\u0000\": 1}", 13, "f.json: line 1, column 9: a text may not have the character \\u0000" },
	};
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
		assert_int_equal(hspmd_json_parse(&doc, "f.json", odd[i].text, odd[i].length, &err), -1);
		assert_string_equal(err.text, odd[i].error);
		hspmd_json_close(&doc);
	}
}

static void formats(void **state)
{
	(void)state;
	struct hspmd_json root = parse("{\"format\": \"hspmd-plan-1\"}");
	assert_int_equal(hspmd_json_format(&root, "hspmd-plan-1"), 0);
	assert_int_equal(hspmd_json_format(&root, "hspmd-job-1"), -1);
	expect_error("f.json: format: expected \"hspmd-job-1\", got \"hspmd-plan-1\"");
	root = parse("{}");
	assert_int_equal(hspmd_json_format(&root, "hspmd-job-1"), -1);
	expect_error("f.json: format: expected \"hspmd-job-1\", but it is missing");
}

static void long_messages_are_cut(void **state)
{
	(void)state;
	static char text[8000];
	char *p = text;
	for (int i = 0; i < 60; i++)
		p += sprintf(p, "{\"key-of-some-length-%d\": ", i);
	p += sprintf(p, "1");
	for (int i = 0; i < 60; i++)
		*p++ = '}';
	static struct hspmd_json chain[64];
	static const char *key;
	chain[0] = parse(text);
	for (int i = 0; i < 60; i++)
		assert_true(hspmd_json_member(&chain[i], 0, &key, &chain[i + 1]));
	hspmd_json_string_value(&chain[60]);
	assert_true(strlen(err.text) < HSPMD_ERROR_MAX);
	assert_non_null(strstr(err.text, "f.json: key-of-some-length-0.key-of-some-length-1."));
	hspmd_json_close(&doc);
}

/* Writing and reading gives the same value; numbers have the fewest digits, and short values are on one line. */
static void writes_what_it_reads(void **state)
{
	(void)state;
	json_t *a = json_pack("{s:[fffff], s:{s:o, s:s}, s:[], s:o}", "reals", 0.1, 1e300, 5e-324, 3.0, 3600.0, "o", "null",
	                      hspmd_json_real(NAN), "text", "line\nbreak \"quoted\" \u00e9", "empty", "whole", hspmd_json_real(450));
	for (int i = 0; i < 60; i++)
		json_array_append_new(json_object_get(a, "reals"), json_real(1.0 / (i + 3)));
	char *text = hspmd_json_text(a);
	json_t *b = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
	assert_true(json_equal(a, b));
	assert_non_null(strstr(text, "    0.1,\n    1e+300,\n    5e-324,\n    3.0,\n    3600.0,\n"));
	assert_non_null(strstr(text, "\n  \"o\": {\"null\": null, \"text\": \"line\\nbreak \\\"quoted\\\" \u00e9\"},\n"));
	assert_non_null(strstr(text, "\n  \"whole\": 450\n"));
	json_decref(b);

	char path[] = "/tmp/hspmd-test-json-XXXXXX";
	close(mkstemp(path));
	assert_int_equal(hspmd_json_save(a, path, &err), 0);
	size_t size;
	char *again = hspmd_read_file(path, 1 << 20, &size, &err);
	assert_string_equal(again, text);
	unlink(path);
	free(again);
	free(text);
	json_decref(a);
	assert_int_equal(hspmd_json_save(json_null(), "/nowhere/x", &err), -1);
	assert_non_null(strstr(err.text, "/nowhere/x"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_values),
		cmocka_unit_test(tells_path_and_expectation),
		cmocka_unit_test(names_what_is_wrong),
		cmocka_unit_test(keeps_the_first_error),
		cmocka_unit_test(absent_objects_are_harmless),
		cmocka_unit_test(unknown_keys),
		cmocka_unit_test(broken_texts),
		cmocka_unit_test(texts_that_look_right),
		cmocka_unit_test(formats),
		cmocka_unit_test(long_messages_are_cut),
		cmocka_unit_test(writes_what_it_reads),
	};
	return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
