/* SPDX-License-Identifier: Apache-2.0 */
/* Warm interpreters of a stand-in: one is used for the next start unless something has changed, and none is left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "tests/unit/standin_agent.h"

static const char script[] =
        "import os, signal, sys\n"
        "warm = 'unittest' in sys.modules\n"
        "import unittest, reads_rank, own\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))\n"
        "text = f\"{'warm' if warm else 'cold'} {own.value} {__name__} {os.path.basename(__file__)} {sys.argv[1:]} {os.environ['RANK']}\"\n"
        "text += f\" {os.getppid()} {os.environ['HSPMD_GENERATION']} {'own' in unittest.__dict__}\"\n"
        "open(os.environ['HSPMD_CHECKPOINT'] + '/told.tmp', 'w').write(text + '\\n')\n"
        "os.rename(os.environ['HSPMD_CHECKPOINT'] + '/told.tmp', os.environ['HSPMD_CHECKPOINT'] + '/told')\n"
        "if os.path.exists('fails'):\n"
        "    raise ValueError('no')\n"
        "while True:\n"
        "    signal.pause()\n";

static void put(const char *name, const char *text)
{
	char *path = hspmd_asprintf("%s/%s", agent_folder, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	free(path);
}

/* What the script told at its start. how: "cold", "warm", or NULL: either. */
static void assert_told(struct agent *a, const char *how, int own, int rank)
{
	char *told = contents("checkpoint/told");
	char *wanted = hspmd_asprintf("%.4s %d __main__ train.py ['8'] %d %d %d False\n", how ? how : told, own, rank, (int)a->pid,
	                              (int)a->generation);
	assert_string_equal(told, wanted);
	free(told), free(wanted);
	char *path = hspmd_asprintf("%s/checkpoint/told", agent_folder);
	unlink(path);
	free(path);
}

static void assert_warm_once(struct agent *a, int own)
{
	agent_start_alone(a);
	assert_told(a, "warm", own, 0);
	assert_status(agent_stop(a), 85, false);
}

/* All processes of this test that are warm interpreters, or forks of one: 0: there are some. */
static int find_interpreters(const char *command)
{
	char *line = hspmd_asprintf("%s -f '[h]spmd_warm.*%s' >/dev/null", command, agent_folder);
	int status = system(line);
	free(line);
	return status;
}

/* A process that was just started does not have its own name yet, and one that was just ended is still there. */
static void await_interpreters(bool there)
{
	for (int tries = 0; (find_interpreters("pgrep") == 0) != there; tries++) {
		if (tries == 400)
			fail_msg("%s", there ? "there is no interpreter" : "an interpreter is left");
		nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
	}
}

/* Begins cold, and returns when there is an interpreter with all that the script has imported. */
static void start_until_warm(struct agent *a)
{
	char *list = hspmd_asprintf("%s/warm-modules", agent_folder);
	unlink(list);
	free(list);
	agent_start_alone(a);
	assert_told(a, "cold", 1, 0);
	free(contents("warm-modules"));
	assert_status(agent_stop(a), 85, false);
}

static void test_warm(void **state)
{
	(void)state;
	struct agent a;
	char *path = hspmd_asprintf("%s/site-packages", agent_folder), *train = hspmd_asprintf("%s/train.py", agent_folder);
	char *fails = hspmd_asprintf("%s/fails", agent_folder), *told = hspmd_asprintf("%s/checkpoint/told", agent_folder);
	unlink(told);
	mkdir(path, 0700);
	setenv("PYTHONPATH", path, 1);
	setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
	put("site-packages/reads_rank.py", "");
	put("own.py", "value = 1\n");
	put("train.py", script);
	agent_is_warm = true;
	agent_open_with(&a, json_pack("[ssss]", "python3", "-u", train, "{world*8}"), "TERM:60");
	start_until_warm(&a);
	assert_warm_once(&a, 1);
	/* An abort kills the command alone. A module of the user's own, and the place, are those of this start. */
	put("own.py", "value = 22\n");
	agent_start_alone(&a);
	assert_told(&a, "warm", 22, 0);
	agent_tell(&a, json_pack("{ss,sI}", "type", "abort", "generation", (json_int_t)a.generation));
	agent_expect(&a, "aborted");
	assert_warm_once(&a, 22);
	/* A failure is shown without frames of the interpreter. */
	put("fails", "");
	agent_start_alone(&a);
	json_t *m = agent_next(&a, "fault"), *tail = json_object_get(m, "tail");
	assert_string_equal(json_string_value(json_object_get(m, "text")), "rank 0: exit status 1: ValueError: no");
	for (size_t i = 0; i < json_array_size(tail); i++)
		assert_null(strstr(json_string_value(json_array_get(tail, i)), "<string>"));
	json_decref(m);
	unlink(fails), unlink(told);
	/* The script, and then a file of a library, have changed. */
	char *other = hspmd_asprintf("%s# another\n", script);
	put("own.py", "value = 1\n");
	put("train.py", other);
	start_until_warm(&a);
	assert_warm_once(&a, 1);
	put("site-packages/reads_rank.py", "import os\nos.environ.get('RANK')\n");
	start_until_warm(&a);
	assert_warm_once(&a, 1);
	/* This library reads the rank, which is another one now. */
	json_decref(agent_start_on(&a, json_pack("[ss]", "n0:0", "n1:0"), "started"));
	char *line = contents("checkpoint/told");
	assert_memory_equal(line, "cold", 4);
	unlink(told);
	assert_status(agent_stop(&a), 85, false);
	/* An interpreter that is gone. */
	assert_int_equal(find_interpreters("pkill -KILL"), 0);
	agent_start_alone(&a);
	assert_told(&a, NULL, 1, 0); /* another one may have imported what the file names already */
	await_interpreters(true);
	agent_quit(&a);
	await_interpreters(false);
	agent_is_warm = false;
	free(path), free(train), free(fails), free(told), free(other), free(line);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_warm) };
	return cmocka_run_group_tests(tests, agent_make_folder, agent_drop_folder);
}
