/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/program_set.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/plan_rates.h"
#include "runtime/comm/comm.h"
#include "runtime/program/seq_len.h"

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Whichever of several programs an executor starts with, its memory then holds each of them. */
static void share_memory(struct hspmd_program_set *s)
{
	struct hspmd_program most = { 0 };
	for (int i = 0; i < s->count; i++) {
		const struct hspmd_program *p = s->programs[i];
		most.shared_bytes = larger(most.shared_bytes, hspmd_program_arena_offset(p) + p->arena_bytes + HSPMD_PROGRAM_ALIGN);
		most.workspace_bytes = larger(most.workspace_bytes, p->workspace_bytes);
		most.beside_bytes = larger(most.beside_bytes, p->beside_bytes);
		most.saved_bytes = larger(most.saved_bytes, p->saved_bytes);
		most.message_bytes = larger(most.message_bytes, p->message_bytes);
		most.read_bytes = larger(most.read_bytes, p->read_bytes);
	}
	for (int i = 0; s->count > 1 && i < s->count; i++) {
		struct hspmd_program *p = s->programs[i];
		p->shared_bytes = most.shared_bytes;
		p->workspace_bytes = most.workspace_bytes;
		p->beside_bytes = most.beside_bytes;
		p->saved_bytes = most.saved_bytes;
		p->message_bytes = most.message_bytes;
		p->read_bytes = most.read_bytes;
	}
}

static int build_programs(struct hspmd_program_set *s, const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                          const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev, struct hspmd_error *err)
{
	if (!(s->programs[0] = hspmd_program_build(source, plan, cluster, device, dev, err)))
		return -1;
	if (s->programs[0]->stage < 0) /* this device only hands over state */
		s->count = 1;
	for (int i = 1; i < s->count; i++) {
		s->programs[i] = hspmd_program_build_on(s->programs[0], source, hspmd_plan_of(plan, i), cluster, dev, err);
		if (!s->programs[i])
			return hspmd_error_prefix(err, "shorter[%d]", i - 1);
		s->programs[i]->which = i;
	}
	share_memory(s);
	return 0;
}

/* For steps that mix lengths: the program that has room for all of them. */
static int build_mixed(struct hspmd_program_set *s, const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                       const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev, const struct hspmd_step_lengths *lengths,
                       struct hspmd_error *err)
{
	s->count = 1;
	s->pipeline_count = plan->pipeline_count;
	s->global_batch = plan->global_batch;
	s->mixed_lengths = lengths->count;
	if (hspmd_plan_check_mixing(plan, err) || !(s->rates = hspmd_plan_rates(plan, lengths->lengths, lengths->count, err)))
		return -1;
	struct hspmd_plan *any = hspmd_plan_for_any_step(plan, s->rates, lengths->lengths, lengths->count);
	s->programs[0] = any ? hspmd_program_build(source, any, cluster, device, dev, err) : NULL;
	int status = s->programs[0] ? 0 : -1, *most = hspmd_calloc((size_t)lengths->count, sizeof *most);
	if (!any || !most)
		status = hspmd_fail_memory(err, "specialising");
	hspmd_plan_destroy(any);
	if (!status && s->programs[0]->stage >= 0) {
		for (int l = 0; l < lengths->count; l++)
			most[l] = s->rates[s->programs[0]->pipeline].length[l].most;
		s->mixed = hspmd_step_programs_create(s->programs[0], source, lengths->lengths, lengths->count, dev, err);
		status = s->mixed ? hspmd_step_programs_check(s->mixed, most, err) : -1;
		if (status && lengths->file)
			hspmd_error_prefix(err, "%s: data.lengths", lengths->file);
	}
	free(most);
	return status;
}

/* The least recently asked for comes last. */
static struct hspmd_kept_program *take_oldest(struct hspmd_program_set *s)
{
	int last = HSPMD_STEP_PROGRAMS_KEPT - 1;
	hspmd_program_destroy(s->kept[last].program);
	memmove(&s->kept[1], &s->kept[0], (size_t)last * sizeof *s->kept);
	s->kept[0].program = NULL;
	return &s->kept[0];
}

static struct hspmd_program *make_for_step(struct hspmd_program_set *s, int64_t step, int (*length_of)(void *context, int64_t number),
                                           void *context, struct hspmd_error *err)
{
	struct hspmd_step_batches batches;
	int *of = hspmd_calloc((size_t)s->global_batch, sizeof *of);
	if (!of) {
		hspmd_fail_memory(err, "dividing a step's samples");
		return NULL;
	}
	for (int i = 0; i < s->global_batch; i++)
		of[i] = length_of ? length_of(context, step * s->global_batch + i) : s->mixed_lengths - 1;
	int status = hspmd_step_batches_make(s->rates, s->pipeline_count, s->mixed_lengths, of, s->global_batch, &batches, err);
	struct hspmd_program *made = status ? NULL : hspmd_step_program_make(s->mixed, &batches, err);
	if (!status)
		hspmd_step_batches_clear(&batches);
	free(of);
	return made;
}

