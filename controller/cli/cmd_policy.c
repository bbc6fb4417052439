/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd policy check | explain | simulate | record: checks policies; says what a job would get and why; replays a trace, or makes one. */
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/format/job.h"
#include "common/format/week_times.h"
#include "common/json.h"
#include "common/log.h"
#include "common/progress.h"
#include "controller/cli/commands.h"
#include "controller/cli/policy_names.h"
#include "controller/cli/policy_record.h"
#include "policies/limits.h"
#include "policies/match.h"
#include "policies/shadow.h"
#include "policies/simulate.h"

static const char help_text[] =
        "Usage: hspmd policy check [--slurm] FILE|FOLDER...\n"
        "       hspmd policy explain [--job J] [--user U] [--account A] [--partition P] [--qos Q] [--policy NAME] [--nodes N] [--time T] "
        "[--json]\n"
        "       hspmd policy simulate FILE|FOLDER --trace T [--mode MODE] [--json]\n"
        "       hspmd policy record [--elastic KEY=PATTERN] [--elastic-nodes MIN-MAX] [--node-list LIST] [-o FILE] <SACCT-OUTPUT\n"
        "\n"
        "Checks, explains and simulates the site's policies; records what to simulate.\n"
        "\n"
        "check      reads and checks policy files, as one site's set; also owner and modes, and links; warns of rules that no job reaches\n"
        "explain    says which rule a job gets, why earlier rules do not match, and which values hold\n"
        "simulate   replays a trace of nodes and jobs and prints what would have happened under the policy\n"
        "record     makes a trace of the jobs that sacct --allusers --parsable2 prints, to be replayed by simulate\n"
        "\n"
        "  --slurm              check also that Slurm knows the partitions, QOS, accounts and users of the rules\n"
        "  --policies PATH      folder or file of policies (explain; default " HSPMD_SYSCONFDIR "/hspmd/policies.d)\n"
        "  --owner USER         user whose files in a folder are trusted besides root's (default: you)\n"
        "  --job FILE           job file: gives the policy's name and the number of nodes\n"
        "  --user NAME          default: you\n"
        "  --account, --partition, --qos NAME\n"
        "                       default: not known\n"
        "  --policy NAME        as --hspmd-policy of sbatch\n"
        "  --nodes N            greatest number of nodes that the job requests\n"
        "  --time T             when, such as \"sat 03:00\" (default: not known)\n"
        "  --trace FILE         the trace\n"
        "  --mode MODE          policy (default), without (no resizes), preempt (whole jobs are preempted), or all\n"
        "  --elastic KEY=PATTERN\n"
        "                       record these jobs as elastic: KEY is partition, account, user, qos or name (default: jobs\n"
        "                       that were elastic)\n"
        "  --elastic-nodes MIN-MAX\n"
        "                       how far they may shrink and grow (default: half and four times what each had)\n"
        "  --node-list LIST     all nodes of the cluster (default: those on which jobs ran)\n"
        "  -o, --output FILE    where the trace goes (default: standard output)\n"
        "      --json           print the result as JSON\n"
        "      --help           print this\n";

struct policy_options {
	const char *policies, *owner, *job, *trace, *mode, *output;
	struct policy_record_options record;
	struct hspmd_policy_subject subject;
	int64_t nodes;
	bool slurm, json, help;
};

enum {
	OPT_POLICIES = 256,
	OPT_OWNER,
	OPT_JOB,
	OPT_USER,
	OPT_ACCOUNT,
	OPT_PARTITION,
	OPT_QOS,
	OPT_POLICY,
	OPT_NODES,
	OPT_TIME,
	OPT_TRACE,
	OPT_MODE,
	OPT_ELASTIC,
	OPT_SLURM,
	OPT_ELASTIC_NODES,
	OPT_NODE_LIST,
	OPT_JSON,
	OPT_HELP
};

