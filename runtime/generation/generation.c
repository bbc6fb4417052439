/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/generation.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/format/device_runs.h"
#include "common/format/workspace_limit.h"
#include "common/log.h"
#include "common/shm_dir.h"
#include "runtime/generation/generation_connect.h"
#include "runtime/state/checkpoint.h"

/* Environment variable that names the folder in which every worker writes its programs (man page of hspmd run). */
#define PROGRAMS "HSPMD_PROGRAMS"
#define END_S 5.0 /* how long a killed process may take to end completely */

static int read_members(struct hspmd_generation *g, json_t *members, struct hspmd_error *err)
{
	size_t devices = (size_t)g->cluster->device_count;
	int count = hspmd_device_runs_expand(members, &g->members, err);
	if (count < 0)
		return hspmd_error_prefix(err, "prepare: members");
	g->rank_of = malloc((devices + 1) * sizeof *g->rank_of);
	g->voters = malloc(((size_t)count + 1) * sizeof *g->voters);
	if (!g->rank_of || !g->voters)
		return hspmd_fail_memory(err, "preparing a generation");
	memset(g->rank_of, -1, devices * sizeof *g->rank_of);
	g->rank = -1;
	for (int r = 0; r < count; r++) {
		const char *address = g->members[r];
		if (!strcmp(address, g->setup->address))
			g->rank = r;
		struct hspmd_error not_there; /* a member that only hands over state may be on a node that has left the cluster */
		int device = hspmd_cluster_find_device(g->cluster, address, &not_there);
		if (device >= 0)
			g->rank_of[device] = r;
		g->member_count++;
	}
	if (g->rank < 0)
		return hspmd_fail(err, "prepare: %s is not among the members", g->setup->address);
	return 0;
}

/* The plan's devices in plan order, as transport ranks. */
static int find_voters(struct hspmd_generation *g, struct hspmd_error *err)
{
	for (int p = 0; p < g->plan->pipeline_count; p++)
		for (int s = 0; s < g->plan->pipelines[p].stage_count / g->plan->virtual_stages; s++)
			for (int d = 0; d < g->plan->pipelines[p].stages[s].device_count; d++) {
				int device = g->plan->pipelines[p].stages[s].devices[d];
				char name[64];
				if (g->rank_of[device] < 0 || g->voter_count == g->member_count)
					return hspmd_fail(err, "prepare: the plan's device %s is not among the members",
					                  hspmd_cluster_device_address(g->cluster, device, name, sizeof name));
				g->voters[g->voter_count++] = g->rank_of[device];
			}
	return 0;
}

/* Determine who writes which state into checkpoints. Members that are in no stage of the plan take no part. */
static int place_checkpoints(struct hspmd_generation *g, struct hspmd_error *err)
{
	int *rank_of = malloc((size_t)(g->cluster->device_count + 1) * sizeof *rank_of);
	if (!rank_of)
		return hspmd_fail_memory(err, "preparing a generation");
	for (int d = 0; d < g->cluster->device_count; d++) {
		rank_of[d] = -1;
		for (int v = 0; g->rank_of[d] >= 0 && v < g->voter_count; v++)
			if (g->voters[v] == g->rank_of[d])
				rank_of[d] = g->rank_of[d];
	}
	int status = hspmd_checkpoint_placement_plan(g->layouts, g->cluster, rank_of, g->rank, g->replicas, g->keep, &g->placement, err);
	free(rank_of);
	return status;
}

/* ---- memory that outlives the process */

/* This node's part of the run's folder, and the name of the device's files in it. */
static int persistent_name(const struct hspmd_worker_setup *setup, char **folder, char **name, struct hspmd_error *err)
{
	*folder = hspmd_asprintf("%s/%s", setup->memory, setup->node);
	*name = strdup(setup->address);
	for (char *colon = *name; colon && (colon = strchr(colon, ':'));)
		*colon = '-';
	return *folder && *name ? 0 : hspmd_fail_memory(err, "naming a place in memory");
}

static uint64_t persistent_layout(const struct hspmd_generation *g)
{
	uint64_t hash = 0;
	for (int i = 0; i < g->programs->count; i++)
		hash = hash * 31 + hspmd_executor_persistent_layout(g->programs->programs[i]);
	return hash;
}

