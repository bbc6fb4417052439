/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a job file names: variables in paths; checks that model, data and folders exist and fit together. */
#include "common/format/job.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/format/job_command.h"
#include "common/format/job_samples.h"
#include "common/format/megatron_index.h"

#define BYTE_VOCABULARY 256
#define LOOKED_AT_BYTES 65536 /* bytes checked per file of tokens */

/* ---- variables in paths */

/* The user of this process: from the password file, not from the environment, which may be a batch script's or a daemon's. */
static char *user_entry(bool home)
{
	const char *given = getenv(home ? "HOME" : "USER");
	struct passwd entry, *found = NULL;
	size_t size = 16384;
	char *buffer = malloc(size), *value = NULL;
	if (!buffer)
		return NULL;
	if (home && given && *given == '/')
		value = strdup(given);
	else if (!getpwuid_r(geteuid(), &entry, buffer, size, &found) && found)
		value = strdup(home ? found->pw_dir : found->pw_name);
	else if (given && *given)
		value = strdup(given);
	free(buffer);
	return value;
}

/* Of a variable that there is. */
static char *variable(const char *name, size_t length, const char *job_id, struct hspmd_error *err)
{
	char *value = *name == 'J' ? strdup(job_id ? job_id : "local") : user_entry(*name == 'H');
	if (!value)
		hspmd_fail(err, "no value for $%.*s", (int)length, name);
	return value;
}

/* The name after a '$', in braces or not; *rest is the text after it. NULL: no name. */
static const char *variable_name(const char *text, size_t *length, const char **rest)
{
	bool braces = *text == '{';
	const char *name = text + braces;
	*length = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
	*rest = name + *length + braces;
	return *length && (!braces || name[*length] == '}') ? name : NULL;
}

int hspmd_job_check_path(const char *path, struct hspmd_error *err)
{
	static const char *const known[] = { "USER", "JOB", "HOME" };
	const char *whole = path;
	while ((path = strchr(path, '$'))) {
		size_t length, i = 0;
		const char *rest, *name = variable_name(path + 1, &length, &rest);
		if (!name)
			return hspmd_fail(err, "\"%s\": expected $NAME or ${NAME}", whole);
		while (i < sizeof known / sizeof *known && (strlen(known[i]) != length || memcmp(known[i], name, length)))
			i++;
		if (i == sizeof known / sizeof *known)
			return hspmd_fail(err, "$%.*s is not a variable here; expected $USER, $JOB or $HOME",
			                  (int)(length < 64 ? length : 64), name);
		path = rest;
	}
	return 0;
}

char *hspmd_job_expand_path(const char *path, const char *job_id, struct hspmd_error *err)
{
	if (hspmd_job_check_path(path, err))
		return NULL;
	char *text = strdup("");
	while (text && *path) {
		size_t plain = strcspn(path, "$"), length = 0;
		const char *rest = path + plain;
		char *value = NULL;
		if (*rest == '$') {
			const char *name = variable_name(path + plain + 1, &length, &rest);
			value = variable(name, length, job_id, err);
			if (!value) {
				free(text);
				return NULL;
			}
		}
		char *longer = hspmd_asprintf("%s%.*s%s", text, (int)plain, path, value ? value : "");
		free(text);
		free(value);
		text = longer;
		path = rest;
	}
	if (!text)
		hspmd_fail_memory(err, "filling in a path");
	return text;
}

/* ---- data */

struct check {
	const struct hspmd_job *j;
	const struct hspmd_model *m; /* NULL: a command, or a model that cannot be read */
	struct hspmd_error *err;     /* of the check that is done now: `one` */
	struct hspmd_error one;
	struct hspmd_mistakes *all;
	struct hspmd_error *last; /* of all checks */
	bool failed, enough;      /* a check failed; no more shall be done */
};

/* Takes the result of one check. */
static void take(struct check *k, int rc)
{
	if (!rc || k->enough)
		return;
	k->failed = true;
	k->enough = !hspmd_mistakes_add(k->all, k->last, k->j->file, k->one.text);
}

