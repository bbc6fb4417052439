/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd COMMAND [options]: finds the command and runs it. */
#include "config.h"

#include <getopt.h>
#include <string.h>

#include "common/log.h"
#include "controller/cli/commands.h"
#include "controller/slurm/module.h"
#include "controller/cli/supervise.h"

static const struct {
	const char *name;
	hspmd_command *run;
	const char *does; /* NULL: internal, not listed */
} commands[] = {
	{ "agent", hspmd_command_agent, NULL },
	{ "build", hspmd_command_build, "compile a model of your own" },
	{ "checkpoint", hspmd_command_checkpoint, "list, verify, export and import checkpoints" },
	{ "cluster", hspmd_command_cluster, "show what hspmdctld sees and last decided" },
	{ "data", hspmd_command_data, "make tokens from texts" },
	{ "discover", hspmd_command_discover, "print the devices of this node or allocation" },
	{ "events", hspmd_command_events, "print what has happened to a job, and why" },
	{ "generate", hspmd_command_generate, "continue texts with a trained model" },
	{ "grow", hspmd_command_grow, "give a running job more nodes" },
	{ "model-answer", hspmd_command_model_answer, NULL },
	{ "plan", hspmd_command_plan, "solve for the fastest plan, or predict a given one" },
	{ "policy", hspmd_command_policy, "check, explain and simulate the site's policies" },
	{ "profile", hspmd_command_profile, "measure layer times and links on the available devices" },
	{ "report", hspmd_command_report, "draw what happened in a run, as one HTML page" },
	{ "run", hspmd_command_run, "train a job" },
	{ "shrink", hspmd_command_shrink, "give nodes of a running job back" },
	{ "status", hspmd_command_status, "print the state of a running job" },
	{ "top", hspmd_command_top, "show running jobs as they change" },
	{ "trace", hspmd_command_trace, "record what every device of a running job does" },
	{ "worker", hspmd_command_worker, NULL },
};

#define COMMAND_COUNT (sizeof commands / sizeof *commands)

static void help(FILE *to)
{
	fputs("Usage: hspmd COMMAND [options]\n\nCommands:\n", to);
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		if (commands[i].does)
			fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].does);
	fputs("\n  --help       print this\n  --version    print the version\n\n'hspmd COMMAND --help' says more; so does 'man "
	      "hspmd-COMMAND'.\n"
	      "Exit status: 0 done, 1 failed, 2 wrong usage; of run also 85: saved, and more is to be done.\n",
	      to);
}

static void print_version(void)
{
	struct hspmd_error err;
	const struct hspmd_slurm_module *slurm = hspmd_slurm_module_load(&err);
	puts("hspmd " PACKAGE_VERSION);
	if (slurm)
		printf("for Slurm %s\n", slurm->slurm);
	else
		printf("without Slurm: %s\n", err.text);
}

/* A failure to write results is a failure of the command. */
static int finish(int status)
{
	if (fflush(stdout) || ferror(stdout)) {
		hspmd_error_log("cannot write to standard output");
		return status ? status : HSPMD_EXIT_FAILED;
	}
	return status;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		help(stderr);
		return HSPMD_EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		help(stdout);
		return finish(HSPMD_EXIT_DONE);
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		print_version();
		return finish(HSPMD_EXIT_DONE);
	}
	for (size_t i = 0; i < COMMAND_COUNT; i++) {
		if (strcmp(argv[1], commands[i].name))
			continue;
		char name[64];
		snprintf(name, sizeof name, "hspmd %s", commands[i].name);
		hspmd_log_name(name);
		if (!strcmp(commands[i].name, "agent") || !strcmp(commands[i].name, "worker") || !strcmp(commands[i].name, "run"))
			hspmd_survive_usr1(); /* `sbatch --signal=USR1@120` sends it to all of them */
		argv[1] = name;               /* name that getopt prints before its messages */
		optind = 0;
		return finish(commands[i].run(argc - 1, argv + 1));
	}
	hspmd_error_log("unknown command '%s'", argv[1]);
	fputs("Try 'hspmd --help'.\n", stderr);
	return HSPMD_EXIT_USAGE;
}
