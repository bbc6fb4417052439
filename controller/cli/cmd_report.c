/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd report: what happened to a run, as one HTML page. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "controller/report/page.h"

static const char head[] = "Usage: hspmd report [options] [JOB or FOLDER ...]\n"
                           "\n"
                           "Draws what happened in a run, from its output folder (default: this one): one HTML page that needs no other\n"
                           "file. A JOB's folder is hspmd-JOB here. Several runs are compared.\n";

static bool is_folder(const char *path)
{
	struct stat st;
	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* A job's number stands for the folder that `hspmd run` gets in a batch script (hspmd(1)). malloc'd; NULL: out of memory. */
static char *folder_of(const char *word)
{
	bool number = *word && !word[strspn(word, "0123456789")];
	return number && !is_folder(word) ? hspmd_asprintf("hspmd-%s", word) : strdup(word);
}

static struct report_run *read_run(const char *word, struct hspmd_error *err)
{
	char *folder = folder_of(word);
	struct report_run *r = folder ? report_run_read(folder, err) : NULL;
	if (!folder)
		hspmd_fail_memory(err, "reading a run");
	for (size_t i = 0; r && i < r->warning_count; i++)
		hspmd_warn("%s: %s", folder, r->warnings[i]);
	free(folder);
	return r;
}

static int save(const struct report_run *const *runs, int count, const char *path, struct hspmd_error *err)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	int rc = f ? report_page_write(f, runs, count, err) : hspmd_fail_memory(err, "writing a report");
	if (f && (ferror(f) | fclose(f)) && !rc)
		rc = hspmd_fail_memory(err, "writing a report");
	if (!rc && !strcmp(path, "-"))
		fwrite(text, 1, size, stdout); /* main.c finds what could not be written */
	else if (!rc && !(rc = hspmd_durable_write(path, text, size, err)))
		puts(path);
	free(text);
	return rc;
}

int hspmd_command_report(int argc, char **argv)
{
	const char *output = "report.html";
	const struct hspmd_option options[] = {
		{ "output", 'o', "F.html", HSPMD_OPTION_TEXT, &output, 0, 0, "where to write (default: report.html; -: standard output)" },
		{ 0 },
	};
	int status = hspmd_options_parse_files("report", head, options, argc, argv);
	if (status)
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	if (argc - optind > REPORT_RUNS_MAX)
		return hspmd_usage_error("report", "at most %d runs", REPORT_RUNS_MAX);
	struct report_run *runs[REPORT_RUNS_MAX] = { 0 };
	struct hspmd_error err = { "" };
	int count = 0, rc = 0;
	do {
		if (!(runs[count] = read_run(optind < argc ? argv[optind] : ".", &err)))
			rc = -1;
		count++;
	} while (!rc && ++optind < argc);
	if (!rc)
		rc = save((const struct report_run *const *)runs, count, output, &err);
	for (int i = 0; i < count; i++)
		report_run_destroy(runs[i]);
	if (rc)
		hspmd_error_log("%s", err.text);
	return rc ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
