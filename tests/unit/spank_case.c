/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/spank_case.h"

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
#include "spank/plugin.h"
#include "tests/unit/fake_spank.h"

struct hspmd_error spank_err;
char spank_folder[] = "/tmp/hspmd-spank.XXXXXX";
char spank_job_path[128], spank_policies[128], spank_program[128], spank_owner[64];

void spank_write_file(const char *name, const char *text, mode_t mode)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", spank_folder, name);
	assert_int_equal(hspmd_durable_write(path, text, strlen(text), &spank_err), 0);
	assert_int_equal(chmod(path, mode), 0);
}

void spank_job_is(const char *elastic, const char *precision)
{
	char text[1024];
	snprintf(text, sizeof text,
	         "{\"format\": \"hspmd-job-1\", \"model\": \"config.json\", \"data\": {\"train\": [\"c.bin\"], \"kind\": \"bytes\"}, "
	         "\"seq_len\": 16, \"global_batch\": 4, \"steps\": 2, \"optimizer\": {\"type\": \"adamw\", \"lr\": 1e-3}, "
	         "\"precision\": \"%s\", \"elastic\": {%s}}",
	         precision, elastic);
	spank_write_file("job.json", text, 0600);
}

void spank_site_is(const char *rules)
{
	char text[1024], path[256];
	snprintf(path, sizeof path, "%s/site.json", spank_policies);
	unlink(path);
	rmdir(spank_policies);
	if (!*rules)
		return;
	assert_int_equal(mkdir(spank_policies, 0755), 0);
	snprintf(text, sizeof text, "{\"format\": \"hspmd-policy-1\", \"rules\": [%s]}", rules);
	spank_write_file("policies.d/site.json", text, 0644);
}

int spank_fresh(void **state)
{
	(void)state;
	fake_spank_reset();
	spank_job_is("\"min_nodes\": 1, \"max_nodes\": 4", "fp32");
	spank_site_is("");
	for (const char *const *name = hspmd_spank_env_names; *name; name++)
		unsetenv(*name);
	return 0;
}

struct hspmd_spank_args spank_args_of_site(void)
{
	return (struct hspmd_spank_args){ .policies = spank_policies, .owner = spank_owner, .hspmd = spank_program };
}

int spank_submit(const struct hspmd_spank_args *args, const char *file, const char *nodes, const char *policy, const char *checkpoint)
{
	const struct hspmd_spank_options o = { (char *)file, (char *)nodes, (char *)policy, (char *)checkpoint };
	spank_err.text[0] = '\0';
	return hspmd_spank_submit(NULL, args, &o, &spank_err);
}

void spank_accepts(const char *nodes, const char *policy, const char *checkpoint)
{
	struct hspmd_spank_args args = spank_args_of_site();
	if (spank_submit(&args, spank_job_path, nodes, policy, checkpoint))
		fail_msg("refused: %s", spank_err.text);
}

void spank_refuses(const char *nodes, const char *policy, const char *checkpoint, const char *why)
{
	struct hspmd_spank_args args = spank_args_of_site();
	assert_int_equal(spank_submit(&args, spank_job_path, nodes, policy, checkpoint), -1);
	if (!strstr(spank_err.text, why))
		fail_msg("expected \"%s\", got \"%s\"", why, spank_err.text);
	assert_null(getenv("HSPMD_JOB"));
}
