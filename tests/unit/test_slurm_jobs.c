/* SPDX-License-Identifier: Apache-2.0 */
/* A job as slurmctld reports it, and changes of it: with a libslurm of this test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm_errno.h>

#include "controller/slurm/job.h"
#include "controller/slurm/srun_args.h"
#include "controller/slurm/start_cpus.h"
#include "tests/unit/fake_slurm.h"

static struct hspmd_error err;

#define COUNT(a) (sizeof(a) / sizeof *(a))

static struct hspmd_slurm_job *load(job_info_t *info)
{
	fake_slurm_reset();
	fake_slurm.jobs = (job_info_msg_t){ .job_array = info, .record_count = 1 };
	struct hspmd_slurm_job *j = hspmd_slurm_job_load(info->job_id, &err);
	assert_non_null(j);
	return j;
}

/* libslurm would end this process. To be called before anything else initialises it. */
static void without_configuration(void **state)
{
	char printed[64], *const nodes[] = { "n0" };
	size_t size;
	(void)state;
	fake_slurm_reset();
	fake_slurm.init_error = "Could not establish a configuration source";
	FILE *out = tmpfile();
	assert_non_null(out);
	fputs("once", out); /* what this process has buffered, the child must not write */
	for (int i = 0; i < 2; i++) {
		assert_null(hspmd_slurm_job_load(7, &err));
		assert_non_null(
		        strstr(err.text, "Slurm's configuration: Could not establish a configuration source (no such file); hspmd needs"));
	}
	setenv("SLURM_CONF", "/none/slurm.conf", 1);
	assert_int_equal(hspmd_slurm_job_shrink(7, nodes, 1, &err), -1);
	assert_non_null(strstr(err.text, "which SLURM_CONF names: /none/slurm.conf: No such file or directory"));
	setenv("SLURM_CONF", "/dev/null", 1);
	assert_int_equal(hspmd_slurm_job_shrink(7, nodes, 1, &err), -1);
	assert_non_null(strstr(err.text, "configuration in /dev/null: "));
	unsetenv("SLURM_CONF");
	assert_int_equal(fake_slurm.initialised, 0);
	fflush(out);
	rewind(out);
	size = fread(printed, 1, sizeof printed, out);
	assert_int_equal(size, strlen("once"));
	fclose(out);
	/* It is there now. */
	fake_slurm_reset();
	for (int i = 0; i < 2; i++)
		assert_int_equal(hspmd_slurm_job_requeue(7, &err), 0);
	assert_int_equal(fake_slurm.initialised, 1);
}

