/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd status, events, grow, shrink, checkpoint, trace: requests to a running job's controller. */
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/contact.h"
#include "common/format/job.h"
#include "common/hostlist.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "controller/cli/control.h"

#define ANSWER_S 30.0  /* wait for an answer that needs no work, unless --timeout gives less */
#define RESIZE_S 600.0 /* wait for a resize or a checkpoint, unless --timeout is given */
#define GREET_S 3.0    /* wait for a controller before Slurm is asked whether its job is suspended */
#define NODES_MOST (1 << 20)
#define RETURN_S 60.0  /* wait for a controller that has died to be restarted, unless --timeout is given */

struct control {
	const char *command; /* "grow" */
	const char *job, *count, *names;
	bool json, watch, help;
	double timeout, every;
	int64_t steps;         /* to be traced */
	bool ended;            /* the watched job no longer runs */
	char output[PATH_MAX]; /* output folder, from the last contact file */
};

enum { OPT_JSON = 256, OPT_WATCH, OPT_NODES, OPT_TIMEOUT, OPT_FOLLOW, OPT_STEPS, OPT_HELP };

/* Each option, and the commands that have it; NULL: all. */
static const struct {
	struct option option;
	const char *commands;
} all_options[] = {
	{ { "json", no_argument, NULL, OPT_JSON }, NULL },
	{ { "timeout", required_argument, NULL, OPT_TIMEOUT }, NULL },
	{ { "watch", optional_argument, NULL, OPT_WATCH }, "status" },
	{ { "follow", no_argument, NULL, OPT_FOLLOW }, "events" },
	{ { "nodes", required_argument, NULL, OPT_NODES }, "shrink" },
	{ { "steps", required_argument, NULL, OPT_STEPS }, "trace" },
	{ { "help", no_argument, NULL, OPT_HELP }, NULL },
};
#define OPTIONS (sizeof all_options / sizeof *all_options)

/* Those of a command; getopt_long() refuses the others. */
static void list_options(const char *command, struct option list[OPTIONS + 1])
{
	size_t n = 0;
	for (size_t i = 0; i < OPTIONS; i++)
		if (!all_options[i].commands || !strcmp(all_options[i].commands, command))
			list[n++] = all_options[i].option;
	list[n] = (struct option){ NULL, 0, NULL, 0 };
}

/* positional: number of words; 2 means a count before the job. */
static int parse(int argc, char **argv, struct control *c, int positional)
{
	struct option long_options[OPTIONS + 1];
	int opt, bad = 0;
	list_options(c->command, long_options);
	c->timeout = c->timeout > 0 ? c->timeout : RESIZE_S;
	c->every = 2;
	while ((opt = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (opt) {
		case OPT_JSON:
			c->json = true;
			break;
		case OPT_FOLLOW:
			c->watch = true;
			break;
		case OPT_WATCH:
			c->watch = true;
			bad |= optarg && hspmd_option_number("watch", optarg, 0.1, 3600, &c->every);
			break;
		case OPT_NODES:
			c->names = optarg;
			break;
		case OPT_STEPS:
			bad |= hspmd_option_int("steps", optarg, 1, HSPMD_JOB_TRACE_MAX, &c->steps);
			break;
		case OPT_TIMEOUT:
			bad |= hspmd_option_number("timeout", optarg, 1, 1e6, &c->timeout);
			break;
		case 'h':
		case OPT_HELP:
			c->help = true;
			return 0;
		default:
			return hspmd_usage_hint(c->command);
		}
	}
	if (bad)
		return hspmd_usage_hint(c->command);
	int have = argc - optind;
	if (c->names && have == 2)
		return hspmd_usage_error(c->command, "--nodes and '%s' both say which nodes: expected one of them", argv[optind]);
	if (positional == 2 && c->names && have == 1)
		have = 2, c->count = NULL, c->job = argv[optind];
	else if (positional == 2 && have == 2)
		c->count = argv[optind], c->job = argv[optind + 1];
	else if (positional == 1 && have == 1)
		c->job = argv[optind];
	else if (positional == 1 && !have)
		c->job = getenv("SLURM_JOB_ID");
	else if (positional == 2 && have == 1)
		c->count = argv[optind], c->job = getenv("SLURM_JOB_ID");
	if (!c->job && !have && !strcmp(c->command, "status"))
		return 0; /* all jobs */
	if (!c->job || have > positional)
		return hspmd_usage_error(c->command, positional == 2 ? "expected a number of nodes and a job" : "expected a job");
	return 0;
}

static json_t *find(const struct control *c, struct hspmd_error *err)
{
	return hspmd_contact_find(c->job, getenv("SLURM_CLUSTER_NAME"), err);
}

/* NULL: the error has been logged. */
static json_t *ask(const struct control *c, json_t *hello, double timeout_s)
{
	struct hspmd_error err = { "" };
	json_t *contact = find(c, &err), *reply = contact ? hspmd_control_call(contact, hello, ANSWER_S, timeout_s, &err) : NULL;
	if (!reply)
		hspmd_error_log("job %s: %s", c->job, err.text);
	json_decref(contact);
	return reply;
}

static json_t *request(const struct control *c)
{
	return json_pack("{s:s, s:s, s:f}", "role", "command", "command", c->command, "timeout_s", c->timeout);
}

static void pause_for(double seconds)
{
	nanosleep(&(struct timespec){ .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) }, NULL);
}

