/* SPDX-License-Identifier: Apache-2.0 */
/* The step's part of a program: every parameter's gradient is summed from all devices that accumulated it (other pipelines, other widths
 * of tensor parallelism, other stages for tied weights) to those that hold the optimizer state, its norm is computed, and after the vote
 * the state is updated and parameters are gathered by the devices that use them. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/program/joined.h"
#include "runtime/program/parameter_state.h"
#include "runtime/program/program.h"

struct sync {
	struct hspmd_program *p;
	const struct hspmd_parameter_layouts *layouts;
	const struct hspmd_pipelines *pipelines;
	const struct hspmd_link_cost *cost;
	struct hspmd_link_cost
	        alike; /* as if all links were equal: a sum that all devices need is then one all-reduce, and can share a message */
	struct hspmd_joined_costs joined; /* of transfers whose messages are joined */
	size_t passes;    /* number of instructions of the micro-batches */
	size_t *complete; /* per slot: index of the instruction after the last one that adds to it; 0: none does */
	size_t *when;     /* per instruction of a sum: the number of micro-batch instructions that must precede it */
	size_t when_count, when_capacity;
	struct bucket *buckets; /* being filled, in the order of their first gradients */
	size_t bucket_count, bucket_capacity;
	struct hspmd_error *err;
};

/* Returns true if every device takes part in one all-reduce of all of its values. The sum can then replace the addends in place, and
 * neighbours with the same groups can share a message. */
static bool is_plain_sum(const struct hspmd_transfer *t)
{
	size_t members = 0;
	for (int k = 0; k < t->step_count; k++) {
		const struct hspmd_comm_step *step = &t->steps[k];
		if (step->kind != HSPMD_COMM_ALL_REDUCE || step->input != 0 || step->output != t->value_count - 1)
			return false;
		for (int m = 0; m < step->member_count; m++) {
			int at = hspmd_layout_find(&t->layout[0], step->members[m]);
			if (at < 0 || !hspmd_box_equal(&step->in[m], &t->layout[0].box[at]) ||
			    !hspmd_box_equal(&step->out[m], &step->in[m]))
				return false;
		}
		members += (size_t)step->member_count;
	}
	return t->step_count > 0 && members == (size_t)t->layout[0].device_count &&
	       t->layout[t->value_count - 1].device_count == t->layout[0].device_count;
}

/* Returns true if this device only adds, to all of its values. Its sum, too, can then replace the addends in place. */
static bool stays_here(const struct hspmd_transfer *t, int device)
{
	int last = t->value_count - 1, before = hspmd_layout_find(&t->layout[0], device),
	    after = hspmd_layout_find(&t->layout[last], device);
	if (before < 0 || after < 0 || !hspmd_box_equal(&t->layout[0].box[before], &t->layout[last].box[after]))
		return false;
	for (int k = 0; k < t->step_count; k++) {
		const struct hspmd_comm_step *step = &t->steps[k];
		for (int m = 0; m < step->member_count; m++)
			if (step->members[m] == device && (step->kind != HSPMD_COMM_ALL_REDUCE || step->input != 0 ||
			                                   step->output != last || !hspmd_box_equal(&step->in[m], &step->out[m])))
				return false;
	}
	return true;
}

static bool same_groups(const struct hspmd_transfer *a, const struct hspmd_transfer *b)
{
	if (a->step_count != b->step_count || a->element_bytes != b->element_bytes)
		return false;
	for (int k = 0; k < a->step_count; k++)
		if (a->steps[k].member_count != b->steps[k].member_count ||
		    memcmp(a->steps[k].members, b->steps[k].members, (size_t)a->steps[k].member_count * sizeof(int)))
			return false;
	return true;
}

/* Number of elements between the starts of two adjacent slots. */
static int64_t pitch(const struct hspmd_box *box, size_t element_bytes)
{
	size_t bytes = (size_t)hspmd_box_elements(box) * element_bytes;
	return (int64_t)((bytes + HSPMD_PROGRAM_ALIGN - 1) / HSPMD_PROGRAM_ALIGN * HSPMD_PROGRAM_ALIGN / element_bytes);
}

/* Gradients that are sent in one message. Every device must fill and send its buckets in the same order as the others that take part, and
 * knows only of gradients that it has a part of. So buckets of different groups fill side by side, and what ends a bucket is known to all
 * of its members: its own gradients, and the layers that the walk over all parameters comes to.
 *
 * Plain sums of a bucket are one sum of a row. Others, to parts of gradients or between unlike parts, are joined step by step (joined.h);
 * they are resolved when the bucket is sent, as what is cheapest depends on all that travels. */
