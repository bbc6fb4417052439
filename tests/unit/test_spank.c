/* SPDX-License-Identifier: Apache-2.0 */
/* The Slurm plugin without Slurm: its arguments and options, what it refuses at submission and with which words, what it puts into the
 * job's environment, and what it asks hspmdctld. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/format/job.h"
#include "common/format/kept_job.h"
#include "spank/plugin.h"
#include "tests/unit/fake_spank.h"
#include "tests/unit/spank_case.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- arguments of plugstack.conf */

static void arguments(void **state)
{
	char *const all[] = { "policies=/p", "owner=ann", "ctld=n0:1=2", "hspmd=/h", "default_partition=day" };
	struct hspmd_spank_args args;
	(void)state;
	assert_int_equal(hspmd_spank_args_read(&args, 0, NULL, &spank_err), 0);
	assert_string_equal(args.policies, HSPMD_SYSCONFDIR "/hspmd/policies.d");
	assert_string_equal(args.hspmd, HSPMD_BINDIR "/hspmd");
	assert_true(!args.owner && !args.ctld && !args.default_partition);
	assert_int_equal(hspmd_spank_args_read(&args, 5, all, &spank_err), 0);
	assert_string_equal(args.policies, "/p");
	assert_string_equal(args.owner, "ann");
	assert_string_equal(args.ctld, "n0:1=2");
	assert_string_equal(args.hspmd, "/h");
	assert_string_equal(args.default_partition, "day");
	static const struct {
		char *argument;
		const char *why;
	} wrong[] = {
		{ "policies", "expected key=value, got \"policies\"" },
		{ "=x", "expected key=value" },
		{ "policie=/p", "unknown argument \"policie\"" },
		{ "policiess=/p", "unknown argument \"policiess\"" },
		{ "ctld=", "ctld= needs a value" },
		{ "policies=p.d", "policies=p.d: expected an absolute path" },
	};
	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(hspmd_spank_args_read(&args, 1, (char *const *)&wrong[i].argument, &spank_err), -1);
		if (!strstr(spank_err.text, wrong[i].why))
			fail_msg("expected \"%s\", got \"%s\"", wrong[i].why, spank_err.text);
	}
}

/* ---- options of the command line */

static int give(const char *name, const char *value, int remote)
{
	for (int i = 0; i < fake_spank.option_count; i++)
		if (!strcmp(fake_spank.options[i].name, name))
			return fake_spank.options[i].cb(fake_spank.options[i].val, value, remote);
	fail_msg("no option %s is registered", name);
	return -1;
}

static void options(void **state)
{
	(void)state;
	assert_int_equal(hspmd_spank_options_register(NULL), 0);
	assert_int_equal(fake_spank.option_count, 4);
	for (int i = 0; i < 4; i++)
		assert_true(fake_spank.options[i].has_arg == 1 && fake_spank.options[i].usage && fake_spank.options[i].arginfo);
	assert_int_equal(give("hspmd", "a.json", 0), 0);
	assert_int_equal(give("hspmd", "b.json", 0), 0); /* the last one is taken */
	assert_int_equal(give("hspmd", "c.json", 1), 0); /* on the node they come from the environment */
	assert_int_equal(give("hspmd-nodes", "1-2", 0), 0);
	assert_int_equal(give("hspmd-policy", "x", 0), 0);
	assert_int_equal(give("hspmd-checkpoint", NULL, 0), 0);
	assert_string_equal(hspmd_spank_options.file, "b.json");
	assert_string_equal(hspmd_spank_options.nodes, "1-2");
	assert_string_equal(hspmd_spank_options.policy, "x");
	assert_string_equal(hspmd_spank_options.checkpoint, "");
	hspmd_spank_options_clear();
	assert_null(hspmd_spank_options.file);
	fake_spank.refuses_options = true;
	assert_int_equal(hspmd_spank_options_register(NULL), -1);
}

