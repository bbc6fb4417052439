/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in does with messages of the controller. */
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/durable.h"
#include "common/format/device_traits.h"
#include "common/log.h"
#include "common/tcp.h"
#include "runtime/command/standin_internal.h"

/* ---- job */

static int set_up(struct standin *s, json_t *m, struct hspmd_error *err)
{
	const char *file = json_string_value(json_object_get(m, "file")), *output = NULL, *device = NULL, *id = "", *checkpoint = NULL,
	           *kind = "";
	json_t *job;
	if (s->job)
		return hspmd_fail(err, "a second job message");
	if (json_unpack(m, "{so,ss,ss,s?s,s?s,s?s,s?i}", "job", &job, "output", &output, "device", &device, "id", &id, "checkpoint",
	                &checkpoint, "kind", &kind, "threads", &s->threads))
		return hspmd_fail(err, "job: job, output or device is missing");
	if (!(s->job = hspmd_job_from_json(job, file ? file : "job.json", NULL, err)))
		return -1;
	if (!s->job->command.argc)
		return hspmd_fail(err, "the job has no command");
	int number = hspmd_device_kind_named(kind);
	bool gpu = number >= 0 && hspmd_device_traits((enum hspmd_device_kind)number)->origin == HSPMD_ORIGIN_NVIDIA;
	s->gpu = gpu && !s->job->command.per_node;
	s->threads = s->job->command.per_node ? 0 : s->threads;
	s->output_folder = strdup(output);
	s->device = strdup(device);
	s->id = strdup(id);
	s->checkpoint = checkpoint ? strdup(checkpoint) : NULL;
	s->warm_list = hspmd_asprintf("%s/warm-modules", output);
	if (!s->output_folder || !s->warm_list || !s->device || !s->id || (checkpoint && !s->checkpoint))
		return hspmd_fail_memory(err, "starting a stand-in");
	char name[160];
	snprintf(name, sizeof name, "hspmd stand-in %s", device);
	hspmd_log_name(name);
	struct hspmd_error why;
	if (checkpoint && hspmd_durable_mkdir(checkpoint, 0777, &why)) /* the command says so itself, if it wants to save */
		hspmd_warn("%s", why.text);
	return 0;
}

static void on_job(struct standin *s, json_t *m)
{
	struct hspmd_error err = { "" };
	if (set_up(s, m, &err))
		standin_fault(s, 0, err.text, NULL);
}

/* ---- prepare, start */

/* The rank's own process may bind it now. */
static void release_port(struct standin *s)
{
	if (s->port_socket >= 0)
		close(s->port_socket);
	s->port_socket = -1;
}

/* A free port, kept until the rank's own process may bind it. Returns its number, or -1 and err. */
static int reserve_port(struct standin *s, struct hspmd_error *err)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t size = sizeof a;
	release_port(s);
	s->port_socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s->port_socket < 0 || hspmd_tcp_bind_apart(s->port_socket, (struct sockaddr *)&a, sizeof a) ||
	    getsockname(s->port_socket, (struct sockaddr *)&a, &size))
		return hspmd_tcp_fail_bind(err, "finding a port for the ranks");
	return ntohs(a.sin_port);
}

/* The name under which other nodes reach this one. Outside of Slurm all nodes are on this machine. */
static void own_host(char *host, size_t size)
{
	struct addrinfo *list = NULL;
	bool known =
	        getenv("SLURM_JOB_ID") && !gethostname(host, size - 1) && (host[size - 1] = '\0', !getaddrinfo(host, NULL, NULL, &list));
	if (!known)
		snprintf(host, size, "127.0.0.1");
	if (list)
		freeaddrinfo(list);
}

/* Takes note of the generation's members: their number, the first, and which one this is. */
static int read_members(struct standin *s, const json_t *members, struct hspmd_error *err)
{
	char(*address)[HSPMD_DEVICE_RUNS_ADDRESS];
	s->next_members = hspmd_device_runs_expand(members, &address, err);
	s->next_member = -1;
	s->next_first[0] = '\0';
	for (int i = 0; i < s->next_members; i++)
		if (!strcmp(address[i], s->device))
			s->next_member = i;
	if (s->next_members > 0)
		snprintf(s->next_first, sizeof s->next_first, "%s", address[0]);
	free(address);
	return s->next_members < 0 ? hspmd_error_prefix(err, "prepare: members") : 0;
}