/* If it cannot be made, the state is in memory that is lost with the process; training continues nevertheless. */
static void make_persistent(struct hspmd_generation *g)
{
	struct hspmd_error err = { "" };
	char *folder = NULL, *name = NULL, *text = NULL;
	if (!g->setup->memory || !g->setup->device->ops->host_memory || g->program->stage < 0)
		return;
	if (!hspmd_shm_dir_create(g->setup->memory, &err) && !persistent_name(g->setup, &folder, &name, &err)) {
		text = json_dumps(g->message, JSON_COMPACT | JSON_REAL_PRECISION(17));
		if (text)
			g->persistent = hspmd_persistent_create(
			        &(struct hspmd_persistent_spec){ folder, name, g->number, persistent_layout(g),
			                                         hspmd_executor_persistent_bytes(g->program), text },
			        &err);
		else
			hspmd_fail_memory(&err, "describing a generation");
	}
	if (!g->persistent)
		hspmd_warn("the state is lost if this process is killed: %s", err.text);
	free(folder);
	free(name);
	free(text);
}

/* Write the program as `hspmd plan --program` prints it into the folder of HSPMD_PROGRAMS. */
static void write_program(const struct hspmd_generation *g)
{
	const char *folder = getenv(PROGRAMS);
	struct hspmd_error err;
	if (!folder)
		return;
	char *path = hspmd_asprintf("%s/program-%d-%s.txt", folder, g->number, g->setup->address),
	     *text = hspmd_program_text(g->program, g->cluster);
	if (!path || !text)
		hspmd_warn("%s: out of memory", PROGRAMS);
	else if (hspmd_durable_write(path, text, strlen(text), &err))
		hspmd_warn("%s: %s", PROGRAMS, err.text);
	free(text);
	free(path);
}

/* Build the generation of the message, without connections. */
static struct hspmd_generation *specialise(const struct hspmd_worker_setup *setup, json_t *message, struct hspmd_error *err)
{
	struct hspmd_generation *g = calloc(1, sizeof *g);
	if (!g) {
		hspmd_fail_memory(err, "preparing a generation");
		return NULL;
	}
	g->setup = setup;
	g->message = json_copy(message);
	if (!g->message) {
		hspmd_fail_memory(err, "preparing a generation");
		goto fail;
	}
	json_object_del(g->message, "live"); /* which says how to begin, not what the generation is */
	g->number = (int)json_integer_value(json_object_get(message, "generation"));
	json_t *replicas = json_object_get(message, "replicas");
	g->replicas = json_is_integer(replicas) ? (int)json_integer_value(replicas) : setup->job->checkpoint.replicas;
	json_t *keep = json_object_get(message, "keep");
	g->keep = json_is_integer(keep) ? (int)json_integer_value(keep) : INT_MAX;
	g->cluster = hspmd_cluster_from_json(json_object_get(message, "cluster"), "cluster", err);
	g->plan = g->cluster ? hspmd_plan_from_json(json_object_get(message, "plan"), "plan", g->cluster, setup->source.layers, err) : NULL;
	int device = -1;
	if (!g->plan || read_members(g, json_object_get(message, "members"), err) || find_voters(g, err))
		goto fail;
	struct hspmd_error not_there;
	device = hspmd_cluster_find_device(g->cluster, setup->address, &not_there);
	struct hspmd_step_lengths lengths = { setup->job->lengths, setup->job->length_count, setup->job->file, setup->job->mix_lengths };
	g->programs = hspmd_program_set_build(&setup->source, g->plan, g->cluster, device, setup->device, &lengths, err);
	if (!g->programs)
		goto fail;
	g->program = g->programs->programs[0];
	write_program(g);
	g->layouts = g->program->layouts;
	if (place_checkpoints(g, err))
		goto fail;
	return g;
fail:
	hspmd_generation_destroy(g);
	return NULL;
}

/* Bytes that a plan may use on the device; INT64_MAX: the device has no part in it, or the device itself limits its memory. */
static int64_t available_bytes(const struct hspmd_generation *g)
{
	int device = g->program->stage < 0 || !g->setup->device->ops->host_memory ? -1 : g->program->device;
	return device < 0 ? INT64_MAX : g->cluster->types[g->cluster->devices[device].type].memory_bytes;
}

/* Bytes of the device that may be free when the generation starts; SIZE_MAX: nobody knows. reserved_bytes: what another generation has
 * of it until then. */
