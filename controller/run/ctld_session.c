/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/ctld_session.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld_client/client.h"
#include "controller/ctld_client/protocol.h"
#include "controller/run/figures.h"
#include "controller/run/scaling.h"

#define SCALING_LIMIT_S 1.0 /* to solve for one size */
#define GROW_TIMEOUT_S 120
#define CLASSES_MAX 32

struct run_ctld_session {
	uv_loop_t *uv;
	struct ctld_client *client;
	uv_poll_t poll;
	uv_timer_t timer;
	uv_work_t work;
	int fd;      /* being polled; -1: none */
	int handles; /* open ones */
	bool polls, computing, closing;
	const struct hspmd_job *job;
	const struct hspmd_model_facts *facts;
	run_ctld_on_request *ask;
	run_ctld_on_risk *risk;
	void *context;
	/* what is reported to hspmdctld */
	int nodes;
	struct run_rate rate;
	double pause_s;
	int64_t step;
	struct run_figures figures;
	double curve[RUN_SCALING_MAX];
	int curve_count;
	struct run_node_class classes[CLASSES_MAX];
	int class_count;
	json_t *members; /* ids of the member jobs; NULL: unknown */
	json_t *types;   /* device types and classes of nodes of the curve */
	/* the computation of a curve that is under way */
	json_t *cluster, *latest; /* latest: a newer cluster, whose curve is computed next; NULL: none */
	double new_curve[RUN_SCALING_MAX];
	int new_count;
	struct run_node_class new_classes[CLASSES_MAX];
	int new_class_count;
	struct hspmd_error why;
	char last_error[HSPMD_ERROR_MAX]; /* the last that was logged */
};

static void advance(struct run_ctld_session *s);

/* ---- polling the connection */

static void maybe_free(struct run_ctld_session *s)
{
	if (!s->closing || s->handles || s->computing)
		return;
	ctld_client_destroy(s->client);
	json_decref(s->members);
	json_decref(s->types);
	json_decref(s->cluster);
	json_decref(s->latest);
	free(s);
}

static void on_closed(uv_handle_t *h)
{
	struct run_ctld_session *s = h->data;
	s->handles--;
	if (h == (uv_handle_t *)&s->poll) {
		s->polls = false;
		if (!s->closing)
			advance(s); /* the connection may have a new descriptor */
	}
	maybe_free(s);
}

static void on_poll(uv_poll_t *p, int status, int events)
{
	(void)status, (void)events;
	advance(p->data);
}

static void on_timer(uv_timer_t *t)
{
	advance(t->data);
}

static void unwatch(struct run_ctld_session *s)
{
	if (!s->polls || uv_is_closing((uv_handle_t *)&s->poll))
		return;
	uv_poll_stop(&s->poll);
	uv_close((uv_handle_t *)&s->poll, on_closed);
	s->fd = -1;
}

static void watch(struct run_ctld_session *s)
{
	int fd = ctld_client_fd(s->client);
	if (s->polls && fd != s->fd) {
		unwatch(s);
	} else if (!s->polls && fd >= 0 && uv_poll_init(s->uv, &s->poll, fd) == 0) {
		s->poll.data = s;
		s->polls = true;
		s->fd = fd;
		s->handles++;
	}
	if (s->polls && fd == s->fd && fd >= 0)
		uv_poll_start(&s->poll, UV_READABLE | (ctld_client_wants_write(s->client) ? UV_WRITABLE : 0), on_poll);
	double ms = ceil((ctld_client_next_deadline(s->client) - hspmd_now()) * 1e3);
	uv_timer_start(&s->timer, on_timer, ms < 1 ? 1 : ms > 60e3 ? 60000 : (uint64_t)ms, 0);
}

/* ---- requests and reports */

/* Makes the command that a user would send: by a number of nodes, or by names. */
static void forward_request(struct run_ctld_session *s, const json_t *ask)
{
	const char *command = json_string_value(json_object_get(ask, "command")),
	           *reason = json_string_value(json_object_get(ask, "reason"));
	json_t *names = json_object_get(ask, "names"), *request = NULL;
	int64_t id = json_integer_value(json_object_get(ask, "id"));
	if (command && !strcmp(command, "grow"))
		request = json_pack("{s:s, s:I, s:i}", "command", command, "by", json_integer_value(json_object_get(ask, "by")),
		                    "timeout_s", GROW_TIMEOUT_S);
	else if (command && !strcmp(command, "shrink") && json_array_size(names))
		request = json_pack("{s:s, s:O}", "command", command, "names", names);
	if (!request) {
		ctld_client_send_answer(s->client, id, false, "this was not understood");
		return;
	}
	hspmd_info("hspmdctld asks to %s: %s", command, reason ? reason : "");
	s->ask(s->context, id, request);
	json_decref(request);
}

