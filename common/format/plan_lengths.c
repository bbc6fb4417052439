/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/plan_lengths.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/alloc.h"

#define LENGTHS_MOST 64
#define MICRO_BATCH_MOST (1 << 20)
#define SECONDS_MOST 1e4

int hspmd_pipeline_lengths_read(struct hspmd_json *pipeline, int seq_len, struct hspmd_pipeline *p)
{
	struct hspmd_json all = hspmd_json_array_or_none(pipeline, "lengths", 1, LENGTHS_MOST);
	size_t n = all.value ? hspmd_json_length(&all) : 0;
	if (n && !(p->lengths = hspmd_calloc(n, sizeof *p->lengths)))
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		struct hspmd_pipeline_length *l = &p->lengths[p->length_count++];
		int least = i ? l[-1].seq_len + 1 : 1;
		if (least > seq_len)
			return hspmd_json_fail(&at, "expected no length after the plan's seq_len");
		l->seq_len = (int)hspmd_json_int(&at, "seq_len", least, seq_len);
		l->micro_batch = (int)hspmd_json_int(&at, "micro_batch", 1, MICRO_BATCH_MOST);
		l->micro_batch_s = hspmd_json_number(&at, "micro_batch_s", HSPMD_JSON_POSITIVE, SECONDS_MOST);
		if (hspmd_json_check_keys(&at))
			return -1;
	}
	if (hspmd_json_failed(pipeline))
		return -1;
	/* The program's memory is that of the longest samples (runtime/program/step_program.h). */
	int64_t tokens = n ? (int64_t)p->lengths[n - 1].seq_len * p->lengths[n - 1].micro_batch : 0;
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&all, i), size = hspmd_json_any(&at, "micro_batch");
		if ((int64_t)p->lengths[i].seq_len * p->lengths[i].micro_batch > tokens)
			return hspmd_json_fail(&size,
			                       "expected at most %" PRId64 ": as many tokens as a micro-batch of the longest samples has",
			                       tokens / p->lengths[i].seq_len);
	}
	return 0;
}

json_t *hspmd_pipeline_lengths_json(const struct hspmd_pipeline *p)
{
	json_t *all = json_array();
	int bad = !all;
	for (int i = 0; i < p->length_count; i++) {
		const struct hspmd_pipeline_length *l = &p->lengths[i];
		bad |= json_array_append_new(all, json_pack("{si,si,so}", "seq_len", l->seq_len, "micro_batch", l->micro_batch,
		                                            "micro_batch_s", hspmd_json_real(l->micro_batch_s)));
	}
	return hspmd_json_unless_failed(bad, all);
}

bool hspmd_pipeline_same_lengths(const struct hspmd_pipeline *a, const struct hspmd_pipeline *b)
{
	bool same = a->length_count == b->length_count;
	for (int i = 0; same && i < a->length_count; i++)
		same = a->lengths[i].seq_len == b->lengths[i].seq_len && a->lengths[i].micro_batch == b->lengths[i].micro_batch &&
		       a->lengths[i].micro_batch_s == b->lengths[i].micro_batch_s;
	return same;
}

bool hspmd_pipeline_takes(const struct hspmd_pipeline *p, int64_t length)
{
	return !p->length_count || p->lengths[p->length_count - 1].seq_len >= length;
}

bool hspmd_plan_takes(const struct hspmd_plan *p, int64_t length)
{
	for (int i = 0; i < p->pipeline_count; i++)
		if (hspmd_pipeline_takes(&p->pipelines[i], length))
			return true;
	return false;
}
