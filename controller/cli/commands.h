/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of `hspmd`. A new command is a file with a function of this type and a line in main.c's table.
 *
 * argv[0] is the command's name; getopt starts afresh. Results go to standard output, messages to standard error through the log. The
 * return value is the exit status. */
#ifndef HSPMD_CONTROLLER_CLI_COMMANDS_H
#define HSPMD_CONTROLLER_CLI_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum hspmd_exit { HSPMD_EXIT_DONE = 0, HSPMD_EXIT_FAILED = 1, HSPMD_EXIT_USAGE = 2 };

typedef int hspmd_command(int argc, char **argv);

hspmd_command hspmd_command_agent;
hspmd_command hspmd_command_build;
hspmd_command hspmd_command_checkpoint;
hspmd_command hspmd_command_data;
hspmd_command hspmd_command_discover;
hspmd_command hspmd_command_events;
hspmd_command hspmd_command_generate;
hspmd_command hspmd_command_grow;
hspmd_command hspmd_command_model_answer;
hspmd_command hspmd_command_plan;
hspmd_command hspmd_command_profile;
hspmd_command hspmd_command_policy;
hspmd_command hspmd_command_cluster;
hspmd_command hspmd_command_report;
hspmd_command hspmd_command_run;
hspmd_command hspmd_command_shrink;
hspmd_command hspmd_command_status;
hspmd_command hspmd_command_top;
hspmd_command hspmd_command_trace;
hspmd_command hspmd_command_worker;

/* ---- options (options.c): one row per option: name, argument, destination and help text */

enum hspmd_option_kind {
	HSPMD_OPTION_FLAG,   /* to: bool */
	HSPMD_OPTION_TEXT,   /* to: const char * */
	HSPMD_OPTION_INT,    /* to: int64_t, within [min, max] */
	HSPMD_OPTION_NUMBER, /* to: double, within [min, max] */
	HSPMD_OPTION_LIST,   /* to: struct hspmd_option_list, comma-separated words */
	HSPMD_OPTION_TEXTS,  /* to: struct hspmd_option_list, one text each time that the option is given */
};

#define HSPMD_OPTION_LIST_MAX 64
struct hspmd_option_list {
	int count;
	const char *items[HSPMD_OPTION_LIST_MAX]; /* point into the arguments; words are split in place */
};

struct hspmd_option {
	const char *name;
	char letter;          /* 0: none */
	const char *argument; /* name of the argument in the help; NULL for a flag */
	enum hspmd_option_kind kind;
	void *to;
	double min, max;
	const char *help; /* further lines are indented below the first */
};

/* Read argv by the rows (the last has no name); --help and -h are added. An argument that is no option is an error. Returns 0;
 * HSPMD_OPTIONS_HELP if help was requested and printed, with `head` first; otherwise an exit status, after a message. */
#define HSPMD_OPTIONS_HELP (-1)
int hspmd_options_parse(const char *command, const char *head, const struct hspmd_option *options, int argc, char **argv);
/* The same for commands with arguments that are no options: they are moved to the end of argv, from optind on. */
int hspmd_options_parse_files(const char *command, const char *head, const struct hspmd_option *options, int argc, char **argv);

/* ---- helpers for commands (options.c) */

/* The number in `text`, within [min, max]. 0, or -1 after a message that names the option. */
int hspmd_option_int(const char *option, const char *text, int64_t min, int64_t max, int64_t *out);
int hspmd_option_number(const char *option, const char *text, double min, double max, double *out);
/* Report a usage error of `command`, and how to get help. Returns HSPMD_EXIT_USAGE. */
int hspmd_usage_error(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Checks that the transport exists in this build and works between processes: 0, or the status of a usage error. NULL: not given. */
int hspmd_usage_transport(const char *command, const char *name);
/* After getopt_long returned '?' or ':' (it has printed the message). Returns HSPMD_EXIT_USAGE. */
int hspmd_usage_hint(const char *command);

#endif
