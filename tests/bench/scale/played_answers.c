/* SPDX-License-Identifier: Apache-2.0 */
/* What agents and workers answer that train without computing. */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/format/device_runs.h"
#include "tests/bench/scale/played_agents_internal.h"
#include "tests/bench/scale/problem.h"

#define ADDRESS_CHARS 1200 /* base64 of what UCX, two sockets and NCCL take */
#define SET_DIGITS ((SCALE_PARAMETERS + 3) / 4)
#define MANY_MEMBERS 256 /* that exchange addresses before they start (runtime/generation) */

void played_note_bytes(const struct played_agent *g, int64_t *down, int64_t *up)
{
	struct tcp_info info;
	socklen_t size = sizeof info;
	if (!g->stream || getsockopt(hspmd_stream_fd(g->stream), IPPROTO_TCP, TCP_INFO, &info, &size))
		return;
	*down += (int64_t)info.tcpi_bytes_received;
	*up += (int64_t)info.tcpi_bytes_acked;
}

void played_hang_up(struct played_agent *g)
{
	played_note_bytes(g, &g->bytes_down, &g->bytes_up);
	hspmd_stream_destroy(g->stream);
	g->stream = NULL;
}

/* ---- what is sent */

static void fault(struct played_agents *a, const char *what)
{
	if (!a->counts.fault[0])
		snprintf(a->counts.fault, sizeof a->counts.fault, "%.255s", what);
}

/* Texts of one kind are about equally long: the first of each is measured. */
static void measure(struct played_agents *a, const json_t *m, const char *way)
{
	char kind[80];
	snprintf(kind, sizeof kind, "%s%.60s,", way, json_string_value(json_object_get(m, "type")));
	if (strstr(a->sizes, kind) || strlen(a->sizes) + strlen(kind) >= sizeof a->sizes)
		return;
	strcat(a->sizes, kind);
	int64_t bytes = (int64_t)json_dumpb(m, NULL, 0, JSON_COMPACT);
	a->counts.largest = bytes > a->counts.largest ? bytes : a->counts.largest;
}

static void say(struct played_agents *a, struct played_agent *g, json_t *m)
{
	struct hspmd_error err;
	const char *type = json_string_value(json_object_get(m, "type"));
	measure(a, m, "up ");
	a->counts.up++;
	if (!strcmp(type, "checkpoint_list") || !strcmp(type, "manifest"))
		a->counts.found_bytes += (int64_t)json_dumpb(m, NULL, 0, JSON_COMPACT);
	if (g->stream && hspmd_stream_send(g->stream, m, &err)) /* the controller is gone */
		played_hang_up(g);
	json_decref(m);
}

void played_say_as(struct played_agents *a, struct played_agent *g, int device, json_t *m)
{
	json_object_set_new(m, "from", json_sprintf("n%d:%d", g->node, device));
	say(a, g, m);
}

json_t *played_losses_at(int64_t step)
{
	return step ? json_pack("[[I,f]]", (json_int_t)(step - 1), 2.0) : json_array();
}

void played_say_exited(struct played_agents *a, struct played_agent *g, int device, int signal)
{
	struct played_worker *w = &g->worker[device];
	json_t *m = json_pack("{s:s, s:o, s:I, s:i, s:i, s:s}", "type", "exited", "device", json_sprintf("n%d:%d", g->node, device),
	                      "serial", (json_int_t)w->serial, "status", 0, "signal", signal, "text", "it was told to");
	memset(w, 0, sizeof *w);
	say(a, g, m);
}

/* ---- generations */

/* The device numbers of these runs, in *device, which the caller frees. Returns how many there are. */
static int devices_of(const struct played_agents *a, const json_t *runs, int **device)
{
	struct hspmd_error err;
	char(*address)[HSPMD_DEVICE_RUNS_ADDRESS];
	int count = hspmd_device_runs_expand(runs, &address, &err);
	*device = calloc((size_t)(count > 0 ? count : 1), sizeof **device);
	for (int i = 0; *device && i < count; i++) {
		int n = atoi(address[i] + 1) * PLAYED_NODE_DEVICES + atoi(strrchr(address[i], ':') + 1);
		(*device)[i] = n < a->site->nodes * PLAYED_NODE_DEVICES ? n : 0;
	}
	free(address);
	return *device && count > 0 ? count : 0;
}

