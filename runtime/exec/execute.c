/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/execute.h"

#include "common/alloc.h"
#include "runtime/exec/execute_internal.h"
#include "runtime/exec/parameters.h"
#include "runtime/state/spill.h"

static void see_transfer(void *executor, int number, double began, double ended)
{
	const struct hspmd_executor *ex = executor;
	if (ex->o.timeline)
		hspmd_timeline_add(ex->o.timeline, HSPMD_LANE_TRANSFERS, number, began, ended);
}

static void see_sum(void *executor, int number, double began, double ended)
{
	const struct hspmd_executor *ex = executor;
	if (ex->o.timeline)
		hspmd_timeline_add(ex->o.timeline, HSPMD_LANE_SUMS, number, began, ended);
}

/* For measuring single instructions, they must run one after another. */
static int start_engines(struct hspmd_executor *ex, struct hspmd_error *err)
{
	const struct hspmd_executor_options *o = &ex->o;
	struct hspmd_engine_options e = {
		.device = o->device,
		.transport = o->transport,
		.devcomm = o->devcomm[0],
		.rank_of = o->rank_of,
		.count = o->device_count,
		.self = ex->p->device,
		.threaded = o->device->ops->host_memory && o->overlap_transport && !o->seconds,
		.on_done = see_transfer,
		.context = ex,
	};
	ex->threaded = e.threaded;
	ex->flow = hspmd_engine_create(&e, err);
	if (!ex->flow)
		return -1;
	e.transport = o->overlap_transport ? o->overlap_transport : o->transport;
	e.devcomm = o->devcomm[1];
	e.on_done = see_sum;
	ex->overlap = hspmd_engine_create(&e, err);
	return ex->overlap ? 0 : -1;
}

static int allocate_memory(struct hspmd_executor *ex, struct hspmd_error *err)
{
	const struct hspmd_program *p = ex->p;
	struct hspmd_device *dev = ex->o.device;
	char *persistent = ex->o.persistent ? hspmd_persistent_data(ex->o.persistent) : NULL;
	size_t arena = hspmd_executor_persistent_arena(p);
	ex->borrowed[HSPMD_ARENA_FIXED] = persistent != NULL;
	ex->borrowed[HSPMD_ARENA_TRANSIENT] = p->shared_bytes || (persistent && arena);
	ex->bases[HSPMD_ARENA_FIXED] =
	        persistent ? persistent
	                   : dev->ops->allocate(dev, (p->shared_bytes ? p->shared_bytes : p->fixed_bytes) + HSPMD_PROGRAM_ALIGN, err);
	if (!ex->bases[HSPMD_ARENA_FIXED])
		return -1;
	ex->bases[HSPMD_ARENA_TRANSIENT] = ex->borrowed[HSPMD_ARENA_TRANSIENT]
	                                           ? ex->bases[HSPMD_ARENA_FIXED] + arena
	                                           : dev->ops->allocate(dev, p->arena_bytes + HSPMD_PROGRAM_ALIGN, err);
	if (!ex->bases[HSPMD_ARENA_TRANSIENT])
		return -1;
	if (p->saved_bytes) {
		if (!dev->ops->allocate_host || !dev->ops->copy_beside)
			return hspmd_fail(err, "%s devices cannot offload activations: they copy nothing beside their kernels",
			                  dev->ops->name);
		ex->bases[HSPMD_ARENA_SAVED] = dev->ops->allocate_host(dev, p->saved_bytes + HSPMD_PROGRAM_ALIGN, err);
		if (!ex->bases[HSPMD_ARENA_SAVED])
			return -1;
	}
	if (!p->host_bytes)
		return 0;
	if (!dev->ops->allocate_host)
		return hspmd_fail(err, "%s devices cannot offload: their kernels do not reach the host's memory", dev->ops->name);
	ex->borrowed[HSPMD_ARENA_HOST] = ex->o.host != NULL;
	ex->bases[HSPMD_ARENA_HOST] = ex->o.host ? ex->o.host : dev->ops->allocate_host(dev, hspmd_executor_host_bytes(p), err);
	return ex->bases[HSPMD_ARENA_HOST] ? 0 : -1;
}

size_t hspmd_executor_host_bytes(const struct hspmd_program *p)
{
	return p->host_bytes ? p->host_bytes + HSPMD_PROGRAM_ALIGN : 0;
}

