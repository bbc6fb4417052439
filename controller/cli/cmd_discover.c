/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd discover: prints this node's part of the cluster file; under srun the cluster file of the allocation. */
#include <stdlib.h>

#include "common/json.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "runtime/topology/topology.h"

static const char head[] = "Usage: hspmd discover [options]\n"
                           "       srun --mpi=pmix --ntasks-per-node=1 hspmd discover [options]\n"
                           "\n"
                           "Prints this node's devices as a cluster file: those within the cgroup and affinity of this process, and\n"
                           "how fast they were in a short measurement. Under srun with PMIx the first task prints the whole allocation.\n";

struct discover_options {
	struct hspmd_topology_options look;
	const char *output;
};

/* 0, or what hspmd_options_parse returns otherwise. */
static int parse(int argc, char **argv, struct discover_options *o)
{
	int64_t devices = 0, cores = 0;
	bool json; /* what it prints is JSON anyway */
	const struct hspmd_option options[] = {
		{ "devices", 0, "N", HSPMD_OPTION_INT, &devices, 1, 1024,
		  "make N CPU devices of the node's cores (default: one per NUMA node)" },
		{ "cores-per-device", 0, "N", HSPMD_OPTION_INT, &cores, 1, 1 << 16, "give each CPU device N cores" },
		{ "cpu", 0, NULL, HSPMD_OPTION_FLAG, &o->look.cpu, 0, 0, "CPU devices only (with --gpu: both)" },
		{ "gpu", 0, NULL, HSPMD_OPTION_FLAG, &o->look.gpu, 0, 0, "GPUs only" },
		{ "no-measure", 0, NULL, HSPMD_OPTION_FLAG, &o->look.skip_measure, 0, 0, "do not measure; print nominal rates" },
		{ "node", 0, "NAME", HSPMD_OPTION_TEXT, &o->look.node, 0, 0,
		  "name of this node (default: its name in Slurm, or the host name)" },
		{ "output", 'o', "FILE", HSPMD_OPTION_TEXT, &o->output, 0, 0, "write to FILE instead of standard output" },
		{ "json", 0, NULL, HSPMD_OPTION_FLAG, &json, 0, 0, "print JSON, which it does anyway" },
		{ 0 },
	};
	int status = hspmd_options_parse("discover", head, options, argc, argv);
	if (!status && devices && cores)
		status = hspmd_usage_error("discover", "--devices and --cores-per-device exclude one another");
	o->look.devices = (int)devices;
	o->look.cores_per_device = (int)cores;
	return status;
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
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	struct hspmd_topology *t = hspmd_topology_discover(&o.look, &missing);
	if (!t)
		hspmd_error_log("%s", missing.text);
	/* Also with nothing to contribute, because the other nodes of a step wait for this one. */
	int rv = hspmd_topology_exchange(t ? t->cluster : NULL, &all, NULL, &err);
	if (!rv && all)
		rv = print(all, o.output, &err);
	if (rv && t)
		hspmd_error_log("%s", err.text);
	hspmd_cluster_destroy(all);
	hspmd_topology_destroy(t);
	return rv || !t ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
