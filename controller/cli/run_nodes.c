/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/run_nodes.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/gres.h"
#include "common/log.h"
#include "controller/cli/ctld_query.h"
#include "controller/cli/local_nodes.h"

#define LOCAL_SPARE 16 /* greatest number of nodes by which a local run may grow */

int run_nodes_make_local(struct run *r, struct hspmd_error *err)
{
	int most = r->job->elastic.max_nodes;
	int count = (int)r->opt.local + LOCAL_SPARE;
	if (count > most)
		count = most > r->opt.local ? most : (int)r->opt.local;
	json_t *v = local_nodes_create(count, (int)r->opt.local);
	r->cluster_path = hspmd_asprintf("%s/cluster.json", r->output.folder);
	int rc = v && r->cluster_path ? run_output_save(&r->output, "cluster.json", v, err) : hspmd_fail_memory(err, "making up the nodes");
	if (!rc && !(r->cluster = hspmd_cluster_from_json(v, "cluster.json", err)))
		rc = -1;
	json_decref(v);
	return rc;
}

/* The first nodes of the cluster that have as many devices together as there are to be workers. */
static int take_first(struct run *r, struct hspmd_error *err)
{
	int nodes = 0;
	int64_t devices = 0;
	while (devices < r->opt.local && nodes < r->cluster->node_count)
		devices += r->cluster->nodes[nodes++].device_count;
	if (devices != r->opt.local)
		return hspmd_fail(err, "%s: nodes: no first nodes have the %" PRId64 " devices of --local: the first %d have %" PRId64,
		                  r->opt.cluster, r->opt.local, nodes, devices);
	r->opt.nodes = nodes;
	return 0;
}

int run_nodes_read_local(struct run *r, struct hspmd_error *err)
{
	if (!(r->cluster = hspmd_cluster_read(r->opt.cluster, err)))
		return -1;
	if (!r->cluster->device_count)
		return hspmd_fail(err, "%s: nodes: there is no device", r->opt.cluster);
	if (r->opt.local && take_first(r, err))
		return -1;
	if (r->opt.nodes > r->cluster->node_count)
		return hspmd_fail(err, "%s: nodes: %" PRId64 " were asked for, there are %d", r->opt.cluster, r->opt.nodes,
		                  r->cluster->node_count);
	char real[PATH_MAX];
	if (!realpath(r->opt.cluster, real))
		return hspmd_fail_errno(err, "%s", r->opt.cluster);
	return (r->cluster_path = strdup(real)) ? 0 : hspmd_fail_memory(err, "reading the cluster");
}

static int enough_nodes(const struct run *r, int have, struct hspmd_error *err)
{
	if (have < r->job->elastic.min_nodes)
		return hspmd_fail(err, "%s: elastic.min_nodes: %d are needed, there are %d", r->job->file, r->job->elastic.min_nodes, have);
	return 0;
}

void run_nodes_agent_arguments(struct run *r, const char *const *arguments)
{
	size_t n = 0;
	while (r->agent[n])
		n++;
	while (*arguments && n + 1 < sizeof r->agent / sizeof *r->agent)
		r->agent[n++] = *arguments++;
}

/* If the policies cannot be read here, the job continues: submission has checked it against the policies of that time, and a rule that no
 * longer matches the job is no reason to end it. */
int run_nodes_read_site(struct run *r, struct hspmd_error *err)
{
	struct hspmd_error why;
	const char *where = getenv("HSPMD_POLICIES");
	const struct hspmd_slurm_job *j = r->slurm_job = hspmd_slurm_job_load(r->slurm, err);
	if (!j)
		return -1;
	struct hspmd_policy_subject who = {
		.user = j->user, .account = j->account, .partition = j->partition, .qos = j->qos, .policy = r->job->elastic.policy
	};
	struct hspmd_job *saves = r->job->command.argc ? NULL : r->job; /* a command writes its checkpoints itself */
	if (run_policy_read(&r->terms, saves, where && *where ? where : NULL, &who, &why)) {
		hspmd_warn("the site's policies are ignored: %s", why.text);
		if (run_policy_read(&r->terms, saves, NULL, &who, &why))
			hspmd_warn("%s", why.text);
	}
	return 0;
}