const struct hspmd_program *hspmd_program_set_for_step(struct hspmd_program_set *s, int64_t step,
                                                       int (*length_of)(void *context, int64_t number), void *context,
                                                       struct hspmd_error *err)
{
	step = length_of ? step : -1;
	for (int k = 0; k < HSPMD_STEP_PROGRAMS_KEPT; k++)
		if (s->kept[k].program && s->kept[k].step == step) {
			struct hspmd_kept_program found = s->kept[k];
			memmove(&s->kept[1], &s->kept[0], (size_t)k * sizeof *s->kept);
			return (s->kept[0] = found).program;
		}
	struct hspmd_program *made = make_for_step(s, step, length_of, context, err);
	if (made)
		*take_oldest(s) = (struct hspmd_kept_program){ step, made };
	return made;
}

static int build_lengths(struct hspmd_program_set *s, const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                         struct hspmd_device *dev, const struct hspmd_step_lengths *lengths, struct hspmd_error *err)
{
	for (int i = 0; s->programs[0]->stage >= 0 && i < s->length_count; i++) {
		int which = hspmd_plan_for_length(plan, lengths->lengths[i]);
		s->at_length[i] = hspmd_program_at_length(s->programs[which], source, lengths->lengths[i], dev, err);
		if (s->at_length[i])
			continue;
		if (which)
			hspmd_error_prefix(err, "shorter[%d]", which - 1);
		return lengths->file ? hspmd_error_prefix(err, "%s: data.lengths[%d]", lengths->file, i) : -1;
	}
	return 0;
}

struct hspmd_program_set *hspmd_program_set_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                                  const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev,
                                                  const struct hspmd_step_lengths *lengths, struct hspmd_error *err)
{
	struct hspmd_program_set *s = calloc(1, sizeof *s);
	int status = s ? 0 : -1;
	if (s) {
		s->count = 1 + plan->shorter_count;
		s->length_count = lengths && !lengths->mixed ? lengths->count : 0;
		s->programs = hspmd_calloc((size_t)s->count, sizeof(*s->programs));
		s->at_length = s->length_count ? hspmd_calloc((size_t)s->length_count, sizeof(*s->at_length)) : NULL;
		status = s->programs && (s->at_length || !s->length_count) ? 0 : -1;
	}
	if (status)
		hspmd_fail_memory(err, "specialising");
	if (!status && lengths && lengths->mixed && !build_mixed(s, source, plan, cluster, device, dev, lengths, err))
		return s;
	if (!status && !(lengths && lengths->mixed) && !build_programs(s, source, plan, cluster, device, dev, err) &&
	    !build_lengths(s, source, plan, dev, lengths, err))
		return s;
	hspmd_program_set_destroy(s);
	return NULL;
}

void hspmd_program_set_destroy(struct hspmd_program_set *s)
{
	if (!s)
		return;
	for (int k = 0; k < HSPMD_STEP_PROGRAMS_KEPT; k++)
		hspmd_program_destroy(s->kept[k].program);
	hspmd_step_programs_destroy(s->mixed);
	hspmd_plan_rates_free(s->rates, s->pipeline_count);
	for (int i = 0; s->at_length && i < s->length_count; i++)
		hspmd_program_destroy(s->at_length[i]);
	for (int i = s->programs ? s->count - 1 : -1; i >= 0; i--) /* the first has the state's annotations of all */
		hspmd_program_destroy(s->programs[i]);
	free(s->at_length);
	free(s->programs);
	free(s);
}

void hspmd_program_set_limit_workspace(struct hspmd_program_set *s, uint32_t most, struct hspmd_device *dev)
{
	for (int k = 0; k < HSPMD_STEP_PROGRAMS_KEPT; k++) { /* copies of the program of any step */
		hspmd_program_destroy(s->kept[k].program);
		s->kept[k].program = NULL;
	}
	for (int i = 0; i < s->count + (s->at_length ? s->length_count : 0); i++) {
		struct hspmd_program *p = i < s->count ? s->programs[i] : s->at_length[i - s->count];
		if (!p)
			continue;
		p->workspace_most = most;
		hspmd_program_query_workspace(p, dev);
	}
	share_memory(s);
}

const struct hspmd_program *hspmd_program_set_at(const struct hspmd_program_set *s, int length)
{
	return s->at_length && s->at_length[length] ? s->at_length[length] : s->programs[0];
}

struct hspmd_devcomm_use *hspmd_program_set_devcomm_uses(const struct hspmd_program_set *s, int lane, size_t *count)
{
	struct hspmd_program **others = hspmd_calloc((size_t)(s->count + s->length_count), sizeof(*others));
	int more = 0;
	for (int i = 1; others && i < s->count; i++)
		others[more++] = s->programs[i];
	for (int i = 0; others && i < s->length_count; i++)
		if (s->at_length[i])
			others[more++] = s->at_length[i];
	struct hspmd_devcomm_use *uses = others ? hspmd_program_devcomm_uses(s->programs[0], others, more, lane, count) : NULL;
	free(others);
	return uses;
}
