/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd top: a running job, or the user's jobs, as they change. */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "controller/cli/top_ask.h"
#include "controller/top/screen.h"
#include "controller/top/view.h"

#define SCREEN_EVERY_S 1.0
#define PLAIN_EVERY_S 10.0
#define PLAIN_WIDTH 1000
#define NOTICE_S 8.0 /* how long the answer to a request stays on the screen */

struct top {
	struct top_ask *ask;
	char job[4096]; /* "": the list */
	struct top_view view;
	json_t *jobs; /* NULL: not known yet */
	char why[512];
	int chosen;
	char asked;      /* 'g', 's', 'c': a question is on the screen; 0: none */
	char typed[16];  /* the number typed so far */
	double notice_until;
	bool done;
};

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
	(void)number;
	stopped = 1;
}

static void catch_signals(void)
{
	struct sigaction stop = { .sa_handler = on_signal };
	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGHUP, &stop, NULL);
}

/* Takes what the threads have brought. Returns true if there is a new answer. */
static bool take(struct top *t, double now)
{
	json_t *answer;
	char notice[sizeof t->view.notice], why[sizeof t->why];
	if (top_ask_take_notice(t->ask, notice, sizeof notice)) {
		top_clean(notice, t->view.notice, sizeof t->view.notice);
		t->notice_until = now + NOTICE_S;
	}
	if (!top_ask_take(t->ask, &answer, why, sizeof why))
		return false;
	top_clean(why, t->why, sizeof t->why);
	if (t->job[0]) {
		top_view_update(&t->view, answer, t->why, now);
	} else if (answer) {
		json_decref(t->jobs);
		t->jobs = json_incref(answer);
	}
	json_decref(answer);
	return true;
}

static void show_job(struct top *t, const char *job)
{
	top_view_clear(&t->view);
	snprintf(t->job, sizeof t->job, "%s", job);
	top_ask_about(t->ask, t->job);
}

static void request(struct top *t, const char *command, int nodes)
{
	json_t *r = json_pack("{s:s}", "command", command);
	if (r && nodes > 0)
		json_object_set_new(r, "nodes", json_integer(nodes));
	if (top_ask_request(t->ask, r))
		snprintf(t->view.notice, sizeof t->view.notice, "%s: under way ...", command);
	else
		snprintf(t->view.notice, sizeof t->view.notice, "the request before is still under way");
	t->notice_until = hspmd_now() + (nodes ? 600 : 60);
}

static const char *command_of(char key)
{
	return key == 'g' ? "grow" : key == 's' ? "shrink" : "checkpoint";
}

/* ---- the screen */

static void put_question(struct top *t)
{
	if (t->asked == 'c')
		snprintf(t->view.notice, sizeof t->view.notice, "make a checkpoint now? y or n");
	else if (t->asked)
		snprintf(t->view.notice, sizeof t->view.notice, "%s from %.0f to how many nodes? %s_  (enter: do it, escape: no)",
		         command_of(t->asked), json_number_value(json_object_get(t->view.status, "node_count")), t->typed);
}

static void draw(struct top *t, double now)
{
	struct top_page page;
	int lines, columns;
	top_screen_size(&lines, &columns);
	top_page_begin(&page, columns, top_screen_unicode());
	if (!t->asked && now > t->notice_until)
		t->view.notice[0] = 0;
	put_question(t);
	if (t->job[0])
		top_view_draw(&t->view, &page, lines, now, hspmd_unix_time());
	else
		top_jobs_draw(t->jobs, t->chosen, t->jobs ? "" : t->why, &page, lines);
	top_screen_show(&page);
	top_page_free(&page);
}

static void key_in_question(struct top *t, int key)
{
	size_t n = strlen(t->typed);
	bool yes = t->asked == 'c' ? key == 'y' : key == TOP_KEY_ENTER && n;
	if (t->asked != 'c' && key >= '0' && key <= '9' && n + 1 < 6) {
		t->typed[n] = (char)key;
		t->typed[n + 1] = 0;
		return;
	}
	if (t->asked != 'c' && key == TOP_KEY_BACKSPACE && n) {
		t->typed[n - 1] = 0;
		return;
	}
	if (t->asked != 'c' && key != TOP_KEY_ENTER && key != TOP_KEY_ESCAPE && key != 'q')
		return;
	char asked = t->asked;
	t->asked = 0;
	t->view.notice[0] = 0;
	if (yes)
		request(t, command_of(asked), asked == 'c' ? 0 : atoi(t->typed));
}

