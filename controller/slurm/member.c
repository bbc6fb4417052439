/* SPDX-License-Identifier: Apache-2.0 */
/* Member jobs, by which an elastic job grows if its own allocation cannot. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hostlist.h"
#include "controller/slurm/job.h"
#include "controller/slurm/command.h"

#define SUBMIT_S 30.0 /* timeout of sbatch */

void hspmd_slurm_member_name(uint32_t job, char name[static 32])
{
	snprintf(name, 32, "hspmd-member-%u", job);
}

static size_t quoted_length(const char *word)
{
	size_t n = 3; /* quotes, and a space */
	for (; *word; word++)
		n += *word == '\'' ? 4 : 1;
	return n;
}

static char *quote(char *to, const char *word)
{
	*to++ = ' ';
	*to++ = '\'';
	for (; *word; word++)
		if (*word == '\'')
			to = stpcpy(to, "'\\''");
		else
			*to++ = *word;
	*to++ = '\'';
	return to;
}

/* The command runs as a step, because when Slurm decides to preempt the job it sends SIGTERM at once to steps, but not to the batch
 * script. */
static char *script(char *const *srun_args, const char *const *command)
{
	static const char srun[] = "exec srun --nodes=1 --ntasks=1 --overlap --kill-on-bad-exit=0 --cpu-bind=none --mpi=none --input=none";
	size_t size = sizeof srun;
	for (int i = 0; srun_args && srun_args[i]; i++)
		size += quoted_length(srun_args[i]);
	for (int i = 0; command[i]; i++)
		size += quoted_length(command[i]);
	char *text = malloc(size), *at = text;
	if (!text)
		return NULL;
	at = stpcpy(at, srun);
	for (int i = 0; srun_args && srun_args[i]; i++)
		at = quote(at, srun_args[i]);
	for (int i = 0; command[i]; i++)
		at = quote(at, command[i]);
	*at = '\0';
	return text;
}

/* Returns the job id from sbatch --parsable, whose line (an id, or id;cluster) may stand among warnings; 0: none. */
static uint32_t submitted(const char *text)
{
	for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line ? 1 : 0) {
		char *end;
		unsigned long id = strtoul(line, &end, 10);
		if (end > line && (*end == '\n' || *end == ';' || !*end))
			return (uint32_t)id;
	}
	return 0;
}

uint32_t hspmd_slurm_member_submit(const struct hspmd_slurm_job *job, const struct hspmd_slurm_member_terms *terms,
                                   const char *const *command, const char *log, int count, char *const *without, int without_count,
                                   struct hspmd_error *err)
{
	char name[32], said[4096] = "";
	struct hspmd_slurm_argv w = { 0 };
	char *wrap = script(terms ? terms->srun_args : NULL, command),
	     *nodes = without_count ? hspmd_hostlist_fold(without, without_count) : NULL;
	uint32_t id = 0;
	hspmd_slurm_member_name(job->id, name);
	w.failed = !wrap || (without_count && !nodes);
	hspmd_slurm_argv_add(&w, "sbatch");
	hspmd_slurm_argv_add(&w, "--parsable");
	hspmd_slurm_argv_add(&w, "--job-name=%s", name);
	hspmd_slurm_argv_add(&w, "--output=%s", log);
	hspmd_slurm_argv_add(&w, "--open-mode=append");
	hspmd_slurm_argv_add(&w, "--no-requeue"); /* a preempted member is lost; only the controller decides whether the job grows again */
	hspmd_slurm_argv_add(&w, "--wrap=%s", wrap ? wrap : "");
	if (count > 1)
		hspmd_slurm_argv_add(&w, "--array=1-%d", count);
	hspmd_slurm_same_resources(&w, job, 1, terms);
	if (nodes)
		hspmd_slurm_argv_add(&w, "--exclude=%s", nodes);
	int status = hspmd_slurm_run_command(&w, SUBMIT_S, said, sizeof said, err);
	if (status >= 0 && (status || !(id = submitted(said))))
		hspmd_fail(err, "a member of job %u cannot be submitted: sbatch: %s", job->id, hspmd_slurm_error_line(said));
	hspmd_slurm_argv_clear(&w);
	free(wrap);
	free(nodes);
	return id;
}
