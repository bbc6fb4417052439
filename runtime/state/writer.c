/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a worker's shard while it trains on. A thread copies the live state into an image of the file while the next step computes
 * gradients, which does not change the state. Before the state changes, the caller helps to copy the rest, which is the only part that
 * delays training. Checksums and disk writes follow in the thread, and in that of the shared folder (shared_writer.c). From a device with
 * its own memory the thread copies concurrently with the kernels, the caller in order with them. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/condition.h"
#include "common/json.h"
#include "common/log.h"
#include "common/memory_left.h"
#include "runtime/state/state_internal.h"

/* Bytes copied at a time, so that two threads share the work evenly; full blocks. */
#define CHUNK ((size_t)4 * HSPMD_BLOCK_BYTES)

enum phase { IDLE, COPYING, WRITING };

struct chunk {
	const char *from;
	char *to;
	size_t bytes, block; /* index in the image of the first of its blocks */
	bool host;           /* the source is in host memory */
};

struct hspmd_writer {
	struct hspmd_device *dev;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum phase phase;
	bool quit;
	struct hspmd_image *image;
	bool image_good, passed_on; /* passed_on: to the shared folder's thread, which may still write it */
	bool host;                  /* all of the source is in host memory */
	bool unread; /* some of the state could not be copied */
	struct chunk *chunks;
	size_t chunk_count, chunk_capacity, copied;
	atomic_size_t next; /* next chunk to copy */
	int64_t step, generation;
	char *file, *node, **locations, *set; /* set NULL: extents are reported */
	int location_count;
	char *shared;                              /* the shared folder; NULL: not of this job */
	struct hspmd_shared_writer *shared_writer; /* NULL: no job has had one */
	const struct hspmd_copy_routes *copies; /* NULL: none, or detached */
	bool with_copies;                       /* the job requested copies */
	bool copying_out;                       /* the thread uses the transport for copies */
	double begun, held_s;
	int outcome; /* 0 none, 1 written, -1 failed */
	json_t *report;
	struct hspmd_error error;
};

/* ---- the thread */

/* A caller that delays training only copies; the checksums of these chunks are computed by the thread later. */
static int copy_chunk(struct hspmd_writer *w, const struct chunk *c, bool holding, struct hspmd_error *err)
{
	if (!w->host && !c->host)
		return holding ? w->dev->ops->to_host(w->dev, c->to, c->from, c->bytes, err)
		               : w->dev->ops->to_host_concurrent(w->dev, c->to, c->from, c->bytes, err);
	if (holding)
		memcpy(c->to, c->from, c->bytes);
	else
		hspmd_image_copy(w->image, c->block, c->to, c->from, c->bytes);
	return 0;
}

/* Copy chunks that no thread has taken yet. One that cannot be copied counts as done, and makes the checkpoint fail. */
static int copy_some(struct hspmd_writer *w, bool holding, struct hspmd_error *err)
{
	size_t done = 0, i;
	int status = 0;
	for (; (i = atomic_fetch_add(&w->next, 1)) < w->chunk_count; done++)
		if (!status)
			status = copy_chunk(w, &w->chunks[i], holding, err);
	pthread_mutex_lock(&w->lock);
	w->copied += done;
	w->unread |= status != 0;
	if (w->copied == w->chunk_count)
		pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	return status;
}

/* Write to all locations; *written counts the successful ones. NULL: memory is short. */
static json_t *write_locations(struct hspmd_writer *w, int *written, struct hspmd_error *err)
{
	json_t *locations = json_array();
	int bad = !locations;
	*written = 0;
	for (int i = 0; i < w->location_count && !bad; i++) {
		struct hspmd_error why = { "" };
		int rv = hspmd_image_write(w->image, w->locations[i], w->step, w->generation, w->file, &why);
		*written += !rv;
		if (rv) {
			hspmd_debug("checkpoint of step %lld: %s", (long long)w->step, why.text); /* the controller tells it, once */
			*err = why;
		}
		if (rv || !w->set)
			bad |= json_array_append_new(locations, json_pack("{s:s, s:o}", "place", w->locations[i], "error",
			                                                  rv ? json_string(why.text) : json_null()));
	}
	if (bad)
		hspmd_fail_memory(err, "reporting a checkpoint");
	return hspmd_json_unless_failed(bad, locations);
}