struct bucket {
	bool plain;
	const struct hspmd_transfer *first; /* the first gradient's transfer; all others have the same groups, or can be joined with it */
	int number;                         /* of its first parameter; numbers the transfer */
	int layer;                          /* of its last parameter */
	size_t ready;                       /* the number of instructions after which all of them are complete on this device */
	int count;
	int first_slot, last_slot; /* on this device; -1: it takes no part */
	int64_t *elements;         /* plain: per step of the transfer, so far */
	int64_t bytes;             /* on a device, so far */
	struct addend *addends;    /* not plain */
	size_t capacity;           /* of addends */
};

/* A gradient of a bucket. */
struct addend {
	int number;    /* of its parameter */
	int64_t bytes; /* on a device */
};

/* The instructions from `first` on are of sums of gradients that are complete at `ready`. */
static int note_sums(struct sync *s, size_t first, size_t ready)
{
	struct hspmd_program *p = s->p;
	for (size_t i = first; i < p->instruction_count; i++) {
		if (hspmd_array_grow(&s->when, &s->when_capacity, s->when_count, sizeof *s->when))
			return hspmd_fail_memory(s->err, "specialising");
		s->when[s->when_count++] = ready;
		p->instructions[i].overlaps = p->overlaps;
	}
	return 0;
}

static struct hspmd_transfer_binding bind(const struct hspmd_program *p, int number, bool back, int in, int out)
{
	const struct hspmd_parameter_layout *l = &p->layouts->parameters[number];
	return (struct hspmd_transfer_binding){
		.tensor = l->tensor,
		.dtype = back ? hspmd_parameter_used_type(p, l) : hspmd_parameter_kept_type(p, l),
		.in = in,
		.out = out,
		.micro_batch = -1,
		.layer = p->graph->tensors[l->tensor].layer,
		.backward = !back,
		.number = HSPMD_PARAMETER_TRANSFER(number, back),
		.choice = -1,
		.peer_pipeline_rank = -1,
	};
}

/* Add the instructions for a bucket's gradients, which are neighbours in memory. */
static int flush_row(struct sync *s, const struct bucket *b)
{
	struct hspmd_program *p = s->p;
	int tensor = s->layouts->parameters[b->number].tensor, slot = b->first_slot;
	const struct hspmd_transfer *t = b->first;
	size_t first = p->instruction_count;
	bool hops;
	struct hspmd_transfer *fused = hspmd_program_bucket(b->first, b->elements, s->cost, &hops, s->err);
	if (!fused || hspmd_parameter_own_transfer(s->p, fused, s->err))
		return -1;
	if (b->count > 1 || hops)
		t = fused;
	int at = hspmd_layout_find(&t->layout[0], p->device);
	if (t == fused && slot >= 0 && at >= 0) {
		struct hspmd_slot_type slot_type = { .tensor = tensor,
			                             .dtype = hspmd_dtype_master(p->graph->tensors[tensor].dtype),
			                             .box = t->layout[0].box[at],
			                             .full = t->shape };
		int f = hspmd_program_add_slot_type(p, &slot_type, s->err);
		slot = f < 0 ? -1 : hspmd_program_add_slot(p, f, HSPMD_ARENA_FIXED, -1, s->err);
		if (slot < 0)
			return -1;
		p->slots[slot].aliases = b->first_slot;
	}
	struct hspmd_transfer_binding route = bind(p, b->number, false, slot, slot);
	p->schedule_index++;
	return hspmd_program_add_transfer(p, t, &route, s->err) ? -1 : note_sums(s, first, b->ready);
}

/* How one gradient of a bucket of `total` bytes is summed, and where. */
static int bind_sum(struct sync *s, const struct addend *one, int64_t total, struct hspmd_bound_transfer *out)
{
	struct hspmd_program *p = s->p;
	const struct hspmd_parameter_layout *l = &s->layouts->parameters[one->number];
	struct hspmd_program_state *state = &p->states[one->number];
	enum hspmd_dtype type = hspmd_parameter_kept_type(p, l);
	struct hspmd_parameter_path path = { one->number, false, s->pipelines };
	struct hspmd_joined_bytes bytes = { one->bytes, total };
	const struct hspmd_transfer *t = hspmd_parameter_joined(p, &path, &bytes, &s->joined, s->err);
	int own = state->grad;
	if (!t)
		return -1;
	state->grad = own >= 0 && stays_here(t, p->device) ? own : -1;
	if (state->grad < 0 && state->param >= 0 &&
	    (state->grad = hspmd_parameter_slot(p, l, &state->shard.box, type, HSPMD_ARENA_TRANSIENT, s->err)) < 0)
		return -1;
	*out = (struct hspmd_bound_transfer){ .transfer = t, .route = bind(p, one->number, false, own, state->grad) };
	return 0;
}

