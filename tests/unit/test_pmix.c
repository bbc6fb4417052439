/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange between the tasks of a step, with a PMIx of this test's own, which answers as a case says: at once, late, or never. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pmix.h>

#include "runtime/topology/topology.h"

#define TASKS 3

enum silent { NOBODY, INIT, FENCE, GET };

static struct {
	enum silent silent;
	pmix_status_t fence, got; /* what they return, or answer */
	char key[64], text[64];   /* as this task has put it */
	int fences, finalized;
	pmix_op_cbfunc_t fence_answer; /* of a call that was not answered */
	pmix_value_cbfunc_t get_answer;
	void *context;
} pmix;

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* PMIx_Init waits here */
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool held, left;

pmix_status_t PMIx_Init(pmix_proc_t *proc, pmix_info_t info[], size_t count)
{
	(void)info, (void)count;
	pthread_mutex_lock(&gate);
	while (held)
		pthread_cond_wait(&opened, &gate);
	PMIX_LOAD_PROCID(proc, "step", 1);
	left = true;
	pthread_cond_signal(&opened);
	pthread_mutex_unlock(&gate);
	return PMIX_SUCCESS;
}

pmix_status_t PMIx_Finalize(const pmix_info_t info[], size_t count)
{
	(void)info, (void)count;
	pmix.finalized++;
	return PMIX_SUCCESS;
}

pmix_status_t PMIx_Put(pmix_scope_t scope, const char key[], pmix_value_t *value)
{
	(void)scope;
	snprintf(pmix.key, sizeof pmix.key, "%s", key);
	snprintf(pmix.text, sizeof pmix.text, "%s", value->data.string);
	return PMIX_SUCCESS;
}

pmix_status_t PMIx_Commit(void)
{
	return PMIX_SUCCESS;
}

pmix_status_t PMIx_Fence_nb(const pmix_proc_t procs[], size_t count, const pmix_info_t info[], size_t infos, pmix_op_cbfunc_t answer,
                            void *context)
{
	assert_int_equal(count, 1);
	assert_int_equal(procs[0].rank, PMIX_RANK_WILDCARD);
	assert_int_equal(infos, 1);
	assert_true(PMIX_CHECK_KEY(&info[0], PMIX_COLLECT_DATA));
	pmix.fences++;
	pmix.fence_answer = answer;
	pmix.context = context;
	if (pmix.silent != FENCE && pmix.fence == PMIX_SUCCESS)
		answer(PMIX_SUCCESS, context);
	return pmix.fence;
}

/* Every task has put its rank behind the text of this one, and the last an empty text. */
pmix_status_t PMIx_Get_nb(const pmix_proc_t *who, const char key[], const pmix_info_t info[], size_t infos, pmix_value_cbfunc_t answer,
                          void *context)
{
	char text[80];
	pmix_value_t v = { .type = PMIX_UINT32 };
	(void)info, (void)infos;
	if (!strcmp(key, PMIX_JOB_SIZE)) {
		v.data.uint32 = TASKS;
	} else if (!strcmp(key, PMIX_LOCAL_RANK)) {
		v.type = PMIX_UINT16;
		v.data.uint16 = 0;
	} else {
		assert_string_equal(key, pmix.key);
		snprintf(text, sizeof text, "%s%u", pmix.text, who->rank);
		v.type = PMIX_STRING;
		v.data.string = who->rank == TASKS - 1 ? (char *)"" : text;
		if (pmix.silent == GET) {
			pmix.get_answer = answer;
			pmix.context = context;
			return PMIX_SUCCESS;
		}
	}
	answer(pmix.got, pmix.got == PMIX_SUCCESS ? &v : NULL, context);
	return PMIX_SUCCESS;
}

static struct hspmd_pmix *join(enum silent silent)
{
	struct hspmd_error err = { "" };
	memset(&pmix, 0, sizeof pmix);
	struct hspmd_pmix *step = hspmd_pmix_open(&err);
	pmix.silent = silent;
	if (!step)
		fail_msg("%s", err.text);
	assert_int_equal(hspmd_pmix_size(step), TASKS);
	assert_int_equal(hspmd_pmix_rank(step), 1);
	return step;
}

