/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd plan: solves for the fastest plan, or predicts a given one, and prints it. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/device_traits.h"
#include "common/json.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "controller/cli/plan_current.h"
#include "controller/cli/policy_limits.h"
#include "controller/cli/plan_program.h"
#include "controller/cli/plan_table.h"
#include "controller/cli/step_lengths.h"
#include "controller/solver/job_plan.h"
#include "runtime/facts/facts.h"
#include "runtime/model/model.h"

#define CHECK_LIMIT_S 0.5 /* for checking whether a given plan can run; `hspmd run` takes longer, before it starts a process */

static const char head[] = "Usage: hspmd plan --cluster C --job J [options]\n"
                           "       hspmd plan --cluster C (--model M | --profile P | both) --global-batch N [options]\n"
                           "       hspmd plan --evaluate PLAN --cluster C (--job J | --model M | --profile P | both) [--json]\n"
                           "\n"
                           "Finds the fastest plan for training a model on a cluster and prints it as a table.\n";

struct plan_options {
	const char *cluster, *job, *model, *profile, *current, *evaluate, *output, *trace, *precision, *program, *policy, *rule;
	int64_t global_batch, seq_len, micro_batch, max_nodes, max_devices;
	double time_limit, max_price, cost_weight;
	struct hspmd_option_list types, lengths;
	bool explain, json, mix_lengths;
};

struct plan_inputs {
	struct hspmd_cluster *cluster, *current_cluster; /* the latter NULL: the same */
	struct hspmd_job *job;                           /* NULL: not given */
	struct hspmd_model *model;
	struct hspmd_model_facts *facts; /* of the model, for the plan's samples */
	struct hspmd_graph_source source;
	struct hspmd_program_search programs;
	struct hspmd_step_lengths_of lengths;
	struct hspmd_job_lengths_report lengths_report;
	struct hspmd_job_search search; /* with a job, if its plan was searched for */
	struct hspmd_profile *profile;
	struct hspmd_plan *current, *plan;
	struct hspmd_policy *policy; /* owns names in limits */
	struct hspmd_solve_limits limits;
	enum hspmd_precision precision;
};

/* The precision of that name; HSPMD_PRECISION_COUNT: none. */
static enum hspmd_precision precision_named(const char *word)
{
	int p = 0;
	while (p < HSPMD_PRECISION_COUNT && strcmp(hspmd_precision_names[p], word) != 0)
		p++;
	return (enum hspmd_precision)p;
}

static int check(const struct plan_options *o, struct hspmd_step_lengths_of *lengths)
{
	struct hspmd_error err;
	if (!o->cluster)
		return hspmd_usage_error("plan", "--cluster is missing");
	if (!o->job && !o->model && !o->profile)
		return hspmd_usage_error("plan", "--job, --model or --profile is missing");
	if (o->job && (o->model || o->global_batch || o->precision || (o->seq_len && !o->evaluate)))
		return hspmd_usage_error("plan",
		                         "--job says model, global batch, tokens per sample and precision: expected none of --model, "
		                         "--global-batch, --seq-len, "
		                         "--precision");
	if (o->program && !o->job && !o->model)
		return hspmd_usage_error("plan", "--program needs --job or --model");
	if (!o->evaluate && !o->job && !o->global_batch)
		return hspmd_usage_error("plan", "--global-batch is missing");
	if (o->precision && precision_named(o->precision) == HSPMD_PRECISION_COUNT)
		return hspmd_usage_error("plan", "--precision: expected fp32, tf32, bf16, fp16, fp8 or fp64, got '%s'", o->precision);
	if (o->lengths.count && (!o->model || !o->seq_len || o->evaluate))
		return hspmd_usage_error("plan",
		                         "--lengths needs --model and --seq-len, and no --evaluate; a job's lengths are those of its data");
	if (o->lengths.count && hspmd_step_lengths_parse(&o->lengths, (int)o->seq_len, lengths, &err))
		return hspmd_usage_error("plan", "--lengths: %s", err.text);
	if (o->mix_lengths && !o->lengths.count)
		return hspmd_usage_error("plan",
		                         "--mix-lengths needs --lengths; a job says by data.mix_lengths whether its steps mix lengths");
	if (o->rule && !o->policy)
		return hspmd_usage_error("plan", "--rule needs --policy");
	bool data = o->json || (o->output && !strcmp(o->output, "-"));
	if (data && (o->explain || o->program))
		return hspmd_usage_error("plan", "%s prints text, and %s JSON: expected one of them",
		                         o->explain ? "--explain" : "--program", o->json ? "--json" : "--output -");
	return 0;
}

