/* SPDX-License-Identifier: Apache-2.0 */
/* sbatch, salloc, srun: read all that the job names and all that the site says, refuse in words what cannot work, and put what was asked
 * into the environment: HSPMD_JOB (absolute path), HSPMD_NODES, HSPMD_POLICY, HSPMD_CHECKPOINT; HSPMD_CTLD, where hspmdctld listens and
 * as whom; and HSPMD_POLICIES, where the site's policies lie and whose files are believed ("UID@FOLDER"). */
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/format/job.h"
#include "common/format/policy.h"
#include "common/gres.h"
#include "common/range.h"
#include "policies/limits.h"
#include "policies/match.h"
#include "spank/plugin.h"

/* A submission from inside a job inherits that job's options from Slurm itself (with paths relative to a folder that may be another);
 * what they mean is in HSPMD_* already. */
static bool inherited(const struct hspmd_spank_asked *asked)
{
	const char *outer = getenv("SLURM_SPANK__SLURM_SPANK_OPTION_hspmd_hspmd");
	return outer && getenv("HSPMD_JOB") && asked->file && !strcmp(outer, asked->file);
}

static int check_asked(const struct hspmd_spank_asked *asked, struct hspmd_error *err)
{
	if (!asked->file)
		return hspmd_fail(err, "--hspmd-%s does nothing without --hspmd=FILE",
				  asked->nodes ? "nodes" : asked->policy ? "policy" : "checkpoint");
	if (!*asked->file)
		return hspmd_fail(err, "--hspmd needs the job file's name");
	if (asked->policy && !*asked->policy)
		return hspmd_fail(err, "--hspmd-policy needs a name");
	return 0;
}

/* Fewest and most nodes of --nodes; 0: not given or not known. Slurm writes "1-0" for "not given". */
static void slurm_nodes(int *min, int *max)
{
	char *text = hspmd_spank_slurm_option("nodes");
	*min = *max = 0;
	if (text)
		hspmd_range_parse(text, min, max, NULL);
	free(text);
}

static int check_nodes(struct hspmd_job *job, const struct hspmd_spank_asked *asked, struct hspmd_error *err)
{
	int slurm_min, slurm_max, min, max;
	if (asked->nodes) {
		if (hspmd_range_parse(asked->nodes, &min, &max, err) < 0)
			return hspmd_error_prefix(err, "--hspmd-nodes");
		if (min < job->elastic.min_nodes || max > job->elastic.max_nodes)
			return hspmd_fail(err, "--hspmd-nodes=%s goes beyond elastic.min_nodes (%d) or elastic.max_nodes (%d) of %s",
			                  asked->nodes, job->elastic.min_nodes, job->elastic.max_nodes, job->file);
		job->elastic.min_nodes = min;
		job->elastic.max_nodes = max;
	}
	slurm_nodes(&slurm_min, &slurm_max);
	const char *whose = asked->nodes ? "--hspmd-nodes" : job->file;
	if (slurm_max && slurm_max < job->elastic.min_nodes)
		return hspmd_fail(err, "--nodes asks for at most %d, but the job needs at least %d (%s)", slurm_max, job->elastic.min_nodes,
		                  whose);
	if (slurm_min > job->elastic.max_nodes)
		return hspmd_fail(err, "--nodes asks for at least %d, but the job takes at most %d (%s)", slurm_min, job->elastic.max_nodes,
		                  whose);
	return 0;
}

static int check_checkpoint(const char *folder, struct hspmd_error *err)
{
	struct stat st;
	if (*folder != '/')
		return hspmd_fail(err, "--hspmd-checkpoint: expected an absolute path, got \"%s\"", folder);
	if (stat(folder, &st) < 0)
		return errno == ENOENT
		               ? 0
		               : hspmd_fail_errno(err, "--hspmd-checkpoint: %s", folder); /* made by the job, perhaps on other nodes */
	if (!S_ISDIR(st.st_mode))
		return hspmd_fail(err, "--hspmd-checkpoint: %s: not a folder", folder);
	return access(folder, W_OK | X_OK) == 0 ? 0 : hspmd_fail_errno(err, "--hspmd-checkpoint: %s", folder);
}

/* ---- the site's policies */

/* Who is believed beside root; root where no user is named and there is no "slurm". */
static int site_owner(const struct hspmd_spank_args *args, uid_t *uid, struct hspmd_error *err)
{
	const struct passwd *owner = getpwnam(args->owner ? args->owner : "slurm");
	if (!owner && args->owner)
		return hspmd_fail(err, "plugstack.conf: owner=%s: no such user", args->owner);
	*uid = owner ? owner->pw_uid : 0;
	return 0;
}

