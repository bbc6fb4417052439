/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/commands.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/log.h"
#include "runtime/comm/transport.h"

#define HELP_COLUMN 25   /* column of the help texts */
#define FIRST_OPTION 256 /* getopt's value of the first row; beyond every letter */

int hspmd_option_int(const char *option, const char *text, int64_t min, int64_t max, int64_t *out)
{
	char *end;
	errno = 0;
	long long value = strtoll(text, &end, 10);
	if (end == text || *end || errno || value < min || value > max) {
		hspmd_error_log("--%s: expected a whole number in %" PRId64 "..%" PRId64 ", got '%s'", option, min, max, text);
		return -1;
	}
	*out = value;
	return 0;
}

int hspmd_option_number(const char *option, const char *text, double min, double max, double *out)
{
	char *end;
	errno = 0;
	double value = strtod(text, &end);
	if (end == text || *end || !isfinite(value) || value < min || value > max) {
		hspmd_error_log("--%s: expected a number in %g..%g, got '%s'", option, min, max, text);
		return -1;
	}
	*out = value;
	return 0;
}

int hspmd_usage_hint(const char *command)
{
	fprintf(stderr, "Try 'hspmd %s --help'.\n", command);
	return HSPMD_EXIT_USAGE;
}

int hspmd_usage_error(const char *command, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	hspmd_error_log("%s", text);
	return hspmd_usage_hint(command);
}

int hspmd_usage_transport(const char *command, const char *name)
{
	struct hspmd_error err;
	const struct hspmd_transport_ops *ops = hspmd_transport_find(name, &err);
	if (!ops)
		return hspmd_usage_error(command, "--transport: %s", err.text);
	return ops == &hspmd_transport_memory
	               ? hspmd_usage_error(command, "--transport: %s carries nothing from one process to another", name)
	               : 0;
}

/* ---- tables of options */

static void print_option(const struct hspmd_option *o)
{
	char lead[128];
	int used = o->letter ? snprintf(lead, sizeof lead, "  -%c, --%s", o->letter, o->name)
	                     : snprintf(lead, sizeof lead, "      --%s", o->name);
	if (o->argument && used < (int)sizeof lead)
		used += snprintf(lead + used, sizeof lead - (size_t)used, " %s", o->argument);
	if (used < HELP_COLUMN - 1)
		printf("%-*s", HELP_COLUMN, lead);
	else
		printf("%s\n%*s", lead, HELP_COLUMN, "");
	for (const char *line = o->help, *end; *line; line = *end ? end + 1 : end) {
		end = line + strcspn(line, "\n");
		printf("%*s%.*s\n", line == o->help ? 0 : HELP_COLUMN, "", (int)(end - line), line);
	}
}

static void print_help(const char *head, const struct hspmd_option *options)
{
	static const struct hspmd_option help = { .name = "help", .letter = 'h', .help = "print this" };
	printf("%s\n", head);
	for (const struct hspmd_option *o = options; o->name; o++)
		print_option(o);
	print_option(&help);
}

static int read_words(const struct hspmd_option *o, char *text)
{
	struct hspmd_option_list *list = o->to;
	char *save = NULL;
	list->count = 0;
	for (char *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		if (list->count == HSPMD_OPTION_LIST_MAX) {
			hspmd_error_log("--%s: at most %d words", o->name, HSPMD_OPTION_LIST_MAX);
			return -1;
		}
		list->items[list->count++] = word;
	}
	if (list->count)
		return 0;
	hspmd_error_log("--%s: expected comma-separated words", o->name);
	return -1;
}

static int add_text(const struct hspmd_option *o, const char *text)
{
	struct hspmd_option_list *list = o->to;
	if (list->count == HSPMD_OPTION_LIST_MAX) {
		hspmd_error_log("--%s: at most %d times", o->name, HSPMD_OPTION_LIST_MAX);
		return -1;
	}
	list->items[list->count++] = text;
	return 0;
}

static int take(const struct hspmd_option *o, char *text)
{
	switch (o->kind) {
	case HSPMD_OPTION_FLAG:
		*(bool *)o->to = true;
		return 0;
	case HSPMD_OPTION_TEXT:
		*(const char **)o->to = text;
		return 0;
	case HSPMD_OPTION_INT:
		return hspmd_option_int(o->name, text, (int64_t)o->min, (int64_t)o->max, o->to);
	case HSPMD_OPTION_NUMBER:
		return hspmd_option_number(o->name, text, o->min, o->max, o->to);
	case HSPMD_OPTION_LIST:
		return read_words(o, text);
	case HSPMD_OPTION_TEXTS:
		return add_text(o, text);
	}
	return -1;
}

/* Makes getopt's tables from the rows: long options, and letters. 0, or -1: out of memory. */
static int for_getopt(const struct hspmd_option *options, struct option **longs, char **letters)
{
	size_t n = 0, at = 0;
	while (options[n].name)
		n++;
	*longs = hspmd_calloc(n + 2, sizeof **longs);
	*letters = hspmd_calloc(2 * n + 2, 1);
	if (!*longs || !*letters)
		return -1;
	for (size_t i = 0; i < n; i++) {
		(*longs)[i] = (struct option){ options[i].name, options[i].kind == HSPMD_OPTION_FLAG ? no_argument : required_argument,
			                       NULL, FIRST_OPTION + (int)i };
		if (!options[i].letter)
			continue;
		(*letters)[at++] = options[i].letter;
		if (options[i].kind != HSPMD_OPTION_FLAG)
			(*letters)[at++] = ':';
	}
	(*longs)[n] = (struct option){ "help", no_argument, NULL, 'h' };
	(*letters)[at] = 'h';
	return 0;
}

int hspmd_options_parse_files(const char *command, const char *head, const struct hspmd_option *options, int argc, char **argv)
{
	struct option *longs;
	char *letters;
	int status = for_getopt(options, &longs, &letters) ? HSPMD_EXIT_FAILED : 0, opt, bad = 0;
	while (!status && (opt = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		const struct hspmd_option *o = options;
		while (opt < FIRST_OPTION && o->name && o->letter != opt)
			o++;
		if (opt >= FIRST_OPTION)
			o = &options[opt - FIRST_OPTION];
		if (opt == 'h' && !o->name) {
			print_help(head, options);
			status = HSPMD_OPTIONS_HELP;
		} else if (opt == '?' || !o->name) {
			status = hspmd_usage_hint(command);
		} else {
			bad |= take(o, optarg);
		}
	}
	free(longs);
	free(letters);
	if (!status && bad)
		status = hspmd_usage_hint(command);
	return status;
}

int hspmd_options_parse(const char *command, const char *head, const struct hspmd_option *options, int argc, char **argv)
{
	int status = hspmd_options_parse_files(command, head, options, argc, argv);
	if (!status && optind < argc)
		status = hspmd_usage_error(command, "unexpected argument '%s'", argv[optind]);
	return status;
}
