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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/durable.h"
#include "common/format/job.h"
#include "common/format/kept_job.h"
#include "spank/plugin.h"
#include "tests/unit/fake_spank.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static struct hspmd_error err;
static char folder[] = "/tmp/hspmd-spank.XXXXXX";
static char job_path[128], policies[128], program[128], owner[64];

static void write_file(const char *name, const char *text, mode_t mode)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(hspmd_durable_write(path, text, strlen(text), &err), 0);
	assert_int_equal(chmod(path, mode), 0);
}

static void job_is(const char *elastic, const char *precision)
{
	char text[1024];
	snprintf(text, sizeof text,
	         "{\"format\": \"hspmd-job-1\", \"model\": \"config.json\", \"data\": {\"train\": [\"c.bin\"], \"kind\": \"bytes\"}, "
	         "\"seq_len\": 16, \"global_batch\": 4, \"steps\": 2, \"optimizer\": {\"type\": \"adamw\", \"lr\": 1e-3}, "
	         "\"precision\": \"%s\", \"elastic\": {%s}}",
	         precision, elastic);
	write_file("job.json", text, 0600);
}

/* The site's policies: one rule, or none ("": there is no folder). */
static void site_is(const char *rules)
{
	char text[1024], path[256];
	snprintf(path, sizeof path, "%s/site.json", policies);
	unlink(path);
	rmdir(policies);
	if (!*rules)
		return;
	assert_int_equal(mkdir(policies, 0755), 0);
	snprintf(text, sizeof text, "{\"format\": \"hspmd-policy-1\", \"rules\": [%s]}", rules);
	write_file("policies.d/site.json", text, 0644);
}

/* Every test begins with a job of 1 to 4 nodes and a site without policies. */
static int fresh(void **state)
{
	(void)state;
	fake_spank_reset();
	job_is("\"min_nodes\": 1, \"max_nodes\": 4", "fp32");
	site_is("");
	for (const char *const *name = hspmd_spank_env_names; *name; name++)
		unsetenv(*name);
	return 0;
}

static struct hspmd_spank_args args_of_site(void)
{
	return (struct hspmd_spank_args){ .policies = policies, .owner = owner, .hspmd = program };
}

static int submit(const struct hspmd_spank_args *args, const char *file, const char *nodes, const char *policy, const char *checkpoint)
{
	const struct hspmd_spank_options o = { (char *)file, (char *)nodes, (char *)policy, (char *)checkpoint };
	err.text[0] = '\0';
	return hspmd_spank_submit(NULL, args, &o, &err);
}

static void accepts(const char *nodes, const char *policy, const char *checkpoint)
{
	struct hspmd_spank_args args = args_of_site();
	if (submit(&args, job_path, nodes, policy, checkpoint))
		fail_msg("refused: %s", err.text);
}

static void refuses(const char *nodes, const char *policy, const char *checkpoint, const char *why)
{
	struct hspmd_spank_args args = args_of_site();
	assert_int_equal(submit(&args, job_path, nodes, policy, checkpoint), -1);
	if (!strstr(err.text, why))
		fail_msg("expected \"%s\", got \"%s\"", why, err.text);
	assert_null(getenv("HSPMD_JOB"));
}

/* ---- arguments of plugstack.conf */

