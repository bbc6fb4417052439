/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's part in a checkpoint: takes an image of the state after a step before which all workers had been asked, or of the state in
 * which they stopped, writes it in the background, and reports when it is on disk. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/log.h"
#include "common/shm_dir.h"
#include "runtime/state/checkpoint.h"
#include "runtime/worker/worker_internal.h"

struct worker_checkpoints {
	struct hspmd_writer *writer;
	pthread_t waiter; /* reports to the controller when the writer is done */
	bool waiting;
	/* Folders of the latest request, as the controller named them; this node uses a subfolder of each. NULL: not requested. */
	char *local, *memory;
	struct hspmd_copy_routes copies; /* the writer may still use it */
	char *copies_location;
	bool *declined; /* by the placement's `from`: not kept */
	int64_t logged; /* the generation in which this was last logged */
};

/* Argument of the waiter thread. */
struct wait {
	struct worker *w;
	char *id;
	int64_t step;
	int generation;
};

void worker_request_checkpoint(struct worker *w, json_t *message)
{
	pthread_mutex_lock(&w->lock);
	json_decref(w->checkpoint_request); /* a later request replaces one that is not yet executed */
	w->checkpoint_request = json_incref(message);
	pthread_mutex_unlock(&w->lock);
}

static json_t *take_request(struct worker *w)
{
	pthread_mutex_lock(&w->lock);
	json_t *request = w->checkpoint_request;
	w->checkpoint_request = NULL;
	pthread_mutex_unlock(&w->lock);
	return request;
}

void worker_forget_checkpoint(struct worker *w)
{
	json_decref(take_request(w));
}

/* Returns true if a request for the active generation has not been served yet. */
static bool is_asked(struct worker *w)
{
	pthread_mutex_lock(&w->lock);
	bool asked = w->checkpoint_request && w->active &&
	             json_integer_value(json_object_get(w->checkpoint_request, "generation")) == w->active->number;
	pthread_mutex_unlock(&w->lock);
	return asked;
}

bool worker_checkpoint_possible(struct worker *w)
{
	return is_asked(w) && !(w->checkpoints && w->checkpoints->waiting && hspmd_writer_busy(w->checkpoints->writer));
}

static int answer(struct worker *w, const char *id, int64_t step, int generation, json_t *report, const char *error)
{
	json_t *m = report ? report : json_object();
	json_t *head = json_pack("{ss,ss,sI,si,ss*}", "type", "checkpoint_written", "id", id, "step", (json_int_t)step, "generation",
	                         generation, "error", error);
	if (!m || !head || json_object_update(m, head)) {
		json_decref(m);
		m = NULL;
	}
	json_decref(head);
	return hspmd_inbox_send(w->inbox, m);
}

static void *wait_written(void *argument)
{
	struct wait *p = argument;
	struct hspmd_error err = { "" };
	json_t *report = NULL;
	int status;
	while ((status = hspmd_writer_result(p->w->checkpoints->writer, 1, &report, &err)) == 0)
		if (!hspmd_writer_busy(p->w->checkpoints->writer))
			break;
	if (status == 0)
		status = hspmd_writer_result(p->w->checkpoints->writer, 0, &report, &err);
	answer(p->w, p->id, p->step, p->generation, status == 1 ? report : NULL,
	       status == 1   ? NULL
	       : err.text[0] ? err.text
	                     : "not written");
	hspmd_inbox_post(p->w->inbox, json_pack("{ss}", "type", "checkpoint")); /* one that has waited for the writer can be served now */
	free(p->id);
	free(p);
	return NULL;
}

static void end_wait(struct worker_checkpoints *c)
{
	if (c->waiting)
		pthread_join(c->waiter, NULL);
	c->waiting = false;
}

/* The parameters in this worker's shard, as text for the root. The caller frees it; NULL: memory. */
static char *set_of(const struct hspmd_generation *g)
{
	const struct hspmd_program *p = g->program;
	bool *has = hspmd_calloc((size_t)p->state_count, sizeof *has);
	for (int i = 0; has && i < p->state_count; i++)
		has[i] = p->states[i].param >= 0 && g->placement.writes[i];
	char *text = has ? hspmd_manifest_set_text(has, p->state_count) : NULL;
	free(has);
	return text;
}

static struct worker_checkpoints *checkpoints(struct worker *w, struct hspmd_error *err)
{
	if (w->checkpoints)
		return w->checkpoints;
	struct worker_checkpoints *c = calloc(1, sizeof *c);
	if (!c) {
		hspmd_fail_memory(err, "starting a checkpoint");
		return NULL;
	}
	c->writer = hspmd_writer_create(w->setup.device, err);
	if (!c->writer) {
		free(c);
		return NULL;
	}
	return w->checkpoints = c;
}