static void key_in_job(struct top *t, int key)
{
	int lines, columns, page;
	top_screen_size(&lines, &columns);
	page = lines / 2;
	switch (key) {
	case 'g':
	case 's':
	case 'c':
		if (t->view.status) {
			t->asked = (char)key;
			t->typed[0] = 0;
		}
		return;
	case 'j':
	case TOP_KEY_ESCAPE:
		show_job(t, "");
		return;
	case TOP_KEY_UP:
	case TOP_KEY_DOWN:
		t->view.scroll += key == TOP_KEY_DOWN ? 1 : -1;
		break;
	case TOP_KEY_PAGE_UP:
	case TOP_KEY_PAGE_DOWN:
		t->view.scroll += key == TOP_KEY_PAGE_DOWN ? page : -page;
		break;
	case TOP_KEY_HOME:
		t->view.scroll = 0;
		break;
	case TOP_KEY_END:
		t->view.scroll = top_view_devices(&t->view) - page;
		break;
	default:
		return;
	}
	int most = top_view_devices(&t->view) - 1;
	t->view.scroll = t->view.scroll > most ? most : t->view.scroll;
	t->view.scroll = t->view.scroll < 0 ? 0 : t->view.scroll;
}

static void key_in_jobs(struct top *t, int key)
{
	int count = (int)json_array_size(t->jobs);
	if (key == TOP_KEY_UP && t->chosen > 0)
		t->chosen--;
	else if (key == TOP_KEY_DOWN && t->chosen + 1 < count)
		t->chosen++;
	t->chosen = t->chosen >= count ? count - 1 : t->chosen;
	t->chosen = t->chosen < 0 ? 0 : t->chosen;
	const char *name = json_string_value(json_object_get(json_array_get(t->jobs, (size_t)t->chosen), "job"));
	if (key == TOP_KEY_ENTER && name)
		show_job(t, name);
}

static void on_key(struct top *t, int key)
{
	if (key == TOP_KEY_RESIZED)
		return;
	if (t->asked)
		key_in_question(t, key);
	else if (key == 'q')
		t->done = true;
	else if (t->job[0])
		key_in_job(t, key);
	else
		key_in_jobs(t, key);
}

static int run_screen(struct top *t)
{
	while (!t->done && !stopped) {
		int key;
		take(t, hspmd_now());
		draw(t, hspmd_now());
		struct pollfd wait[2] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = top_ask_fd(t->ask), .events = POLLIN } };
		if (poll(wait, 2, 1000) < 0 && errno != EINTR)
			break;
		if (wait[0].revents & (POLLHUP | POLLERR)) /* the terminal is gone */
			break;
		while ((key = top_screen_key()) != TOP_KEY_NONE)
			on_key(t, key);
	}
	top_screen_close();
	return HSPMD_EXIT_DONE;
}

/* ---- plain mode */

static void print_page(const struct top_page *p)
{
	int line = 0;
	for (size_t i = 0; i < p->span_count; i++) {
		for (; line < p->spans[i].line; line++)
			putchar('\n');
		fwrite(p->text + p->spans[i].at, 1, p->spans[i].bytes, stdout);
	}
	puts("\n");
	fflush(stdout);
}

static void describe(struct top *t)
{
	struct top_page page;
	top_page_begin(&page, PLAIN_WIDTH, false);
	if (t->job[0])
		top_view_describe(&t->view, &page, hspmd_now());
	else
		top_jobs_describe(t->jobs, &page);
	if (page.span_count)
		print_page(&page);
	top_page_free(&page);
	t->view.notice[0] = 0;
}

/* A line that was typed: a command, which is carried out after "yes", or the answer. */
static void on_line(struct top *t, char *line)
{
	char word[16] = "";
	int nodes = 0;
	line[strcspn(line, "\r\n")] = 0;
	int fields = sscanf(line, "%15s %d", word, &nodes);
	if (t->asked) {
		if (!strcmp(word, "yes"))
			request(t, command_of(t->asked), t->asked == 'c' ? 0 : atoi(t->typed));
		puts(!strcmp(word, "yes") ? "requested" : "not done");
		t->asked = 0;
	} else if (!strcmp(word, "quit")) {
		t->done = true;
	} else if (!t->job[0]) {
		if (fields > 0)
			show_job(t, word);
	} else if (fields == 2 && nodes > 0 && (!strcmp(word, "grow") || !strcmp(word, "shrink"))) {
		t->asked = word[0];
		snprintf(t->typed, sizeof t->typed, "%d", nodes);
		printf("%s to %d nodes? yes or no\n", word, nodes);
	} else if (!strcmp(word, "checkpoint")) {
		t->asked = 'c';
		puts("make a checkpoint now? yes or no");
	} else if (!strcmp(word, "jobs")) {
		show_job(t, "");
	} else if (fields > 0) {
		puts("commands: grow N, shrink N, checkpoint, jobs, quit");
	}
	fflush(stdout);
}

