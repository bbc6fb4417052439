/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/auth.h"
#include "common/clock.h"
#include "common/contact.h"
#include "tests/bench/scale/played_agents_internal.h"

#define GREETING_S 30.0
#define STEP_S 0.2
#define HEARTBEAT_S 1.0
#define CONNECTS 8 /* at a time */
#define UNSENT_MAX ((size_t)1 << 30)

struct played_agents *played_agents_create(struct played_site *site, const char *cookie, struct hspmd_error *err)
{
	struct played_agents *a = calloc(1, sizeof *a);
	if (!a || !(a->agent = calloc((size_t)site->nodes, sizeof *a->agent)) ||
	    !(a->in_plan = calloc((size_t)site->nodes * PLAYED_NODE_DEVICES, sizeof *a->in_plan))) {
		free(a);
		hspmd_fail_memory(err, "playing agents");
		return NULL;
	}
	a->site = site;
	a->epoll = epoll_create1(EPOLL_CLOEXEC);
	a->auth = hspmd_auth_cookie(cookie, err);
	a->memo = hspmd_wire_memo_create();
	for (int i = 0; i < site->nodes; i++)
		a->agent[i].node = i;
	return a;
}

void played_agents_destroy(struct played_agents *a)
{
	if (!a)
		return;
	for (int i = 0; i < a->site->nodes; i++)
		played_hang_up(&a->agent[i]);
	close(a->epoll);
	hspmd_auth_destroy(a->auth);
	hspmd_wire_memo_destroy(a->memo);
	json_decref(a->address);
	json_decref(a->saved);
	free(a->in_plan);
	free(a->agent);
	free(a);
}

void played_agents_call(struct played_agents *a, const char *address)
{
	json_decref(a->address);
	a->address = address ? json_pack("[s]", address) : NULL;
}

/* ---- steps */

static void each_worker(struct played_agents *a, void (*what)(struct played_agents *a, struct played_agent *g, int device))
{
	for (int n = 0; n < a->site->nodes; n++)
		for (int d = 0; d < PLAYED_NODE_DEVICES; d++)
			if (a->agent[n].worker[d].up && a->agent[n].worker[d].runs == a->now.number)
				what(a, &a->agent[n], d);
}

static void say_heartbeat(struct played_agents *a, struct played_agent *g, int device)
{
	if (g->node * PLAYED_NODE_DEVICES + device != a->now.reporter)
		played_say_as(a, g, device,
		              json_pack("{s:s, s:I, s:I, s:f}", "type", "heartbeat", "generation", (json_int_t)a->now.number, "step",
		                        (json_int_t)a->now.step, "compute_s", 0.15));
}

static void say_stopped(struct played_agents *a, struct played_agent *g, int device)
{
	struct played_worker *w = &g->worker[device];
	w->step = a->now.step;
	w->runs = 0;
	played_say_as(a, g, device,
	              json_pack("{s:s, s:I, s:I, s:o}", "type", "stopped", "generation", (json_int_t)a->now.number, "step",
	                        (json_int_t)w->step, "losses", played_losses_at(w->step)));
}

static void make_step(struct played_agents *a)
{
	struct played_agent *g = &a->agent[a->now.reporter / PLAYED_NODE_DEVICES];
	played_say_as(a, g, a->now.reporter % PLAYED_NODE_DEVICES,
	              json_pack("{s:s, s:I, s:I, s:f, s:I, s:f, s:f, s:f, s:f}", "type", "step", "generation", (json_int_t)a->now.number,
	                        "step", (json_int_t)a->now.step, "loss", 2.0, "tokens", (json_int_t)4194304, "step_s", STEP_S, "lr", 1e-4,
	                        "grad_norm", 1.0, "compute_s", 0.15));
	a->now.step++;
	a->counts.steps++;
	if (a->now.stopping < a->now.planned)
		return;
	each_worker(a, say_stopped);
	a->now.training = false;
}

static void train(struct played_agents *a)
{
	double now = hspmd_now();
	if (a->now.training && now >= a->heartbeat_at + HEARTBEAT_S) {
		a->heartbeat_at = now;
		each_worker(a, say_heartbeat);
	}
	/* Real agents keep the messages for a controller that is away; here nothing happens meanwhile. */
	bool heard = a->agent[a->now.reporter / PLAYED_NODE_DEVICES].stream;
	if (a->now.training && heard && now >= a->step_at + STEP_S) {
		a->step_at = now;
		make_step(a);
	}
}

/* ---- connections */

static json_t *hello_of(const struct played_agent *g)
{
	json_t *bindings = json_array(), *workers = json_array();
	for (int d = 0; d < PLAYED_NODE_DEVICES; d++) {
		const struct played_worker *w = &g->worker[d];
		json_array_append_new(bindings, json_pack("{s:i, s:i}", "threads", 8, "index", d));
		if (w->up)
			json_array_append_new(workers, json_pack("{s:o, s:I, s:i}", "device", json_sprintf("n%d:%d", g->node, d), "serial",
			                                         (json_int_t)w->serial, "pid", 1000 + g->node));
	}
	return json_pack(
	        "{s:s, s:o, s:s, s:i, s:{s:s, s:{s:{s:s, s:f, s:f, s:{s:f}}}, s:[{s:o, s:[{s:s, s:i}]}], s:[{s:s, s:f, s:f}, {s:s, "
	        "s:f, s:f}]}, s:o, s:o}",
	        "role", "agent", "node", json_sprintf("n%d", g->node), "job", "1", "pid", 1000 + g->node, "cluster", "format",
	        "hspmd-cluster-1", "device_types", "H100", "kind", "cuda", "memory_bytes", 80e9, "gbytes_per_s", 3350.0, "peak_tflops",
	        "bf16", 989.0, "nodes", "name", json_sprintf("n%d", g->node), "devices", "type", "H100", "count", PLAYED_NODE_DEVICES,
	        "links", "scope", "node", "alpha_s", 5e-6, "gbytes_per_s", 200.0, "scope", "cluster", "alpha_s", 1e-5, "gbytes_per_s", 50.0,
	        "bindings", bindings, "workers", workers);
}