/* Open a file for reading and find its size. -1 with err, which names job file, path in it and the file. */
static int open_data(const struct check *k, const char *what, int i, const char *path, struct stat *st)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return hspmd_fail_errno(k->err, "%s: data.%s[%d]: %s", k->j->file, what, i, path);
	const char *wrong = NULL;
	if (fstat(fd, st))
		wrong = strerror(errno);
	else if (!S_ISREG(st->st_mode))
		wrong = "expected a plain file";
	else if (st->st_size == 0)
		wrong = "file is empty";
	if (!wrong)
		return fd;
	close(fd);
	return hspmd_fail(k->err, "%s: data.%s[%d]: %s: %s", k->j->file, what, i, path, wrong);
}

static int check_length(const struct check *k, const char *what, int i, const char *path, int64_t bytes, int width)
{
	int64_t tokens = bytes / width, sample = k->j->seq_len + 1;
	if (bytes % width)
		return hspmd_fail(k->err, "%s: data.%s[%d]: %s: its %lld bytes are no whole number of tokens of %d bytes", k->j->file, what,
		                  i, path, (long long)bytes, width);
	if (tokens < sample)
		return hspmd_fail(k->err, "%s: data.%s[%d]: %s: %lld tokens are less than one sample of seq_len + 1 = %lld", k->j->file,
		                  what, i, path, (long long)tokens, (long long)sample);
	return 0;
}

bool hspmd_job_uses_index(const struct hspmd_job *j)
{
	return j->data_kind == HSPMD_DATA_MEGATRON && j->documents && j->document_end < 0;
}

char *hspmd_job_mask_path(const struct hspmd_job *j, const char *path)
{
	int length = j->data_kind == HSPMD_DATA_MEGATRON ? hspmd_megatron_base_length(path) : (int)strlen(path);
	return hspmd_asprintf("%.*s.mask", length, path);
}

/* Read the head of a Megatron index and return the width of its tokens, or -1. */
static int index_width(const struct check *k, const char *what, int i, const char *path)
{
	unsigned char head[HSPMD_MEGATRON_HEAD_BYTES];
	struct stat st;
	int fd = open_data(k, what, i, path, &st);
	if (fd < 0)
		return -1;
	ssize_t n = pread(fd, head, sizeof head, 0);
	close(fd);
	int width = hspmd_megatron_width(hspmd_megatron_code(head, n < 0 ? 0 : (size_t)n));
	if (!width)
		return hspmd_fail(k->err, "%s: data.%s[%d]: %s: not an index of version 1 with integer tokens", k->j->file, what, i, path);
	return width;
}

/* A file of another kind than stated soon contains large numbers; the rest is checked while it is read. */
static int check_tokens(const struct check *k, const char *what, int i, const char *path, int fd, int width)
{
	unsigned char head[LOOKED_AT_BYTES];
	ssize_t n = width > 1 && k->m ? pread(fd, head, sizeof head, 0) : 0;
	for (ssize_t at = 0; at + width <= n; at += width) {
		uint64_t token = 0;
		for (int b = 0; b < width; b++)
			token |= (uint64_t)head[at + b] << 8 * b;
		if (token >= (uint64_t)k->m->vocab)
			return hspmd_fail(k->err,
			                  "%s: data.%s[%d]: %s: token %" PRIu64
			                  " at position %zd is not below the model's vocabulary of %lld (%s)",
			                  k->j->file, what, i, path, token, at / width, (long long)k->m->vocab, k->j->model_path);
	}
	return 0;
}

/* Returns true if a byte of the file is not 0: mostly one of the first. */
static bool has_set_byte(int fd)
{
	unsigned char bytes[LOOKED_AT_BYTES];
	ssize_t n;
	for (off_t at = 0; (n = pread(fd, bytes, sizeof bytes, at)) > 0; at += n)
		for (ssize_t i = 0; i < n; i++)
			if (bytes[i])
				return true;
	return false;
}

