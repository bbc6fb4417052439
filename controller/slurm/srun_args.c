/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/slurm/srun_args.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\n"

static const char *const layout[] = {
	"jobid",     "nodelist",        "nodes",           "nodefile",          "exclude",        "relative",
	"ntasks",    "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "distribution",
	"het-group", "contiguous",      "multi-prog",      "spread-job",        "use-min-nodes",  NULL
};
static const char *const shares[] = { "cpus-per-task",
	                              "cpus-per-gpu",
	                              "cpu-bind",
	                              "gpus",
	                              "gpus-per-node",
	                              "gpus-per-socket",
	                              "gpus-per-task",
	                              "gpu-bind",
	                              "gres",
	                              "tres-per-task",
	                              "tres-bind",
	                              "mem",
	                              "mem-per-cpu",
	                              "mem-per-gpu",
	                              "mem-bind",
	                              "hint",
	                              "threads-per-core",
	                              "cores-per-socket",
	                              "sockets-per-node",
	                              "extra-node-info",
	                              "core-spec",
	                              "thread-spec",
	                              "exact",
	                              "exclusive",
	                              "overcommit",
	                              "oversubscribe",
	                              NULL };
static const char *const steps[] = { "overlap",
	                             "no-kill",
	                             "kill-on-bad-exit",
	                             "wait",
	                             "mpi",
	                             "input",
	                             "export",
	                             "pty",
	                             "immediate",
	                             "time",
	                             "time-min",
	                             "test-only",
	                             "no-allocate",
	                             "help",
	                             "usage",
	                             "version",
	                             "hspmd",
	                             "hspmd-nodes",
	                             "hspmd-policy",
	                             "hspmd-checkpoint",
	                             NULL };

static const struct {
	const char *why;
	const char *const *names;
} refused[] = {
	{ "hspmd starts one agent on each node of the job", layout },
	{ "an agent must see all that the job holds on its node", shares },
	{ "hspmd itself decides how steps of agents start and end", steps },
};

/* Returns why an option must not be given; NULL: it may. srun takes unique beginnings of names, so those are compared. */
static const char *reason(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
		for (const char *const *n = refused[i].names; *n; n++)
			if (!strncmp(*n, name, length))
				return refused[i].why;
	return NULL;
}

static int check(const char *word, size_t length, struct hspmd_error *err)
{
	if (length < 3 || strncmp(word, "--", 2) != 0)
		return hspmd_fail(err, "'%.*s': expected --name or --name=value, as srun's long options are written", (int)length, word);
	size_t end = strcspn(word, "=" BLANKS);
	const char *why = reason(word + 2, end - 2);
	return why ? hspmd_fail(err, "%.*s: %s", (int)end, word, why) : 0;
}

int hspmd_srun_args_add(char ***list, const char *text, struct hspmd_error *err)
{
	size_t before = 0, count = 0;
	while (*list && (*list)[before])
		before++;
	char **all = realloc(*list, (before + strlen(text) / 2 + 2) * sizeof *all);
	if (!all)
		return hspmd_fail_memory(err, "reading options of srun");
	*list = all;
	all[before] = NULL;
	for (const char *word = text + strspn(text, BLANKS); *word; word += strspn(word, BLANKS)) {
		size_t length = strcspn(word, BLANKS);
		int rc = check(word, length, err);
		if (!rc && !(all[before + count] = strndup(word, length)))
			rc = hspmd_fail_memory(err, "reading options of srun");
		if (rc) {
			while (count)
				free(all[before + --count]);
			all[before] = NULL;
			return rc;
		}
		all[before + ++count] = NULL;
		word += length;
	}
	return 0;
}

void hspmd_srun_args_free(char **list)
{
	for (size_t i = 0; list && list[i]; i++)
		free(list[i]);
	free(list);
}