/* Nobody ends before all others have what was exchanged, unless they do not come. */
static void leave(struct hspmd_pmix *step, bool waits)
{
	struct hspmd_error err = { "" };
	int fences = pmix.fences;
	assert_int_equal(hspmd_pmix_close(step, &err), 0);
	assert_int_equal(pmix.fences, fences + waits);
	assert_int_equal(pmix.finalized, 1);
}

static void test_all_come(void **state)
{
	struct hspmd_error err = { "" };
	char **all;
	(void)state;
	struct hspmd_pmix *step = join(NOBODY);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(hspmd_pmix_gather(step, i ? "b" : "a", &all, 60, &err), 0);
		assert_string_equal(all[0], i ? "b0" : "a0");
		assert_string_equal(all[1], i ? "b1" : "a1");
		assert_null(all[2]);
		hspmd_pmix_free_texts(all, TASKS);
	}
	pmix.fence = PMIX_OPERATION_SUCCEEDED; /* no answer follows */
	assert_int_equal(hspmd_pmix_gather(step, NULL, NULL, 60, &err), 0);
	pmix.got = PMIX_ERR_NOT_FOUND;
	assert_int_equal(hspmd_pmix_gather(step, "c", &all, 60, &err), -1);
	assert_non_null(strstr(err.text, "taking the other nodes' parts"));
	pmix.fence = PMIX_SUCCESS;
	leave(step, true);
	step = join(FENCE);
	leave(step, true);
	pmix.fence_answer(PMIX_SUCCESS, pmix.context);
}

/* A task of the step never comes: the others are told, do not wait again, and end PMIx properly. Its answer may still come. */
static void test_one_never_comes(void **state)
{
	struct hspmd_error err = { "" };
	char **all;
	(void)state;
	for (int late = 0; late < 2; late++) {
		struct hspmd_pmix *step = join(FENCE);
		assert_int_equal(hspmd_pmix_gather(step, "a", &all, 60, &err), -1);
		assert_null(all);
		assert_non_null(strstr(err.text, "waited 0.2 s for all tasks of this Slurm step, in vain: a task has not started, hangs"));
		assert_int_equal(pmix.fences, 1);
		assert_int_equal(hspmd_pmix_gather(step, "a", &all, 60, &err), -1);
		assert_non_null(strstr(err.text, "an earlier exchange"));
		assert_int_equal(pmix.fences, 1);
		if (late)
			pmix.fence_answer(PMIX_SUCCESS, pmix.context);
		leave(step, false);
		if (!late)
			pmix.fence_answer(PMIX_ERR_LOST_CONNECTION, pmix.context);
	}
}

static void test_a_part_never_comes(void **state)
{
	struct hspmd_error err = { "" };
	pmix_value_t v = { .type = PMIX_STRING, .data.string = (char *)"late" };
	char **all;
	(void)state;
	struct hspmd_pmix *step = join(GET);
	assert_int_equal(hspmd_pmix_gather(step, "a", &all, 60, &err), -1);
	assert_non_null(strstr(err.text, "waited 0.2 s for the other nodes' parts, in vain"));
	pmix.get_answer(PMIX_SUCCESS, &v, pmix.context);
	leave(step, true);
}

static void test_slurm_never_answers(void **state)
{
	struct hspmd_error err = { "" };
	(void)state;
	held = true;
	left = false;
	assert_null(hspmd_pmix_open(&err));
	assert_non_null(strstr(err.text, "waited 0.2 s for slurmstepd, in vain"));
	pthread_mutex_lock(&gate);
	held = false;
	pthread_cond_broadcast(&opened);
	while (!left)
		pthread_cond_wait(&opened, &gate);
	pthread_mutex_unlock(&gate);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_come),
		cmocka_unit_test(test_one_never_comes),
		cmocka_unit_test(test_a_part_never_comes),
		cmocka_unit_test(test_slurm_never_answers),
	};
	setenv("PMIX_RANK", "1", 1);
	setenv("HSPMD_PMIX_WAIT_S", "0.2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