static void arguments(void **state)
{
	char *const all[] = { "policies=/p", "owner=ann", "ctld=n0:1=2", "hspmd=/h", "default_partition=day" };
	struct hspmd_spank_args args;
	(void)state;
	assert_int_equal(hspmd_spank_args_read(&args, 0, NULL, &err), 0);
	assert_string_equal(args.policies, HSPMD_SYSCONFDIR "/hspmd/policies.d");
	assert_string_equal(args.hspmd, HSPMD_BINDIR "/hspmd");
	assert_true(!args.owner && !args.ctld && !args.default_partition);
	assert_int_equal(hspmd_spank_args_read(&args, 5, all, &err), 0);
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
		assert_int_equal(hspmd_spank_args_read(&args, 1, (char *const *)&wrong[i].argument, &err), -1);
		if (!strstr(err.text, wrong[i].why))
			fail_msg("expected \"%s\", got \"%s\"", wrong[i].why, err.text);
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
	struct hspmd_spank_args args = args_of_site();
	(void)state;
	/* A job without --hspmd is not touched. */
	setenv("HSPMD_JOB", "outer", 1);
	assert_int_equal(submit(&args, NULL, NULL, NULL, NULL), 0);
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
		assert_int_equal(submit(&args, wrong[i].file, wrong[i].nodes, wrong[i].policy, wrong[i].checkpoint), -1);
		if (!strstr(err.text, wrong[i].why))
			fail_msg("expected \"%s\", got \"%s\"", wrong[i].why, err.text);
	}
	assert_string_equal(fake_spank_get(fake_spank.set, "no-kill") ? "set" : "", "");
	/* Without a file the script names the command. */
	assert_int_equal(submit(&args, NULL, "1-3", NULL, NULL), 0);
	assert_string_equal(getenv("HSPMD_NODES"), "1-3");
	assert_null(getenv("HSPMD_JOB"));
}

static void numbers_of_nodes(void **state)
{
	(void)state;
	refuses("4-1", NULL, NULL, "--hspmd-nodes: ");
	refuses("2-5", NULL, NULL, "--hspmd-nodes=2-5 goes beyond");
	refuses("two", NULL, NULL, "--hspmd-nodes: ");
	job_is("\"min_nodes\": 2, \"max_nodes\": 4", "fp32");
	refuses("1-3", NULL, NULL, "--hspmd-nodes=1-3 goes beyond");
	fake_spank_put(fake_spank.asked, "nodes", "1-1");
	refuses(NULL, NULL, NULL, "--nodes asks for at most 1, but the job needs at least 2");
	fake_spank_put(fake_spank.asked, "nodes", "5");
	refuses(NULL, NULL, NULL, "--nodes asks for at least 5, but the job takes at most 4");
	fake_spank_put(fake_spank.asked, "nodes", "4");
	refuses("2-3", NULL, NULL, "the job takes at most 3 (--hspmd-nodes)");
	accepts("2-4", NULL, NULL);
	fake_spank_put(fake_spank.asked, "nodes", "1-0"); /* Slurm's words for "not given" */
	accepts(NULL, NULL, NULL);
	fake_spank_put(fake_spank.asked, "nodes", "unset");
	accepts(NULL, NULL, NULL);
}

static void folders_for_checkpoints(void **state)
{
	char path[160];
	(void)state;
	refuses(NULL, NULL, "ckpt", "--hspmd-checkpoint: expected an absolute path, got \"ckpt\"");
	refuses(NULL, NULL, job_path, "not a folder");
	snprintf(path, sizeof path, "%s/below", job_path);
	refuses(NULL, NULL, path, "--hspmd-checkpoint: ");
	snprintf(path, sizeof path, "%s/later", folder);
	accepts(NULL, NULL, path); /* the job makes it */
	assert_string_equal(getenv("HSPMD_CHECKPOINT"), path);
	accepts(NULL, NULL, folder);
}

/* ---- the job's environment */