/* 0, or what hspmd_options_parse returns otherwise. */
static int parse(int argc, char **argv, struct plan_options *o, struct hspmd_step_lengths_of *lengths)
{
	const struct hspmd_option options[] = {
		{ "cluster", 0, "FILE", HSPMD_OPTION_TEXT, &o->cluster, 0, 0, "the cluster file (hspmd discover writes it)" },
		{ "job", 0, "FILE", HSPMD_OPTION_TEXT, &o->job, 0, 0,
		  "a job file: gives model, global batch, tokens per sample, precision\nand nodes; the plan is the one that hspmd run "
		  "begins with" },
		{ "model", 0, "FILE", HSPMD_OPTION_TEXT, &o->model, 0, 0, "the model's config.json" },
		{ "profile", 0, "FILE", HSPMD_OPTION_TEXT, &o->profile, 0, 0, "measured layer times (hspmd profile writes it)" },
		{ "global-batch", 0, "N", HSPMD_OPTION_INT, &o->global_batch, 1, INT_MAX, "samples per step" },
		{ "seq-len", 0, "T", HSPMD_OPTION_INT, &o->seq_len, 1, INT_MAX,
		  "tokens per sample (default: the profile's, or the model's positions)" },
		{ "micro-batch", 0, "B", HSPMD_OPTION_INT, &o->micro_batch, 1, INT_MAX,
		  "samples per micro-batch (default: the solver chooses)" },
		{ "lengths", 0, "LIST", HSPMD_OPTION_LIST, &o->lengths, 0, 0,
		  "steps of several lengths, up to --seq-len: LENGTH:SHARE,... (shares\nof steps); also search plans for the shorter "
		  "ones" },
		{ "mix-lengths", 0, NULL, HSPMD_OPTION_FLAG, &o->mix_lengths, 0, 0,
		  "each step mixes samples of these lengths (shares of samples)" },
		{ "precision", 0, "WORD", HSPMD_OPTION_TEXT, &o->precision, 0, 0,
		  "fp32, tf32, bf16, fp16, fp8 or fp64 (default: bf16 where all devices\nhave it, else fp32)" },
		{ "current", 0, "PLAN", HSPMD_OPTION_TEXT, &o->current, 0, 0,
		  "the plan that runs now: the search starts from it, and among plans\nwithin 2 % of the best takes the one that moves the "
		  "fewest bytes" },
		{ "time-limit", 0, "S", HSPMD_OPTION_NUMBER, &o->time_limit, 1e-3, 1e9,
		  "return the best plan found in S seconds (default: no limit; with\n--job 10 for each of two searches, as in hspmd run)" },
		{ "policy", 0, "PATH", HSPMD_OPTION_TEXT, &o->policy, 0, 0, "apply the limits of a policy file or folder" },
		{ "rule", 0, "NAME", HSPMD_OPTION_TEXT, &o->rule, 0, 0, "the rule in it (default: the first that may match you)" },
		{ "max-nodes", 0, "N", HSPMD_OPTION_INT, &o->max_nodes, 1, INT_MAX, "use at most N nodes" },
		{ "max-devices", 0, "N", HSPMD_OPTION_INT, &o->max_devices, 1, INT_MAX, "use at most N devices" },
		{ "device-types", 0, "LIST", HSPMD_OPTION_LIST, &o->types, 0, 0, "use these types only (A,B,...)" },
		{ "max-price", 0, "X", HSPMD_OPTION_NUMBER, &o->max_price, 1e-9, 1e12, "use nodes that cost at most X per hour together" },
		{ "cost-weight", 0, "W", HSPMD_OPTION_NUMBER, &o->cost_weight, 0, 1,
		  "0: the fastest plan; 1: the cheapest step; between: both\n(default: the policy's, else 0)" },
		{ "evaluate", 0, "PLAN", HSPMD_OPTION_TEXT, &o->evaluate, 0, 0, "predict this plan instead of solving" },
		{ "program", 0, "DEVICE", HSPMD_OPTION_TEXT, &o->program, 0, 0,
		  "print the program of one device (node:index) of the plan, one\ninstruction per line (needs --job or --model)" },
		{ "output", 'o', "FILE", HSPMD_OPTION_TEXT, &o->output, 0, 0, "write the plan to FILE ('-': standard output)" },
		{ "trace", 0, "FILE", HSPMD_OPTION_TEXT, &o->trace, 0, 0, "write the predicted schedule for Perfetto (ui.perfetto.dev)" },
		{ "explain", 0, NULL, HSPMD_OPTION_FLAG, &o->explain, 0, 0,
		  "say what limits the plan; with --program, why the device communicates\nas it does, and the least time of every "
		  "instruction" },
		{ "json", 0, NULL, HSPMD_OPTION_FLAG, &o->json, 0, 0, "print the plan as JSON; with --evaluate, the prediction" },
		{ 0 },
	};
	int status = hspmd_options_parse("plan", head, options, argc, argv);
	return status ? status : check(o, lengths);
}