static size_t room_of(const struct hspmd_generation *g, int64_t reserved_bytes)
{
	const struct hspmd_device_ops *ops = g->setup->device->ops;
	size_t left = ops->free_memory && g->program->stage >= 0 ? ops->free_memory(g->setup->device) : SIZE_MAX;
	return left == SIZE_MAX ? left : left + (size_t)reserved_bytes;
}

/* Give operators less workspace if there is no memory for all that is fastest. */
static void fit_workspace(struct hspmd_generation *g, int64_t reserved_bytes)
{
	size_t room = room_of(g, reserved_bytes), all = hspmd_executor_device_bytes(g->program), wanted = all;
	uint32_t most = g->program->workspace_most;
	while (all > room && most != 1) {
		size_t rest = all - hspmd_program_workspace(g->program);
		most = hspmd_workspace_limit_below(most, room > rest ? room - rest : 0);
		hspmd_program_set_limit_workspace(g->programs, most, g->setup->device);
		all = hspmd_executor_device_bytes(g->program);
	}
	if (all < wanted)
		hspmd_info("the plan would need %zu bytes of the device's memory, of which %zu are free: operators get less workspace",
		           wanted, room);
}

void hspmd_generation_limit_workspace(struct hspmd_generation *g, uint32_t most)
{
	if (most && (!g->program->workspace_most || most < g->program->workspace_most))
		hspmd_program_set_limit_workspace(g->programs, most, g->setup->device);
}

struct hspmd_generation *hspmd_generation_prepare(const struct hspmd_worker_setup *setup, json_t *message, int64_t reserved_bytes,
                                                  struct hspmd_error *err)
{
	struct hspmd_generation *g = specialise(setup, message, err);
	if (g && hspmd_generation_open_endpoints(g, err)) {
		hspmd_generation_destroy(g);
		return NULL;
	}
	if (!g)
		return NULL;
	fit_workspace(g, reserved_bytes);
	g->persistent_later = (int64_t)hspmd_executor_persistent_bytes(g->program) > available_bytes(g) - reserved_bytes;
	if (!g->persistent_later)
		make_persistent(g); /* allocating new memory takes time, and the previous generation may still train meanwhile */
	const struct hspmd_device_ops *ops = setup->device->ops;
	struct hspmd_error later; /* if it fails now, the executor tries again */
	if (g->program->host_bytes && ops->allocate_host)
		g->host = ops->allocate_host(setup->device, hspmd_executor_host_bytes(g->program), &later);
	return g;
}

/* Index of a step's length in the job's lengths; 0 if there are none. */
static int length_of_step(const struct hspmd_generation *g, int64_t step)
{
	return g->setup->data && g->setup->job->length_count ? hspmd_data_length_of_step(g->setup->data, step) : 0;
}

static int length_of_sample(void *data, int64_t number)
{
	return hspmd_data_length_of_sample(data, number);
}

/* NULL step: of the longest samples. NULL and err. */
static const struct hspmd_program *find_program(const struct hspmd_generation *g, const int64_t *step, struct hspmd_error *err)
{
	int lengths = g->setup->job->length_count, longest = lengths ? lengths - 1 : 0;
	if (g->programs->mixed)
		return hspmd_program_set_for_step(g->programs, step ? *step : 0, step ? length_of_sample : NULL, g->setup->data, err);
	return hspmd_program_set_at(g->programs, step ? length_of_step(g, *step) : longest);
}

static const struct hspmd_program *program_of_step(void *generation, int64_t step)
{
	struct hspmd_error ignored; /* the step itself will tell */
	return find_program(generation, &step, &ignored);
}

int hspmd_generation_use_step(struct hspmd_generation *g, const int64_t *step, struct hspmd_error *err)
{
	const struct hspmd_program *p = find_program(g, step, err);
	return p ? hspmd_executor_set_program(g->executor, p, err) : -1;
}

int64_t hspmd_generation_step_tokens(const struct hspmd_generation *g, int64_t step)
{
	const struct hspmd_job *job = g->setup->job;
	return job->length_count && g->setup->data ? hspmd_data_step_tokens(g->setup->data, step) : job->global_batch * job->seq_len;
}

int hspmd_generation_step_plan(const struct hspmd_generation *g, int64_t step)
{
	const struct hspmd_job *job = g->setup->job;
	return job->length_count ? hspmd_plan_for_length(g->plan, job->lengths[length_of_step(g, step)]) : 0;
}

int64_t hspmd_generation_memory(const struct hspmd_generation *g)
{
	return (int64_t)hspmd_program_memory(g->program) +
	       (g->setup->memory && g->setup->device->ops->host_memory ? (int64_t)hspmd_persistent_overhead("") : 0);
}