static void environment(void **state)
{
	char expected[256];
	struct hspmd_spank_args args = args_of_site();
	(void)state;
	/* What an outer job left is not this job's. */
	setenv("HSPMD_NODES", "7-8", 1);
	setenv("SLURM_SPANK_HSPMD_POLICY", "outer", 1);
	setenv("HSPMD_CTLD", "1@outer:1", 1);
	fake_spank_put(fake_spank.control, "HSPMD_CHECKPOINT", "/outer");
	accepts(NULL, NULL, NULL);
	assert_string_equal(getenv("HSPMD_JOB"), job_path);
	assert_string_equal(fake_spank_get(fake_spank.control, "HSPMD_JOB"), job_path);
	assert_true(!getenv("HSPMD_NODES") && !getenv("SLURM_SPANK_HSPMD_POLICY") && !getenv("HSPMD_CTLD") && !getenv("HSPMD_POLICIES"));
	assert_string_equal(fake_spank_get(fake_spank.control, "HSPMD_CHECKPOINT"), "");
	assert_string_equal(fake_spank_get(fake_spank.set, "no-kill"), "set");
	assert_string_equal(fake_spank_get(fake_spank.set, "comment"), HSPMD_JOB_COMMENT);
	/* With everything; the user's own comment is kept. */
	fresh(NULL);
	site_is("{\"name\": \"all\"}");
	args.ctld = "n0:1234";
	fake_spank_put(fake_spank.asked, "comment", "mine");
	assert_int_equal(submit(&args, job_path, "1-2", "all", "/ckpt/x"), 0);
	assert_null(fake_spank_get(fake_spank.set, "comment"));
	snprintf(expected, sizeof expected, "%u@n0:1234", getuid());
	assert_string_equal(getenv("HSPMD_CTLD"), expected);
	assert_string_equal(fake_spank_get(fake_spank.control, "HSPMD_CTLD"), expected);
	snprintf(expected, sizeof expected, "%u@%s", getuid(), policies);
	assert_string_equal(getenv("HSPMD_POLICIES"), expected);
	assert_string_equal(getenv("HSPMD_NODES"), "1-2");
	assert_string_equal(getenv("HSPMD_POLICY"), "all");
	assert_string_equal(getenv("HSPMD_CHECKPOINT"), "/ckpt/x");
	/* A submission inside a job passes on the outer job's options: they are not read again. */
	setenv("SLURM_SPANK__SLURM_SPANK_OPTION_hspmd_hspmd", "gone/job.json", 1);
	assert_int_equal(submit(&args, "gone/job.json", NULL, NULL, NULL), 0);
	assert_int_equal(submit(&args, "other/job.json", NULL, NULL, NULL), -1);
	unsetenv("SLURM_SPANK__SLURM_SPANK_OPTION_hspmd_hspmd");
	fresh(NULL);
	fake_spank.refuses_environment = true;
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(err.text, "HSPMD_JOB into the job's environment"));
	fresh(NULL);
	char far[600];
	memset(far, 'x', sizeof far - 1);
	far[sizeof far - 1] = '\0';
	args.ctld = far;
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(err.text, "too long"));
	args.ctld = NULL;
	args.owner = "no-such-user";
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(err.text, "owner=no-such-user: no such user"));
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
	struct hspmd_spank_args args = args_of_site();
	(void)state;
	site_is("{\"name\": \"day\", \"match\": {\"partition\": [\"day\"]}, \"limits\": {\"max_nodes\": 2}}, "
	        "{\"name\": \"named\", \"match\": {\"policy\": [\"named\"]}, \"limits\": {\"max_nodes\": 3}}, "
	        "{\"name\": \"typed\", \"match\": {\"account\": [\"typed\"]}, \"limits\": {\"max_devices\": 8, \"device_types\": "
	        "[\"a100\"]}}, "
	        "{\"name\": \"rest\"}");
	fake_spank_put(fake_spank.asked, "partition", "day");
	refuses(NULL, NULL, NULL, "allows at most 2 nodes; 4 asked");
	accepts("1-2", NULL, NULL);
	/* Slurm chooses among several partitions: only what every rule refuses is refused. */
	fake_spank_put(fake_spank.asked, "partition", "day,night");
	accepts(NULL, NULL, NULL);
	fake_spank_put(fake_spank.asked, "partition", "night");
	accepts(NULL, NULL, NULL);
	site_is("{\"name\": \"day\", \"match\": {\"partition\": [\"day\"]}}, {\"name\": \"rest\", \"limits\": {\"max_nodes\": 2}}");
	unsetenv("HSPMD_JOB");
	refuses(NULL, NULL, NULL, "2 nodes");
	fake_spank_put(fake_spank.asked, "partition", "day,night");
	accepts(NULL, NULL, NULL);
	site_is("{\"name\": \"day\", \"match\": {\"partition\": [\"day\"]}, \"limits\": {\"max_nodes\": 2}}, {\"name\": \"rest\"}");
	fake_spank_put(fake_spank.asked, "partition", "unset");
	args.default_partition = "day";
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(err.text, "2 nodes"));
	fresh(NULL);
	site_is("{\"name\": \"named\", \"match\": {\"policy\": [\"named\"]}, \"limits\": {\"max_nodes\": 3}}, "
	        "{\"name\": \"typed\", \"match\": {\"account\": [\"typed\"]}, \"limits\": {\"max_devices\": 8, \"device_types\": "
	        "[\"a100\"]}}, "
	        "{\"name\": \"rest\"}");
	refuses(NULL, "named", NULL, "at most 3 nodes");
	fake_spank_put(fake_spank.asked, "account", "typed");
	fake_spank_put(fake_spank.asked, "gres", "gpu:a100:3");
	refuses(NULL, NULL, NULL, "12"); /* devices on 4 nodes */
	fake_spank_put(fake_spank.asked, "gres", "gpu:a100:2");
	accepts(NULL, NULL, NULL);
	fake_spank_put(fake_spank.asked, "gres", "unset");
	fake_spank_put(fake_spank.asked, "gpus-per-node", "v100:1");
	unsetenv("HSPMD_JOB");
	refuses(NULL, NULL, NULL, "v100");
	write_file("policies.d/site.json", "{\"format\": \"hspmd-policy-1\", \"rules\": 3}", 0644);
	refuses(NULL, NULL, NULL, "site policies: ");
}