static int set_address(struct standin *s, const char *host, int port, struct hspmd_error *err)
{
	char text[300];
	snprintf(text, sizeof text, "%s:%d", host, port);
	char *address = hspmd_base64_encode(text, strlen(text));
	if (address)
		snprintf(s->address, sizeof s->address, "%s", address);
	free(address);
	return address ? 0 : hspmd_fail_memory(err, "preparing a generation");
}

/* A rank that joins an elastic job is made ready while the others train on: it is prepared when it has declared itself. */
static bool joins(struct standin *s, const json_t *m)
{
	s->elastic_job |= json_is_true(json_object_get(m, "elastic"));
	return s->elastic_job && s->next.rank >= 0 && (s->state == STANDIN_IDLE || (s->state == STANDIN_PAUSED && !s->elastic));
}

static void on_prepare(struct standin *s, json_t *m)
{
	struct hspmd_error err = { "" };
	int64_t generation = json_integer_value(json_object_get(m, "generation"));
	char host[256] = "";
	hspmd_placement_clear(&s->next);
	s->prepared = s->prepare_waits = s->warms = 0;
	int port = !s->job ? hspmd_fail(&err, "prepare before job") : reserve_port(s, &err);
	own_host(host, sizeof host);
	if (port < 0 || hspmd_placement_read(json_object_get(m, "plan"), s->device, &s->next, &err) ||
	    read_members(s, json_object_get(m, "members"), &err) || set_address(s, host, port, &err)) {
		standin_fault(s, generation, err.text, NULL);
		return;
	}
	s->prepared = generation;
	if (!joins(s, m)) {
		if (s->state != STANDIN_IDLE || s->next.rank < 0 || !standin_warm_up(s, host, port))
			standin_prepared(s);
		return;
	}
	s->prepare_waits = generation;
	if (s->state == STANDIN_IDLE)
		standin_launch(s, &s->next, generation, host, port);
}

/* Reads "HOST:PORT" of rank 0. */
static int read_master(const struct standin *s, json_t *addresses, char *host, size_t size, int *port, struct hspmd_error *err)
{
	size_t n = 0;
	const char *text = json_string_value(json_object_get(addresses, s->next_first));
	char *bytes = text ? hspmd_base64_decode(text, &n) : NULL;
	if (bytes)
		bytes[n] = '\0';
	char *colon = bytes ? strrchr(bytes, ':') : NULL;
	if (colon) {
		snprintf(host, size, "%.*s", (int)(colon - bytes), bytes);
		*port = atoi(colon + 1);
	}
	free(bytes);
	return colon && *port > 0 ? 0 : hspmd_fail(err, "start without the address of rank 0");
}

/* Where the ranks meet is known while the previous generation still trains: an elastic command connects then. */
static void on_preconnect(struct standin *s, json_t *m)
{
	struct hspmd_error err = { "" };
	int64_t generation = json_integer_value(json_object_get(m, "generation"));
	char host[256] = "";
	int port = 0;
	if (!s->prepared || s->prepared != generation || !s->elastic)
		return;
	if (read_master(s, json_object_get(m, "addresses"), host, sizeof host, &port, &err)) {
		standin_fault(s, generation, err.text, NULL);
		return;
	}
	release_port(s);
	standin_say_connect(s, host, port);
}

static void on_start(struct standin *s, json_t *m)
{
	struct hspmd_error err = { "" };
	int64_t generation = json_integer_value(json_object_get(m, "generation"));
	char host[256] = "";
	int port = 0;
	if (!s->prepared || s->prepared != generation)
		hspmd_fail(&err, "start of generation %lld, which is not prepared", (long long)generation);
	else if (s->state != STANDIN_IDLE && !(s->state == STANDIN_PAUSED && s->elastic))
		hspmd_fail(&err, "start of generation %lld while the command runs", (long long)generation);
	if (err.text[0] || read_master(s, json_object_get(m, "addresses"), host, sizeof host, &port, &err)) {
		standin_fault(s, generation, err.text, NULL);
		return;
	}
	hspmd_placement_clear(&s->place);
	s->place = s->next;
	memset(&s->next, 0, sizeof s->next);
	s->prepared = 0;
	s->generation = generation;
	s->step = json_integer_value(json_object_get(m, "step"));
	release_port(s);
	standin_say_start(s, host, port);
	if (s->state == STANDIN_PAUSED) {
		s->state = STANDIN_RUNNING;
		s->debt = DEBT_STARTED;
		s->told_step = -1;
	} else if (s->place.rank < 0) { /* the new plan has no rank here */
		s->ended = s->finished = false;
		s->status = STATUS_SIGNALLED;
		standin_started(s);
	} else {
		standin_launch(s, &s->place, generation, host, port);
	}
}

