/* SPDX-License-Identifier: Apache-2.0 */
/* A job as slurmctld reports it, changes of it, and the commands that start steps, helpers and members: with a libslurm of this test's own
 * and with scripts in place of sbatch, salloc and srun. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm_errno.h>

#include "common/durable.h"
#include "controller/slurm/job.h"
#include "controller/slurm/command.h"
#include "controller/slurm/srun_args.h"
#include "controller/slurm/start_cpus.h"
#include "tests/unit/fake_slurm.h"

static struct hspmd_error err;
static char folder[] = "/tmp/hspmd-slurm.XXXXXX";

#define COUNT(a) (sizeof(a) / sizeof *(a))

static struct hspmd_slurm_job *load(job_info_t *info)
{
	fake_slurm_reset();
	fake_slurm.jobs = (job_info_msg_t){ .job_array = info, .record_count = 1 };
	struct hspmd_slurm_job *j = hspmd_slurm_job_load(info->job_id, &err);
	assert_non_null(j);
	return j;
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

static void a_step(void **state)
{
	char *nodes[] = { "n1", "n2" };
	static const char *const command[] = { "hspmd", "agent", "two words", NULL };
	char *added[] = { "--container-image=a", "--label", NULL };
	char run[2048];
	struct hspmd_slurm_step step = { .job = 7, .nodes = nodes, .node_count = 2, .command = command };
	(void)state;
	for (int pmix = 0; pmix < 2; pmix++) {
		char all[4096] = "";
		step.pmix = pmix;
		step.srun_args = pmix ? added : NULL;
		step.gres = pmix ? "gpu:2,nic:1" : "";
		char **argv = hspmd_slurm_step_command(&step, &err);
		assert_non_null(argv);
		for (int i = 0; argv[i]; i++)
			snprintf(all + strlen(all), sizeof all - strlen(all), "%s\n", argv[i]);
		free(argv);
		assert_ptr_equal(strstr(all, "env\n--unset=SLURM_JOB_NODELIST\n"), all);
		/* What is meant for a user's own tasks takes nothing from the agents. */
		static const char *const gone[] = { "GPUS_PER_TASK", "CPUS_PER_TASK", "TRES_PER_TASK", "NTASKS_PER_NODE", "DISTRIBUTION" };
		for (size_t i = 0; i < COUNT(gone); i++) {
			char option[64];
			snprintf(option, sizeof option, "\n--unset=SLURM_%s\n", gone[i]);
			assert_non_null(strstr(all, option));
		}
		assert_non_null(strstr(all, "\nsrun\n--jobid=7\n--nodelist=n[1-2]\n--nodes=2\n--ntasks=2\n"));
		assert_non_null(strstr(all, "\n--no-kill\n"));
		assert_non_null(strstr(all, "\n--kill-on-bad-exit=0\n"));
		assert_non_null(strstr(all, pmix ? "\n--gres=gpu:2,nic:1\n--mpi=pmix\n" : "\n--cpu-bind=none\n--mpi=none\n"));
		char checked[1024], *words = strstr(all, "\n--input=none\n") + 14;
		snprintf(checked, sizeof checked, "%ssh\n-c\n%s\nhspmd\nagent\ntwo words\n", pmix ? "--container-image=a\n--label\n" : "",
		         hspmd_slurm_step_words[2]);
		assert_string_equal(words, checked);
	}
	/* On a node without the program the step says so; elsewhere it becomes the program. */
	snprintf(run, sizeof run,
	         "SLURMD_NODENAME=n2 sh -c '%s' /nowhere/hspmd agent 2>%s/lacks; test $? = 2 && "
	         "grep -q 'error: node n2 cannot be used: /nowhere/hspmd is not installed there' %s/lacks && "
	         "test \"$(sh -c '%s' /bin/echo 'a  b' c)\" = 'a  b c'",
	         hspmd_slurm_step_words[2], folder, folder, hspmd_slurm_step_words[2]);
	assert_int_equal(system(run), 0);
}

/* ---- commands of Slurm */

/* Puts a script in place of a command. It writes its arguments to the file "NAME.args", one per line. */
static void command_is(const char *name, const char *body)
{
	char path[256], text[1024];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	snprintf(text, sizeof text, "#!/bin/sh\nprintf '%%s\\n' \"$@\" >%s/%s.args\nenv >%s/%s.env\n%s\n", folder, name, folder, name,
	         body);
	assert_int_equal(hspmd_durable_write(path, text, strlen(text), &err), 0);
	assert_int_equal(chmod(path, 0700), 0);
}

/* The text of the file, in a buffer that the next call uses again; "" if there is none. */
static const char *told(const char *name)
{
	static char text[65536];
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
	text[n] = '\0';
	if (f)
		fclose(f);
	return text;
}

static struct hspmd_slurm_job like(void)
{
	return (struct hspmd_slurm_job){ .id = 7,
		                         .partition = "day",
		                         .account = "physics",
		                         .qos = "",
		                         .constraints = "ib&fast",
		                         .reservation = "",
		                         .gres = "gres:gpu:2,gres/nic:1",
		                         .node_count = 2,
		                         .cpus = 9,
		                         .node_memory_mb = 900,
		                         .end = time(NULL) + 3630 };
}

