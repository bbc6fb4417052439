/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/loop.h"

#include <math.h>
#include <search.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/clock_stops.h"
#include "common/log.h"
#include "common/order.h"
#include "controller/run/loop_internal.h"
#include "controller/run/peer_limits.h"

#define PROGRESS_EVERY_S 10
#define KILL_AFTER_MS 3000

static const int signals_taken[4] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 }; /* the first three end the job */

/* ---- actions */

static void forget_text(struct loop *l)
{
	json_decref(l->sent.body);
	free(l->sent.text);
	memset(&l->sent, 0, sizeof l->sent);
}

/* What a message has that its body lacks. NULL: out of memory. */
static json_t *own_keys(const struct run_action *x)
{
	json_t *own = json_object(), *v;
	const char *key;
	json_object_foreach(x->value, key, v)
		if (own && !json_object_get(x->body, key) && json_object_set(own, key, v)) {
			json_decref(own);
			own = NULL;
		}
	return own;
}

/* The text of what many agents are sent is made for the first of them. */
static int send_shared(struct loop *l, struct hspmd_peer *peer, const struct run_action *x, struct hspmd_error *err)
{
	char *frame;
	size_t size;
	if (l->sent.body != x->body) {
		forget_text(l);
		if (hspmd_wire_text_packed(x->body, &l->sent.text, &l->sent.size, err))
			return -1;
		l->sent.body = json_incref(x->body);
	}
	json_t *own = own_keys(x);
	int rc = own ? hspmd_wire_encode_with(l->sent.text, l->sent.size, own, &frame, &size, err)
	             : hspmd_fail_memory(err, "sending to an agent");
	json_decref(own);
	if (rc)
		return -1;
	rc = hspmd_peer_send_frame(peer, frame, size, err);
	free(frame);
	return rc;
}

static void send_to_agent(struct loop *l, const struct run_action *x)
{
	struct agent *a = loop_agent_of(l, x->node);
	struct hspmd_error err;
	if (!a || !a->peer || !(x->body ? send_shared(l, a->peer, x, &err) : hspmd_peer_send(a->peer, x->value, &err)))
		return;
	hspmd_peer_close(a->peer);
	a->peer = NULL;
	struct run_event e = { .kind = EVENT_AGENT_LOST, .node = x->node, .text = err.text };
	l->on_event(l, &e);
}

static void answer(struct loop *l, const struct run_action *x)
{
	for (struct command **at = &l->commands; *at; at = &(*at)->next) {
		struct command *c = *at;
		struct hspmd_error err;
		if (c->id != x->id)
			continue;
		if (!c->peer) {
			if (!x->last)
				return;
			run_ctld_session_answer(l->ctld_session, c->ctld_id, x->value);
			*at = c->next;
			free(c);
			return;
		}
		int rc = hspmd_peer_send(c->peer, x->value, &err);
		if (x->last || rc) {
			hspmd_peer_set_data(c->peer, NULL);
			hspmd_peer_drain(c->peer);
			*at = c->next;
			free(c);
		}
		return;
	}
}

/* Logs the progress now and then. */
static void log_progress(struct loop *l, const json_t *line)
{
	json_t *step = json_object_get(line, "step"), *loss = json_object_get(line, "loss");
	double now = hspmd_now();
	if (!json_is_number(loss) || now - l->progress_at < PROGRESS_EVERY_S)
		return;
	l->progress_at = now;
	if (l->o->config->job->command.argc)
		hspmd_info("step %lld, loss %.4f, %.3g s a step", (long long)json_integer_value(step), json_number_value(loss),
		           json_number_value(json_object_get(line, "step_s")));
	else
		hspmd_info("step %lld of %lld, loss %.4f, %.3g s a step", (long long)json_integer_value(step) + 1,
		           (long long)l->o->config->job->steps, json_number_value(loss),
		           json_number_value(json_object_get(line, "step_s")));
}

static void stop(struct loop *l, int status, const char *why)
{
	if (l->stopping)
		return;
	l->stopping = true;
	l->status = status;
	if (status)
		hspmd_error_log("%s", why);
	else
		hspmd_info("%s", why);
	loop_save_status(l, true);
	uv_stop(&l->uv);
}

