/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of what the model says: `hspmd generate` in a process of its own, from a complete checkpoint, on cores of this node that nothing
 * else wants. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "controller/run/loop_internal.h"

#define LIMIT_MS 3600000    /* for the samples of one step */
#define LAST_LIMIT_MS 60000 /* for those under way when the run ends */
#define OUTPUT_MAX ((size_t)64 << 20)
#define WORDS_MAX (2 * HSPMD_JOB_PROMPTS_MAX + 32)

/* What the process writes, up to OUTPUT_MAX bytes. */
struct sampler_output {
	uv_pipe_t pipe;
	char *text;
	size_t size, capacity;
};

struct sampler {
	struct loop *loop;
	int64_t step;
	double began;
	uv_process_t process;
	uv_timer_t limit;
	struct sampler_output out, err;
	int handles; /* that are open */
	bool running, late, replaced; /* late: it took too long; replaced: the run is over, and newer samples wait */
	int64_t status;
	int signal;
};

/* ---- its command */

struct words {
	char *list[WORDS_MAX + 1];
	int count;
	bool failed;
};

static void add(struct words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct words *w, const char *format, ...)
{
	char *word = NULL;
	va_list ap;
	va_start(ap, format);
	if (w->count == WORDS_MAX || vasprintf(&word, format, ap) < 0)
		w->failed = true;
	else
		w->list[w->count++] = word;
	va_end(ap);
}

static void clear(struct words *w)
{
	for (int i = 0; i < w->count; i++)
		free(w->list[i]);
}

static bool ends_in(const char *text, const char *end)
{
	size_t n = strlen(text), e = strlen(end);
	return n > e && !strcmp(text + n - e, end);
}

/* A checkpoint does not hold the code of a model of the user's own. */
static void make_command(const struct loop *l, int64_t step, struct words *w)
{
	const struct run_config *c = l->o->config;
	const struct hspmd_job *j = c->job;
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	self[n > 0 ? n : 0] = '\0';
	add(w, "%s", n > 0 ? self : "hspmd");
	add(w, "generate");
	add(w, "--cpu");
	add(w, "--json");
	add(w, "--checkpoint=%s", c->shared ? c->shared : c->local);
	add(w, "--step=%lld", (long long)step);
	add(w, "--max-tokens=%lld", (long long)j->samples.max_tokens);
	add(w, "--temperature=%.17g", j->samples.temperature);
	add(w, "--top-k=%lld", (long long)j->samples.top_k);
	add(w, "--top-p=%.17g", j->samples.top_p);
	add(w, "--seed=%lld", (long long)(j->seed % INT32_MAX));
	add(w, "--tokenizer=%s", j->samples.tokenizer ? j->samples.tokenizer : "bytes");
	add(w, "--no-special-tokens"); /* as in the texts that it was trained on */
	if (ends_in(j->model_path, ".so") || ends_in(j->model_path, ".c"))
		add(w, "--config=%s", j->model_path);
	for (int i = 0; i < j->samples.prompt_count; i++)
		add(w, "--prompt=%s", j->samples.prompts[i]);
}

/* ---- its end */

static void tell(struct loop *l, int64_t step, double seconds, const char *why)
{
	struct run_event e = { .kind = EVENT_SAMPLED, .id = step, .seconds = seconds, .text = why };
	if (l->stopping && why)
		hspmd_warn("no samples of step %lld: %s", (long long)step, why);
	l->on_event(l, &e);
}

/* A line per prompt. Returns 0, or -1 and err. */
static int keep(struct loop *l, const struct sampler *s, struct hspmd_error *err)
{
	json_t *answer = json_loadb(s->out.text ? s->out.text : "", s->out.size, JSON_ALLOW_NUL, NULL);
	json_t *list = json_object_get(answer, "completions"), *one;
	size_t i;
	int rv = json_array_size(list) ? 0 : hspmd_fail(err, "hspmd generate printed no texts");
	json_array_foreach(list, i, one) {
		json_t *line = json_pack("{s:I, s:O, s:O, s:I, s:f}", "step", (json_int_t)s->step, "prompt", json_object_get(one, "prompt"),
		                         "text", json_object_get(one, "text"), "tokens",
		                         (json_int_t)json_array_size(json_object_get(one, "tokens")), "time", hspmd_unix_time());
		if (line)
			run_output_queue_sample(l->output, line);
		else
			rv = hspmd_fail(err, "hspmd generate printed no texts");
		json_decref(line);
	}
	json_decref(answer);
	return rv;
}

/* The last line that the process wrote to standard error, without the name of the command. */
static const char *last_words(struct sampler_output *o)
{
	while (o->size && o->text[o->size - 1] == '\n')
		o->text[--o->size] = '\0';
	char *line = o->size ? strrchr(o->text, '\n') : NULL;
	line = line ? line + 1 : o->text;
	char *message = line ? strstr(line, "error: ") : NULL;
	return message ? message + strlen("error: ") : line && *line ? line : "it said nothing";
}

static void finish(struct sampler *s)
{
	struct loop *l = s->loop;
	struct hspmd_error err = { "" };
	if (s->late)
		hspmd_fail(&err, "they took longer than %d s", (l->stopping ? LAST_LIMIT_MS : LIMIT_MS) / 1000);
	else if (s->replaced && s->signal)
		hspmd_fail(&err, "those of the last step are made instead");
	else if (s->signal)
		hspmd_fail(&err, "hspmd generate was ended by signal %d", s->signal);
	else if (s->status)
		hspmd_fail(&err, "%s", last_words(&s->err));
	else
		keep(l, s, &err);
	tell(l, s->step, hspmd_now() - s->began, err.text[0] ? err.text : NULL);
	l->sampler = NULL;
	free(s->out.text);
	free(s->err.text);
	free(s);
	int64_t next = l->samples_next;
	l->samples_next = 0;
	if (next && !(l->stopping && l->status))
		loop_make_samples(l, next);
}