static enum hspmd_precision choose_precision(const struct plan_options *o, const struct hspmd_cluster *c)
{
	bool bf16 = true;
	for (int t = 0; t < c->type_count; t++) /* what there is but a profile of is another framework's, and CPUs may have it there */
		bf16 = bf16 && (!o->model || hspmd_device_kind_computes(c->types[t].kind, HSPMD_PRECISION_BF16)) &&
		       (c->types[t].peak_tflops[HSPMD_PRECISION_BF16] > 0 || c->types[t].tflops[HSPMD_PRECISION_BF16] > 0);
	return o->precision ? precision_named(o->precision) : bf16 ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32;
}

/* The options that --job replaces. */
static int load_job(const struct plan_options *o, struct plan_inputs *in, struct hspmd_error *err)
{
	struct hspmd_mistakes all = hspmd_mistakes_logged();
	if (!(in->job = hspmd_job_read(o->job, &all, err)))
		return -1;
	if (in->job->command.argc)
		return hspmd_fail(err, "%s: a job with a command has no model to plan for", o->job);
	if (!(in->model = hspmd_model_read_job(in->job, NULL, err)))
		return -1;
	in->precision = in->job->precision;
	return hspmd_job_check_positions(in->job, in->model, err);
}

/* The plan that is evaluated says itself for what batch and length it is. A program may also be printed of one of its shorter steps. */
static int check_evaluated(const struct plan_options *o, const struct hspmd_plan *p, struct hspmd_error *err)
{
	if (o->global_batch && o->global_batch != p->global_batch)
		return hspmd_fail(err, "%s: global_batch is %d, but --global-batch says %d", o->evaluate, p->global_batch,
		                  (int)o->global_batch);
	if (o->seq_len && o->seq_len != p->seq_len && !o->program)
		return hspmd_fail(err, "%s: seq_len is %d, but --seq-len says %d", o->evaluate, p->seq_len, (int)o->seq_len);
	return 0;
}

/* For samples as long as those of the plan, or as requested, or as they were measured, or as long as the model takes. */
static int find_facts(const struct plan_options *o, struct plan_inputs *in, struct hspmd_error *err)
{
	int64_t seq_len = in->plan      ? in->plan->seq_len
	                  : in->job     ? in->job->seq_len
	                  : o->seq_len  ? o->seq_len
	                  : in->profile ? in->profile->seq_len
	                                : 0;
	if (in->job) {
		in->source = hspmd_graph_source_job(in->model, in->job);
		in->facts = hspmd_model_facts_build(&in->source, in->model->name, (int)seq_len, err);
	} else {
		in->source = hspmd_graph_source_model(in->model);
		in->source.precision = in->precision;
		int length = hspmd_model_facts_length(in->model, (int)seq_len, err);
		in->facts = length < 0 ? NULL : hspmd_model_facts_build(&in->source, in->model->name, length, err);
	}
	in->programs = (struct hspmd_program_search){ hspmd_program_find, &in->source };
	return in->facts ? 0 : -1;
}