static void send_state(struct run_ctld_session *s)
{
	json_t *curve = json_array(), *relative_speed = json_object();
	for (int i = 0; curve && i < s->curve_count; i++)
		json_array_append_new(curve, json_real(s->curve[i]));
	for (int i = 0; relative_speed && i < s->class_count; i++)
		if (*s->classes[i].node)
			json_object_set_new(relative_speed, s->classes[i].node, json_real(s->classes[i].relative_speed));
	json_t *state = json_pack("{s:i, s:i, s:s, s:i, s:f, s:f, s:I, s:o, s:o}", "min_nodes", s->job->elastic.min_nodes, "max_nodes",
	                          s->job->elastic.max_nodes, "policy", s->job->elastic.policy, "nodes", s->nodes, "tokens_per_s",
	                          run_rate_median(&s->rate), "pause_s", s->pause_s, "step", (json_int_t)s->step, "curve", curve,
	                          CTLD_KEY_RELATIVE_SPEED, relative_speed);
	if (state && json_array_size(s->members))
		json_object_set(state, "members", s->members);
	json_t *figures = state ? run_figures_json(&s->figures) : NULL;
	if (figures)
		json_object_set_new(state, "figures", figures);
	if (state)
		ctld_client_set_state(s->client, state);
	json_decref(state);
}

static void advance(struct run_ctld_session *s)
{
	if (s->closing)
		return;
	bool was_up = ctld_client_is_connected(s->client);
	send_state(s);
	ctld_client_process(s->client);
	const char *last_error = ctld_client_last_error(s->client);
	if (!was_up && ctld_client_is_connected(s->client))
		hspmd_info("connected to hspmdctld");
	else if (*last_error && strcmp(last_error, s->last_error) != 0)
		hspmd_warn("%s; trying again", last_error);
	memcpy(s->last_error, last_error, strlen(last_error) + 1);
	for (json_t *ask; !s->closing && (ask = ctld_client_next_request(s->client));) {
		forward_request(s, ask);
		json_decref(ask);
	}
	json_t *risk = s->closing ? NULL : ctld_client_next_risk(s->client);
	if (risk)
		s->risk(s->context, risk);
	json_decref(risk);
	if (!s->closing)
		watch(s);
}

void run_ctld_session_answer(struct run_ctld_session *s, int64_t id, const json_t *reply)
{
	const char *text = json_string_value(json_object_get(reply, "text"));
	if (!s || s->closing)
		return;
	ctld_client_send_answer(s->client, id, json_is_true(json_object_get(reply, "ok")), text);
	watch(s);
}

static void add_member(json_t *ids, const json_t *id)
{
	json_t *v;
	size_t i;
	json_array_foreach(ids, i, v)
		if (json_equal(v, id))
			return;
	if (json_is_integer(id) && json_array_size(ids) < CTLD_MEMBERS_MAX)
		json_array_append_new(ids, json_integer(json_integer_value(id)));
}

void run_ctld_session_set_allocation(struct run_ctld_session *s, const json_t *allocation)
{
	const char *node;
	json_t *v, *ids = s ? json_array() : NULL;
	size_t i;
	if (!ids)
		return;
	json_object_foreach(json_object_get(allocation, "members"), node, v)
		add_member(ids, v);
	json_array_foreach(json_object_get(allocation, "waiting"), i, v)
		add_member(ids, v);
	json_decref(s->members);
	s->members = ids;
}

void run_ctld_session_metrics_line(struct run_ctld_session *s, const json_t *line)
{
	const char *event = json_string_value(json_object_get(line, "event"));
	double step_s = json_number_value(json_object_get(line, "step_s"));
	if (!s)
		return;
	run_figures_metrics_line(&s->figures, line);
	if (event && !strcmp(event, "resize")) {
		s->pause_s = json_number_value(json_object_get(line, "pause_s"));
		run_rate_restart(&s->rate);
	} else if (step_s > 0) {
		run_rate_step(&s->rate, json_number_value(json_object_get(line, "tokens")) / step_s);
		s->nodes = (int)json_integer_value(json_object_get(line, "nodes"));
		s->step = json_integer_value(json_object_get(line, "step"));
	}
}

