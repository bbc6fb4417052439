/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd build: compiles a model of the user's own. hspmd model-answer: the process that loads one to answer a question about it. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/log.h"
#include "controller/cli/commands.h"
#include "runtime/lib/answer.h"
#include "runtime/model/model.h"

#define WORDS_MAX 256

extern char **environ;

struct build {
	const char *source, *output;
	bool no_check;
	int count;
	char *words[WORDS_MAX]; /* the compiler's command line */
	bool failed;
};

static void help(void)
{
	puts("Usage: hspmd build [options] MODEL.c\n\n"
	     "Compiles a C file that defines `hspmd_model` (hspmd.h, hspmd(3)) into a shared object for \"model\" in a job file, and "
	     "checks it.\n\n"
	     "  -o, --output FILE     the shared object (default: MODEL.so)\n"
	     "      --no-check        do not load the result\n"
	     "  -h, --help            print this\n\n"
	     "CC, CPPFLAGS, CFLAGS, LDFLAGS and LIBS in the environment are the compiler (default: cc) and its further arguments.");
}

static int parse(int argc, char **argv, struct build *b)
{
	static const struct option options[] = {
		{ "output", required_argument, NULL, 'o' },
		{ "no-check", no_argument, NULL, 'n' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	for (int c; (c = getopt_long(argc, argv, "ho:", options, NULL)) >= 0;) {
		if (c == 'h') {
			help();
			return HSPMD_OPTIONS_HELP;
		}
		if (c == 'o')
			b->output = optarg;
		else if (c == 'n')
			b->no_check = true;
		else
			return hspmd_usage_hint("build");
	}
	if (optind + 1 != argc)
		return hspmd_usage_error("build", optind < argc ? "expected one C file" : "the C file is missing");
	b->source = argv[optind];
	size_t n = strlen(b->source);
	if (n < 3 || strcmp(b->source + n - 2, ".c") != 0)
		return hspmd_usage_error("build", "%s: expected a C file (.c)", b->source);
	n = b->output ? strlen(b->output) : 0;
	if (b->output && (n < 4 || strcmp(b->output + n - 3, ".so") != 0))
		return hspmd_usage_error("build", "--output: expected a name that ends in .so, got '%s'", b->output);
	return 0;
}

/* ---- the compiler's command line */

static void add(struct build *b, char *word)
{
	if (!word || b->count + 1 >= WORDS_MAX) {
		b->failed = true;
		free(word);
		return;
	}
	b->words[b->count++] = word;
}

/* The words of an environment variable, or of `absent`. */
static void add_words(struct build *b, const char *variable, const char *absent)
{
	const char *text = getenv(variable);
	for (text = text && *text ? text : absent; *text;) {
		text += strspn(text, " \t\n");
		size_t n = strcspn(text, " \t\n");
		if (n)
			add(b, strndup(text, n));
		text += n;
	}
}

/* The folder of <hspmd/hspmd.h>: of the tree in which this program is installed, or was built, or where it was meant to be installed. */
static char *include_folder(void)
{
	static const char *const places[] = { "../include", "include" };
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	char *slash = NULL;
	if (n > 0) {
		exe[n] = '\0';
		slash = strrchr(exe, '/');
	}
	for (int i = 0; slash && i < 2; i++) {
		char *folder = hspmd_asprintf("%.*s/%s", (int)(slash - exe), exe, places[i]);
		char *header = hspmd_asprintf("%s/hspmd/hspmd.h", folder ? folder : "");
		bool there = header && !access(header, R_OK);
		free(header);
		if (there)
			return folder;
		free(folder);
	}
	return strdup(HSPMD_BINDIR "/../include");
}

static void make_command(struct build *b, const char *object)
{
	static const char *const always[] = { "-shared", "-fPIC", "-std=gnu11", "-O2", "-g", "-Wall" };
	add_words(b, "CC", "cc");
	for (size_t i = 0; i < sizeof always / sizeof *always; i++)
		add(b, strdup(always[i]));
	add(b, strdup("-I"));
	add(b, include_folder());
	add_words(b, "CPPFLAGS", "");
	add_words(b, "CFLAGS", "");
	add(b, strdup("-o"));
	add(b, strdup(object));
	add(b, *b->source == '-' ? hspmd_asprintf("./%s", b->source) : strdup(b->source));
	add_words(b, "LDFLAGS", "");
	add_words(b, "LIBS", "");
	add(b, strdup("-lm"));
}

static int compile(struct build *b, const char *object, struct hspmd_error *err)
{
	pid_t pid;
	int status;
	make_command(b, object);
	if (b->failed)
		return hspmd_fail(err, "%s: more than %d arguments for the compiler, or no memory", b->source, WORDS_MAX);
	int failed = posix_spawnp(&pid, b->words[0], NULL, NULL, b->words, environ);
	if (failed)
		return hspmd_fail(err, "cannot start the compiler %s: %s (CC names another)", b->words[0], strerror(failed));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return hspmd_fail_errno(err, "waiting for the compiler");
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return 0;
	return hspmd_fail(err, "%s: the compiler %s refused it: see its messages above", b->source, b->words[0]);
}

/* ---- the result */

/* Load what was compiled, in a process of its own. Its messages name the source rather than the file that is to be renamed. */
static int check(const struct build *b, const char *object, struct hspmd_error *err)
{
	struct hspmd_error why = { "" };
	struct hspmd_model *m = hspmd_model_read(object, &why);
	char *real = realpath(object, NULL);
	size_t named = real && !strncmp(why.text, real, strlen(real)) ? strlen(real) : 0;
	free(real);
	if (!m)
		return hspmd_fail(err, "%s%s%s", b->source, named ? "" : ": ", why.text + named);
	hspmd_info("%s: %d layers; it is in %s", m->name, hspmd_model_layers(m), b->output);
	hspmd_model_destroy(m);
	return 0;
}

static int build(struct build *b, struct hspmd_error *err)
{
	int base = (int)strlen(b->source) - 2;
	char *usual = b->output ? NULL : hspmd_asprintf("%.*s.so", base, b->source);
	b->output = b->output ? b->output : usual;
	char *temporary = b->output ? hspmd_asprintf("%.*s.%d.so", (int)strlen(b->output) - 3, b->output, (int)getpid()) : NULL;
	int status = temporary ? compile(b, temporary, err) : hspmd_fail_memory(err, "compiling");
	if (!status && !b->no_check)
		status = check(b, temporary, err);
	if (!status && rename(temporary, b->output))
		status = hspmd_fail_errno(err, "%s", b->output);
	if (status && temporary)
		unlink(temporary);
	for (int i = 0; i < b->count; i++)
		free(b->words[i]);
	free(temporary);
	free(usual);
	return status;
}

int hspmd_command_build(int argc, char **argv)
{
	struct build b = { 0 };
	struct hspmd_error err = { "" };
	int status = parse(argc, argv, &b);
	if (status)
		return status == HSPMD_OPTIONS_HELP ? HSPMD_EXIT_DONE : status;
	if (!build(&b, &err))
		return HSPMD_EXIT_DONE;
	hspmd_error_log("%s", err.text);
	return HSPMD_EXIT_FAILED;
}

int hspmd_command_model_answer(int argc, char **argv)
{
	(void)argc, (void)argv;
	return hspmd_own_answer();
}
