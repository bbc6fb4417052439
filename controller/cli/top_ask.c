/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/top_ask.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/contact.h"
#include "controller/cli/control.h"

#define GREET_S 3.0    /* for the connection to a controller */
#define ANSWER_S 5.0   /* for its status */
#define REQUEST_S 600.0 /* for a resize or a checkpoint */

struct top_ask {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* `job` was changed */
	double every_s;
	int fd;
	char job[4096];
	unsigned about;  /* counts the changes of `job` */
	bool has_answer; /* not taken yet */
	json_t *answer;
	char why[512];
	bool requesting, has_notice;
	char notice[512];
};

static struct top_ask the_one;

static void wake(const struct top_ask *a)
{
	const uint64_t one = 1;
	while (write(a->fd, &one, sizeof one) < 0 && errno == EINTR)
		;
}

/* The job's status, or what Slurm says of a job whose controller does not answer. NULL and err. */
static json_t *ask_status(const char *job, struct hspmd_error *err)
{
	json_t *contact = hspmd_contact_find(job, getenv("SLURM_CLUSTER_NAME"), err);
	json_t *hello = json_pack("{s:s, s:s, s:b}", "role", "command", "command", "status", "detail", 1);
	json_t *reply = contact && hello ? hspmd_control_call(contact, hello, GREET_S, ANSWER_S, err) : NULL;
	json_t *status = json_incref(json_object_get(reply, "status"));
	if (!reply)
		status = hspmd_control_ask_slurm(job, contact != NULL);
	else if (!status)
		hspmd_fail(err, "the controller's answer has no status");
	json_decref(reply);
	json_decref(hello);
	json_decref(contact);
	return status;
}

bool top_ask_knows(const char *job, struct hspmd_error *err)
{
	json_t *contact = hspmd_contact_find(job, getenv("SLURM_CLUSTER_NAME"), err);
	json_t *status = contact ? NULL : hspmd_control_ask_slurm(job, false);
	bool known = contact || status;
	json_decref(contact);
	json_decref(status);
	return known;
}

static void *ask_again_and_again(void *argument)
{
	struct top_ask *a = argument;
	char job[sizeof a->job];
	pthread_mutex_lock(&a->lock);
	for (;;) {
		unsigned about = a->about;
		memcpy(job, a->job, sizeof job);
		pthread_mutex_unlock(&a->lock);
		struct hspmd_error err = { "" };
		json_t *answer = *job ? ask_status(job, &err) : hspmd_control_jobs();
		pthread_mutex_lock(&a->lock);
		if (a->about != about) {
			json_decref(answer);
			continue;
		}
		json_decref(a->answer);
		a->answer = answer;
		snprintf(a->why, sizeof a->why, "%s", answer ? "" : err.text);
		a->has_answer = true;
		wake(a);
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		double seconds = (double)until.tv_nsec * 1e-9 + a->every_s;
		until.tv_sec += (time_t)seconds;
		until.tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9);
		while (a->about == about && pthread_cond_timedwait(&a->changed, &a->lock, &until) != ETIMEDOUT)
			;
	}
	return NULL;
}

struct top_ask *top_ask_start(const char *job, double every_s, struct hspmd_error *err)
{
	struct top_ask *a = &the_one;
	pthread_condattr_t clock;
	pthread_t thread;
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&a->changed, &clock);
	pthread_condattr_destroy(&clock);
	a->every_s = every_s;
	snprintf(a->job, sizeof a->job, "%s", job);
	a->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (a->fd < 0) {
		hspmd_fail_errno(err, "eventfd");
		return NULL;
	}
	if (pthread_create(&thread, NULL, ask_again_and_again, a)) {
		hspmd_fail(err, "cannot start a thread");
		return NULL;
	}
	pthread_detach(thread);
	return a;
}

int top_ask_fd(const struct top_ask *a)
{
	return a->fd;
}

void top_ask_about(struct top_ask *a, const char *job)
{
	pthread_mutex_lock(&a->lock);
	snprintf(a->job, sizeof a->job, "%s", job);
	a->about++;
	json_decref(a->answer);
	a->answer = NULL;
	a->has_answer = false;
	pthread_cond_signal(&a->changed);
	pthread_mutex_unlock(&a->lock);
}

bool top_ask_take(struct top_ask *a, json_t **answer, char *why, size_t size)
{
	uint64_t count;
	while (read(a->fd, &count, sizeof count) < 0 && errno == EINTR)
		;
	pthread_mutex_lock(&a->lock);
	bool has = a->has_answer;
	*answer = a->answer;
	snprintf(why, size, "%s", a->why);
	a->answer = NULL;
	a->has_answer = false;
	pthread_mutex_unlock(&a->lock);
	return has;
}

/* ---- requests */

struct request {
	struct top_ask *ask;
	char job[sizeof((struct top_ask *)0)->job];
	json_t *hello;
};

static void *send_request(void *argument)
{
	struct request *r = argument;
	struct top_ask *a = r->ask;
	struct hspmd_error err = { "" };
	json_t *contact = hspmd_contact_find(r->job, getenv("SLURM_CLUSTER_NAME"), &err);
	json_t *reply = contact ? hspmd_control_call(contact, r->hello, GREET_S, REQUEST_S + ANSWER_S, &err) : NULL;
	const char *said = json_string_value(json_object_get(reply, "text"));
	pthread_mutex_lock(&a->lock);
	snprintf(a->notice, sizeof a->notice, "%s: %s", json_string_value(json_object_get(r->hello, "command")),
	         reply ? said ? said : "done" : err.text);
	a->has_notice = true;
	a->requesting = false;
	pthread_mutex_unlock(&a->lock);
	wake(a);
	json_decref(reply);
	json_decref(contact);
	json_decref(r->hello);
	free(r);
	return NULL;
}

bool top_ask_request(struct top_ask *a, json_t *request)
{
	struct request *r = calloc(1, sizeof *r);
	pthread_t thread;
	pthread_mutex_lock(&a->lock);
	bool free_to = r && request && !a->requesting;
	if (free_to) {
		r->ask = a;
		r->hello = request;
		memcpy(r->job, a->job, sizeof r->job);
		json_object_set_new(request, "role", json_string("command"));
		json_object_set_new(request, "timeout_s", json_real(REQUEST_S));
		a->requesting = free_to = !pthread_create(&thread, NULL, send_request, r);
	}
	pthread_mutex_unlock(&a->lock);
	if (!free_to) {
		json_decref(request);
		free(r);
		return false;
	}
	pthread_detach(thread);
	return true;
}

bool top_ask_take_notice(struct top_ask *a, char *text, size_t size)
{
	pthread_mutex_lock(&a->lock);
	bool has = a->has_notice;
	if (has)
		snprintf(text, size, "%s", a->notice);
	a->has_notice = false;
	pthread_mutex_unlock(&a->lock);
	return has;
}