static void combinations_of_options(void **state)
{
	struct hspmd_spank_args args = spank_args_of_site();
	(void)state;
	/* A job without --hspmd is not touched. */
	setenv("HSPMD_JOB", "outer", 1);
	assert_int_equal(spank_submit(&args, NULL, NULL, NULL, NULL), 0);
	assert_string_equal(getenv("HSPMD_JOB"), "outer");
	unsetenv("HSPMD_JOB");
	static const struct {
		const char *file, *nodes, *policy, *checkpoint, *why;
	} wrong[] = {
		{ NULL, NULL, "p", NULL, "--hspmd-policy does nothing without --hspmd=FILE" },
		{ NULL, NULL, NULL, "/c", "--hspmd-checkpoint does nothing without --hspmd=FILE" },
		{ "", NULL, NULL, NULL, "--hspmd needs the job file's name" },
		{ "job.json", NULL, "", NULL, "--hspmd-policy needs a name" },
		{ "/no/job.json", NULL, NULL, NULL, "--hspmd: /no/job.json" },
	};
	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(spank_submit(&args, wrong[i].file, wrong[i].nodes, wrong[i].policy, wrong[i].checkpoint), -1);
		if (!strstr(spank_err.text, wrong[i].why))
			fail_msg("expected \"%s\", got \"%s\"", wrong[i].why, spank_err.text);
	}
	assert_string_equal(fake_spank_get(fake_spank.set, "no-kill") ? "set" : "", "");
	/* Without a file the script names the command. */
	assert_int_equal(spank_submit(&args, NULL, "1-3", NULL, NULL), 0);
	assert_string_equal(getenv("HSPMD_NODES"), "1-3");
	assert_null(getenv("HSPMD_JOB"));
}

static void numbers_of_nodes(void **state)
{
	(void)state;
	spank_refuses("4-1", NULL, NULL, "--hspmd-nodes: ");
	spank_refuses("2-5", NULL, NULL, "--hspmd-nodes=2-5 goes beyond");
	spank_refuses("two", NULL, NULL, "--hspmd-nodes: ");
	spank_job_is("\"min_nodes\": 2, \"max_nodes\": 4", "fp32");
	spank_refuses("1-3", NULL, NULL, "--hspmd-nodes=1-3 goes beyond");
	fake_spank_put(fake_spank.asked, "nodes", "1-1");
	spank_refuses(NULL, NULL, NULL, "--nodes asks for at most 1, but the job needs at least 2");
	fake_spank_put(fake_spank.asked, "nodes", "5");
	spank_refuses(NULL, NULL, NULL, "--nodes asks for at least 5, but the job takes at most 4");
	fake_spank_put(fake_spank.asked, "nodes", "4");
	spank_refuses("2-3", NULL, NULL, "the job takes at most 3 (--hspmd-nodes)");
	spank_accepts("2-4", NULL, NULL);
	fake_spank_put(fake_spank.asked, "nodes", "1-0"); /* Slurm's words for "not given" */
	spank_accepts(NULL, NULL, NULL);
	fake_spank_put(fake_spank.asked, "nodes", "unset");
	spank_accepts(NULL, NULL, NULL);
}

static void folders_for_checkpoints(void **state)
{
	char path[160];
	(void)state;
	spank_refuses(NULL, NULL, "ckpt", "--hspmd-checkpoint: expected an absolute path, got \"ckpt\"");
	spank_refuses(NULL, NULL, spank_job_path, "not a folder");
	snprintf(path, sizeof path, "%s/below", spank_job_path);
	spank_refuses(NULL, NULL, path, "--hspmd-checkpoint: ");
	snprintf(path, sizeof path, "%s/later", spank_folder);
	spank_accepts(NULL, NULL, path); /* the job makes it */
	assert_string_equal(getenv("HSPMD_CHECKPOINT"), path);
	spank_accepts(NULL, NULL, spank_folder);
}

/* ---- the job's environment */

