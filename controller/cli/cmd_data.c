/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd data prepare: tokens from texts. The work is done by a Python program (data_prepare.py), since tokenizers and the readers of
 * parquet files are Python packages. It is a part of this one and runs in its place. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "common/log.h"
#include "controller/cli/commands.h"

static const char program[] =
#include "controller/cli/data_prepare.h"
        ;

static const char head[] = "Usage: hspmd data prepare --tokenizer T -o PREFIX [options] FILE...\n"
                           "\n"
                           "Makes tokens from texts: PREFIX.bin and PREFIX.idx, as Megatron-LM reads them too, and with --messages\n"
                           "PREFIX.mask. Prints the section \"data\" of a job file that trains on them.\n";

struct data_options {
	const char *tokenizer, *format, *field, *end, *output;
	bool messages;
};

static int parse(int argc, char **argv, struct data_options *o)
{
	const struct hspmd_option options[] = {
		{ "tokenizer", 't', "T", HSPMD_OPTION_TEXT, &o->tokenizer, 0, 0,
		  "a tokenizer.json of Hugging Face (needs the Python package\ntokenizers), or 'bytes'" },
		{ "format", 0, "WORD", HSPMD_OPTION_TEXT, &o->format, 0, 0,
		  "of all files: jsonl, parquet (needs pyarrow) or text (each file is\na document); default: by each file's suffix" },
		{ "field", 0, "NAME", HSPMD_OPTION_TEXT, &o->field, 0, 0,
		  "key or column of the text (default: text; with --messages: messages)" },
		{ "messages", 0, NULL, HSPMD_OPTION_FLAG, &o->messages, 0, 0,
		  "the field is a list of messages with role and content; only what\nthe assistant says is to be predicted" },
		{ "end", 0, "TOKEN", HSPMD_OPTION_TEXT, &o->end, 0, 0,
		  "put this token (its text; for bytes its number) after each document" },
		{ "output", 'o', "PREFIX", HSPMD_OPTION_TEXT, &o->output, 0, 0, "where to write" },
		{ 0 },
	};
	return hspmd_options_parse_files("data", head, options, argc, argv);
}

static int check(const struct data_options *o, int argc, char **argv)
{
	static const char *const formats[] = { "jsonl", "parquet", "text", NULL };
	int f = 0;
	if (optind >= argc || strcmp(argv[optind], "prepare"))
		return hspmd_usage_error("data", "expected prepare%s%s", optind < argc ? ", got " : "", optind < argc ? argv[optind] : "");
	if (!o->tokenizer || !o->output)
		return hspmd_usage_error("data", "--%s is missing", o->tokenizer ? "output" : "tokenizer");
	if (optind + 1 >= argc)
		return hspmd_usage_error("data", "prepare: no file");
	while (o->format && formats[f] && strcmp(o->format, formats[f]))
		f++;
	return formats[f] ? 0 : hspmd_usage_error("data", "--format: expected jsonl, parquet or text, got '%s'", o->format);
}

/* The options as one argument of the program. NULL: memory, or a name that is not UTF-8. */
static char *as_json(const struct data_options *o, int argc, char **argv)
{
	json_t *files = json_array();
	int bad = !files;
	for (int i = optind + 1; i < argc; i++)
		bad |= json_array_append_new(files, json_string(argv[i]));
	json_t *all = bad ? NULL
	                  : json_pack("{ss,ss?,ss,sb,ss?,ss,sO}", "tokenizer", o->tokenizer, "format", o->format, "field",
	                              o->field      ? o->field
	                              : o->messages ? "messages"
	                                            : "text",
	                              "messages", o->messages, "end", o->end, "output", o->output, "files", files);
	char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
	json_decref(all);
	json_decref(files);
	return text;
}

int hspmd_command_data(int argc, char **argv)
{
	struct data_options o = { 0 };
	int status = parse(argc, argv, &o);
	if (!status)
		status = check(&o, argc, argv);
	if (status)
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	char *text = as_json(&o, argc, argv);
	if (!text) {
		hspmd_error_log("an argument is not UTF-8");
		return HSPMD_EXIT_FAILED;
	}
	char *const args[] = { "python3", "-c", (char *)program, text, NULL };
	execvp(args[0], args);
	hspmd_error_log("python3, which makes the tokens, cannot be run: %s", strerror(errno));
	free(text);
	return HSPMD_EXIT_FAILED;
}