static void on_closed(uv_handle_t *h)
{
	struct sampler *s = h->data;
	if (--s->handles == 0)
		finish(s);
}

static void close_handle(struct sampler *s, uv_handle_t *h)
{
	if (!uv_is_closing(h))
		uv_close(h, on_closed);
	(void)s;
}

/* ---- while it runs */

static void on_room(uv_handle_t *h, size_t wanted, uv_buf_t *buf)
{
	struct sampler *s = h->data;
	struct sampler_output *o = h == (uv_handle_t *)&s->out.pipe ? &s->out : &s->err;
	(void)wanted;
	if (o->size + 4096 > o->capacity && o->capacity < OUTPUT_MAX) {
		size_t more = o->capacity ? 2 * o->capacity : 16384;
		char *text = realloc(o->text, more);
		o->text = text ? text : o->text;
		o->capacity = text ? more : o->capacity;
	}
	*buf = uv_buf_init(o->text ? o->text + o->size : NULL, o->text ? (unsigned)(o->capacity - o->size - 1) : 0);
}

static void on_data(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct sampler *s = stream->data;
	struct sampler_output *o = stream == (uv_stream_t *)&s->out.pipe ? &s->out : &s->err;
	(void)buf;
	if (n < 0) {
		close_handle(s, (uv_handle_t *)stream);
		return;
	}
	o->size += (size_t)n;
	o->text[o->size] = '\0';
}

static void on_exit_of(uv_process_t *p, int64_t status, int sig)
{
	struct sampler *s = p->data;
	s->running = false;
	s->status = status;
	s->signal = sig;
	close_handle(s, (uv_handle_t *)&s->limit);
	close_handle(s, (uv_handle_t *)p);
}

static void on_limit(uv_timer_t *t)
{
	struct sampler *s = t->data;
	s->late = true;
	if (s->running)
		uv_process_kill(&s->process, SIGKILL);
}

/* Training must not wait for it: it gets the time that nobody else wants. */
static void give_way(pid_t pid)
{
	struct sched_param none = { 0 };
	setpriority(PRIO_PROCESS, (id_t)pid, 19);
	if (sched_setscheduler(pid, SCHED_IDLE, &none))
		hspmd_debug("samples run at the lowest ordinary priority: %s", strerror(errno));
}

static int start(struct sampler *s, struct words *w)
{
	struct loop *l = s->loop;
	struct sampler_output *outputs[2] = { &s->out, &s->err };
	uv_stdio_container_t io[3] = { { .flags = UV_IGNORE } };
	for (int i = 0; i < 2; i++) {
		uv_pipe_init(&l->uv, &outputs[i]->pipe, 0);
		outputs[i]->pipe.data = s;
		io[1 + i] = (uv_stdio_container_t){ .flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE,
			                            .data.stream = (uv_stream_t *)&outputs[i]->pipe };
	}
	uv_timer_init(&l->uv, &s->limit);
	s->limit.data = s->process.data = s;
	s->handles = 4;
	uv_process_options_t o = { .exit_cb = on_exit_of, .file = w->list[0], .args = w->list, .stdio_count = 3, .stdio = io };
	int rc = uv_spawn(&l->uv, &s->process, &o);
	s->running = !rc;
	if (rc) {
		s->status = 1;
		s->err.text = strdup(uv_strerror(rc));
		s->err.size = s->err.text ? strlen(s->err.text) : 0;
		close_handle(s, (uv_handle_t *)&s->process);
		close_handle(s, (uv_handle_t *)&s->limit);
		for (int i = 0; i < 2; i++)
			close_handle(s, (uv_handle_t *)&outputs[i]->pipe);
		return -1;
	}
	/* After the last step nothing waits for it, and on a busy node it might get no time at all within LAST_LIMIT_MS. */
	if (!l->stopping && s->step < l->o->config->job->steps)
		give_way(s->process.pid);
	for (int i = 0; i < 2; i++)
		uv_read_start((uv_stream_t *)&outputs[i]->pipe, on_room, on_data);
	uv_timer_start(&s->limit, on_limit, l->stopping ? LAST_LIMIT_MS : LIMIT_MS, 0);
	return 0;
}

void loop_make_samples(struct loop *l, int64_t step)
{
	struct words w = { .count = 0 };
	char text[100];
	if (l->sampler) { /* the newest waits */
		int64_t older = l->samples_next;
		snprintf(text, sizeof text, "those of step %lld take too long", (long long)l->sampler->step);
		l->samples_next = step;
		if (older)
			tell(l, older, 0, text);
		return;
	}
	make_command(l, step, &w);
	struct sampler *s = w.failed ? NULL : calloc(1, sizeof *s);
	if (!s) {
		tell(l, step, 0, "out of memory");
	} else {
		*s = (struct sampler){ .loop = l, .step = step, .began = hspmd_now() };
		l->sampler = s;
		start(s, &w);
	}
	clear(&w);
}

void loop_end_samples(struct loop *l, bool at_once)
{
	struct sampler *s = l->sampler;
	if (!s || !s->running)
		return;
	s->replaced = !at_once && l->samples_next;
	if (at_once || s->replaced)
		uv_process_kill(&s->process, SIGKILL);
	else
		uv_timer_start(&s->limit, on_limit, LAST_LIMIT_MS, 0);
}