/* Copies are optional: failures are only reported. */
static json_t *make_copies(struct hspmd_writer *w)
{
	struct hspmd_error err = { "aborted" };
	json_t *kept = NULL;
	pthread_mutex_lock(&w->lock);
	const struct hspmd_copy_routes *copies = w->copies;
	w->copying_out = copies != NULL;
	pthread_mutex_unlock(&w->lock);
	int rv = copies ? hspmd_copies_run(copies, w->node, w->step, w->generation, w->file, w->image, w->set, &kept, &err) : -1;
	pthread_mutex_lock(&w->lock);
	w->copying_out = false;
	w->copies = NULL;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	if (rv)
		hspmd_warn("copies of the checkpoint of step %lld: %s", (long long)w->step, err.text);
	return json_pack("{s:o, s:o}", "shards", kept ? kept : json_array(), "error", rv ? json_string(err.text) : json_null());
}

/* The image is sealed, or (err) cannot be. */
static void pass_on(struct hspmd_writer *w, bool sealed, const struct hspmd_error *err)
{
	w->passed_on = w->shared && sealed;
	if (w->passed_on)
		hspmd_shared_writer_begin(w->shared_writer, &(struct hspmd_shared_job){ .image = w->image,
		                                                                        .location = w->shared,
		                                                                        .file = w->file,
		                                                                        .node = w->node,
		                                                                        .set = w->set,
		                                                                        .step = w->step,
		                                                                        .generation = w->generation });
	else if (w->shared)
		hspmd_shared_writer_fail(w->shared_writer, err);
}

static json_t *write_image(struct hspmd_writer *w, bool with_copies, struct hspmd_error *err)
{
	int written = 0;
	bool sealed = !hspmd_image_seal(w->image, err);
	json_t *locations = sealed ? write_locations(w, &written, err) : NULL;
	pass_on(w, sealed, err);
	/* Also if this node's disk failed: the other workers wait for this one, and a copy elsewhere is then the more valuable. */
	json_t *copies = with_copies && sealed ? make_copies(w) : NULL;
	if (!locations || (!written && !copies && w->location_count)) {
		json_decref(locations);
		json_decref(copies);
		return NULL;
	}
	json_t *shard = hspmd_image_shard_json(w->image, w->file, written ? w->node : NULL, w->set);
	pthread_mutex_lock(&w->lock);
	double held_s = w->held_s;
	pthread_mutex_unlock(&w->lock);
	json_t *report =
	        json_pack("{s:o, s:o, s:f, s:f}", "shard", shard, "places", locations, "seconds", hspmd_now() - w->begun, "hold_s", held_s);
	if (report && !w->set && json_object_set_new(report, "bytes", json_integer((json_int_t)w->image->bytes)))
		hspmd_fail_memory(err, "reporting a checkpoint");
	if (!report || (copies && json_object_set(report, "copies", copies)))
		hspmd_fail_memory(err, "reporting a checkpoint");
	json_decref(copies);
	return report;
}