/* A job's local folder has the same path on every node; nodes that share a disk must use different subfolders. */
static char *node_folder(const struct worker *w, const char *local)
{
	return hspmd_asprintf("%s/%s", local, w->setup.node);
}

/* If the folder is one that every node has for itself: this node's subfolder. */
static char *location_of(const struct worker *w, const char *folder)
{
	const struct worker_checkpoints *c = w->checkpoints;
	bool own = c && ((c->local && !strcmp(folder, c->local)) || (c->memory && !strcmp(folder, c->memory)));
	return own ? node_folder(w, folder) : strdup(folder);
}

static int remember_folders(struct worker_checkpoints *c, const char *local, const char *memory, struct hspmd_error *err)
{
	free(c->local);
	free(c->memory);
	c->local = local ? strdup(local) : NULL;
	c->memory = memory ? strdup(memory) : NULL;
	return (local && !c->local) || (memory && !c->memory) ? hspmd_fail_memory(err, "starting a checkpoint") : 0;
}

/* Prepare to keep copies for others, in this node's first location. */
static int set_up_copies(struct worker *w, const char *location, struct hspmd_error *err)
{
	struct worker_checkpoints *c = w->checkpoints;
	const struct hspmd_generation *g = w->active;
	free(c->copies_location);
	c->copies_location = strdup(location);
	c->copies = (struct hspmd_copy_routes){ .transport = g->copy_transport,
		                                .to = g->placement.to,
		                                .from = g->placement.from,
		                                .to_count = g->placement.to_count,
		                                .from_count = g->placement.from_count,
		                                .declined = c->declined,
		                                .location = c->copies_location };
	return c->copies_location ? 0 : hspmd_fail_memory(err, "starting a checkpoint");
}

/* Copies in memory must not displace the training: without enough space the worker writes neither its own shard nor a copy of another's. */
static int check_room(struct worker *w, const char *memory, const struct hspmd_state_slice *slices, size_t count, struct hspmd_error *err)
{
	struct worker_checkpoints *c = w->checkpoints;
	const struct hspmd_checkpoint_placement *placement = &w->active->placement;
	uint64_t bytes = 0;
	for (size_t i = 0; i < count; i++)
		bytes += (uint64_t)hspmd_box_elements(&slices[i].box) * hspmd_dtype_bytes(slices[i].dtype);
	if (hspmd_shm_dir_create(memory, err) || hspmd_shm_dir_check_space(memory, bytes, err))
		return -1;
	for (int i = 0; i < placement->from_count; i++) {
		struct hspmd_error why;
		uint64_t more = placement->from_elements[i] * hspmd_dtype_bytes(HSPMD_F32);
		c->declined[i] = hspmd_shm_dir_check_space(memory, bytes + more, &why) != 0;
		bytes += c->declined[i] ? 0 : more;
		if (c->declined[i] && c->logged != w->active->number)
			hspmd_warn("a copy of another worker's state is not kept: %s", why.text);
		c->logged = c->declined[i] ? w->active->number : c->logged;
	}
	return 0;
}

static int begin_in(struct worker *w, const char *const *folders, int folder_count, const struct hspmd_state_slice *slices, size_t count,
                    struct hspmd_error *err)
{
	struct worker_checkpoints *c = w->checkpoints;
	const struct hspmd_generation *g = w->active;
	char *locations[3] = { NULL }, name[HSPMD_SHARD_NAME_MAX], *set = set_of(g);
	struct hspmd_writer_job job = { .step = w->step,
		                        .generation = g->number,
		                        .file = hspmd_shard_name(w->setup.address, name, sizeof name),
		                        .node = w->setup.node,
		                        .locations = (const char *const *)locations,
		                        .host = hspmd_executor_spilled(g->executor),
		                        .set = set };
	int status = set ? 0 : hspmd_fail_memory(err, "starting a checkpoint");
	for (int i = 0; !status && i < folder_count; i++)
		if (!(locations[job.location_count++] = location_of(w, folders[i])))
			status = hspmd_fail_memory(err, "starting a checkpoint");
	if (!status && g->copy_transport && (c->local || c->memory)) {
		status = set_up_copies(w, locations[0], err);
		job.copies = &c->copies;
	}
	if (!status)
		status = hspmd_writer_begin(c->writer, &job, slices, count, err);
	for (int i = 0; i < job.location_count; i++)
		free(locations[i]);
	free(set);
	return status;
}

