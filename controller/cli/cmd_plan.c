/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd plan: solves for the fastest plan, or predicts a given one, and prints it. */
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "controller/cli/plan_program.h"
#include "controller/cli/plan_table.h"
#include "controller/solver/solver.h"

static const char help_text[] =
	"Usage: hspmd plan --cluster C (--model M | --profile P | both) --global-batch N [options]\n"
	"       hspmd plan --evaluate PLAN --cluster C (--model M | --profile P | both) [--json]\n"
	"\n"
	"Finds the fastest way to train a model on a cluster and prints it as a table.\n"
	"\n"
	"  --cluster FILE       what there is (hspmd discover writes it)\n"
	"  --model FILE         the model's config.json\n"
	"  --profile FILE       measured layer times (hspmd profile writes it)\n"
	"  --global-batch N     samples a step\n"
	"  --seq-len T          tokens a sample (default: the profile's, or the model's positions)\n"
	"  --micro-batch B      samples a micro-batch (default: chosen)\n"
	"  --precision WORD     fp32, tf32, bf16, fp16, fp8 or fp64 (default bf16 where devices have it, else fp32)\n"
	"  --current PLAN       the plan that runs now: prefer one near it\n"
	"  --time-limit S       return the best plan found in S seconds\n"
	"  --evaluate PLAN      predict this plan instead of solving\n"
	"      --program DEVICE print what one device (node:index) of the plan runs, an instruction a line (needs --model)\n"
	"  -o, --output FILE    write the plan to FILE ('-': standard output)\n"
	"      --trace FILE     write the predicted schedule for Perfetto (ui.perfetto.dev)\n"
	"      --explain        say what limits the plan; with --program, why the device communicates as it does\n"
	"      --json           print the plan as JSON; with --evaluate, what is predicted\n"
	"      --help           print this\n";

struct plan_options {
	const char *cluster, *model, *profile, *current, *evaluate, *output, *trace, *precision, *program;
	int64_t global_batch, seq_len, micro_batch;
	double time_limit;
	bool explain, json, help;
};

struct plan_inputs {
	struct hspmd_cluster *cluster;
	struct hspmd_model *model;
	struct hspmd_profile *profile;
	struct hspmd_plan *current, *plan;
	enum hspmd_precision precision;
};

enum { OPT_CLUSTER = 256, OPT_MODEL, OPT_PROFILE, OPT_BATCH, OPT_SEQ, OPT_MICRO, OPT_PRECISION, OPT_CURRENT, OPT_LIMIT, OPT_EVALUATE, OPT_TRACE, OPT_PROGRAM,
       OPT_EXPLAIN, OPT_JSON, OPT_HELP };

