/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/worker/worker.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base64.h"
#include "common/clock.h"
#include "common/format/device_traits.h"
#include "common/format/workspace_limit.h"
#include "common/log.h"
#include "runtime/generation/member_moves.h"
#include "runtime/model/model.h"
#include "runtime/model/own.h"
#include "runtime/worker/inbox.h"
#include "runtime/worker/worker_internal.h"

/* ---- setting up */

static int set_up(struct worker *w, json_t *m, struct hspmd_error *err)
{
	struct hspmd_worker_setup *s = &w->setup;
	const char *device = hspmd_device_name_of_cores(), *node = NULL, *address = NULL, *output = NULL, *transport = NULL, *memory = NULL;
	int threads = 1, index = 0;
	double timeout = 60;
	json_t *job, *model;
	if (s->job)
		return hspmd_fail(err, "a second job message");
	if (json_unpack(m, "{so,so,ss,ss,ss,s?i,s?s,s?s,s?i,s?F,s?s}", "job", &job, "model", &model, "output", &output, "node", &node,
	                "device", &address, "threads", &threads, "transport", &transport, "kind", &device, "index", &index, "timeout_s",
	                &timeout, "memory", &memory))
		return hspmd_fail(err, "job: job, model, output, node or device is missing");
	const char *file = json_string_value(json_object_get(m, "file"));
	s->job = hspmd_job_from_json(job, file ? file : "job.json", NULL, err);
	s->model = s->job ? hspmd_model_from_json(model, s->job->model_path, err) : NULL;
	if (!s->model)
		return -1;
	s->source = hspmd_graph_source_job(s->model, s->job);
	if (hspmd_model_is_own(s->model) && worker_load_model(w, json_string_value(json_object_get(m, "object")), err))
		return hspmd_error_prefix(err, "%s", s->job->model_path);
	s->address = strdup(address);
	s->node = strdup(node);
	s->output = strdup(output);
	s->transport = transport ? strdup(transport) : NULL;
	s->memory = memory ? strdup(memory) : NULL;
	s->timeout_s = timeout;
	if (!s->address || !s->node || !s->output || (memory && !s->memory))
		return hspmd_fail_memory(err, "starting the worker");
	char name[96];
	snprintf(name, sizeof name, "hspmd worker %s", address);
	hspmd_log_name(name);
	const struct hspmd_device_ops *ops = hspmd_device_find(device, err);
	if (!ops || ops->open(&s->device, index, threads, err))
		return -1;
	if (ops->communicators && !(s->communicators = hspmd_communicator_cache_create()))
		return hspmd_fail_memory(err, "starting the worker");
	return worker_open_data(w, err);
}

static void tear_down(struct worker *w)
{
	struct hspmd_worker_setup *s = &w->setup;
	worker_close_data(w);
	hspmd_communicator_cache_destroy(s->communicators);
	if (s->device)
		s->device->ops->close(s->device);
	hspmd_model_destroy(s->model);
	hspmd_job_destroy(s->job);
	free(s->address);
	free(s->node);
	free(s->output);
	free(s->transport);
	free(s->memory);
}

/* ---- preparing, in a separate thread so that the current generation trains on */

struct preparation {
	struct worker *w;
	json_t *message;        /* lent */
	int64_t reserved_bytes; /* device memory that the current generation uses */
};

static void *prepare(void *argument)
{
	struct preparation *p = argument;
	struct worker *w = p->w;
	struct hspmd_error err = { "" };
	double then = hspmd_now();
	int number = (int)json_integer_value(json_object_get(p->message, "generation"));
	const json_t *choices = json_object_get(json_object_get(p->message, "plan"), "choices");
	struct hspmd_generation *g =
	        worker_take_choices(w, choices, &err) ? NULL : hspmd_generation_prepare(&w->setup, p->message, p->reserved_bytes, &err);
	if (g) {
		worker_trace_change(w, g, "prepare", then);
		double prepared = hspmd_now();
		hspmd_member_moves_expect(g, json_object_get(p->message, "live"));
		worker_trace_change(w, g, "plan moves", prepared);
		char *address = hspmd_base64_encode(g->own_address.data, g->own_address.size);
		pthread_mutex_lock(&w->lock);
		w->next = g;
		pthread_mutex_unlock(&w->lock);
		hspmd_inbox_send(w->inbox, json_pack("{ss,si,ss,sI,sf,so*,so*}", "type", "prepared", "generation", number, "address",
		                                     address ? address : "", "memory_bytes", (json_int_t)hspmd_generation_memory(g),
		                                     "seconds", hspmd_now() - then, "needs_preconnect",
		                                     hspmd_generation_needs_preconnect(g) ? json_true() : NULL, "choices",
		                                     worker_new_choices(w, choices, g->program->workspace_most)));
		free(address);
	} else {
		worker_fault(w, number, &err);
	}
	free(p);
	return NULL;
}

