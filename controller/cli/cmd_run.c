/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd run: trains a job, inside a Slurm job over its allocation, elsewhere over workers on this machine. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/durable.h"
#include "common/format/kept_job.h"
#include "common/format/program_search.h"
#include "common/json.h"
#include "common/log.h"
#include "common/range.h"
#include "common/shm_dir.h"
#include "common/tcp.h"
#include "controller/cli/ctld_query.h"
#include "controller/cli/commands.h"
#include "controller/cli/plan_program.h"
#include "controller/cli/checkpoint_policy.h"
#include "controller/cli/run_command.h"
#include "controller/cli/run_nodes.h"
#include "controller/cli/run_state.h"
#include "controller/cli/step_lengths.h"
#include "controller/cli/run_options.h"
#include "controller/cli/run_policy.h"
#include "controller/cli/supervise.h"
#include "controller/run/choose_plan.h"
#include "controller/run/command_plan.h"
#include "controller/run/coverage.h"
#include "controller/run/step_model.h"
#include "controller/run/loop.h"
#include "controller/core/risk.h"
#include "controller/ctld_client/protocol.h"
#include "controller/slurm/job.h"
#include "controller/slurm/srun_args.h"
#include "controller/solver/job_plan.h"
#include "controller/solver/sim/predict.h"
#include "runtime/model/model.h"
#include "runtime/model/own.h"
#include "runtime/state/checkpoint.h"
#include "runtime/facts/facts.h"
#include "runtime/input/data.h"

#define CHECK_LIMIT_S 10 /* for checking a given plan's programs */

/* ---- files that the job names */

/* In a job of `sbatch --hspmd=FILE` the job is the file as it was then. */
static struct hspmd_job *read_job_file(const struct run *r, struct hspmd_mistakes *all, struct hspmd_error *err)
{
	const char *submitted = getenv("HSPMD_JOB"), *digest = getenv("HSPMD_JOB_DIGEST"), *copy = getenv("HSPMD_JOB_COPY");
	bool changed;
	if (!r->slurm || !submitted || strcmp(submitted, r->opt.job) != 0 || !digest || !*digest)
		return hspmd_job_read(r->opt.job, all, err);
	struct hspmd_job *j = hspmd_job_read_kept(submitted, digest, copy, &changed, err);
	if (j && changed)
		hspmd_warn("%s has changed since the job was submitted: the job is trained as it was then (%s)", submitted, copy);
	return j;
}

/* The other components of a heterogeneous job may have work of their own. */
static void warn_of_het(void)
{
	const char *size = getenv("SLURM_HET_SIZE"), *group = getenv("SLURM_HET_GROUP_ID");
	if (size && atoi(size) > 1)
		hspmd_warn("this is a heterogeneous job of %d components: hspmd trains on the nodes of component %s only", atoi(size),
		           group ? group : "0");
}

/* The folder of the job's output; a name that the caller gives room for. */
static const char *output_folder(const struct run *r, char name[64])
{
	snprintf(name, 64, "hspmd-%s", r->id);
	return r->opt.output ? r->opt.output : name;
}

/* A run that goes on has chosen them before. */
static int choose_lengths(struct run *r, struct hspmd_error *err)
{
	char name[64], *index = hspmd_asprintf("%s/" HSPMD_DATA_INDEX_FILE, output_folder(r, name));
	int status = index ? hspmd_job_choose_lengths(r->job, r->model, index, err) : hspmd_fail_memory(err, "choosing lengths");
	free(index);
	return status;
}

