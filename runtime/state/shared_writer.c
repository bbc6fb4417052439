/* SPDX-License-Identifier: Apache-2.0 */
/* Writes shards to the folder that all nodes share, in a thread of its own: such a folder may be slow or hang for minutes, and what goes to
 * a node's own folders does not wait for it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/condition.h"
#include "common/log.h"
#include "runtime/state/state_internal.h"

enum phase { IDLE, CLAIMED, WRITING };

struct hspmd_shared_writer {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum phase phase;
	bool quit, owned; /* owned: the image is this writer's to free */
	struct hspmd_image *image;
	char *location, *file, *node, *set;
	int64_t step, generation;
	double begun;
	int outcome; /* 0 none, 1 written, -1 failed */
	json_t *report;
	struct hspmd_error error;
};

/* ---- the thread */

static json_t *write_image(const struct hspmd_shared_writer *w, struct hspmd_error *err)
{
	if (hspmd_image_write(w->image, w->location, w->step, w->generation, w->file, err))
		return NULL;
	json_t *report = json_pack("{s:o, s:f}", "shard", hspmd_image_shard_json(w->image, w->file, w->node, w->set), "seconds",
	                           hspmd_now() - w->begun);
	if (!report)
		hspmd_fail_memory(err, "reporting a checkpoint");
	return report;
}

static void forget_job(struct hspmd_shared_writer *w)
{
	if (w->owned) {
		hspmd_image_free(w->image);
		free(w->image);
	}
	free(w->location);
	free(w->file);
	free(w->node);
	free(w->set);
	w->image = NULL;
	w->owned = false;
	w->location = w->file = w->node = w->set = NULL;
}

/* Call with the lock held. Takes over `report`. */
static void end_job(struct hspmd_shared_writer *w, json_t *report, const struct hspmd_error *err)
{
	json_decref(w->report);
	w->report = report;
	w->error = *err;
	w->outcome = report ? 1 : -1;
	forget_job(w);
	w->phase = IDLE;
	pthread_cond_broadcast(&w->changed);
}

static void *run(void *arg)
{
	struct hspmd_shared_writer *w = arg;
	pthread_mutex_lock(&w->lock);
	for (;;) {
		while (w->phase != WRITING && !w->quit)
			pthread_cond_wait(&w->changed, &w->lock);
		if (w->phase != WRITING)
			break;
		pthread_mutex_unlock(&w->lock);
		struct hspmd_error err = { "" };
		json_t *report = write_image(w, &err);
		if (!report)
			hspmd_warn("checkpoint of step %lld: %s", (long long)w->step, err.text);
		pthread_mutex_lock(&w->lock);
		end_job(w, report, &err);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* ---- for the writer */

struct hspmd_shared_writer *hspmd_shared_writer_create(struct hspmd_error *err)
{
	struct hspmd_shared_writer *w = hspmd_calloc(1, sizeof *w);
	if (!w) {
		hspmd_fail_memory(err, "starting the writer of the shared folder");
		return NULL;
	}
	pthread_mutex_init(&w->lock, NULL);
	hspmd_condition_init(&w->changed);
	int failed = pthread_create(&w->thread, NULL, run, w);
	if (!failed)
		return w;
	hspmd_fail(err, "cannot start a thread for the shared folder: %s", strerror(failed));
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	free(w);
	return NULL;
}

void hspmd_shared_writer_destroy(struct hspmd_shared_writer *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->quit = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	forget_job(w);
	json_decref(w->report);
	free(w);
}

int hspmd_shared_writer_claim(struct hspmd_shared_writer *w, struct hspmd_error *err)
{
	pthread_mutex_lock(&w->lock);
	bool idle = w->phase == IDLE;
	if (idle) {
		w->phase = CLAIMED;
		w->outcome = 0;
		w->begun = hspmd_now();
	}
	pthread_mutex_unlock(&w->lock);
	return idle ? 0 : hspmd_fail(err, "the shared folder is busy with the checkpoint of step %lld", (long long)w->step);
}

void hspmd_shared_writer_begin(struct hspmd_shared_writer *w, const struct hspmd_shared_job *job)
{
	struct hspmd_error err = { "" };
	pthread_mutex_lock(&w->lock);
	w->step = job->step;
	w->generation = job->generation;
	w->image = job->image;
	w->location = strdup(job->location);
	w->file = strdup(job->file);
	w->node = strdup(job->node);
	w->set = job->set ? strdup(job->set) : NULL;
	if (w->location && w->file && w->node && (w->set || !job->set)) {
		w->phase = WRITING;
		pthread_cond_broadcast(&w->changed);
	} else {
		hspmd_fail_memory(&err, "beginning a checkpoint");
		end_job(w, NULL, &err);
	}
	pthread_mutex_unlock(&w->lock);
}

void hspmd_shared_writer_fail(struct hspmd_shared_writer *w, const struct hspmd_error *err)
{
	pthread_mutex_lock(&w->lock);
	end_job(w, NULL, err);
	pthread_mutex_unlock(&w->lock);
}

bool hspmd_shared_writer_busy(struct hspmd_shared_writer *w)
{
	if (!w)
		return false;
	pthread_mutex_lock(&w->lock);
	bool busy = w->phase != IDLE;
	pthread_mutex_unlock(&w->lock);
	return busy;
}

bool hspmd_shared_writer_leave(struct hspmd_shared_writer *w, const struct hspmd_image *image)
{
	if (!w)
		return false;
	pthread_mutex_lock(&w->lock);
	bool its = w->phase == WRITING && w->image == image;
	w->owned |= its;
	pthread_mutex_unlock(&w->lock);
	return its;
}

int hspmd_shared_writer_result(struct hspmd_shared_writer *w, double timeout_s, json_t **report, struct hspmd_error *err)
{
	*report = NULL;
	if (!w)
		return 0;
	struct timespec until = hspmd_condition_deadline(timeout_s > 0 ? timeout_s : 0);
	pthread_mutex_lock(&w->lock);
	while (!w->outcome && w->phase != IDLE && timeout_s > 0)
		if (pthread_cond_timedwait(&w->changed, &w->lock, &until))
			break;
	int outcome = w->outcome;
	w->outcome = 0;
	*report = outcome > 0 ? json_incref(w->report) : NULL;
	json_decref(outcome ? w->report : NULL);
	w->report = outcome ? NULL : w->report;
	if (outcome < 0 && err)
		*err = w->error;
	pthread_mutex_unlock(&w->lock);
	return outcome;
}
