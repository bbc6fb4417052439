/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/job_command.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/template.h"

#define NOTICE_MAX_S 86400.0

static const struct {
	const char *name;
	int number;
} signals[] = { { "TERM", SIGTERM }, { "USR1", SIGUSR1 }, { "USR2", SIGUSR2 }, { "INT", SIGINT },
	        { "HUP", SIGHUP },   { "QUIT", SIGQUIT }, { "CONT", SIGCONT }, { "ALRM", SIGALRM } };

int hspmd_job_notice_parse(const char *text, int *number, double *seconds, struct hspmd_error *err)
{
	const char *name = strncmp(text, "SIG", 3) ? text : text + 3, *colon = strchr(name, ':');
	size_t n = colon ? (size_t)(colon - name) : strlen(name);
	char *end = NULL;
	double s = colon ? strtod(colon + 1, &end) : 60;
	if (colon && (end == colon + 1 || *end || !(s >= 0 && s <= NOTICE_MAX_S)))
		return hspmd_fail(err, "expected SIGNAL:SECONDS with 0 to %g seconds, got \"%s\"", NOTICE_MAX_S, text);
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		if (strlen(signals[i].name) == n && !memcmp(signals[i].name, name, n)) {
			*number = signals[i].number;
			*seconds = s;
			return 0;
		}
	return hspmd_fail(err, "expected SIGNAL:SECONDS with TERM, USR1, USR2, INT, HUP, QUIT, CONT or ALRM, got \"%s\"", text);
}

char *hspmd_job_notice_text(int number, double seconds)
{
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		if (signals[i].number == number)
			return hspmd_asprintf("%s:%g", signals[i].name, seconds);
	return NULL;
}

/* ---- reading */

/* The built-in trainer's keys mean nothing to another one. */
static int refuse_others(struct hspmd_json *root)
{
	static const char *const names[] = { "model", "init",      "data",      "seq_len",  "global_batch", "steps",
		                             "seed",  "optimizer", "precision", "rounding", "deterministic" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct hspmd_json at = hspmd_json_any(root, names[i]);
		if (at.value)
			hspmd_json_fail(&at, "expected none beside \"command\", which reads files and options of its own");
	}
	return hspmd_json_failed(root) ? -1 : 0;
}

static int read_arguments(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json all = hspmd_json_array(root, "command", 1, HSPMD_COMMAND_ARGUMENTS_MAX);
	size_t n = hspmd_json_length(&all);
	if (hspmd_json_failed(root))
		return -1;
	if (!(j->command.argv = hspmd_calloc(n + 1, sizeof *j->command.argv)))
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json one = hspmd_json_at(&all, i);
		const char *text = json_string_value(one.value);
		if (!text || (!i && !*text)) {
			hspmd_json_fail(&one, i ? "expected a text" : "expected the name of a program");
			continue;
		}
		if (!(j->command.argv[j->command.argc] = strdup(text)))
			return hspmd_json_fail_memory(&one);
		j->command.argc++;
	}
	return 0;
}

int hspmd_job_command_read(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_error why;
	if (refuse_others(root) || read_arguments(j, root))
		return -1;
	j->command.per_node = hspmd_json_bool_or(root, "per_node", false);
	j->command.warm = hspmd_json_bool_or(root, "warm", false);
	const char *notice = hspmd_json_string_or(root, "notice", HSPMD_NOTICE_DEFAULT),
	           *folder = hspmd_json_string_or(root, "folder", NULL);
	struct hspmd_json at = hspmd_json_any(root, "notice");
	if (hspmd_json_failed(root))
		return -1;
	if (notice && hspmd_job_notice_parse(notice, &j->command.notice_signal, &j->command.notice_s, &why))
		hspmd_json_fail(&at, "%s", why.text);
	if (folder && *folder != '/') {
		at = hspmd_json_any(root, "folder");
		hspmd_json_fail(&at, "expected an absolute path, got \"%s\"", folder);
	}
	if (folder && !(j->command.folder = strdup(folder)))
		return hspmd_json_fail_memory(root);
	/* A step is whatever the command calls one. */
	j->seq_len = j->global_batch = 1;
	j->steps = INT64_MAX;
	return 0;
}

int hspmd_job_command_write(const struct hspmd_job *j, json_t *job)
{
	json_t *all = json_array();
	char *notice = hspmd_job_notice_text(j->command.notice_signal, j->command.notice_s);
	int bad = !all || !notice;
	for (int i = 0; i < j->command.argc; i++)
		bad |= json_array_append_new(all, json_string(j->command.argv[i]));
	bad |= json_object_set_new(job, "command", all);
	bad |= json_object_set_new(job, "per_node", json_boolean(j->command.per_node));
	bad |= json_object_set_new(job, "warm", json_boolean(j->command.warm));
	bad |= json_object_set_new(job, "notice", json_string(notice));
	if (j->command.folder)
		bad |= json_object_set_new(job, "folder", json_string(j->command.folder));
	free(notice);
	return bad;
}

void hspmd_job_command_clear(struct hspmd_job *j)
{
	for (int i = 0; i < j->command.argc; i++)
		free(j->command.argv[i]);
	free(j->command.argv);
	free(j->command.folder);
	memset(&j->command, 0, sizeof j->command);
}

/* ---- checks */

int hspmd_job_command_check(const struct hspmd_job *j, struct hspmd_error *err)
{
	const struct hspmd_template_values one = { .world = 1, .nodes = 1 };
	for (int i = 0; i < j->command.argc; i++)
		if (hspmd_template_expand(j->command.argv[i], &one, NULL, err) == HSPMD_TEMPLATE_WRONG)
			return hspmd_error_prefix(err, "%s: command[%d]", j->file, i);
	/* A name without a slash is looked for in PATH, which the script may change before the command is run. */
	const char *program = j->command.argc ? j->command.argv[0] : NULL;
	if (program && *program == '/' && access(program, X_OK))
		return hspmd_fail_errno(err, "%s: command[0]: %s", j->file, program);
	return 0;
}