static void queue_start(struct loop *l, const char *node)
{
	char *copy = strdup(node);
	if (!copy || hspmd_array_grow(&l->to_start, &l->start_capacity, l->start_count, sizeof *l->to_start)) {
		free(copy);
		return; /* the controller starts the agent again after a deadline */
	}
	l->to_start[l->start_count++] = copy;
}

static void perform(struct loop *l, const struct run_action *x)
{
	loop_write_output(l, x);
	switch (x->kind) {
	case ACTION_SEND:
		send_to_agent(l, x);
		break;
	case ACTION_SOLVE:
		loop_solve(l, x->id, x->value);
		run_ctld_session_set_cluster(l->ctld_session, json_object_get(x->value, "cluster"));
		break;
	case ACTION_CANCEL_SOLVE:
		loop_cancel_solve(l, x->id);
		break;
	case ACTION_METRICS_LINE:
		log_progress(l, x->value);
		run_ctld_session_metrics_line(l->ctld_session, x->value);
		loop_save_status(l, false);
		break;
	case ACTION_RECORD_EVENT:
		run_ctld_session_event(l->ctld_session, x->value);
		break;
	case ACTION_SAMPLE:
		loop_make_samples(l, x->id);
		break;
	case ACTION_LOG:
		hspmd_log((enum hspmd_log_level)x->id, "%s", x->text ? x->text : "");
		break;
	case ACTION_START_AGENT:
		queue_start(l, x->node);
		break;
	case ACTION_DISCONNECT_AGENT:
		loop_drop_agent(l, x->node);
		break;
	case ACTION_TURN_AWAY:
		loop_turn_away(l, x->node, x->text);
		break;
	case ACTION_REPLACE_AGENT:
		loop_replace_agent(l, x->node, x->text);
		break;
	case ACTION_POLL_SLURM:
		loop_poll_allocation(l);
		break;
	case ACTION_GROW:
		loop_resize(l, x->id, x->count, NULL);
		break;
	case ACTION_SHRINK:
		loop_resize(l, x->id, 0, x->value);
		break;
	case ACTION_CANCEL_GROW:
		loop_cancel_grow(l);
		break;
	case ACTION_REPLY:
		answer(l, x);
		break;
	case ACTION_EXIT:
		stop(l, x->count, x->text ? x->text : "ended");
		break;
	default: /* written */
		break;
	}
}

/* ---- events */

static void on_clock(uv_timer_t *t);

static void set_clock(struct loop *l)
{
	double next = hspmd_controller_deadline(l->controller);
	if (isinf(next)) {
		uv_timer_stop(&l->clock);
		return;
	}
	double ms = ceil((next - hspmd_now()) * 1e3);
	uv_update_time(&l->uv);
	uv_timer_start(&l->clock, on_clock, ms < 1 ? 1 : ms > 1e9 ? 1000000000 : (uint64_t)ms, 0);
}

static void handle_event(struct loop *l, struct run_event *e)
{
	struct run_actions actions = { 0 };
	e->now = hspmd_now();
	e->wall = hspmd_unix_time();
	int rc = hspmd_controller_handle(l->controller, e, &actions);
	for (size_t i = 0; i < actions.count; i++)
		perform(l, &actions.list[i]);
	run_actions_clear(&actions);
	forget_text(l);
	if (rc)
		stop(l, 1, "the job controller is out of memory");
	if (l->start_count && !l->stopping)
		loop_start_agents(l);
}

static void enqueue_event(struct loop *l, const struct run_event *e)
{
	struct pending *p = calloc(1, sizeof *p);
	if (!p) {
		stop(l, 1, "the job controller is out of memory");
		return;
	}
	p->event = *e;
	json_incref(p->event.value);
	p->event.node = p->node = e->node ? strdup(e->node) : NULL;
	p->event.text = p->text = e->text ? strdup(e->text) : NULL;
	*l->last = p;
	l->last = &p->next;
}

