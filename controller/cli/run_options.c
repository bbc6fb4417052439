/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/run_options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/job_command.h"
#include "common/log.h"
#include "common/range.h"
#include "common/tcp.h"
#include "controller/cli/commands.h"
#include "controller/slurm/srun_args.h"

static const char help_text[] =
        "Usage: hspmd run --job FILE [options]\n"
        "       hspmd run [options] -- COMMAND [ARGUMENT ...]\n"
        "\n"
        "Trains what the job file says: inside a Slurm job over its allocation, elsewhere over workers on this machine. Or runs another\n"
        "trainer, a process per device, and ends and starts it with the nodes.\n"
        "\n"
        "  --job FILE             the job file (default: $HSPMD_JOB)\n"
        "  --plan FILE            start with this plan instead of solving for one\n"
        "  --output DIR           folder for metrics, plans and log (default: hspmd-JOBID here)\n"
        "  --resume               continue the run whose metrics are in the output folder\n"
        "  --local N              N workers on this machine, each a node of its own (default outside of Slurm: 1)\n"
        "  --cluster FILE         emulate the nodes of this cluster file on this machine; with --local the first that have N devices\n"
        "  --nodes N              start with the first N nodes of the cluster file\n"
        "  --nodes MIN-MAX        fewest and most nodes of the command\n"
        "  --per-node             a process of the command per node\n"
        "  --notice SIGNAL:S      the signal that tells the command to save and end, and the seconds for it (default: TERM:60)\n"
        "  --warm on|off          beside each process of a Python command an idle one that has imported what it had: faster restarts\n"
        "  --devices-per-node K   make K CPU devices of each node's cores (default: GPUs, else one per NUMA node)\n"
        "  --port N               listen on this port (default: any)\n"
        "  --ports LO-HI          listen on ports of this range only, on all nodes (default: any)\n"
        "  --srun-args WORDS      options added to the srun that starts agents, for example of containers\n"
        "  --transport NAME       transport between workers (default: the best)\n"
        "  --step-timeout S       a step that takes longer is aborted (default: from the times of earlier steps)\n"
        "  --reconnect-timeout S  how long agents keep the state if the controller is lost (default: 600)\n"
        "  --repair-from DEVICES  jobs of so many devices go on after a loss with the last plan, repaired, while a better one is searched\n"
        "                         for (default: 64)\n"
        "  --policies PATH        outside of Slurm: apply these policies as a site would (a file or a folder)\n"
        "  --no-pmix              start agents without PMIx\n"
        "      --help             print this\n"
        "\n"
        "Exit status: 0 all steps are done, 1 they are not (the message says why), 2 wrong usage, 85 they are not, but there is a\n"
        "checkpoint, or the command has saved: it can go on in another job (--resume).\n";

enum {
	OPT_JOB = 256,
	OPT_PLAN,
	OPT_OUTPUT,
	OPT_RESUME,
	OPT_LOCAL,
	OPT_CLUSTER,
	OPT_NODES,
	OPT_PER_NODE,
	OPT_NOTICE,
	OPT_WARM,
	OPT_DEVICES,
	OPT_PORT,
	OPT_PORTS,
	OPT_SRUN_ARGS,
	OPT_TRANSPORT,
	OPT_STEP_TIMEOUT,
	OPT_RECONNECT_TIMEOUT,
	OPT_REPAIR_FROM,
	OPT_POLICIES,
	OPT_NO_PMIX,
	OPT_HELP
};

