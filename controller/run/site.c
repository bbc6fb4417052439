/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/site.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld/link.h"
#include "controller/ctld/protocol.h"
#include "controller/run/gain.h"

#define GAIN_LIMIT_S 1.0   /* to solve for one size */
#define SETTLED_STEPS 5    /* after a change the first steps are slow: a rate counts from the fifth on */
#define GROW_PATIENCE_S 120
#define KINDS_MAX 32

struct run_site {
	uv_loop_t *uv;
	struct ctld_link *link;
	uv_poll_t poll;
	uv_timer_t timer;
	uv_work_t work;
	int fd;            /* that is watched; -1 */
	int handles;       /* open */
	bool polls, reckoning, closing;
	const struct hspmd_job *job;
	const struct hspmd_model *model;
	run_site_ask *ask;
	run_site_risk *risk;
	void *context;
	/* what is told */
	int nodes, steps;
	double rate, pause_s;
	int64_t step;
	double curve[RUN_GAIN_MAX];
	int curve_count;
	struct run_gain_kind kinds[KINDS_MAX];
	int kind_count;
	json_t *members;   /* their jobs' ids; NULL: none were told of */
	json_t *types;     /* the curve was reckoned for, with the kinds of nodes */
	/* of the reckoning under way */
	json_t *cluster;
	double new_curve[RUN_GAIN_MAX];
	int new_count;
	struct run_gain_kind new_kinds[KINDS_MAX];
	int new_kind_count;
	struct hspmd_error why;
	char trouble[HSPMD_ERROR_MAX]; /* last told */
};

static void turn(struct run_site *s);

/* ---- watching the line */

static void maybe_free(struct run_site *s)
{
	if (!s->closing || s->handles || s->reckoning)
		return;
	ctld_link_destroy(s->link);
	json_decref(s->members);
	json_decref(s->types);
	json_decref(s->cluster);
	free(s);
}

static void on_closed(uv_handle_t *h)
{
	struct run_site *s = h->data;
	s->handles--;
	if (h == (uv_handle_t *)&s->poll) {
		s->polls = false;
		if (!s->closing)
			turn(s); /* the line may have a new descriptor by now */
	}
	maybe_free(s);
}

static void on_poll(uv_poll_t *p, int status, int events)
{
	(void)status, (void)events;
	turn(p->data);
}

static void on_timer(uv_timer_t *t)
{
	turn(t->data);
}

static void unwatch(struct run_site *s)
{
	if (!s->polls || uv_is_closing((uv_handle_t *)&s->poll))
		return;
	uv_poll_stop(&s->poll);
	uv_close((uv_handle_t *)&s->poll, on_closed);
	s->fd = -1;
}

static void watch(struct run_site *s)
{
	int fd = ctld_link_fd(s->link);
	if (s->polls && fd != s->fd) {
		unwatch(s);
	} else if (!s->polls && fd >= 0 && uv_poll_init(s->uv, &s->poll, fd) == 0) {
		s->poll.data = s;
		s->polls = true;
		s->fd = fd;
		s->handles++;
	}
	if (s->polls && fd == s->fd && fd >= 0)
		uv_poll_start(&s->poll, UV_READABLE | (ctld_link_writes(s->link) ? UV_WRITABLE : 0), on_poll);
	double ms = ceil((ctld_link_deadline(s->link) - hspmd_now()) * 1e3);
	uv_timer_start(&s->timer, on_timer, ms < 1 ? 1 : ms > 60e3 ? 60000 : (uint64_t)ms, 0);
}

/* ---- what is asked, and what is told */

/* As a user would ask: by how many, or which. */
static void hand_over(struct run_site *s, const json_t *ask)
{
	const char *command = json_string_value(json_object_get(ask, "command")),
	           *reason = json_string_value(json_object_get(ask, "reason"));
	json_t *names = json_object_get(ask, "names"), *request = NULL;
	int64_t id = json_integer_value(json_object_get(ask, "id"));
	if (command && !strcmp(command, "grow"))
		request = json_pack("{s:s, s:I, s:i}", "command", command, "by", json_integer_value(json_object_get(ask, "by")),
		                    "timeout_s", GROW_PATIENCE_S);
	else if (command && !strcmp(command, "shrink") && json_array_size(names))
		request = json_pack("{s:s, s:O}", "command", command, "names", names);
	if (!request) {
		ctld_link_answer(s->link, id, false, "this was not understood");
		return;
	}
	hspmd_info("hspmdctld asks to %s: %s", command, reason ? reason : "");
	s->ask(s->context, id, request);
	json_decref(request);
}

static void say(struct run_site *s)
{
	json_t *curve = json_array(), *worth = json_object();
	for (int i = 0; curve && i < s->curve_count; i++)
		json_array_append_new(curve, json_real(s->curve[i]));
	for (int i = 0; worth && i < s->kind_count; i++)
		if (*s->kinds[i].node)
			json_object_set_new(worth, s->kinds[i].node, json_real(s->kinds[i].worth));
	bool settled = s->steps >= SETTLED_STEPS;
	json_t *state = json_pack("{s:i, s:i, s:s, s:i, s:f, s:f, s:I, s:o, s:o}", "min_nodes", s->job->elastic.min_nodes, "max_nodes",
	                          s->job->elastic.max_nodes, "policy", s->job->elastic.policy, "nodes", s->nodes, "tokens_per_s",
	                          settled ? s->rate : 0.0, "pause_s", s->pause_s, "step", (json_int_t)s->step, "curve", curve, "worth", worth);
	if (state && json_array_size(s->members))
		json_object_set(state, "members", s->members);
	if (state)
		ctld_link_state(s->link, state);
	json_decref(state);
}

