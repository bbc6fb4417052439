/* SPDX-License-Identifier: Apache-2.0 */
/* Fills a generation's state: with initial values, from the previous generation, or from files. Every member computes the same plan of
 * moves from the same message and executes its part. */
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "runtime/generation/generation.h"
#include "runtime/generation/generation_connect.h"
#include "runtime/generation/member_moves.h"
#include "runtime/model/model.h"
#include "runtime/state/checkpoint.h"
#include "runtime/weights/weights.h"

/* Folders of a node that may contain a checkpoint, nearest first. */
enum { IN_MEMORY, ON_DISK, SHARED, FOLDER_KINDS };

struct ends {
	struct hspmd_generation *now, *old;
	const struct hspmd_stored_state *stored; /* NULL: no files */
	struct hspmd_reader *reader;
	int folders, kind[FOLDER_KINDS]; /* kind: by folder of the reader */
	struct hspmd_load_report *report;
};

static size_t box_bytes(const struct hspmd_generation *g, int tensor, const struct hspmd_box *box)
{
	return (size_t)hspmd_box_elements(box) * hspmd_generation_parameter_bytes(g, tensor / HSPMD_STATE_KIND_COUNT);
}

/* Note the first shard that has a file here but from which this box could not be read. */
static void note_unreadable(struct ends *e, int tensor, const struct hspmd_box *box)
{
	const struct hspmd_manifest *m = e->stored->manifest;
	bool *shards = hspmd_calloc((size_t)m->shard_count, sizeof *shards);
	if (shards)
		hspmd_stored_state_find(e->stored, tensor, box, shards);
	for (int i = 0; shards && i < m->shard_count && !e->report->unreadable; i++)
		if (shards[i] && hspmd_reader_has(e->reader, i))
			e->report->unreadable = json_pack("{sI,sI,ss}", "step", (json_int_t)m->step, "generation",
			                                  (json_int_t)m->generation, "file", m->shards[i].file);
	free(shards);
}

/* Read from this node's files. A box may be spread over several extents of the shards here, and may be in several of them. */
static int get_stored(struct ends *e, int tensor, const struct hspmd_box *box, bool own, void *host, struct hspmd_error *err)
{
	const struct hspmd_parameter_layout *l = &e->now->layouts->parameters[tensor / HSPMD_STATE_KIND_COUNT];
	struct hspmd_state_need need = { .tensor = l->name,
		                         .kind = (enum hspmd_state_kind)(tensor % HSPMD_STATE_KIND_COUNT),
		                         .dtype = hspmd_dtype_master(e->now->program->graph->tensors[l->tensor].dtype),
		                         .box = *box,
		                         .data = host };
	int64_t *const counts[FOLDER_KINDS] = { &e->report->local, &e->report->disk, &e->report->shared };
	uint64_t bytes[FOLDER_KINDS] = { 0 };
	struct hspmd_state_gap *gaps = NULL;
	size_t gap_count = 0;
	if (hspmd_reader_load(e->reader, &need, 1, &gaps, &gap_count, bytes, err))
		return -1;
	for (int f = 0; own && f < e->folders; f++)
		*counts[e->kind[f]] += (int64_t)bytes[f];
	if (gap_count) {
		note_unreadable(e, tensor, &gaps[0].box);
		hspmd_fail(err, "%s is incomplete in the checkpoint's files on this node", l->name);
	}
	free(gaps);
	return gap_count ? -1 : 0;
}

/* Read from memory if possible, otherwise from files. */
static int get(void *context, int tensor, const struct hspmd_box *box, bool own, void *host, struct hspmd_error *err)
{
	struct ends *e = context;
	struct hspmd_error no;
	if (e->old && (!hspmd_generation_get(e->old, tensor, box, host, e->reader ? &no : err))) {
		e->report->local += own ? (int64_t)box_bytes(e->now, tensor, box) : 0;
		return 0;
	}
	if (e->reader)
		return get_stored(e, tensor, box, own, host, err);
	return e->old ? -1 : hspmd_fail(err, "this worker should hold state but has none");
}

static int put_now(void *context, int tensor, const struct hspmd_box *box, const void *host, struct hspmd_error *err)
{
	return hspmd_generation_put(((struct ends *)context)->now, tensor, box, host, err);
}

static int copy_now(void *context, int tensor, const struct hspmd_box *box, struct hspmd_error *err)
{
	struct ends *e = context;
	int copied = e->old ? hspmd_generation_copy(e->now, e->old, tensor, box, err) : 0;
	e->report->local += copied > 0 ? (int64_t)box_bytes(e->now, tensor, box) : 0;
	return copied;
}