void run_ctld_session_event(struct run_ctld_session *s, const json_t *event)
{
	if (s)
		run_figures_event(&s->figures, event);
}

/* ---- the scaling curve */

static void compute_scaling(uv_work_t *w)
{
	struct run_ctld_session *s = w->data;
	s->new_class_count = run_relative_speeds(s->cluster, s->facts, s->job, SCALING_LIMIT_S, s->new_classes, CLASSES_MAX, &s->why);
	if (s->new_class_count < 0)
		return;
	int most = run_scaling_size(s->job->elastic.max_nodes, s->new_classes, s->new_class_count);
	s->new_count = run_scaling_curve(s->cluster, s->facts, s->job, SCALING_LIMIT_S, s->new_curve, most, &s->why);
}

static void scaling_done(uv_work_t *w, int status)
{
	struct run_ctld_session *s = w->data;
	(void)status;
	s->computing = false;
	if (s->new_class_count < 0 || s->new_count < 0) {
		hspmd_warn("cannot compute the scaling curve: %s", s->why.text);
	} else {
		memcpy(s->curve, s->new_curve, sizeof *s->curve * (size_t)s->new_count);
		s->curve_count = s->new_count;
		memcpy(s->classes, s->new_classes, sizeof *s->classes * (size_t)s->new_class_count);
		s->class_count = s->new_class_count;
	}
	json_t *latest = s->latest;
	s->latest = NULL;
	if (!s->closing) {
		advance(s);
		if (latest)
			run_ctld_session_set_cluster(s, latest);
	}
	json_decref(latest);
	maybe_free(s);
}

/* The inputs of the curve: device types, and the classes of nodes. */
static json_t *classes_of(const json_t *cluster)
{
	json_t *classes = json_array(), *entry;
	size_t i;
	json_array_append(classes, json_object_get(cluster, "device_types"));
	json_array_foreach(json_object_get(cluster, "nodes"), i, entry) {
		json_t *devices = json_object_get(entry, "devices");
		size_t k = 1;
		while (k < json_array_size(classes) && !json_equal(json_array_get(classes, k), devices))
			k++;
		if (k == json_array_size(classes))
			json_array_append(classes, devices);
	}
	return classes;
}

void run_ctld_session_set_cluster(struct run_ctld_session *s, const json_t *cluster)
{
	if (!s || !s->facts) /* a command's speed is known only for sizes that it has run on */
		return;
	if (s->computing) {
		json_decref(s->latest);
		s->latest = json_deep_copy(cluster);
		return;
	}
	json_t *types = classes_of(cluster);
	if (s->types && json_equal(s->types, types)) {
		json_decref(types);
		return;
	}
	json_decref(s->types);
	json_decref(s->cluster);
	s->types = json_deep_copy(types); /* threads must not share reference counts */
	s->cluster = json_deep_copy(cluster);
	json_decref(types);
	s->work.data = s;
	s->computing = s->cluster && uv_queue_work(s->uv, &s->work, compute_scaling, scaling_done) == 0;
}

/* ---- open and close */

struct run_ctld_session *run_ctld_session_open(uv_loop_t *uv, const char *where, const char *job_id, const struct hspmd_auth *auth,
                                               const struct hspmd_job *job, const struct hspmd_model_facts *facts, run_ctld_on_request *ask,
                                               run_ctld_on_risk *risk, void *context, struct hspmd_error *err)
{
	struct run_ctld_session *s = calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "preparing the connection to hspmdctld");
		return NULL;
	}
	*s = (struct run_ctld_session){
		.uv = uv, .fd = -1, .job = job, .facts = facts, .ask = ask, .risk = risk, .context = context, .pause_s = 5
	};
	run_figures_init(&s->figures);
	s->client = ctld_client_create(where, (uint32_t)strtoul(job_id, NULL, 10), auth, err);
	if (!s->client) {
		free(s);
		return NULL;
	}
	uv_timer_init(uv, &s->timer);
	s->timer.data = s;
	s->handles = 1;
	uv_timer_start(&s->timer, on_timer, 1, 0);
	return s;
}

void run_ctld_session_close(struct run_ctld_session *s)
{
	if (!s)
		return;
	s->closing = true;
	unwatch(s);
	uv_timer_stop(&s->timer);
	uv_close((uv_handle_t *)&s->timer, on_closed);
}
