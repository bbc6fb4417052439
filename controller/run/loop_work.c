/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/log.h"
#include "controller/run/choose_plan.h"
#include "controller/run/loop_internal.h"

/* ---- solving */

struct solve {
	uv_work_t work;
	struct loop *loop;
	struct solve *next;
	atomic_bool cancelled;
	int64_t id;
	json_t *input, *answer;
	struct hspmd_error err;
};

static void solve_work(uv_work_t *w)
{
	struct solve *s = w->data;
	const struct run_loop_options *o = s->loop->o;
	const struct run_planning planning = { .job = o->config->job,
		                               .facts = o->facts,
		                               .layers = o->config->layers,
		                               .programs = o->programs,
		                               .shares = o->shares,
		                               .share_count = o->share_count,
		                               .limit_s = o->solve_limit_s,
		                               .compared = &s->loop->compared,
		                               .repair_devices = o->repair_devices,
		                               .cancelled = &s->cancelled };
	s->answer = run_choose_plan(&planning, s->input, &s->err);
}

static void solve_done(uv_work_t *w, int status)
{
	struct solve *s = w->data;
	struct loop *l = s->loop;
	struct solve **at = &l->solves;
	(void)status;
	l->pending_work--;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	struct run_event e = { .kind = EVENT_PLAN, .id = s->id, .value = s->answer, .text = s->answer ? NULL : s->err.text };
	l->on_event(l, &e);
	json_decref(s->answer);
	json_decref(s->input);
	free(s);
}

void loop_solve(struct loop *l, int64_t id, json_t *value)
{
	struct solve *s = calloc(1, sizeof *s);
	if (!s) {
		hspmd_error_log("out of memory while planning");
		return; /* the controller has a deadline for the solver */
	}
	s->work.data = s;
	s->loop = l;
	s->id = id;
	/* A deep copy: threads must not share reference counts. */
	s->input = json_deep_copy(value);
	s->next = l->solves;
	l->solves = s;
	l->pending_work++;
	uv_queue_work(&l->uv, &s->work, solve_work, solve_done);
}

void loop_cancel_solve(struct loop *l, int64_t id)
{
	for (struct solve *s = l->solves; s; s = s->next)
		if (!id || s->id == id)
			atomic_store(&s->cancelled, true);
}

/* ---- polling the allocation */

struct poll_allocation {
	uv_work_t work;
	struct loop *loop;
	json_t *answer;
	struct hspmd_error err;
};

static void poll_work(uv_work_t *w)
{
	struct poll_allocation *k = w->data;
	struct run_allocation *a = k->loop->o->allocation;
	k->answer = a->ops->poll_allocation(a, &k->err);
}

static void on_poll_timer(uv_timer_t *t)
{
	loop_poll_allocation(t->data);
}

static void poll_done(uv_work_t *w, int status)
{
	struct poll_allocation *k = w->data;
	struct loop *l = k->loop;
	double poll_interval = l->o->allocation->ops->poll_interval(l->o->allocation);
	(void)status;
	l->pending_work--;
	l->polling = false;
	if (k->answer) {
		l->poll_failures = 0;
		struct run_event e = { .kind = EVENT_ALLOCATION, .value = k->answer };
		run_ctld_session_set_allocation(l->ctld_session, k->answer);
		l->on_event(l, &e);
	} else if (l->poll_failures++ == 0) {
		hspmd_warn("cannot poll the allocation: %s", k->err.text);
	}
	if (!k->answer && poll_interval <= 0)
		poll_interval = 1;
	for (int i = 0; i < l->poll_failures && poll_interval < 60; i++)
		poll_interval *= 2;
	if (l->poll_again && !l->stopping) {
		l->poll_again = false;
		loop_poll_allocation(l);
	} else if (poll_interval > 0 && !l->stopping) {
		uv_timer_start(&l->poll_timer, on_poll_timer, (uint64_t)(fmin(poll_interval, 60) * 1e3), 0);
	}
	json_decref(k->answer);
	free(k);
}

void loop_poll_allocation(struct loop *l)
{
	if (l->polling) {
		l->poll_again = true;
		return;
	}
	struct poll_allocation *k = calloc(1, sizeof *k);
	if (!k)
		return;
	l->polling = true;
	k->work.data = k;
	k->loop = l;
	l->pending_work++;
	uv_queue_work(&l->uv, &k->work, poll_work, poll_done);
}

/* ---- growing and shrinking */

struct resize {
	uv_work_t work;
	struct loop *loop;
	int64_t id;
	int grow, rc;
	char **nodes;
	int node_count;
	struct hspmd_error err;
};

static void resize_work(uv_work_t *w)
{
	struct resize *r = w->data;
	struct run_allocation *a = r->loop->o->allocation;
	r->rc = r->grow ? a->ops->grow(a, r->grow, (const char *const *)r->loop->agent_command, &r->err)
	                : a->ops->shrink(a, r->nodes, r->node_count, &r->err);
}

static void free_names(char **names, int count)
{
	for (int i = 0; i < count; i++)
		free(names[i]);
	free(names);
}

static void resize_done(uv_work_t *w, int status)
{
	struct resize *r = w->data;
	struct loop *l = r->loop;
	(void)status;
	l->pending_work--;
	struct run_event e = { .kind = EVENT_RESIZED, .id = r->id, .text = r->rc ? r->err.text : NULL };
	l->on_event(l, &e);
	free_names(r->nodes, r->node_count);
	free(r);
}

