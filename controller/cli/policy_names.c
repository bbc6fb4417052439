/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/policy_names.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "controller/slurm/command.h"

#define ASK_S 15.0
#define NAMES_MAX (4 << 20) /* bytes of names of one kind */

/* Runs a command that prints one name per line. NULL: it could not be asked, which was said. */
static char *ask(const char *what, ...)
{
	struct hspmd_slurm_argv w = { 0 };
	struct hspmd_error err = { "" };
	char *text = malloc(NAMES_MAX);
	va_list ap;
	va_start(ap, what);
	for (const char *word; (word = va_arg(ap, const char *));)
		hspmd_slurm_argv_add(&w, "%s", word);
	va_end(ap);
	int status = text ? hspmd_slurm_run_command(&w, ASK_S, text, NAMES_MAX, &err) : hspmd_fail_memory(&err, "asking Slurm");
	if (status > 0)
		hspmd_fail(&err, "%s: %s", w.argv[0], hspmd_slurm_error_line(text));
	hspmd_slurm_argv_clear(&w);
	if (!status)
		return text;
	hspmd_warn("the %ss of the rules are not checked: %s", what, err.text);
	free(text);
	return NULL;
}

/* Whether a pattern fits the first word of a line ("PartitionName=normal ..." for partitions). */
static bool fits_any(const char *pattern, const char *names)
{
	char name[256];
	for (const char *line = names; *line;) {
		size_t n = strcspn(line, "\n"), length;
		const char *from = n > 14 && !strncmp(line, "PartitionName=", 14) ? line + 14 : line;
		length = strcspn(from, " |\n");
		if (length && length < sizeof name) {
			memcpy(name, from, length);
			name[length] = '\0';
			if (!fnmatch(pattern, name, 0))
				return true;
		}
		line += n + (line[n] == '\n');
	}
	return false;
}

static int check_pattern(const struct hspmd_policy *p, const struct hspmd_policy_rule *r, const char *what, const char *where,
                         const char *pattern, const char *names)
{
	if (!names || fits_any(pattern, names))
		return 0;
	hspmd_warn("%s: rule %s: %s: Slurm knows no %s \"%s\"", p->files[r->file], r->name, where, what, pattern);
	return 1;
}

static int check_list(const struct hspmd_policy *p, const struct hspmd_policy_rule *r, const char *what, const char *where,
                      const struct hspmd_policy_list *l, const char *names)
{
	int warned = 0;
	for (int i = 0; i < l->count; i++)
		warned += check_pattern(p, r, what, where, l->items[i], names);
	return warned;
}

int policy_names_check(const struct hspmd_policy *p)
{
	char *partitions = ask("partition", "scontrol", "--oneliner", "show", "partitions", NULL);
	char *qos = ask("QOS", "sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=Name", NULL);
	char *accounts = ask("account", "sacctmgr", "--noheader", "--parsable2", "show", "account", "format=Account", NULL);
	char *users = ask("user", "sacctmgr", "--noheader", "--parsable2", "show", "user", "format=User", NULL);
	int warned = 0;
	for (int i = 0; i < p->rule_count; i++) {
		const struct hspmd_policy_rule *r = &p->rules[i];
		struct hspmd_policy_terms t = hspmd_policy_effective(p, i);
		warned += check_list(p, r, "partition", "match.partition", &r->match.partition, partitions);
		warned += check_list(p, r, "QOS", "match.qos", &r->match.qos, qos);
		warned += check_list(p, r, "account", "match.account", &r->match.account, accounts);
		warned += check_list(p, r, "user", "match.user", &r->match.user, users);
		if (t.grow_partition)
			warned += check_pattern(p, r, "partition", "grow.partition", t.grow_partition, partitions);
		if (t.grow_qos)
			warned += check_pattern(p, r, "QOS", "grow.qos", t.grow_qos, qos);
	}
	free(partitions);
	free(qos);
	free(accounts);
	free(users);
	return warned;
}
