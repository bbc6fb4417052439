/* SPDX-License-Identifier: Apache-2.0 */
/* The program hspmdctld: its options, and the poll of Slurm through controller/slurm. */
#include "config.h"

#include <getopt.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "controller/ctld/daemon.h"
#include "controller/ctld_client/protocol.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static const char help_text[] =
        "Usage: hspmdctld [options]\n"
        "\n"
        "Grows and shrinks the cluster's elastic jobs by the site's policies. One a cluster, as SlurmUser or root.\n"
        "\n"
        "  --listen ADDRESS:PORT   where job controllers call (default: all addresses, port " TEXT(
                CTLD_PORT) ")\n"
                           "  --policies FOLDER       the site's policies (default " HSPMD_SYSCONFDIR "/hspmd/policies.d)\n"
                           "  --owner USER            whose policy files are believed, beside root's (default: SlurmUser)\n"
                           "  --operators USER,...    who sees all jobs although PrivateData has jobs, beside root and SlurmUser\n"
                           "  --metrics ADDRESS:PORT  OpenMetrics page (default 127.0.0.1:6898), or off\n"
                           "  --job-labels LIST       labels of the metrics of jobs: job (default), user, account, partition, qos, or "
                           "none\n"
                           "  --event-log FILE        a line of JSON an event; opened again on SIGHUP\n"
                           "  --syslog                events to syslog too\n"
                           "  --dry-run               decide and log, but ask no job to grow or shrink\n"
                           "  --budget-file FILE      keeps what is used of budgets of node hours across restarts\n"
                           "  --poll LEAST,MOST       seconds between two polls of Slurm: when all changes, when nothing does (default "
                           "10,75)\n"
                           "  --munge-socket PATH     munged's socket (default: AuthInfo of slurm.conf)\n"
                           "      --help, --version\n";

#define OPERATORS_MAX 64

struct given {
	const char *owner, *metrics;
	uid_t operators[OPERATORS_MAX];
	struct ctld_options o;
	bool help, version;
};

enum {
	OPT_LISTEN = 256,
	OPT_POLICIES,
	OPT_OWNER,
	OPT_OPERATORS,
	OPT_METRICS,
	OPT_LABELS,
	OPT_LOG,
	OPT_SYSLOG,
	OPT_DRY_RUN,
	OPT_POLL,
	OPT_MUNGE,
	OPT_BUDGET,
	OPT_HELP,
	OPT_VERSION,
};

static const struct option long_options[] = {
	{ "listen", required_argument, NULL, OPT_LISTEN },
	{ "policies", required_argument, NULL, OPT_POLICIES },
	{ "owner", required_argument, NULL, OPT_OWNER },
	{ "operators", required_argument, NULL, OPT_OPERATORS },
	{ "metrics", required_argument, NULL, OPT_METRICS },
	{ "job-labels", required_argument, NULL, OPT_LABELS },
	{ "event-log", required_argument, NULL, OPT_LOG },
	{ "syslog", no_argument, NULL, OPT_SYSLOG },
	{ "dry-run", no_argument, NULL, OPT_DRY_RUN },
	{ "poll", required_argument, NULL, OPT_POLL },
	{ "munge-socket", required_argument, NULL, OPT_MUNGE },
	{ "budget-file", required_argument, NULL, OPT_BUDGET },
	{ "help", no_argument, NULL, OPT_HELP },
	{ "version", no_argument, NULL, OPT_VERSION },
	{ NULL, 0, NULL, 0 },
};

static int parse_poll(const char *text, struct ctld_options *o)
{
	char *end;
	o->poll_min_s = strtod(text, &end);
	if (*end == ',')
		o->poll_max_s = strtod(end + 1, &end);
	if (*end || !(o->poll_min_s >= 0.2) || !(o->poll_max_s >= o->poll_min_s) || o->poll_max_s > 3600) {
		hspmd_error_log("--poll: expected LEAST,MOST seconds, 0.2 <= LEAST <= MOST <= 3600, got '%s'", text);
		return -1;
	}
	return 0;
}