static int flush_joined(struct sync *s, const struct bucket *b)
{
	struct hspmd_program *p = s->p;
	struct hspmd_bound_transfer *all = hspmd_calloc((size_t)b->count, sizeof *all);
	size_t first = p->instruction_count;
	int status = all ? 0 : hspmd_fail_memory(s->err, "specialising");
	for (int i = 0; !status && i < b->count; i++)
		status = bind_sum(s, &b->addends[i], b->bytes, &all[i]);
	p->schedule_index++;
	if (!status)
		status = hspmd_program_add_transfers(p, all, b->count, NULL, NULL, s->err);
	free(all);
	return status ? -1 : note_sums(s, first, b->ready);
}

static void clear_bucket(struct bucket *b)
{
	free(b->elements);
	free(b->addends);
}

static int flush_at(struct sync *s, size_t at)
{
	struct bucket b = s->buckets[at];
	memmove(&s->buckets[at], &s->buckets[at + 1], (--s->bucket_count - at) * sizeof *s->buckets);
	int status = b.plain ? flush_row(s, &b) : flush_joined(s, &b);
	clear_bucket(&b);
	return status;
}

/* Send what is large enough before the gradients of another layer are collected. */
static int enter_layer(struct sync *s, int layer)
{
	for (size_t at = 0; at < s->bucket_count;) {
		const struct bucket *b = &s->buckets[at];
		if (layer == b->layer || b->bytes <= HSPMD_PROGRAM_BUCKET_MIN)
			at++;
		else if (flush_at(s, at))
			return -1;
	}
	return 0;
}

/* The bucket for gradients that are summed as this transfer does. NULL: memory. */
static struct bucket *find_bucket(struct sync *s, const struct hspmd_transfer *t, bool plain, int number, int slot)
{
	for (size_t at = 0; at < s->bucket_count; at++) {
		const struct hspmd_transfer *first = s->buckets[at].first;
		if (s->buckets[at].plain == plain && (plain ? same_groups(first, t) : hspmd_transfers_join(first, t)))
			return &s->buckets[at];
	}
	int64_t *elements = hspmd_calloc((size_t)t->step_count, sizeof *elements);
	if (!elements || hspmd_array_grow(&s->buckets, &s->bucket_capacity, s->bucket_count, sizeof *s->buckets)) {
		free(elements);
		hspmd_fail_memory(s->err, "specialising");
		return NULL;
	}
	struct bucket *b = &s->buckets[s->bucket_count++];
	*b = (struct bucket){ .plain = plain, .first = t, .number = number, .elements = elements, .first_slot = slot };
	return b;
}

/* Put a gradient into the bucket of its groups, and send the bucket if it is full. */
static int collect(struct sync *s, const struct hspmd_transfer *t, bool plain, int number, int slot)
{
	struct bucket *b = find_bucket(s, t, plain, number, slot);
	if (!b)
		return -1;
	if (plain && b->count && slot >= 0)
		s->p->slots[slot].adjacent_to = b->last_slot;
	b->last_slot = slot;
	b->layer = s->p->graph->tensors[s->layouts->parameters[number].tensor].layer;
	b->ready = slot >= 0 && s->complete[slot] > b->ready ? s->complete[slot] : b->ready;
	if (!plain) {
		if (hspmd_array_grow(&b->addends, &b->capacity, (size_t)b->count, sizeof *b->addends))
			return hspmd_fail_memory(s->err, "specialising");
		b->addends[b->count] = (struct addend){ number, hspmd_transfer_device_bytes(t) };
		b->bytes += b->addends[b->count].bytes;
	}
	b->count++;
	for (int k = 0; plain && k < t->step_count; k++)
		b->elements[k] += pitch(&t->steps[k].in[0], t->element_bytes);
	if (plain)
		b->bytes = b->elements[0] * (int64_t)t->element_bytes;
	return b->bytes > HSPMD_PROGRAM_BUCKET ? flush_at(s, (size_t)(b - s->buckets)) : 0;
}