int64_t hspmd_generation_peak_bytes(const struct hspmd_generation *g)
{
	const struct hspmd_program *p = g->program;
	int64_t bytes = hspmd_generation_memory(g);
	if (g->executor && hspmd_executor_spilled(g->executor))
		return 0;
	for (int i = 0; g->setup->device->ops->host_memory && i < p->state_count; i++) {
		for (int k = 0; p->states[i].param >= 0 && g->placement.writes[i] && k < hspmd_generation_state_kinds(g); k++)
			bytes += (int64_t)p->slot_types[p->slots[hspmd_generation_state_slot(&p->states[i], k)].slot_type].bytes;
	}
	return bytes;
}

bool hspmd_generation_fits(const struct hspmd_generation *g, const struct hspmd_generation *old)
{
	size_t state = !old || !old->executor || hspmd_executor_spilled(old->executor) ? 0
	               : old->persistent                                               ? hspmd_persistent_bytes(old->persistent)
	                                                                               : old->program->fixed_bytes;
	return !state || hspmd_generation_memory(g) <= available_bytes(g) - (int64_t)state;
}

static int make_executor(struct hspmd_generation *g, struct hspmd_error *err)
{
	struct hspmd_executor_options o = {
		.program = g->program,
		.device = g->setup->device,
		.transport = g->transport,
		.overlap_transport = g->overlap_transport,
		.devcomm = { g->devcomm[0], g->devcomm[1] },
		.rank_of = g->rank_of,
		.device_count = g->cluster->device_count,
		.voters = g->voters,
		.voter_count = g->voter_count,
		.samples = g->setup->samples,
		.program_of_step = program_of_step,
		.program_context = g,
		.job = g->setup->job,
		.persistent = g->persistent,
		.host = g->host,
	};
	g->executor = hspmd_executor_create(&o, err);
	return g->executor ? 0 : -1;
}

int hspmd_generation_allocate(struct hspmd_generation *g, struct hspmd_generation *old, struct hspmd_error *err)
{
	if (old && old->executor)
		hspmd_executor_release_scratch(old->executor);
	if (g->persistent_later)
		make_persistent(g);
	g->persistent_later = false;
	size_t room = room_of(g, 0), all = hspmd_executor_device_bytes(g->program);
	if (!make_executor(g, err))
		return 0;
	if (all <= room)
		return -1;
	return hspmd_error_prefix(
	        err,
	        "the plan needs %zu bytes of the device's memory, %zu of them for what operators need while they run%s, and "
	        "%zu are free",
	        all, hspmd_program_workspace(g->program), g->program->workspace_most == 1 ? ", which is the least" : "", room);
}

int hspmd_generation_spill(struct hspmd_generation *g, const char *disk, struct hspmd_error *err)
{
	bool host = g->setup->device->ops->host_memory;
	if (!g->executor || (host && !disk))
		return hspmd_fail(err, "there is nowhere to spill the state");
	char *folder = host ? hspmd_asprintf("%s/%s", disk, g->setup->node) : NULL;
	int status = host && !folder ? hspmd_fail_memory(err, "keeping the state on disk") : hspmd_executor_spill(g->executor, folder, err);
	free(folder);
	if (!status) {
		hspmd_persistent_close(g->persistent, false);
		g->persistent = NULL;
	}
	return status;
}

/* Complete the update during which the process was killed. */
static int end_update(struct hspmd_generation *g, struct hspmd_error *err)
{
	struct hspmd_totals all;
	int64_t step = hspmd_persistent_step(g->persistent);
	if (!hspmd_persistent_is_torn(g->persistent))
		return 0;
	if (!hspmd_persistent_totals(g->persistent, step, (double *)&all))
		return hspmd_fail(err, "the totals of step %lld are missing", (long long)step);
	return hspmd_executor_commit(g->executor, step, &all, err);
}