static void pending_free(struct pending *p)
{
	json_decref(p->event.value);
	free(p->node);
	free(p->text);
	free(p);
}

/* The processes of a job are suspended together, so the controller finds out by its own clock. */
static void enqueue_suspension(struct loop *l)
{
	double total = hspmd_clock_left_out();
	struct run_event e = { .kind = EVENT_WAS_SUSPENDED, .seconds = total - l->suspended_s };
	if (e.seconds >= 1)
		enqueue_event(l, &e);
	l->suspended_s = total;
}

static void handle_queued(struct loop *l)
{
	l->handling = true;
	while (l->first && !l->stopping) {
		struct pending *p = l->first;
		l->first = p->next;
		if (!l->first)
			l->last = &l->first;
		p->event.more = p->event.kind == EVENT_MESSAGE && l->first && l->first->event.kind == EVENT_MESSAGE;
		handle_event(l, &p->event);
		pending_free(p);
	}
	l->handling = false;
	if (!l->stopping)
		set_clock(l);
}

/* Events that occur while actions are carried out are queued. So are messages, until all that have arrived are read: what follows from them
 * is then decided once. In a large job that costs a look at every worker. */
static void loop_event(struct loop *l, const struct run_event *e)
{
	if (l->stopping)
		return;
	enqueue_suspension(l);
	enqueue_event(l, e);
	if (!l->handling && e->kind != EVENT_MESSAGE)
		handle_queued(l);
}

static void before_wait(uv_prepare_t *p)
{
	struct loop *l = p->data;
	if (l->first)
		handle_queued(l);
}

static void after_wait(uv_check_t *c)
{
	struct loop *l = c->data;
	if (l->first)
		handle_queued(l);
}

static void on_clock(uv_timer_t *t)
{
	struct run_event e = { .kind = EVENT_TICK };
	loop_event(t->data, &e);
}

/* As `hspmd checkpoint`; nobody waits for an answer. */
static void request_checkpoint(struct loop *l)
{
	json_t *request = json_pack("{s:s}", "command", "checkpoint");
	struct run_event e = { .kind = EVENT_COMMAND, .value = request };
	if (request)
		loop_event(l, &e);
	json_decref(request);
}

static void on_signal(uv_signal_t *s, int number)
{
	struct loop *l = s->data;
	if (number == SIGUSR1) {
		request_checkpoint(l);
		return;
	}
	struct run_event e = { .kind = EVENT_SHUTDOWN, .text = number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : "SIGHUP" };
	if (l->signals_seen++ && number == SIGINT)
		stop(l, 1, "interrupted twice: ended at once");
	else
		loop_event(l, &e);
}

/* ---- hspmdctld */

static void on_ctld_request(void *context, int64_t ctld_id, json_t *request)
{
	struct loop *l = context;
	struct command *c = calloc(1, sizeof *c);
	if (!c) {
		json_t *no = json_pack("{s:b, s:s}", "ok", 0, "text", "out of memory");
		run_ctld_session_answer(l->ctld_session, ctld_id, no);
		json_decref(no);
		return;
	}
	*c = (struct command){ .next = l->commands, .id = ++l->command_count, .ctld_id = ctld_id };
	l->commands = c;
	struct run_event e = { .kind = EVENT_COMMAND, .id = c->id, .value = request };
	loop_event(l, &e);
}

static void on_risk(void *context, json_t *risk)
{
	struct run_event e = { .kind = EVENT_RISK, .value = risk };
	loop_event(context, &e);
}

/* A job without hspmdctld trains, too. */
static void open_ctld_session(struct loop *l)
{
	struct hspmd_error err;
	const struct run_config *c = l->o->config;
	if (!l->o->ctld)
		return;
	l->ctld_session =
	        run_ctld_session_open(&l->uv, l->o->ctld, c->job_id, l->o->auth, c->job, l->o->facts, on_ctld_request, on_risk, l, &err);
	if (!l->ctld_session)
		hspmd_warn("this job is not reported to hspmdctld: %s", err.text);
}

/* ---- start and end */

