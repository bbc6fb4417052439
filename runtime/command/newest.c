/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/command/newest.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"

#define DEPTH_MAX 4       /* of folders */
#define ENTRIES_MAX 10000 /* looked at in all */

struct search {
	int left; /* entries that may still be looked at */
};

static bool is_complete(const char *name)
{
	size_t n = strlen(name);
	return *name != '.' && !(n > 4 && !strcmp(name + n - 4, ".tmp"));
}

static int64_t newest_below(struct search *s, int folder, const char *name, int depth, char **best);

/* When the file was changed, or the newest in the folder. */
static int64_t time_of(struct search *s, int folder, const char *name, int depth)
{
	struct stat st;
	if (fstatat(folder, name, &st, 0))
		return -1;
	if (S_ISDIR(st.st_mode))
		return depth < DEPTH_MAX ? newest_below(s, folder, name, depth + 1, NULL) : -1;
	return (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

/* best (unless NULL): the name of the newest entry, malloc'd. */
static int64_t newest_below(struct search *s, int folder, const char *name, int depth, char **best)
{
	int64_t newest = -1;
	int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d && fd >= 0)
		close(fd);
	for (struct dirent *e; d && s->left-- > 0 && (e = readdir(d));) {
		int64_t t = is_complete(e->d_name) ? time_of(s, dirfd(d), e->d_name, depth) : -1;
		if (t <= newest)
			continue;
		newest = t;
		if (best) {
			free(*best);
			*best = strdup(e->d_name);
		}
	}
	if (d)
		closedir(d);
	return newest;
}

int64_t hspmd_newest_save(const char *folder, char **path)
{
	struct search s = { ENTRIES_MAX };
	char *name = NULL;
	int64_t newest = newest_below(&s, AT_FDCWD, folder, 0, path ? &name : NULL);
	if (path)
		*path = name ? hspmd_asprintf("%s/%s", folder, name) : NULL;
	free(name);
	return newest;
}