/* A controller that is silent may be suspended with its job, and one that is not there may not have started: Slurm knows, if `explain`. Its
 * answer has the form of the controller's. NULL and err. */
static json_t *call_or_explain(const struct control *c, const json_t *contact, json_t *hello, bool explain, struct hspmd_error *err)
{
	double answer_s = c->timeout < ANSWER_S ? c->timeout : ANSWER_S, greet_s = explain && GREET_S < answer_s ? GREET_S : answer_s;
	double began = hspmd_now();
	json_t *reply = contact && hello ? hspmd_control_call(contact, hello, greet_s, greet_s, err) : NULL;
	json_t *state = explain && !reply ? hspmd_control_ask_slurm(c->job, contact != NULL) : NULL;
	if (state)
		return json_pack("{s:o}", "status", state);
	bool silent = contact && !reply && greet_s < answer_s && hspmd_now() - began >= greet_s;
	return silent ? hspmd_control_call(contact, hello, answer_s, answer_s, err) : reply;
}

/* For commands that watch a job. If the controller has answered before (c->output is known) and no longer does, this waits for up to
 * c->timeout: a controller that has died is restarted by the process that supervises it. A job that ends removes its contact file: then
 * c->ended. NULL: the error has been logged. */
static json_t *ask_again(struct control *c)
{
	double since = 0;
	for (;;) {
		struct hspmd_error err = { "" };
		json_t *contact = find(c, &err), *hello = request(c);
		const char *output = json_string_value(json_object_get(contact, "output"));
		bool heard = c->output[0] != 0, explain = !(since > 0) && !strcmp(c->command, "status");
		json_t *reply = call_or_explain(c, contact, hello, explain, &err);
		if (reply)
			snprintf(c->output, sizeof c->output, "%s", output ? output : "?");
		c->ended = !contact && heard;
		json_decref(contact);
		json_decref(hello);
		if (reply)
			return reply;
		if (c->ended) {
			hspmd_info("job %s is no longer running", c->job);
			return NULL;
		}
		if (!c->watch || !heard) {
			hspmd_error_log("job %s: %s", c->job, err.text);
			return NULL;
		}
		if (!(since > 0)) {
			since = hspmd_now();
			hspmd_warn("job %s: its controller does not answer (%s): waiting up to %.0f s for its restart", c->job, err.text,
			           c->timeout);
		} else if (hspmd_now() - since > c->timeout) {
			hspmd_error_log("job %s: waited %.0f s for its controller to answer again: %s", c->job, hspmd_now() - since,
			                err.text);
			return NULL;
		}
		pause_for(c->every < 1 ? c->every : 1);
	}
}

static int print_json(const json_t *v)
{
	json_dumpf(v, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
	putchar('\n');
	return HSPMD_EXIT_DONE;
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));
	return s ? s : "";
}

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* command: the job runs another trainer, whose state this one does not know. */
static void print_copies(const json_t *copies, bool command)
{
	size_t i;
	json_t *c;
	if (!json_array_size(copies))
		puts(command ? "state       what the command has saved" : "state       no copy yet");
	json_array_foreach(copies, i, c) {
		double count = number(c, "count");
		printf("%-12s%s: step %.0f, %.0f s old", i ? "" : "state", text(c, "where"), number(c, "step"), number(c, "age_s"));
		printf(count == 1 ? "\n" : ", %.0f copies\n", count);
	}
}

/* Prints "what  n4 (VALUE), n5 (VALUE)" unless the list is empty. */
static void print_nodes(const char *what, const json_t *nodes, const char *value)
{
	const char *name, *before = "";
	json_t *v;
	if (!json_object_size(nodes))
		return;
	printf("%-12s", what);
	json_object_foreach((json_t *)nodes, name, v) {
		char said[64];
		snprintf(said, sizeof said, value, json_number_value(v));
		printf("%s%s (%s)", before, name, said);
		before = ", ";
	}
	putchar('\n');
}

