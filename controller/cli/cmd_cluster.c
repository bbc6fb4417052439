/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd cluster: shows what hspmdctld sees and last decided. */
#include <getopt.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/json.h"
#include "common/log.h"
#include "controller/cli/ctld_query.h"
#include "controller/cli/commands.h"
#include "controller/ctld_client/protocol.h"
#include "controller/slurm/job.h"

#define MUNGED "/run/munge/munge.socket.2"

static const char help_text[] =
        "Usage: hspmd cluster [--ctld [UID@]HOST:PORT] [--json]\n"
        "       hspmd cluster --quote NODES [--partition P] [--constraint C] [--gres G] [--json]\n"
        "\n"
        "Shows what hspmdctld sees of the cluster and its elastic jobs, its last requests to them, and why; or the quote for a\n"
        "job that is submitted now: how many elastic jobs you have, and the least price of that many nodes.\n"
        "\n"
        "  --ctld WHERE          hspmdctld's address and the user it runs as (default: HSPMD_CTLD, else localhost and user slurm)\n"
        "  --quote NODES         price of that many of the cheapest nodes that satisfy the next three options (as of sbatch)\n"
        "  --partition P[,P...]\n"
        "  --constraint C\n"
        "  --gres G\n"
        "  --munge-socket PATH   munged's socket (default: AuthInfo of slurm.conf)\n"
        "  --timeout S           give up after S seconds (default 10)\n"
        "      --json            print everything as JSON\n"
        "      --help            print this\n";

struct cluster_options {
	const char *where, *munge, *partition, *constraint, *gres;
	double timeout;
	int64_t nodes; /* to quote; 0: show the cluster */
	bool json, help;
};

enum { OPT_CTLD = 256, OPT_MUNGE, OPT_TIMEOUT, OPT_QUOTE, OPT_PARTITION, OPT_CONSTRAINT, OPT_GRES, OPT_JSON, OPT_HELP };

