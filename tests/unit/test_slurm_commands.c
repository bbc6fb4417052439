/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that start steps, helpers and members: with a libslurm of this test's own, and with scripts in place of sbatch, salloc and
 * srun. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/durable.h"
#include "controller/slurm/job.h"
#include "controller/slurm/command.h"
#include "tests/unit/fake_slurm.h"

static struct hspmd_error err;
static char folder[] = "/tmp/hspmd-slurm.XXXXXX";

#define COUNT(a) (sizeof(a) / sizeof *(a))

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
	unsetenv("SLURM_CONF");
	unsetenv("SLURM_CONF_SERVER");
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
		cmocka_unit_test(a_step),
		cmocka_unit_test(a_member),
		cmocka_unit_test(grows_in_place),
	};
	return cmocka_run_group_tests(tests, begin, end);
}