static bool has_line(const char *text, const char *line)
{
	size_t n = strlen(line);
	for (const char *at = text; (at = strstr(at, line)); at++)
		if ((at == text || at[-1] == '\n') && at[n] == '\n')
			return true;
	return false;
}

static void a_member(void **state)
{
	static const char *const command[] = { "/opt/h spmd", "agent", "it's", "$HOME `x` \"y\" \\", "", NULL };
	char *const without[] = { "n1", "n2" };
	struct hspmd_slurm_job job = like();
	(void)state;
	command_is("sbatch", "echo 'sbatch: warning: 12 is a number'\necho '4242;cluster'");
	setenv("SLURM_JOB_ID", "7", 1);
	setenv("SLURM_CONF", "/etc/s.conf", 1);
	setenv("SLURM_CONF_SERVER", "head", 1);
	setenv("SBATCH_PARTITION", "night", 1);
	setenv("SRUN_CPUS_PER_TASK", "1", 1); /* an agent's step in the member would take it */
	setenv("HSPMD_COOKIE", "secret", 1);
	setenv("UNTOUCHED", "yes", 1);
	assert_int_equal(hspmd_slurm_member_submit(&job, NULL, command, "/out/member-%j.log", 1, without, 2, &err), 4242);
	const char *env = told("sbatch.env");
	assert_true(has_line(env, "SLURM_CONF=/etc/s.conf") && has_line(env, "UNTOUCHED=yes"));
	assert_true(has_line(env, "SLURM_CONF_SERVER=head"));
	assert_null(strstr(env, "SLURM_JOB_ID"));
	assert_null(strstr(env, "SBATCH_PARTITION"));
	assert_null(strstr(env, "SRUN_CPUS_PER_TASK"));
	assert_null(strstr(env, "HSPMD_COOKIE"));
	const char *args = told("sbatch.args");
	static const char *const lines[] = { "--parsable",
		                             "--job-name=hspmd-member-7",
		                             "--output=/out/member-%j.log",
		                             "--no-requeue",
		                             "--nodes=1",
		                             "--ntasks-per-node=1",
		                             "--partition=day",
		                             "--time=60",
		                             "--cpus-per-task=4",
		                             "--account=physics",
		                             "--constraint=ib&fast",
		                             "--mem=900M",
		                             "--gres=gpu:2,nic:1",
		                             "--exclude=n[1-2]" };
	for (size_t i = 0; i < COUNT(lines); i++)
		if (!has_line(args, lines[i]))
			fail_msg("no %s in:\n%s", lines[i], args);
	assert_null(strstr(args, "--qos"));
	assert_null(strstr(args, "--reservation"));
	assert_null(strstr(args, "--exclusive"));
	/* A shell reads from the script the words that were given. */
	const char *wrap = strstr(args, "--wrap=") + 7;
	char script[2048];
	snprintf(script, sizeof script, "%.*s", (int)strcspn(wrap, "\n"), wrap);
	command_is("srun", "");
	assert_int_equal(system(script), 0);
	char expected[1024];
	const char *words = strstr(told("srun.args"), "--input=none\n");
	assert_non_null(words);
	snprintf(expected, sizeof expected, "sh\n-c\n%s\n/opt/h spmd\nagent\nit's\n$HOME `x` \"y\" \\\n\n", hspmd_slurm_step_words[2]);
	assert_string_equal(words + 13, expected);
	command_is("sbatch", "echo 'sbatch: warning: 12'; echo 'sbatch: error: no such partition'; echo 5; exit 1");
	assert_int_equal(hspmd_slurm_member_submit(&job, NULL, command, "x", 1, NULL, 0, &err), 0);
	assert_string_equal(err.text, "a member of job 7 cannot be submitted: sbatch: sbatch: error: no such partition");
	assert_null(strstr(told("sbatch.args"), "--exclude"));
	/* Many are one array. */
	assert_null(strstr(told("sbatch.args"), "--array"));
	command_is("sbatch", "echo 77");
	assert_int_equal(hspmd_slurm_member_submit(&job, NULL, command, "x", 300, NULL, 0, &err), 77);
	assert_true(has_line(told("sbatch.args"), "--array=1-300") && has_line(told("sbatch.args"), "--nodes=1"));
	command_is("sbatch", "echo hello");
	assert_int_equal(hspmd_slurm_member_submit(&job, NULL, command, "x", 1, NULL, 0, &err), 0);
	/* As the site wants: elsewhere, where nodes have other devices, and for a gap between other jobs. */
	char *added[] = { "--label", NULL };
	struct hspmd_slurm_member_terms terms = { "scavenger", "spot", 601, added };
	job.gres = "gres:gpu:a100:2,gres/nic:1,gpu:h100";
	command_is("sbatch", "echo 5");
	assert_int_equal(hspmd_slurm_member_submit(&job, &terms, command, "x", 1, NULL, 0, &err), 5);
	args = told("sbatch.args");
	assert_true(has_line(args, "--qos=scavenger") && has_line(args, "--partition=spot") && has_line(args, "--time=60") &&
	            has_line(args, "--time-min=11") && has_line(args, "--gres=gpu:3,nic:1") && has_line(args, "--account=physics"));
	assert_null(strstr(args, "--constraint"));
	assert_non_null(strstr(args, " --input=none '--label' 'sh' '-c' '"));
	terms = (struct hspmd_slurm_member_terms){ "", "day", 3600, NULL };
	assert_int_equal(hspmd_slurm_member_submit(&job, &terms, command, "x", 1, NULL, 0, &err), 5);
	args = told("sbatch.args");
	assert_true(has_line(args, "--partition=day") && has_line(args, "--gres=gpu:a100:2,nic:1,gpu:h100:1") &&
	            has_line(args, "--constraint=ib&fast"));
	assert_null(strstr(args, "--time-min"));
	assert_null(strstr(args, "--qos"));
	/* A whole node, for the minute that is left. */
	job.exclusive = true;
	job.node_memory_mb = 0;
	job.cpu_memory_mb = 50;
	job.qos = "high";
	job.reservation = "r";
	job.gres = "";
	job.end = time(NULL) + 70;
	command_is("sbatch", "echo 5");
	assert_int_equal(hspmd_slurm_member_submit(&job, NULL, command, "x", 1, NULL, 0, &err), 5);
	args = told("sbatch.args");
	assert_true(has_line(args, "--exclusive") && has_line(args, "--time=1") && has_line(args, "--mem-per-cpu=50M") &&
	            has_line(args, "--qos=high") && has_line(args, "--reservation=r"));
	assert_null(strstr(args, "--cpus-per-task"));
	assert_null(strstr(args, "--gres"));
}