static int read_policies(const struct hspmd_spank_args *args, struct hspmd_policy **p, struct hspmd_error *err)
{
	struct hspmd_policy_trust trust = { 0 };
	if (site_owner(args, &trust.owner, err) < 0)
		return -1;
	if (access(args->policies, F_OK) < 0 && errno == ENOENT)
		*p = hspmd_policy_new(err); /* a site without policies has no limits */
	else
		*p = hspmd_policy_read(args->policies, &trust, err);
	return *p ? 0 : -1;
}

static void ask_quote(const struct hspmd_spank_args *args, const char *partition, struct hspmd_policy_ask *ask)
{
	struct hspmd_spank_quote q;
	struct hspmd_error err;
	uid_t owner = 0;
	char *features = hspmd_spank_slurm_option("constraint"), *gres = hspmd_spank_slurm_option("gres");
	if (site_owner(args, &owner, &err) == 0 && hspmd_spank_quote(args, owner, ask->nodes, partition, features, gres, &q)) {
		ask->jobs_of_user = q.jobs + 1;
		ask->price_per_hour = q.price_per_hour;
	}
	free(features);
	free(gres);
}

/* Refused only where every rule that may come to hold refuses; the first one's words are told. */
static int check_candidates(const struct hspmd_policy *p, const struct hspmd_spank_args *args, const struct hspmd_policy_who *who,
			    struct hspmd_policy_ask *ask, const char *partition, struct hspmd_error *err)
{
	int rules[64];
	int n = hspmd_policy_candidates(p, who, rules, 64, err);
	if (n < 0)
		return -1;
	bool quote = false;
	for (int i = 0; i < n; i++)
		quote |= hspmd_policy_wants_quote(p, rules[i]);
	if (quote)
		ask_quote(args, partition, ask);
	for (int i = 0; i < n; i++)
		if (hspmd_policy_check_limits(p, rules[i], ask, i ? NULL : err) == 0)
			return 0;
	return -1;
}

/* Devices of a node and their type, as far as --gres or --gpus-per-node says. */
static void asked_devices(struct hspmd_policy_ask *ask, char *type, size_t size, const char *const *types)
{
	char *gres = hspmd_spank_slurm_option("gres"), *gpus = hspmd_spank_slurm_option("gpus-per-node"), text[256] = "";
	if (gpus)
		snprintf(text, sizeof text, "gpu:%s", gpus);
	else if (gres)
		snprintf(text, sizeof text, "%s", gres);
	int each = hspmd_gres_devices(text, type, size);
	if (strcmp(type, "cpu") != 0) {
		ask->devices = ask->nodes > INT_MAX / each ? INT_MAX : ask->nodes * each;
		ask->types = types;
		ask->type_count = strcmp(type, "gpu") != 0;
	}
	free(gres);
	free(gpus);
}

static int check_policy(const struct hspmd_job *job, const struct hspmd_spank_args *args, struct hspmd_error *err)
{
	struct hspmd_policy *p = NULL;
	if (read_policies(args, &p, err) < 0)
		return hspmd_error_prefix(err, "site policies");
	const struct passwd *me = getpwuid(getuid());
	char *user = me ? strdup(me->pw_name) : NULL;
	char *partition = hspmd_spank_slurm_option("partition"), *account = hspmd_spank_slurm_option("account"),
	     *qos = hspmd_spank_slurm_option("qos");
	struct hspmd_policy_who who = { .user = user, .account = account, .qos = qos, .policy = job->elastic.policy };
	who.partition = partition ? partition : args->default_partition;
	if (partition && strchr(partition, ','))
		who.partition = NULL; /* whichever starts the job first */
	int min = 0, max = 0;
	slurm_nodes(&min, &max);
	struct hspmd_policy_ask ask = { .nodes = job->elastic.min_nodes };
	if (job->elastic.max_nodes < INT_MAX)
		ask.nodes = job->elastic.max_nodes;
	else if (min > ask.nodes)
		ask.nodes = min;
	char type[64];
	const char *const types[] = { type };
	asked_devices(&ask, type, sizeof type, types);
	int rc = check_candidates(p, args, &who, &ask, partition ? partition : args->default_partition, err);
	free(user);
	free(partition);
	free(account);
	free(qos);
	hspmd_policy_destroy(p);
	return rc;
}

/* ---- precision */