static const struct option long_options[] = {
	{ "ctld", required_argument, NULL, OPT_CTLD },
	{ "munge-socket", required_argument, NULL, OPT_MUNGE },
	{ "timeout", required_argument, NULL, OPT_TIMEOUT },
	{ "quote", required_argument, NULL, OPT_QUOTE },
	{ "partition", required_argument, NULL, OPT_PARTITION },
	{ "constraint", required_argument, NULL, OPT_CONSTRAINT },
	{ "gres", required_argument, NULL, OPT_GRES },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

static int parse(int argc, char **argv, struct cluster_options *o)
{
	int opt;
	while ((opt = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_CTLD:
			o->where = optarg;
			break;
		case OPT_MUNGE:
			o->munge = optarg;
			break;
		case OPT_TIMEOUT:
			if (hspmd_option_number("timeout", optarg, 0.1, 3600, &o->timeout) < 0)
				return hspmd_usage_hint("cluster");
			break;
		case OPT_QUOTE:
			if (hspmd_option_int("quote", optarg, 1, 1 << 20, &o->nodes) < 0)
				return hspmd_usage_hint("cluster");
			break;
		case OPT_PARTITION:
			o->partition = optarg;
			break;
		case OPT_CONSTRAINT:
			o->constraint = optarg;
			break;
		case OPT_GRES:
			o->gres = optarg;
			break;
		case OPT_JSON:
			o->json = true;
			break;
		case OPT_HELP:
		case 'h':
			o->help = true;
			break;
		default:
			return hspmd_usage_hint("cluster");
		}
	}
	return optind < argc ? hspmd_usage_error("cluster", "unexpected argument '%s'", argv[optind]) : 0;
}

static const char *text_of(const json_t *o, const char *key)
{
	const char *t = json_string_value(json_object_get(o, key));
	return t ? t : "";
}

static long long number_of(const json_t *o, const char *key)
{
	return (long long)json_number_value(json_object_get(o, key));
}

static void print_cluster(const json_t *c)
{
	const json_t *n = json_object_get(c, "nodes"), *t = json_object_get(c, "totals"), *job;
	size_t i;
	printf("nodes: %lld idle, %lld busy, %lld leaving, %lld unusable; %lld jobs wait; seen %.0f s ago\n", number_of(n, "idle"),
	       number_of(n, "busy"), number_of(n, "leaving"), number_of(n, "unusable"), number_of(c, "waiting_jobs"),
	       json_number_value(json_object_get(c, "seen_s_ago")));
	printf("asked: %lld grows, %lld shrinks; %lld declined, %lld not answered; %lld calls to slurmctld\n", number_of(t, "grows"),
	       number_of(t, "shrinks"), number_of(t, "declined"), number_of(t, "unanswered"), number_of(t, "rpcs"));
	if (json_is_true(json_object_get(c, "dry_run")))
		puts("dry run: hspmdctld decides and logs, and asks nobody");
	if (*text_of(c, "policy_error"))
		printf("policies were not taken: %s\n", text_of(c, "policy_error"));
	if (*text_of(c, "trouble"))
		printf("trouble: %s\n", text_of(c, "trouble"));
	if (json_array_size(json_object_get(c, "jobs")))
		printf("%-10s %-10s %-12s %-14s %-12s %s\n", "JOB", "USER", "PARTITION", "NODES", "TOKENS/S", "ASKED, OR WHY NOT");
	json_array_foreach(json_object_get(c, "jobs"), i, job) {
		char nodes[48];
		long long most = number_of(job, "max_nodes");
		if (most)
			snprintf(nodes, sizeof nodes, "%lld (%lld-%lld)", number_of(job, "nodes"), number_of(job, "min_nodes"), most);
		else
			snprintf(nodes, sizeof nodes, "%lld (%lld-)", number_of(job, "nodes"), number_of(job, "min_nodes"));
		const char *would = json_is_true(json_object_get(c, "dry_run")) && *text_of(job, "asked") ? "would " : "";
		const char *what = *text_of(job, "asked") ? text_of(job, "asked")
		                   : *text_of(job, "why") ? text_of(job, "why")
		                                          : text_of(job, "last");
		printf("%-10lld %-10s %-12s %-14s %-12lld %s%s\n", number_of(job, "job"), text_of(job, "user"), text_of(job, "partition"),
		       nodes, number_of(job, "tokens_per_s"), would, what);
	}
}

static json_t *make_ask(const struct cluster_options *o)
{
	if (!o->nodes)
		return json_pack("{s:s}", "type", CTLD_MESSAGE_QUERY);
	return json_pack("{s:s, s:I, s:s*, s:s*, s:s*}", "type", "quote", "nodes", (json_int_t)o->nodes, "partition", o->partition,
	                 "features", o->constraint, "gres", o->gres);
}

static void print_quote(const struct cluster_options *o, const json_t *q)
{
	printf("elastic jobs you have: %lld\n%lld nodes cost an hour, at least: %g\n", number_of(q, "jobs"), (long long)o->nodes,
	       json_number_value(json_object_get(q, "price_per_hour")));
}

static int run(const struct cluster_options *o, struct hspmd_error *err)
{
	char *socket = NULL;
	bool munge = false;
	int rc = 0;
	/* Query slurmctld only if necessary. */
	if (!o->munge && access(MUNGED, F_OK) < 0 && hspmd_slurm_munge_socket(&socket, &munge, err))
		return hspmd_error_prefix(err, "munged's socket is not %s; asking Slurm for it (--munge-socket names one)", MUNGED);
	json_t *(*ask)(const char *, const char *, json_t *, double, struct hspmd_error *) =
	        o->nodes ? hspmd_ctld_query_quote : hspmd_ctld_query;
	json_t *answer = ask(o->where, o->munge ? o->munge : socket, make_ask(o), o->timeout, err);
	if (!answer)
		rc = -1;
	else if (o->json)
		rc = hspmd_json_save(answer, "-", err);
	else if (o->nodes)
		print_quote(o, answer);
	else
		print_cluster(answer);
	json_decref(answer);
	free(socket);
	return rc;
}

int hspmd_command_cluster(int argc, char **argv)
{
	const char *env = getenv("HSPMD_CTLD");
	struct cluster_options o = { .where = env && *env ? env : "localhost", .timeout = 10 };
	struct hspmd_error err = { "" };
	int status = parse(argc, argv, &o);
	if (status)
		return status;
	if (o.help) {
		fputs(help_text, stdout);
		return HSPMD_EXIT_DONE;
	}
	if (run(&o, &err) == 0)
		return HSPMD_EXIT_DONE;
	hspmd_error_log("%s", err.text);
	return HSPMD_EXIT_FAILED;
}