static void end_preparation(struct worker *w)
{
	if (w->preparing)
		pthread_join(w->preparer, NULL);
	w->preparing = false;
	json_decref(w->lent);
	w->lent = NULL;
}

/* The next generation is not needed any more. */
static void cancel_preparation(struct worker *w)
{
	pthread_mutex_lock(&w->lock);
	if (w->next)
		atomic_store(&w->next->abort, 1); /* it may be exchanging addresses */
	pthread_mutex_unlock(&w->lock);
	end_preparation(w);
}

static void drop_next(struct worker *w)
{
	cancel_preparation(w);
	pthread_mutex_lock(&w->lock);
	struct hspmd_generation *g = w->next;
	w->next = NULL;
	w->preconnecting = false;
	pthread_mutex_unlock(&w->lock);
	hspmd_generation_destroy(g);
}

static int start_preparation(struct worker *w, json_t *m, struct hspmd_error *err)
{
	if (!w->setup.job)
		return hspmd_fail(err, "prepare before job");
	drop_next(w);
	struct preparation *p = calloc(1, sizeof *p);
	if (!p)
		return hspmd_fail_memory(err, "preparing a generation");
	*p = (struct preparation){ w, m, w->active ? hspmd_generation_peak_bytes(w->active) : 0 };
	if (pthread_create(&w->preparer, NULL, prepare, p)) {
		free(p);
		return hspmd_fail(err, "cannot start a thread to prepare a generation");
	}
	w->preparing = true;
	w->lent = json_incref(m);
	return 0;
}

/* ---- what is connected while the current generation trains: addresses are exchanged in a thread, as others may not answer before they
 * have made a step with this worker; then device-to-device connections begin to be built */

struct exchange {
	struct worker *w;
	struct hspmd_generation *next;
	json_t *addresses; /* lent */
};

static void *exchange(void *argument)
{
	struct exchange *x = argument;
	struct worker *w = x->w;
	double then = hspmd_now();
	int failed = hspmd_generation_learn_addresses(x->next, x->addresses, &w->exchange_error);
	worker_trace_change(w, x->next, "exchange addresses", then);
	atomic_store(&w->exchanged, failed ? -1 : 1);
	free(x);
	return NULL;
}

static int start_exchange(struct worker *w, json_t *addresses, struct hspmd_error *err)
{
	struct exchange *x = malloc(sizeof *x);
	if (!x)
		return hspmd_fail_memory(err, "exchanging addresses");
	*x = (struct exchange){ w, w->next, addresses };
	atomic_store(&w->exchanged, 0);
	if (pthread_create(&w->preparer, NULL, exchange, x)) {
		free(x);
		return hspmd_fail(err, "cannot start a thread to exchange addresses");
	}
	w->preparing = true;
	w->lent = json_incref(addresses);
	w->connecting = false;
	return 0;
}

