/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/program.h"

#include <string.h>

#include "common/alloc.h"
#include "common/format/plan_model.h"
#include "runtime/comm/comm.h"
#include "runtime/op/op.h"
#include "runtime/program/parameter_layout.h"

int hspmd_program_add_slot_type(struct hspmd_program *p, const struct hspmd_slot_type *slot_type, struct hspmd_error *err)
{
	if (hspmd_array_grow(&p->slot_types, &p->slot_type_capacity, p->slot_type_count, sizeof *p->slot_types))
		return hspmd_fail_memory(err, "specialising");
	p->slot_types[p->slot_type_count] = *slot_type;
	p->slot_types[p->slot_type_count].bytes = (size_t)hspmd_box_elements(&slot_type->box) * hspmd_dtype_bytes(slot_type->dtype);
	return (int)p->slot_type_count++;
}

int hspmd_program_add_slot(struct hspmd_program *p, int slot_type, enum hspmd_arena_kind memory, int micro_batch, struct hspmd_error *err)
{
	if (hspmd_array_grow(&p->slots, &p->slot_capacity, p->slot_count, sizeof *p->slots))
		return hspmd_fail_memory(err, "specialising");
	p->slots[p->slot_count] = (struct hspmd_slot){
		.slot_type = slot_type, .memory = memory, .micro_batch = micro_batch, .adjacent_to = -1, .aliases = -1
	};
	return (int)p->slot_count++;
}

struct hspmd_instruction *hspmd_program_add_instruction(struct hspmd_program *p, enum hspmd_instruction_kind kind, struct hspmd_error *err)
{
	if (hspmd_array_grow(&p->instructions, &p->instruction_capacity, p->instruction_count, sizeof *p->instructions)) {
		hspmd_fail_memory(err, "specialising");
		return NULL;
	}
	struct hspmd_instruction *i = &p->instructions[p->instruction_count++];
	*i = (struct hspmd_instruction){
		.kind = kind, .micro_batch = -1, .layer = -1, .schedule_index = p->schedule_index, .peer_pipeline_rank = -1
	};
	return i;
}

/* Messages of a pair of devices are told apart by transfer, step, recomputation and micro-batch (modulo 512: equal tags arrive in order,
 * and both sides take micro-batches in the same order). comm.h wants the low 8 bits free, transport.h less than 44 in all. */
static uint64_t make_tag(const struct hspmd_transfer_binding *route, int step)
{
	return route->number << 24 | (uint64_t)(step & (HSPMD_PROGRAM_MAX_TRANSFER_STEPS - 1)) << 18 | (uint64_t)route->recomputed << 17 |
	       ((uint64_t)(route->micro_batch + 1) & 0x1ff) << 8;
}

static bool takes_part(const struct hspmd_comm_step *step, int device)
{
	for (int m = 0; m < step->member_count; m++)
		if (step->members[m] == device)
			return true;
	return false;
}

/* The slot of a transfer's value on this device: given for the ends, made for what lies between. -1: nothing here; -2: failed. */
static int value_slot(struct hspmd_program *p, const struct hspmd_transfer *t, int value, const struct hspmd_transfer_binding *route,
                      int *slots, struct hspmd_error *err)
{
	if (value == 0)
		return route->in;
	if (value == t->value_count - 1)
		return route->out;
	int at = hspmd_layout_find(&t->layout[value], p->device);
	if (at < 0)
		return -1;
	if (slots[value] < 0) {
		struct hspmd_slot_type slot_type = {
			.tensor = route->tensor, .dtype = route->dtype, .box = t->layout[value].box[at], .full = t->shape
		};
		int f = hspmd_program_add_slot_type(p, &slot_type, err);
		slots[value] = f < 0 ? -1 : hspmd_program_add_slot(p, f, HSPMD_ARENA_TRANSIENT, route->micro_batch, err);
		if (slots[value] < 0)
			return -2;
	}
	return slots[value];
}

int hspmd_program_add_transfer(struct hspmd_program *p, const struct hspmd_transfer *t, const struct hspmd_transfer_binding *route,
                               struct hspmd_error *err)
{
	int *slots = malloc((size_t)t->value_count * sizeof *slots);
	if (!slots)
		return hspmd_fail_memory(err, "specialising");
	for (int v = 0; v < t->value_count; v++)
		slots[v] = -1;
	int status = 0;
	for (int s = 0; !status && s < t->step_count; s++) {
		if (!takes_part(&t->steps[s], p->device))
			continue;
		int in = value_slot(p, t, t->steps[s].input, route, slots, err),
		    out = value_slot(p, t, t->steps[s].output, route, slots, err);
		struct hspmd_instruction *i = in == -2 || out == -2 ? NULL : hspmd_program_add_instruction(p, HSPMD_INSTRUCTION_COMM, err);
		if (!i) {
			status = -1;
			break;
		}
		i->micro_batch = route->micro_batch;
		i->layer = route->layer;
		i->backward = route->backward;
		i->input_count = i->output_count = 1;
		i->in[0] = in;
		i->out[0] = out;
		i->transfer = t;
		i->step = s;
		i->tag = make_tag(route, s);
		i->peer_pipeline_rank = route->peer_pipeline_rank;
		i->peer_schedule_index = route->peer_schedule_index;
		i->sends = route->sends;
	}
	free(slots);
	return status;
}