static void a_job(void **state)
{
	job_info_t info = { .job_id = 7,
		            .job_state = JOB_RUNNING,
		            .user_id = 12,
		            .user_name = "ann",
		            .partition = "p",
		            .account = "a",
		            .qos = "q",
		            .batch_host = "n8",
		            .comment = "c",
		            .cluster = "k",
		            .name = "train",
		            .features = "ib",
		            .resv_name = "r",
		            .tres_per_node = "gres:gpu:2",
		            .nodes = "n[8-10]",
		            .num_cpus = 12,
		            .priority = 9,
		            .restart_cnt = 2,
		            .start_time = 3,
		            .end_time = 4,
		            .resize_time = 5,
		            .preempt_time = 6,
		            .shared = 0,
		            .pn_min_memory = MEM_PER_CPU | 700 };
	struct hspmd_slurm_job *j = load(&info);
	(void)state;
	assert_int_equal(j->id, 7);
	assert_int_equal(j->state, HSPMD_SLURM_RUNNING);
	const char *const texts[][2] = { { j->user, "ann" },       { j->partition, "p" },   { j->account, "a" },       { j->qos, "q" },
		                         { j->batch_host, "n8" },  { j->comment, "c" },     { j->cluster, "k" },       { j->name, "train" },
		                         { j->constraints, "ib" }, { j->reservation, "r" }, { j->gres, "gres:gpu:2" }, { j->over, "" } };
	for (size_t i = 0; i < COUNT(texts); i++)
		assert_string_equal(texts[i][0], texts[i][1]);
	assert_int_equal(j->node_count, 3);
	assert_string_equal(j->nodes[0], "n8");
	assert_string_equal(j->nodes[2], "n10");
	assert_true(j->uid == 12 && j->cpus == 12 && j->priority == 9 && j->restarts == 2);
	assert_true(j->start == 3 && j->end == 4 && j->resized == 5 && j->preempted == 6);
	assert_true(j->cpu_memory_mb == 700 && j->node_memory_mb == 0 && j->exclusive && !j->holds_gres);
	hspmd_slurm_job_destroy(j);
	info = (job_info_t){ .job_id = 8, .job_state = JOB_PENDING, .shared = 1, .pn_min_memory = 900 };
	j = load(&info);
	assert_true(j->state == HSPMD_SLURM_PENDING && j->node_count == 0 && !j->exclusive);
	assert_true(j->cpu_memory_mb == 0 && j->node_memory_mb == 900);
	hspmd_slurm_job_destroy(j);
	/* What it holds, node by node. */
	char *gres[] = { "gpu:a100:2(IDX:0-1),nic:1,gpu:h100:1(IDX:4)", "nic:1(IDX:7)" };
	info = (job_info_t){ .job_id = 8, .job_state = JOB_RUNNING, .nodes = "n[1-2]", .gres_detail_cnt = 2, .gres_detail_str = gres };
	j = load(&info);
	assert_string_equal(j->node_gpus[0], "0-1,4");
	assert_string_equal(j->node_gpus[1], "");
	/* A step must ask for GPUs that nobody requested per node. */
	assert_string_equal(j->node_gres[0], "gpu:3,nic:1");
	assert_string_equal(j->node_gres[1], "");
	hspmd_slurm_job_destroy(j);
	info.tres_per_node = "gres:nic:1";
	info.tres_per_task = "gres:gpu:1";
	j = load(&info);
	assert_string_equal(j->node_gres[0], "gpu:3,nic:1");
	hspmd_slurm_job_destroy(j);
	info.tres_per_node = "gres:gpu:2";
	j = load(&info);
	assert_string_equal(j->node_gres[0], "");
	hspmd_slurm_job_destroy(j);
	/* An end that Slurm has computed wrongly is no end. */
	info = (job_info_t){ .job_id = 8, .job_state = JOB_RUNNING, .start_time = 1790000000, .end_time = 1790000000 + 4294967236 };
	j = load(&info);
	assert_true(j->end == 0);
	assert_string_equal(j->user, "");
	hspmd_slurm_job_destroy(j);
	assert_null(hspmd_slurm_job_load(9, &err));
	assert_non_null(strstr(err.text, "job 9 is not known"));
	fake_slurm.jobs_error = 11;
	assert_null(hspmd_slurm_job_load(8, &err));
	assert_non_null(strstr(err.text, "job 8: slurmctld says: error 11"));
	fake_slurm.jobs_error = 0;
	info.nodes = "n[3-";
	assert_null(hspmd_slurm_job_load(8, &err));
}

static void states(void **state)
{
	static const struct {
		uint32_t slurm;
		enum hspmd_slurm_state state;
		const char *over;
	} cases[] = {
		{ JOB_PENDING, HSPMD_SLURM_PENDING, "" },
		{ JOB_RUNNING, HSPMD_SLURM_RUNNING, "" },
		{ JOB_RUNNING | JOB_COMPLETING, HSPMD_SLURM_ENDING, "" },
		{ JOB_SUSPENDED, HSPMD_SLURM_SUSPENDED, "" },
		{ JOB_COMPLETE, HSPMD_SLURM_ENDING, "has ended" },
		{ JOB_CANCELLED | JOB_COMPLETING, HSPMD_SLURM_ENDING, "was cancelled" },
		{ JOB_FAILED, HSPMD_SLURM_ENDING, "has failed" },
		{ JOB_TIMEOUT, HSPMD_SLURM_ENDING, "has timed out" },
		{ JOB_DEADLINE, HSPMD_SLURM_ENDING, "has timed out" },
		{ JOB_NODE_FAIL, HSPMD_SLURM_ENDING, "has lost its node" },
		{ JOB_PREEMPTED, HSPMD_SLURM_ENDING, "was preempted" },
		{ JOB_BOOT_FAIL, HSPMD_SLURM_ENDING, "could not boot its node" },
		{ JOB_OOM, HSPMD_SLURM_ENDING, "was out of memory" },
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		job_info_t info = { .job_id = 1, .job_state = cases[i].slurm };
		struct hspmd_slurm_job *j = load(&info);
		if (j->state != cases[i].state || strcmp(j->over, cases[i].over) != 0)
			fail_msg("state %#x: %d \"%s\"", cases[i].slurm, j->state, j->over);
		hspmd_slurm_job_destroy(j);
	}
}