static int read_job(struct run *r, struct hspmd_error *err)
{
	struct hspmd_mistakes all = hspmd_mistakes_logged();
	if (r->slurm)
		warn_of_het();
	r->job = r->opt.command.argc ? run_command_job(&r->opt.command, err) : read_job_file(r, &all, err);
	if (!r->job || hspmd_job_check_files(r->job, &hspmd_job_models, NULL, &r->model, &all, err))
		return -1;
	if (r->job->command.argc && r->opt.plan)
		return hspmd_fail(err, "%s: command: --plan has no meaning for a command", r->job->file);
	if (r->model) {
		r->source = hspmd_graph_source_job(r->model, r->job);
		r->programs = (struct hspmd_program_search){ hspmd_program_find, &r->source };
		if (!(r->facts = hspmd_model_facts_build(&r->source, r->model->name, (int)r->job->seq_len, err)))
			return hspmd_error_prefix(err, "%s", r->job->file);
		if (choose_lengths(r, err))
			return -1;
	}
	const char *nodes = getenv("HSPMD_NODES"), *folder = getenv("HSPMD_CHECKPOINT"), *policy = getenv("HSPMD_POLICY");
	int low, high;
	if (nodes && r->slurm) { /* --hspmd-nodes of sbatch, checked there */
		if (hspmd_range_parse(nodes, &low, &high, err))
			return hspmd_error_prefix(err, "HSPMD_NODES");
		r->job->elastic.min_nodes = low;
		r->job->elastic.max_nodes = high;
	}
	if (folder && *folder && r->slurm) {
		free(r->job->checkpoint.shared);
		if (!(r->job->checkpoint.shared = strdup(folder)))
			return hspmd_fail_memory(err, "reading the job");
	}
	if (policy && *policy && r->slurm) {
		free(r->job->elastic.policy);
		if (!(r->job->elastic.policy = strdup(policy)))
			return hspmd_fail_memory(err, "reading the job");
	}
	return run_command_prepare(r->job, &r->opt.command, err);
}

/* Checks now that the folder can be made and written. */
static int expand_folder(struct run *r, const char *path, const char *key, char **out, struct hspmd_error *err)
{
	if (!path)
		return 0;
	char *folder = hspmd_job_expand_path(path, r->id, err);
	if (folder && !(*out = hspmd_checkpoint_run_folder(folder, r->output.run)))
		hspmd_fail_memory(err, "naming a folder");
	free(folder);
	if (!*out || hspmd_durable_mkdir(*out, 0700, err))
		return hspmd_error_prefix(err, "%s: checkpoint.%s", r->job->file, key);
	if (access(*out, W_OK | X_OK))
		return hspmd_fail_errno(err, "%s: checkpoint.%s: %s", r->job->file, key, *out);
	return 0;
}

/* Searches for what the plan leaves to a search, once for all workers. */
static int complete_plan(const struct run_config *c, struct hspmd_plan *plan, const struct hspmd_cluster *cluster, struct hspmd_error *err)
{
	struct hspmd_graph_source source = hspmd_graph_source_job(c->model, c->job);
	const struct hspmd_program_search programs = { hspmd_program_find, &source };
	const struct hspmd_program_limits unlimited = { 0 };
	if (!plan->synthesis || plan->program)
		return 0;
	int status = hspmd_evaluate_program(cluster, c->facts, &programs, c->job->precision, plan, &unlimited, NULL, err);
	return status ? hspmd_error_prefix(err, "%s", c->first_plan_name) : 0;
}

/* Completes the given plan, and checks its programs before any process is started. */
static int is_runnable(const struct run_config *c, struct hspmd_plan *plan, const struct hspmd_cluster *cluster, struct hspmd_error *err)
{
	if (complete_plan(c, plan, cluster, err))
		return -1;
	const struct hspmd_plan_task task = { .model = c->model, .job = c->job };
	int status = hspmd_plan_check_programs(cluster, &task, plan, CHECK_LIMIT_S, err);
	bool of_job = status && !strncmp(err->text, c->job->file, strlen(c->job->file));
	return status && !of_job ? hspmd_error_prefix(err, "%s", c->first_plan_name) : status;
}

static int read_plan(struct run *r, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	const struct hspmd_cluster *c = r->cluster;
	if (!r->opt.plan)
		return 0;
	if (hspmd_json_open(&doc, r->opt.plan, err))
		return -1;
	r->config.first_plan = json_incref(doc.root);
	r->config.first_plan_name = r->opt.plan;
	r->config.job = r->job;
	r->config.model = r->model;
	r->config.facts = r->facts;
	struct hspmd_json root = hspmd_json_root(&doc);
	hspmd_json_format(&root, HSPMD_PLAN_FORMAT);
	int64_t batch = hspmd_json_int(&root, "global_batch", 1, INT_MAX), seq = hspmd_json_int(&root, "seq_len", 1, INT_MAX);
	bool refused = doc.failed || hspmd_plan_check_job(r->opt.plan, batch, seq, r->job, err);
	hspmd_json_close(&doc);
	if (refused || !c)
		return refused ? -1 : 0;
	struct hspmd_plan *p = hspmd_plan_read(r->opt.plan, c, hspmd_model_layers(r->model), err);
	if (!p)
		return -1;
	int status = is_runnable(&r->config, p, c, err);
	if (!status && p->synthesis) {
		json_decref(r->config.first_plan);
		r->config.first_plan = hspmd_plan_to_json(p, c);
		status = r->config.first_plan ? 0 : hspmd_fail_memory(err, "reading the plan");
	}
	hspmd_plan_destroy(p);
	return status;
}

