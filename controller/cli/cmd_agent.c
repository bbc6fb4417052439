/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd agent, hspmd worker: what the job controller starts on the nodes. Not for people, so not in the list of commands. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "controller/cli/commands.h"
#include "runtime/agent/agent.h"
#include "runtime/train/worker.h"

#define CONTROL_FD 3 /* where the agent put the worker's end of their connection */

static const struct option agent_options[] = {
	{ "controller", required_argument, NULL, 'c' },
	{ "node", required_argument, NULL, 'n' },
	{ "cluster", required_argument, NULL, 'C' },
	{ "devices", required_argument, NULL, 'd' },
	{ "cores", required_argument, NULL, 'k' },
	{ "threads", required_argument, NULL, 't' },
	{ "exchange", no_argument, NULL, 'x' },
	{ "patience", required_argument, NULL, 'p' },
	{ "munge-socket", required_argument, NULL, 'm' },
	{ NULL, 0, NULL, 0 },
};

int hspmd_command_agent(int argc, char **argv)
{
	struct hspmd_agent_options o = { .patience_s = 600 };
	int64_t devices = 0, cores = 0, threads = 0;
	int opt, bad = 0;
	while ((opt = getopt_long(argc, argv, "", agent_options, NULL)) != -1) {
		switch (opt) {
		case 'c': o.controllers = optarg; break;
		case 'n': o.node = o.topology.node = optarg; break;
		case 'C': o.cluster = optarg; break;
		case 'd': bad |= hspmd_option_int("devices", optarg, 1, INT_MAX, &devices); break;
		case 'k': bad |= hspmd_option_int("cores", optarg, 1, INT_MAX, &cores); break;
		case 't': bad |= hspmd_option_int("threads", optarg, 1, INT_MAX, &threads); break;
		case 'm': o.munge_socket = optarg; break;
		case 'x': o.exchange = true; break;
		case 'p': bad |= hspmd_option_number("patience", optarg, 0, 1e9, &o.patience_s); break;
		default: return HSPMD_EXIT_USAGE;
		}
	}
	if (bad || !o.controllers || (o.cluster && !o.node))
		return hspmd_usage_error("agent", "the job controller starts this");
	o.topology.devices = (int)devices;
	o.topology.cores_per_device = (int)cores;
	o.threads = (int)threads;
	const char *cookie = getenv("HSPMD_COOKIE");
	char *own = cookie ? strdup(cookie) : NULL;
	unsetenv("HSPMD_COOKIE"); /* not for the workers */
	o.cookie = own;
	int status = hspmd_agent_main(&o);
	free(own);
	return status;
}

/* "0-3,8": run on these cores only. What is not allowed here is left out; nothing left: no binding. */
static void bind_to(const char *cpus)
{
	cpu_set_t want, may;
	CPU_ZERO(&want);
	for (const char *at = cpus; *at;) {
		char *end;
		long first = strtol(at, &end, 10), last = first;
		if (end == at)
			return;
		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		for (long c = first; c >= 0 && c <= last && c < CPU_SETSIZE; c++)
			CPU_SET((size_t)c, &want);
		at = *end == ',' ? end + 1 : end;
		if (*end && *end != ',')
			return;
	}
	if (sched_getaffinity(0, sizeof may, &may))
		return;
	CPU_AND(&want, &want, &may);
	if (CPU_COUNT(&want) && sched_setaffinity(0, sizeof want, &want))
		hspmd_warn("cannot be bound to cores %s: %s", cpus, strerror(errno));
}

int hspmd_command_worker(int argc, char **argv)
{
	static const struct option options[] = { { "cpus", required_argument, NULL, 'c' }, { NULL, 0, NULL, 0 } };
	int opt;
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt != 'c')
			return HSPMD_EXIT_USAGE;
		bind_to(optarg);
	}
	/* Slurm and terminals signal everyone; when a worker ends is the agent's to say. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	if (fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC))
		return hspmd_usage_error("worker", "an agent starts this");
	return hspmd_worker_main(CONTROL_FD);
}
