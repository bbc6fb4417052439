/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd agent, hspmd worker: processes that the job controller starts on the nodes. Not for people, so not in the list of commands. */
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "common/clock_stops.h"
#include "common/contact.h"
#include "common/cores.h"
#include "common/log.h"
#include "common/tcp.h"
#include "controller/cli/commands.h"
#include "runtime/agent/agent.h"
#include "runtime/command/standin.h"
#include "runtime/worker/worker.h"

#define CONTROL_FD 3 /* the worker's end of its connection to the agent */

static const struct option agent_options[] = {
	{ "controller", required_argument, NULL, 'c' },   { "node", required_argument, NULL, 'n' },
	{ "cluster", required_argument, NULL, 'C' },      { "devices", required_argument, NULL, 'd' },
	{ "cores", required_argument, NULL, 'k' },        { "threads", required_argument, NULL, 't' },
	{ "exchange", no_argument, NULL, 'x' },           { "reconnect-timeout", required_argument, NULL, 'p' },
	{ "munge-socket", required_argument, NULL, 'm' }, { "memory", required_argument, NULL, 'M' },
	{ "ports", required_argument, NULL, 'P' },        { "contact", required_argument, NULL, 'o' },
	{ NULL, 0, NULL, 0 },
};

/* The cookie by which the agent proves itself, malloc'd, if it is in the environment, or in the contact file of this output folder. Returns
 * -1 and err if it should be there and is not. */
static int read_cookie(const char *folder, char **cookie, struct hspmd_error *err)
{
	const char *own = getenv("HSPMD_COOKIE");
	json_t *contact = own || !folder ? NULL : hspmd_contact_find(folder, NULL, err);
	if (!own && folder && !contact)
		return -1;
	if (contact && !(own = json_string_value(json_object_get(contact, "cookie")))) {
		json_decref(contact);
		return hspmd_fail(err, "%s/contact.json: no cookie", folder);
	}
	*cookie = own ? strdup(own) : NULL;
	json_decref(contact);
	unsetenv("HSPMD_COOKIE"); /* not for the workers */
	return own && !*cookie ? hspmd_fail_memory(err, "keeping the cookie") : 0;
}

int hspmd_command_agent(int argc, char **argv)
{
	struct hspmd_agent_options o = { .reconnect_timeout_s = 600 };
	int64_t devices = 0, cores = 0, threads = 0;
	char *cookie = NULL;
	const char *contact = NULL;
	struct hspmd_error err = { "" };
	int opt, bad = 0;
	while ((opt = getopt_long(argc, argv, "", agent_options, NULL)) != -1) {
		switch (opt) {
		case 'c':
			o.controllers = optarg;
			break;
		case 'n':
			o.node = o.topology.node = optarg;
			break;
		case 'C':
			o.cluster = optarg;
			break;
		case 'd':
			bad |= hspmd_option_int("devices", optarg, 1, INT_MAX, &devices);
			break;
		case 'k':
			bad |= hspmd_option_int("cores", optarg, 1, INT_MAX, &cores);
			break;
		case 't':
			bad |= hspmd_option_int("threads", optarg, 1, INT_MAX, &threads);
			break;
		case 'm':
			o.munge_socket = optarg;
			break;
		case 'M':
			o.memory = optarg;
			break;
		case 'P': /* of this process's children: UCX has a variable of its own */
			setenv(HSPMD_TCP_PORTS, optarg, 1);
			setenv("UCX_TCP_PORT_RANGE", optarg, 0);
			break;
		case 'o':
			contact = optarg;
			break;
		case 'x':
			o.exchange = true;
			break;
		case 'p':
			bad |= hspmd_option_number("reconnect-timeout", optarg, 0, 1e9, &o.reconnect_timeout_s);
			break;
		default:
			return HSPMD_EXIT_USAGE;
		}
	}
	if (bad || !o.controllers || (o.cluster && !o.node))
		return hspmd_usage_error("agent", "the job controller starts this");
	o.topology.devices = (int)devices;
	o.topology.cores_per_device = (int)cores;
	o.threads = (int)threads;
	if (read_cookie(contact, &cookie, &err)) {
		hspmd_error_log("the agent cannot prove itself: %s", err.text);
		return HSPMD_EXIT_FAILED;
	}
	o.cookie = cookie;
	hspmd_clock_leave_out_stops();
	int status = hspmd_agent_main(&o);
	free(cookie);
	return status;
}

int hspmd_command_worker(int argc, char **argv)
{
	static const struct option options[] = {
		{ "cpus", required_argument, NULL, 'c' },
		{ "stand-in", no_argument, NULL, 's' },
		{ NULL, 0, NULL, 0 },
	};
	bool stand_in = false;
	int opt;
	/* The agent executes /proc/self/exe, whose name the kernel would show. */
	prctl(PR_SET_NAME, "hspmd");
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'c')
			hspmd_bind_to_cores(optarg);
		else if (opt == 's')
			stand_in = true;
		else
			return HSPMD_EXIT_USAGE;
	}
	/* Slurm and terminals signal every process; the agent decides when a worker ends. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	/* It ends by itself if its agent is killed, but only if it is not stopped then. */
	prctl(PR_SET_PDEATHSIG, SIGCONT);
	if (fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC))
		return hspmd_usage_error("worker", "an agent starts this");
	hspmd_clock_leave_out_stops();
	return stand_in ? hspmd_standin_main(CONTROL_FD) : hspmd_worker_main(CONTROL_FD);
}