static void quotes(void **state)
{
	struct hspmd_spank_args args = args_of_site();
	struct hspmd_spank_quote q = { 0 };
	char body[512], path[160], said[512] = "";
	(void)state;
	assert_false(hspmd_spank_quote(&args, 5, 3, NULL, NULL, NULL, &q)); /* the site has no hspmdctld */
	args.ctld = "n0:1234";
	snprintf(path, sizeof path, "%s/asked", folder);
	/* It has answered when it closes its output. */
	snprintf(body, sizeof body, "#!/bin/sh\necho \"$@\" >%s\necho '{\"jobs\": 3, \"price_per_hour\": 7.5}'\nexec sleep 100 >&-\n",
	         path);
	write_file("hspmd", body, 0700);
	assert_true(hspmd_spank_quote(&args, 5, 3, "day", NULL, "gpu:2", &q));
	assert_true(q.jobs == 3 && q.price_per_hour > 7.4 && q.price_per_hour < 7.6);
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	assert_non_null(fgets(said, sizeof said, f));
	fclose(f);
	assert_string_equal(said, "cluster --json --timeout 2 --ctld 5@n0:1234 --quote 3 --partition day --gres gpu:2\n");
	site_is("{\"name\": \"few\", \"limits\": {\"max_jobs_per_user\": 4, \"max_price_per_hour\": 8}}");
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), 0); /* three jobs and this one */
	site_is("{\"name\": \"few\", \"limits\": {\"max_jobs_per_user\": 3}}");
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(err.text, "3 elastic jobs"));
	site_is("{\"name\": \"cheap\", \"limits\": {\"max_price_per_hour\": 7}}");
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), -1);
	assert_non_null(strstr(err.text, "at most 7 an hour; 7.5 asked"));
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
		write_file("hspmd", body, 0700);
		if (hspmd_spank_quote(&args, 5, 3, NULL, NULL, NULL, &q))
			fail_msg("took the answer of: %s", answers[i]);
	}
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), 0);
	args.hspmd = "/no/such/program";
	assert_int_equal(submit(&args, job_path, NULL, NULL, NULL), 0);
}