/* ---- building */

static struct hspmd_graph *build_model(void *context, const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	return hspmd_model_graph(context, how, err);
}

struct hspmd_graph_source hspmd_graph_source_model(const struct hspmd_model *m)
{
	return (struct hspmd_graph_source){ .build = build_model, .context = (void *)m, .layers = hspmd_model_layers(m) };
}

struct hspmd_graph_source hspmd_graph_source_job(const struct hspmd_model *m, const struct hspmd_job *job)
{
	struct hspmd_graph_source source = hspmd_graph_source_model(m);
	source.precision = job->precision;
	source.documents = job->documents;
	return source;
}

/* Does attention on these devices take keys and values part by part? (In bf16 every merging would round.) */
static bool takes_parts(const struct hspmd_cluster *cluster, const struct hspmd_stage *stage)
{
	for (int d = 0; d < stage->device_count; d++)
		if (cluster->types[cluster->devices[stage->devices[d]].type].kind != HSPMD_DEVICE_CPU)
			return false;
	return true;
}

/* All pipelines have the same tensors, whichever of them share the sequence. */
static bool any_ring(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster)
{
	for (int q = 0; q < plan->pipeline_count; q++)
		for (int s = 0; s < plan->pipelines[q].stage_count; s++)
			if (plan->pipelines[q].stages[s].context > 1 && takes_parts(cluster, &plan->pipelines[q].stages[s]))
				return true;
	return false;
}

static struct hspmd_model_build_options how_to_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                                     const struct hspmd_cluster *cluster, int pipeline, bool bf16)
{
	const struct hspmd_pipeline *p = &plan->pipelines[pipeline];
	const struct hspmd_stage *last = &p->stages[p->stage_count - 1];
	return (struct hspmd_model_build_options){
		.batch = p->micro_batch,
		.seq_len = plan->seq_len,
		.vocab_parts = last->device_count / last->context,
		.loss_scale = 1 / ((double)plan->global_batch * plan->seq_len),
		.documents = source->documents,
		.parts = !bf16 && any_ring(plan, cluster),
		.bf16 = bf16,
	};
}

/* What the passes say of a stage, with the plan's path. */
static int in_pipeline(int number, struct hspmd_error *err)
{
	if (!err || strncmp(err->text, "stages[", 7) != 0)
		return hspmd_error_prefix(err, "pipelines[%d]", number);
	struct hspmd_error said = *err;
	return hspmd_fail(err, "pipelines[%d].%s", number, said.text);
}

/* Graph and passes of one pipeline. */
static int build_pipeline(const struct hspmd_graph_source *source, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster,
                          int number, bool bf16, const struct hspmd_link_cost *cost, struct hspmd_graph **graph, struct hspmd_spmd **spmd,
                          struct hspmd_error *err)
{
	const struct hspmd_pipeline *p = &plan->pipelines[number];
	struct hspmd_model_build_options how = how_to_build(source, plan, cluster, number, bf16);
	struct hspmd_spmd_stage *stages = hspmd_calloc((size_t)p->stage_count, sizeof *stages);
	int64_t **weights = hspmd_calloc((size_t)p->stage_count, sizeof *weights);
	int *stage_of_layer = hspmd_spmd_stage_of_layer(p, err);
	int status = stages && weights ? 0 : hspmd_fail_memory(err, "reading the plan");
	if (!stage_of_layer)
		status = -1;
	for (int s = 0; !status && s < p->stage_count; s++) {
		weights[s] = malloc((size_t)(p->stages[s].device_count + p->stages[s].context) * sizeof **weights);
		if (weights[s])
			hspmd_spmd_stage_of_plan(&p->stages[s], &stages[s], weights[s]);
		else
			status = hspmd_fail_memory(err, "reading the plan");
		stages[s].ring = !bf16 && takes_parts(cluster, &p->stages[s]);
	}
	*graph = status ? NULL : source->build(source->context, &how, err);
	*spmd = *graph ? hspmd_spmd_build(*graph, stages, stage_of_layer, cost, err) : NULL;
	if (!status && !*spmd)
		status = in_pipeline(number, err);
	for (int s = 0; weights && s < p->stage_count; s++)
		free(weights[s]);
	free(weights);
	free(stages);
	free(stage_of_layer);
	return status;
}