/* A line for each node that no plan uses: for how long, if that is known, and why. */
static void print_left_out(const json_t *nodes)
{
	const char *name, *before = "left out";
	json_t *v;
	json_object_foreach((json_t *)nodes, name, v) {
		printf("%-12s%s", before, name);
		if (json_object_get(v, "for_s"))
			printf(" (%.0f s more)", number(v, "for_s"));
		printf(": %s\n", text(v, "reason"));
		before = "";
	}
}

static void print_status(const json_t *s)
{
	printf("job         %s: %s\n", text(s, "job"), text(s, "phase"));
	if (*text(s, "reason"))
		printf("why         %s\n", text(s, "reason"));
	if (json_object_get(s, "reason")) /* Slurm has said it, not the controller */
		return;
	if (*text(s, "waiting_for"))
		printf("waiting for %s\n", text(s, "waiting_for"));
	printf("nodes       %.0f: %s\n", number(s, "node_count"), text(s, "nodes"));
	print_nodes("members", json_object_get(s, "members"), "job %.0f");
	if (json_array_size(json_object_get(s, "members_waiting")))
		printf("            %zu more wait for nodes\n", json_array_size(json_object_get(s, "members_waiting")));
	print_nodes("slow", json_object_get(s, "stragglers"), "%.2f times");
	print_left_out(json_object_get(s, "left_out"));
	printf("generation  %.0f\n", number(s, "generation"));
	printf("plan        %s\n", *text(s, "plan") ? text(s, "plan") : "-");
	if (json_object_get(s, "repaired"))
		printf("repaired    %s\n", text(json_object_get(s, "repaired"), "text"));
	if (number(s, "steps") > 0)
		printf("step        %.0f of %.0f, loss %.5g\n", number(s, "step"), number(s, "steps"), number(s, "loss"));
	else if (number(s, "step") > 0) /* a command has told it */
		printf("step        %.0f, loss %.5g\n", number(s, "step"), number(s, "loss"));
	bool told = number(s, "steps") > 0 || number(s, "step") > 0 || number(s, "step_s") > 0;
	if (told)
		printf("speed       %.4g tokens/s, %.3g s a step\n", number(s, "tokens_per_s"), number(s, "step_s"));
	else
		puts("step        the command has told none");
	print_copies(json_object_get(s, "state"), json_is_integer(json_object_get(s, "steps")) && !number(s, "steps"));
	const json_t *fails = json_object_get(s, "checkpoints_fail");
	if (fails)
		printf("checkpoints FAIL for %.0f s: %s\n", number(fails, "for_s"), text(fails, "why"));
	const char *last_error =
	        text(s, json_object_get(s, "last_error") ? "last_error" : "trouble"); /* a controller of an earlier version */
	if (*last_error)
		printf("last error  %s\n", last_error);
	printf("output      %s\n", text(s, "output"));
}

static int status_once(struct control *c)
{
	json_t *reply = ask_again(c);
	const json_t *s = json_object_get(reply, "status");
	if (s && c->json)
		print_json(s);
	else if (s)
		print_status(s);
	json_decref(reply);
	return s || c->ended ? HSPMD_EXIT_DONE : HSPMD_EXIT_FAILED;
}

int hspmd_command_status(int argc, char **argv)
{
	struct control c = { .command = "status", .timeout = RETURN_S };
	int status = parse(argc, argv, &c, 1);
	if (c.help)
		fputs("Usage: hspmd status [--json] [--watch[=SECONDS]] [--timeout S] [JOB]\n\nPrints what a running job does: nodes, "
		      "generation, plan, step, loss, speed, newest "
		      "checkpoint. Without JOB, outside of a job: a line for each of the user's jobs.\nJOB is a job's id, its output "
		      "folder, or \"local\" for the newest run outside of Slurm.\n",
		      stdout);
	if (status || c.help)
		return status;
	do {
		status = c.job ? status_once(&c) : hspmd_control_list(c.json);
		if (!c.watch || status || c.ended)
			break;
		putchar('\n');
		fflush(stdout);
		pause_for(c.every);
	} while (!ferror(stdout));
	return status;
}