static const struct option long_options[] = {
	{ "policies", required_argument, NULL, OPT_POLICIES },
	{ "owner", required_argument, NULL, OPT_OWNER },
	{ "job", required_argument, NULL, OPT_JOB },
	{ "user", required_argument, NULL, OPT_USER },
	{ "account", required_argument, NULL, OPT_ACCOUNT },
	{ "partition", required_argument, NULL, OPT_PARTITION },
	{ "qos", required_argument, NULL, OPT_QOS },
	{ "policy", required_argument, NULL, OPT_POLICY },
	{ "nodes", required_argument, NULL, OPT_NODES },
	{ "time", required_argument, NULL, OPT_TIME },
	{ "trace", required_argument, NULL, OPT_TRACE },
	{ "mode", required_argument, NULL, OPT_MODE },
	{ "elastic", required_argument, NULL, OPT_ELASTIC },
	{ "elastic-nodes", required_argument, NULL, OPT_ELASTIC_NODES },
	{ "node-list", required_argument, NULL, OPT_NODE_LIST },
	{ "output", required_argument, NULL, 'o' },
	{ "slurm", no_argument, NULL, OPT_SLURM },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

static int parse_elastic_nodes(const char *text, struct policy_record_options *o)
{
	char rest;
	if (sscanf(text, "%d-%d%c", &o->min_nodes, &o->max_nodes, &rest) == 2 && o->min_nodes > 0 && o->max_nodes >= o->min_nodes)
		return 0;
	hspmd_error_log("--elastic-nodes: expected MIN-MAX, got '%s'", text);
	return -1;
}

static int parse_time(const char *text, int *week_minute)
{
	int minute = hspmd_week_minute_read(text);
	*week_minute = 1 + minute;
	if (minute >= 0)
		return 0;
	hspmd_error_log("--time: expected a day and an hour, such as \"sat 03:00\", got '%s'", text);
	return -1;
}

static int parse(int argc, char **argv, struct policy_options *o)
{
	int opt, bad = 0;
	while ((opt = getopt_long(argc, argv, "ho:", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_POLICIES:
			o->policies = optarg;
			break;
		case OPT_OWNER:
			o->owner = optarg;
			break;
		case OPT_JOB:
			o->job = optarg;
			break;
		case OPT_USER:
			o->subject.user = optarg;
			break;
		case OPT_ACCOUNT:
			o->subject.account = optarg;
			break;
		case OPT_PARTITION:
			o->subject.partition = optarg;
			break;
		case OPT_QOS:
			o->subject.qos = optarg;
			break;
		case OPT_POLICY:
			o->subject.policy = optarg;
			break;
		case OPT_NODES:
			bad |= hspmd_option_int("nodes", optarg, 1, INT_MAX, &o->nodes);
			break;
		case OPT_TIME:
			bad |= parse_time(optarg, &o->subject.week_minute);
			break;
		case OPT_TRACE:
			o->trace = optarg;
			break;
		case OPT_MODE:
			o->mode = optarg;
			break;
		case OPT_SLURM:
			o->slurm = true;
			break;
		case OPT_ELASTIC:
			o->record.elastic = optarg;
			break;
		case OPT_ELASTIC_NODES:
			bad |= parse_elastic_nodes(optarg, &o->record);
			break;
		case OPT_NODE_LIST:
			o->record.nodes = optarg;
			break;
		case 'o':
			o->output = optarg;
			break;
		case OPT_JSON:
			o->json = true;
			break;
		case OPT_HELP:
		case 'h':
			o->help = true;
			break;
		default:
			return hspmd_usage_hint("policy");
		}
	}
	return bad ? hspmd_usage_hint("policy") : 0;
}

static int trusted(const struct policy_options *o, struct hspmd_policy_trust *trust, struct hspmd_error *err)
{
	trust->owner = getuid();
	if (!o->owner)
		return 0;
	const struct passwd *pw = getpwnam(o->owner);
	if (!pw)
		return hspmd_fail(err, "--owner: no user '%s'", o->owner);
	trust->owner = pw->pw_uid;
	return 0;
}

static int failed(const struct hspmd_error *err)
{
	hspmd_error_log("%s", err->text);
	return HSPMD_EXIT_FAILED;
}

static int print_json(json_t *value, struct hspmd_error *err)
{
	int rc = value ? hspmd_json_save(value, "-", err) : hspmd_fail_memory(err, "printing");
	json_decref(value);
	return rc;
}

/* ---- check */

/* Several files and folders as one set, in the given order; a rule that occurs in two of them is an error. */
static int add_all(struct hspmd_policy *p, int count, char **paths, const struct hspmd_policy_trust *trust, struct hspmd_error *err)
{
	for (int i = 0; i < count; i++)
		if (hspmd_policy_add_path(p, paths[i], trust, err) < 0)
			return -1;
	return hspmd_policy_check(p, err);
}

static void warn_of_shadows(const struct hspmd_policy *p)
{
	for (int i = 0; i < p->rule_count; i++) {
		const struct hspmd_policy_rule *r = &p->rules[i], *by;
		int at = 0;
		enum hspmd_policy_shadow shadow = hspmd_policy_find_shadow(p, i, &at);
		by = &p->rules[at];
		if (shadow == HSPMD_POLICY_UNREACHED)
			hspmd_warn("%s: rule %s never decides: rule %s (%s) comes first and matches all of its jobs", p->files[r->file],
			           r->name, by->name, p->files[by->file]);
		else if (shadow == HSPMD_POLICY_BY_NAME_ONLY)
			hspmd_warn("%s: rule %s decides only for jobs that ask for it (--hspmd-policy): rule %s (%s) comes first and "
			           "matches its other jobs",
			           p->files[r->file], r->name, by->name, p->files[by->file]);
	}
}

static int check(const struct policy_options *o, int count, char **paths)
{
	struct hspmd_error err = { "" };
	struct hspmd_policy_trust trust;
	if (!count)
		return hspmd_usage_error("policy", "check: no file");
	struct hspmd_policy *p = hspmd_policy_create(&err);
	if (!p || trusted(o, &trust, &err) < 0 || add_all(p, count, paths, &trust, &err) < 0) {
		hspmd_policy_destroy(p);
		return failed(&err);
	}
	int rc = 0;
	if (o->json)
		rc = print_json(hspmd_policy_to_json(p), &err);
	else
		printf("%d file%s, %d rule%s: all right\n", p->file_count, p->file_count == 1 ? "" : "s", p->rule_count,
		       p->rule_count == 1 ? "" : "s");
	warn_of_shadows(p);
	if (o->slurm)
		policy_names_check(p);
	hspmd_policy_destroy(p);
	return rc < 0 ? failed(&err) : HSPMD_EXIT_DONE;
}

/* ---- explain */

struct explanation {
	const struct hspmd_policy *p;
	struct hspmd_policy_subject subject;
	int nodes, most; /* the fewest that the job takes, and the most; 0: not known */
	int rules[16], rule_count;
	struct hspmd_error refused; /* "" if it is not refused */
	struct hspmd_policy_bound bound;
};

static json_t *fit_json(const struct explanation *x)
{
	static const char *const words[] = { "no", "perhaps", "yes" };
	json_t *array = json_array();
	char why[700];
	for (int i = 0; array && i < x->p->rule_count; i++) {
		const struct hspmd_policy_rule *r = &x->p->rules[i];
		why[0] = '\0';
		enum hspmd_match_result fit = hspmd_policy_match_rule(r, &x->subject, why, sizeof why);
		json_array_append_new(array, json_pack("{s:s, s:s, s:s, s:s}", "rule", r->name, "file", x->p->files[r->file], "matches",
		                                       words[fit], "why", why));
		if (fit == HSPMD_MATCH_YES)
			break;
	}
	return array;
}

static json_t *terms_json(const struct explanation *x, int rule)
{
	struct hspmd_policy_terms t = hspmd_policy_effective(x->p, rule);
	json_t *array = json_array();
	char from[160], key[64];
	for (int i = 0; array && i < hspmd_policy_field_count; i++) {
		snprintf(key, sizeof key, "%s.%s", hspmd_policy_fields[i].section, hspmd_policy_fields[i].key);
		json_array_append_new(array, json_pack("{s:s, s:o, s:s}", "term", key, "value", hspmd_policy_value(&t, i), "from",
		                                       hspmd_policy_source(x->p, rule, i, from, sizeof from)));
	}
	return array;
}

static json_t *explain_json(const struct explanation *x)
{
	json_t *array = json_array();
	json_t *out = json_pack("{s:o, s:o, s:s?, s:s?}", "considered", fit_json(x), "candidates", array, "refused",
	                        *x->refused.text ? x->refused.text : NULL, "bounded", *x->bound.fewer ? x->bound.fewer : NULL);
	for (int i = 0; out && i < x->rule_count; i++) {
		int r = x->rules[i];
		json_array_append_new(array,
		                      json_pack("{s:s?, s:o}", "rule", r < 0 ? NULL : x->p->rules[r].name, "terms", terms_json(x, r)));
	}
	return out;
}

static void explain_text(const json_t *out)
{
	const json_t *item, *term;
	size_t i, k;
	json_array_foreach(json_object_get(out, "considered"), i, item)
		printf("rule %-20s %-24s %-8s %s\n", json_string_value(json_object_get(item, "rule")),
		       json_string_value(json_object_get(item, "file")), json_string_value(json_object_get(item, "matches")),
		       json_string_value(json_object_get(item, "why")));
	json_array_foreach(json_object_get(out, "candidates"), i, item) {
		const char *rule = json_string_value(json_object_get(item, "rule"));
		printf("%s%s%s:\n", i ? "or, " : "", rule ? "by rule " : "by no rule, the defaults alone", rule ? rule : "");
		json_array_foreach(json_object_get(item, "terms"), k, term) {
			char *value = json_dumps(json_object_get(term, "value"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(10));
			printf("  %-32s %-16s %s\n", json_string_value(json_object_get(term, "term")), value ? value : "?",
			       json_string_value(json_object_get(term, "from")));
			free(value);
		}
	}
	const char *refused = json_string_value(json_object_get(out, "refused")),
	           *fewer = json_string_value(json_object_get(out, "bounded"));
	if (refused)
		printf("refused: %s\n", refused);
	if (fewer)
		printf("%s: the job does not grow beyond\n", fewer);
}

static int explain_with(const struct policy_options *o, const struct hspmd_policy *p, const struct hspmd_job *job)
{
	struct explanation x = { .p = p, .subject = o->subject, .nodes = (int)o->nodes };
	struct hspmd_error err = { "" };
	if (!x.subject.policy && job)
		x.subject.policy = job->elastic.policy;
	if (!x.nodes && job)
		x.nodes = job->elastic.min_nodes;
	if (job && job->elastic.max_nodes < INT_MAX)
		x.most = job->elastic.max_nodes;
	x.rule_count = hspmd_policy_candidates(p, &x.subject, x.rules, 16, &x.refused);
	struct hspmd_policy_request request = { .nodes = x.nodes };
	for (int i = 0; i < x.rule_count; i++)
		if (hspmd_policy_check_limits(p, x.rules[i], &request, i ? NULL : &x.refused) == 0)
			hspmd_policy_widen_bound(p, x.rules[i], x.most, 0, &x.bound);
	if (x.bound.nodes)
		x.refused.text[0] = '\0';
	json_t *out = explain_json(&x);
	if (!out)
		return hspmd_fail_memory(&err, "explaining"), failed(&err);
	int rc = 0;
	if (o->json)
		rc = hspmd_json_save(out, "-", &err);
	else
		explain_text(out);
	json_decref(out);
	return rc < 0 ? failed(&err) : HSPMD_EXIT_DONE;
}

static int explain(const struct policy_options *o)
{
	struct hspmd_error err = { "" };
	struct hspmd_policy_trust trust;
	struct policy_options with = *o;
	const struct passwd *me = getpwuid(getuid());
	if (!with.subject.user && me)
		with.subject.user = me->pw_name;
	if (trusted(o, &trust, &err) < 0)
		return failed(&err);
	struct hspmd_mistakes all = hspmd_mistakes_logged();
	struct hspmd_job *job = o->job ? hspmd_job_read(o->job, &all, &err) : NULL;
	if (o->job && !job)
		return failed(&err);
	struct hspmd_policy *p = hspmd_policy_read(o->policies ? o->policies : HSPMD_SYSCONFDIR "/hspmd/policies.d", &trust, &err);
	int status = p ? explain_with(&with, p, job) : failed(&err);
	hspmd_policy_destroy(p);
	hspmd_job_destroy(job);
	return status;
}

/* ---- simulate */

/* A trace without jobs gets one elastic job that may take all nodes, with 1000 n^0.95 tokens per second on n nodes. */
static json_t *with_a_job(const struct hspmd_trace *t)
{
	json_t *doc = hspmd_trace_to_json(t), *curve = json_array();
	for (int n = 1; curve && n <= t->node_count; n++)
		json_array_append_new(curve, json_real(1000 * pow(n, 0.95)));
	json_t *event = json_pack("{s:f, s:s, s:{s:i, s:b, s:i, s:s, s:f, s:o}}", "time_s", 0.0, "event", "submit", "job", "id", 1,
	                          "elastic", 1, "max_nodes", t->node_count, "partition", "spot", "pause_s", 5.0, "tokens_per_s", curve);
	if (!doc || json_array_insert_new(json_object_get(doc, "events"), 0, event) < 0) {
		json_decref(doc);
		return NULL;
	}
	return doc;
}

static struct hspmd_trace *read_trace(const char *path, struct hspmd_error *err)
{
	struct hspmd_trace *t = hspmd_trace_read(path, err), *filled = NULL;
	if (!t || t->job_count || !t->node_count)
		return t;
	json_t *doc = with_a_job(t);
	if (doc)
		filled = hspmd_trace_from_json(doc, path, err);
	else
		hspmd_fail_memory(err, "simulating");
	hspmd_info("the trace has no jobs; it gets one elastic job that may take every node");
	json_decref(doc);
	hspmd_trace_destroy(t);
	return filled;
}

static void print_result(const struct hspmd_policy_sim_result *r)
{
	printf("%-9s nodes used %.1f of %.1f (%.1f %%), %d grows (%d nodes), %d shrinks (%d nodes), %d preemptions, %d nodes lost\n",
	       hspmd_policy_sim_mode_names[r->mode], r->end_s > 0 ? r->used_node_s / r->end_s : 0, r->end_s > 0 ? r->node_s / r->end_s : 0,
	       r->node_s > 0 ? 100 * r->used_node_s / r->node_s : 0, r->grows, r->nodes_grown, r->shrinks, r->nodes_given, r->preemptions,
	       r->node_losses);
	if (r->rigid)
		printf("          rigid jobs: %d of %d started, %d done, waited %.0f s in the mean, %.0f s at most\n", r->rigid_started,
		       r->rigid, r->rigid_done, r->rigid_wait_s, r->rigid_wait_max_s);
	if (r->elastic)
		printf("          elastic jobs: %d of %d started, %d done, waited %.0f s in the mean; %.6g tokens\n", r->elastic_started,
		       r->elastic, r->elastic_done, r->elastic_wait_s, r->tokens);
	printf("          work lost: %.0f node seconds, %.6g tokens; stalled: %.0f node seconds\n", r->lost_node_s, r->lost_tokens,
	       r->stalled_node_s);
}

static int simulate_mode(const struct policy_options *o, const struct hspmd_policy *p, const struct hspmd_trace *t,
                         enum hspmd_policy_sim_mode mode, json_t *list, struct hspmd_error *err)
{
	struct hspmd_policy_sim_options options = hspmd_policy_sim_defaults;
	struct hspmd_policy_sim_result r;
	options.mode = mode;
	options.on_time = hspmd_progress;
	hspmd_progress_begin("simulate");
	int rc = hspmd_policy_simulate(p, t, &options, &r, err);
	hspmd_progress_end();
	if (rc < 0)
		return -1;
	if (!o->json)
		print_result(&r);
	else if (json_array_append_new(list, hspmd_policy_sim_result_to_json(&r)) < 0)
		return hspmd_fail_memory(err, "printing");
	return 0;
}

static int simulate_modes(const struct policy_options *o, const struct hspmd_policy *p, const struct hspmd_trace *t, bool all, int mode,
                          struct hspmd_error *err)
{
	json_t *list = json_array();
	int rc = list ? 0 : hspmd_fail_memory(err, "simulating");
	for (int m = all ? 0 : mode; rc == 0 && (all ? hspmd_policy_sim_mode_names[m] != NULL : m == mode); m++)
		rc = simulate_mode(o, p, t, (enum hspmd_policy_sim_mode)m, list, err);
	if (rc == 0 && o->json)
		rc = hspmd_json_save(all ? list : json_array_get(list, 0), "-", err);
	json_decref(list);
	return rc;
}

static int simulate(const struct policy_options *o, int count, char **paths)
{
	struct hspmd_error err = { "" };
	struct hspmd_policy_trust trust;
	bool all = o->mode && !strcmp(o->mode, "all");
	int mode = 0;
	if (count != 1)
		return hspmd_usage_error("policy", "simulate: expected one file or folder of policies");
	if (!o->trace)
		return hspmd_usage_error("policy", "simulate: --trace is missing");
	while (o->mode && !all && hspmd_policy_sim_mode_names[mode] && strcmp(hspmd_policy_sim_mode_names[mode], o->mode) != 0)
		mode++;
	if (!hspmd_policy_sim_mode_names[mode])
		return hspmd_usage_error("policy", "--mode: unknown mode '%s'", o->mode);
	if (trusted(o, &trust, &err) < 0)
		return failed(&err);
	struct hspmd_policy *p = hspmd_policy_create(&err);
	struct hspmd_trace *t = NULL;
	int rc = p && add_all(p, 1, paths, &trust, &err) == 0 && (t = read_trace(o->trace, &err)) ? 0 : -1;
	if (rc == 0)
		rc = simulate_modes(o, p, t, all, mode, &err);
	hspmd_trace_destroy(t);
	hspmd_policy_destroy(p);
	return rc < 0 ? failed(&err) : HSPMD_EXIT_DONE;
}

/* ---- record */

static int record(const struct policy_options *o)
{
	struct hspmd_error err = { "" };
	struct policy_record_counts n;
	const char *equals = o->record.elastic ? strchr(o->record.elastic, '=') : NULL;
	static const char *const keys[] = { "partition=", "account=", "user=", "qos=", "name=", NULL };
	int key = 0;
	while (o->record.elastic && keys[key] && strncmp(o->record.elastic, keys[key], strlen(keys[key])) != 0)
		key++;
	if (o->record.elastic && (!equals || !keys[key]))
		return hspmd_usage_error("policy", "--elastic: expected partition=, account=, user=, qos= or name= and a pattern, got '%s'",
		                         o->record.elastic);
	json_t *trace = policy_record_read(stdin, &o->record, &n, &err);
	int rc = trace ? hspmd_json_save(trace, o->output ? o->output : "-", &err) : -1;
	json_decref(trace);
	if (rc < 0)
		return failed(&err);
	hspmd_info("%d jobs, %d of them elastic; %d had not ended; left out: %d that never started, %d lines that make no sense%s%s",
	           n.jobs, n.elastic, n.unfinished, n.never_started, n.bad_lines, *n.first_bad ? ", first " : "", n.first_bad);
	return HSPMD_EXIT_DONE;
}

int hspmd_command_policy(int argc, char **argv)
{
	struct policy_options o = { 0 };
	int status = parse(argc, argv, &o);
	if (status)
		return status;
	if (o.help) {
		fputs(help_text, stdout);
		return HSPMD_EXIT_DONE;
	}
	if (optind == argc)
		return hspmd_usage_error("policy", "expected check, explain, simulate or record");
	const char *verb = argv[optind++];
	if (!strcmp(verb, "check"))
		return check(&o, argc - optind, argv + optind);
	if (!strcmp(verb, "simulate"))
		return simulate(&o, argc - optind, argv + optind);
	bool records = !strcmp(verb, "record");
	if (!records && strcmp(verb, "explain") != 0)
		return hspmd_usage_error("policy", "unknown '%s': expected check, explain, simulate or record", verb);
	if (optind < argc)
		return hspmd_usage_error("policy", "unexpected argument '%s'", argv[optind]);
	return records ? record(&o) : explain(&o);
}
