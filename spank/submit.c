/* SPDX-License-Identifier: Apache-2.0 */
/* sbatch, salloc, srun: reads all files that the job names (with --hspmd-nodes alone there is none: the script names a command) and the
 * site's policies, refuses a job that cannot work, and puts the options into the environment: HSPMD_JOB (absolute path), HSPMD_NODES,
 * HSPMD_POLICY, HSPMD_CHECKPOINT; HSPMD_CTLD, hspmdctld's user and address ("UID@HOST:PORT"); and HSPMD_POLICIES, the trusted owner and
 * folder of the site's policies ("UID@FOLDER"); HSPMD_JOB_DIGEST and HSPMD_JOB_COPY, the job file as it is now (kept_job.h). */
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/format/device_traits.h"
#include "common/alloc.h"
#include "common/format/job.h"
#include "common/format/job_command.h"
#include "common/format/kept_job.h"
#include "common/format/policy.h"
#include "common/gres.h"
#include "common/range.h"
#include "policies/limits.h"
#include "policies/match.h"
#include "runtime/model/model.h"
#include "spank/plugin.h"

/* Returns true if the options come from an outer job: Slurm passes them on to submissions inside it (with paths relative to a folder that
 * may be another one), and their values are in HSPMD_* already. */
static bool inherited(const struct hspmd_spank_options *options)
{
	const char *outer = getenv("SLURM_SPANK__SLURM_SPANK_OPTION_hspmd_hspmd"),
	           *outer_nodes = getenv("SLURM_SPANK__SLURM_SPANK_OPTION_hspmd_hspmd_nodes");
	if (!options->file)
		return outer_nodes && getenv("HSPMD_NODES") && options->nodes && !strcmp(outer_nodes, options->nodes);
	return outer && getenv("HSPMD_JOB") && !strcmp(outer, options->file);
}

static int check_options(const struct hspmd_spank_options *options, struct hspmd_error *err)
{
	if (!options->file && !options->nodes)
		return hspmd_fail(err, "--hspmd-%s does nothing without --hspmd=FILE or --hspmd-nodes=MIN-MAX",
		                  options->policy ? "policy" : "checkpoint");
	if (options->file && !*options->file)
		return hspmd_fail(err, "--hspmd needs the job file's name");
	if (options->policy && !*options->policy)
		return hspmd_fail(err, "--hspmd-policy needs a name");
	return 0;
}

/* Reads the fewest and most nodes of --nodes; 0: not given or not known. Slurm writes "1-0" for "not given". */
static void slurm_nodes(int *min, int *max)
{
	char *text = hspmd_spank_slurm_option("nodes");
	*min = *max = 0;
	if (text)
		hspmd_range_parse(text, min, max, NULL);
	free(text);
}

static int check_nodes(struct hspmd_job *job, const struct hspmd_spank_options *options, struct hspmd_error *err)
{
	int slurm_min, slurm_max, min, max;
	if (options->nodes) {
		if (hspmd_range_parse(options->nodes, &min, &max, err) < 0)
			return hspmd_error_prefix(err, "--hspmd-nodes");
		if (min < job->elastic.min_nodes || max > job->elastic.max_nodes)
			return hspmd_fail(err, "--hspmd-nodes=%s goes beyond elastic.min_nodes (%d) or elastic.max_nodes (%d) of %s",
			                  options->nodes, job->elastic.min_nodes, job->elastic.max_nodes, job->file);
		job->elastic.min_nodes = min;
		job->elastic.max_nodes = max;
	}
	slurm_nodes(&slurm_min, &slurm_max);
	const char *whose = options->nodes ? "--hspmd-nodes" : job->file;
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
		               : hspmd_fail_errno(err, "--hspmd-checkpoint: %s", folder); /* the job creates it, perhaps on other nodes */
	if (!S_ISDIR(st.st_mode))
		return hspmd_fail(err, "--hspmd-checkpoint: %s: not a folder", folder);
	return access(folder, W_OK | X_OK) == 0 ? 0 : hspmd_fail_errno(err, "--hspmd-checkpoint: %s", folder);
}

/* ---- the site's policies */

/* Sets the user who is trusted in addition to root; root if no user is configured and there is no "slurm". */
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
		*p = hspmd_policy_create(err); /* a site without policies has no limits */
	else
		*p = hspmd_policy_read(args->policies, &trust, err);
	return *p ? 0 : -1;
}

static void query_quote(const struct hspmd_spank_args *args, const char *partition, struct hspmd_policy_request *request)
{
	struct hspmd_spank_quote q;
	struct hspmd_error err;
	uid_t owner = 0;
	char *features = hspmd_spank_slurm_option("constraint"), *gres = hspmd_spank_slurm_option("gres");
	if (site_owner(args, &owner, &err) == 0 && hspmd_spank_quote(args, owner, request->nodes, partition, features, gres, &q)) {
		request->jobs_of_user = q.jobs + 1;
		request->price_per_hour = q.price_per_hour;
	}
	free(features);
	free(gres);
}