/* Prints the events after number `seen`; returns the number of the last. */
static int64_t print_events(const json_t *events, int64_t seen, bool json)
{
	size_t i;
	json_t *e;
	json_array_foreach(events, i, e) {
		char when[32] = "";
		time_t t = (time_t)number(e, "time");
		struct tm tm;
		if (json_integer_value(json_object_get(e, "number")) <= seen)
			continue;
		seen = json_integer_value(json_object_get(e, "number"));
		if (json) {
			json_dumpf(e, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
			putchar('\n');
			continue;
		}
		if (localtime_r(&t, &tm))
			strftime(when, sizeof when, "%F %T", &tm);
		printf("%s  %s\n", when, text(e, "text"));
	}
	fflush(stdout);
	return seen;
}

/* The job's word is the output folder of a job that has ended: it goes to c->output. */
static bool names_ended_folder(struct control *c)
{
	char path[PATH_MAX + 16];
	snprintf(path, sizeof path, "%s/contact.json", c->job);
	bool runs = !access(path, F_OK);
	snprintf(path, sizeof path, "%s/events.jsonl", c->job);
	if (runs || access(path, F_OK))
		return false;
	snprintf(c->output, sizeof c->output, "%s", c->job);
	return true;
}

/* Prints the events in the output folder of a job that has ended, after number `seen`. */
static void print_the_rest(const struct control *c, int64_t seen)
{
	char path[PATH_MAX + 16];
	snprintf(path, sizeof path, "%s/events.jsonl", c->output);
	FILE *f = fopen(path, "r");
	json_t *e, *all = json_array();
	while (f && (e = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)))
		json_array_append_new(all, e);
	print_events(all, seen, c->json);
	json_decref(all);
	if (f)
		fclose(f);
}

int hspmd_command_events(int argc, char **argv)
{
	struct control c = { .command = "events", .timeout = RETURN_S };
	int status = parse(argc, argv, &c, 1);
	int64_t seen = 0;
	if (c.help)
		fputs("Usage: hspmd events [--json] [--follow] [--timeout S] JOB\n\nPrints the last events of a running job, or all "
		      "of one that has ended\nif JOB is its output folder; with --json one object per line.\n",
		      stdout);
	if (status || c.help)
		return status;
	if (names_ended_folder(&c)) {
		print_the_rest(&c, 0);
		return HSPMD_EXIT_DONE;
	}
	for (;;) {
		json_t *reply = ask_again(&c), *events = json_object_get(reply, "events");
		seen = print_events(events, seen, c.json);
		status = events || c.ended ? HSPMD_EXIT_DONE : HSPMD_EXIT_FAILED;
		json_decref(reply);
		if (!c.watch || status || c.ended || ferror(stdout))
			break;
		pause_for(c.every);
	}
	if (c.ended)
		print_the_rest(&c, seen);
	return status;
}

/* Logs why the job did not do what it was asked; the job's own words may name it already. */
static void log_refusal(const struct control *c, const char *why)
{
	char name[48];
	int length = snprintf(name, sizeof name, "job %s: ", c->job);
	bool named = length < (int)sizeof name && !strncmp(why, name, (size_t)length);
	hspmd_error_log("%s%s", named ? "" : name, why);
}

/* Sends a request whose answer is a sentence, and prints the answer. */
static int tell(const struct control *c, json_t *hello)
{
	json_t *reply = hello ? ask(c, hello, c->timeout + ANSWER_S) : NULL;
	bool ok = json_is_true(json_object_get(reply, "ok"));
	if (reply && c->json)
		print_json(reply);
	else if (ok)
		puts(text(reply, "text"));
	if (reply && !ok)
		log_refusal(c, text(reply, "text"));
	json_decref(hello);
	json_decref(reply);
	return ok ? HSPMD_EXIT_DONE : HSPMD_EXIT_FAILED;
}

bool hspmd_control_names_job(int argc, char **argv, const char *const *verbs)
{
	int arguments = 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h") || !strcmp(argv[i], "-o") || !strcmp(argv[i], "--output"))
			return false;
		for (size_t v = 0; !arguments && verbs[v]; v++)
			if (!strcmp(argv[i], verbs[v]))
				return false;
		if (!strcmp(argv[i], "--timeout"))
			i++;
		else
			arguments += argv[i][0] != '-';
	}
	return arguments == 1 || (!arguments && getenv("SLURM_JOB_ID"));
}

int hspmd_control_checkpoint(int argc, char **argv)
{
	struct control c = { .command = "checkpoint" };
	int status = parse(argc, argv, &c, 1);
	if (c.help)
		fputs("Usage: hspmd checkpoint [--json] [--timeout S] JOB\n\nMakes a running job write a checkpoint now; returns when the "
		      "checkpoint is complete.\n",
		      stdout);
	return status || c.help ? status : tell(&c, request(&c));
}

