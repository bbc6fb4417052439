/* SPDX-License-Identifier: Apache-2.0 */
#include "common/module_path.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"

/* Whoever owns the program could as well have changed it. */
static bool trusted(int folder)
{
	struct stat st, program;
	return !fstat(folder, &st) && !(st.st_mode & S_IWOTH) &&
	       (st.st_uid == 0 || st.st_uid == geteuid() || (!stat("/proc/self/exe", &program) && st.st_uid == program.st_uid));
}

static int by_version(const void *a, const void *b)
{
	return strverscmp(*(char *const *)a, *(char *const *)b);
}

/* Adds the matching files of an open folder. -1: memory. */
static int list(DIR *dir, const char *folder, const char *pattern, char ***paths, size_t *count)
{
	size_t capacity = 0;
	for (const struct dirent *e; (e = readdir(dir));) {
		if (fnmatch(pattern, e->d_name, FNM_PERIOD))
			continue;
		if (hspmd_array_grow(paths, &capacity, *count, sizeof **paths) ||
		    !((*paths)[*count] = hspmd_asprintf("%s/%s", folder, e->d_name)))
			return -1;
		++*count;
	}
	return 0;
}

static int in_folder(const char *folder, const char *pattern, char ***paths, struct hspmd_error *err)
{
	DIR *dir = opendir(*folder ? folder : "/");
	size_t count = 0;
	if (!dir)
		return errno == ENOMEM ? hspmd_fail_memory(err, "looking for modules") : 0;
	int rc = trusted(dirfd(dir)) ? list(dir, folder, pattern, paths, &count) : 0;
	closedir(dir);
	if (!rc) {
		if (count)
			qsort(*paths, (size_t)count, sizeof **paths, by_version);
		return (int)count;
	}
	hspmd_module_paths_free(*paths, (int)count);
	*paths = NULL;
	return hspmd_fail_memory(err, "looking for modules");
}

int hspmd_module_paths(const char *pattern, char ***paths, struct hspmd_error *err)
{
	char folder[PATH_MAX];
	int count = 0;
	*paths = NULL;
	ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
	folder[n > 0 ? n : 0] = '\0';
	for (char *end; !count && (end = strrchr(folder, '/'));) {
		*end = '\0';
		count = in_folder(folder, pattern, paths, err);
	}
	return count ? count : in_folder(HSPMD_PKGLIBDIR, pattern, paths, err);
}

void hspmd_module_paths_free(char **paths, int count)
{
	for (int i = 0; i < count; i++)
		free(paths[i]);
	free(paths);
}