static void precision(void **state)
{
	(void)state;
	accepts(NULL, NULL, NULL);
	assert_string_equal(fake_spank.info, "");
	job_is("\"min_nodes\": 1, \"max_nodes\": 4", "bf16");
	accepts(NULL, NULL, NULL);
	assert_non_null(strstr(fake_spank.info, "CPUs cannot compute in bf16"));
	static const char *const names[] = { "gres", "gpus", "gpus-per-node", "gpus-per-task" };
	for (size_t i = 0; i < COUNT(names); i++) {
		fake_spank_reset();
		fake_spank_put(fake_spank.asked, names[i], i ? "2" : "gpu:2");
		accepts(NULL, NULL, NULL);
		assert_string_equal(fake_spank.info, "");
	}
	fake_spank_reset();
	fake_spank_put(fake_spank.asked, "gres", "license:2");
	accepts(NULL, NULL, NULL);
	assert_non_null(strstr(fake_spank.info, "bf16"));
}

/* ---- the script, the model's size, the kept file */

static void scripts(void **state)
{
	(void)state;
	/* As Slurm says it to salloc and srun. */
	fake_spank_put(fake_spank.asked, "wrap", "invalid-context");
	fake_spank_put(fake_spank.asked, "array", "invalid-context");
	accepts(NULL, NULL, NULL);
	unsetenv("HSPMD_JOB");
	fake_spank_put(fake_spank.asked, "array", "unset");
	fake_spank_put(fake_spank.asked, "wrap", "hostname");
	refuses(NULL, NULL, NULL, "--wrap: \"hostname\" does not run hspmd");
	fake_spank_put(fake_spank.asked, "wrap", "exec hspmd run --resume");
	accepts(NULL, NULL, NULL);
	unsetenv("HSPMD_JOB");
	fake_spank_put(fake_spank.asked, "array", "0-3");
	refuses(NULL, NULL, NULL, "--array=0-3: every task of the array would train the same job");
}

/* A submission that names no script gets one, unless somebody gives sbatch one through its input. */
static void default_script(void **state)
{
	struct hspmd_spank_args args = { .policies = policies, .hspmd = "/no/such/program" };
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
	refuses("1-3", NULL, NULL, "need 5.107e-05 GB, and 3 nodes have 3.994e-05 GB by --mem: it cannot be trained there");
	accepts("1-4", NULL, NULL);
	unsetenv("HSPMD_JOB");
	/* A job without max_nodes has what the policy allows, of those that may apply the one that allows most. */
	job_is("\"min_nodes\": 1", "fp32");
	accepts(NULL, NULL, NULL);
	unsetenv("HSPMD_JOB");
	site_is("{\"name\": \"rest\", \"limits\": {\"max_nodes\": 3}}");
	refuses(NULL, NULL, NULL, "3 nodes have 3.994e-05 GB by --mem, and the site's policy allows no more: it cannot be trained there");
	site_is("{\"name\": \"rest\", \"limits\": {\"max_nodes\": 4}}");
	accepts(NULL, NULL, NULL);
	unsetenv("HSPMD_JOB");
	site_is("");
	fake_spank_put(fake_spank.asked, "gres", "gpu:2");
	accepts("1-3", NULL, NULL);
}