int hspmd_command_trace(int argc, char **argv)
{
	struct control c = { .command = "trace", .steps = 2 };
	int status = parse(argc, argv, &c, 1);
	if (c.help)
		fputs("Usage: hspmd trace [--steps N] [--json] [--timeout S] JOB\n\nRecords what every device of a running job does in its "
		      "next "
		      "N steps (2), and what changes of its nodes take meanwhile. Returns when\nthe trace is complete; it is a file in the "
		      "job's "
		      "output folder, for Perfetto (ui.perfetto.dev).\n",
		      stdout);
	if (status || c.help)
		return status;
	json_t *hello = request(&c);
	if (hello && json_object_set_new(hello, "steps", json_integer(c.steps))) {
		json_decref(hello);
		hello = NULL;
	}
	return tell(&c, hello);
}

/* "4" is a total, "+2" and "-2" are differences. */
static int add_count(json_t *hello, const struct control *c)
{
	bool by = c->count[0] == '+' || c->count[0] == '-';
	const char *digits = c->count + by;
	bool whole = *digits && strspn(digits, "0123456789") == strlen(digits) && strlen(digits) < 8;
	int n = whole ? atoi(digits) : -1;
	if (n < by || n > NODES_MOST) { /* the job says why it cannot have none */
		hspmd_error_log("expected a number of nodes, N or %cN, up to %d, got '%s'", !strcmp(c->command, "grow") ? '+' : '-',
		                NODES_MOST, c->count);
		return -1;
	}
	if (by && (c->count[0] == '+') != !strcmp(c->command, "grow")) {
		hspmd_error_log("%s by %s: the sign is the wrong one", c->command, c->count);
		return -1;
	}
	return json_object_set_new(hello, by ? "by" : "nodes", json_integer(n));
}

static int add_names(json_t *hello, const struct control *c)
{
	struct hspmd_error err;
	char **names;
	int n = hspmd_hostlist_expand(c->names, 1 << 16, &names, &err);
	json_t *list = json_array();
	if (n < 0) {
		hspmd_error_log("--nodes: %s", err.text);
		json_decref(list);
		return -1;
	}
	for (int i = 0; i < n; i++)
		json_array_append_new(list, json_string(names[i]));
	hspmd_hostlist_free(names, n);
	return json_object_set_new(hello, "names", list);
}

/* Returns true if the next word is the value of this option, which may be abbreviated. */
static bool takes_value(const char *option)
{
	size_t n = strlen(option);
	return n > 2 && (!strncmp(option, "--timeout", n) || !strncmp(option, "--nodes", n));
}

static int resize(int argc, char **argv, const char *command, const char *help)
{
	struct control c = { .command = command };
	/* "-2" is a count, not an option, unless it is an option's value. */
	char **arguments = calloc((size_t)argc + 2, sizeof *arguments);
	int n = 0, status = arguments ? 0 : HSPMD_EXIT_FAILED;
	bool cut = false;
	for (int i = 0; arguments && i < argc; i++) {
		cut |= !strcmp(argv[i], "--");
		if (!cut && i > 0 && argv[i][0] == '-' && argv[i][1] >= '0' && argv[i][1] <= '9' && !takes_value(argv[i - 1])) {
			arguments[n++] = "--";
			cut = true;
		}
		arguments[n++] = argv[i];
	}
	if (!status)
		status = parse(n, arguments, &c, 2);
	if (c.help)
		fputs(help, stdout);
	if (!status && !c.help) {
		json_t *hello = request(&c);
		if (!hello || (c.count && add_count(hello, &c)) || (c.names && add_names(hello, &c))) {
			json_decref(hello);
			status = hspmd_usage_hint(command);
		} else {
			status = tell(&c, hello);
		}
	}
	free(arguments);
	return status;
}

int hspmd_command_grow(int argc, char **argv)
{
	return resize(argc, argv, "grow",
	              "Usage: hspmd grow [--json] [--timeout S] N|+N JOB\n\nGives a running job more nodes: N in all, or +N more. Returns "
	              "when it trains on them.\n");
}

int hspmd_command_shrink(int argc, char **argv)
{
	return resize(argc, argv, "shrink",
	              "Usage: hspmd shrink [--json] [--timeout S] N|-N JOB\n       hspmd shrink [--json] [--timeout S] --nodes LIST "
	              "JOB\n\nGives nodes of a running "
	              "job back: down to N in all, or N fewer, or those of LIST. Its state is moved off them first;\nthe node with the "
	              "batch script stays. Returns "
	              "when Slurm has the nodes.\n");
}