/* A job can be planned where its data are not. */
static int find_lengths(const struct plan_options *o, struct plan_inputs *in, struct hspmd_error *err)
{
	struct hspmd_error why;
	if (o->lengths.count)
		return hspmd_step_lengths_find_facts(&in->lengths, in->model, &in->source, in->facts, err);
	if (!in->job || o->evaluate)
		return 0;
	if (hspmd_job_choose_lengths(in->job, in->model, NULL, &why) ||
	    hspmd_step_lengths_of_job(in->job, in->model, &in->source, in->facts, NULL, &in->lengths, &why)) {
		hspmd_warn("plans for shorter steps are not searched: %s", why.text);
		hspmd_step_lengths_clear(&in->lengths);
	}
	return 0;
}

static int load(const struct plan_options *o, struct plan_inputs *in, struct hspmd_error *err)
{
	in->cluster = hspmd_cluster_read(o->cluster, err);
	if (!in->cluster)
		return -1;
	in->precision = choose_precision(o, in->cluster);
	if (o->job && load_job(o, in, err))
		return -1;
	if (o->model && !(in->model = hspmd_model_read(o->model, err)))
		return -1;
	if (o->profile && !(in->profile = hspmd_profile_read(o->profile, err)))
		return -1;
	int layers = in->profile ? in->profile->layer_count : hspmd_model_layers(in->model);
	if (o->current && !(in->current = hspmd_plan_read_current(o->current, in->cluster, layers, &in->current_cluster, err)))
		return -1;
	if (o->evaluate && (!(in->plan = hspmd_plan_read(o->evaluate, in->cluster, layers, err)) || check_evaluated(o, in->plan, err)))
		return -1;
	const struct hspmd_solve_limits asked = { .max_nodes = (int)o->max_nodes,
		                                  .max_devices = (int)o->max_devices,
		                                  .type_count = o->types.count,
		                                  .types = o->types.items,
		                                  .max_price_per_hour = o->max_price,
		                                  .cost_weight = o->cost_weight };
	if (in->job && in->plan && hspmd_plan_check_job(o->evaluate, in->plan->global_batch, in->plan->seq_len, in->job, err))
		return -1;
	if (in->model && (find_facts(o, in, err) || find_lengths(o, in, err)))
		return -1;
	return hspmd_policy_limits(o->policy, o->rule, &asked, &in->policy, &in->limits, err);
}

static struct hspmd_plan_task task_of(const struct plan_inputs *in)
{
	return (struct hspmd_plan_task){ .model = in->model, .job = in->job, .precision = in->precision };
}

/* What the options ask for; a job adds what it says. */
static struct hspmd_solve_request request_of(const struct plan_options *o, const struct plan_inputs *in)
{
	return (struct hspmd_solve_request){
		.global_batch = (int)o->global_batch,
		.seq_len = (int)o->seq_len,
		.micro_batch = (int)o->micro_batch,
		.precision = in->precision,
		.time_limit_s = o->time_limit,
		.limits = in->limits,
		.programs = in->model && !in->lengths.count ? &in->programs : NULL,
		.current = in->current,
		.current_cluster = in->current_cluster,
	};
}

static int solve_mixed(const struct plan_options *o, struct plan_inputs *in, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	struct hspmd_solve_request request = request_of(o, in);
	struct hspmd_runtime_caps caps = hspmd_mixed_caps(NULL);
	request.caps = &caps;
	if (!(in->plan = hspmd_solve(in->cluster, in->facts, in->profile, &request, report, err)))
		return -1;
	return hspmd_search_mixed_plan(in->cluster, &request, in->lengths.shares, in->lengths.count, &in->plan, &in->lengths_report.mixed,
	                               err);
}