/* The transfer of a gradient, by which its bucket is found. NULL and err. */
static const struct hspmd_transfer *find_sum(struct sync *s, int number, bool *plain)
{
	struct hspmd_program *p = s->p;
	const struct hspmd_parameter_layout *l = &s->layouts->parameters[number];
	*plain = false;
	if (!l->cut) { /* a state that is cut further than the parameter never gets a plain sum */
		enum hspmd_dtype type = hspmd_parameter_kept_type(p, l);
		struct hspmd_annotation *from = hspmd_parameter_gradient(p, s->pipelines, l, s->err);
		const struct hspmd_transfer *t = from ? hspmd_parameter_resolve(p, l, from, l->state, type, &s->alike, s->err) : NULL;
		hspmd_annotation_destroy(from);
		*plain = t && (!t->step_count || is_plain_sum(t));
		if (!t || *plain)
			return t;
	}
	return hspmd_parameter_likely(p, &(struct hspmd_parameter_path){ number, false, s->pipelines }, &s->joined, s->err);
}

/* Sum one gradient to the devices that hold its state, with others. */
static int sum_gradient(struct sync *s, int number)
{
	const struct hspmd_program *p = s->p;
	int gradient = p->graph->tensors[s->layouts->parameters[number].tensor].grad;
	int own = gradient < 0 ? -1 : p->fixed_of_tensor[gradient];
	bool plain;
	const struct hspmd_transfer *t = find_sum(s, number, &plain);
	if (!t)
		return -1;
	p->states[number].grad = own;
	return t->step_count ? collect(s, t, plain, number, own) : 0;
}

/* ---- sums that overlap with the passes */

static int find_complete(struct sync *s)
{
	const struct hspmd_program *p = s->p;
	s->passes = p->instruction_count;
	s->complete = hspmd_calloc(p->slot_count, sizeof *s->complete);
	if (!s->complete)
		return hspmd_fail_memory(s->err, "specialising");
	for (size_t i = 0; i < p->instruction_count; i++)
		for (int k = 0; k < p->instructions[i].output_count; k++)
			if (p->instructions[i].out[k] >= 0)
				s->complete[p->instructions[i].out[k]] = i + 1;
	return 0;
}

/* Move every sum to the point where its gradients are complete, but not before the previous sum in the order that all devices share. A
 * gradient that this device only receives is not needed before the last schedule entry. */
static int interleave(struct sync *s)
{
	struct hspmd_program *p = s->p;
	size_t at = 0, out = 0, last_entry = s->passes;
	struct hspmd_instruction *merged = hspmd_calloc(p->instruction_count, sizeof *merged);
	if (!merged)
		return hspmd_fail_memory(s->err, "specialising");
	while (last_entry > 0 && p->instructions[last_entry - 1].schedule_index == p->instructions[s->passes - 1].schedule_index)
		last_entry--;
	for (size_t k = 0; k < s->when_count; k++) {
		size_t ready = s->when[k] ? s->when[k] : last_entry;
		while (at < ready)
			merged[out++] = p->instructions[at++];
		merged[out] = p->instructions[s->passes + k];
		merged[out].schedule_index = out ? merged[out - 1].schedule_index : 0;
		out++;
	}
	while (at < s->passes)
		merged[out++] = p->instructions[at++];
	free(p->instructions);
	p->instructions = merged;
	p->instruction_capacity = p->instruction_count;
	return 0;
}

static int add_norm(const struct sync *s, int number)
{
	struct hspmd_program *p = s->p;
	const struct hspmd_program_state *state = &p->states[number];
	if (state->param < 0 || state->shard.replica || p->graph->tensors[state->tensor].history)
		return 0; /* another device counts the norm of these elements, or they are none of a gradient */
	struct hspmd_instruction *i = hspmd_program_add_instruction(p, HSPMD_INSTRUCTION_NORM, s->err);
	if (!i)
		return -1;
	i->opcode = HSPMD_OP_SUM_SQUARES;
	i->layer = p->graph->tensors[state->tensor].layer;
	i->backward = true;
	i->input_count = 1;
	i->in[0] = state->grad;
	return 0;
}