/* Carries out the lines that have come; false: there will be no more. Reads past stdio, whose buffer poll does not see. */
static bool hear(struct top *t)
{
	static char typed[256];
	static size_t have;
	ssize_t n = read(STDIN_FILENO, typed + have, sizeof typed - 1 - have);
	if (n <= 0)
		return n < 0 && (errno == EINTR || errno == EAGAIN);
	have += (size_t)n;
	typed[have] = 0;
	char *line = typed;
	for (char *end; (end = strchr(line, '\n')); line = end + 1) {
		*end = 0;
		on_line(t, line);
	}
	have -= (size_t)(line - typed);
	memmove(typed, line, have);
	if (have == sizeof typed - 1) /* no command is that long */
		have = 0;
	return true;
}

static int run_plain(struct top *t, bool once)
{
	bool listens = !once;
	char told[sizeof t->why] = ""; /* why there is no answer is told once, and again if it is something else */
	while (!t->done && !stopped && !ferror(stdout)) {
		struct pollfd wait[2] = { { .fd = top_ask_fd(t->ask), .events = POLLIN },
			                  { .fd = listens ? STDIN_FILENO : -1, .events = POLLIN } };
		if (poll(wait, 2, 1000) < 0 && errno != EINTR)
			break;
		if (listens && wait[1].revents)
			listens = hear(t);
		bool answered = take(t, hspmd_now());
		bool again = answered && t->why[0] && !strcmp(t->why, told);
		if (answered)
			memcpy(told, t->why, sizeof told);
		if ((answered && !again) || t->view.notice[0])
			describe(t);
		if (answered && once)
			return t->why[0] && !t->view.status ? HSPMD_EXIT_FAILED : HSPMD_EXIT_DONE;
	}
	return HSPMD_EXIT_DONE;
}

/* ---- */

static const char head[] =
        "Usage: hspmd top [--plain] [--once] [--every S] [JOB]\n\n"
        "Shows a running job as it changes: its steps and loss, its plan, what every device does, and events. Without JOB,\n"
        "outside of a job: the user's jobs, of which one can be chosen. JOB is a job's id, its output folder, or \"local\"\n"
        "for the newest run outside of Slurm.\n\n"
        "Keys: g grow, s shrink, c checkpoint (each after a question), j jobs, q quit.\n\nOptions:\n";

int hspmd_command_top(int argc, char **argv)
{
	bool plain = false, once = false;
	double every = 0;
	const struct hspmd_option options[] = {
		{ "plain", 0, NULL, HSPMD_OPTION_FLAG, &plain, 0, 0,
		  "lines of text for screen readers and files; commands are typed as words" },
		{ "once", 0, NULL, HSPMD_OPTION_FLAG, &once, 0, 0, "with --plain: print once" },
		{ "every", 0, "S", HSPMD_OPTION_NUMBER, &every, 0.1, 3600,
		  "seconds from one look to the next (default: 1; with --plain 10)" },
		{ 0 },
	};
	int status = hspmd_options_parse_files("top", head, options, argc, argv);
	if (status)
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	if (argc - optind > 1)
		return hspmd_usage_error("top", "expected one job");
	const char *job = optind < argc ? argv[optind] : getenv("SLURM_JOB_ID");
	static struct top t;
	struct hspmd_error err = { "" };
	if (job && *job && !top_ask_knows(job, &err)) {
		hspmd_error_log("job %s: %s", job, err.text);
		return HSPMD_EXIT_FAILED;
	}
	plain |= once || !isatty(STDOUT_FILENO);
	catch_signals();
	if (!plain && top_screen_open(&err)) {
		hspmd_warn("%s: plain text instead", err.text);
		plain = true;
	}
	if (!plain)
		hspmd_log_level(HSPMD_LOG_ERROR); /* warnings would spoil the screen */
	snprintf(t.job, sizeof t.job, "%s", job ? job : "");
	t.ask = top_ask_start(t.job, every > 0 ? every : plain ? PLAIN_EVERY_S : SCREEN_EVERY_S, &err);
	if (!t.ask) {
		top_screen_close();
		hspmd_error_log("%s", err.text);
		return HSPMD_EXIT_FAILED;
	}
	status = plain ? run_plain(&t, once) : run_screen(&t);
	json_decref(t.jobs);
	top_view_clear(&t.view);
	return status;
}
