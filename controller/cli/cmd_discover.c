/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd discover: prints this node's part of the cluster file; under srun the whole allocation's. */
#include <getopt.h>
#include <stdlib.h>

#include "common/json.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "runtime/topology/topology.h"

static const char help_text[] =
	"Usage: hspmd discover [options]\n"
	"       srun --mpi=pmix --ntasks-per-node=1 hspmd discover [options]\n"
	"\n"
	"Prints what this node has as a cluster file: its devices within the cgroup and affinity it runs in, and how fast they were in a short\n"
	"measurement. Under srun with PMIx the first task prints the whole allocation's.\n"
	"\n"
	"  --devices N            make N CPU devices of the node's cores (default: one a NUMA node)\n"
	"  --cores-per-device N   give each CPU device N cores\n"
	"  --cpu                  CPU devices only (with --gpu: both)\n"
	"  --gpu                  GPUs only\n"
	"  --no-measure           do not measure; print nominal rates\n"
	"  --node NAME            call this node so (default: Slurm's name for it, or the host's)\n"
	"  -o, --output FILE      write to FILE instead of standard output\n"
	"      --help             print this\n";

enum { OPT_DEVICES = 256, OPT_CORES, OPT_CPU, OPT_GPU, OPT_NO_MEASURE, OPT_NODE, OPT_HELP };

static const struct option long_options[] = {
	{ "devices", required_argument, NULL, OPT_DEVICES },
	{ "cores-per-device", required_argument, NULL, OPT_CORES },
	{ "cpu", no_argument, NULL, OPT_CPU },
	{ "gpu", no_argument, NULL, OPT_GPU },
	{ "no-measure", no_argument, NULL, OPT_NO_MEASURE },
	{ "node", required_argument, NULL, OPT_NODE },
	{ "output", required_argument, NULL, 'o' },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

struct discover_options {
	struct hspmd_topology_options look;
	const char *output;
	bool help;
};

/* 0, or an exit status that is not 0. */
static int parse(int argc, char **argv, struct discover_options *o)
{
	int opt, bad = 0;
	int64_t devices = 0, cores = 0;
	while ((opt = getopt_long(argc, argv, "o:h", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_DEVICES:
			bad |= hspmd_option_int("devices", optarg, 1, 1024, &devices);
			break;
		case OPT_CORES:
			bad |= hspmd_option_int("cores-per-device", optarg, 1, 1 << 16, &cores);
			break;
		case OPT_CPU:
			o->look.cpu = true;
			break;
		case OPT_GPU:
			o->look.gpu = true;
			break;
		case OPT_NO_MEASURE:
			o->look.skip_measure = true;
			break;
		case OPT_NODE:
			o->look.node = optarg;
			break;
		case 'o':
			o->output = optarg;
			break;
		case 'h':
		case OPT_HELP:
			o->help = true;
			break;
		default:
			return hspmd_usage_hint("discover");
		}
	}
	if (optind < argc)
		return hspmd_usage_error("discover", "unexpected argument '%s'", argv[optind]);
	if (devices && cores)
		return hspmd_usage_error("discover", "--devices and --cores-per-device exclude one another");
	o->look.devices = (int)devices;
	o->look.cores_per_device = (int)cores;
	return bad ? HSPMD_EXIT_USAGE : 0;
}

static int print(const struct hspmd_cluster *c, const char *output, struct hspmd_error *err)
{
	json_t *value = hspmd_cluster_to_json(c);
	int rv = value ? hspmd_json_save(value, output, err) : hspmd_fail_memory(err, "printing the cluster");
	json_decref(value);
	return rv;
}

int hspmd_command_discover(int argc, char **argv)
{
	struct discover_options o = { .output = "-" };
	struct hspmd_error err = { "" }, missing = { "" };
	struct hspmd_cluster *all = NULL;
	int status = parse(argc, argv, &o);
	if (status)
		return status;
	if (o.help) {
		fputs(help_text, stdout);
		return HSPMD_EXIT_DONE;
	}
	struct hspmd_topology *t = hspmd_topology_discover(&o.look, &missing);
	if (!t)
		hspmd_error_log("%s", missing.text);
	/* Also with nothing to give, as the other nodes of a step wait for this one. */
	int rv = hspmd_topology_exchange(t ? t->cluster : NULL, &all, NULL, &err);
	if (!rv && all)
		rv = print(all, o.output, &err);
	if (rv && t)
		hspmd_error_log("%s", err.text);
	hspmd_cluster_destroy(all);
	hspmd_topology_destroy(t);
	return rv || !t ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