static int preconnect(struct worker *w, json_t *m, struct hspmd_error *err)
{
	int number = (int)json_integer_value(json_object_get(m, "generation"));
	end_preparation(w);
	if (!w->next || w->next->number != number)
		return hspmd_fail(err, "preconnect of generation %d, which is not prepared", number);
	w->preconnecting = !start_exchange(w, json_object_get(m, "addresses"), err);
	if (!w->preconnecting)
		return -1;
	/* A worker that trains checks after every step. */
	double until = hspmd_now() + w->setup.timeout_s;
	while (!w->training && w->preconnecting && !atomic_load(&w->next->abort) && hspmd_now() < until) {
		if (worker_report_preconnected(w))
			return hspmd_fail(err, "the controller cannot be reached");
		if (w->preconnecting)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	return 0;
}

/* ---- starting */

/* Succeeds when all members have loaded; until then no member may free the old state. */
static int all_loaded(struct hspmd_generation *g, struct hspmd_error *err)
{
	double one = 1;
	return g->transport ? hspmd_transport_all_reduce_f64(g->transport, LOADED_TAG, &one, 1, err) : 0;
}

/* A plan may use all of the device memory. Then two generations do not fit, and the old state is spilled. disk: folder to spill to if
 * that is the only place; may be NULL. */
static int take_memory(struct worker *w, struct hspmd_generation *g, struct hspmd_generation *old, const char *disk,
                       struct hspmd_error *err)
{
	struct hspmd_error no = { "" };
	bool fits = hspmd_generation_fits(g, old);
	if (fits && !hspmd_generation_allocate(g, old, err))
		return 0;
	if (!old)
		return -1;
	bool spilled = !worker_before_update(w, &no) && !hspmd_generation_spill(old, disk, &no);
	if (spilled)
		hspmd_info("no memory for two plans (%s): the state is spilled %s", fits ? err->text : "the device's memory_bytes",
		           w->setup.device->ops->host_memory ? "on disk" : "in host memory");
	else if (!fits)
		hspmd_warn("two plans' state at once is more than the device's memory_bytes: %s", no.text);
	return spilled || !fits ? hspmd_generation_allocate(g, old, err) : -1;
}

/* `state` of `start`, with what the first member was sent for all in a `stored` message. New reference; NULL and err. */
static json_t *whole_state(struct worker *w, struct hspmd_generation *g, json_t *state, struct hspmd_error *err)
{
	if (!json_is_true(json_object_get(state, "stored")))
		return json_incref(state);
	json_t *stored = hspmd_generation_pass_down(g, w->stored_generation == g->number ? w->stored : NULL, err), *all = json_copy(state);
	bool whole = stored && all && !json_object_update(all, stored) && !json_object_del(all, "stored");
	if (!stored)
		hspmd_error_prefix(err, "what is stored of the state");
	else if (!whole)
		hspmd_fail_memory(err, "starting");
	json_decref(stored);
	json_decref(w->stored);
	w->stored = NULL;
	if (whole)
		return all;
	json_decref(all);
	return NULL;
}

/* Make the prepared generation the active one. On failure the old generation, if any, stays as it was. */
static int start(struct worker *w, json_t *m, struct hspmd_error *err)
{
	int number = (int)json_integer_value(json_object_get(m, "generation"));
	end_preparation(w);
	w->preconnecting = false;
	struct hspmd_generation *g = w->next, *old = w->active;
	if (w->training)
		return hspmd_fail(err, "start of generation %d while generation %d trains", number, old->number);
	if (!g || g->number != number)
		return hspmd_fail(err, "start of generation %d, which is not prepared", number);
	struct hspmd_load_report report;
	json_t *state = json_object_get(m, "state"), *step = json_object_get(m, "step");
	double then = hspmd_now();
	hspmd_generation_limit_workspace(g, hspmd_workspace_limit_of(json_object_get(m, "choices")));
	if (worker_take_choices(w, json_object_get(m, "choices"), err) ||
	    hspmd_generation_learn_addresses(g, json_object_get(m, "addresses"), err) || hspmd_generation_connect(g, err))
		return -1;
	worker_trace_change(w, g, "connect", then);
	double connected = hspmd_now();
	if (take_memory(w, g, old, json_string_value(json_object_get(state, "local")), err))
		return -1;
	worker_trace_change(w, g, "take memory", connected);
	double ready = hspmd_now();
	if (!(state = whole_state(w, g, state, err)))
		return -1;
	int failed = hspmd_generation_load(g, old, state, json_integer_value(step), &report, err);
	json_decref(state);
	worker_trace_change(w, g, "move state", ready);
	double loaded = hspmd_now();
	w->unreadable = report.unreadable;
	if (failed || all_loaded(g, err))
		return -1;
	worker_trace_change(w, g, "wait for the others", loaded);
	if (worker_before_update(w, err)) /* an image of the old state may still be being copied */
		return -1;
	w->step = json_integer_value(step);
	if (g->persistent)
		hspmd_persistent_begin(g->persistent, w->step);
	pthread_mutex_lock(&w->lock);
	w->active = g;
	w->next = NULL;
	pthread_mutex_unlock(&w->lock);
	worker_detach(w, old);
	hspmd_generation_destroy(old);
	w->ready = w->applied = -1;
	w->busy_s = 0;
	w->busy_steps = 0;
	w->plan_busy_s = 0;
	w->plan_steps = 0;
	atomic_store(&w->stop, 0);
	return hspmd_inbox_send(w->inbox,
	                        json_pack("{ss,si,sI,s{sI,sI,sI,sI},s{sf,sf,sf}}", "type", "started", "generation", number, "step",
	                                  (json_int_t)w->step, "bytes", "local", (json_int_t)report.local, "peers",
	                                  (json_int_t)report.peers, "disk", (json_int_t)report.disk, "shared", (json_int_t)report.shared,
	                                  "seconds", "connect", ready - then, "move", report.move_s, "plan", report.plan_s));
}

/* ---- unplanned ends */

/* Take over the state that the previous process of this device had when it was killed. */
static void revive(struct worker *w)
{
	struct hspmd_error err = { "" };
	double sums[HSPMD_PERSISTENT_TOTALS];
	struct hspmd_generation *g = w->setup.job ? hspmd_generation_revive(&w->setup, &err) : NULL;
	if (!g) {
		hspmd_warn("no state of the previous worker: %s", w->setup.job ? err.text : "there is no job yet");
		return;
	}
	w->step = hspmd_persistent_step(g->persistent);
	w->ready = hspmd_persistent_is_ready(g->persistent) ? w->step : -1;
	for (int64_t s = w->step > RECENT ? w->step - RECENT : 0; s < w->step; s++)
		if (hspmd_persistent_totals(g->persistent, s, sums)) {
			memcpy(&w->totals, sums, sizeof w->totals);
			w->recent_step[s % RECENT] = w->applied = s;
			w->recent_loss[s % RECENT] = w->totals.loss;
		}
	pthread_mutex_lock(&w->lock);
	w->active = g;
	pthread_mutex_unlock(&w->lock);
}

static int abort_generation(struct worker *w, json_t *m)
{
	int number = (int)json_integer_value(json_object_get(m, "generation"));
	const struct hspmd_device *dev = w->setup.device;
	struct hspmd_error err = { "" };
	/* To answer would be to claim a state that cannot be read: this worker is lost, and another process may find the device well. */
	if (dev && dev->ops->check && dev->ops->check(w->setup.device, &err)) {
		hspmd_error_log("the device has failed and with it this worker's part of the state is lost: %s", err.text);
		return -1;
	}
	if (w->active && w->active->executor && hspmd_executor_is_torn(w->active->executor)) {
		hspmd_error_log("an update has failed halfway, and with it this worker's part of the state is lost");
		return -1;
	}
	if (json_is_true(json_object_get(m, "revive")) && !w->active)
		revive(w);
	if (w->next && w->next->number == number)
		drop_next(w);
	if (w->active && w->active->number == number) {
		worker_detach(w, w->active);
		hspmd_generation_disconnect(w->active);
		worker_trace_disconnected(w, w->active);
	}
	json_t *answer = worker_state_report(w, "aborted", number);
	if (!answer)
		return -1;
	/* The generation whose part of the state this worker has: the previous one, if the new one was aborted before all members had
	 * loaded. */
	json_object_set_new(answer, "holds", w->active ? json_integer(w->active->number) : json_null());
	json_object_set_new(answer, "ready", w->ready >= 0 ? json_integer(w->ready) : json_null());
	json_object_set_new(answer, "applied", w->applied >= 0 ? json_integer(w->applied) : json_null());
	json_object_set_new(answer, "sums",
	                    w->applied >= 0
	                            ? json_pack("[o,o]", worker_number_or_null(w->totals.square_sum), worker_number_or_null(w->totals.loss))
	                            : json_null());
	return hspmd_inbox_send(w->inbox, answer);
}

/* Answers a restarted controller, which queries the workers' state. A worker that the previous controller told to stop does not train
 * on. */
static int report_state(struct worker *w, int number)
{
	json_t *answer = worker_state_report(w, "query_reply", number);
	if (!answer)
		return -1;
	json_object_set_new(answer, "holds", w->active ? json_integer(w->active->number) : json_null());
	json_object_set_new(answer, "training",
	                    json_boolean(w->training && w->active && w->active->number == number && atomic_load(&w->stop) != number));
	return hspmd_inbox_send(w->inbox, answer);
}

static double number_or_nan(const json_t *x)
{
	return json_is_number(x) ? json_number_value(x) : NAN;
}

/* The controller has answers from all survivors: the step in doubt took place for all or for none of them. A worker that cannot follow
 * shows it by the step that it reports. */
static int settle(struct worker *w, json_t *m)
{
	int number = (int)json_integer_value(json_object_get(m, "generation"));
	json_t *apply = json_object_get(m, "apply"), *sums = json_object_get(m, "sums");
	struct hspmd_error err;
	if (json_is_integer(apply) && w->active && w->ready == json_integer_value(apply) && w->ready == w->step) {
		struct hspmd_totals all = {
			.square_sum = number_or_nan(json_array_get(sums, 0)),
			.loss = number_or_nan(json_array_get(sums, 1)),
		};
		if (worker_before_update(w, &err) || hspmd_executor_commit(w->active->executor, w->step, &all, &err)) {
			if (worker_fault(w, number, &err))
				return -1;
		} else {
			worker_remember_step(w, &all);
		}
	}
	worker_set_ready(w, false);
	return hspmd_inbox_send(w->inbox, worker_state_report(w, "settled", number));
}

/* ---- messages */

/* In the reading thread: handles messages that must reach a running step at once. */
static void receive_at_once(void *context, json_t *m)
{
	struct worker *w = context;
	const char *type = json_string_value(json_object_get(m, "type"));
	int number = (int)json_integer_value(json_object_get(m, "generation"));
	bool lost = type && !strcmp(type, "lost");
	if (!type)
		return;
	if (!strcmp(type, "stop"))
		atomic_store(&w->stop, number);
	if (!strcmp(type, "trace"))
		worker_trace_order(w, m);
	if (!strcmp(type, "checkpoint"))
		worker_request_checkpoint(w, m);
	if (!strcmp(type, "query")) /* by another controller, which did not ask what the one before did */
		worker_forget_checkpoint(w);
	if (strcmp(type, "abort") && !lost)
		return;
	pthread_mutex_lock(&w->lock);
	if (w->active && (lost || w->active->number == number))
		atomic_store(&w->active->abort, 1);
	if (w->next && (lost || w->next->number == number))
		atomic_store(&w->next->abort, 1);
	pthread_mutex_unlock(&w->lock);
}

/* 0, or -1: the worker cannot continue. */
static int handle(struct worker *w, json_t *m)
{
	const char *type = json_string_value(json_object_get(m, "type"));
	int number = (int)json_integer_value(json_object_get(m, "generation"));
	struct hspmd_error err = { "" };
	if (!type)
		return 0;
	if (!strcmp(type, "quit")) {
		w->quit = true;
		return 0;
	}
	if (!strcmp(type, "job"))
		return set_up(w, m, &err) ? worker_fault(w, 0, &err) : 0;
	if (!strcmp(type, "prepare"))
		return start_preparation(w, m, &err) ? worker_fault(w, number, &err) : 0;
	if (!strcmp(type, "preconnect"))
		return preconnect(w, m, &err) ? worker_fault(w, number, &err) : 0;
	if (!strcmp(type, "stored")) {
		json_decref(w->stored);
		w->stored = json_incref(json_object_get(m, "state"));
		w->stored_generation = number;
		return 0;
	}
	if (!strcmp(type, "start"))
		return start(w, m, &err) ? worker_fault(w, number, &err) : worker_train(w);
	if (!strcmp(type, "query"))
		return report_state(w, number);
	if (!strcmp(type, "abort"))
		return abort_generation(w, m);
	if (!strcmp(type, "settle"))
		return settle(w, m);
	if (!strcmp(type, "stop")) /* a running step has already received it; otherwise it arrived when none was running */
		return !w->training && w->active && w->active->number == number && w->stopped != number ? worker_report_stopped(w, number)
		                                                                                        : 0;
	if (!strcmp(type, "trace")) /* the reading thread has noted it */
		return 0;
	return worker_handle_checkpoint(w, type, m);
}

int hspmd_worker_main(int control)
{
	struct worker w = { .handle = handle, .lock = PTHREAD_MUTEX_INITIALIZER, .ready = -1, .applied = -1, .stopped = -1 };
	struct hspmd_error err;
	int status = 0;
	for (int i = 0; i < RECENT; i++)
		w.recent_step[i] = -1;
	w.inbox = worker_trace_create(&w, &err) ? NULL : hspmd_inbox_open(control, receive_at_once, &w, &err);
	if (!w.inbox) {
		worker_trace_destroy(&w);
		hspmd_error_log("%s", err.text);
		return 1;
	}
	hspmd_inbox_send(w.inbox, json_pack("{ss,si}", "type", "hello", "pid", (int)getpid()));
	while (!status && !w.quit) {
		json_t *m = hspmd_inbox_next(w.inbox, true);
		if (!m)
			break;
		status = handle(&w, m);
		json_decref(m);
	}
	if (!w.quit)
		hspmd_error_log("the agent is gone; ending");
	cancel_preparation(&w);
	worker_detach(&w, w.active);
	worker_end_checkpoints(&w);
	if (w.quit && w.active && atomic_load(&w.traced)) {
		hspmd_generation_disconnect(w.active);
		worker_trace_disconnected(&w, w.active);
	}
	if (w.quit)
		worker_trace_end(&w);
	hspmd_inbox_close(w.inbox);
	worker_trace_destroy(&w);
	json_decref(w.stored);
	hspmd_generation_destroy(w.next);
	if (w.quit)
		hspmd_generation_destroy(w.active);
	else
		hspmd_generation_detach(w.active);
	tear_down(&w);
	return w.quit && !status ? 0 : 1;
}