/* -1 and err: the controller does not answer (yet). */
static int greet(struct played_agents *a, struct played_agent *g, struct hspmd_error *err)
{
	int fd = hspmd_connect_any(a->address, -1, GREETING_S, err);
	struct hspmd_stream *s = fd < 0 ? NULL : hspmd_stream_create(fd, HSPMD_WIRE_MAX, UNSENT_MAX, err);
	json_t *hello = s ? hello_of(g) : NULL;
	if (!hello || hspmd_auth_handshake(a->auth, s, hello, getuid(), GREETING_S, NULL, err)) {
		json_decref(hello);
		hspmd_stream_destroy(s);
		return -1;
	}
	json_decref(hello);
	hspmd_stream_set_memo(s, a->memo);
	g->stream = s;
	g->alive = true;
	a->counts.connects++;
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = g };
	return epoll_ctl(a->epoll, EPOLL_CTL_ADD, fd, &e) ? hspmd_fail_errno(err, "watching a connection") : 0;
}

static void hear_all(struct played_agents *a, struct played_agent *g)
{
	for (json_t *m; g->stream && (m = hspmd_stream_next(g->stream)); json_decref(m))
		played_hear(a, g, m);
}

/* Agents that the controller has started, and those that have lost it, connect. */
static void connect_some(struct played_agents *a)
{
	struct hspmd_error err;
	int tries = 0;
	for (int n = 0; a->address && n < a->site->nodes && tries < CONNECTS; n++) {
		struct played_agent *g = &a->agent[n];
		int starts = atomic_load(&a->site->node[n].starts);
		if (g->stream || g->lost || g->cut || (!g->alive && starts == g->started))
			continue;
		tries++;
		if (greet(a, g, &err))
			return;
		g->started = starts;
		hear_all(a, g); /* messages that arrived together with the welcome cause no event */
	}
}

static void serve(struct played_agents *a, struct played_agent *g)
{
	struct hspmd_error err = { "" };
	int open = hspmd_stream_read(g->stream, &err);
	hear_all(a, g);
	if (g->stream && open <= 0)
		played_hang_up(g);
}

int played_agents_run(struct played_agents *a, double seconds, struct hspmd_error *err)
{
	double until = hspmd_now() + seconds;
	struct epoll_event events[256];
	do {
		connect_some(a);
		train(a);
		int count = epoll_wait(a->epoll, events, 256, 10);
		for (int i = 0; i < count; i++) {
			struct played_agent *g = events[i].data.ptr;
			if (g->stream)
				serve(a, g);
			train(a); /* reading what all nodes are sent takes longer than a step */
		}
		for (int n = 0; n < a->site->nodes; n++) {
			struct played_agent *g = &a->agent[n];
			if (g->stream && hspmd_stream_has_unsent(g->stream) && hspmd_stream_flush(g->stream, err))
				played_hang_up(g);
		}
		if (a->counts.fault[0])
			return hspmd_fail(err, "%s", a->counts.fault);
	} while (hspmd_now() < until);
	return 0;
}

void played_agents_lose(struct played_agents *a, int node)
{
	struct played_agent *g = &a->agent[node];
	played_hang_up(g);
	memset(g->worker, 0, sizeof g->worker);
	g->lost = true;
	g->alive = false;
	a->now.training = false; /* its peers wait for it */
}

void played_agents_kill_workers(struct played_agents *a)
{
	for (int n = 0; n < a->site->nodes; n++)
		for (int d = 0; d < PLAYED_NODE_DEVICES && a->agent[n].stream; d++)
			if (a->agent[n].worker[d].up)
				played_say_exited(a, &a->agent[n], d, 9);
	a->now.training = false;
}

void played_agents_repair(struct played_agents *a, int node)
{
	a->agent[node].lost = false;
}

void played_agents_cut(struct played_agents *a, int first, int count, bool cut)
{
	for (int n = first; n < first + count; n++) {
		a->agent[n].cut = cut;
		if (cut)
			played_hang_up(&a->agent[n]);
	}
	a->now.training &= !cut;
}

struct played_counts played_agents_counts(struct played_agents *a)
{
	struct played_counts c = a->counts;
	a->sizes[0] = '\0';
	a->counts.largest = 0;
	for (int i = 0; i < a->site->nodes; i++) {
		c.bytes_down += a->agent[i].bytes_down;
		c.bytes_up += a->agent[i].bytes_up;
		played_note_bytes(&a->agent[i], &c.bytes_down, &c.bytes_up);
		c.agents += a->agent[i].stream != NULL;
	}
	return c;
}
