/* SPDX-License-Identifier: Apache-2.0 */
/* What hspmd status says without a controller's answer: what Slurm knows of a job, and the list of a user's jobs. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/contact.h"
#include "common/format/job.h"
#include "controller/cli/commands.h"
#include "controller/cli/control.h"
#include "controller/slurm/command.h"

#define GREET_S 2.0 /* per job of the list */
#define ASK_S 5.0   /* for squeue */
#define QUEUE_MAX 262144

/* A line of squeue, cut at the bars. */
struct queued {
	const char *id, *state, *reason, *comment;
	int nodes;
};

static bool next_queued(char **text, struct queued *q)
{
	char *line = strsep(text, "\n"), *nodes;
	if (!line || !*line)
		return false;
	q->id = strsep(&line, "|");
	q->state = strsep(&line, "|");
	q->reason = strsep(&line, "|");
	nodes = strsep(&line, "|");
	q->comment = line;
	q->nodes = nodes ? atoi(nodes) : 0;
	return line != NULL;
}

/* The lines of this user's jobs, or of one of them, which for root is anybody's. squeue is a process of its own: libslurm ends a process that finds no slurm.conf. Returns a
 * malloc'd text; NULL: no Slurm, or it knows no such job. */
static char *ask_squeue(const char *job)
{
	struct hspmd_slurm_argv w = { 0 };
	struct hspmd_error ignored;
	char *text = malloc(QUEUE_MAX);
	hspmd_slurm_argv_add(&w, "%s", "squeue");
	hspmd_slurm_argv_add(&w, "%s", "--noheader");
	hspmd_slurm_argv_add(&w, "%s", "--format=%i|%T|%r|%D|%k");
	if (job)
		hspmd_slurm_argv_add(&w, "--jobs=%s", job);
	if (!job || getuid())
		hspmd_slurm_argv_add(&w, "--user=%u", (unsigned)getuid());
	int status = text ? hspmd_slurm_run_command(&w, ASK_S, text, QUEUE_MAX, &ignored) : -1;
	hspmd_slurm_argv_clear(&w);
	if (!status)
		return text;
	free(text);
	return NULL;
}

static json_t *describe(const struct queued *q, bool has_controller)
{
	const char *phase = !strcmp(q->state, "PENDING") ? "pending" : !strcmp(q->state, "SUSPENDED") ? "suspended" : NULL;
	const char *reason = q->reason;
	if (!strcmp(reason, "JobHeldUser"))
		reason = "held by its user (scontrol release)";
	else if (!strcmp(reason, "JobHeldAdmin"))
		reason = "held by an administrator";
	else if (phase && *phase == 's')
		reason = "it loses nothing, and continues after scontrol resume";
	if (!phase && !strcmp(q->state, "RUNNING") && !has_controller && !strcmp(q->comment, HSPMD_JOB_COMMENT)) {
		phase = "starting";
		reason = "its script runs, and hspmd run has not reported yet";
	}
	return phase ? json_pack("{s:s, s:s, s:s, s:i}", "job", q->id, "phase", phase, "reason", reason, "node_count", q->nodes) : NULL;
}

json_t *hspmd_control_ask_slurm(const char *job, bool has_controller)
{
	struct queued q;
	char *text = *job && strspn(job, "0123456789") == strlen(job) ? ask_squeue(job) : NULL, *rest = text;
	json_t *v = text && next_queued(&rest, &q) ? describe(&q, has_controller) : NULL;
	free(text);
	return v;
}

/* The job's status by its controller, or NULL. */
static json_t *ask_controller(const char *job, bool *has_controller)
{
	struct hspmd_error ignored;
	json_t *contact = hspmd_contact_find(job, getenv("SLURM_CLUSTER_NAME"), &ignored);
	json_t *hello = json_pack("{s:s, s:s}", "role", "command", "command", "status");
	json_t *reply = contact && hello ? hspmd_control_call(contact, hello, GREET_S, GREET_S, &ignored) : NULL;
	*has_controller = contact != NULL;
	json_t *status = json_incref(json_object_get(reply, "status"));
	json_decref(reply);
	json_decref(hello);
	json_decref(contact);
	return status;
}

/* Contact files are named CLUSTER-JOBID.json. */
static void add_contacts(json_t *names)
{
	struct hspmd_error ignored;
	char *folder = hspmd_contact_folder(&ignored);
	DIR *d = folder ? opendir(folder) : NULL;
	for (const struct dirent *e; d && (e = readdir(d));) {
		const char *dash = strrchr(e->d_name, '-');
		size_t n = dash ? strlen(dash + 1) : 0;
		char id[32];
		if (n > 5 && n < sizeof id && !strcmp(dash + 1 + n - 5, ".json")) {
			snprintf(id, sizeof id, "%.*s", (int)(n - 5), dash + 1);
			json_object_set_new(names, id, json_null());
		}
	}
	if (d)
		closedir(d);
	free(folder);
}

/* { id: what Slurm says or null }, of all jobs that may be elastic. */
static json_t *find_jobs(void)
{
	char *text = ask_squeue(NULL), *rest = text;
	json_t *all = json_object();
	struct queued q;
	add_contacts(all);
	while (text && next_queued(&rest, &q)) {
		bool has_controller = json_object_get(all, q.id) != NULL;
		if (has_controller || !strcmp(q.comment, HSPMD_JOB_COMMENT)) {
			json_t *v = describe(&q, has_controller);
			json_object_set_new(all, q.id, v ? v : json_null());
		}
	}
	free(text);
	return all;
}

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static void print_line(const json_t *s)
{
	const char *reason = json_string_value(json_object_get(s, "reason"));
	printf("%-8s  %-10s %5.0f", json_string_value(json_object_get(s, "job")), json_string_value(json_object_get(s, "phase")),
	       number(s, "node_count"));
	if (reason)
		printf("  %s\n", reason);
	else if (number(s, "steps") > 0)
		printf("  step %.0f of %.0f, loss %.5g%s\n", number(s, "step"), number(s, "steps"), number(s, "loss"),
		       json_object_get(s, "checkpoints_fail") ? ", checkpoints FAIL" : "");
	else
		printf("  step %.0f\n", number(s, "step"));
}

json_t *hspmd_control_jobs(void)
{
	json_t *jobs = find_jobs(), *list = json_array(), *known;
	const char *id;
	json_object_foreach(jobs, id, known) {
		bool has_controller;
		json_t *status = json_is_null(known) ? ask_controller(id, &has_controller) : json_incref(known);
		if (status)
			json_array_append_new(list, status);
	}
	json_decref(jobs);
	return list;
}

int hspmd_control_list(bool as_json)
{
	json_t *list = hspmd_control_jobs(), *s;
	size_t i;
	if (as_json) {
		json_dumpf(list, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
		putchar('\n');
	} else {
		if (json_array_size(list))
			puts("JOB       STATE      NODES");
		else
			puts("no elastic job of this user runs or waits");
		json_array_foreach(list, i, s)
			print_line(s);
	}
	json_decref(list);
	return HSPMD_EXIT_DONE;
}