size_t hspmd_executor_device_bytes(const struct hspmd_program *p)
{
	size_t arenas = p->shared_bytes ? p->shared_bytes : p->fixed_bytes + HSPMD_PROGRAM_ALIGN + p->arena_bytes;
	return arenas + hspmd_program_workspace(p) + 2 * HSPMD_PROGRAM_ALIGN + 2 * hspmd_executor_input_bytes(p);
}

struct hspmd_executor *hspmd_executor_create(const struct hspmd_executor_options *o, struct hspmd_error *err)
{
	struct hspmd_executor *ex = calloc(1, sizeof *ex);
	if (!ex) {
		hspmd_fail_memory(err, "starting a generation");
		return NULL;
	}
	ex->o = *o;
	const struct hspmd_program *p = ex->p = o->program;
	struct hspmd_device *dev = o->device;
	ex->gathered = -1;
	ex->samples = malloc(p->read_bytes + 1);
	ex->votes = hspmd_calloc((size_t)o->voter_count + 1, sizeof *ex->votes);
	ex->updates = hspmd_calloc((size_t)p->state_count + 1, sizeof *ex->updates);
	bool many = dev->ops->run_batch && !o->seconds;
	if (many)
		ex->all = hspmd_calloc((size_t)p->state_count + 1, sizeof *ex->all);
	if (!ex->samples || !ex->votes || !ex->updates || (many && !ex->all)) {
		hspmd_fail_memory(err, "starting a generation");
		goto fail;
	}
	if (allocate_memory(ex, err))
		goto fail;
	ex->workspace_bytes = hspmd_program_workspace(p);
	if (!(ex->workspace = dev->ops->allocate(dev, ex->workspace_bytes + 64, err)) || hspmd_executor_open_inputs(ex, err))
		goto fail;
	if (o->transport && start_engines(ex, err))
		goto fail;
	if (!p->varies && hspmd_executor_prepare(ex, err)) /* what varies is made ready for each step */
		goto fail;
	return ex;
fail:
	hspmd_executor_destroy(ex);
	return NULL;
}

void hspmd_executor_destroy(struct hspmd_executor *ex)
{
	if (!ex)
		return;
	hspmd_executor_disconnect(ex);
	struct hspmd_device *dev = ex->o.device;
	hspmd_executor_release_scratch(ex);
	if (ex->spilled.at)
		hspmd_spill_free(&ex->spilled);
	else if (ex->bases[HSPMD_ARENA_FIXED] && !ex->borrowed[HSPMD_ARENA_FIXED])
		dev->ops->release(dev, ex->bases[HSPMD_ARENA_FIXED]);
	hspmd_executor_close_inputs(ex); /* waits for the device */
	if (ex->bases[HSPMD_ARENA_HOST] && !ex->borrowed[HSPMD_ARENA_HOST])
		dev->ops->release_host(dev, ex->bases[HSPMD_ARENA_HOST]);
	free(ex->samples);
	free(ex->ahead.bytes);
	free(ex->votes);
	free(ex->updates);
	free(ex->all);
	free(ex);
}

void hspmd_executor_release_scratch(struct hspmd_executor *ex)
{
	struct hspmd_device *dev = ex->o.device;
	hspmd_executor_forget_prepared(ex);
	struct hspmd_error ignored; /* a device that has failed copies nothing any more */
	if (ex->bases[HSPMD_ARENA_SAVED]) {
		dev->ops->synchronise(dev, &ignored);
		dev->ops->release_host(dev, ex->bases[HSPMD_ARENA_SAVED]);
	}
	if (ex->bases[HSPMD_ARENA_TRANSIENT] && !ex->borrowed[HSPMD_ARENA_TRANSIENT])
		dev->ops->release(dev, ex->bases[HSPMD_ARENA_TRANSIENT]);
	if (ex->workspace)
		dev->ops->release(dev, ex->workspace);
	ex->bases[HSPMD_ARENA_TRANSIENT] = ex->bases[HSPMD_ARENA_SAVED] = NULL;
	ex->workspace = NULL;
	ex->workspace_bytes = 0;
}