/* GRES by which a job cannot grow in place, and those that a member requests. */
static void gres(void **state)
{
	char *first[] = { "gpu:fake:2(IDX:0-1),nic:1(S:0)" }, *none[] = { "" }, *second[] = { NULL, "gpu:1" };
	const struct {
		job_info_t info;
		bool holds;
		const char *gres;
	} cases[] = {
		{ { .tres_alloc_str = "cpu=4,gres/gpu=2", .tres_per_node = "gres:gpu:2" }, true, "gres:gpu:2" },
		{ { .tres_alloc_str = "cpu=4,mem=1G" }, false, "" },
		{ { .gres_total = "gpu:2" }, true, "" },
		{ { .tres_per_job = "gres:gpu:4", .gres_detail_cnt = 1, .gres_detail_str = first }, true, "gpu:fake:2,nic:1" },
		{ { .tres_per_task = "gres:gpu:1", .gres_detail_cnt = 1, .gres_detail_str = none }, false, "" },
		{ { .gres_detail_cnt = 2, .gres_detail_str = second }, true, "" }, /* on the second node alone */
		{ { .gres_detail_cnt = 1, .gres_detail_str = first }, true, "" },  /* requested in no way that we could repeat */
		{ { .tres_per_node = "gres:gpu:3", .tres_per_job = "gres:gpu:6", .gres_detail_cnt = 1, .gres_detail_str = first },
		  true,
		  "gres:gpu:3" },
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		job_info_t info = cases[i].info;
		info.job_id = 1;
		struct hspmd_slurm_job *j = load(&info);
		if (j->holds_gres != cases[i].holds || strcmp(j->gres, cases[i].gres) != 0)
			fail_msg("case %zu: holds %d, \"%s\"", i, j->holds_gres, j->gres);
		hspmd_slurm_job_destroy(j);
	}
}

static void jobs_of_a_name(void **state)
{
	job_info_t info[] = { { .job_id = 30, .name = "hspmd-member-7" },
		              { .job_id = 10, .name = "hspmd-member-77" },
		              { .job_id = 20 },
		              { .job_id = 9, .name = "hspmd-member-7", .job_state = JOB_PREEMPTED } };
	struct hspmd_slurm_job **jobs;
	char name[32];
	(void)state;
	fake_slurm_reset();
	fake_slurm.jobs = (job_info_msg_t){ .job_array = info, .record_count = COUNT(info) };
	hspmd_slurm_member_name(7, name);
	assert_int_equal(hspmd_slurm_jobs_named(1, name, &jobs, &err), 2);
	assert_true(jobs[0]->id == 9 && jobs[1]->id == 30); /* the oldest first */
	assert_string_equal(jobs[0]->over, "was preempted");
	hspmd_slurm_jobs_free(jobs, 2);
	fake_slurm.jobs_error = 5;
	assert_int_equal(hspmd_slurm_jobs_named(1, name, &jobs, &err), -1);
	assert_non_null(strstr(err.text, "error 5"));
}