static void environment(void **state)
{
	char expected[256];
	struct hspmd_spank_args args = spank_args_of_site();
	(void)state;
	/* What an outer job left is not this job's. */
	setenv("HSPMD_NODES", "7-8", 1);
	setenv("SLURM_SPANK_HSPMD_POLICY", "outer", 1);
	setenv("HSPMD_CTLD", "1@outer:1", 1);
	fake_spank_put(fake_spank.control, "HSPMD_CHECKPOINT", "/outer");
	spank_accepts(NULL, NULL, NULL);
	assert_string_equal(getenv("HSPMD_JOB"), spank_job_path);
	assert_string_equal(fake_spank_get(fake_spank.control, "HSPMD_JOB"), spank_job_path);
	assert_true(!getenv("HSPMD_NODES") && !getenv("SLURM_SPANK_HSPMD_POLICY") && !getenv("HSPMD_CTLD") && !getenv("HSPMD_POLICIES"));
	assert_string_equal(fake_spank_get(fake_spank.control, "HSPMD_CHECKPOINT"), "");
	assert_string_equal(fake_spank_get(fake_spank.set, "no-kill"), "set");
	assert_string_equal(fake_spank_get(fake_spank.set, "comment"), HSPMD_JOB_COMMENT);
	/* With everything; the user's own comment is kept. */
	spank_fresh(NULL);
	spank_site_is("{\"name\": \"all\"}");
	args.ctld = "n0:1234";
	fake_spank_put(fake_spank.asked, "comment", "mine");
	assert_int_equal(spank_submit(&args, spank_job_path, "1-2", "all", "/ckpt/x"), 0);
	assert_null(fake_spank_get(fake_spank.set, "comment"));
	snprintf(expected, sizeof expected, "%u@n0:1234", getuid());
	assert_string_equal(getenv("HSPMD_CTLD"), expected);
	assert_string_equal(fake_spank_get(fake_spank.control, "HSPMD_CTLD"), expected);
	snprintf(expected, sizeof expected, "%u@%s", getuid(), spank_policies);
	assert_string_equal(getenv("HSPMD_POLICIES"), expected);
	assert_string_equal(getenv("HSPMD_NODES"), "1-2");
	assert_string_equal(getenv("HSPMD_POLICY"), "all");
	assert_string_equal(getenv("HSPMD_CHECKPOINT"), "/ckpt/x");
	/* A submission inside a job passes on the outer job's options: they are not read again. */
	setenv("SLURM_SPANK__SLURM_SPANK_OPTION_hspmd_hspmd", "gone/job.json", 1);
	assert_int_equal(spank_submit(&args, "gone/job.json", NULL, NULL, NULL), 0);
	assert_int_equal(spank_submit(&args, "other/job.json", NULL, NULL, NULL), -1);
	unsetenv("SLURM_SPANK__SLURM_SPANK_OPTION_hspmd_hspmd");
	spank_fresh(NULL);
	fake_spank.refuses_environment = true;
	assert_int_equal(spank_submit(&args, spank_job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(spank_err.text, "HSPMD_JOB into the job's environment"));
	spank_fresh(NULL);
	char far[600];
	memset(far, 'x', sizeof far - 1);
	far[sizeof far - 1] = '\0';
	args.ctld = far;
	assert_int_equal(spank_submit(&args, spank_job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(spank_err.text, "too long"));
	args.ctld = NULL;
	args.owner = "no-such-user";
	assert_int_equal(spank_submit(&args, spank_job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(spank_err.text, "owner=no-such-user: no such user"));
}

/* On the node: variables come from the submission's, and the user's own are kept. */
static void environment_of_tasks(void **state)
{
	(void)state;
	fake_spank_put(fake_spank.environment, "SLURM_SPANK_HSPMD_JOB", "/a/job.json");
	fake_spank_put(fake_spank.environment, "SLURM_SPANK_HSPMD_NODES", "1-4");
	fake_spank_put(fake_spank.environment, "HSPMD_NODES", "2-3");
	hspmd_spank_export_env(NULL);
	assert_string_equal(fake_spank_get(fake_spank.environment, "HSPMD_JOB"), "/a/job.json");
	assert_string_equal(fake_spank_get(fake_spank.environment, "HSPMD_NODES"), "2-3");
	assert_null(fake_spank_get(fake_spank.environment, "HSPMD_POLICY"));
}

/* ---- the site's policies */

static void limits(void **state)
{
	struct hspmd_spank_args args = spank_args_of_site();
	(void)state;
	spank_site_is("{\"name\": \"day\", \"match\": {\"partition\": [\"day\"]}, \"limits\": {\"max_nodes\": 2}}, "
	              "{\"name\": \"named\", \"match\": {\"policy\": [\"named\"]}, \"limits\": {\"max_nodes\": 3}}, "
	              "{\"name\": \"typed\", \"match\": {\"account\": [\"typed\"]}, \"limits\": {\"max_devices\": 8, \"device_types\": "
	              "[\"a100\"]}}, "
	              "{\"name\": \"rest\"}");
	fake_spank_put(fake_spank.asked, "partition", "day");
	/* An upper bound beyond the limit is one that the job does not come to. */
	spank_accepts(NULL, NULL, NULL);
	assert_non_null(strstr(fake_spank.info, "job.json: policy day"));
	assert_non_null(strstr(fake_spank.info, "allows at most 2 of 4 nodes: the job does not grow beyond"));
	fake_spank.info[0] = '\0';
	spank_accepts("1-2", NULL, NULL);
	assert_string_equal(fake_spank.info, "");
	spank_accepts("2-3", NULL, NULL);
	assert_non_null(strstr(fake_spank.info, "--hspmd-nodes: policy day"));
	unsetenv("HSPMD_JOB");
	spank_refuses("3-4", NULL, NULL, "allows at most 2 nodes; 3 asked");
	fake_spank_put(fake_spank.asked, "nodes", "4-4");
	spank_refuses(NULL, NULL, NULL, "allows at most 2 nodes; 4 asked");
	fake_spank_put(fake_spank.asked, "nodes", "1-0");
	/* Slurm chooses among several partitions: only what every rule refuses is refused. */
	fake_spank_put(fake_spank.asked, "partition", "day,night");
	spank_accepts(NULL, NULL, NULL);
	fake_spank_put(fake_spank.asked, "partition", "night");
	spank_accepts(NULL, NULL, NULL);
	spank_site_is("{\"name\": \"day\", \"match\": {\"partition\": [\"day\"]}}, {\"name\": \"rest\", \"limits\": {\"max_nodes\": 2}}");
	unsetenv("HSPMD_JOB");
	spank_refuses("3-4", NULL, NULL, "2 nodes");
	fake_spank_put(fake_spank.asked, "partition", "day,night");
	spank_accepts("3-4", NULL, NULL);
	spank_site_is("{\"name\": \"day\", \"match\": {\"partition\": [\"day\"]}, \"limits\": {\"max_nodes\": 2}}, {\"name\": \"rest\"}");
	fake_spank_put(fake_spank.asked, "partition", "unset");
	args.default_partition = "day";
	assert_int_equal(spank_submit(&args, spank_job_path, "3-4", NULL, NULL), -1);
	assert_non_null(strstr(spank_err.text, "2 nodes"));
	spank_fresh(NULL);
	spank_site_is("{\"name\": \"named\", \"match\": {\"policy\": [\"named\"]}, \"limits\": {\"max_nodes\": 3}}, "
	              "{\"name\": \"typed\", \"match\": {\"account\": [\"typed\"]}, \"limits\": {\"max_devices\": 8, \"device_types\": "
	              "[\"a100\"]}}, "
	              "{\"name\": \"rest\"}");
	spank_refuses("4-4", "named", NULL, "at most 3 nodes");
	fake_spank_put(fake_spank.asked, "account", "typed");
	fake_spank_put(fake_spank.asked, "gres", "gpu:a100:3");
	spank_refuses("4-4", NULL, NULL, "allows at most 8 devices; 12 asked");
	spank_accepts(NULL, NULL, NULL);
	assert_non_null(strstr(fake_spank.info, "policy typed (site.json) allows at most 2 of 4 nodes"));
	fake_spank_put(fake_spank.asked, "gres", "gpu:a100:2");
	spank_accepts(NULL, NULL, NULL);
	fake_spank_put(fake_spank.asked, "gres", "unset");
	fake_spank_put(fake_spank.asked, "gpus-per-node", "v100:1");
	unsetenv("HSPMD_JOB");
	spank_refuses(NULL, NULL, NULL, "v100");
	spank_write_file("policies.d/site.json", "{\"format\": \"hspmd-policy-1\", \"rules\": 3}", 0644);
	spank_refuses(NULL, NULL, NULL, "site policies: ");
}

static void quotes(void **state)
{
	struct hspmd_spank_args args = spank_args_of_site();
	struct hspmd_spank_quote q = { 0 };
	char body[512], path[160], said[512] = "";
	(void)state;
	assert_false(hspmd_spank_quote(&args, 5, 3, NULL, NULL, NULL, &q)); /* the site has no hspmdctld */
	args.ctld = "n0:1234";
	snprintf(path, sizeof path, "%s/asked", spank_folder);
	/* It has answered when it closes its output. */
	snprintf(body, sizeof body, "#!/bin/sh\necho \"$@\" >%s\necho '{\"jobs\": 3, \"price_per_hour\": 7.5}'\nexec sleep 100 >&-\n",
	         path);
	spank_write_file("hspmd", body, 0700);
	assert_true(hspmd_spank_quote(&args, 5, 3, "day", NULL, "gpu:2", &q));
	assert_true(q.jobs == 3 && q.price_per_hour > 7.4 && q.price_per_hour < 7.6);
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	assert_non_null(fgets(said, sizeof said, f));
	fclose(f);
	assert_string_equal(said, "cluster --json --timeout 2 --ctld 5@n0:1234 --quote 3 --partition day --gres gpu:2\n");
	spank_site_is("{\"name\": \"few\", \"limits\": {\"max_jobs_per_user\": 4, \"max_price_per_hour\": 8}}");
	assert_int_equal(spank_submit(&args, spank_job_path, NULL, NULL, NULL), 0); /* three jobs and this one */
	spank_site_is("{\"name\": \"few\", \"limits\": {\"max_jobs_per_user\": 3}}");
	assert_int_equal(spank_submit(&args, spank_job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(spank_err.text, "3 elastic jobs"));
	spank_site_is("{\"name\": \"cheap\", \"limits\": {\"max_price_per_hour\": 7}}");
	assert_int_equal(spank_submit(&args, spank_job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(spank_err.text, "at most 7 an hour; 7.5 asked"));
	/* An answer that is none leaves the limits to the start of the job. */
	static const char *const answers[] = { "",
		                               "exit 3",
		                               "echo '[]'",
		                               "echo '{\"jobs\": -1, \"price_per_hour\": 1}'",
		                               "echo '{\"jobs\": 1.5, \"price_per_hour\": 1}'",
		                               "echo '{\"jobs\": 1}'",
		                               "yes '{\"jobs\": 1, \"price_per_hour\": 1}' | head -c 100000" };
	for (size_t i = 0; i < COUNT(answers); i++) {
		snprintf(body, sizeof body, "#!/bin/sh\n%s\n", answers[i]);
		spank_write_file("hspmd", body, 0700);
		if (hspmd_spank_quote(&args, 5, 3, NULL, NULL, NULL, &q))
			fail_msg("took the answer of: %s", answers[i]);
	}
	assert_int_equal(spank_submit(&args, spank_job_path, NULL, NULL, NULL), 0);
	args.hspmd = "/no/such/program";
	assert_int_equal(spank_submit(&args, spank_job_path, NULL, NULL, NULL), 0);
}

static void precision(void **state)
{
	(void)state;
	spank_accepts(NULL, NULL, NULL);
	assert_string_equal(fake_spank.info, "");
	spank_job_is("\"min_nodes\": 1, \"max_nodes\": 4", "bf16");
	spank_accepts(NULL, NULL, NULL);
	assert_non_null(strstr(fake_spank.info, "CPUs cannot compute in bf16"));
	static const char *const names[] = { "gres", "gpus", "gpus-per-node", "gpus-per-task" };
	for (size_t i = 0; i < COUNT(names); i++) {
		fake_spank_reset();
		fake_spank_put(fake_spank.asked, names[i], i ? "2" : "gpu:2");
		spank_accepts(NULL, NULL, NULL);
		assert_string_equal(fake_spank.info, "");
	}
	fake_spank_reset();
	fake_spank_put(fake_spank.asked, "gres", "license:2");
	spank_accepts(NULL, NULL, NULL);
	assert_non_null(strstr(fake_spank.info, "bf16"));
}

/* ---- the script, the model's size, the kept file */

static void scripts(void **state)
{
	(void)state;
	/* As Slurm says it to salloc and srun. */
	fake_spank_put(fake_spank.asked, "wrap", "invalid-context");
	fake_spank_put(fake_spank.asked, "array", "invalid-context");
	spank_accepts(NULL, NULL, NULL);
	unsetenv("HSPMD_JOB");
	fake_spank_put(fake_spank.asked, "array", "unset");
	fake_spank_put(fake_spank.asked, "wrap", "hostname");
	spank_refuses(NULL, NULL, NULL, "--wrap: \"hostname\" does not run hspmd");
	fake_spank_put(fake_spank.asked, "wrap", "exec hspmd run --resume");
	spank_accepts(NULL, NULL, NULL);
	unsetenv("HSPMD_JOB");
	fake_spank_put(fake_spank.asked, "array", "0-3");
	spank_refuses(NULL, NULL, NULL, "--array=0-3: every task of the array would train the same job");
}

/* A submission that names no script gets one, unless somebody gives sbatch one through its input. */
static void default_script(void **state)
{
	struct hspmd_spank_args args = { .policies = spank_policies, .hspmd = "/no/such/program" };
	char *with[] = { "sbatch", "-N2", "--hspmd=job.json" }, *without[] = { "sbatch", "--hspmd-nodes=2", "x" }, text[256] = "";
	int given[2], empty = open("/dev/null", O_RDONLY);
	(void)state;
	assert_int_equal(pipe(given), 0);
	assert_int_equal(hspmd_spank_default_script(&args, "sbatch", without, 3, empty), 0);
	assert_int_equal(hspmd_spank_default_script(&args, "salloc", with, 3, empty), 0);
	assert_int_equal(read(empty, text, sizeof text), 0);
	assert_int_equal(hspmd_spank_default_script(&args, "sbatch", with, 3, given[0]), 0);
	close(given[1]);
	assert_int_equal(read(given[0], text, sizeof text), 0);
	assert_int_equal(hspmd_spank_default_script(&args, "sbatch", with, 3, empty), 0);
	assert_true(read(empty, text, sizeof text - 1) > 0);
	assert_string_equal(text, "#!/bin/sh\nexec hspmd run\n"); /* found by PATH if it is not where it was installed */
	close(given[0]);
	close(empty);
}

static void memory(void **state)
{
	static const struct {
		const char *text;
		double bytes;
	} sizes[] = { { "4000", 4000 * 1048576.0 },
		      { "4000M", 4000 * 1048576.0 },
		      { "4g", 4294967296.0 },
		      { "2K", 2048 },
		      { "1T", 1099511627776.0 },
		      { "0", 0 },
		      { "all", 0 },
		      { NULL, 0 } };
	int nodes;
	(void)state;
	for (size_t i = 0; i < COUNT(sizes); i++)
		assert_true(fabs(hspmd_spank_memory(sizes[i].text) - sizes[i].bytes) < 1);
	assert_true(fabs(hspmd_spank_bytes_had("2 100\n1 1000+\n", 2, 0, &nodes) / 1048576 - 1100) < 1 && nodes == 2);
	assert_true(fabs(hspmd_spank_bytes_had("2 100\n1 1000\n", INT_MAX, 0, &nodes) / 1048576 - 1200) < 1 && nodes == 3);
	assert_true(fabs(hspmd_spank_bytes_had("2 100\n1 1000\n", 9, 150 * 1048576.0, &nodes) / 1048576 - 350) < 1 && nodes == 3);
	assert_true(hspmd_spank_bytes_had("", 9, 0, &nodes) <= 0 && nodes == 0);
	/* 1 layer of width 8: 3192 parameters of 16 bytes. */
	fake_spank_put(fake_spank.asked, "mem", "13K");
	spank_refuses("1-3", NULL, NULL, "need 5.107e-05 GB, and 3 nodes have 3.994e-05 GB by --mem: it cannot be trained there");
	spank_accepts("1-4", NULL, NULL);
	unsetenv("HSPMD_JOB");
	/* A job without max_nodes has what the policy allows, of those that may apply the one that allows most. */
	spank_job_is("\"min_nodes\": 1", "fp32");
	spank_accepts(NULL, NULL, NULL);
	unsetenv("HSPMD_JOB");
	spank_site_is("{\"name\": \"rest\", \"limits\": {\"max_nodes\": 3}}");
	spank_refuses(NULL, NULL, NULL,
	              "3 nodes have 3.994e-05 GB by --mem, and the site's policy allows no more: it cannot be trained there");
	spank_site_is("{\"name\": \"rest\", \"limits\": {\"max_nodes\": 4}}");
	spank_accepts(NULL, NULL, NULL);
	unsetenv("HSPMD_JOB");
	spank_site_is("");
	fake_spank_put(fake_spank.asked, "gres", "gpu:2");
	spank_accepts("1-3", NULL, NULL);
}

/* A job is trained as its file was at submission. */
static void kept_file(void **state)
{
	char copy[PATH_MAX], digest[32];
	bool changed;
	(void)state;
	spank_accepts(NULL, NULL, NULL);
	snprintf(copy, sizeof copy, "%s", getenv("HSPMD_JOB_COPY"));
	snprintf(digest, sizeof digest, "%s", getenv("HSPMD_JOB_DIGEST"));
	struct hspmd_job *j = hspmd_job_read_kept(spank_job_path, digest, copy, &changed, &spank_err);
	assert_true(j && !changed);
	hspmd_job_destroy(j);
	spank_job_is("\"min_nodes\": 3, \"max_nodes\": 4", "fp32");
	j = hspmd_job_read_kept(spank_job_path, digest, copy, &changed, &spank_err);
	assert_true(j && changed && j->elastic.min_nodes == 1);
	assert_string_equal(j->file, spank_job_path); /* to which its paths are relative */
	hspmd_job_destroy(j);
	assert_int_equal(unlink(spank_job_path), 0);
	j = hspmd_job_read_kept(spank_job_path, digest, copy, &changed, &spank_err);
	assert_true(j && changed);
	hspmd_job_destroy(j);
	spank_job_is("\"min_nodes\": 3, \"max_nodes\": 4", "fp32");
	spank_write_file("other.json", "{}", 0600);
	snprintf(copy, sizeof copy, "%s/other.json", spank_folder);
	assert_null(hspmd_job_read_kept(spank_job_path, digest, copy, &changed, &spank_err));
	assert_non_null(strstr(spank_err.text, "is not that file either: submit the job again"));
	assert_null(hspmd_job_read_kept(spank_job_path, digest, NULL, &changed, &spank_err));
	assert_non_null(strstr(spank_err.text, "could not be kept: submit the job again"));
	unlink(copy);
	assert_null(hspmd_job_read_kept(spank_job_path, digest, copy, &changed, &spank_err));
	assert_non_null(strstr(spank_err.text, "cannot be read: "));
	/* A folder that cannot be written: the digest alone. */
	setenv("HSPMD_CONTACTS", "/dev/null", 1);
	fake_spank_reset();
	spank_accepts(NULL, NULL, NULL);
	assert_null(getenv("HSPMD_JOB_COPY"));
	assert_non_null(getenv("HSPMD_JOB_DIGEST"));
	setenv("HSPMD_CONTACTS", spank_folder, 1);
}

/* ---- Slurm's entry points */

/* Exit status of sbatch, whose user gave these options. */
static int status_of_sbatch(const char *file, const char *nodes)
{
	pid_t pid = fork();
	if (!pid) {
		char argument[200], trusted[80];
		char *argv[] = { argument, trusted };
		snprintf(argument, sizeof argument, "policies=%s", spank_policies);
		snprintf(trusted, sizeof trusted, "owner=%s", spank_owner);
		bool bad = slurm_spank_init(NULL, 2, argv) || (file && give("hspmd", file, 0)) ||
		           (nodes && give("hspmd-nodes", nodes, 0)) || slurm_spank_init_post_opt(NULL, 2, argv);
		_exit(bad ? 9 : 0);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void entry_points(void **state)
{
	char *wrong[] = { "nonsense" };
	(void)state;
	assert_int_equal(status_of_sbatch(spank_job_path, NULL), 0);
	assert_int_equal(status_of_sbatch(NULL, NULL), 0);
	assert_int_equal(status_of_sbatch(spank_job_path, "9"), 1);
	/* On a node a bad job is not looked at: a failure there would drain it. */
	fake_spank.context = S_CTX_REMOTE;
	assert_int_equal(status_of_sbatch("/no/job.json", NULL), 0);
	fake_spank.context = S_CTX_SLURMD;
	assert_int_equal(slurm_spank_init(NULL, 1, wrong), 0);
	assert_int_equal(fake_spank.option_count, 0);
	assert_string_equal(fake_spank.error, "");
	/* A wrong plugstack.conf is reported, and no job fails of it. */
	fake_spank.context = S_CTX_ALLOCATOR;
	assert_int_equal(slurm_spank_init(NULL, 1, wrong), 0);
	assert_non_null(strstr(fake_spank.error, "plugstack.conf: expected key=value, got \"nonsense\"; the plugin does nothing"));
	assert_int_equal(fake_spank.option_count, 0);
	hspmd_spank_options.nodes = strdup("1");
	assert_int_equal(slurm_spank_init_post_opt(NULL, 0, NULL), 0);
	fake_spank_put(fake_spank.environment, "SLURM_SPANK_HSPMD_JOB", "/a/job.json");
	assert_int_equal(slurm_spank_user_init(NULL, 0, NULL), 0);
	assert_null(fake_spank_get(fake_spank.environment, "HSPMD_JOB"));
	assert_int_equal(slurm_spank_exit(NULL, 0, NULL), 0);
	assert_null(hspmd_spank_options.nodes);
}

static int begin(void **state)
{
	const struct passwd *me = getpwuid(getuid());
	char zeros[1000] = "";
	(void)state;
	if (!me || !mkdtemp(spank_folder))
		return -1;
	snprintf(spank_owner, sizeof spank_owner, "%s", me->pw_name);
	snprintf(spank_job_path, sizeof spank_job_path, "%s/job.json", spank_folder);
	snprintf(spank_policies, sizeof spank_policies, "%s/policies.d", spank_folder);
	snprintf(spank_program, sizeof spank_program, "%s/hspmd", spank_folder);
	memset(zeros, 'a', sizeof zeros - 1);
	setenv("HSPMD_CONTACTS", spank_folder, 1);
	spank_write_file("c.bin", zeros, 0600);
	spank_write_file(
	        "config.json",
	        "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 1, \"n_embd\": 8, \"n_positions\": 32, \"vocab_size\": 256}", 0600);
	return 0;
}

static int end(void **state)
{
	char command[64];
	(void)state;
	hspmd_spank_options_clear();
	snprintf(command, sizeof command, "rm -rf %s", spank_folder);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arguments),
		cmocka_unit_test_setup(options, spank_fresh),
		cmocka_unit_test_setup(combinations_of_options, spank_fresh),
		cmocka_unit_test_setup(numbers_of_nodes, spank_fresh),
		cmocka_unit_test_setup(folders_for_checkpoints, spank_fresh),
		cmocka_unit_test_setup(environment, spank_fresh),
		cmocka_unit_test_setup(environment_of_tasks, spank_fresh),
		cmocka_unit_test_setup(limits, spank_fresh),
		cmocka_unit_test_setup(quotes, spank_fresh),
		cmocka_unit_test_setup(precision, spank_fresh),
		cmocka_unit_test_setup(scripts, spank_fresh),
		cmocka_unit_test_setup(default_script, spank_fresh),
		cmocka_unit_test_setup(memory, spank_fresh),
		cmocka_unit_test_setup(kept_file, spank_fresh),
		cmocka_unit_test_setup(entry_points, spank_fresh),
	};
	return cmocka_run_group_tests(tests, begin, end);
}