static void *buffer_of(void *context, int tensor, const struct hspmd_box *box, bool sending)
{
	const struct ends *e = context;
	const struct hspmd_generation *g = sending ? e->old : e->now;
	return g ? hspmd_generation_box_data(g, tensor, box) : NULL;
}

/* Plan this member's moves, unless they were planned when the generation was prepared. */
static int plan_moves(struct hspmd_generation *g, json_t *live, const struct hspmd_stored_state *stored, struct hspmd_member_moves *own,
                      struct hspmd_load_report *report, struct hspmd_error *err)
{
	double then = hspmd_now();
	if (!stored && hspmd_member_moves_take(g, live, own))
		return 0;
	int status = hspmd_member_moves_plan(g, live, stored, own, err);
	report->plan_s = hspmd_now() - then;
	return status;
}

static int run_moves(struct hspmd_generation *g, const struct hspmd_member_moves *own, const struct hspmd_state_endpoint *end,
                     struct hspmd_load_report *report, struct hspmd_error *err)
{
	struct hspmd_state_transfer_report moved = { 0 };
	size_t *element_bytes = hspmd_generation_element_bytes(g);
	int status = element_bytes ? hspmd_state_transfer_run(g->transport, g->rank, own->list, own->count, element_bytes, end, &moved, err)
	                           : hspmd_fail_memory(err, "moving state");
	free(element_bytes);
	report->peers += moved.bytes_received;
	return status;
}

/* The name of the first of the last parameters, if a root has all before them. */
static const char *first_missing(const struct hspmd_stored_state *s)
{
	const struct hspmd_parameter_layouts *l = s->g->layouts;
	int count = 0;
	for (int p = 0; p < l->parameter_count; p++)
		count += s->root.bit_of[p] >= 0;
	return l->parameters[count].name;
}

/* What this node's files contain must be state of this model. The headers of a root's shards are known only now: if they have a parameter
 * that the root was taken not to have, it lacks others. */
static int check_files(const struct ends *e, struct hspmd_error *err)
{
	const struct hspmd_extent *extents;
	int count = e->stored->manifest->root ? hspmd_reader_extents(e->reader, &extents) : 0;
	for (int i = 0; i < count; i++) {
		int p = hspmd_stored_state_check(e->now, &extents[i], err);
		if (p < 0)
			return -1;
		if (e->stored->root.bit_of[p] < 0)
			return hspmd_fail(err, "the checkpoint has no tensor %s, which is in the model", first_missing(e->stored));
	}
	return 0;
}

/* Open a reader of the folders of this node that may contain the checkpoint. Of a root, only the files that this member reads. */
static int open_reader(struct ends *e, json_t *state, const struct hspmd_member_moves *own, struct hspmd_error *err)
{
	static const char *const keys[FOLDER_KINDS] = { "memory", "local", "shared" };
	const struct hspmd_manifest *m = e->stored->manifest;
	char name[64], *folders[FOLDER_KINDS];
	int count = 0;
	bool *wanted = hspmd_calloc((size_t)m->shard_count, sizeof *wanted), whole = wanted != NULL;
	for (size_t i = 0; wanted && m->root && i < own->count; i++)
		if (own->list[i].from == e->now->rank)
			hspmd_stored_state_find(e->stored, own->list[i].tensor, &own->list[i].box, wanted);
	hspmd_checkpoint_name(m->step, m->generation, name, sizeof name);
	for (int k = 0; k < FOLDER_KINDS && whole; k++) {
		const char *at = json_string_value(json_object_get(state, keys[k]));
		if (!at)
			continue;
		folders[count] =
		        k == SHARED ? hspmd_asprintf("%s/%s", at, name) : hspmd_asprintf("%s/%s/%s", at, e->now->setup->node, name);
		e->kind[count] = k;
		whole = folders[count] != NULL;
		count += whole;
	}
	e->folders = count;
	if (!whole)
		hspmd_fail_memory(err, "opening a checkpoint");
	else
		e->reader = hspmd_reader_create(m, m->root ? wanted : NULL, (const char *const *)folders, count, err);
	while (count)
		free(folders[--count]);
	free(wanted);
	return e->reader ? check_files(e, err) : -1;
}

/* Zeros, as at the first step: a job of an earlier hspmd had no amax histories of experts. */
static int begin_histories(struct hspmd_generation *g, const bool *absent, struct hspmd_error *err)
{
	const char *first = NULL;
	int status = 0, count = 0;
	for (int i = 0; !status && i < g->program->state_count; i++) {
		const struct hspmd_program_state *s = &g->program->states[i];
		if (s->param < 0 || !absent[i])
			continue;
		float *zeros = hspmd_calloc((size_t)hspmd_box_elements(&s->shard.box), sizeof *zeros);
		status = zeros ? 0 : hspmd_fail_memory(err, "beginning amax histories");
		for (int k = 0; !status && k < hspmd_generation_state_kinds(g); k++)
			status = hspmd_generation_put(g, i * HSPMD_STATE_KIND_COUNT + k, &s->shard.box, zeros, err);
		free(zeros);
		first = first ? first : s->name;
		count++;
	}
	if (count)
		hspmd_warn("the checkpoint has no %s%s: amax histories that are missing begin empty, as at the first step (%d here)", first,
		           count > 1 ? " and others" : "", count);
	return status;
}