/* Where the device stands in the plan. A device in no stage stands in pipeline 0, stage -1. */
static void find_device(struct hspmd_program *p, const struct hspmd_plan *plan)
{
	p->stage = -1;
	for (int q = 0; q < plan->pipeline_count; q++)
		for (int s = 0; s < plan->pipelines[q].stage_count / plan->virtual_stages; s++)
			for (int d = 0; d < plan->pipelines[q].stages[s].device_count; d++)
				if (plan->pipelines[q].stages[s].devices[d] == p->device) {
					p->pipeline = q;
					p->stage = s;
				}
	for (int q = 0; q < p->pipeline; q++)
		p->first_sample += (int64_t)plan->pipelines[q].micro_batches * plan->pipelines[q].micro_batch;
	p->chunks = plan->virtual_stages;
	p->pipeline_ranks = plan->pipelines[p->pipeline].stage_count / plan->virtual_stages;
	p->micro_batches = plan->pipelines[p->pipeline].micro_batches;
	p->micro_batch = plan->pipelines[p->pipeline].micro_batch;
}

bool hspmd_program_in_stage(const struct hspmd_program *p, int stage)
{
	return p->stage >= 0 && stage % p->pipeline_ranks == p->stage;
}

struct hspmd_view hspmd_program_slot_view(const struct hspmd_program *p, int slot, char *const *bases)
{
	const struct hspmd_slot_type *slot_type = &p->slot_types[p->slots[slot].slot_type];
	struct hspmd_view v = { .dtype = slot_type->dtype, .rank = slot_type->box.rank };
	for (int d = 0; d < v.rank; d++) {
		v.shape[d] = slot_type->box.hi[d] - slot_type->box.lo[d];
		v.start[d] = slot_type->box.lo[d];
		v.full[d] = slot_type->full.dim[d];
	}
	if (bases)
		v.data = bases[p->slots[slot].memory] + p->slots[slot].offset;
	return v;
}

void hspmd_program_kernel_args(const struct hspmd_program *p, const struct hspmd_instruction *in, char *const *bases,
                               struct hspmd_kernel_args *args)
{
	*args = (struct hspmd_kernel_args){ .attr = in->attr, .input_count = in->input_count, .output_count = in->output_count };
	for (int k = 0; k < in->input_count; k++)
		args->in[k] = in->in[k] >= 0 ? hspmd_program_slot_view(p, in->in[k], bases) : (struct hspmd_view){ .rank = -1 };
	for (int k = 0; k < in->output_count; k++)
		if (in->out[k] >= 0) {
			args->out[k] = hspmd_program_slot_view(p, in->out[k], bases);
			args->out[k].accumulate = in->accumulate >> k & 1;
		}
	if (in->kind == HSPMD_INSTRUCTION_NORM) {
		args->output_count = 1;
		args->out[0] = (struct hspmd_view){ .dtype = HSPMD_F64, .rank = 1, .shape = { 1 }, .full = { 1 } };
	}
}

void hspmd_program_query_workspace(struct hspmd_program *p, struct hspmd_device *dev)
{
	static const struct hspmd_op_attr none;
	for (size_t i = 0; dev && i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		struct hspmd_kernel_args args;
		if (in->kind == HSPMD_INSTRUCTION_READ || in->kind == HSPMD_INSTRUCTION_COMM)
			continue;
		hspmd_program_kernel_args(p, in, NULL, &args);
		if (!args.attr)
			args.attr = &none;
		size_t bytes = dev->ops->workspace(dev, in->opcode, &args);
		if (bytes > p->workspace_bytes)
			p->workspace_bytes = bytes;
	}
}

/* What is sent and received: the buffers of the step that needs most, and those of one that was let come while another went on; and the
 * same of what is done once a step, which has an engine and buffers of its own. */
static int measure_messages(struct hspmd_program *p, struct hspmd_device *dev, struct hspmd_error *err)
{
	int64_t most[2] = { 0 }, early = 0;
	for (size_t i = 0; dev && dev->ops->host_memory && i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM)
			continue;
		const struct hspmd_comm_step *step = &in->transfer->steps[in->step];
		int64_t bytes = hspmd_comm_scratch_bytes(in->transfer, step, p->device, err);
		bool comes = step->kind == HSPMD_COMM_SEND_RECEIVE || step->kind == HSPMD_COMM_BATCHED, whole = in->micro_batch < 0;
		if (bytes < 0)
			return -1;
		most[whole] = bytes > most[whole] ? bytes : most[whole];
		early = comes && !whole && bytes > early ? bytes : early;
	}
	p->message_bytes = (size_t)(most[0] + early + most[1]);
	return 0;
}

