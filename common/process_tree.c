/* SPDX-License-Identifier: Apache-2.0 */
#include "common/process_tree.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"

#define DEPTH_MAX 1000
#define SHELLS_DEEP 8 /* shells that run shells, to which a signal is handed on */

struct process {
	pid_t pid, parent;
	char state; /* as proc(5) writes it */
	char name[32];
};

/* In the order of process ids. */
struct process_table {
	struct process *list;
	size_t count, capacity;
};

/* Reads /proc/PID/stat: "PID (NAME) STATE PARENT ...", whose name may contain anything. */
static bool read_process(const char *entry, struct process *p)
{
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/%.20s/stat", entry);
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
	if (f)
		fclose(f);
	line[n] = '\0';
	char *open = strchr(line, '('), *close = strrchr(line, ')'), state;
	int parent;
	if (!open || !close || sscanf(close + 1, " %c %d", &state, &parent) != 2)
		return false;
	*p = (struct process){ .pid = (pid_t)atoi(entry), .parent = parent, .state = state };
	snprintf(p->name, sizeof p->name, "%.*s", (int)(close - open - 1), open + 1);
	return true;
}

static int by_pid(const void *a, const void *b)
{
	pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
	return (x > y) - (x < y);
}

static int read_table(struct process_table *t)
{
	DIR *d = opendir("/proc");
	if (!d)
		return -1;
	for (struct dirent *e; (e = readdir(d));) {
		struct process p;
		if (*e->d_name < '1' || *e->d_name > '9' || !read_process(e->d_name, &p))
			continue;
		if (hspmd_array_grow(&t->list, &t->capacity, t->count, sizeof *t->list)) {
			closedir(d);
			return -1;
		}
		t->list[t->count++] = p;
	}
	closedir(d);
	if (t->count)
		qsort(t->list, t->count, sizeof *t->list, by_pid);
	return 0;
}

static const struct process *find(const struct process_table *t, pid_t pid)
{
	const struct process key = { .pid = pid };
	return bsearch(&key, t->list, t->count, sizeof *t->list, by_pid);
}

/* Returns true if p is below `root`, and not below a child of it that is spared. Ids may be used again while the table is read, so that
 * there may be circles. */
static bool is_below(const struct process_table *t, const struct process *p, pid_t root, hspmd_process_matches *spared, void *context)
{
	for (int up = 0; p && up < DEPTH_MAX; up++, p = find(t, p->parent))
		if (p->parent == root)
			return !(spared && spared(context, p->pid));
	return false;
}

/* One look. *found: how many there were; returns how many are left, or -1. */
static int kill_once(hspmd_process_matches *spared, void *context, int *found)
{
	struct process_table t = { 0 };
	int left = 0, status;
	pid_t self = getpid();
	*found = 0;
	if (read_table(&t)) {
		free(t.list);
		return -1;
	}
	for (size_t i = 0; i < t.count; i++) {
		const struct process *p = &t.list[i];
		if (!is_below(&t, p, self, spared, context))
			continue;
		++*found;
		kill(p->pid, SIGKILL);
		left += p->parent != self || waitpid(p->pid, &status, WNOHANG) != p->pid;
	}
	free(t.list);
	return left;
}

int hspmd_process_tree_kill(hspmd_process_matches *spared, void *context)
{
	int left, found;
	do /* one that is gone now may have started another after the look */
		left = kill_once(spared, context, &found);
	while (!left && found);
	return left;
}

static bool is_shell(const char *name)
{
	static const char *const shells[] = { "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox" };
	for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
		if (!strcmp(name, shells[i]))
			return true;
	return false;
}

/* The children of a process are signalled before itself, so that a shell that ends at once leaves nobody out. */
static void signal_one(const struct process_table *t, pid_t pid, int number, int deep)
{
	const struct process *p = find(t, pid);
	for (size_t i = 0; p && is_shell(p->name) && deep < SHELLS_DEEP && i < t->count; i++)
		if (t->list[i].parent == pid)
			signal_one(t, t->list[i].pid, number, deep + 1);
	kill(pid, number);
}

void hspmd_process_signal_command(pid_t pid, int number)
{
	struct process_table t = { 0 };
	if (read_table(&t))
		kill(pid, number);
	else
		signal_one(&t, pid, number, 0);
	free(t.list);
}

bool hspmd_process_is_stopped(pid_t pid)
{
	char entry[21];
	struct process p;
	snprintf(entry, sizeof entry, "%ld", (long)pid);
	return read_process(entry, &p) && (p.state == 'T' || p.state == 't');
}