static int begin(struct worker *w, json_t *request, struct hspmd_error *err)
{
	const char *memory = json_string_value(json_object_get(request, "memory")),
	           *local = json_string_value(json_object_get(request, "local"));
	const char *shared = json_string_value(json_object_get(request, "shared")), *folders[3];
	struct worker_checkpoints *c = checkpoints(w, err);
	int folder_count = 0;
	if (!c)
		return -1;
	if (hspmd_writer_busy(c->writer)) /* waiting would stop the training */
		return hspmd_fail(err, "the previous checkpoint is still being written");
	end_wait(c);
	if (memory)
		folders[folder_count++] = memory;
	if (local)
		folders[folder_count++] = local;
	if (shared)
		folders[folder_count++] = shared;
	if (!folder_count)
		return hspmd_fail(err, "checkpoint: no folder in the request");
	size_t count;
	struct hspmd_state_slice *slices = hspmd_generation_slices(w->active, &count);
	int status = slices ? remember_folders(c, local, memory, err) : hspmd_fail_memory(err, "starting a checkpoint");
	free(c->declined);
	c->declined = hspmd_calloc((size_t)w->active->placement.from_count, sizeof *c->declined);
	if (!status && !c->declined)
		status = hspmd_fail_memory(err, "starting a checkpoint");
	if (!status && memory)
		status = check_room(w, memory, slices, count, err);
	if (!status)
		status = begin_in(w, folders, folder_count, slices, count, err);
	free(slices);
	return status;
}

/* Start to write, with a thread that reports the result. A request that cannot be started is answered too: the controller waits for all. */
static int serve(struct worker *w, json_t *request)
{
	struct hspmd_error err = { "" };
	const char *id = json_string_value(json_object_get(request, "id"));
	if (begin(w, request, &err))
		return answer(w, id ? id : "", w->step, w->active->number, NULL, err.text);
	struct wait *p = calloc(1, sizeof *p);
	if (p)
		*p = (struct wait){ w, strdup(id ? id : ""), w->step, w->active->number };
	if (!p || !p->id || pthread_create(&w->checkpoints->waiter, NULL, wait_written, p)) {
		free(p ? p->id : NULL);
		free(p);
		return answer(w, id ? id : "", w->step, w->active->number, NULL, "cannot start a thread that waits for the disk");
	}
	w->checkpoints->waiting = true;
	return 0;
}

int worker_snapshot(struct worker *w)
{
	json_t *request = take_request(w);
	int status = request ? serve(w, request) : 0; /* none: another controller has come meanwhile, which has not asked */
	json_decref(request);
	return status;
}

int worker_serve_late(struct worker *w, const char *why_not)
{
	bool holds = is_asked(w) && w->active->executor;
	if (!why_not && holds && !worker_checkpoint_possible(w))
		return 0; /* wait_written comes back to it */
	json_t *request = take_request(w);
	const char *id = json_string_value(json_object_get(request, "id"));
	int number = (int)json_integer_value(json_object_get(request, "generation")), status = 0;
	if (!why_not && !holds)
		why_not = "this worker does not hold that generation's state";
	if (request)
		status = why_not ? answer(w, id ? id : "", w->step, number, NULL, why_not) : serve(w, request);
	json_decref(request);
	return status;
}

bool worker_is_copying(const struct worker *w)
{
	return w->checkpoints && hspmd_writer_is_copying(w->checkpoints->writer);
}

int worker_before_update(struct worker *w, struct hspmd_error *err)
{
	return w->checkpoints ? hspmd_writer_wait_copied(w->checkpoints->writer, err) : 0;
}

void worker_detach(struct worker *w, struct hspmd_generation *g)
{
	if (!g || !w->checkpoints)
		return;
	atomic_store(&g->abort, 1);
	hspmd_writer_detach(w->checkpoints->writer);
}

/* ---- what commits checkpoints: `write_manifest` and `committed` */

/* One of these messages, carried out in a thread of its own, after the one before: a folder that does not answer holds up neither the
 * training nor other messages. */
struct commit {
	struct worker *w;
	json_t *message;    /* a deep copy: threads must not share reference counts */
	char *locations[3]; /* of its folders, on this node */
	int location_count;
	pthread_t before; /* the thread of the message before, if there is one */
	bool follows;
};

static void free_commit(struct commit *t)
{
	for (int i = 0; t && i < t->location_count; i++)
		free(t->locations[i]);
	if (t)
		json_decref(t->message);
	free(t);
}

/* Write the manifest into the requested folders. A folder that this node has for itself may lack the manifests of other checkpoints: what
 * may be removed there is told later (`committed`). */
