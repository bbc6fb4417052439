/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions in a command's arguments, and torchrun's command line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "common/format/torchrun.h"
#include "common/template.h"

static const struct hspmd_template_values values = {
	.world = 6, .nodes = 3, .rank = 4, .local_rank = 1, .latest = "/c/step {1}", .checkpoint = "/c"
};

static void test_values(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
		{ "", "" },
		{ "plain", "plain" },
		{ "{world}", "6" },
		{ "a{nodes}b{rank}c{local_rank}d", "a3b4c1d" },
		{ "--n={ 96 / ( 4 * world ) }", "--n=4" },
		{ "{2+3*4}", "14" },
		{ "{(2+3)*4}", "20" },
		{ "{10-2-3}", "5" },
		{ "{-rank+1}", "-3" },
		{ "{rank%3}", "1" },
		{ "{-9223372036854775807-1}", "-9223372036854775808" },
		{ "{latest}", "/c/step {1}" },
		{ "--from={ latest }x", "--from=/c/step {1}x" },
		{ "{checkpoint}/{rank}", "/c/4" },
		/* not expressions */
		{ "{}", "{}" },
		{ "{\"a\": {\"b\": [1]}}", "{\"a\": {\"b\": [1]}}" },
		{ "a}b", "a}b" },
		{ "{{world}", "{world}" },
		{ "{{{world}", "{{world}" },
		{ "{{\"a\"}}", "{{\"a\"}}" },
		{ "{", "{" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hspmd_error err = { "" };
		char *out = NULL;
		assert_int_equal(hspmd_template_expand(cases[i][0], &values, &out, &err), HSPMD_TEMPLATE_DONE);
		assert_string_equal(out, cases[i][1]);
		free(out);
	}
}

static void test_mistakes(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		enum hspmd_template_result result;
		const char *says;
	} cases[] = {
		{ "{5/world}", HSPMD_TEMPLATE_UNEVEN, "{5/world}: 6 does not divide 5" },
		{ "{5/(world-6)}", HSPMD_TEMPLATE_UNEVEN, "division by zero" },
		{ "{5%(world-6)}", HSPMD_TEMPLATE_UNEVEN, "division by zero" },
		{ "${HOME}", HSPMD_TEMPLATE_WRONG, "{HOME}: unknown name \"HOME\"; expected world, nodes, rank, local_rank, latest or " },
		{ "{world", HSPMD_TEMPLATE_WRONG, "expected }" },
		{ "{(world}", HSPMD_TEMPLATE_WRONG, "expected )" },
		{ "{world nodes}", HSPMD_TEMPLATE_WRONG, "expected an operator or }" },
		{ "{2*}", HSPMD_TEMPLATE_WRONG, "expected a number, a name or (" },
		{ "{latest+1}", HSPMD_TEMPLATE_WRONG, "latest is a path" },
		{ "{1+checkpoint}", HSPMD_TEMPLATE_WRONG, "checkpoint is a path, and stands alone: {checkpoint}" },
		{ "{checkpoints}", HSPMD_TEMPLATE_WRONG, "unknown name \"checkpoints\"" },
		{ "{99999999999999999999}", HSPMD_TEMPLATE_WRONG, "too large" },
		{ "{9223372036854775807+1}", HSPMD_TEMPLATE_WRONG, "too large" },
		{ "{9223372036854775807*2}", HSPMD_TEMPLATE_WRONG, "too large" },
		{ "{(-9223372036854775807-1)/-1}", HSPMD_TEMPLATE_WRONG, "too large" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hspmd_error err = { "" };
		char *out = "";
		assert_int_equal(hspmd_template_expand(cases[i].text, &values, &out, &err), cases[i].result);
		assert_null(out);
		if (!strstr(err.text, cases[i].says))
			fail_msg("%s: expected \"%s\", got \"%s\"", cases[i].text, cases[i].says, err.text);
	}
	struct hspmd_error err;
	char deep[20000];
	memset(deep, '(', sizeof deep);
	deep[0] = '{';
	strcpy(deep + sizeof deep - 2, "}");
	assert_int_equal(hspmd_template_expand(deep, &values, NULL, &err), HSPMD_TEMPLATE_WRONG);
}

/* Reads the words of a command line, and returns those that are made of it; a failure begins with '!'. ignored: 200 bytes. */
static char *torchrun(const char *line, char *ignored)
{
	struct hspmd_error err = { "" };
	char *copy = strdup(line), *save = NULL, **argv = calloc(64, sizeof *argv), *text;
	int argc = 0;
	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
		argv[argc++] = strdup(word);
	int rc = hspmd_torchrun_read(&argv, &argc, ignored, 200, &err);
	text = rc < 0 ? hspmd_asprintf("!%s", err.text) : strdup("");
	assert_null(argv[argc]);
	for (int i = 0; i < argc; i++) {
		char *longer = rc < 0 ? strdup(text) : hspmd_asprintf("%s%s%s", text, i ? " " : "", argv[i]);
		free(text);
		text = longer;
		free(argv[i]);
	}
	free(argv);
	free(copy);
	return text;
}

static void test_torchrun(void **state)
{
	(void)state;
	static const char *const cases[][3] = {
		{ "python3 train.py --nnodes 2", "python3 train.py --nnodes 2", "" },
		{ "/v/bin/torchrun x.py", "/v/bin/python3 -u x.py", "" },
		{ "/v/bin/torchrun --nnodes=1:4 --nproc_per_node gpu --rdzv-backend=c10d --standalone x.py --nnodes 3",
		  "/v/bin/python3 -u x.py --nnodes 3", "--nnodes --nproc-per-node --rdzv-backend --standalone" },
		{ "/v/bin/torchrun -m pack.train a b", "/v/bin/python3 -u -m pack.train a b", "" },
		{ "/v/bin/torchrun --no-python ./train {world}", "./train {world}", "" },
		{ "/v/bin/torchrun --max-restarts 3 -- x.py -r", "/v/bin/python3 -u x.py -r", "--max-restarts" },
		{ "python3.11 -m torch.distributed.run --nnodes 2 x.py", "python3.11 -u x.py", "--nnodes" },
		{ "python -u -m torch.distributed.launch --use_env x.py", "python -u x.py", "--use-env" },
		{ "python -m torch.distributed.other x.py", "python -m torch.distributed.other x.py", "" },
		{ "/v/bin/torchrun --nnodes", "!torchrun: --nnodes: a value is missing", "--nnodes" },
		{ "/v/bin/torchrun --nnodes 2", "!torchrun: the script is missing", "--nnodes" },
		{ "/v/bin/torchrun --gpus 2 x.py", "!torchrun: unknown option '--gpus'", "" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char ignored[200];
		char *got = torchrun(cases[i][0], ignored);
		assert_string_equal(got, cases[i][1]);
		assert_string_equal(ignored, cases[i][2]);
		free(got);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_torchrun),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