void loop_resize(struct loop *l, int64_t id, int grow, json_t *nodes)
{
	struct resize *r = calloc(1, sizeof *r);
	size_t n = json_array_size(nodes);
	if (r)
		r->nodes = hspmd_calloc(n + 1, sizeof *r->nodes);
	for (size_t i = 0; r && r->nodes && i < n; i++)
		if ((r->nodes[i] = strdup(json_string_value(json_array_get(nodes, i)))))
			r->node_count++;
	if (!r || !r->nodes || r->node_count < (int)n) {
		struct run_event e = { .kind = EVENT_RESIZED, .id = id, .text = "out of memory" };
		l->on_event(l, &e);
		if (r)
			free_names(r->nodes, r->node_count);
		free(r);
		return;
	}
	r->work.data = r;
	r->loop = l;
	r->id = id;
	r->grow = grow;
	l->pending_work++;
	uv_queue_work(&l->uv, &r->work, resize_work, resize_done);
}

struct cancel_grow {
	uv_work_t work;
	struct loop *loop;
};

static void cancel_grow_work(uv_work_t *w)
{
	struct cancel_grow *c = w->data;
	struct hspmd_error err;
	struct run_allocation *a = c->loop->o->allocation;
	if (a->ops->cancel_grow(a, &err))
		hspmd_warn("%s", err.text);
}

static void cancel_grow_done(uv_work_t *w, int status)
{
	struct cancel_grow *c = w->data;
	(void)status;
	c->loop->pending_work--;
	free(c);
}

void loop_cancel_grow(struct loop *l)
{
	struct cancel_grow *c = calloc(1, sizeof *c);
	if (!c) {
		hspmd_warn("out of memory: requested nodes may still come");
		return;
	}
	c->work.data = c;
	c->loop = l;
	l->pending_work++;
	uv_queue_work(&l->uv, &c->work, cancel_grow_work, cancel_grow_done);
}

/* ---- processes that start agents */

static void on_child_closed(uv_handle_t *h)
{
	struct child *c = h->data;
	struct child **at = &c->loop->children;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	free_names(c->nodes, c->count);
	free(c);
}

static bool connected(const struct loop *l, const char *node)
{
	for (const struct agent *a = l->agents; a; a = a->next)
		if ((a->peer || a->newcomer) && !strcmp(a->node, node))
			return true;
	return false;
}

/* Returns true if a newer process starts this node's agent: then the exit of the older one means nothing. */
static bool started_anew(const struct child *c, const char *node)
{
	for (const struct child *n = c->loop->children; n && n != c; n = n->next) /* newest first */
		for (int i = 0; n->running && i < n->count; i++)
			if (!strcmp(n->nodes[i], node))
				return true;
	return false;
}

static void on_child_exit(uv_process_t *p, int64_t status, int sig)
{
	struct child *c = p->data;
	char text[100];
	snprintf(text, sizeof text, sig ? "what started it was ended by signal %d" : "what started it ended with status %d",
	         sig ? sig : (int)status);
	c->running = false;
	for (int i = 0; i < c->count; i++)
		if (!connected(c->loop, c->nodes[i]) && !started_anew(c, c->nodes[i])) {
			struct run_event e = { .kind = EVENT_AGENT_LOST, .node = c->nodes[i], .text = text };
			c->loop->on_event(c->loop, &e);
		}
	uv_close((uv_handle_t *)p, on_child_closed);
}

/* Starts the agents of some of the nodes, moves these to the front, and sets *started to their number. */
static int spawn(struct loop *l, char **nodes, int left, int *started, struct hspmd_error *err)
{
	struct run_allocation *a = l->o->allocation;
	struct child *c = calloc(1, sizeof *c);
	int count = left;
	char **command = a->ops->start(a, nodes, &count, (const char *const *)l->agent_command, err);
	*started = count;
	uv_stdio_container_t io[3] = { { .flags = UV_IGNORE },
		                       { .flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO },
		                       { .flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO } };
	int rc = -1;
	if (c && command && (c->nodes = hspmd_calloc((size_t)count, sizeof *c->nodes))) {
		uv_process_options_t o = { .exit_cb = on_child_exit, .file = command[0], .args = command, .stdio_count = 3, .stdio = io };
		for (int i = 0; i < count; i++)
			if ((c->nodes[i] = strdup(nodes[i])))
				c->count++;
		c->loop = l;
		c->process.data = c;
		c->next = l->children;
		l->children = c;
		rc = uv_spawn(&l->uv, &c->process, &o);
		c->running = !rc;
		if (rc) {
			hspmd_fail(err, "starting %s: %s", command[0], uv_strerror(rc));
			uv_close((uv_handle_t *)&c->process, on_child_closed);
		}
	} else {
		free(c);
		if (command)
			hspmd_fail_memory(err, "starting agents");
	}
	free(command);
	return rc;
}

void loop_start_agents(struct loop *l)
{
	char **nodes = l->to_start;
	int count = (int)l->start_count;
	l->to_start = NULL;
	l->start_count = l->start_capacity = 0;
	for (int i = 0, step; i < count; i += step) {
		struct hspmd_error err = { "" };
		if (!spawn(l, nodes + i, count - i, &step, &err))
			continue;
		hspmd_error_log("%s", err.text);
		for (int k = i; k < i + step; k++) {
			struct run_event e = { .kind = EVENT_AGENT_LOST, .node = nodes[k], .text = err.text };
			l->on_event(l, &e);
		}
	}
	free_names(nodes, count);
}

void loop_end_children(struct loop *l, int sig)
{
	for (struct child *c = l->children; c; c = c->next)
		if (c->running)
			uv_process_kill(&c->process, sig);
}