static bool asks_for_gpus(void)
{
	static const char *const names[] = { "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task" };
	char type[64] = "cpu", *gres = hspmd_spank_slurm_option("gres");
	if (gres)
		hspmd_gres_devices(gres, type, sizeof type);
	bool any = strcmp(type, "cpu") != 0;
	free(gres);
	for (size_t i = 0; !any && i < sizeof names / sizeof *names; i++) {
		char *value = hspmd_spank_slurm_option(names[i]);
		any = value && *value;
		free(value);
	}
	return any;
}

/* No mistake: nodes may have GPUs that are nobody's GRES. Which devices there are is known when the job starts; its controller then says what it computes in. */
static void tell_precision(const struct hspmd_job *job)
{
	if (!hspmd_device_kind_computes(HSPMD_DEVICE_CPU, job->precision) && !asks_for_gpus())
		slurm_info("hspmd: %s: precision: CPUs cannot compute in %s, and the job asks for no GPUs: unless its nodes have some all the same, it computes in fp32",
			   job->file, hspmd_precision_words[job->precision]);
}

/* ---- what the job gets */

/* setenv is what salloc's shell and srun's tasks get and what sbatch exports; the job-control copy reaches the batch script's node even
 * under
 * --export=NONE, where remote.c makes it HSPMD_* again. */
static int carry(spank_t spank, const char *name, const char *value, struct hspmd_error *err)
{
	if (!value)
		return 0;
	if (setenv(name, value, 1) < 0)
		return hspmd_fail_errno(err, "%s", name);
	if (spank_job_control_setenv(spank, name, value, 1) != ESPANK_SUCCESS)
		return hspmd_fail(err, "Slurm does not take %s into the job's environment", name);
	return 0;
}

/* What an outer job or an earlier submission left must not be taken for this job's. */
static void forget(spank_t spank, const char *name)
{
	char old[64];
	snprintf(old, sizeof old, "SLURM_SPANK_%s", name);
	unsetenv(name);
	unsetenv(old);
	(void)spank_job_control_unsetenv(spank, name);
}

static int carry_all(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_asked *asked, const char *file,
		     struct hspmd_error *err)
{
	char ctld[512], policies[PATH_MAX + 16];
	uid_t owner = 0;
	bool any = access(args->policies, F_OK) == 0;
	if ((args->ctld || any) && site_owner(args, &owner, err) < 0)
		return -1;
	/* For the job's controller: what it may be grown to is the site's to say, too. */
	snprintf(policies, sizeof policies, "%u@%s", owner, args->policies);
	if (args->ctld && (size_t)snprintf(ctld, sizeof ctld, "%u@%s", owner, args->ctld) >= sizeof ctld)
		return hspmd_fail(err, "plugstack.conf: ctld=%.60s...: too long", args->ctld);
	const char *values[] = { file, asked->nodes, asked->policy, asked->checkpoint, args->ctld ? ctld : NULL, any ? policies : NULL };
	for (int i = 0; hspmd_spank_names[i]; i++)
		forget(spank, hspmd_spank_names[i]);
	for (int i = 0; hspmd_spank_names[i]; i++)
		if (carry(spank, hspmd_spank_names[i], values[i], err) < 0)
			return -1;
	return 0;
}

static int submit_job(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_asked *asked, struct hspmd_job *job,
		      struct hspmd_error *err)
{
	if (hspmd_job_check_files(job, NULL, err) < 0 || check_nodes(job, asked, err) < 0)
		return -1;
	if (asked->policy) {
		char *name = strdup(asked->policy);
		if (!name)
			return hspmd_fail_memory(err, "checking the job");
		free(job->elastic.policy);
		job->elastic.policy = name;
	}
	if (asked->checkpoint && check_checkpoint(asked->checkpoint, err) < 0)
		return -1;
	if (check_policy(job, args, err) < 0)
		return -1;
	tell_precision(job);
	/* A lost node must not end the job. Where Slurm does not take this from us, the user's own --no-kill does it. */
	(void)hspmd_spank_slurm_set("no-kill", "set");
	char *comment = hspmd_spank_slurm_option("comment");
	if (!comment)
		(void)hspmd_spank_slurm_set("comment", HSPMD_JOB_MARK);
	free(comment);
	return carry_all(spank, args, asked, job->file, err);
}

int hspmd_spank_submit(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_asked *asked, struct hspmd_error *err)
{
	if (!asked->file && !asked->nodes && !asked->policy && !asked->checkpoint)
		return 0;
	if (inherited(asked))
		return 0;
	if (check_asked(asked, err) < 0)
		return -1;
	struct hspmd_job *job = hspmd_job_read(asked->file, err);
	if (!job)
		return hspmd_error_prefix(err, "--hspmd");
	int rc = submit_job(spank, args, asked, job, err);
	hspmd_job_destroy(job);
	return rc;
}