struct hspmd_generation *hspmd_generation_revive(const struct hspmd_worker_setup *setup, struct hspmd_error *err)
{
	char *folder = NULL, *name = NULL;
	struct hspmd_persistent *l = NULL;
	if (!setup->memory)
		hspmd_fail(err, "nothing outlives a worker here");
	else if (!persistent_name(setup, &folder, &name, err))
		l = hspmd_persistent_open(folder, name, END_S, err);
	free(folder);
	free(name);
	if (!l)
		return NULL;
	json_error_t why;
	json_t *message = json_loads(hspmd_persistent_text(l), 0, &why);
	struct hspmd_generation *g = message ? specialise(setup, message, err) : NULL;
	if (!message)
		hspmd_fail(err, "the state of the previous worker cannot be read: %s", why.text);
	json_decref(message);
	if (!g) {
		hspmd_persistent_close(l, true);
		return NULL;
	}
	g->persistent = l;
	bool same = persistent_layout(g) == hspmd_persistent_layout(l) &&
	            hspmd_executor_persistent_bytes(g->program) == hspmd_persistent_bytes(l);
	if (!same)
		hspmd_fail(err, "the state of the previous worker has another layout than this program");
	int64_t step = hspmd_persistent_step(l); /* its gradients may be complete: they are where its own program puts them */
	if (same && !make_executor(g, err) && !hspmd_generation_use_step(g, &step, err) && !end_update(g, err))
		return g;
	hspmd_generation_detach(g);
	return NULL;
}

static void release(struct hspmd_generation *g, bool leave)
{
	if (!g)
		return;
	hspmd_generation_disconnect(g);
	hspmd_executor_destroy(g->executor);
	if (g->host)
		g->setup->device->ops->release_host(g->setup->device, g->host);
	hspmd_persistent_close(g->persistent, leave);
	json_decref(g->message);
	json_decref(g->expected_live);
	free(g->expected_moves.list);
	hspmd_program_set_destroy(g->programs);
	hspmd_plan_destroy(g->plan);
	hspmd_cluster_destroy(g->cluster);
	hspmd_checkpoint_placement_free(&g->placement);
	free(g->own_address.data);
	hspmd_address_list_clear(&g->addresses);
	free(g->members);
	free(g->rank_of);
	free(g->voters);
	free(g);
}

void hspmd_generation_destroy(struct hspmd_generation *g)
{
	release(g, false);
}

void hspmd_generation_detach(struct hspmd_generation *g)
{
	release(g, true);
}

/* ---- slices of state */

int hspmd_generation_state_kinds(const struct hspmd_generation *g)
{
	return 1 + hspmd_optimizer_types[g->program->optimizer]->moments;
}

struct hspmd_state_slice *hspmd_generation_slices(const struct hspmd_generation *g, size_t *count)
{
	const struct hspmd_program *p = g->program;
	struct hspmd_state_slice *slices = hspmd_calloc((size_t)p->state_count * HSPMD_STATE_KIND_COUNT, sizeof *slices);
	*count = 0;
	for (int i = 0; slices && i < p->state_count; i++) {
		const struct hspmd_program_state *s = &p->states[i];
		for (int k = 0; s->param >= 0 && g->placement.writes[i] && k < hspmd_generation_state_kinds(g); k++)
			slices[(*count)++] = (struct hspmd_state_slice){
				.tensor = s->name,
				.kind = (enum hspmd_state_kind)k,
				.dtype = hspmd_dtype_master(p->graph->tensors[s->tensor].dtype),
				.shape = p->graph->tensors[s->tensor].shape,
				.box = s->shard.box,
				.data = hspmd_executor_slot_data(g->executor, hspmd_generation_state_slot(s, k)),
				.in_host = hspmd_executor_slot_in_host(g->executor, hspmd_generation_state_slot(s, k)),
			};
	}
	return slices;
}

const struct hspmd_graph *hspmd_generation_plain_graph(const struct hspmd_generation *g)
{
	return g->plan->synthesis ? NULL : g->program->graph;
}

int hspmd_generation_state_slot(const struct hspmd_program_state *s, int kind)
{
	return kind == HSPMD_STATE_PARAM ? s->param : s->moments[kind - HSPMD_STATE_ADAM_M];
}

static int state_slot(const struct hspmd_generation *g, int tensor, const struct hspmd_box *box, int *slot, struct hspmd_error *err)
{
	const struct hspmd_program_state *s = &g->program->states[tensor / HSPMD_STATE_KIND_COUNT];
	int kind = tensor % HSPMD_STATE_KIND_COUNT;
	*slot = hspmd_generation_state_slot(s, kind);
	char text[160];
	if (*slot < 0 || !hspmd_box_contains(&s->shard.box, box))
		return hspmd_fail(err, "%s of %s, part %s, is not held by %s", hspmd_state_kind_names[kind], s->name,
		                  hspmd_box_text(box, text, sizeof text), g->setup->address);
	return 0;
}