/* Checks what submission could not: the nodes themselves, and the user's earlier jobs. */
static int within_limits(struct run *r, const struct hspmd_slurm_job *j, struct hspmd_error *err)
{
	char type[64];
	const char *const types[] = { type }, *ctld = getenv("HSPMD_CTLD");
	int each = hspmd_gres_devices(j->gres, type, sizeof type);
	struct hspmd_policy_request ask = { .nodes = j->node_count, .devices = each * j->node_count, .types = types };
	struct hspmd_error why = { "" };
	ask.type_count = strcmp(type, "gpu") != 0 && strcmp(type, "cpu") != 0;
	if (run_policy_want_quote(&r->terms) && ctld && *ctld && !hspmd_auth_secret(r->auth)) {
		json_t *names = json_array();
		for (int i = 0; names && i < j->node_count; i++)
			json_array_append_new(names, json_string(j->nodes[i]));
		json_t *q = hspmd_ctld_query_quote(ctld, r->munge_socket,
		                                   json_pack("{s:s, s:I, s:o}", "type", "quote", "job", (json_int_t)j->id, "names", names),
		                                   CTLD_PATIENCE_S, &why);
		if (!q)
			hspmd_warn("%s; the limits on jobs and price are left to hspmdctld", why.text);
		ask.jobs_of_user = (int)json_integer_value(json_object_get(q, "jobs")) + 1;
		ask.price_per_hour = json_number_value(json_object_get(q, "price_per_hour"));
		json_decref(q);
	}
	return run_policy_check(&r->terms, &ask, err);
}

int run_nodes_set_up_local(struct run *r, struct hspmd_error *err)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int held = r->opt.cluster ? (int)r->opt.nodes : (int)r->opt.local;
	int have = held ? held : r->cluster->node_count, devices = 0;
	for (int i = 0; i < have; i++)
		devices += r->cluster->nodes[i].device_count;
	struct hspmd_policy_subject who = { .policy = r->job->elastic.policy };
	if (enough_nodes(r, have, err) || local_nodes_check(r->cluster, r->cluster_path, err) ||
	    run_policy_read(&r->terms, NULL, r->opt.policies, &who, err))
		return -1;
	snprintf(r->numbers[0], sizeof *r->numbers, "%ld", cores > devices && devices > 0 ? cores / devices : 1);
	run_nodes_agent_arguments(r, (const char *const[]){ "--cluster", r->cluster_path, "--threads", r->numbers[0], NULL });
	r->allocation = run_allocation_local(r->cluster, held, err);
	return r->allocation ? 0 : -1;
}

int run_nodes_set_up_slurm(struct run *r, struct hspmd_error *err)
{
	if (r->opt.devices) {
		snprintf(r->numbers[0], sizeof *r->numbers, "%" PRId64, r->opt.devices);
		run_nodes_agent_arguments(r, (const char *const[]){ "--devices", r->numbers[0], NULL });
	}
	if (!hspmd_auth_secret(r->auth) && r->munge_socket)
		run_nodes_agent_arguments(r, (const char *const[]){ "--munge-socket", r->munge_socket, NULL });
	if (!r->opt.no_pmix)
		run_nodes_agent_arguments(r, (const char *const[]){ "--exchange", NULL });
	/* Where there is no MUNGE, members read the cookie from the contact file: Slurm may keep a batch job's environment in its
	 * database. */
	if (hspmd_auth_secret(r->auth))
		run_nodes_agent_arguments(r, (const char *const[]){ "--contact", r->output.folder, NULL });
	if (!(r->member_log = hspmd_asprintf("%s/member-%%j.log", r->output.folder)))
		return hspmd_fail_memory(err, "preparing for members");
	r->terms.member_terms.srun_args = r->opt.srun_args;
	if (!enough_nodes(r, r->slurm_job->node_count, err) && !within_limits(r, r->slurm_job, err))
		r->allocation = run_allocation_slurm(r->slurm, !r->opt.no_pmix, r->member_log, &r->terms.member_terms, err);
	return r->allocation ? 0 : -1;
}

/* ---- authentication */

int run_nodes_set_up_auth(struct run *r, struct hspmd_error *err)
{
	bool munge = false;
	char cookie[HSPMD_NONCE_HEX];
	if (r->slurm && hspmd_slurm_munge_socket(&r->munge_socket, &munge, err))
		return -1;
	if (munge)
		return (r->auth = hspmd_auth_munge(r->munge_socket, err)) ? 0 : -1;
	if (hspmd_auth_nonce(cookie, err) || !(r->auth = hspmd_auth_cookie(cookie, err)))
		return -1;
	if (r->slurm)
		hspmd_info(
		        "this cluster does not use MUNGE, by which a job and hspmdctld prove themselves to each other: the job changes its "
		        "nodes when it is asked to (hspmd grow, shrink, scontrol), but hspmdctld neither gives it nodes nor takes any");
	/* The agents inherit the variable; their workers do not. */
	return setenv("HSPMD_COOKIE", cookie, 1) ? hspmd_fail_errno(err, "setting HSPMD_COOKIE") : 0;
}
