/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/tokenizer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/json.h"

#define PYTHON_MS 120000
#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

extern char **environ;

static const char program[] =
#include "controller/cli/generate_tokens.h"
        ;

void token_text_free(struct token_text *t)
{
	free(t->text);
	free(t->tokens);
	*t = (struct token_text){ 0 };
}

/* ---- the Python process */

/* Waits for the process to end; kills it when time is up. Returns its exit status, or -1. */
static int await(pid_t pid)
{
	int status, fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	if (fd < 0 || poll(&p, 1, PYTHON_MS) <= 0)
		kill(pid, SIGKILL);
	if (fd >= 0)
		close(fd);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Request and answer are files in memory, so that neither side waits for the other. */
static int run_python(int request, int answer, struct hspmd_error *err)
{
	char *const argv[] = { (char *)"python3", (char *)"-c", (char *)program, NULL };
	posix_spawn_file_actions_t files;
	pid_t pid;
	if (posix_spawn_file_actions_init(&files))
		return hspmd_fail_memory(err, "starting python3");
	int rc = posix_spawn_file_actions_adddup2(&files, request, 0) || posix_spawn_file_actions_adddup2(&files, answer, 1)
	                 ? ENOMEM
	                 : posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&files);
	if (rc) {
		errno = rc;
		return hspmd_fail_errno(err, "python3, which reads the tokenizer, cannot be run");
	}
	rc = await(pid);
	return rc ? hspmd_fail(err,
	                       rc < 0 ? "python3, which reads the tokenizer, was killed, or did not end within %d s"
	                              : "python3, which reads the tokenizer, failed (see above)",
	                       PYTHON_MS / 1000)
	          : 0;
}

/* Takes ownership of the request. NULL and err. */
static json_t *ask(const struct tokenizer *t, json_t *request, struct hspmd_error *err)
{
	int files[2] = { memfd_create("request", MFD_CLOEXEC), memfd_create("answer", MFD_CLOEXEC) };
	json_t *answer = NULL;
	int bad = !request || json_object_set_new(request, "tokenizer", json_string(t->path)) ||
	          json_object_set_new(request, "special_tokens", json_boolean(t->special_tokens));
	char *text = bad ? NULL : json_dumps(request, JSON_COMPACT);
	if (files[0] < 0 || files[1] < 0)
		hspmd_fail_errno(err, "asking the tokenizer");
	else if (!text)
		hspmd_fail_memory(err, "asking the tokenizer");
	else if (hspmd_write_all(files[0], text, strlen(text)) || lseek(files[0], 0, SEEK_SET))
		hspmd_fail_errno(err, "asking the tokenizer");
	else if (!run_python(files[0], files[1], err) && !lseek(files[1], 0, SEEK_SET) &&
	         !(answer = json_loadfd(files[1], JSON_ALLOW_NUL, NULL)))
		hspmd_fail(err, "%s: the tokenizer's answer cannot be read", t->path);
	for (int i = 0; i < 2; i++)
		if (files[i] >= 0)
			close(files[i]);
	free(text);
	json_decref(request);
	return answer;
}

/* ---- texts to tokens */

static int encode_bytes(struct token_text *t, struct hspmd_error *err)
{
	if (!(t->tokens = hspmd_calloc(t->size + 1, sizeof *t->tokens)))
		return hspmd_fail_memory(err, "reading a prompt");
	for (size_t i = 0; i < t->size; i++)
		t->tokens[i] = (unsigned char)t->text[i];
	t->count = (int64_t)t->size;
	return 0;
}

static int take_tokens(const json_t *ids, struct token_text *t, struct hspmd_error *err)
{
	size_t n = json_array_size(ids);
	if (!json_is_array(ids))
		return hspmd_fail(err, "the tokenizer's answer has no tokens");
	if (!(t->tokens = hspmd_calloc(n + 1, sizeof *t->tokens)))
		return hspmd_fail_memory(err, "reading a prompt");
	for (size_t i = 0; i < n; i++)
		t->tokens[i] = (int32_t)json_integer_value(json_array_get(ids, i));
	t->count = (int64_t)n;
	return 0;
}