struct hspmd_devcomm_use *hspmd_program_devcomm_uses(const struct hspmd_program *p, struct hspmd_program *const *more, int more_count,
                                                     int lane, size_t *count)
{
	size_t most = p->instruction_count + 1;
	for (int i = 0; more && i < more_count; i++)
		most += more[i]->instruction_count;
	struct hspmd_devcomm_use *uses = hspmd_calloc(most, sizeof *uses);
	*count = 0;
	for (int i = -1; uses && i < (more ? more_count : 0); i++) {
		const struct hspmd_program *one = i < 0 ? p : more[i];
		for (size_t k = 0; k < one->instruction_count; k++) {
			const struct hspmd_instruction *in = &one->instructions[k];
			if (in->kind == HSPMD_INSTRUCTION_COMM && (in->micro_batch < 0) == (lane == 1))
				uses[(*count)++] = (struct hspmd_devcomm_use){ &in->transfer->steps[in->step], in->tag };
		}
	}
	return uses;
}

size_t hspmd_program_memory(const struct hspmd_program *p)
{
	return p->fixed_bytes + p->arena_bytes + p->workspace_bytes + p->message_bytes;
}

struct hspmd_program *hspmd_program_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                          const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev,
                                          struct hspmd_error *err)
{
	struct hspmd_program *p = calloc(1, sizeof *p);
	size_t n = (size_t)plan->pipeline_count;
	struct hspmd_graph **graphs = hspmd_calloc(n, sizeof *graphs);
	struct hspmd_spmd **spmds = hspmd_calloc(n, sizeof *spmds);
	struct hspmd_link_cost across = hspmd_link_cost_of_cluster(cluster), cost = across;
	cost.node = NULL; /* between stages devices are few; what goes between nodes in bulk is gradients and parameters */
	bool bf16 = hspmd_plan_precision(plan, cluster, source->precision) == HSPMD_PRECISION_BF16;
	cost.cache = hspmd_resolve_cache_create();
	across.cache = hspmd_resolve_cache_create();
	int status = p && graphs && spmds && cost.cache && across.cache ? 0 : hspmd_fail_memory(err, "specialising");
	for (size_t q = 0; !status && q < n; q++)
		status = build_pipeline(source, plan, cluster, (int)q, bf16, &cost, &graphs[q], &spmds[q], err);
	if (!status) {
		p->device = device;
		find_device(p, plan);
		p->graph = graphs[p->pipeline];
		p->spmd = spmds[p->pipeline];
		enum hspmd_device_kind kind = device >= 0 ? cluster->types[cluster->devices[device].type].kind : HSPMD_DEVICE_CPU;
		p->overlaps = device >= 0 && kind == HSPMD_DEVICE_CPU;
		p->how = how_to_build(source, plan, cluster, p->pipeline, bf16);
		p->layouts = hspmd_parameter_layouts_build(p->graph, plan, err);
		if (!p->layouts || hspmd_program_specialise(p, plan, err) || (device >= 0 && hspmd_program_fuse_ops(p, kind, err)) ||
		    hspmd_program_sync_gradients(p, spmds, &across, err) || hspmd_program_plan_memory(p, err) ||
		    measure_messages(p, dev, err))
			status = -1;
		else
			hspmd_program_query_workspace(p, dev);
	}
	for (size_t q = 0; graphs && spmds && q < n; q++) {
		if (p && p->graph == graphs[q])
			continue; /* the program's own now */
		hspmd_spmd_destroy(spmds[q]);
		hspmd_graph_destroy(graphs[q]);
	}
	hspmd_resolve_cache_destroy(cost.cache);
	hspmd_resolve_cache_destroy(across.cache);
	free(graphs);
	free(spmds);
	if (status) {
		hspmd_program_destroy(p);
		return NULL;
	}
	return p;
}

void hspmd_program_destroy(struct hspmd_program *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->transfer_count; i++)
		hspmd_transfer_destroy(p->transfers[i]);
	free(p->transfers);
	free(p->states);
	free(p->fixed_of_tensor);
	free(p->instructions);
	free(p->slots);
	free(p->slot_types);
	hspmd_parameter_layouts_destroy(p->layouts);
	hspmd_spmd_destroy(p->spmd);
	hspmd_graph_destroy(p->graph);
	free(p);
}