/* As hspmd run does. */
static int solve_job(const struct plan_options *o, struct plan_inputs *in, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	in->search = (struct hspmd_job_search){ .job = in->job,
		                                .cluster = in->cluster,
		                                .facts = in->facts,
		                                .profile = in->profile,
		                                .shares = in->lengths.shares,
		                                .share_count = in->lengths.count,
		                                .request = request_of(o, in) };
	hspmd_job_search_init(&in->search);
	if (in->cluster->node_count < in->job->elastic.min_nodes)
		hspmd_warn("%s: elastic.min_nodes: hspmd run needs %d nodes, the cluster has %d", o->job, in->job->elastic.min_nodes,
		           in->cluster->node_count);
	if (!(in->plan = hspmd_job_search_plan(&in->search, NULL, report, err)))
		return -1;
	hspmd_job_search_lengths(&in->search, &in->plan, &in->lengths_report);
	return 0;
}

static int solve(const struct plan_options *o, struct plan_inputs *in, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	const struct hspmd_plan_task task = task_of(in);
	const struct hspmd_program_limits limits = { .seconds = o->time_limit };
	if (in->plan && in->model && hspmd_plan_check_programs(in->cluster, &task, in->plan, CHECK_LIMIT_S, err))
		return hspmd_error_prefix(err, "%s", o->evaluate);
	if (in->job && !in->plan)
		return solve_job(o, in, report, err);
	if (o->mix_lengths)
		return solve_mixed(o, in, report, err);
	if (in->plan && in->plan->synthesis && in->model)
		return hspmd_evaluate_program(in->cluster, in->facts, &in->programs, in->precision, in->plan, &limits, report, err);
	if (in->plan)
		return hspmd_evaluate(in->cluster, in->facts, in->profile, in->precision, in->plan, report, err);
	struct hspmd_solve_request request = request_of(o, in);
	in->plan = hspmd_solve(in->cluster, in->facts, in->profile, &request, report, err);
	if (!in->plan || !in->lengths.count)
		return in->plan ? 0 : -1;
	return hspmd_search_shorter_plans(in->cluster, &request, in->lengths.shares, in->lengths.count, &in->plan,
	                                  &in->lengths_report.shorter, err);
}

/* What the search for a program found, and why. */
static int explain_program(const struct plan_inputs *in, const struct hspmd_solve_report *report, struct hspmd_error *err)
{
	if (!in->plan->synthesis && isinf(report->program_s))
		printf("Dividing every operator in a way of its own would not be faster.\n");
	else if (!in->plan->synthesis && report->program_s > 0)
		printf("Dividing every operator in a way of its own would take %.4g s a step, which is not worth it.\n", report->program_s);
	if (!in->plan->synthesis)
		return 0;
	if (report->whole_s > 0)
		printf("Every operator is divided in a way of its own. The best plan whose stages divide all operators in one way takes "
		       "%.4g s.\n",
		       report->whole_s);
	char *text = in->model ? hspmd_program_explain_stage(&in->source, in->plan, in->cluster, err) : NULL;
	if (!text)
		return in->model ? -1 : 0;
	hspmd_plan_wrap(stdout, text);
	free(text);
	return 0;
}

static int explain(const struct plan_options *o, const struct plan_inputs *in, const struct hspmd_solve_report *report,
                   struct hspmd_error *err)
{
	struct hspmd_solve_request request = in->search.job ? in->search.request : request_of(o, in);
	request.programs =
	        in->plan->synthesis && in->model ? &in->programs : NULL; /* what one more device would bring: plans of the same kind */
	char *text = hspmd_plan_explain(in->cluster, in->facts, in->profile, in->precision, o->evaluate ? NULL : &request, in->plan);
	if (!text)
		return hspmd_fail_memory(err, "explaining the plan");
	hspmd_plan_wrap(stdout, text);
	free(text);
	if (in->search.job) {
		if (!(text = hspmd_job_search_explain(&in->search, in->plan)))
			return hspmd_fail_memory(err, "explaining the plan");
		hspmd_plan_wrap(stdout, text);
		free(text);
	}
	if (in->lengths_report.shorter.count && !(text = hspmd_plan_explain_lengths(in->plan, &in->lengths_report.shorter)))
		return hspmd_fail_memory(err, "explaining the plan");
	if (in->lengths_report.shorter.count) {
		hspmd_plan_wrap(stdout, text);
		free(text);
	}
	if (in->lengths_report.mixed.count) {
		if (!(text = hspmd_plan_explain_mixed(in->plan, &in->lengths_report.mixed)))
			return hspmd_fail_memory(err, "explaining the plan");
		hspmd_plan_wrap(stdout, text);
		free(text);
	}
	return explain_program(in, report, err);
}