static void turn(struct run_site *s)
{
	if (s->closing)
		return;
	bool was_up = ctld_link_up(s->link);
	say(s);
	ctld_link_run(s->link);
	const char *trouble = ctld_link_trouble(s->link);
	if (!was_up && ctld_link_up(s->link))
		hspmd_info("hspmdctld listens");
	else if (*trouble && strcmp(trouble, s->trouble) != 0)
		hspmd_warn("%s; trying again", trouble);
	memcpy(s->trouble, trouble, strlen(trouble) + 1);
	for (json_t *ask; !s->closing && (ask = ctld_link_take(s->link));) {
		hand_over(s, ask);
		json_decref(ask);
	}
	json_t *risk = s->closing ? NULL : ctld_link_risk(s->link);
	if (risk)
		s->risk(s->context, risk);
	json_decref(risk);
	if (!s->closing)
		watch(s);
}

void run_site_answer(struct run_site *s, int64_t id, const json_t *reply)
{
	const char *text = json_string_value(json_object_get(reply, "text"));
	if (!s || s->closing)
		return;
	ctld_link_answer(s->link, id, json_is_true(json_object_get(reply, "ok")), text);
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

void run_site_allocation(struct run_site *s, const json_t *allocation)
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

void run_site_line(struct run_site *s, const json_t *line)
{
	const char *event = json_string_value(json_object_get(line, "event"));
	double step_s = json_number_value(json_object_get(line, "step_s"));
	if (!s)
		return;
	if (event && !strcmp(event, "resize")) {
		s->pause_s = json_number_value(json_object_get(line, "pause_s"));
		s->steps = 0;
	} else if (step_s > 0) {
		double rate = json_number_value(json_object_get(line, "tokens")) / step_s;
		s->rate = ++s->steps <= SETTLED_STEPS ? rate : 0.9 * s->rate + 0.1 * rate;
		s->nodes = (int)json_integer_value(json_object_get(line, "nodes"));
		s->step = json_integer_value(json_object_get(line, "step"));
	}
}

/* ---- gains */

static void reckon(uv_work_t *w)
{
	struct run_site *s = w->data;
	int most = s->job->elastic.max_nodes < RUN_GAIN_MAX ? s->job->elastic.max_nodes : RUN_GAIN_MAX;
	s->new_count = run_gain_curve(s->cluster, s->model, s->job, GAIN_LIMIT_S, s->new_curve, most, &s->why);
	s->new_kind_count = s->new_count < 0 ? -1 : run_gain_kinds(s->cluster, s->model, s->job, GAIN_LIMIT_S, s->new_kinds, KINDS_MAX, &s->why);
}

static void reckoned(uv_work_t *w, int status)
{
	struct run_site *s = w->data;
	(void)status;
	s->reckoning = false;
	if (s->new_kind_count < 0) {
		hspmd_warn("what more nodes would bring cannot be reckoned: %s", s->why.text);
	} else {
		memcpy(s->curve, s->new_curve, sizeof *s->curve * (size_t)s->new_count);
		s->curve_count = s->new_count;
		memcpy(s->kinds, s->new_kinds, sizeof *s->kinds * (size_t)s->new_kind_count);
		s->kind_count = s->new_kind_count;
	}
	if (!s->closing)
		turn(s);
	maybe_free(s);
}

/* What gains depend on: device types, and the kinds of nodes they are in. */
static json_t *kinds_of(const json_t *cluster)
{
	json_t *kinds = json_array(), *entry;
	size_t i;
	json_array_append(kinds, json_object_get(cluster, "device_types"));
	json_array_foreach(json_object_get(cluster, "nodes"), i, entry) {
		json_t *devices = json_object_get(entry, "devices");
		size_t k = 1;
		while (k < json_array_size(kinds) && !json_equal(json_array_get(kinds, k), devices))
			k++;
		if (k == json_array_size(kinds))
			json_array_append(kinds, devices);
	}
	return kinds;
}

void run_site_cluster(struct run_site *s, const json_t *cluster)
{
	if (!s || s->reckoning)
		return;
	json_t *types = kinds_of(cluster);
	if (s->types && json_equal(s->types, types)) {
		json_decref(types);
		return;
	}
	json_decref(s->types);
	json_decref(s->cluster);
	s->types = json_deep_copy(types); /* reference counts are not for two threads */
	s->cluster = json_deep_copy(cluster);
	json_decref(types);
	s->work.data = s;
	s->reckoning = s->cluster && uv_queue_work(s->uv, &s->work, reckon, reckoned) == 0;
}

/* ---- open and close */

struct run_site *run_site_open(uv_loop_t *uv, const char *where, const char *job_id, const struct hspmd_auth *auth,
                               const struct hspmd_job *job, const struct hspmd_model *model, run_site_ask *ask, run_site_risk *risk, void *context,
                               struct hspmd_error *err)
{
	struct run_site *s = calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "preparing the line to hspmdctld");
		return NULL;
	}
	*s = (struct run_site){ .uv = uv, .fd = -1, .job = job, .model = model, .ask = ask, .risk = risk, .context = context, .pause_s = 5 };
	s->link = ctld_link_create(where, (uint32_t)strtoul(job_id, NULL, 10), auth, err);
	if (!s->link) {
		free(s);
		return NULL;
	}
	uv_timer_init(uv, &s->timer);
	s->timer.data = s;
	s->handles = 1;
	uv_timer_start(&s->timer, on_timer, 1, 0);
	return s;
}

void run_site_close(struct run_site *s)
{
	if (!s)
		return;
	s->closing = true;
	unwatch(s);
	uv_timer_stop(&s->timer);
	uv_close((uv_handle_t *)&s->timer, on_closed);
}
