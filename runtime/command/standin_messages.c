/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in does with messages of the controller. */
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base64.h"
#include "common/durable.h"
#include "common/log.h"
#include "runtime/command/standin_internal.h"

/* ---- job */

static int set_up(struct standin *s, json_t *m, struct hspmd_error *err)
{
	const char *file = json_string_value(json_object_get(m, "file")), *output = NULL, *device = NULL, *id = "", *checkpoint = NULL,
	           *kind = "cpu";
	json_t *job;
	if (s->job)
		return hspmd_fail(err, "a second job message");
	if (json_unpack(m, "{so,ss,ss,s?s,s?s,s?s,s?i}", "job", &job, "output", &output, "device", &device, "id", &id, "checkpoint",
	                &checkpoint, "kind", &kind, "threads", &s->threads))
		return hspmd_fail(err, "job: job, output or device is missing");
	if (!(s->job = hspmd_job_from_json(job, file ? file : "job.json", err)))
		return -1;
	if (!s->job->command.argc)
		return hspmd_fail(err, "the job has no command");
	s->gpu = !strcmp(kind, "cuda") && !s->job->command.per_node;
	s->threads = s->job->command.per_node ? 0 : s->threads;
	s->output_folder = strdup(output);
	s->device = strdup(device);
	s->id = strdup(id);
	s->checkpoint = checkpoint ? strdup(checkpoint) : NULL;
	if (!s->output_folder || !s->device || !s->id || (checkpoint && !s->checkpoint))
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

/* A free port, kept until the rank's own process may bind it. Returns its number, or -1 and err. */
static int reserve_port(struct standin *s, struct hspmd_error *err)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t size = sizeof a;
	if (s->port_socket >= 0)
		close(s->port_socket);
	s->port_socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s->port_socket < 0 || bind(s->port_socket, (struct sockaddr *)&a, sizeof a) ||
	    getsockname(s->port_socket, (struct sockaddr *)&a, &size))
		return hspmd_fail_errno(err, "finding a port for the ranks");
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

static void on_prepare(struct standin *s, json_t *m)
{
	struct hspmd_error err = { "" };
	int64_t generation = json_integer_value(json_object_get(m, "generation"));
	char host[256] = "", text[300];
	hspmd_placement_clear(&s->next);
	s->prepared = 0;
	int port = !s->job ? hspmd_fail(&err, "prepare before job") : reserve_port(s, &err);
	if (port < 0 || hspmd_placement_read(json_object_get(m, "plan"), s->device, &s->next, &err)) {
		standin_fault(s, generation, err.text, NULL);
		return;
	}
	s->prepared = generation;
	own_host(host, sizeof host);
	snprintf(text, sizeof text, "%s:%d", host, port);
	char *address = hspmd_base64_encode(text, strlen(text));
	standin_send(s, json_pack("{ss,sI,ss*,si,si}", "type", "prepared", "generation", (json_int_t)generation, "address", address,
	                          "memory_bytes", 0, "seconds", 0));
	free(address);
}

/* Reads "HOST:PORT" of rank 0. */
static int read_master(json_t *addresses, char *host, size_t size, int *port, struct hspmd_error *err)
{
	size_t n = 0;
	const char *text = json_string_value(json_array_get(addresses, 0));
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

static void on_start(struct standin *s, json_t *m)
{
	struct hspmd_error err = { "" };
	int64_t generation = json_integer_value(json_object_get(m, "generation"));
	char host[256] = "";
	int port = 0;
	if (!s->prepared || s->prepared != generation)
		hspmd_fail(&err, "start of generation %lld, which is not prepared", (long long)generation);
	else if (s->state != STANDIN_IDLE)
		hspmd_fail(&err, "start of generation %lld while the command runs", (long long)generation);
	if (err.text[0] || read_master(json_object_get(m, "addresses"), host, sizeof host, &port, &err)) {
		standin_fault(s, generation, err.text, NULL);
		return;
	}
	hspmd_placement_clear(&s->place);
	s->place = s->next;
	memset(&s->next, 0, sizeof s->next);
	s->prepared = 0;
	s->generation = generation;
	s->step = json_integer_value(json_object_get(m, "step"));
	s->ended = s->finished = false;
	s->status = STATUS_SIGNALLED;
	close(s->port_socket);
	s->port_socket = -1;
	if (s->place.rank < 0) /* the new plan has no rank here */
		standin_started(s);
	else
		standin_launch(s, host, port);
}

/* ---- stop, abort, and the rest */

static void on_stop(struct standin *s, json_t *m)
{
	json_t *notice = json_object_get(m, "notice_s");
	if (!s->job || json_integer_value(json_object_get(m, "generation")) != s->generation)
		return;
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
	standin_end(s, ANSWER_ABORTED);
}

static void on_query(struct standin *s, json_t *m)
{
	bool runs = s->state == STANDIN_RUNNING || s->finished;
	standin_send(s, json_pack("{ss,sO,sI,so,sb,s[],so}", "type", "query_reply", "generation", json_object_get(m, "generation"), "step",
	                          (json_int_t)s->step, "holds", s->generation ? json_integer(s->generation) : json_null(), "training",
	                          (int)runs, "losses", "newest", standin_newest(s)));
	if (s->finished && s->state == STANDIN_IDLE) { /* the controller that was told may be the one that died */
		s->answer = ANSWER_FINISHED;
		standin_answer(s);
	}
}

/* This process writes no checkpoints. */
static void on_checkpoint(struct standin *s, json_t *m)
{
	standin_send(s, json_pack("{ss,sO?,sI,sO?,ss}", "type", "checkpoint_written", "id", json_object_get(m, "id"), "step",
	                          (json_int_t)s->step, "generation", json_object_get(m, "generation"), "error",
	                          "the command writes its checkpoints itself"));
}

void standin_receive(struct standin *s, json_t *m)
{
	const char *type = json_string_value(json_object_get(m, "type"));
	if (!type)
		return;
	if (!strcmp(type, "ping"))
		standin_send(s, json_pack("{ss}", "type", "pong"));
	else if (!strcmp(type, "job"))
		on_job(s, m);
	else if (!strcmp(type, "prepare"))
		on_prepare(s, m);
	else if (!strcmp(type, "start"))
		on_start(s, m);
	else if (!strcmp(type, "stop"))
		on_stop(s, m);
	else if (!strcmp(type, "abort"))
		on_abort(s, m);
	else if (!strcmp(type, "settle"))
		standin_send(s, json_pack("{ss,sO?,sI,s[]}", "type", "settled", "generation", json_object_get(m, "generation"), "step",
		                          (json_int_t)s->step, "losses"));
	else if (!strcmp(type, "query"))
		on_query(s, m);
	else if (!strcmp(type, "checkpoint"))
		on_checkpoint(s, m);
	else if (!strcmp(type, "quit"))
		standin_end(s, ANSWER_EXIT);
}
