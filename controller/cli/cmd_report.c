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
#include "controller/cli/report_site.h"
#include "controller/report/page.h"

static const char head[] = "Usage: hspmd report [options] [JOB or FOLDER ...]\n"
                           "       hspmd report --site --since WHEN [options]\n"
                           "\n"
                           "Draws what happened in a run, from its output folder (default: this one): one HTML page that needs no other\n"
                           "file. A JOB's folder is hspmd-JOB here. Several runs are compared. With --site: what elasticity brought all\n"
                           "jobs of a cluster, and what it cost, from Slurm's accounting and hspmdctld's event log.\n";

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

/* What there is to write. */
struct content {
	const struct report_run *const *runs;
	int count;
	const struct report_site_options *site; /* instead of the runs; NULL: none */
};

static int save(const struct content *c, const char *path, struct hspmd_error *err)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	int rc = !f        ? hspmd_fail_memory(err, "writing a report")
	         : c->site ? report_site_write(f, c->site, err)
	                   : report_page_write(f, c->runs, c->count, err);
	if (f && (ferror(f) | fclose(f)) && !rc)
		rc = hspmd_fail_memory(err, "writing a report");
	if (!rc && !strcmp(path, "-"))
		fwrite(text, 1, size, stdout); /* main.c finds what could not be written */
	else if (!rc && !(rc = hspmd_durable_write(path, text, size, err)))
		puts(path);
	free(text);
	return rc;
}

static int report_runs(int argc, char **argv, const char *output, struct hspmd_error *err)
{
	struct report_run *runs[REPORT_RUNS_MAX] = { 0 };
	int count = 0, rc = 0;
	do {
		if (!(runs[count] = read_run(optind < argc ? argv[optind] : ".", err)))
			rc = -1;
		count++;
	} while (!rc && ++optind < argc);
	if (!rc)
		rc = save(&(struct content){ (const struct report_run *const *)runs, count, NULL }, output, err);
	for (int i = 0; i < count; i++)
		report_run_destroy(runs[i]);
	return rc;
}

/* Why the options do not go together; NULL: they do. */
static const char *wrong_together(bool site, const struct report_site_options *s, int names)
{
	if (!site)
		return s->since || s->until || s->accounting || s->event_log->count
		               ? "--since, --until, --accounting and --event-log need --site"
		               : NULL;
	if (names)
		return "--site is about all jobs: it takes none";
	if (!s->since == !s->accounting)
		return "--site needs one of --since and --accounting";
	return s->until && s->accounting ? "--until chooses what sacct is asked for: not with --accounting" : NULL;
}

int hspmd_command_report(int argc, char **argv)
{
	const char *output = "report.html";
	bool site = false;
	struct hspmd_option_list event_log = { 0 };
	struct report_site_options s = { .event_log = &event_log };
	const struct hspmd_option options[] = {
		{ "output", 'o', "F.html", HSPMD_OPTION_TEXT, &output, 0, 0, "where to write (default: report.html; -: standard output)" },
		{ "site", 0, NULL, HSPMD_OPTION_FLAG, &site, 0, 0, "report on all jobs of the cluster" },
		{ "since", 0, "WHEN", HSPMD_OPTION_TEXT, &s.since, 0, 0, "from this time on, as sacct takes it: 2026-11-01, now-30days" },
		{ "until", 0, "WHEN", HSPMD_OPTION_TEXT, &s.until, 0, 0, "until then (default: now)" },
		{ "event-log", 0, "FILE", HSPMD_OPTION_TEXTS, &event_log, 0, 0,
		  "of hspmdctld --event-log: for changes, pauses, lost work\nand saved waits; also several times" },
		{ "accounting", 0, "FILE", HSPMD_OPTION_TEXT, &s.accounting, 0, 0,
		  "output of sacct --parsable2 instead of running sacct (-: standard\ninput)" },
		{ 0 },
	};
	int status = hspmd_options_parse_files("report", head, options, argc, argv);
	if (status)
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	const char *wrong = wrong_together(site, &s, argc - optind);
	if (wrong)
		return hspmd_usage_error("report", "%s", wrong);
	if (argc - optind > REPORT_RUNS_MAX)
		return hspmd_usage_error("report", "at most %d runs", REPORT_RUNS_MAX);
	struct hspmd_error err = { "" };
	int rc = site ? save(&(struct content){ .site = &s }, output, &err) : report_runs(argc, argv, output, &err);
	if (rc)
		hspmd_error_log("%s", err.text);
	return rc ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
}