/* ---- all together */

static int open_output(struct run *r, struct hspmd_error *err)
{
	char name[64];
	const char *restarts = getenv("SLURM_RESTART_COUNT");
	bool again = r->slurm && restarts && atoi(restarts) > 0;
	if (run_output_open(&r->output, output_folder(r, name), r->opt.resume || again, r->job->command.argc > 0, err))
		return -1;
	hspmd_log_tee(r->output.log);
	return 0;
}

/* A mistake in files that are first read after many steps is told now. */
static int check_validation(const struct run *r, struct hspmd_error *err)
{
	if (!r->model || !r->job->valid_count || r->job->data_kind == HSPMD_DATA_OWN)
		return 0;
	return hspmd_data_check_valid(r->job, r->model->vocab, err) ? hspmd_error_prefix(err, "%s: data.valid", r->job->file) : 0;
}

/* Finds where the documents of each length are, once for all workers, and how many steps have which length. */
static int index_documents(struct run *r, struct hspmd_error *err)
{
	char *index = r->model ? hspmd_asprintf("%s/" HSPMD_DATA_INDEX_FILE, r->output.folder) : NULL;
	if (!index)
		return r->model ? hspmd_fail_memory(err, "indexing documents") : 0;
	hspmd_job_index_lengths(r->job, r->model, index);
	int status = hspmd_step_lengths_of_job(r->job, r->model, &r->source, r->facts, index, &r->lengths, err);
	free(index);
	return status;
}

/* Workers get the object's bytes: a file that changes while the job runs would not be the same on every node. NULL: not a model of the
 * user's own. */
static int object_of(const struct hspmd_model *m, json_t **out)
{
	size_t size;
	const void *bytes = hspmd_own_object(m, &size);
	char *text = bytes ? hspmd_base64_encode(bytes, size) : NULL;
	*out = text ? json_string(text) : NULL;
	free(text);
	return bytes && !*out ? -1 : 0;
}

static int make_config(struct run *r, struct hspmd_error *err)
{
	struct run_config *c = &r->config;
	c->job = r->job;
	c->job_json = hspmd_job_to_json(r->job);
	c->model_json = r->model ? json_incref(r->model->config) : json_null();
	if (!c->job_json || object_of(r->model, &c->object_json))
		return hspmd_fail_memory(err, "reading the job");
	c->layers = r->model ? hspmd_model_layers(r->model) : RUN_COMMAND_LAYERS;
	c->save_folder = r->save_folder;
	c->job_id = r->id;
	c->output = r->output.folder;
	c->transport = r->opt.transport;
	c->local = r->local;
	c->shared = r->shared;
	c->memory = r->memory;
	c->generation = r->output.generation;
	c->last_step = r->output.steps_reported;
	c->run = r->output.run;
	c->events = r->output.events;
	c->resumed = r->output.resumed ? (r->slurm ? "requeue" : "resume") : NULL;
	c->resizable = r->allocation->resizable;
	c->policy_terms = r->terms.policy_terms;
	c->members = r->member_log != NULL;
	c->max_attempts = 5;
	c->timeouts = run_timeouts_default();
	if (r->opt.step_timeout > 0) {
		c->timeouts.step_min = c->timeouts.step_first = r->opt.step_timeout;
		c->timeouts.step_factor = 0;
	}
	c->model = r->model;
	c->facts = r->facts;
	if (r->job->command.argc) {
		run_command_timeouts(r->job, r->opt.step_timeout, &c->timeouts);
		c->covered = run_command_covered;
		return 0;
	}
	c->expected_busy = run_expected_busy;
	c->runnable = r->slurm ? is_runnable : NULL; /* outside of Slurm read_plan() has checked it: the nodes were known */
	c->covered = hspmd_stages_cover;
	r->roots.source = &r->source;
	run_state_bind(c, &r->roots);
	return 0;
}

/* The risk of losing nodes, by which copies and plans are chosen: hspmdctld has observed it, and sends updates. A job without hspmdctld
 * uses its job file. */
