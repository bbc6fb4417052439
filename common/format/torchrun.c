/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/torchrun.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"

enum torchrun_kind {
	FLAG,      /* ignored, without a value */
	VALUE,     /* ignored, with a value */
	MODULE,    /* the script is a module's name */
	NO_PYTHON, /* the script is a program */
};

/* Names with '-'; torchrun takes '_' in its place, too. */
static const struct torchrun_option {
	const char *name;
	enum torchrun_kind kind;
} options[] = {
	{ "--nnodes", VALUE },
	{ "--nproc-per-node", VALUE },
	{ "--rdzv-backend", VALUE },
	{ "--rdzv-endpoint", VALUE },
	{ "--rdzv-id", VALUE },
	{ "--rdzv-conf", VALUE },
	{ "--standalone", FLAG },
	{ "--max-restarts", VALUE },
	{ "--monitor-interval", VALUE },
	{ "--start-method", VALUE },
	{ "--event-log-handler", VALUE },
	{ "--role", VALUE },
	{ "--log-dir", VALUE },
	{ "--log-line-prefix-template", VALUE },
	{ "--redirects", VALUE },
	{ "-r", VALUE },
	{ "--tee", VALUE },
	{ "-t", VALUE },
	{ "--local-ranks-filter", VALUE },
	{ "--duplicate-stdout-filters", VALUE },
	{ "--duplicate-stderr-filters", VALUE },
	{ "--node-rank", VALUE },
	{ "--master-addr", VALUE },
	{ "--master-port", VALUE },
	{ "--local-addr", VALUE },
	{ "--logs-specs", VALUE },
	{ "--numa-binding", VALUE },
	{ "--signals-to-handle", VALUE },
	{ "--virtual-local-rank", FLAG },
	{ "--shutdown-timeout", VALUE },
	{ "--use-env", FLAG },
	{ "--module", MODULE },
	{ "-m", MODULE },
	{ "--no-python", NO_PYTHON },
};

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static bool is_python(const char *program)
{
	const char *name = base_name(program);
	return !strncmp(name, "python", 6) && name[6 + strspn(name + 6, "0123456789.")] == '\0';
}

/* Returns the number of arguments that name torchrun; 0: this is another command. */
static int launcher_length(char *const *argv, int argc)
{
	if (argc > 0 && !strcmp(base_name(argv[0]), "torchrun"))
		return 1;
	int at = argc > 1 && is_python(argv[0]) && !strcmp(argv[1], "-u") ? 2 : 1;
	if (argc > at + 1 && is_python(argv[0]) && !strcmp(argv[at], "-m") &&
	    (!strcmp(argv[at + 1], "torch.distributed.run") || !strcmp(argv[at + 1], "torch.distributed.launch")))
		return at + 2;
	return 0;
}

/* Finds the option; *value: what follows its '=', or NULL. */
static const struct torchrun_option *option_find(const char *text, const char **value)
{
	char name[64];
	size_t n = strcspn(text, "=");
	if (n >= sizeof name)
		return NULL;
	for (size_t i = 0; i <= n; i++)
		name[i] = i == n ? '\0' : text[i] == '_' ? '-' : text[i];
	*value = text[n] ? text + n + 1 : NULL;
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		if (!strcmp(options[i].name, name))
			return &options[i];
	return NULL;
}

static bool in_path(const char *name)
{
	const char *path = getenv("PATH");
	bool found = false;
	for (const char *at = path ? path : "/usr/bin:/bin"; *at && !found;) {
		size_t n = strcspn(at, ":");
		char *file = hspmd_asprintf("%.*s/%s", (int)n, at, name);
		found = file && !access(file, X_OK);
		free(file);
		at += n + (at[n] == ':');
	}
	return found;
}

/* The Python that torchrun would use: the one beside it if its path is given, else the first in PATH. */
static char *python_beside(const char *launcher)
{
	const char *name = base_name(launcher);
	if (is_python(launcher))
		return strdup(launcher);
	if (name == launcher)
		return strdup(in_path("python") || !in_path("python3") ? "python" : "python3");
	char *beside = hspmd_asprintf("%.*spython", (int)(name - launcher), launcher);
	if (!beside || !access(beside, X_OK))
		return beside;
	free(beside);
	return hspmd_asprintf("%.*spython3", (int)(name - launcher), launcher);
}

static void append_word(char *text, size_t size, const char *word)
{
	size_t n = strlen(text);
	if (n + strlen(word) + 2 <= size)
		snprintf(text + n, size - n, "%s%s", n ? " " : "", word);
}

/* Reads the options from `at` on. Returns the index of the script; -1 and err. */
static int script_index(char *const *argv, int argc, int at, bool *module, bool *python, char *ignored, size_t size,
                        struct hspmd_error *err)
{
	for (; at < argc && argv[at][0] == '-'; at++) {
		const char *value;
		const struct torchrun_option *o = option_find(argv[at], &value);
		if (!strcmp(argv[at], "--"))
			return at + 1;
		if (!o)
			return hspmd_fail(err, "torchrun: unknown option '%s'", argv[at]);
		*module |= o->kind == MODULE;
		*python &= o->kind != NO_PYTHON;
		if (o->kind == FLAG || o->kind == VALUE)
			append_word(ignored, size, o->name);
		if (o->kind == VALUE && !value && ++at >= argc)
			return hspmd_fail(err, "torchrun: %s: a value is missing", o->name);
	}
	return at;
}

int hspmd_torchrun_read(char ***argv, int *argc, char *ignored, size_t size, struct hspmd_error *err)
{
	int begin = launcher_length(*argv, *argc), n = 0;
	bool module = false, python = true, whole = true;
	*ignored = '\0';
	if (!begin)
		return 0;
	int script = script_index(*argv, *argc, begin, &module, &python, ignored, size, err);
	if (script < 0)
		return -1;
	if (script >= *argc)
		return hspmd_fail(err, "torchrun: the script is missing");
	char **list = hspmd_calloc((size_t)(*argc - script) + 4, sizeof *list);
	if (!list)
		return hspmd_fail_memory(err, "reading torchrun's arguments");
	if (python) {
		list[n++] = python_beside((*argv)[0]);
		list[n++] = strdup("-u");
		if (module)
			list[n++] = strdup("-m");
	}
	for (int i = 0; i < n; i++)
		whole &= list[i] != NULL;
	if (!whole) {
		for (int i = 0; i < n; i++)
			free(list[i]);
		free(list);
		return hspmd_fail_memory(err, "reading torchrun's arguments");
	}
	for (int i = 0; i < *argc; i++)
		if (i < script)
			free((*argv)[i]);
		else
			list[n++] = (*argv)[i];
	free(*argv);
	*argv = list;
	*argc = n;
	return 1;
}