static int open_all(struct loop *l, struct hspmd_error *err)
{
	l->last = &l->first;
	if (uv_loop_init(&l->uv))
		return hspmd_fail(err, "cannot make an event loop");
	uv_timer_t *timers[3] = { &l->clock, &l->poll_timer, &l->kill_timer };
	for (int i = 0; i < 3; i++) {
		uv_timer_init(&l->uv, timers[i]);
		timers[i]->data = l;
	}
	uv_prepare_init(&l->uv, &l->before_wait);
	uv_check_init(&l->uv, &l->after_wait);
	l->before_wait.data = l->after_wait.data = l;
	uv_prepare_start(&l->before_wait, before_wait);
	uv_check_start(&l->after_wait, after_wait);
	for (int i = 0; i < 4; i++) {
		uv_signal_init(&l->uv, &l->signals[i]);
		l->signals[i].data = l;
		uv_signal_start(&l->signals[i], on_signal, signals_taken[i]);
	}
	if (loop_open_output(l, err))
		return -1;
	l->controller = hspmd_controller_create(l->o->config, hspmd_now(), err);
	if (!l->controller || loop_open_server(l, err))
		return -1;
	return loop_publish_addresses(l, err);
}

static void on_kill(uv_timer_t *t)
{
	loop_end_children(t->data, SIGKILL);
}

static void close_all(struct loop *l)
{
	l->stopping = true;
	l->o->allocation->ops->end(l->o->allocation, l->status == 0);
	run_ctld_session_close(l->ctld_session);
	hspmd_server_close(l->server);
	loop_remove_contacts(l);
	loop_cancel_solve(l, 0);
	loop_end_samples(l, l->status != 0);
	loop_end_children(l, SIGTERM);
	if (l->children) {
		uv_timer_start(&l->kill_timer, on_kill, KILL_AFTER_MS, 0);
		uv_unref((uv_handle_t *)&l->kill_timer);
	}
	loop_end_output(l);
	uv_close((uv_handle_t *)&l->clock, NULL);
	uv_close((uv_handle_t *)&l->poll_timer, NULL);
	uv_close((uv_handle_t *)&l->before_wait, NULL);
	uv_close((uv_handle_t *)&l->after_wait, NULL);
	for (int i = 0; i < 4; i++)
		uv_close((uv_handle_t *)&l->signals[i], NULL);
	uv_run(&l->uv, UV_RUN_DEFAULT); /* until children have exited and work in other threads is done */
	if (loop_close_output(l) && !l->status)
		l->status = 1;
	uv_close((uv_handle_t *)&l->kill_timer, NULL);
	uv_run(&l->uv, UV_RUN_DEFAULT);
	uv_loop_close(&l->uv);
	while (l->first) {
		struct pending *p = l->first;
		l->first = p->next;
		pending_free(p);
	}
	while (l->agents) {
		struct agent *a = l->agents;
		tdelete(a, &l->agent_by_node, hspmd_name_order);
		l->agents = a->next;
		free(a->node);
		free(a->job);
		free(a);
	}
	while (l->commands) {
		struct command *c = l->commands;
		l->commands = c->next;
		free(c);
	}
	for (size_t i = 0; i < l->start_count; i++)
		free(l->to_start[i]);
	free(l->to_start);
	free(l->agent_command);
	hspmd_controller_destroy(l->controller);
}

int run_loop(const struct run_loop_options *o)
{
	struct loop l = { .o = o,
		          .on_event = loop_event,
		          .stop = stop,
		          .suspended_s = hspmd_clock_left_out(),
		          .compared.lock = PTHREAD_MUTEX_INITIALIZER };
	struct hspmd_error err = { "" };
	signal(SIGPIPE, SIG_IGN);
	hspmd_clock_leave_out_stops();
	if (open_all(&l, &err)) {
		hspmd_error_log("%s", err.text);
		l.status = 1;
	} else {
		open_ctld_session(&l);
		loop_poll_allocation(&l);
		uv_run(&l.uv, UV_RUN_DEFAULT);
	}
	close_all(&l);
	return l.status;
}