/* ---- stop, abort, and the rest */

static void on_stop(struct standin *s, json_t *m)
{
	json_t *notice = json_object_get(m, "notice_s");
	bool last = json_is_true(json_object_get(m, "end"));
	if (!s->job || json_integer_value(json_object_get(m, "generation")) != s->generation)
		return;
	if (s->state == STANDIN_RUNNING && s->elastic) {
		standin_say(s, json_pack("{ss,sI,sb}", "type", "stop", "generation", (json_int_t)s->generation, "end", (int)last));
		s->debt = DEBT_STOPPED;
		if (!last)
			return;
	}
	if (s->state == STANDIN_RUNNING) {
		standin_notice(s, json_is_number(notice) ? json_number_value(notice) : s->job->command.notice_s);
		return;
	}
	s->answer = ANSWER_STOPPED;
	if (s->state == STANDIN_IDLE)
		standin_answer(s);
}

static void on_abort(struct standin *s, json_t *m)
{
	s->aborted = json_integer_value(json_object_get(m, "generation"));
	if (!s->elastic || (s->state != STANDIN_RUNNING && s->state != STANDIN_PAUSED)) {
		standin_end(s, ANSWER_ABORTED);
		return;
	}
	standin_say(s, json_pack("{ss,sI}", "type", "abort", "generation", (json_int_t)s->aborted));
	s->debt = DEBT_ABORTED;
}

static void on_settle(struct standin *s, json_t *m)
{
	if (s->state != STANDIN_PAUSED || !s->elastic) {
		standin_settled(s, json_integer_value(json_object_get(m, "generation")));
		return;
	}
	standin_say(s,
	            json_pack("{ss,sO?,sO?}", "type", "settle", "apply", json_object_get(m, "apply"), "sums", json_object_get(m, "sums")));
	s->debt = DEBT_SETTLED;
}

static void on_query(struct standin *s, json_t *m)
{
	bool runs = s->state == STANDIN_RUNNING || s->finished;
	standin_send(s, json_pack("{ss,sO,sI,so,sb,s[],so,sb}", "type", "query_reply", "generation", json_object_get(m, "generation"),
	                          "step", (json_int_t)s->step, "holds", s->generation ? json_integer(s->generation) : json_null(),
	                          "training", (int)runs, "losses", "newest", standin_newest(s), "elastic", (int)s->elastic_job));
	if (s->finished && s->state == STANDIN_IDLE) { /* the controller that was told may be the one that died */
		s->answer = ANSWER_FINISHED;
		standin_answer(s);
	}
}

/* This process writes no checkpoints. */
static void on_checkpoint(struct standin *s, json_t *m)
{
	for (int shared = 0; shared < 2; shared++)
		standin_send(s, json_pack("{ss,sO?,sI,sO?,sb,ss}", "type", "checkpoint_written", "id", json_object_get(m, "id"), "step",
		                          (json_int_t)s->step, "generation", json_object_get(m, "generation"), "shared", shared, "error",
		                          "the command writes its checkpoints itself"));
}

void standin_receive(struct standin *s, json_t *m)
{
	const char *type = json_string_value(json_object_get(m, "type"));
	if (!type)
		return;
	if (!strcmp(type, "ping"))
		standin_ping(s);
	else if (!strcmp(type, "job"))
		on_job(s, m);
	else if (!strcmp(type, "prepare"))
		on_prepare(s, m);
	else if (!strcmp(type, "preconnect"))
		on_preconnect(s, m);
	else if (!strcmp(type, "start"))
		on_start(s, m);
	else if (!strcmp(type, "stop"))
		on_stop(s, m);
	else if (!strcmp(type, "abort"))
		on_abort(s, m);
	else if (!strcmp(type, "settle"))
		on_settle(s, m);
	else if (!strcmp(type, "query"))
		on_query(s, m);
	else if (!strcmp(type, "checkpoint"))
		on_checkpoint(s, m);
	else if (!strcmp(type, "quit"))
		standin_end(s, ANSWER_EXIT);
}