static void *run(void *arg)
{
	struct hspmd_writer *w = arg;
	pthread_mutex_lock(&w->lock);
	for (;;) {
		while (w->phase != COPYING && !w->quit)
			pthread_cond_wait(&w->changed, &w->lock);
		if (w->phase != COPYING)
			break;
		pthread_mutex_unlock(&w->lock);
		struct hspmd_error err = { "the state could not be read" };
		copy_some(w, false, &err);
		pthread_mutex_lock(&w->lock);
		while (w->copied < w->chunk_count)
			pthread_cond_wait(&w->changed, &w->lock);
		w->phase = WRITING;
		bool with_copies = w->with_copies, unread = w->unread;
		pthread_mutex_unlock(&w->lock);
		if (unread)
			pass_on(w, false, &err);
		json_t *report = unread ? NULL : write_image(w, with_copies, &err);
		pthread_mutex_lock(&w->lock);
		w->report = report;
		w->error = err;
		w->outcome = report ? 1 : -1;
		w->image_good = report != NULL;
		w->phase = IDLE;
		pthread_cond_broadcast(&w->changed);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* ---- for callers */

struct hspmd_writer *hspmd_writer_create(struct hspmd_device *dev, struct hspmd_error *err)
{
	struct hspmd_writer *w = hspmd_calloc(1, sizeof *w);
	if (w)
		w->image = hspmd_calloc(1, sizeof *w->image);
	if (!w || !w->image) {
		free(w);
		hspmd_fail_memory(err, "starting the checkpoint writer");
		return NULL;
	}
	w->dev = dev;
	pthread_mutex_init(&w->lock, NULL);
	hspmd_condition_init(&w->changed);
	int failed = pthread_create(&w->thread, NULL, run, w);
	if (failed) {
		pthread_cond_destroy(&w->changed);
		pthread_mutex_destroy(&w->lock);
		free(w->image);
		free(w);
		errno = failed;
		hspmd_fail_errno(err, "starting the checkpoint writer");
		return NULL;
	}
	return w;
}

static void forget_job(struct hspmd_writer *w)
{
	for (int i = 0; i < w->location_count; i++)
		free(w->locations[i]);
	free(w->locations);
	free(w->file);
	free(w->node);
	free(w->set);
	free(w->shared);
	w->locations = NULL;
	w->file = w->node = w->set = w->shared = NULL;
	w->location_count = 0;
}

void hspmd_writer_destroy(struct hspmd_writer *w)
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
	hspmd_shared_writer_destroy(w->shared_writer); /* it may still write the image */
	hspmd_image_free(w->image);
	free(w->image);
	json_decref(w->report);
	free(w->chunks);
	free(w);
}

static int copy_job(struct hspmd_writer *w, const struct hspmd_writer_job *job, struct hspmd_error *err)
{
	forget_job(w);
	w->step = job->step;
	w->generation = job->generation;
	w->file = strdup(job->file);
	w->node = strdup(job->node);
	w->locations = hspmd_calloc((size_t)job->location_count, sizeof *w->locations);
	w->set = job->set ? strdup(job->set) : NULL;
	w->shared = job->shared ? strdup(job->shared) : NULL;
	bool whole = w->file && w->node && w->locations && (w->set || !job->set) && (w->shared || !job->shared);
	for (int i = 0; whole && i < job->location_count; i++) {
		w->locations[i] = strdup(job->locations[i]);
		whole = w->locations[i] != NULL;
		w->location_count += whole;
	}
	return whole ? 0 : hspmd_fail_memory(err, "beginning a checkpoint");
}

static int list_chunks(struct hspmd_writer *w, const struct hspmd_state_slice *slices, size_t count, struct hspmd_error *err)
{
	size_t block = 0;
	w->chunk_count = 0;
	for (size_t i = 0; i < count; i++) {
		const struct hspmd_extent *e = &w->image->extents[i];
		for (uint64_t at = 0; at < e->bytes; at += CHUNK) {
			if (hspmd_array_grow(&w->chunks, &w->chunk_capacity, w->chunk_count, sizeof *w->chunks))
				return hspmd_fail_memory(err, "beginning a checkpoint");
			size_t bytes = e->bytes - at < CHUNK ? (size_t)(e->bytes - at) : CHUNK;
			w->chunks[w->chunk_count++] = (struct chunk){ (const char *)slices[i].data + at, w->image->data + e->offset + at,
				                                      bytes, block, slices[i].in_host };
			block += hspmd_block_count(bytes);
		}
	}
	return 0;
}

/* While the shared folder is busy with the image, the next shard needs another one. Without memory to spare the shard fails: training comes
 * first. idle: the shared folder was idle a moment ago, and is this job's now. */
static int have_image(struct hspmd_writer *w, bool idle, struct hspmd_error *err)
{
	uint64_t left, wanted = w->image->capacity + w->image->capacity / 4;
	if (w->passed_on && !idle && hspmd_shared_writer_busy(w->shared_writer)) {
		if ((left = hspmd_memory_left()) < wanted)
			return hspmd_fail(err,
			                  "%s is busy with the last checkpoint, and another one needs %" PRIu64 " MiB of memory: %" PRIu64
			                  " MiB are free",
			                  w->shared, wanted >> 20, left >> 20);
		struct hspmd_image *other = hspmd_calloc(1, sizeof *other);
		if (!other)
			return hspmd_fail_memory(err, "beginning a checkpoint");
		if (hspmd_shared_writer_leave(w->shared_writer, w->image))
			w->image = other;
		else
			free(other); /* it has ended meanwhile */
	}
	w->passed_on = false;
	return 0;
}

/* Takes the thread of the shared folder for this job, if the job is for it. */
static int claim_shared(struct hspmd_writer *w, const struct hspmd_writer_job *job, struct hspmd_error *err)
{
	if (!job->shared)
		return 0;
	if (!w->shared_writer && !(w->shared_writer = hspmd_shared_writer_create(err)))
		return -1;
	return hspmd_shared_writer_claim(w->shared_writer, err);
}

static int prepare(struct hspmd_writer *w, const struct hspmd_writer_job *job, const struct hspmd_state_slice *slices, size_t count,
                   struct hspmd_error *err)
{
	w->image_good = false;
	if (have_image(w, job->shared, err) || copy_job(w, job, err) || hspmd_image_layout(w->image, slices, count, err) ||
	    list_chunks(w, slices, count, err))
		return -1;
	w->copied = 0;
	w->unread = false;
	w->host = !w->dev || w->dev->ops->host_memory || job->host;
	if (w->host)
		return 0;
	if (w->dev->ops->to_host_concurrent) /* of the data that exists now */
		return w->dev->ops->synchronise(w->dev, err);
	/* Such a device is used by one thread only, so its memory is read here and now. */
	for (size_t i = 0; i < w->chunk_count; i++)
		if (copy_chunk(w, &w->chunks[i], true, err))
			return -1;
	w->copied = w->chunk_count;
	return 0;
}

int hspmd_writer_begin(struct hspmd_writer *w, const struct hspmd_writer_job *job, const struct hspmd_state_slice *slices, size_t count,
                       struct hspmd_error *err)
{
	double start = hspmd_now();
	if (hspmd_writer_busy(w))
		return hspmd_fail(err, "the checkpoint of step %lld is still being written", (long long)w->step);
	/* The thread is idle until it is signalled: no other thread uses these fields. */
	w->begun = start;
	if (claim_shared(w, job, err))
		return -1;
	if (prepare(w, job, slices, count, err)) {
		if (job->shared)
			hspmd_shared_writer_fail(w->shared_writer, err);
		return -1;
	}
	pthread_mutex_lock(&w->lock);
	json_decref(w->report);
	w->report = NULL;
	w->outcome = 0;
	atomic_store(&w->next, w->copied);
	w->held_s = hspmd_now() - start;
	w->copies = job->copies;
	w->with_copies = job->copies != NULL;
	w->phase = COPYING;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	return 0;
}

bool hspmd_writer_is_copying(struct hspmd_writer *w)
{
	pthread_mutex_lock(&w->lock);
	bool copying = w->phase == COPYING;
	pthread_mutex_unlock(&w->lock);
	return copying;
}

int hspmd_writer_wait_copied(struct hspmd_writer *w, struct hspmd_error *err)
{
	if (!hspmd_writer_is_copying(w))
		return 0;
	double start = hspmd_now();
	int status = copy_some(w, true, err);
	pthread_mutex_lock(&w->lock);
	while (w->copied < w->chunk_count)
		pthread_cond_wait(&w->changed, &w->lock);
	w->held_s += hspmd_now() - start;
	pthread_mutex_unlock(&w->lock);
	return status;
}

void hspmd_writer_detach(struct hspmd_writer *w)
{
	pthread_mutex_lock(&w->lock);
	w->copies = NULL;
	while (w->copying_out)
		pthread_cond_wait(&w->changed, &w->lock);
	pthread_mutex_unlock(&w->lock);
}

bool hspmd_writer_busy(struct hspmd_writer *w)
{
	pthread_mutex_lock(&w->lock);
	bool busy = w->phase != IDLE;
	pthread_mutex_unlock(&w->lock);
	return busy;
}

bool hspmd_writer_shared_busy(struct hspmd_writer *w)
{
	return hspmd_shared_writer_busy(w->shared_writer);
}

int hspmd_writer_result(struct hspmd_writer *w, double timeout_s, json_t **report, struct hspmd_error *err)
{
	*report = NULL;
	struct timespec until = hspmd_condition_deadline(timeout_s > 0 ? timeout_s : 0);
	pthread_mutex_lock(&w->lock);
	while (!w->outcome && w->phase != IDLE && timeout_s > 0)
		if (pthread_cond_timedwait(&w->changed, &w->lock, &until))
			break;
	int outcome = w->outcome;
	w->outcome = 0;
	if (outcome) {
		*report = w->report;
		w->report = NULL;
	}
	if (outcome < 0 && err)
		*err = w->error;
	pthread_mutex_unlock(&w->lock);
	return outcome;
}

int hspmd_writer_shared_result(struct hspmd_writer *w, double timeout_s, json_t **report, struct hspmd_error *err)
{
	return hspmd_shared_writer_result(w->shared_writer, timeout_s, report, err);
}

const void *hspmd_writer_image(struct hspmd_writer *w, size_t *bytes)
{
	pthread_mutex_lock(&w->lock);
	bool good = w->phase == IDLE && w->image_good;
	pthread_mutex_unlock(&w->lock);
	*bytes = good ? w->image->bytes : 0;
	return good ? w->image->data : NULL;
}