static int save(json_t *value, const char *path, struct hspmd_error *err)
{
	int rc = value ? hspmd_json_save(value, path, err) : hspmd_fail_memory(err, "writing JSON");
	json_decref(value);
	return rc;
}

/* The whole plan, or for a given plan only the prediction. */
static int print_json(const struct plan_options *o, const struct plan_inputs *in, struct hspmd_error *err)
{
	json_t *plan = hspmd_plan_to_json(in->plan, in->cluster);
	if (!plan || !o->evaluate)
		return save(plan, "-", err);
	json_t *predicted = json_incref(json_object_get(plan, "predicted"));
	json_decref(plan);
	return save(predicted, "-", err);
}

/* For a plan that needs more memory than there is: the table says it, JSON has no key for it. */
static void warn_of_memory(const struct plan_inputs *in, const struct hspmd_solve_report *report)
{
	char at[256];
	const struct hspmd_shortage *s = report->shortages;
	if (report->shortage_count)
		hspmd_warn("the plan does not fit: %s (pipeline %d, stage %d) needs %.2f GB, %.2f GB short%s",
		           hspmd_cluster_device_address(in->cluster, s->device, at, sizeof at), s->pipeline, s->stage, s->need_bytes / 1e9,
		           (s->need_bytes - s->have_bytes) / 1e9, report->shortage_count > 1 ? "; and so do others" : "");
}

static int print(const struct plan_options *o, const struct plan_inputs *in, const struct hspmd_solve_report *report,
                 struct hspmd_error *err)
{
	for (int i = 0; i < report->warning_count; i++)
		hspmd_warn("%s", report->warnings[i]);
	if (o->output && save(hspmd_plan_to_json(in->plan, in->cluster), o->output, err))
		return -1;
	if (o->trace && save(hspmd_plan_trace(in->cluster, in->facts, in->profile, in->precision, in->plan, err), o->trace, err))
		return -1;
	const struct hspmd_plan_task task = task_of(in);
	if (o->program)
		return hspmd_plan_print_program(in->cluster, &task, in->plan, o->program, o->evaluate ? o->seq_len : 0, o->explain, err);
	bool printed = o->output && !strcmp(o->output, "-"); /* one document on standard output */
	if (o->json) {
		warn_of_memory(in, report);
		return printed ? 0 : print_json(o, in, err);
	}
	if (!printed)
		hspmd_plan_table(stdout, in->plan, in->cluster, report, in->current && !o->evaluate);
	return o->explain ? explain(o, in, report, err) : 0;
}

int hspmd_command_plan(int argc, char **argv)
{
	struct plan_options o = { .cost_weight = NAN };
	struct plan_inputs in = { 0 };
	struct hspmd_error err = { "" };
	int status = parse(argc, argv, &o, &in.lengths);
	if (status) {
		hspmd_step_lengths_clear(&in.lengths);
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	}
	struct hspmd_solve_report report = { 0 };
	int rc = load(&o, &in, &err);
	if (!rc)
		rc = solve(&o, &in, &report, &err);
	if (!rc)
		rc = print(&o, &in, &report, &err);
	if (rc)
		hspmd_error_log("%s", err.text);
	hspmd_solve_report_clear(&report);
	hspmd_policy_limits_clear(&in.limits);
	hspmd_policy_destroy(in.policy);
	hspmd_plan_destroy(in.plan);
	hspmd_plan_destroy(in.current);
	hspmd_length_report_clear(&in.lengths_report.shorter);
	hspmd_mixed_report_clear(&in.lengths_report.mixed);
	hspmd_step_lengths_clear(&in.lengths);
	hspmd_profile_destroy(in.profile);
	hspmd_model_facts_destroy(in.facts);
	hspmd_model_destroy(in.model);
	hspmd_job_destroy(in.job);
	hspmd_cluster_destroy(in.current_cluster);
	hspmd_cluster_destroy(in.cluster);
	return rc ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