static int write_manifest(const struct commit *t, struct hspmd_error *err)
{
	json_t *folders = json_object_get(t->message, "folders");
	struct hspmd_manifest *m = hspmd_manifest_from_json(json_object_get(t->message, "manifest"), "manifest", err);
	int status = m ? 0 : -1;
	for (int i = 0; !status && i < t->location_count; i++) {
		const char *location = t->locations[i];
		bool all_share = !strcmp(location, json_string_value(json_array_get(folders, (size_t)i)));
		struct hspmd_error pruning;
		status = hspmd_checkpoint_commit(location, m, err);
		if (!status && all_share && hspmd_checkpoint_prune(location, t->w->setup.job->checkpoint.keep, &pruning))
			hspmd_warn("old checkpoints are not removed: %s", pruning.text);
	}
	hspmd_manifest_destroy(m);
	return status;
}

/* Remove what the committed checkpoints replace in this node's part of a folder. */
static int keep(const struct commit *t, struct hspmd_error *err)
{
	json_t *list = json_object_get(t->message, "checkpoints"), *one;
	struct hspmd_checkpoint_id *kept = hspmd_calloc(json_array_size(list), sizeof *kept);
	size_t i;
	int status = kept ? 0 : hspmd_fail_memory(err, "removing old checkpoints");
	json_array_foreach(list, i, one)
		if (!status)
			kept[i] = (struct hspmd_checkpoint_id){ json_integer_value(json_array_get(one, 0)),
				                                json_integer_value(json_array_get(one, 1)) };
	if (!status)
		status = hspmd_checkpoint_keep(t->locations[0], kept, json_array_size(list), err);
	free(kept);
	return status;
}

static void *run_commit(void *argument)
{
	struct commit *t = argument;
	struct hspmd_error err = { "" };
	if (t->follows)
		pthread_join(t->before, NULL);
	if (!strcmp(json_string_value(json_object_get(t->message, "type")), "committed")) {
		if (keep(t, &err))
			hspmd_warn("old checkpoints are not removed: %s", err.text);
	} else {
		const char *id = json_string_value(json_object_get(t->message, "id"));
		int status = write_manifest(t, &err);
		hspmd_inbox_send(t->w->inbox, json_pack("{ss,ss,ss*}", "type", "manifest_written", "id", id ? id : "", "error",
		                                        status ? err.text : NULL));
	}
	free_commit(t);
	return NULL;
}

/* Resolves the folders here, as a later `checkpoint` may name others. NULL: memory is short, or the message is none. */
static struct commit *make_commit(struct worker *w, bool committed, const json_t *message)
{
	json_t *folders = json_object_get(message, "folders");
	const char *own = json_string_value(json_object_get(message, "folder"));
	struct commit *t = hspmd_calloc(1, sizeof *t);
	if (!t || !(t->message = json_deep_copy(message))) {
		free_commit(t);
		return NULL;
	}
	t->w = w;
	size_t count = committed ? 1 : json_array_size(folders);
	bool bad = count > sizeof t->locations / sizeof *t->locations || (committed && !own);
	for (size_t i = 0; !bad && i < count; i++) {
		const char *folder = committed ? own : json_string_value(json_array_get(folders, i));
		char *location = !folder ? NULL : committed ? node_folder(w, folder) : location_of(w, folder);
		bad = !location;
		if (location)
			t->locations[t->location_count++] = location;
	}
	if (!bad)
		return t;
	free_commit(t);
	return NULL;
}

/* 0, or -1: the agent is gone. */
static int begin_commit(struct worker *w, bool committed, const json_t *message)
{
	struct commit *t = make_commit(w, committed, message);
	pthread_t thread;
	if (t) {
		t->before = w->commit;
		t->follows = w->has_commit;
	}
	if (t && !pthread_create(&thread, NULL, run_commit, t)) {
		w->commit = thread;
		w->has_commit = true;
		return 0;
	}
	free_commit(t);
	if (committed) {
		hspmd_warn("old checkpoints are not removed: out of memory");
		return 0;
	}
	const char *id = json_string_value(json_object_get(message, "id"));
	return hspmd_inbox_send(w->inbox, json_pack("{ss,ss,ss}", "type", "manifest_written", "id", id ? id : "", "error",
	                                            "out of memory, or folders that are none"));
}

int worker_handle_checkpoint(struct worker *w, const char *type, json_t *message)
{
	bool committed = !strcmp(type, "committed");
	if (committed || !strcmp(type, "write_manifest"))
		return begin_commit(w, committed, message);
	if (strcmp(type, "checkpoint") || (w->training && is_asked(w)))
		return 0; /* the end of a step, or of the training, serves it */
	return worker_serve_late(w, NULL);
}

void worker_end_checkpoints(struct worker *w)
{
	struct worker_checkpoints *c = w->checkpoints;
	json_decref(w->checkpoint_request);
	if (w->has_commit)
		pthread_join(w->commit, NULL);
	if (!c)
		return;
	end_wait(c);
	hspmd_writer_destroy(c->writer);
	free(c->local);
	free(c->memory);
	free(c->copies_location);
	free(c->declined);
	free(c);
}