static const struct option long_options[] = {
	{ "job", required_argument, NULL, OPT_JOB },
	{ "plan", required_argument, NULL, OPT_PLAN },
	{ "output", required_argument, NULL, OPT_OUTPUT },
	{ "resume", no_argument, NULL, OPT_RESUME },
	{ "local", required_argument, NULL, OPT_LOCAL },
	{ "cluster", required_argument, NULL, OPT_CLUSTER },
	{ "nodes", required_argument, NULL, OPT_NODES },
	{ "per-node", no_argument, NULL, OPT_PER_NODE },
	{ "notice", required_argument, NULL, OPT_NOTICE },
	{ "warm", required_argument, NULL, OPT_WARM },
	{ "devices-per-node", required_argument, NULL, OPT_DEVICES },
	{ "port", required_argument, NULL, OPT_PORT },
	{ "ports", required_argument, NULL, OPT_PORTS },
	{ "srun-args", required_argument, NULL, OPT_SRUN_ARGS },
	{ "transport", required_argument, NULL, OPT_TRANSPORT },
	{ "step-timeout", required_argument, NULL, OPT_STEP_TIMEOUT },
	{ "step-deadline", required_argument, NULL, OPT_STEP_TIMEOUT }, /* the names of earlier versions; not in --help */
	{ "reconnect-timeout", required_argument, NULL, OPT_RECONNECT_TIMEOUT },
	{ "patience", required_argument, NULL, OPT_RECONNECT_TIMEOUT },
	{ "repair-from", required_argument, NULL, OPT_REPAIR_FROM },
	{ "policies", required_argument, NULL, OPT_POLICIES },
	{ "no-pmix", no_argument, NULL, OPT_NO_PMIX },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

/* With a command --nodes is a range, which the job is checked against; else a number. */
static int check_command(struct run_options *o, const char *nodes)
{
	struct hspmd_error err;
	const char *job = o->job ? "--job" : getenv("HSPMD_JOB") ? "HSPMD_JOB (sbatch --hspmd=FILE)" : NULL;
	if (o->command.argc && job)
		return hspmd_usage_error("run", "a command and %s exclude one another: the job file can name the command", job);
	if (o->command.argc && (o->plan || o->transport))
		return hspmd_usage_error("run", "%s has no meaning for a command", o->plan ? "--plan" : "--transport");
	if (!o->command.argc && (o->command.per_node || o->command.notice_signal || o->command.warm))
		return hspmd_usage_error("run", "%s needs a command",
		                         o->command.notice_signal ? "--notice"
		                         : o->command.warm        ? "--warm"
		                                                  : "--per-node");
	if (!nodes)
		return 0;
	if (o->command.argc)
		return hspmd_range_parse(nodes, &o->command.min_nodes, &o->command.max_nodes, &err)
		               ? hspmd_usage_error("run", "--nodes: %s", err.text)
		               : 0;
	if (hspmd_option_int("nodes", nodes, 1, 1 << 16, &o->nodes))
		return hspmd_usage_hint("run");
	return o->cluster ? 0 : hspmd_usage_error("run", "--nodes needs --cluster or a command");
}

static int read_notice(const char *text, struct run_command_options *o)
{
	struct hspmd_error err;
	if (!hspmd_job_notice_parse(text, &o->notice_signal, &o->notice_s, &err))
		return 0;
	hspmd_error_log("--notice: %s", err.text);
	return -1;
}

static int check_ports(const char *text)
{
	struct hspmd_error err;
	int low, high;
	if (!hspmd_tcp_ports_parse(text, &low, &high, &err))
		return 0;
	hspmd_error_log("--ports (" HSPMD_TCP_PORTS "): %s", err.text);
	return -1;
}

static int add_srun_args(struct run_options *o, const char *text)
{
	struct hspmd_error err;
	if (!hspmd_srun_args_add(&o->srun_args, text, &err))
		return 0;
	hspmd_error_log("--srun-args: %s", err.text);
	return -1;
}

int run_options_parse(struct run_options *o, int argc, char **argv)
{
	const char *nodes = NULL;
	int opt, bad = 0;
	o->reconnect_timeout = 600;
	o->ports = getenv(HSPMD_TCP_PORTS);
	while ((opt = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_JOB:
			o->job = optarg;
			break;
		case OPT_PLAN:
			o->plan = optarg;
			break;
		case OPT_OUTPUT:
			o->output = optarg;
			break;
		case OPT_RESUME:
			o->resume = true;
			break;
		case OPT_LOCAL:
			bad |= hspmd_option_int("local", optarg, 1, 1024, &o->local);
			break;
		case OPT_CLUSTER:
			o->cluster = optarg;
			break;
		case OPT_NODES:
			nodes = optarg;
			break;
		case OPT_PER_NODE:
			o->command.per_node = true;
			break;
		case OPT_NOTICE:
			bad |= read_notice(optarg, &o->command);
			break;
		case OPT_WARM:
			o->command.warm = !strcmp(optarg, "on");
			if (!o->command.warm && strcmp(optarg, "off"))
				return hspmd_usage_error("run", "--warm: expected on or off, got '%s'", optarg);
			break;
		case OPT_DEVICES:
			bad |= hspmd_option_int("devices-per-node", optarg, 1, 1024, &o->devices);
			break;
		case OPT_PORT:
			bad |= hspmd_option_int("port", optarg, 1, 65535, &o->port);
			break;
		case OPT_PORTS:
			o->ports = optarg;
			break;
		case OPT_SRUN_ARGS:
			bad |= add_srun_args(o, optarg);
			break;
		case OPT_TRANSPORT:
			o->transport = optarg;
			break;
		case OPT_STEP_TIMEOUT:
			bad |= hspmd_option_number("step-timeout", optarg, 0.1, 1e7, &o->step_timeout);
			break;
		case OPT_RECONNECT_TIMEOUT:
			bad |= hspmd_option_number("reconnect-timeout", optarg, 1, 1e7, &o->reconnect_timeout);
			break;
		case OPT_REPAIR_FROM:
			bad |= hspmd_option_int("repair-from", optarg, 1, HSPMD_CLUSTER_MAX_DEVICES + 1, &o->repair_from);
			break;
		case OPT_POLICIES:
			o->policies = optarg;
			break;
		case OPT_NO_PMIX:
			o->no_pmix = true;
			break;
		case 'h':
		case OPT_HELP:
			o->help = true;
			fputs(help_text, stdout);
			return 0;
		default:
			return hspmd_usage_hint("run");
		}
	}
	if (bad || (o->ports && check_ports(o->ports)))
		return hspmd_usage_hint("run");
	bool separated = optind > 1 && !strcmp(argv[optind - 1], "--");
	if (optind < argc && !separated)
		return hspmd_usage_error("run", "unexpected argument '%s' (a command follows \"--\")", argv[optind]);
	if (separated) {
		o->command.argv = argv + optind;
		o->command.argc = argc - optind;
	}
	int status = check_command(o, nodes);
	if (status)
		return status;
	if (o->local && o->cluster && o->nodes)
		return hspmd_usage_error(
		        "run", "--local and --nodes both say how many of the cluster file's nodes to start with: expected one of them");
	if (o->srun_args && (o->local || o->cluster || !getenv("SLURM_JOB_ID")))
		return hspmd_usage_error("run", "--srun-args is for runs in a Slurm job: outside of one nothing starts srun");
	if (o->policies && !o->local && !o->cluster && getenv("SLURM_JOB_ID"))
		return hspmd_usage_error("run", "--policies is for runs outside of Slurm; in a job the site's own hold");
	int wrong = hspmd_usage_transport("run", o->transport);
	if (wrong)
		return wrong;
	if (o->command.argc)
		return 0;
	if (separated && !o->job)
		return hspmd_usage_error("run", "the command is missing behind --");
	if (!o->job && !(o->job = getenv("HSPMD_JOB")))
		return hspmd_usage_error("run", "--job is missing (and HSPMD_JOB is not set)");
	return 0;
}