static int check_mask(const struct check *k, const char *what, int i, const char *path, int64_t tokens)
{
	struct stat st;
	char *mask = hspmd_job_mask_path(k->j, path);
	int fd = mask ? open_data(k, what, i, mask, &st) : hspmd_fail_memory(k->err, path), rc = fd < 0 ? -1 : 0;
	if (!rc && st.st_size != tokens)
		rc = hspmd_fail(k->err, "%s: data.%s[%d]: %s: %lld bytes, expected one for each of the %lld tokens", k->j->file, what, i,
		                mask, (long long)st.st_size, (long long)tokens);
	else if (!rc && !has_set_byte(fd))
		rc = hspmd_fail(k->err, "%s: data.%s[%d]: %s: all bytes are 0, so that no token would be predicted", k->j->file, what, i,
		                mask);
	if (fd >= 0)
		close(fd);
	free(mask);
	return rc;
}

/* Length and tokens of an open file, and its mask; takes the descriptor. */
static int check_file(const struct check *k, const char *what, int i, const char *path, int fd, const struct stat *st, int width)
{
	int rc = check_length(k, what, i, path, st->st_size, width);
	if (!rc)
		rc = check_tokens(k, what, i, path, fd, width);
	if (!rc && k->j->mask)
		rc = check_mask(k, what, i, path, st->st_size / width);
	close(fd);
	return rc;
}

static int check_index(const struct check *k, const char *what, int i, const char *path, int width, int64_t data_bytes)
{
	struct hspmd_megatron_index index;
	if (!hspmd_job_uses_index(k->j) || !hspmd_megatron_index_read(&index, path, width, data_bytes, k->err))
		return 0;
	return hspmd_error_prefix(k->err, "%s: data.%s[%d]", k->j->file, what, i);
}

static int check_megatron(const struct check *k, const char *what, int i, const char *path)
{
	int base = hspmd_megatron_base_length(path), rc = -1;
	char *bin = hspmd_asprintf("%.*s.bin", base, path), *idx = hspmd_asprintf("%.*s.idx", base, path);
	struct stat st;
	if (!bin || !idx) {
		hspmd_fail_memory(k->err, path);
	} else {
		int width = index_width(k, what, i, idx), fd = width < 0 ? -1 : open_data(k, what, i, bin, &st);
		if (fd >= 0)
			rc = check_file(k, what, i, bin, fd, &st, width);
		if (!rc)
			rc = check_index(k, what, i, idx, width, st.st_size);
	}
	free(bin);
	free(idx);
	return rc;
}

static int check_data_file(const struct check *k, const char *what, int i, const char *path)
{
	static const int widths[] = { [HSPMD_DATA_BYTES] = 1, [HSPMD_DATA_UINT16] = 2, [HSPMD_DATA_UINT32] = 4 };
	struct stat st;
	if (k->j->data_kind == HSPMD_DATA_MEGATRON)
		return check_megatron(k, what, i, path);
	int fd = open_data(k, what, i, path, &st);
	if (fd < 0)
		return -1;
	if (k->j->data_kind != HSPMD_DATA_OWN)
		return check_file(k, what, i, path, fd, &st, widths[k->j->data_kind]);
	close(fd);
	return 0;
}

static void check_data(struct check *k, const char *what, char *const *paths, int count)
{
	for (int i = 0; i < count && !k->enough; i++)
		take(k, check_data_file(k, what, i, paths[i]));
}

/* ---- the rest */

int hspmd_job_check_positions(const struct hspmd_job *j, const struct hspmd_model *m, struct hspmd_error *err)
{
	if (j->seq_len > m->max_positions)
		return hspmd_fail(err, "%s: seq_len: expected at most %lld, the model's positions (%s), got %lld", j->file,
		                  (long long)m->max_positions, j->model_path, (long long)j->seq_len);
	return 0;
}