/* The first worker that is asked to prepare reads the message for all. */
static void read_prepare(struct played_agents *a, const json_t *m, int64_t number)
{
	if (a->next.number == number)
		return;
	json_t *pipeline, *stage;
	size_t i, k;
	int *device;
	struct played_generation g = { .number = number, .members = devices_of(a, json_object_get(m, "members"), &device) };
	g.reporter = device ? device[0] : 0;
	free(device);
	memset(a->in_plan, 0, (size_t)a->site->nodes * PLAYED_NODE_DEVICES);
	json_array_foreach(json_object_get(json_object_get(m, "plan"), "pipelines"), i, pipeline)
		json_array_foreach(json_object_get(pipeline, "stages"), k, stage) {
			int count = devices_of(a, json_object_get(stage, "devices"), &device);
			for (int d = 0; d < count; d++)
				a->in_plan[device[d]] = true;
			g.planned += count;
			free(device);
		}
	a->next = g;
}

static void answer_prepare(struct played_agents *a, struct played_agent *g, int device, const json_t *m, int64_t number)
{
	struct played_worker *w = &g->worker[device];
	char address[ADDRESS_CHARS + 1];
	read_prepare(a, m, number);
	w->prepared = a->in_plan[g->node * PLAYED_NODE_DEVICES + device] ? number : -number;
	memset(address, 'A' + (g->node + device) % 26, ADDRESS_CHARS);
	address[ADDRESS_CHARS] = '\0';
	played_say_as(a, g, device,
	              json_pack("{s:s, s:I, s:s, s:I, s:f, s:o*}", "type", "prepared", "generation", (json_int_t)number, "address", address,
	                        "memory_bytes", (json_int_t)7e10, "seconds", 2.0, "needs_preconnect",
	                        a->next.members >= MANY_MEMBERS ? json_true() : NULL));
}

static void answer_start(struct played_agents *a, struct played_agent *g, int device, const json_t *m, int64_t number)
{
	struct played_worker *w = &g->worker[device];
	if (a->next.number == number && w->prepared && a->now.number != number) {
		a->now = a->next;
		a->now.step = json_integer_value(json_object_get(m, "step"));
	}
	if (a->now.number != number || (w->prepared != number && w->prepared != -number)) {
		fault(a, "start of a generation that is not prepared");
		return;
	}
	w->runs = w->prepared > 0 ? number : 0;
	w->holds = w->runs ? number : w->holds;
	w->stop = 0;
	w->prepared = 0;
	played_say_as(a, g, device,
	              json_pack("{s:s, s:I, s:I, s:{s:i, s:I, s:i, s:i}, s:{s:f, s:f, s:f}}", "type", "started", "generation",
	                        (json_int_t)number, "step", (json_int_t)a->now.step, "bytes", "local", 0, "peers", (json_int_t)1 << 30,
	                        "disk", 0, "shared", 0, "seconds", "connect", 0.1, "move", 0.2, "plan", 0.0));
	if (++a->now.started < a->now.members)
		return;
	a->now.training = true;
	a->counts.training = number;
	a->counts.from = a->now.step;
	a->counts.workers = a->now.members;
	a->step_at = a->heartbeat_at = hspmd_now();
}

/* A worker's shard, as a node reports that has it (runtime/state/checkpoint.h). Only the worker itself says which parameters it has: here
 * its part of each. */
static json_t *shard_on(const struct played_agent *g, int of, int device, bool own)
{
	char set[SET_DIGITS + 1], list[17];
	memset(set, 'f', sizeof set);
	set[SET_DIGITS] = '\0';
	snprintf(list, sizeof list, "%016llx", (unsigned long long)(of * PLAYED_NODE_DEVICES + device + 1) * 0x9e3779b97f4a7c15);
	return json_pack("{s:o, s:I, s:[o], s:s, s:s*}", "file", json_sprintf("n%d-%d.safetensors", of, device), "bytes",
	                 (json_int_t)1 << 30, "nodes", json_sprintf("n%d", g->node), "list", list, "set", own ? set : NULL);
}