static void grows_in_place(void **state)
{
	struct hspmd_slurm_job job = like();
	(void)state;
	fake_slurm_reset();
	fake_slurm.conf.sched_params = "bf_interval=3,permit_job_expansion2";
	assert_int_equal(hspmd_slurm_job_grow(&job, 2, 0, &err), -1);
	assert_non_null(strstr(err.text, "permit_job_expansion"));
	fake_slurm.conf.sched_params = "bf_interval=3,permit_job_expansion";
	job.holds_gres = true;
	assert_int_equal(hspmd_slurm_job_grow(&job, 2, 0, &err), -1);
	assert_non_null(strstr(err.text, "GRES"));
	job.holds_gres = false;
	command_is("salloc", "echo 'salloc: Granted job allocation 55'");
	assert_int_equal(hspmd_slurm_job_grow(&job, 2, 0, &err), 0);
	const char *args = told("salloc.args");
	assert_true(has_line(args, "--dependency=expand:7") && has_line(args, "--nodes=2") && has_line(args, "--no-shell"));
	assert_int_equal(fake_slurm.update_count, 2);
	assert_true(fake_slurm.updates[0].job == 55 && fake_slurm.updates[0].min_nodes == 0);
	assert_true(fake_slurm.updates[1].job == 7 && fake_slurm.updates[1].min_nodes == INFINITE);
	assert_int_equal(fake_slurm.killed_count, 0);
	/* What fails leaves no helper behind. */
	for (int i = 0; i < 2; i++) {
		fake_slurm.update_count = fake_slurm.killed_count = 0;
		fake_slurm.update_error[0] = i ? 0 : 21;
		fake_slurm.update_error[1] = i ? 22 : 0;
		assert_int_equal(hspmd_slurm_job_grow(&job, 2, 0, &err), -1);
		assert_non_null(strstr(err.text, i ? "job 7: taking the nodes: slurmctld says: error 22" : "job 55: giving its nodes up"));
		assert_true(fake_slurm.killed_count == 1 && fake_slurm.killed[0] == 55);
	}
	command_is("salloc", "echo 'salloc: Pending job allocation 56'; echo 'salloc: error: Unable to allocate resources'; exit 1");
	fake_slurm.update_count = 0;
	assert_int_equal(hspmd_slurm_job_grow(&job, 3, 0, &err), -1);
	assert_string_equal(err.text, "no 3 more nodes like those of job 7 at once: salloc: salloc: error: Unable to allocate resources");
	assert_int_equal(fake_slurm.update_count, 0);
}

static int begin(void **state)
{
	char path[4096];
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
	return setenv("PATH", path, 1);
}

static int end(void **state)
{
	char command[64];
	(void)state;
	snprintf(command, sizeof command, "rm -rf %s", folder);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job),
		cmocka_unit_test(states),
		cmocka_unit_test(gres),
		cmocka_unit_test(jobs_of_a_name),
		cmocka_unit_test(an_array_of_members),
		cmocka_unit_test(changes),
		cmocka_unit_test(settings),
		cmocka_unit_test(a_step),
		cmocka_unit_test(cpus_at_the_start),
		cmocka_unit_test(options_of_srun),
		cmocka_unit_test(a_member),
		cmocka_unit_test(grows_in_place),
	};
	return cmocka_run_group_tests(tests, begin, end);
}