static int check_document_end(const struct check *k)
{
	const struct hspmd_job *j = k->j;
	if (j->documents && j->document_end >= k->m->vocab)
		return hspmd_fail(k->err, "%s: data.document_end: token %lld is not below the model's vocabulary of %lld (%s)", j->file,
		                  (long long)j->document_end, (long long)k->m->vocab, j->model_path);
	return 0;
}

static int check_kind(const struct check *k)
{
	const struct hspmd_job *j = k->j;
	if (j->data_kind == HSPMD_DATA_OWN && !k->m->reads_samples)
		return hspmd_fail(k->err, "%s: data.kind: expected another kind than \"own\": the model %s does not read data itself",
		                  j->file, j->model_path);
	if (j->data_kind != HSPMD_DATA_OWN && k->m->only_own_samples)
		return hspmd_fail(k->err, "%s: data.kind: expected \"own\": the model %s has inputs that it fills itself", j->file,
		                  j->model_path);
	if (j->data_kind == HSPMD_DATA_BYTES && k->m->vocab < BYTE_VOCABULARY)
		return hspmd_fail(k->err, "%s: data.kind: bytes need a vocabulary of %d, but the model's is %lld (%s)", j->file,
		                  BYTE_VOCABULARY, (long long)k->m->vocab, j->model_path);
	return 0;
}

static void check_model(struct check *k, const struct hspmd_job_models *models)
{
	take(k, hspmd_job_check_positions(k->j, k->m, k->err));
	take(k, check_document_end(k));
	take(k, check_kind(k));
	take(k, hspmd_job_samples_check(k->j, k->m, k->err));
	/* The rest may depend on what was wrong. */
	if (!k->failed && models->check(k->j, k->m, k->all, k->last)) {
		k->failed = true;
		k->enough = !k->all->report || k->all->count > HSPMD_MISTAKES_MAX;
	}
}

/* Checks that a folder can be written, or can be made in its nearest existing parent. */
static int writable(const char *folder)
{
	char *path = strdup(folder);
	if (!path)
		return -1;
	int rc = access(path, W_OK | X_OK);
	while (rc && errno == ENOENT && strlen(path) > 1) {
		char *slash = strrchr(path, '/');
		slash[slash == path] = '\0';
		rc = access(path, W_OK | X_OK);
	}
	struct stat st;
	if (!rc && !stat(path, &st) && !S_ISDIR(st.st_mode)) {
		errno = ENOTDIR;
		rc = -1;
	}
	int saved = errno;
	free(path);
	errno = saved;
	return rc;
}

static int check_shared(const struct check *k)
{
	const struct hspmd_job *j = k->j;
	if (!j->checkpoint.shared)
		return 0;
	char *folder = hspmd_job_expand_path(j->checkpoint.shared, NULL, k->err);
	if (!folder)
		return hspmd_error_prefix(k->err, "%s: checkpoint.shared", j->file);
	int rc = writable(folder);
	if (rc)
		hspmd_fail_errno(k->err, "%s: checkpoint.shared: cannot write to %s", j->file, folder);
	free(folder);
	return rc;
}

int hspmd_job_check_files(const struct hspmd_job *j, const struct hspmd_job_models *models, void *context, struct hspmd_model **model,
                          struct hspmd_mistakes *all, struct hspmd_error *err)
{
	struct hspmd_mistakes first = { .report = NULL };
	struct check k = { .j = j, .all = all ? all : &first, .last = err };
	k.err = &k.one;
	struct hspmd_model *m = j->command.argc ? NULL : models->read(j, context, k.err);
	k.m = m;
	if (j->command.argc)
		take(&k, hspmd_job_command_check(j, k.err));
	else if (!m)
		take(&k, hspmd_error_prefix(k.err, "%s: model", j->file));
	else
		check_model(&k, models);
	check_data(&k, "train", j->train, j->train_count);
	check_data(&k, "valid", j->valid, j->valid_count);
	take(&k, check_shared(&k));
	if (!k.failed && model)
		*model = m;
	else
		hspmd_model_destroy(m);
	return k.failed ? -1 : 0;
}