/* An array of 300 members: tasks 1 and 2 run, 3 to 300 wait as one job, which has the array's number. In the end the last task has it. */
static void an_array_of_members(void **state)
{
	job_info_t info[] = {
		{ .job_id = 40,
		  .name = "m",
		  .array_job_id = 40,
		  .array_task_id = NO_VAL,
		  .array_task_str = "3-298,300%20",
		  .job_state = JOB_PENDING },
		{ .job_id = 41, .name = "m", .array_job_id = 40, .array_task_id = 1, .job_state = JOB_RUNNING },
		{ .job_id = 50, .name = "m", .job_state = JOB_RUNNING },
	};
	struct hspmd_slurm_job **jobs;
	(void)state;
	fake_slurm_reset();
	fake_slurm.jobs = (job_info_msg_t){ .job_array = info, .record_count = COUNT(info) };
	assert_int_equal(hspmd_slurm_jobs_named(1, "m", &jobs, &err), 3);
	assert_int_equal(jobs[0]->array_task_count, 297);
	assert_int_equal(jobs[1]->array_task_count, 1);
	assert_true(!jobs[2]->array && !jobs[2]->array_task_count);
	/* Never all of the array. */
	assert_int_equal(hspmd_slurm_member_cancel(jobs[0], &err), 0);
	assert_string_equal(fake_slurm.killed_tasks, "40_[3-298,300]");
	assert_int_equal(hspmd_slurm_member_cancel(jobs[1], &err), 0);
	assert_string_equal(fake_slurm.killed_tasks, "40_[1]");
	assert_int_equal(fake_slurm.killed_count, 0);
	assert_int_equal(hspmd_slurm_member_cancel(jobs[2], &err), 0);
	assert_true(fake_slurm.killed_count == 1 && fake_slurm.killed[0] == 50);
	hspmd_slurm_jobs_free(jobs, 3);
	info[0] = (job_info_t){ .job_id = 40, .name = "m", .array_job_id = 40, .array_task_id = 300, .job_state = JOB_RUNNING };
	assert_int_equal(hspmd_slurm_jobs_named(1, "m", &jobs, &err), 3);
	fake_slurm.kill_error = ESLURM_ACCESS_DENIED;
	assert_int_equal(hspmd_slurm_member_cancel(jobs[0], &err), -1);
	assert_string_equal(fake_slurm.killed_tasks, "40_[300]");
	hspmd_slurm_jobs_free(jobs, 3);
}

static void changes(void **state)
{
	char *const keep[] = { "n1", "n2", "n3", "login" };
	(void)state;
	fake_slurm_reset();
	assert_int_equal(hspmd_slurm_job_shrink(7, keep, 4, &err), 0);
	assert_int_equal(fake_slurm.updates[0].job, 7);
	assert_string_equal(fake_slurm.updates[0].nodes, "n[1-3],login");
	assert_int_equal(fake_slurm.updates[0].user, getuid()); /* auth/slurm refuses other values */
	fake_slurm.update_count = 0;
	fake_slurm.update_error[0] = 13;
	assert_int_equal(hspmd_slurm_job_shrink(7, keep, 4, &err), -1);
	assert_non_null(strstr(err.text, "job 7: giving nodes back: slurmctld says: error 13"));
	/* A job that has ended already is cancelled. */
	fake_slurm.kill_error = ESLURM_ALREADY_DONE;
	assert_int_equal(hspmd_slurm_job_cancel(8, &err), 0);
	fake_slurm.kill_error = ESLURM_INVALID_JOB_ID;
	assert_int_equal(hspmd_slurm_job_cancel(8, &err), 0);
	fake_slurm.kill_error = ESLURM_ACCESS_DENIED;
	assert_int_equal(hspmd_slurm_job_cancel(8, &err), -1);
	assert_int_equal(hspmd_slurm_job_requeue(8, &err), -1);
	assert_non_null(strstr(err.text, "job 8 cannot be requeued"));
}

