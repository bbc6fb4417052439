/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/kept_job.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/fnv.h"
#include "common/json.h"

#define DIGEST_CHARS 16
#define SUFFIX ".json"

static void digest_of(const char *text, size_t size, char digest[static 17])
{
	snprintf(digest, 17, "%016" PRIx64, hspmd_fnv1a(text, size));
}

/* Returns the folder of copies, malloc'd; NULL: none. */
static char *folder_of_copies(void)
{
	struct hspmd_error ignored;
	const char *contacts = getenv("HSPMD_CONTACTS");
	if (contacts && *contacts)
		return hspmd_asprintf("%s/submitted", contacts);
	char *home = hspmd_job_expand_path("$HOME", NULL, &ignored);
	char *folder = home ? hspmd_asprintf("%s/.hspmd/submitted", home) : NULL;
	free(home);
	return folder;
}

static bool is_copy(const char *name)
{
	return strspn(name, "0123456789abcdef") == DIGEST_CHARS && !strcmp(name + DIGEST_CHARS, SUFFIX);
}

/* The time of a copy is that of its last use: a submission writes it anew, and a job that starts touches it. */
static void remove_old_copies(const char *folder)
{
	time_t oldest = time(NULL) - (time_t)HSPMD_JOB_KEPT_DAYS * 86400;
	struct stat st;
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));)
		if (is_copy(e->d_name) && !fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) && st.st_mtime < oldest)
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

int hspmd_job_keep(const char *path, struct hspmd_kept_job *kept, struct hspmd_error *err)
{
	struct hspmd_error ignored;
	size_t size = 0;
	char *text = hspmd_read_file(path, HSPMD_JSON_MAX_BYTES, &size, err);
	*kept = (struct hspmd_kept_job){ 0 };
	if (!text)
		return -1;
	digest_of(text, size, kept->digest);
	char *folder = folder_of_copies();
	kept->copy = folder ? hspmd_asprintf("%s/%s" SUFFIX, folder, kept->digest) : NULL;
	if (kept->copy && (hspmd_durable_mkdir(folder, 0700, &ignored) || hspmd_durable_write(kept->copy, text, size, &ignored))) {
		free(kept->copy);
		kept->copy = NULL;
	}
	if (kept->copy)
		remove_old_copies(folder);
	free(folder);
	free(text);
	return 0;
}

void hspmd_kept_job_clear(struct hspmd_kept_job *kept)
{
	free(kept->copy);
	*kept = (struct hspmd_kept_job){ 0 };
}

/* Reads the text of `file` as the job file `path` if it has the digest; otherwise returns NULL without an error. */
static struct hspmd_job *read_same(const char *file, const char *path, const char *digest, bool *same, struct hspmd_error *err)
{
	char now[17];
	size_t size = 0;
	char *text = hspmd_read_file(file, HSPMD_JSON_MAX_BYTES, &size, err);
	struct hspmd_json_doc doc;
	struct hspmd_job *j = NULL;
	*same = false;
	if (!text)
		return NULL;
	digest_of(text, size, now);
	*same = !strcmp(now, digest);
	if (*same && !hspmd_json_parse(&doc, path, text, size, err)) {
		j = hspmd_job_from_json(doc.root, path, NULL, err);
		hspmd_json_close(&doc);
	}
	free(text);
	return j;
}

struct hspmd_job *hspmd_job_read_kept(const char *path, const char *digest, const char *copy, bool *changed, struct hspmd_error *err)
{
	struct hspmd_error why = { "" };
	bool same;
	if (copy && *copy)
		utimensat(AT_FDCWD, copy, NULL, 0); /* the job may be requeued, and then needs it again */
	struct hspmd_job *j = read_same(path, path, digest, &same, err);
	*changed = !same;
	if (same)
		return j;
	if (copy && *copy && (j = read_same(copy, path, digest, &same, &why)))
		return j;
	if (!copy || !*copy)
		hspmd_fail(&why, "could not be kept");
	else if (*why.text)
		hspmd_error_prefix(&why, "cannot be read");
	else
		hspmd_fail(&why, "%s is not that file either", copy);
	hspmd_fail(err, "%s: it is no longer the file that was submitted, and its copy of then %s: submit the job again", path, why.text);
	return NULL;
}