static void read_risk(struct run *r)
{
	struct hspmd_error err = { "" };
	const char *ctld = getenv("HSPMD_CTLD");
	if (!r->slurm || !ctld || !*ctld || hspmd_auth_secret(r->auth))
		return;
	json_t *cluster = hspmd_ctld_query(ctld, r->munge_socket, json_pack("{s:s}", "type", CTLD_MESSAGE_QUERY), CTLD_PATIENCE_S, &err);
	if (!cluster)
		hspmd_info("%s; copies of the state are kept as the job file says", err.text);
	r->config.risk = run_risk_read(json_object_get(cluster, "risk"));
	json_decref(cluster);
}

static int set_up(struct run *r, struct hspmd_error *err)
{
	const char *job = getenv("SLURM_JOB_ID");
	bool local = r->opt.local || r->opt.cluster || !job;
	if (!local && !(r->slurm = (uint32_t)strtoul(job, NULL, 10)))
		return hspmd_fail(err, "SLURM_JOB_ID: expected a number, got '%s'", job);
	if (local && !r->opt.cluster && !r->opt.local)
		r->opt.local = 1;
	if (local)
		snprintf(r->id, sizeof r->id, "local-%d", (int)getpid());
	else
		snprintf(r->id, sizeof r->id, "%u", r->slurm);
	if (read_job(r, err) || (r->opt.cluster && (run_nodes_read_local(r, err) || read_plan(r, err))) || check_validation(r, err) ||
	    open_output(r, err))
		return -1;
	if ((local && !r->opt.cluster && run_nodes_make_local(r, err)) || (!r->opt.cluster && read_plan(r, err)) || index_documents(r, err))
		return -1;
	if (!local && run_nodes_read_site(r, err))
		return -1;
	if (local) /* $JOB outside of Slurm: differs between runs, and is the same for the incarnations of one run */
		snprintf(r->id, sizeof r->id, "local-%.8s", r->output.run);
	if (r->job->command.argc && !(r->save_folder = run_command_save_folder(r->job, r->id, r->output.folder, err)))
		return -1;
	if (!r->job->command.argc && (expand_folder(r, r->job->checkpoint.local, "local", &r->local, err) ||
	                              expand_folder(r, r->job->checkpoint.shared, "shared", &r->shared, err)))
		return -1;
	char run[13]; /* not the job id: several clusters on one machine use the same ids */
	snprintf(run, sizeof run, "%.12s", r->output.run);
	if (r->job->checkpoint.memory)
		r->memory = hspmd_shm_dir(run);
	if (local)
		snprintf(r->id, sizeof r->id, "%d", (int)getpid());
	ssize_t n = readlink("/proc/self/exe", r->exe, sizeof r->exe - 1);
	if (n < 0)
		return hspmd_fail_errno(err, "finding this program's own file");
	snprintf(r->numbers[1], sizeof *r->numbers, "%g", r->opt.reconnect_timeout);
	run_nodes_agent_arguments(r, (const char *const[]){ r->exe, "agent", "--reconnect-timeout", r->numbers[1], NULL });
	if (r->memory)
		run_nodes_agent_arguments(r, (const char *const[]){ "--memory", r->memory, NULL });
	if (r->opt.ports) {
		setenv(HSPMD_TCP_PORTS, r->opt.ports, 1);
		run_nodes_agent_arguments(r, (const char *const[]){ "--ports", r->opt.ports, NULL });
	}
	if (run_nodes_set_up_auth(r, err) || (local ? run_nodes_set_up_local(r, err) : run_nodes_set_up_slurm(r, err)))
		return -1;
	read_risk(r);
	return make_config(r, err);
}

static void tear_down(struct run *r)
{
	if (r->allocation)
		r->allocation->ops->destroy(r->allocation);
	hspmd_slurm_job_destroy(r->slurm_job);
	run_policy_clear(&r->terms);
	hspmd_auth_destroy(r->auth);
	hspmd_srun_args_free(r->opt.srun_args);
	hspmd_log_tee(-1);
	run_journal_memory_destroy(r->journal);
	if (r->output.folder)
		run_output_close(&r->output);
	json_decref(r->config.job_json);
	json_decref(r->config.model_json);
	json_decref(r->config.object_json);
	json_decref(r->config.first_plan);
	hspmd_cluster_destroy(r->cluster);
	hspmd_step_lengths_clear(&r->lengths);
	hspmd_root_checker_clear(&r->roots);
	hspmd_model_facts_destroy(r->facts);
	hspmd_model_destroy(r->model);
	hspmd_job_destroy(r->job);
	free(r->cluster_path);
	free(r->save_folder);
	free(r->local);
	free(r->shared);
	free(r->memory);
	free(r->munge_socket);
	free(r->member_log);
}