/* Fails only if every rule that may apply refuses the job; err is that of the first one. The others set the bound. */
static int check_candidates(const struct hspmd_policy *p, const struct hspmd_spank_args *args, const struct hspmd_policy_subject *subject,
                            struct hspmd_policy_request *request, const char *partition, int asked, struct hspmd_policy_bound *bound,
                            struct hspmd_error *err)
{
	int rules[64];
	bound->nodes = 0;
	int n = hspmd_policy_candidates(p, subject, rules, 64, err);
	if (n < 0)
		return -1;
	bool quote = false;
	for (int i = 0; i < n; i++)
		quote |= hspmd_policy_wants_quote(p, rules[i]);
	if (quote)
		query_quote(args, partition, request);
	for (int i = 0; i < n; i++)
		if (hspmd_policy_check_limits(p, rules[i], request, i ? NULL : err) == 0)
			hspmd_policy_widen_bound(p, rules[i], asked, request->devices / request->nodes, bound);
	return bound->nodes ? 0 : -1;
}

/* Fills in the devices and their type, if --gres or --gpus-per-node gives them. */
static void requested_devices(struct hspmd_policy_request *request, char *type, size_t size, const char *const *types)
{
	char *gres = hspmd_spank_slurm_option("gres"), *gpus = hspmd_spank_slurm_option("gpus-per-node"), text[256] = "";
	if (gpus)
		snprintf(text, sizeof text, "gpu:%s", gpus);
	else if (gres)
		snprintf(text, sizeof text, "%s", gres);
	int each = hspmd_gres_devices(text, type, size);
	if (strcmp(type, "cpu") != 0) {
		request->devices = request->nodes > INT_MAX / each ? INT_MAX : request->nodes * each;
		request->types = types;
		request->type_count = strcmp(type, "gpu") != 0;
	}
	free(gres);
	free(gpus);
}