static const struct option long_options[] = {
	{ "cluster", required_argument, NULL, OPT_CLUSTER },
	{ "model", required_argument, NULL, OPT_MODEL },
	{ "profile", required_argument, NULL, OPT_PROFILE },
	{ "global-batch", required_argument, NULL, OPT_BATCH },
	{ "seq-len", required_argument, NULL, OPT_SEQ },
	{ "micro-batch", required_argument, NULL, OPT_MICRO },
	{ "precision", required_argument, NULL, OPT_PRECISION },
	{ "current", required_argument, NULL, OPT_CURRENT },
	{ "time-limit", required_argument, NULL, OPT_LIMIT },
	{ "evaluate", required_argument, NULL, OPT_EVALUATE },
	{ "output", required_argument, NULL, 'o' },
	{ "trace", required_argument, NULL, OPT_TRACE },
	{ "program", required_argument, NULL, OPT_PROGRAM },
	{ "explain", no_argument, NULL, OPT_EXPLAIN },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

/* 0, or an exit status that is not 0. */
static int parse(int argc, char **argv, struct plan_options *o)
{
	int opt, bad = 0;
	while ((opt = getopt_long(argc, argv, "o:h", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_CLUSTER: o->cluster = optarg; break;
		case OPT_MODEL: o->model = optarg; break;
		case OPT_PROFILE: o->profile = optarg; break;
		case OPT_PRECISION: o->precision = optarg; break;
		case OPT_CURRENT: o->current = optarg; break;
		case OPT_EVALUATE: o->evaluate = optarg; break;
		case OPT_TRACE: o->trace = optarg; break;
		case OPT_PROGRAM: o->program = optarg; break;
		case 'o': o->output = optarg; break;
		case OPT_BATCH: bad |= hspmd_option_int("global-batch", optarg, 1, INT_MAX, &o->global_batch); break;
		case OPT_SEQ: bad |= hspmd_option_int("seq-len", optarg, 1, INT_MAX, &o->seq_len); break;
		case OPT_MICRO: bad |= hspmd_option_int("micro-batch", optarg, 1, INT_MAX, &o->micro_batch); break;
		case OPT_LIMIT: bad |= hspmd_option_number("time-limit", optarg, 1e-3, 1e9, &o->time_limit); break;
		case OPT_EXPLAIN: o->explain = true; break;
		case OPT_JSON: o->json = true; break;
		case OPT_HELP:
		case 'h': o->help = true; break;
		default: return hspmd_usage_hint("plan");
		}
	}
	if (o->help)
		return 0;
	if (bad)
		return hspmd_usage_hint("plan");
	if (optind < argc)
		return hspmd_usage_error("plan", "unexpected argument '%s'", argv[optind]);
	if (!o->cluster)
		return hspmd_usage_error("plan", "--cluster is missing");
	if (!o->model && !o->profile)
		return hspmd_usage_error("plan", "--model or --profile is missing");
	if (o->program && !o->model)
		return hspmd_usage_error("plan", "--program needs --model");
	if (!o->evaluate && !o->global_batch)
		return hspmd_usage_error("plan", "--global-batch is missing");
	return 0;
}

static int choose_precision(const struct plan_options *o, struct plan_inputs *in, struct hspmd_error *err)
{
	if (!o->precision) {
		bool bf16 = true;
		for (int t = 0; t < in->cluster->type_count; t++)
			bf16 = bf16 && (in->cluster->types[t].peak_tflops[HSPMD_PRECISION_BF16] > 0 || in->cluster->types[t].tflops[HSPMD_PRECISION_BF16] > 0);
		in->precision = bf16 ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32;
		return 0;
	}
	for (int p = 0; hspmd_precision_words[p]; p++)
		if (!strcmp(hspmd_precision_words[p], o->precision)) {
			in->precision = (enum hspmd_precision)p;
			return 0;
		}
	return hspmd_fail(err, "--precision: unknown precision '%s'", o->precision);
}

static int load(const struct plan_options *o, struct plan_inputs *in, struct hspmd_error *err)
{
	in->cluster = hspmd_cluster_read(o->cluster, err);
	if (!in->cluster)
		return -1;
	if (o->model && !(in->model = hspmd_model_read(o->model, err)))
		return -1;
	if (o->profile && !(in->profile = hspmd_profile_read(o->profile, err)))
		return -1;
	int layers = in->profile ? in->profile->layer_count : hspmd_model_layers(in->model);
	if (o->current && !(in->current = hspmd_plan_read(o->current, in->cluster, layers, err)))
		return -1;
	if (o->evaluate && !(in->plan = hspmd_plan_read(o->evaluate, in->cluster, layers, err)))
		return -1;
	return choose_precision(o, in, err);
}

static struct hspmd_solve_request request_of(const struct plan_options *o, const struct plan_inputs *in)
{
	return (struct hspmd_solve_request){
		.global_batch = (int)o->global_batch,
		.seq_len = (int)o->seq_len,
		.micro_batch = (int)o->micro_batch,
		.precision = in->precision,
		.time_limit_s = o->time_limit,
		.current = in->current,
	};
}

static int solve(const struct plan_options *o, struct plan_inputs *in, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	if (in->plan)
		return hspmd_evaluate(in->cluster, in->model, in->profile, in->precision, in->plan, report, err);
	struct hspmd_solve_request request = request_of(o, in);
	in->plan = hspmd_solve(in->cluster, in->model, in->profile, &request, report, err);
	return in->plan ? 0 : -1;
}

static int explain(const struct plan_options *o, const struct plan_inputs *in, struct hspmd_error *err)
{
	struct hspmd_solve_request request = request_of(o, in);
	char *text = hspmd_plan_explain(in->cluster, in->model, in->profile, o->evaluate ? NULL : &request, in->plan);
	if (!text)
		return hspmd_fail_memory(err, "explaining the plan");
	fputs(text, stdout);
	free(text);
	return 0;
}

static int save(json_t *value, const char *path, struct hspmd_error *err)
{
	int rc = value ? hspmd_json_save(value, path, err) : hspmd_fail_memory(err, "writing JSON");
	json_decref(value);
	return rc;
}

/* The whole plan, or what is predicted alone when a plan was given. */
static int print_json(const struct plan_options *o, const struct plan_inputs *in, struct hspmd_error *err)
{
	json_t *plan = hspmd_plan_to_json(in->plan, in->cluster);
	if (!plan || !o->evaluate)
		return save(plan, "-", err);
	json_t *predicted = json_incref(json_object_get(plan, "predicted"));
	json_decref(plan);
	return save(predicted, "-", err);
}

static int print(const struct plan_options *o, const struct plan_inputs *in, const struct hspmd_solve_report *report, struct hspmd_error *err)
{
	for (int i = 0; i < report->warning_count; i++)
		hspmd_warn("%s", report->warnings[i]);
	if (o->output && save(hspmd_plan_to_json(in->plan, in->cluster), o->output, err))
		return -1;
	if (o->trace && save(hspmd_plan_trace(in->cluster, in->model, in->profile, in->precision, in->plan, err), o->trace, err))
		return -1;
	if (o->program)
		return hspmd_plan_print_program(in->cluster, in->model, in->plan, o->program, o->explain, err);
	if (o->json)
		return print_json(o, in, err);
	if (!o->output || strcmp(o->output, "-"))
		hspmd_plan_table(stdout, in->plan, in->cluster, report);
	return o->explain ? explain(o, in, err) : 0;
}

int hspmd_command_plan(int argc, char **argv)
{
	struct plan_options o = { 0 };
	struct plan_inputs in = { 0 };
	struct hspmd_error err = { "" };
	int status = parse(argc, argv, &o);
	if (status)
		return status;
	if (o.help) {
		fputs(help_text, stdout);
		return HSPMD_EXIT_DONE;
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
	hspmd_plan_destroy(in.plan);
	hspmd_plan_destroy(in.current);
	hspmd_profile_destroy(in.profile);
	hspmd_model_destroy(in.model);
	hspmd_cluster_destroy(in.cluster);
	return rc ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