int hspmd_executor_spill(struct hspmd_executor *ex, const char *folder, struct hspmd_error *err)
{
	struct hspmd_device *dev = ex->o.device;
	void *from = ex->bases[HSPMD_ARENA_FIXED];
	if (ex->spilled.at)
		return 0;
	if (hspmd_executor_finish_update(ex, err))
		return -1;
	hspmd_executor_release_scratch(ex);
	if (hspmd_spill_write(&ex->spilled, dev, from, ex->o.program->fixed_bytes, folder, err))
		return -1;
	if (!ex->borrowed[HSPMD_ARENA_FIXED])
		dev->ops->release(dev, from);
	ex->borrowed[HSPMD_ARENA_FIXED] = false;
	ex->bases[HSPMD_ARENA_FIXED] = ex->spilled.at;
	return 0;
}

bool hspmd_executor_spilled(const struct hspmd_executor *ex)
{
	return ex->spilled.at;
}

void hspmd_executor_set_samples(struct hspmd_executor *ex, struct hspmd_sample_source samples)
{
	ex->o.samples = samples;
	hspmd_executor_forget_samples(ex);
}

void hspmd_executor_set_timeline(struct hspmd_executor *ex, struct hspmd_timeline *timeline)
{
	ex->o.timeline = timeline;
}

int hspmd_executor_set_program(struct hspmd_executor *ex, const struct hspmd_program *program, struct hspmd_error *err)
{
	struct hspmd_device *dev = ex->o.device;
	/* Another program may have something else where this one has gradients. */
	if (program != ex->p && hspmd_executor_finish_update(ex, err))
		return -1;
	if (hspmd_program_workspace(program) > ex->workspace_bytes) {
		void *larger = dev->ops->allocate(dev, hspmd_program_workspace(program) + 64, err);
		if (!larger)
			return -1;
		dev->ops->release(dev, ex->workspace);
		ex->workspace = larger;
		ex->workspace_bytes = hspmd_program_workspace(program);
		hspmd_executor_forget_captured(ex);
	}
	if (program->shared_bytes)
		ex->bases[HSPMD_ARENA_TRANSIENT] = ex->bases[HSPMD_ARENA_FIXED] + hspmd_program_arena_offset(program);
	if (program != ex->p && ex->p->batches)
		hspmd_executor_forget_program(ex, ex->p); /* no other step runs it */
	if (program != ex->p && ex->o.timeline)
		hspmd_timeline_begin(ex->o.timeline, program, ex->step);
	ex->p = program;
	return hspmd_executor_prepare(ex, err);
}

void hspmd_executor_disconnect(struct hspmd_executor *ex)
{
	hspmd_engine_destroy(ex->overlap);
	hspmd_engine_destroy(ex->flow);
	ex->overlap = ex->flow = NULL;
}

uint64_t hspmd_executor_sent_bytes(const struct hspmd_executor *ex)
{
	return hspmd_engine_sent_bytes(ex->flow) + hspmd_engine_sent_bytes(ex->overlap);
}

int hspmd_executor_finish_update(const struct hspmd_executor *ex, struct hspmd_error *err)
{
	return ex->updating ? ex->o.device->ops->synchronise(ex->o.device, err) : 0;
}

void *hspmd_executor_slot_data(const struct hspmd_executor *ex, int slot)
{
	struct hspmd_error ignored; /* a device that has failed says so again to whoever reads its memory */
	hspmd_executor_finish_update(ex, &ignored);
	const struct hspmd_slot *of = slot < 0 ? NULL : &ex->o.program->slots[slot];
	return of ? ex->bases[of->memory] + of->offset : NULL;
}

bool hspmd_executor_slot_in_host(const struct hspmd_executor *ex, int slot)
{
	return ex->o.device->ops->host_memory || ex->spilled.at || ex->o.program->slots[slot].memory == HSPMD_ARENA_HOST;
}

/* ---- initial state */

int hspmd_executor_initialise(struct hspmd_executor *ex, struct hspmd_error *err)
{
	ex->gathered = -1;
	if (hspmd_executor_finish_update(ex, err))
		return -1;
	if (hspmd_parameters_initialise(ex->p, ex->o.device, ex->bases, ex->o.job, err))
		return -1;
	return ex->p->host_bytes ? ex->o.device->ops->synchronise(ex->o.device, err) : 0; /* the host may write there next */
}