/* ---- incarnations of the controller */

static json_t *load_saved(const struct run *r, const char *name)
{
	char *path = hspmd_asprintf("%s/%s", r->output.folder, name);
	json_t *v = path ? json_load_file(path, 0, NULL) : NULL;
	free(path);
	return v;
}

static void forget_journal(const struct run *r)
{
	char *path = hspmd_asprintf("%s/journal.json", r->output.folder);
	if (path)
		unlink(path);
	free(path);
}

/* The port to which agents connect; 0: unknown. */
static int port_before(const struct run *r)
{
	json_t *contact = load_saved(r, "contact.json");
	const char *address = json_string_value(json_array_get(json_object_get(contact, "addresses"), 0));
	const char *colon = address ? strrchr(address, ':') : NULL;
	int port = colon ? atoi(colon + 1) : 0;
	json_decref(contact);
	return port;
}

/* Continue from the files of the previous incarnation. */
static int last_settings(struct run *r, struct hspmd_error *err)
{
	struct run_output *o = &r->output;
	char *folder = strdup(o->folder), name[sizeof o->run];
	memcpy(name, o->run, sizeof name);
	hspmd_log_tee(-1);
	run_output_close(o);
	int rc = folder ? run_output_open(o, folder, true, r->job->command.argc > 0, err) : hspmd_fail_memory(err, "going on");
	free(folder);
	if (rc)
		return -1;
	memcpy(o->run, name, sizeof name);
	hspmd_log_tee(o->log);
	r->config.output = o->folder;
	/* The folder may not have what the last incarnation did. */
	int64_t begun = run_journal_memory_generation(r->journal);
	r->config.generation = o->generation > begun ? o->generation : begun;
	r->config.last_step = o->steps_reported;
	r->config.resize_reported = o->resize_reported;
	r->config.events = o->events;
	r->config.resumed = "controller";
	r->config.journal = run_journal_memory_load(r->journal);
	if (!r->slurm && r->config.journal)
		run_allocation_local_hold(r->allocation, json_object_get(r->config.journal, "nodes"));
	return 0;
}

static int live(void *context, bool again)
{
	struct run *r = context;
	struct hspmd_error err = { "" };
	const char *cluster = getenv("SLURM_CLUSTER_NAME");
	int port = (int)r->opt.port;
	if (!again)
		forget_journal(r);
	else if (last_settings(r, &err)) {
		hspmd_error_log("%s", err.text);
		return HSPMD_EXIT_FAILED;
	}
	struct run_loop_options o = {
		.config = &r->config,
		.facts = r->facts,
		.shares = r->lengths.shares,
		.share_count = r->lengths.count,
		.programs = r->model ? &r->programs : NULL,
		.allocation = r->allocation,
		.output = &r->output,
		.journal = r->journal,
		.auth = r->auth,
		.munge_socket = r->munge_socket,
		.ctld = r->slurm && !hspmd_auth_secret(r->auth) ? getenv("HSPMD_CTLD") : NULL,
		.cluster = !r->slurm ? "local"
		           : cluster ? cluster
		                     : "cluster",
		.port = again && !port ? port_before(r) : port,
		.loopback = !r->slurm,
		.local_agents = r->slurm ? 0 : r->cluster->node_count,
		.agent_command = r->agent,
		.solve_limit_s = HSPMD_JOB_SEARCH_S,
		.repair_devices = r->opt.repair_from ? (int)r->opt.repair_from : RUN_REPAIR_DEVICES,
	};
	int status = run_loop(&o);
	json_decref(r->config.journal);
	r->config.journal = NULL;
	return status;
}

int hspmd_command_run(int argc, char **argv)
{
	struct run r = { 0 };
	struct hspmd_error err = { "" };
	int status = run_options_parse(&r.opt, argc, argv);
	if (status || r.opt.help)
		return status;
	if (set_up(&r, &err) || !(r.journal = run_journal_memory_create(&err))) {
		hspmd_error_log("%s", err.text);
		tear_down(&r);
		return HSPMD_EXIT_FAILED;
	}
	status = hspmd_supervise(live, &r);
	tear_down(&r);
	return status;
}