/* Copy between a slot and a packed host buffer that holds `box`. If the host cannot access the slot, the copy goes through a device
 * buffer unless the box is contiguous. */
static int copy_slice(struct hspmd_generation *g, int slot, const struct hspmd_box *box, void *host, bool out, struct hspmd_error *err)
{
	struct hspmd_device *dev = g->setup->device;
	const struct hspmd_slot_type *slot_type = &g->program->slot_types[g->program->slots[slot].slot_type];
	void *at = hspmd_executor_slot_data(g->executor, slot);
	size_t element = hspmd_dtype_bytes(slot_type->dtype), bytes = (size_t)hspmd_box_elements(box) * element;
	if (hspmd_executor_slot_in_host(g->executor, slot)) {
		if (out)
			hspmd_box_copy(host, box, at, &slot_type->box, box, element);
		else
			hspmd_box_copy(at, &slot_type->box, host, box, box, element);
		return 0;
	}
	char *whole = hspmd_box_contiguous(at, &slot_type->box, box, element);
	if (whole)
		return out ? dev->ops->to_host(dev, host, whole, bytes, err) : dev->ops->to_device(dev, whole, host, bytes, err);
	void *staging = dev->ops->allocate(dev, bytes, err);
	if (!staging)
		return -1;
	int status = out ? dev->ops->copy_box(dev, staging, box, at, &slot_type->box, box, slot_type->dtype, false, err)
	                 : dev->ops->to_device(dev, staging, host, bytes, err);
	if (!status)
		status = out ? dev->ops->to_host(dev, host, staging, bytes, err)
		             : dev->ops->copy_box(dev, at, &slot_type->box, staging, box, box, slot_type->dtype, false, err);
	if (!status)
		status = dev->ops->synchronise(dev, err);
	dev->ops->release(dev, staging);
	return status;
}

int hspmd_generation_get(struct hspmd_generation *g, int tensor, const struct hspmd_box *box, void *host, struct hspmd_error *err)
{
	int slot;
	return state_slot(g, tensor, box, &slot, err) ? -1 : copy_slice(g, slot, box, host, true, err);
}

int hspmd_generation_put(struct hspmd_generation *g, int tensor, const struct hspmd_box *box, const void *host, struct hspmd_error *err)
{
	int slot;
	return state_slot(g, tensor, box, &slot, err) ? -1 : copy_slice(g, slot, box, (void *)host, false, err);
}

int hspmd_generation_copy(struct hspmd_generation *to, struct hspmd_generation *from, int tensor, const struct hspmd_box *box,
                          struct hspmd_error *err)
{
	struct hspmd_device *dev = to->setup->device;
	struct hspmd_error not_held;
	int in, out;
	if (state_slot(from, tensor, box, &in, &not_held))
		return 0;
	if (state_slot(to, tensor, box, &out, err))
		return -1;
	bool on_host =
	        !dev->ops->host_memory && hspmd_executor_slot_in_host(from->executor, in) && hspmd_executor_slot_in_host(to->executor, out);
	if (hspmd_executor_spilled(from->executor) && !dev->ops->host_memory && !on_host)
		return 0;
	const struct hspmd_slot_type *source = &from->program->slot_types[from->program->slots[in].slot_type],
	                             *target = &to->program->slot_types[to->program->slots[out].slot_type];
	void *into = hspmd_executor_slot_data(to->executor, out);
	const void *data = hspmd_executor_slot_data(from->executor, in);
	if (on_host) {
		hspmd_box_copy(into, &target->box, data, &source->box, box, hspmd_dtype_bytes(target->dtype));
		return 1;
	}
	int status = dev->ops->copy_box(dev, into, &target->box, data, &source->box, box, target->dtype, false, err);
	return status || dev->ops->synchronise(dev, err) ? -1 : 1;
}

void *hspmd_generation_box_data(const struct hspmd_generation *g, int tensor, const struct hspmd_box *box)
{
	struct hspmd_error err;
	int slot;
	if (state_slot(g, tensor, box, &slot, &err) || !hspmd_executor_slot_in_host(g->executor, slot))
		return NULL;
	const struct hspmd_slot_type *slot_type = &g->program->slot_types[g->program->slots[slot].slot_type];
	return hspmd_box_contiguous(hspmd_executor_slot_data(g->executor, slot), &slot_type->box, box, hspmd_dtype_bytes(slot_type->dtype));
}
