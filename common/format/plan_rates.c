/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/plan_rates.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/format/plan_lengths.h"

#define TICKS 1e9 /* units of a rate per second: sums of a step fit into 63 bits */

/* What the pipeline says of a length that it takes, or what follows from its part of the global batch. */
static struct hspmd_pipeline_length said_of(const struct hspmd_plan *plan, const struct hspmd_pipeline *p, int64_t length)
{
	for (int i = 0; i < p->length_count; i++)
		if (p->lengths[i].seq_len >= length)
			return p->lengths[i];
	return (struct hspmd_pipeline_length){ .seq_len = (int)length,
		                               .micro_batch = (int)(plan->seq_len / length) * p->micro_batch,
		                               .micro_batch_s =
		                                       (double)((plan->seq_len / length) * length) / plan->seq_len / p->micro_batches };
}

static struct hspmd_length_rate rate_of(const struct hspmd_plan *plan, const struct hspmd_pipeline *p, int64_t length)
{
	if (!hspmd_pipeline_takes(p, length))
		return (struct hspmd_length_rate){ 0 };
	struct hspmd_pipeline_length l = said_of(plan, p, length);
	/* Products and quotients alone, which every machine rounds alike. */
	long long ticks = llround(l.micro_batch_s * TICKS / l.micro_batch * (double)length / l.seq_len);
	return (struct hspmd_length_rate){ .most = l.micro_batch, .sample = ticks > 0 ? ticks : 1 };
}

/* Every length goes to some pipeline, and every pipeline has some length. */
static int check_taken(const struct hspmd_plan *p, const int64_t *lengths, int count, struct hspmd_error *err)
{
	if (!hspmd_plan_takes(p, lengths[count - 1]))
		return hspmd_fail(err, "no pipeline of the plan takes samples of %" PRId64 " tokens", lengths[count - 1]);
	for (int i = 0; i < p->pipeline_count; i++)
		if (!hspmd_pipeline_takes(&p->pipelines[i], lengths[0]))
			return hspmd_fail(err, "plan.pipelines[%d].lengths: none is as long as the shortest samples, %" PRId64 " tokens", i,
			                  lengths[0]);
	return 0;
}

struct hspmd_pipeline_rates *hspmd_plan_rates(const struct hspmd_plan *p, const int64_t *lengths, int count, struct hspmd_error *err)
{
	if (check_taken(p, lengths, count, err))
		return NULL;
	struct hspmd_pipeline_rates *rates = hspmd_calloc((size_t)p->pipeline_count, sizeof *rates);
	for (int i = 0; rates && i < p->pipeline_count; i++) {
		rates[i].depth = p->pipelines[i].stage_count / p->virtual_stages;
		if (!(rates[i].length = hspmd_calloc((size_t)count, sizeof *rates[i].length))) {
			hspmd_plan_rates_free(rates, p->pipeline_count);
			rates = NULL;
			break;
		}
		for (int l = 0; l < count; l++)
			rates[i].length[l] = rate_of(p, &p->pipelines[i], lengths[l]);
	}
	if (!rates)
		hspmd_fail_memory(err, "dividing a step's samples");
	return rates;
}

void hspmd_plan_rates_free(struct hspmd_pipeline_rates *rates, int pipeline_count)
{
	for (int i = 0; rates && i < pipeline_count; i++)
		free(rates[i].length);
	free(rates);
}

int hspmd_plan_check_mixing(const struct hspmd_plan *p, struct hspmd_error *err)
{
	if (p->shorter_count)
		return hspmd_fail(err, "plan.shorter: a step that mixes lengths runs one plan, whose pipelines have `lengths` instead");
	if (p->synthesis)
		return hspmd_fail(err, "plan.synthesis: its program is for samples of one length, and the job's steps mix lengths");
	if (p->schedule == HSPMD_SCHEDULE_GPIPE)
		return hspmd_fail(err,
		                  "plan.schedule: gpipe keeps all micro-batches, whose number differs from step to step when steps mix "
		                  "lengths; expected 1f1b, interleaved or zb-h1");
	if (p->zero_stage > 1 && p->pipeline_count > 1)
		return hspmd_fail(err,
		                  "plan.zero_stage: %d needs as many micro-batches in every pipeline, which is not so when steps mix "
		                  "lengths; expected 0 or 1",
		                  p->zero_stage);
	return 0;
}

/* The sizes of the pipeline's micro-batches at all lengths that it takes; the longest last. -1: memory. */
static int set_sizes(struct hspmd_pipeline *p, const struct hspmd_pipeline_rates *rates, const int64_t *lengths, int count)
{
	struct hspmd_pipeline_length *sizes = hspmd_calloc((size_t)count, sizeof *sizes);
	if (!sizes)
		return -1;
	free(p->lengths);
	p->lengths = sizes;
	for (p->length_count = 0; p->length_count < count && rates->length[p->length_count].most; p->length_count++)
		sizes[p->length_count] = (struct hspmd_pipeline_length){ .seq_len = (int)lengths[p->length_count],
			                                                 .micro_batch = rates->length[p->length_count].most };
	p->seq_len = sizes[p->length_count - 1].seq_len;
	p->micro_batch = sizes[p->length_count - 1].micro_batch;
	return 0;
}

struct hspmd_plan *hspmd_plan_for_any_step(const struct hspmd_plan *p, const struct hspmd_pipeline_rates *rates, const int64_t *lengths,
                                           int count)
{
	struct hspmd_plan *any = hspmd_plan_copy(p);
	for (int i = 0; any && i < any->pipeline_count; i++) {
		struct hspmd_pipeline *pipe = &any->pipelines[i];
		int group = rates[i].depth;
		if (set_sizes(pipe, &rates[i], lengths, count)) {
			hspmd_plan_destroy(any);
			return NULL;
		}
		pipe->micro_batches = hspmd_step_batches_most(&rates[i], count, p->global_batch);
		if (p->schedule == HSPMD_SCHEDULE_INTERLEAVED) /* micro-batches come in groups of as many as there are pipeline ranks */
			pipe->micro_batches = (pipe->micro_batches + group - 1) / group * group;
	}
	return any;
}