static void settings(void **state)
{
	char *socket;
	bool munge;
	(void)state;
	fake_slurm_reset();
	fake_slurm.conf =
	        (slurm_conf_t){ .authtype = "auth/munge", .authinfo = "socket=/run/other.socket", .slurmctld_params = "a,rl_enable,b" };
	assert_int_equal(hspmd_slurm_munge_socket(&socket, &munge, &err), 0);
	assert_true(munge);
	assert_string_equal(socket, "/run/other.socket");
	free(socket);
	assert_true(hspmd_slurm_poll_interval() > 10);
	fake_slurm.conf =
	        (slurm_conf_t){ .authtype = "auth/slurm", .authinfo = "socket=/x", .slurmctld_params = "rl_enabled,no_rl_enable" };
	assert_int_equal(hspmd_slurm_munge_socket(&socket, &munge, &err), 0);
	assert_true(!munge && !socket);
	assert_true(hspmd_slurm_poll_interval() < 10);
}

/* Options that are hspmd's own are refused in words, under any name that srun would take for them. */
/* In order, out of order, a node that came later; no variables, and too few numbers. */
static void cpus_at_the_start(void **state)
{
	(void)state;
	struct hspmd_slurm_start_cpus s;
	hspmd_slurm_start_cpus_read(&s, "n[1-3],m7", "4(x2),2,8");
	assert_int_equal(hspmd_slurm_start_cpus_of(&s, "n1"), 4);
	assert_int_equal(hspmd_slurm_start_cpus_of(&s, "n2"), 4);
	assert_int_equal(hspmd_slurm_start_cpus_of(&s, "m7"), 8);
	assert_int_equal(hspmd_slurm_start_cpus_of(&s, "n3"), 2);
	assert_int_equal(hspmd_slurm_start_cpus_of(&s, "n4"), 0);
	hspmd_slurm_start_cpus_clear(&s);
	hspmd_slurm_start_cpus_read(&s, "n1", NULL);
	assert_int_equal(hspmd_slurm_start_cpus_of(&s, "n1"), 0);
	hspmd_slurm_start_cpus_clear(&s);
	hspmd_slurm_start_cpus_read(&s, "n[1-2]", "4");
	assert_int_equal(hspmd_slurm_start_cpus_of(&s, "n2"), 0);
	hspmd_slurm_start_cpus_clear(&s);
}

static void options_of_srun(void **state)
{
	(void)state;
	static const char *const wrong[][2] = {
		{ "--nodelist=n1", "--nodelist: hspmd starts one agent on each node" },
		{ "--container-image=x --nodel=n1", "--nodel: hspmd starts one agent" },
		{ "--gres=gpu:1", "--gres: an agent must see all that the job holds" },
		{ "--cpus-per-task=2", "--cpus-per-task: an agent must see all" },
		{ "--kill-on-bad-exit", "--kill-on-bad-exit: hspmd itself decides" },
		{ "--export=NONE", "--export: hspmd itself decides" },
		{ "-n 4", "'-n': expected --name" },
		{ "hostname", "'hostname': expected --name" },
		{ "--label --", "'--': expected --name" },
	};
	char **list = NULL;
	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(hspmd_srun_args_add(&list, wrong[i][0], &err), -1);
		if (strncmp(err.text, wrong[i][1], strlen(wrong[i][1])) != 0)
			fail_msg("%s: expected %s, got %s", wrong[i][0], wrong[i][1], err.text);
		assert_null(list[0]);
	}
	assert_int_equal(hspmd_srun_args_add(&list, " --container-image=a  --container-mounts=/x:/x ", &err), 0);
	assert_int_equal(hspmd_srun_args_add(&list, "--label", &err), 0);
	assert_int_equal(hspmd_srun_args_add(&list, "", &err), 0);
	assert_int_equal(hspmd_srun_args_add(&list, "--label -x", &err), -1);
	assert_string_equal(list[0], "--container-image=a");
	assert_string_equal(list[1], "--container-mounts=/x:/x");
	assert_string_equal(list[2], "--label");
	assert_null(list[3]);
	hspmd_srun_args_free(list);
	hspmd_srun_args_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_configuration), /* first */
		cmocka_unit_test(a_job),
		cmocka_unit_test(states),
		cmocka_unit_test(gres),
		cmocka_unit_test(jobs_of_a_name),
		cmocka_unit_test(an_array_of_members),
		cmocka_unit_test(changes),
		cmocka_unit_test(settings),
		cmocka_unit_test(cpus_at_the_start),
		cmocka_unit_test(options_of_srun),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