int tokenizer_encode(const struct tokenizer *t, struct token_text *list, size_t n, struct hspmd_error *err)
{
	if (!t->path) {
		for (size_t i = 0; i < n; i++)
			if (encode_bytes(&list[i], err))
				return -1;
		return 0;
	}
	json_t *texts = json_array();
	int rv = 0, bad = !texts;
	for (size_t i = 0; i < n && !rv; i++) {
		json_t *text = json_stringn(list[i].text, list[i].size);
		if (!text)
			rv = hspmd_fail(err, "prompt %zu is not UTF-8", i + 1);
		else
			bad |= json_array_append_new(texts, text);
	}
	json_t *answer = rv || bad ? NULL : ask(t, json_pack("{s:O}", "texts", texts), err);
	if (!rv && bad)
		rv = hspmd_fail_memory(err, "reading prompts");
	rv = rv || !answer ? -1 : 0;
	for (size_t i = 0; i < n && !rv; i++)
		rv = take_tokens(json_array_get(json_object_get(answer, "tokens"), i), &list[i], err);
	json_decref(answer);
	json_decref(texts);
	return rv;
}

/* ---- tokens to texts */

/* Bytes of the UTF-8 character at the beginning; 0: it is none. */
static size_t character(const char *at, size_t left)
{
	for (size_t n = 1; n <= 4 && n <= left; n++) {
		json_t *v = json_stringn(at, n);
		json_decref(v);
		if (v)
			return n;
	}
	return 0;
}

static int decode_bytes(struct token_text *t, struct hspmd_error *err)
{
	size_t n = (size_t)t->count;
	char *bytes = malloc(n + 1);
	t->text = hspmd_calloc(n + 1, strlen(REPLACEMENT));
	t->size = 0;
	if (!bytes || !t->text) {
		free(bytes);
		return hspmd_fail_memory(err, "writing a text");
	}
	for (size_t i = 0; i < n; i++)
		bytes[i] = (char)(t->tokens[i] < 256 ? t->tokens[i] : 0xff); /* which no UTF-8 has */
	for (size_t i = 0, length; i < n; i += length ? length : 1) {
		length = character(bytes + i, n - i);
		memcpy(t->text + t->size, length ? bytes + i : REPLACEMENT, length ? length : strlen(REPLACEMENT));
		t->size += length ? length : strlen(REPLACEMENT);
	}
	free(bytes);
	return 0;
}

static json_t *ids_of(const struct token_text *t)
{
	json_t *ids = json_array();
	int bad = !ids;
	for (int64_t i = 0; i < t->count; i++)
		bad |= json_array_append_new(ids, json_integer(t->tokens[i]));
	return hspmd_json_unless_failed(bad, ids);
}

int tokenizer_decode(const struct tokenizer *t, struct token_text *list, size_t n, struct hspmd_error *err)
{
	if (!t->path) {
		for (size_t i = 0; i < n; i++)
			if (decode_bytes(&list[i], err))
				return -1;
		return 0;
	}
	json_t *all = json_array();
	int bad = !all;
	for (size_t i = 0; i < n; i++)
		bad |= json_array_append_new(all, ids_of(&list[i]));
	json_t *answer = bad ? NULL : ask(t, json_pack("{s:O}", "tokens", all), err);
	int rv = answer ? 0 : bad ? hspmd_fail_memory(err, "writing texts") : -1;
	for (size_t i = 0; i < n && !rv; i++) {
		json_t *text = json_array_get(json_object_get(answer, "texts"), i);
		list[i].size = json_string_length(text);
		if (!(list[i].text = malloc(list[i].size + 1)))
			rv = hspmd_fail_memory(err, "writing texts");
		else
			memcpy(list[i].text, json_is_string(text) ? json_string_value(text) : "", list[i].size + 1);
	}
	json_decref(answer);
	json_decref(all);
	return rv;
}
