/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd cluster: what hspmdctld sees and last decided. */
#include <getopt.h>
#include <stdlib.h>

#include "common/json.h"
#include "common/log.h"
#include "controller/cli/ask_cluster.h"
#include "controller/cli/commands.h"

static const char help_text[] =
	"Usage: hspmd cluster [--ctld [UID@]HOST:PORT] [--json]\n"
	"\n"
	"Shows what hspmdctld sees of the cluster and its elastic jobs, what it last asked of them, and why.\n"
	"\n"
	"  --ctld WHERE          hspmdctld's address and the user it runs as (default: HSPMD_CTLD, else localhost and user slurm)\n"
	"  --munge-socket PATH   munged's socket, where it is not the usual one\n"
	"  --timeout S           give up after S seconds (default 10)\n"
	"      --json            print all as JSON\n"
	"      --help            print this\n";

struct cluster_options {
	const char *where, *munge;
	double timeout;
	bool json, help;
};

enum { OPT_CTLD = 256, OPT_MUNGE, OPT_TIMEOUT, OPT_JSON, OPT_HELP };

static const struct option long_options[] = {
	{ "ctld", required_argument, NULL, OPT_CTLD },
	{ "munge-socket", required_argument, NULL, OPT_MUNGE },
	{ "timeout", required_argument, NULL, OPT_TIMEOUT },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

static int parse(int argc, char **argv, struct cluster_options *o)
{
	int opt;
	while ((opt = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_CTLD: o->where = optarg; break;
		case OPT_MUNGE: o->munge = optarg; break;
		case OPT_TIMEOUT:
			if (hspmd_option_number("timeout", optarg, 0.1, 3600, &o->timeout) < 0)
				return hspmd_usage_hint("cluster");
			break;
		case OPT_JSON: o->json = true; break;
		case OPT_HELP:
		case 'h': o->help = true; break;
		default: return hspmd_usage_hint("cluster");
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
		const char *what = *text_of(job, "asked") ? text_of(job, "asked")
		                   : *text_of(job, "why") ? text_of(job, "why")
		                                          : text_of(job, "last");
		printf("%-10lld %-10s %-12s %-14s %-12lld %s\n", number_of(job, "job"), text_of(job, "user"), text_of(job, "partition"),
		       nodes, number_of(job, "tokens_per_s"), what);
	}
}

int hspmd_command_cluster(int argc, char **argv)
{
	const char *env = getenv("HSPMD_CTLD");
	struct cluster_options o = { .where = env && *env ? env : "localhost", .timeout = 10 };
	struct hspmd_error err = { "" };
	int status = parse(argc, argv, &o), rc = 0;
	if (status)
		return status;
	if (o.help) {
		fputs(help_text, stdout);
		return HSPMD_EXIT_DONE;
	}
	json_t *cluster = hspmd_ask_cluster(o.where, o.munge, o.timeout, &err);
	if (!cluster) {
		hspmd_error_log("%s", err.text);
		return HSPMD_EXIT_FAILED;
	}
	if (o.json)
		rc = hspmd_json_save(cluster, "-", &err);
	else
		print_cluster(cluster);
	json_decref(cluster);
	if (rc < 0)
		hspmd_error_log("%s", err.text);
	return rc < 0 ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