static int update(const struct sync *s, int number)
{
	struct hspmd_program *p = s->p;
	const struct hspmd_program_state *state = &p->states[number];
	if (state->param < 0)
		return 0;
	struct hspmd_instruction *i = hspmd_program_add_instruction(p, HSPMD_INSTRUCTION_UPDATE, s->err);
	if (!i)
		return -1;
	i->opcode = HSPMD_OP_UPDATE;
	i->layer = p->graph->tensors[state->tensor].layer;
	i->step = number;
	i->input_count = 1;
	i->in[0] = state->grad;
	i->out[i->output_count++] = state->param;
	for (int k = 0; k < hspmd_optimizer_types[p->optimizer]->moments; k++)
		i->out[i->output_count++] = state->moments[k];
	if (state->copy >= 0)
		i->out[i->output_count++] = state->copy;
	return 0;
}

/* Returns true if this device has a part of the parameter, or of its state. */
static bool has_part(const struct hspmd_program *p, int number)
{
	return hspmd_parameter_is_here(p, number) || p->states[number].param >= 0;
}

/* Parameters return to the devices that use them, those together that can: nothing else has to be sent then. */
static int hand_back(struct sync *s)
{
	struct hspmd_program *p = s->p;
	size_t most = (size_t)p->state_count + 1;
	const struct hspmd_transfer **likely = hspmd_calloc(most, sizeof(*likely));
	struct hspmd_bound_transfer *all = hspmd_calloc(most, sizeof *all);
	struct hspmd_joined_bytes *bytes = hspmd_calloc(most, sizeof *bytes);
	int *group = hspmd_calloc(most, sizeof *group), count = 0; /* one group */
	int status = likely && all && bytes && group ? 0 : hspmd_fail_memory(s->err, "specialising");
	for (int i = 0; !status && i < p->state_count; i++)
		if (has_part(p, i) && !p->states[i].gather)
			status =
			        (likely[i] = hspmd_parameter_likely(p, &(struct hspmd_parameter_path){ i, true, NULL }, &s->joined, s->err))
			                ? 0
			                : -1;
	if (!status)
		status = hspmd_joined_totals(likely, group, p->state_count, bytes, s->err);
	hspmd_joined_forget(&s->joined);
	for (int i = 0; !status && i < p->state_count; i++) {
		const struct hspmd_program_state *state = &p->states[i];
		if (!bytes[i].own)
			continue;
		all[count].route = bind(p, i, true, state->copy >= 0 ? state->copy : state->param, state->used);
		all[count].transfer =
		        hspmd_parameter_joined(p, &(struct hspmd_parameter_path){ i, true, NULL }, &bytes[i], &s->joined, s->err);
		status = all[count++].transfer ? 0 : -1;
	}
	p->schedule_index++;
	if (!status)
		status = hspmd_program_add_transfers(p, all, count, NULL, NULL, s->err);
	free(likely);
	free(all);
	free(bytes);
	free(group);
	return status;
}

int hspmd_program_sync_gradients(struct hspmd_program *p, const struct hspmd_pipelines *pipelines, const struct hspmd_link_cost *cost,
                                 struct hspmd_error *err)
{
	const struct hspmd_parameter_layouts *layouts = p->layouts;
	struct sync s = { .p = p,
		          .layouts = layouts,
		          .pipelines = pipelines,
		          .cost = cost,
		          .alike = { .cache = hspmd_resolve_cache_create() },
		          .err = err };
	int status = s.alike.cache ? hspmd_joined_costs_init(&s.joined, cost, err) : hspmd_fail_memory(err, "specialising");
	for (int i = 0; !status && i < p->state_count; i++)
		status = hspmd_parameter_add_state(p, i, err);
	if (!status)
		status = find_complete(&s);
	/* The order in which backward passes complete gradients; it is the same on all devices. */
	for (int i = p->state_count - 1; !status && i >= 0; i--) {
		status = enter_layer(&s, p->graph->tensors[layouts->parameters[i].tensor].layer);
		if (!status && has_part(p, i) && !p->states[i].scatter)
			status = sum_gradient(&s, i);
	}
	while (!status && s.bucket_count)
		status = flush_at(&s, 0);
	if (!status && p->overlaps)
		status = interleave(&s);
	for (size_t k = 0; k < s.bucket_count; k++)
		clear_bucket(&s.buckets[k]);
	hspmd_joined_forget(&s.joined);
	free(s.buckets);
	free(s.complete);
	free(s.when);
	hspmd_resolve_cache_destroy(s.alike.cache);
	for (int i = p->state_count - 1; !status && i >= 0; i--)
		status = add_norm(&s, i);
	p->vote = p->instruction_count;
	for (int i = 0; !status && i < p->state_count; i++)
		status = update(&s, i);
	if (!status)
		status = hand_back(&s);
	hspmd_joined_costs_clear(&s.joined);
	return status ? -1 : 0;
}