static int parse_operators(char *text, struct given *g)
{
	char *save = NULL;
	for (const char *name = strtok_r(text, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
		const struct passwd *pw = getpwnam(name);
		if (!pw || g->o.operator_count == OPERATORS_MAX) {
			if (pw)
				hspmd_error_log("--operators: more than %d users", OPERATORS_MAX);
			else
				hspmd_error_log("--operators: no user '%s'", name);
			return -1;
		}
		g->operators[g->o.operator_count++] = pw->pw_uid;
	}
	g->o.operators = g->operators;
	return 0;
}

static int parse_labels(char *text, unsigned *labels)
{
	char *save = NULL;
	*labels = 0;
	if (!strcmp(text, "none"))
		return 0;
	for (const char *name = strtok_r(text, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
		int i = 0;
		while (ctld_job_label_names[i] && strcmp(ctld_job_label_names[i], name) != 0)
			i++;
		if (!ctld_job_label_names[i]) {
			hspmd_error_log("--job-labels: expected none, or a list of job, user, account, partition and qos, got '%s'", name);
			return -1;
		}
		*labels |= 1u << i;
	}
	return 0;
}

static int parse(int argc, char **argv, struct given *g)
{
	int opt;
	while ((opt = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_LISTEN:
			g->o.listen = optarg;
			break;
		case OPT_POLICIES:
			g->o.policies = optarg;
			break;
		case OPT_OWNER:
			g->owner = optarg;
			break;
		case OPT_OPERATORS:
			if (parse_operators(optarg, g) < 0)
				return -1;
			break;
		case OPT_METRICS:
			g->metrics = optarg;
			break;
		case OPT_LABELS:
			if (parse_labels(optarg, &g->o.job_labels) < 0)
				return -1;
			break;
		case OPT_LOG:
			g->o.event_log = optarg;
			break;
		case OPT_SYSLOG:
			g->o.syslog = true;
			break;
		case OPT_DRY_RUN:
			g->o.dry_run = true;
			break;
		case OPT_MUNGE:
			g->o.munge_socket = optarg;
			break;
		case OPT_BUDGET:
			g->o.budget_file = optarg;
			break;
		case OPT_POLL:
			if (parse_poll(optarg, &g->o) < 0)
				return -1;
			break;
		case OPT_HELP:
		case 'h':
			g->help = true;
			break;
		case OPT_VERSION:
			g->version = true;
			break;
		default:
			return -1;
		}
	}
	if (optind == argc)
		return 0;
	hspmd_error_log("unexpected argument '%s'", argv[optind]);
	return -1;
}

static int refresh(void *context, const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err)
{
	(void)context;
	return hspmd_slurm_view_refresh(old, new, rpcs, err);
}

static int read_accounts(void *context, bool shares, struct hspmd_slurm_accounts *a, int *rpcs, struct hspmd_error *err)
{
	const struct hspmd_slurm_view_settings *slurm = context;
	const struct hspmd_slurm_accounts_wanted wanted = { .cluster = slurm->limited, .shares = shares };
	return hspmd_slurm_accounts_read(a, &wanted, rpcs, err);
}

static int run(struct given *g, struct hspmd_error *err)
{
	struct hspmd_slurm_view_settings slurm = { 0 };
	/* slurmctld may start later than hspmdctld: until a restart only root, or the user of --owner, is trusted then, and jobs are
	 * private. */
	if (hspmd_slurm_view_settings(&slurm, err) < 0) {
		hspmd_warn("%s; going on", err->text);
		slurm.private_jobs = true;
	}
	if (slurm.without_munge && !g->o.munge_socket)
		hspmd_warn(
		        "Slurm does not use MUNGE here, by which jobs and hspmdctld prove themselves to each other: jobs do not call this "
		        "hspmdctld, which gives no nodes to them (they still change in place: hspmd grow, shrink, scontrol)");
	g->o.private_jobs = slurm.private_jobs;
	const char *owner = g->owner ? g->owner : slurm.user;
	const struct passwd *pw = owner ? getpwnam(owner) : NULL;
	int rc = 0;
	if (g->owner && !pw)
		rc = hspmd_fail(err, "--owner: no user '%s'", g->owner);
	g->o.trust.owner = pw ? pw->pw_uid : 0;
	g->o.metrics = strcmp(g->metrics, "off") != 0 ? g->metrics : NULL;
	g->o.poll = refresh;
	g->o.accounts = read_accounts;
	g->o.poll_context = &slurm;
	if (!g->o.munge_socket)
		g->o.munge_socket = slurm.munge_socket;
	g->o.state_folder = slurm.state_folder;
	if (rc == 0)
		rc = ctld_run(&g->o, err);
	hspmd_slurm_view_settings_clear(&slurm);
	return rc;
}

int main(int argc, char **argv)
{
	struct given g = { .metrics = "127.0.0.1:6898",
		           .o = { .listen = ":" TEXT(CTLD_PORT),
		                  .policies = HSPMD_SYSCONFDIR "/hspmd/policies.d",
		                  .job_labels = 1u << CTLD_LABEL_JOB,
		                  .poll_min_s = 10,
		                  .poll_max_s = 75 } };
	struct hspmd_error err = { "" };
	hspmd_log_name("hspmdctld");
	if (parse(argc, argv, &g) < 0) {
		fputs("Try 'hspmdctld --help'.\n", stderr);
		return 2;
	}
	if (g.help || g.version) {
		fputs(g.help ? help_text : "hspmdctld " PACKAGE_VERSION "\n", stdout);
		return 0;
	}
	if (run(&g, &err) == 0)
		return 0;
	hspmd_error_log("%s", err.text);
	return 1;
}
