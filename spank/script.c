/* SPDX-License-Identifier: Apache-2.0 */
/* sbatch: what the job will run. A job that would train nothing, or would train the same thing several times, is refused; a submission
 * without a script gets one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/durable.h"
#include "spank/plugin.h"

#define LINE_MAX_BYTES 65536
#define SCRIPT_MAX_BYTES ((size_t)16 << 20)

/* The words of this command, as the kernel has them: SPANK gives a plugin its own options only. One block, to be freed; NULL: not known. */
static char **own_words(int *count)
{
	char *text = calloc(1, LINE_MAX_BYTES), **words = NULL;
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC), n = 0;
	ssize_t size = fd >= 0 && text ? read(fd, text, LINE_MAX_BYTES - 1) : -1;
	for (ssize_t i = 0; i < size; i++)
		n += !text[i];
	if (fd >= 0)
		close(fd);
	if (n > 0 && (words = calloc(1, (size_t)n * sizeof *words + (size_t)size))) {
		char *copy = memcpy(words + n, text, (size_t)size);
		for (int i = 0; i < n; copy += strlen(copy) + 1)
			words[i++] = copy;
	}
	free(text);
	*count = words ? n : 0;
	return words;
}

/* Returns true if the script has a line "#SBATCH hetjob", or "packjob" as it was once called. */
static bool script_is_het(const char *path)
{
	static const char *const names[] = { "hetjob", "packjob" };
	size_t size;
	struct hspmd_error ignored;
	bool het = false;
	char *text = hspmd_read_file(path, SCRIPT_MAX_BYTES, &size, &ignored), *rest = text;
	for (char *line; rest && !het && (line = strsep(&rest, "\n"));) {
		if (strncmp(line, "#SBATCH", 7) != 0)
			continue;
		line += 7 + strspn(line + 7, " \t");
		for (int i = 0; i < 2; i++)
			het |= !strncmp(line, names[i], strlen(names[i]));
	}
	free(text);
	return het;
}

/* getopt's optind is where sbatch, salloc and srun found the end of a component's options: a colon there begins the next component, and any
 * other word is the script or the program. */
static bool is_het(void)
{
	int count;
	char **words = own_words(&count);
	const char *first = words && optind > 0 && optind < count ? words[optind] : NULL;
	bool het = first && (!strcmp(first, ":") || script_is_het(first));
	free(words);
	return het;
}

int hspmd_spank_check_script(struct hspmd_error *err)
{
	char *wrap = hspmd_spank_slurm_option("wrap"), *array = hspmd_spank_slurm_option("array");
	int rc = 0;
	if (array)
		rc = hspmd_fail(err,
		                "--array=%s: every task of the array would train the same job; submit one job for each job file "
		                "(inside a job array, `hspmd run --job FILE` in the script needs no --hspmd)",
		                array);
	else if (is_het())
		rc = hspmd_fail(err, "a heterogeneous job: hspmd trains on the nodes of one component only, and the others would be idle; "
		                     "one job may have unlike nodes, and grows into other partitions by the site's policy");
	else if (wrap && !strstr(wrap, "hspmd"))
		rc = hspmd_fail(err,
		                "--wrap: \"%s\" does not run hspmd, so nothing would be trained: leave --wrap out (without a script, "
		                "--hspmd trains the job file), or write --wrap=\"hspmd run\"",
		                wrap);
	free(wrap);
	free(array);
	return rc;
}

static bool gives_no_script(int fd)
{
	struct stat st;
	return isatty(fd) || (fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)); /* /dev/null */
}

int hspmd_spank_default_script(const struct hspmd_spank_args *args, const char *command, char *const *words, int count, int fd)
{
	char script[4200];
	int ends[2], rc = -1;
	bool asked = false;
	for (int i = 1; i < count; i++)
		asked |= !strcmp(words[i], "--hspmd") || !strncmp(words[i], "--hspmd=", 8);
	if (!asked || strcmp(command, "sbatch") != 0 || !gives_no_script(fd))
		return 0;
	int n = snprintf(script, sizeof script, "#!/bin/sh\nexec %s run\n", access(args->hspmd, X_OK) ? "hspmd" : args->hspmd);
	if (n >= (int)sizeof script || pipe2(ends, O_CLOEXEC) < 0)
		return -1;
	if (hspmd_write_all(ends[1], script, (size_t)n) == 0 && dup2(ends[0], fd) == fd)
		rc = 0;
	close(ends[0]);
	close(ends[1]);
	return rc;
}

void hspmd_spank_give_script(const struct hspmd_spank_args *args)
{
	int count;
	char **words = own_words(&count);
	if (words)
		(void)hspmd_spank_default_script(args, program_invocation_short_name, words, count, STDIN_FILENO);
	free(words);
}
