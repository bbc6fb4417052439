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

/* What a checkpoint is written to: folders of this node, and the folder that all nodes share. Neither waits for the other. */
enum part { OWN, SHARED, PARTS };

struct worker_checkpoints {
	struct hspmd_writer *writer;
	pthread_t waiter[PARTS]; /* report to the controller when the writer is done */
	bool waiting[PARTS];
	pthread_mutex_t reports;         /* the answers of both parts go out in the order in which they are made */
	char *told_id;                   /* the last checkpoint whose shard was described: both parts have the same one; NULL: none */
	struct hspmd_copy_routes copies; /* the writer may still use it */
	char *copies_location;
	bool *declined; /* by the placement's `from`: not kept */
	int64_t logged; /* the generation in which this was last logged */
};

/* Argument of a waiter thread. */
struct wait {
	struct worker *w;
	enum part part;
	bool asked; /* the controller waits for this part */
	char *id;
	int64_t step;
	int generation;
};

void worker_request_checkpoint(struct worker *w, json_t *message)
{
	pthread_mutex_lock(&w->lock);
	json_decref(w->checkpoint_request); /* a later request replaces one that is not yet executed */
	w->checkpoint_request = json_deep_copy(message); /* threads must not share reference counts */
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

static bool wants(const json_t *request, enum part part)
{
	const json_t *shared = json_object_get(request, "shared"), *local = json_object_get(request, "local"),
	             *memory = json_object_get(request, "memory");
	return part == SHARED ? json_is_string(shared) : json_is_string(local) || json_is_string(memory);
}

/* What the request needs is still being written. Of the two parts, the shared folder need not be ready. */
static bool is_blocked(struct worker *w)
{
	struct worker_checkpoints *c = w->checkpoints;
	pthread_mutex_lock(&w->lock);
	bool own = wants(w->checkpoint_request, OWN);
	pthread_mutex_unlock(&w->lock);
	return c &&
	       ((c->waiting[OWN] && hspmd_writer_busy(c->writer)) || (!own && c->waiting[SHARED] && hspmd_writer_shared_busy(c->writer)));
}

bool worker_checkpoint_possible(struct worker *w)
{
	return is_asked(w) && !is_blocked(w);
}

static int answer(struct worker *w, enum part part, const char *id, int64_t step, int generation, json_t *report, const char *error)
{
	json_t *m = report ? report : json_object();
	json_t *head = json_pack("{ss,ss,sI,si,so*,ss*}", "type", "checkpoint_written", "id", id, "step", (json_int_t)step, "generation",
	                         generation, "shared", part == SHARED ? json_true() : NULL, "error", error);
	if (!m || !head || json_object_update(m, head)) {
		json_decref(m);
		m = NULL;
	}
	json_decref(head);
	return hspmd_inbox_send(w->inbox, m);
}

/* Answers every part that the request asks for. -1: the controller cannot be told. */
static int refuse(struct worker *w, const json_t *request, int generation, const char *why)
{
	const char *id = json_string_value(json_object_get(request, "id"));
	int status = 0;
	for (int part = 0; part < PARTS; part++)
		if (wants(request, part))
			status |= answer(w, part, id ? id : "", w->step, generation, NULL, why);
	return status;
}

/* The part is written, or (report NULL) has failed. Takes the report over. */
static void answer_written(const struct wait *p, json_t *report, const char *why_not)
{
	struct worker_checkpoints *c = p->w->checkpoints;
	pthread_mutex_lock(&c->reports);
	bool told = c->told_id && !strcmp(c->told_id, p->id),
	     there = json_array_size(json_object_get(json_object_get(report, "shard"), "nodes")) > 0;
	if (there && told) {
		json_object_del(report, "shard");
	} else if (there) { /* otherwise this part has none, but perhaps the other */
		free(c->told_id);
		c->told_id = strdup(p->id);
	}
	answer(p->w, p->part, p->id, p->step, p->generation, report, report ? NULL : why_not);
	pthread_mutex_unlock(&c->reports);
}

static void *wait_written(void *argument)
{
	struct wait *p = argument;
	struct hspmd_writer *writer = p->w->checkpoints->writer;
	bool shared = p->part == SHARED;
	struct hspmd_error err = { "" };
	json_t *report = NULL;
	int status;
	while ((status = (shared ? hspmd_writer_shared_result : hspmd_writer_result)(writer, 1, &report, &err)) == 0)
		if (!(shared ? hspmd_writer_shared_busy : hspmd_writer_busy)(writer))
			break;
	if (status == 0)
		status = (shared ? hspmd_writer_shared_result : hspmd_writer_result)(writer, 0, &report, &err);
	if (p->asked)
		answer_written(p, status == 1 ? report : NULL, err.text[0] ? err.text : "not written");
	else
		json_decref(report);
	hspmd_inbox_post(p->w->inbox, json_pack("{ss}", "type", "checkpoint")); /* one that has waited for the writer can be served now */
	free(p->id);
	free(p);
	return NULL;
}

static void end_wait(struct worker_checkpoints *c, enum part part)
{
	if (c->waiting[part])
		pthread_join(c->waiter[part], NULL);
	c->waiting[part] = false;
}

/* A thread that reports the result. */
static int begin_wait(struct worker *w, enum part part, const json_t *request)
{
	struct worker_checkpoints *c = w->checkpoints;
	const char *id = json_string_value(json_object_get(request, "id"));
	struct wait *p = calloc(1, sizeof *p);
	if (p)
		*p = (struct wait){ .w = w,
			            .part = part,
			            .asked = wants(request, part),
			            .id = strdup(id ? id : ""),
			            .step = w->step,
			            .generation = w->active->number };
	if (p && p->id && !pthread_create(&c->waiter[part], NULL, wait_written, p)) {
		c->waiting[part] = true;
		return 0;
	}
	free(p ? p->id : NULL);
	free(p);
	return !wants(request, part)
	               ? 0
	               : answer(w, part, id ? id : "", w->step, w->active->number, NULL, "cannot start a thread that waits for the disk");
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
	pthread_mutex_init(&c->reports, NULL);
	return w->checkpoints = c;
}

/* A job's local folder has the same path on every node; nodes that share a disk must use different subfolders. */
static char *node_folder(const struct worker *w, const char *local)
{
	return hspmd_asprintf("%s/%s", local, w->setup.node);
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

static int begin_in(struct worker *w, const char *const *folders, int folder_count, const char *shared,
                    const struct hspmd_state_slice *slices, size_t count, struct hspmd_error *err)
{
	struct worker_checkpoints *c = w->checkpoints;
	const struct hspmd_generation *g = w->active;
	char *locations[2] = { NULL }, name[HSPMD_SHARD_NAME_MAX], *set = set_of(g);
	struct hspmd_writer_job job = { .step = w->step,
		                        .generation = g->number,
		                        .file = hspmd_shard_name(w->setup.address, name, sizeof name),
		                        .node = w->setup.node,
		                        .locations = (const char *const *)locations,
		                        .shared = shared,
		                        .host = hspmd_executor_spilled(g->executor),
		                        .set = set };
	int status = set ? 0 : hspmd_fail_memory(err, "starting a checkpoint");
	for (int i = 0; !status && i < folder_count; i++)
		if (!(locations[job.location_count++] = node_folder(w, folders[i])))
			status = hspmd_fail_memory(err, "starting a checkpoint");
	if (!status && g->copy_transport && folder_count) {
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

/* with_shared: also into the shared folder. */
static int begin(struct worker *w, json_t *request, bool with_shared, struct hspmd_error *err)
{
	const char *memory = json_string_value(json_object_get(request, "memory")),
	           *local = json_string_value(json_object_get(request, "local"));
	const char *shared = with_shared ? json_string_value(json_object_get(request, "shared")) : NULL, *folders[2];
	struct worker_checkpoints *c = w->checkpoints;
	int folder_count = 0;
	if (hspmd_writer_busy(c->writer)) /* waiting would stop the training */
		return hspmd_fail(err, "the previous checkpoint is still being written");
	if (memory)
		folders[folder_count++] = memory;
	if (local)
		folders[folder_count++] = local;
	if (!folder_count && !shared)
		return hspmd_fail(err, "checkpoint: no folder in the request");
	end_wait(c, OWN);
	if (shared)
		end_wait(c, SHARED);
	size_t count;
	struct hspmd_state_slice *slices = hspmd_generation_slices(w->active, &count);
	int status = slices ? 0 : hspmd_fail_memory(err, "starting a checkpoint");
	free(c->declined);
	c->declined = hspmd_calloc((size_t)w->active->placement.from_count, sizeof *c->declined);
	if (!status && !c->declined)
		status = hspmd_fail_memory(err, "starting a checkpoint");
	if (!status && memory)
		status = check_room(w, memory, slices, count, err);
	if (!status)
		status = begin_in(w, folders, folder_count, shared, slices, count, err);
	free(slices);
	return status;
}

/* Start to write, with threads that report the results. A request that cannot be started is answered too: the controller waits for all. */
static int serve(struct worker *w, json_t *request)
{
	struct hspmd_error err = { "" };
	const char *id = json_string_value(json_object_get(request, "id"));
	bool shared = wants(request, SHARED), own = wants(request, OWN);
	if (!checkpoints(w, &err))
		return refuse(w, request, w->active->number, err.text);
	bool busy = shared && hspmd_writer_shared_busy(w->checkpoints->writer), with_shared = shared && !busy;
	if (begin(w, request, with_shared || !own, &err))
		return refuse(w, request, w->active->number, err.text);
	int status = begin_wait(w, OWN, request);
	if (with_shared)
		status |= begin_wait(w, SHARED, request);
	else if (busy)
		status |= answer(w, SHARED, id ? id : "", w->step, w->active->number, NULL,
		                 "the shared folder is still busy with an earlier checkpoint");
	return status;
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
	if (!why_not && holds && is_blocked(w))
		return 0; /* wait_written comes back to it */
	json_t *request = take_request(w);
	int number = (int)json_integer_value(json_object_get(request, "generation")), status = 0;
	if (!why_not && !holds)
		why_not = "this worker does not hold that generation's state";
	if (request)
		status = why_not ? refuse(w, request, number, why_not) : serve(w, request);
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

/* One of these messages, carried out in a thread of its own, after the one before of the same part: a folder that does not answer holds up
 * neither the training nor other messages. */
struct commit {
	struct worker *w;
	json_t *message;    /* a deep copy: threads must not share reference counts */
	char *locations[2]; /* of its folders, on this node */
	int location_count;
	bool shared;      /* the shared folder */
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
	struct hspmd_manifest *m = hspmd_manifest_from_json(json_object_get(t->message, "manifest"), "manifest", err);
	int status = m ? 0 : -1;
	for (int i = 0; !status && i < t->location_count; i++) {
		const char *location = t->locations[i];
		struct hspmd_error pruning;
		status = hspmd_checkpoint_commit(location, m, err);
		if (!status && t->shared && hspmd_checkpoint_prune(location, t->w->setup.job->checkpoint.keep, &pruning))
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

static int answer_manifest(struct worker *w, bool shared, const char *id, const char *error)
{
	return hspmd_inbox_send(w->inbox, json_pack("{ss,ss,sb,ss*}", "type", "manifest_written", "id", id ? id : "", "shared", (int)shared,
	                                            "error", error));
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
		answer_manifest(t->w, t->shared, id, status ? err.text : NULL);
	}
	free_commit(t);
	return NULL;
}

/* NULL: memory is short, or the message is none. */
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
	t->shared = json_is_true(json_object_get(message, "shared"));
	size_t count = committed ? 1 : json_array_size(folders);
	bool bad = count > sizeof t->locations / sizeof *t->locations || (committed && !own);
	for (size_t i = 0; !bad && i < count; i++) {
		const char *folder = committed ? own : json_string_value(json_array_get(folders, i));
		char *location = !folder ? NULL : t->shared ? strdup(folder) : node_folder(w, folder);
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
	enum part part = json_is_true(json_object_get(message, "shared")) ? SHARED : OWN;
	pthread_t thread;
	if (t) {
		t->before = w->commit[part];
		t->follows = w->has_commit[part];
	}
	if (t && !pthread_create(&thread, NULL, run_commit, t)) {
		w->commit[part] = thread;
		w->has_commit[part] = true;
		return 0;
	}
	free_commit(t);
	if (committed) {
		hspmd_warn("old checkpoints are not removed: out of memory");
		return 0;
	}
	const char *id = json_string_value(json_object_get(message, "id"));
	return answer_manifest(w, part == SHARED, id, "out of memory, or folders that are none");
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
	for (int part = 0; part < PARTS; part++)
		if (w->has_commit[part])
			pthread_join(w->commit[part], NULL);
	if (!c)
		return;
	end_wait(c, OWN);
	end_wait(c, SHARED);
	hspmd_writer_destroy(c->writer);
	pthread_mutex_destroy(&c->reports);
	free(c->told_id);
	free(c->copies_location);
	free(c->declined);
	free(c);
}
