/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of `hspmd`. A new one is a file with a function of this shape and a line in main.c's table.
 *
 * argv[0] is the command's name; getopt starts afresh. Results go to standard output, messages to standard error through the log. The return
 * value is the exit status.
 */
#ifndef HSPMD_CONTROLLER_CLI_COMMANDS_H
#define HSPMD_CONTROLLER_CLI_COMMANDS_H

#include <stdint.h>
#include <stdio.h>

enum hspmd_exit { HSPMD_EXIT_DONE = 0, HSPMD_EXIT_FAILED = 1, HSPMD_EXIT_USAGE = 2 };

typedef int hspmd_command(int argc, char **argv);

hspmd_command hspmd_command_agent;
hspmd_command hspmd_command_checkpoint;
hspmd_command hspmd_command_discover;
hspmd_command hspmd_command_events;
hspmd_command hspmd_command_grow;
hspmd_command hspmd_command_plan;
hspmd_command hspmd_command_profile;
hspmd_command hspmd_command_policy;
hspmd_command hspmd_command_cluster;
hspmd_command hspmd_command_run;
hspmd_command hspmd_command_shrink;
hspmd_command hspmd_command_status;
hspmd_command hspmd_command_worker;

/* ---- helpers for commands (options.c) */

/* The number in `text`, within [min, max]. 0, or -1 after a message that names the option. */
int hspmd_option_int(const char *option, const char *text, int64_t min, int64_t max, int64_t *out);
int hspmd_option_number(const char *option, const char *text, double min, double max, double *out);
/* Say what is wrong with the usage of `command` and how to learn more. Returns HSPMD_EXIT_USAGE. */
int hspmd_usage_error(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* After getopt_long returned '?' or ':' (it has printed the message). Returns HSPMD_EXIT_USAGE. */
int hspmd_usage_hint(const char *command);

#endif