/* Each worker keeps a copy for one of the next node, in its own folder. */
static void answer_checkpoint(struct played_agents *a, struct played_agent *g, int device, const json_t *m, int64_t number)
{
	const char *id = json_string_value(json_object_get(m, "id"));
	if (id && strcmp(a->checkpoint, id) != 0) {
		snprintf(a->checkpoint, sizeof a->checkpoint, "%s", id);
		a->checkpoint_step = a->now.step;
	}
	int next = (g->node + 1) % a->site->nodes;
	bool copy = a->agent[next].worker[device].runs == number;
	if (json_is_string(json_object_get(m, "local")))
		played_say_as(a, g, device,
		              json_pack("{s:s, s:s, s:I, s:I, s:o, s:[], s:f, s:f, s:{s:[o*], s:n}}", "type", "checkpoint_written", "id",
		                        a->checkpoint, "step", (json_int_t)a->checkpoint_step, "generation", (json_int_t)number, "shard",
		                        shard_on(g, g->node, device, true), "places", "seconds", 1.0, "hold_s", 0.001, "copies", "shards",
		                        copy ? shard_on(g, next, device, false) : NULL, "error"));
	if (json_is_string(json_object_get(m, "shared")))
		played_say_as(a, g, device,
		              json_pack("{s:s, s:s, s:I, s:I, s:b, s:f}", "type", "checkpoint_written", "id", a->checkpoint, "step",
		                        (json_int_t)a->checkpoint_step, "generation", (json_int_t)number, "shared", 1, "seconds", 1.0));
}

static void save(struct played_agents *a, struct played_agent *g, json_t *manifest)
{
	for (int n = 0; n < a->site->nodes && !json_equal(json_object_get(a->saved, "step"), json_object_get(manifest, "step")); n++)
		a->agent[n].manifest = false;
	g->manifest = true;
	json_decref(a->saved);
	a->saved = json_incref(manifest);
	struct hspmd_error err;
	if (hspmd_manifest_sum(manifest, a->saved_sum, &err))
		fault(a, err.text);
}

/* What a node finds of the last checkpoint: shards of its own workers and copies of the next node's, and all in the shared folder. */
static json_t *list_saved(const struct played_agents *a, const struct played_agent *g)
{
	json_t *shards = json_array(), *list = json_array();
	if (!a->saved)
		return list;
	for (int d = 0; d < 2 * PLAYED_NODE_DEVICES; d++)
		json_array_append_new(shards, json_sprintf("n%d-%d.safetensors", (g->node + d / PLAYED_NODE_DEVICES) % a->site->nodes,
		                                           d % PLAYED_NODE_DEVICES));
	json_t *step = json_object_get(a->saved, "step"), *generation = json_object_get(a->saved, "generation"),
	       *run = json_object_get(json_object_get(a->saved, "job"), "run");
	json_array_append_new(list, json_pack("{s:s, s:O, s:O, s:s*, s:O, s:o}", "place", "local", "step", step, "generation", generation,
	                                      "sum", g->manifest ? a->saved_sum : NULL, "run", run, "shards", shards));
	json_array_append_new(list, json_pack("{s:s, s:O, s:O, s:s, s:O, s:b}", "place", "shared", "step", step, "generation", generation,
	                                      "sum", a->saved_sum, "run", run, "shards", 1));
	return list;
}

/* The first of all that are asked for a manifest refuses. */
static void send_manifest(struct played_agents *a, struct played_agent *g, const json_t *m)
{
	bool refuses = a->counts.asked_for_manifest++ == 0;
	say(a, g,
	    json_pack("{s:s, s:O, s:O, s:O*, s:s*}", "type", "manifest", "id", json_object_get(m, "id"), "sum", json_object_get(m, "sum"),
	              "manifest", refuses ? NULL : a->saved, "error", refuses ? "it cannot be read" : NULL));
}