/* The job's fewest nodes must be allowed. Its most are an upper bound. */
static int check_policy(const struct hspmd_job *job, const struct hspmd_spank_args *args, struct hspmd_policy_bound *bound,
                        struct hspmd_error *err)
{
	struct hspmd_policy *p = NULL;
	if (read_policies(args, &p, err) < 0)
		return hspmd_error_prefix(err, "site policies");
	const struct passwd *me = getpwuid(getuid());
	char *user = me ? strdup(me->pw_name) : NULL;
	char *partition = hspmd_spank_slurm_option("partition"), *account = hspmd_spank_slurm_option("account"),
	     *qos = hspmd_spank_slurm_option("qos");
	struct hspmd_policy_subject subject = { .user = user, .account = account, .qos = qos, .policy = job->elastic.policy };
	subject.partition = partition ? partition : args->default_partition;
	if (partition && strchr(partition, ','))
		subject.partition = NULL; /* Slurm chooses the one that starts the job first */
	int min = 0, max = 0;
	slurm_nodes(&min, &max);
	struct hspmd_policy_request request = { .nodes = min > job->elastic.min_nodes ? min : job->elastic.min_nodes };
	int asked = job->elastic.max_nodes < INT_MAX ? job->elastic.max_nodes : request.nodes;
	char type[64];
	const char *const types[] = { type };
	requested_devices(&request, type, sizeof type, types);
	int rc = check_candidates(p, args, &subject, &request, partition ? partition : args->default_partition, asked, bound, err);
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

/* Not an error: nodes may have GPUs that are not configured as GRES. The devices are known only when the job starts; its controller then
 * logs the precision. */
static void log_precision(const struct hspmd_job *job)
{
	int cores = hspmd_device_kind_of(HSPMD_ORIGIN_CORES);
	if (cores >= 0 && !hspmd_device_kind_computes((enum hspmd_device_kind)cores, job->precision) && !asks_for_gpus())
		slurm_info("hspmd: %s: precision: CPUs cannot compute in %s, and the job asks for no GPUs: unless its nodes have some all "
		           "the same, it computes in fp32",
		           job->file, hspmd_precision_names[job->precision]);
}

/* ---- environment */

/* setenv() reaches salloc's shell, srun's tasks and what sbatch exports. The job-control copy reaches the batch script's node even with
 * --export=NONE; remote.c sets HSPMD_* from it. */
static int put_env(spank_t spank, const char *name, const char *value, struct hspmd_error *err)
{
	if (!value)
		return 0;
	if (setenv(name, value, 1) < 0)
		return hspmd_fail_errno(err, "%s", name);
	if (spank_job_control_setenv(spank, name, value, 1) != ESPANK_SUCCESS)
		return hspmd_fail(err, "Slurm does not take %s into the job's environment", name);
	return 0;
}

/* A value that an outer job or an earlier submission left must not be taken for this job's. */
static void unset_env(spank_t spank, const char *name)
{
	char old[64];
	snprintf(old, sizeof old, "SLURM_SPANK_%s", name);
	unsetenv(name);
	unsetenv(old);
	(void)spank_job_control_unsetenv(spank, name);
}

static int put_all_env(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_options *options, const char *file,
                       const struct hspmd_kept_job *kept, struct hspmd_error *err)
{
	char ctld[512], policies[PATH_MAX + 16];
	uid_t owner = 0;
	bool any = access(args->policies, F_OK) == 0;
	if ((args->ctld || any) && site_owner(args, &owner, err) < 0)
		return -1;
	/* For the job's controller, since the site's limits apply to growth as well. */
	snprintf(policies, sizeof policies, "%u@%s", owner, args->policies);
	if (args->ctld && (size_t)snprintf(ctld, sizeof ctld, "%u@%s", owner, args->ctld) >= sizeof ctld)
		return hspmd_fail(err, "plugstack.conf: ctld=%.60s...: too long", args->ctld);
	const char *values[] = { file,
		                 options->nodes,
		                 options->policy,
		                 options->checkpoint,
		                 args->ctld ? ctld : NULL,
		                 any ? policies : NULL,
		                 file ? kept->digest : NULL,
		                 file ? kept->copy : NULL };
	for (int i = 0; hspmd_spank_env_names[i]; i++)
		unset_env(spank, hspmd_spank_env_names[i]);
	for (int i = 0; hspmd_spank_env_names[i]; i++)
		if (put_env(spank, hspmd_spank_env_names[i], values[i], err) < 0)
			return -1;
	return 0;
}

static int keep_and_put_env(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_options *options,
                            const struct hspmd_job *job, struct hspmd_error *err)
{
	struct hspmd_kept_job kept = { 0 };
	if (options->file && hspmd_job_keep(job->file, &kept, err) < 0)
		return hspmd_error_prefix(err, "--hspmd");
	int rc = put_all_env(spank, args, options, options->file ? job->file : NULL, &kept, err);
	hspmd_kept_job_clear(&kept);
	return rc;
}

static int replace_text(char **slot, const char *value, struct hspmd_error *err)
{
	char *copy = strdup(value);
	if (!copy)
		return hspmd_fail_memory(err, "checking the job");
	free(*slot);
	*slot = copy;
	return 0;
}

static int check_memory(const struct hspmd_job *job, const struct hspmd_model *model, const struct hspmd_spank_args *args, int most,
                        struct hspmd_error *err)
{
	char *partition = hspmd_spank_slurm_option("partition");
	int rc = asks_for_gpus() ? 0 : hspmd_spank_check_fit(job, model, most, partition ? partition : args->default_partition, err);
	free(partition);
	return rc;
}

static void report_mistake(void *context, const char *text)
{
	slurm_error("hspmd: %s%s", (const char *)context, text);
}

static int check_job(const struct hspmd_spank_args *args, const struct hspmd_spank_options *options, struct hspmd_job *job,
                     struct hspmd_error *err)
{
	struct hspmd_model *model = NULL;
	struct hspmd_mistakes all = { .report = report_mistake, .context = "" };
	if (hspmd_spank_check_script(err) < 0 || hspmd_job_check_files(job, &hspmd_job_models, (void *)args->hspmd, &model, &all, err) < 0)
		return -1;
	struct hspmd_policy_bound bound = { .nodes = INT_MAX };
	int rc = check_nodes(job, options, err);
	if (!rc && options->policy)
		rc = replace_text(&job->elastic.policy, options->policy, err);
	if (!rc && options->checkpoint)
		rc = check_checkpoint(options->checkpoint, err);
	if (!rc)
		rc = check_policy(job, args, &bound, err);
	if (!rc)
		rc = check_memory(job, model, args, bound.nodes, err);
	if (!rc && *bound.fewer)
		slurm_info("hspmd: %s: %s: the job does not grow beyond", options->nodes ? "--hspmd-nodes" : job->file, bound.fewer);
	hspmd_model_destroy(model);
	return rc;
}

static int submit_job(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_options *options, struct hspmd_job *job,
                      struct hspmd_error *err)
{
	if (check_job(args, options, job, err) < 0)
		return -1;
	log_precision(job);
	/* A lost node must not end the job. If Slurm does not let the plugin set this, the user's own --no-kill does. */
	(void)hspmd_spank_slurm_set("no-kill", "set");
	char *comment = hspmd_spank_slurm_option("comment");
	if (!comment)
		(void)hspmd_spank_slurm_set("comment", HSPMD_JOB_COMMENT);
	free(comment);
	return keep_and_put_env(spank, args, options, job, err);
}

int hspmd_spank_submit(spank_t spank, const struct hspmd_spank_args *args, const struct hspmd_spank_options *options,
                       struct hspmd_error *err)
{
	if (!options->file && !options->nodes && !options->policy && !options->checkpoint)
		return 0;
	if (inherited(options))
		return 0;
	if (check_options(options, err) < 0)
		return -1;
	/* Without a file the job is the command that the script gives to `hspmd run --`. */
	struct hspmd_mistakes all = { .report = report_mistake, .context = "--hspmd: " };
	struct hspmd_job *job =
	        options->file ? hspmd_job_read(options->file, &all, err) : hspmd_job_from_command(NULL, 0, "--hspmd-nodes", err);
	if (!job)
		return hspmd_error_prefix(err, "--hspmd");
	int rc = submit_job(spank, args, options, job, err);
	hspmd_job_destroy(job);
	return rc;
}