/* A job is trained as its file was at submission. */
static void kept_file(void **state)
{
	char copy[PATH_MAX], digest[32];
	bool changed;
	(void)state;
	accepts(NULL, NULL, NULL);
	snprintf(copy, sizeof copy, "%s", getenv("HSPMD_JOB_COPY"));
	snprintf(digest, sizeof digest, "%s", getenv("HSPMD_JOB_DIGEST"));
	struct hspmd_job *j = hspmd_job_read_kept(job_path, digest, copy, &changed, &err);
	assert_true(j && !changed);
	hspmd_job_destroy(j);
	job_is("\"min_nodes\": 3, \"max_nodes\": 4", "fp32");
	j = hspmd_job_read_kept(job_path, digest, copy, &changed, &err);
	assert_true(j && changed && j->elastic.min_nodes == 1);
	assert_string_equal(j->file, job_path); /* to which its paths are relative */
	hspmd_job_destroy(j);
	assert_int_equal(unlink(job_path), 0);
	j = hspmd_job_read_kept(job_path, digest, copy, &changed, &err);
	assert_true(j && changed);
	hspmd_job_destroy(j);
	job_is("\"min_nodes\": 3, \"max_nodes\": 4", "fp32");
	write_file("other.json", "{}", 0600);
	snprintf(copy, sizeof copy, "%s/other.json", folder);
	assert_null(hspmd_job_read_kept(job_path, digest, copy, &changed, &err));
	assert_non_null(strstr(err.text, "is not that file either: submit the job again"));
	assert_null(hspmd_job_read_kept(job_path, digest, NULL, &changed, &err));
	assert_non_null(strstr(err.text, "could not be kept: submit the job again"));
	unlink(copy);
	assert_null(hspmd_job_read_kept(job_path, digest, copy, &changed, &err));
	assert_non_null(strstr(err.text, "cannot be read: "));
	/* A folder that cannot be written: the digest alone. */
	setenv("HSPMD_CONTACTS", "/dev/null", 1);
	fake_spank_reset();
	accepts(NULL, NULL, NULL);
	assert_null(getenv("HSPMD_JOB_COPY"));
	assert_non_null(getenv("HSPMD_JOB_DIGEST"));
	setenv("HSPMD_CONTACTS", folder, 1);
}

/* ---- Slurm's entry points */

/* Exit status of sbatch, whose user gave these options. */
static int status_of_sbatch(const char *file, const char *nodes)
{
	pid_t pid = fork();
	if (!pid) {
		char argument[200], trusted[80];
		char *argv[] = { argument, trusted };
		snprintf(argument, sizeof argument, "policies=%s", policies);
		snprintf(trusted, sizeof trusted, "owner=%s", owner);
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
	assert_int_equal(status_of_sbatch(job_path, NULL), 0);
	assert_int_equal(status_of_sbatch(NULL, NULL), 0);
	assert_int_equal(status_of_sbatch(job_path, "9"), 1);
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
	if (!me || !mkdtemp(folder))
		return -1;
	snprintf(owner, sizeof owner, "%s", me->pw_name);
	snprintf(job_path, sizeof job_path, "%s/job.json", folder);
	snprintf(policies, sizeof policies, "%s/policies.d", folder);
	snprintf(program, sizeof program, "%s/hspmd", folder);
	memset(zeros, 'a', sizeof zeros - 1);
	setenv("HSPMD_CONTACTS", folder, 1);
	write_file("c.bin", zeros, 0600);
	write_file("config.json",
	           "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 1, \"n_embd\": 8, \"n_positions\": 32, \"vocab_size\": 256}",
	           0600);
	return 0;
}

static int end(void **state)
{
	char command[64];
	(void)state;
	hspmd_spank_options_clear();
	snprintf(command, sizeof command, "rm -rf %s", folder);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arguments),
		cmocka_unit_test_setup(options, fresh),
		cmocka_unit_test_setup(combinations_of_options, fresh),
		cmocka_unit_test_setup(numbers_of_nodes, fresh),
		cmocka_unit_test_setup(folders_for_checkpoints, fresh),
		cmocka_unit_test_setup(environment, fresh),
		cmocka_unit_test_setup(environment_of_tasks, fresh),
		cmocka_unit_test_setup(limits, fresh),
		cmocka_unit_test_setup(quotes, fresh),
		cmocka_unit_test_setup(precision, fresh),
		cmocka_unit_test_setup(scripts, fresh),
		cmocka_unit_test_setup(default_script, fresh),
		cmocka_unit_test_setup(memory, fresh),
		cmocka_unit_test_setup(kept_file, fresh),
		cmocka_unit_test_setup(entry_points, fresh),
	};
	return cmocka_run_group_tests(tests, begin, end);
}