static void answer(struct played_agents *a, struct played_agent *g, int device, const json_t *m, const char *type)
{
	struct played_worker *w = &g->worker[device];
	int64_t number = json_integer_value(json_object_get(m, "generation")), step = w->runs ? a->now.step : w->step;
	if (!strcmp(type, "prepare")) {
		answer_prepare(a, g, device, m, number);
	} else if (!strcmp(type, "preconnect")) {
		played_say_as(a, g, device, json_pack("{s:s, s:I}", "type", "preconnected", "generation", (json_int_t)number));
	} else if (!strcmp(type, "start")) {
		answer_start(a, g, device, m, number);
	} else if (!strcmp(type, "stop")) {
		a->now.stopping += number == w->runs && w->stop != number;
		w->stop = number;
	} else if (!strcmp(type, "checkpoint")) {
		answer_checkpoint(a, g, device, m, number);
	} else if (!strcmp(type, "write_manifest")) {
		a->counts.manifests++;
		save(a, g, json_object_get(m, "manifest"));
		played_say_as(a, g, device,
		              json_pack("{s:s, s:O, s:O}", "type", "manifest_written", "id", json_object_get(m, "id"), "shared",
		                        json_object_get(m, "shared")));
	} else if (!strcmp(type, "committed")) {
		a->counts.committed++;
	} else if (!strcmp(type, "abort")) {
		a->now.training &= number != a->now.number;
		w->step = step;
		w->runs = 0;
		played_say_as(a, g, device,
		              json_pack("{s:s, s:I, s:I, s:o, s:n, s:o, s:[f,f], s:o}", "type", "aborted", "generation", (json_int_t)number,
		                        "step", (json_int_t)step, "holds", w->holds ? json_integer(w->holds) : json_null(), "ready",
		                        "applied", step ? json_integer(step - 1) : json_null(), "sums", 1.0, 2.0, "losses",
		                        played_losses_at(step)));
	} else if (!strcmp(type, "settle")) {
		played_say_as(a, g, device,
		              json_pack("{s:s, s:I, s:I, s:o}", "type", "settled", "generation", (json_int_t)number, "step",
		                        (json_int_t)w->step, "losses", played_losses_at(w->step)));
	} else if (!strcmp(type, "query")) {
		played_say_as(a, g, device,
		              json_pack("{s:s, s:I, s:I, s:o, s:b, s:o}", "type", "query_reply", "generation", (json_int_t)number, "step",
		                        (json_int_t)step, "holds", w->holds ? json_integer(w->holds) : json_null(), "training",
		                        w->runs == number && w->stop != number, "losses", played_losses_at(step)));
	} else if (!strcmp(type, "ping")) {
		played_say_as(a, g, device, json_pack("{s:s}", "type", "pong"));
	} else if (!strcmp(type, "quit")) {
		played_say_exited(a, g, device, 0);
	}
}

/* ---- what is received */

static int device_of(const json_t *m)
{
	const char *text = json_string_value(json_object_get(m, "device")), *colon = text ? strrchr(text, ':') : NULL;
	int device = colon ? atoi(colon + 1) : -1;
	return device >= 0 && device < PLAYED_NODE_DEVICES ? device : 0;
}

void played_hear(struct played_agents *a, struct played_agent *g, json_t *m)
{
	const char *type = json_string_value(json_object_get(m, "type"));
	json_t *to = json_object_get(m, "to"), *one;
	size_t i;
	measure(a, m, "down ");
	a->counts.down++;
	if (json_is_array(to)) {
		json_array_foreach(to, i, one) {
			int device = atoi(strrchr(json_string_value(one), ':') + 1);
			if (g->worker[device].up)
				answer(a, g, device, m, type);
		}
	} else if (!strcmp(type, "spawn")) {
		struct played_worker *w = &g->worker[device_of(m)];
		*w = (struct played_worker){ .up = true, .serial = json_integer_value(json_object_get(m, "serial")) };
		played_say_as(a, g, device_of(m), json_pack("{s:s, s:i}", "type", "hello", "pid", 1000 + g->node));
	} else if (!strcmp(type, "kill")) {
		if (g->worker[device_of(m)].serial == json_integer_value(json_object_get(m, "serial")))
			played_say_exited(a, g, device_of(m), 9);
	} else if (!strcmp(type, "list_checkpoints")) {
		say(a, g,
		    json_pack("{s:s, s:O, s:o}", "type", "checkpoint_list", "id", json_object_get(m, "id"), "checkpoints",
		              list_saved(a, g)));
	} else if (!strcmp(type, "read_manifest")) {
		send_manifest(a, g, m);
	} else if (!strcmp(type, "quit")) {
		memset(g->worker, 0, sizeof g->worker);
		g->alive = false;
		played_hang_up(g);
	}
}