/* Fill the state from the memory of members that hold it, from files or, if both have the same step, from either. */
static int load_held(struct hspmd_generation *g, struct hspmd_generation *old, json_t *state, struct hspmd_load_report *report,
                     struct hspmd_error *err)
{
	json_t *told = json_object_get(state, "live"), *live = json_is_true(told) ? g->expected_live : told,
	       *manifest = json_object_get(state, "manifest");
	if (told && !live)
		return hspmd_fail(err, "start: live as in prepare, which said nothing of it");
	struct hspmd_manifest *m = manifest ? hspmd_manifest_from_json(manifest, "manifest", err) : NULL;
	struct hspmd_stored_state stored = { 0 };
	struct hspmd_member_moves own = { 0 };
	struct ends ends = { .now = g, .old = live ? old : NULL, .stored = m ? &stored : NULL, .report = report };
	struct hspmd_state_endpoint end = { &ends, get, put_now, copy_now, buffer_of };
	int status = 0;
	if (manifest && (!m || hspmd_stored_state_read(g, m, json_object_get(state, "files"), &stored, err)))
		status = -1;
	if (!status)
		status = plan_moves(g, live, ends.stored, &own, report, err);
	if (!status && m)
		status = open_reader(&ends, state, &own, err);
	if (!status)
		status = run_moves(g, &own, &end, report, err);
	if (!status && m)
		status = begin_histories(g, stored.absent, err);
	free(own.list);
	hspmd_reader_destroy(ends.reader);
	hspmd_stored_state_clear(&stored);
	hspmd_manifest_destroy(m);
	return status;
}

/* Pretrained weights, with moments of zero: every device reads its own part of the files. */
static int load_weights(struct hspmd_generation *g, struct hspmd_load_report *report, struct hspmd_error *err)
{
	struct hspmd_weights *weights = hspmd_weights_open(g->setup->job->init, err);
	struct hspmd_file_map map = hspmd_model_file_map(g->setup->model);
	int status = weights ? 0 : -1;
	for (int i = 0; !status && i < g->program->state_count; i++) {
		const struct hspmd_program_state *s = &g->program->states[i];
		if (s->param < 0 || g->program->graph->tensors[s->tensor].history) /* files do not have amax histories: they begin empty */
			continue;
		size_t elements = (size_t)hspmd_box_elements(&s->shard.box);
		float *host = malloc(elements * sizeof *host + 1);
		status = !host ? hspmd_fail_memory(err, "reading weights")
		               : hspmd_weights_read(weights, &map, s->name, &g->program->graph->tensors[s->tensor].shape, &s->shard.box,
		                                    host, err);
		if (!status)
			status = hspmd_generation_put(g, i * HSPMD_STATE_KIND_COUNT + HSPMD_STATE_PARAM, &s->shard.box, host, err);
		free(host);
		report->shared += (int64_t)(elements * sizeof *host);
	}
	hspmd_weights_destroy(weights);
	return status ? hspmd_error_prefix(err, "%s: init", g->setup->job->file) : 0;
}

/* Initial values: random, or the job's weights. */
static int load_start(struct hspmd_generation *g, struct hspmd_load_report *report, struct hspmd_error *err)
{
	if (hspmd_executor_initialise(g->executor, err))
		return -1;
	return g->setup->job->init ? load_weights(g, report, err) : 0;
}

int hspmd_generation_load(struct hspmd_generation *g, struct hspmd_generation *old, json_t *state, int64_t step,
                          struct hspmd_load_report *report, struct hspmd_error *err)
{
	double then = hspmd_now();
	int status;
	*report = (struct hspmd_load_report){ 0 };
	if (json_object_get(state, "live") || json_object_get(state, "manifest"))
		status = load_held(g, old, state, report, err);
	else if (json_is_true(json_object_get(state, "init")))
		status = load_start(g, report, err);
	else
		status = hspmd_fail(err, "start: state says neither init, live nor manifest");
	if (!status)
		status = hspmd_generation_use_step(g, &step, err) || hspmd_executor_gather_parameters(g->executor, step, err) ? -1 : 0;
	report->move_s = hspmd_now() - then;
	return status;
}
