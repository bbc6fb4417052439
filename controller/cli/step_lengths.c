/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/step_lengths.h"

#include <errno.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/log.h"
#include "runtime/facts/facts.h"
#include "runtime/input/data.h"

#define COUNTED_MOST 16384 /* steps, or samples, whose lengths are counted */
#define SHARES_MOST 1e12

int hspmd_job_choose_lengths(struct hspmd_job *job, const struct hspmd_model *model, const char *index, struct hspmd_error *err)
{
	int64_t chosen[HSPMD_DATA_LENGTHS_MOST];
	if (!job->lengths_auto || job->length_count)
		return 0;
	int count = hspmd_data_choose_lengths(job, model->vocab, index, chosen, err);
	if (count < 0)
		return -1;
	if (!(job->lengths = hspmd_calloc((size_t)count, sizeof *job->lengths)))
		return hspmd_fail_memory(err, "choosing lengths");
	for (int i = 0; i < count; i++)
		job->lengths[job->length_count++] = chosen[i];
	return 0;
}

void hspmd_job_index_lengths(const struct hspmd_job *job, const struct hspmd_model *model, const char *index)
{
	struct hspmd_error err;
	if (hspmd_data_make_index(job, model->vocab, index, &err))
		hspmd_warn("every worker reads all documents, because there is no index of their lengths: %s", err.text);
}

/* Room for `count` lengths. 0, or -1: memory. */
static int make_shares(struct hspmd_step_lengths_of *out, int count)
{
	*out = (struct hspmd_step_lengths_of){ .shares = hspmd_calloc((size_t)count, sizeof *out->shares) };
	out->count = out->shares ? count : 0;
	return out->shares ? 0 : -1;
}

int hspmd_step_lengths_find_facts(struct hspmd_step_lengths_of *l, const struct hspmd_model *model, const struct hspmd_graph_source *source,
                                  const struct hspmd_model_facts *longest, struct hspmd_error *err)
{
	l->shares[l->count - 1].facts = longest;
	for (int i = 0; i < l->count - 1; i++)
		if (!(l->shares[i].facts = hspmd_model_facts_build(source, model->name, l->shares[i].seq_len, err)))
			return -1;
	return 0;
}

static int count_steps(const struct hspmd_job *job, const struct hspmd_model *model, const char *index, struct hspmd_step_lengths_of *out,
                       struct hspmd_error *err)
{
	struct hspmd_data *d = hspmd_data_open(job, model->vocab, index, err);
	int64_t all = job->mix_lengths ? job->steps * job->global_batch : job->steps, steps = all < COUNTED_MOST ? all : COUNTED_MOST;
	for (int64_t s = 0; d && s < steps; s++)
		out->shares[job->mix_lengths ? hspmd_data_length_of_sample(d, s) : hspmd_data_length_of_step(d, s)].share++;
	hspmd_data_close(d);
	return d ? 0 : -1;
}

int hspmd_step_lengths_of_job(const struct hspmd_job *job, const struct hspmd_model *model, const struct hspmd_graph_source *source,
                              const struct hspmd_model_facts *longest, const char *index, struct hspmd_step_lengths_of *out,
                              struct hspmd_error *err)
{
	*out = (struct hspmd_step_lengths_of){ 0 };
	if (job->length_count < 2)
		return 0;
	if (make_shares(out, job->length_count))
		return hspmd_fail_memory(err, "counting steps by length");
	for (int i = 0; i < out->count; i++)
		out->shares[i].seq_len = (int)job->lengths[i];
	return count_steps(job, model, index, out, err) || hspmd_step_lengths_find_facts(out, model, source, longest, err) ? -1 : 0;
}

static int read_share(const char *word, int before, int most, struct hspmd_step_share *share, struct hspmd_error *err)
{
	char *colon, *end;
	errno = 0;
	long long length = strtoll(word, &colon, 10);
	bool is_number = colon > word && *colon == ':' && !errno && length > 0;
	share->share = is_number ? strtod(colon + 1, &end) : 0;
	if (!is_number || end == colon + 1 || *end || !(share->share > 0 && share->share < SHARES_MOST))
		return hspmd_fail(err, "expected LENGTH:SHARE,... with shares above 0, got '%s'", word);
	if (length > most)
		return hspmd_fail(err, "%lld is longer than --seq-len, %d", length, most);
	if (length <= before)
		return hspmd_fail(err, "expected ascending lengths, got %lld behind %d", length, before);
	share->seq_len = (int)length;
	return 0;
}

int hspmd_step_lengths_parse(const struct hspmd_option_list *words, int seq_len, struct hspmd_step_lengths_of *out, struct hspmd_error *err)
{
	int before = 0;
	if (make_shares(out, words->count))
		return hspmd_fail_memory(err, "reading --lengths");
	for (int i = 0; i < words->count; i++) {
		if (read_share(words->items[i], before, seq_len, &out->shares[i], err))
			return -1;
		before = out->shares[i].seq_len;
	}
	return before == seq_len ? 0 : hspmd_fail(err, "expected --seq-len, %d, as the last length, got %d", seq_len, before);
}

void hspmd_step_lengths_clear(struct hspmd_step_lengths_of *l)
{
	for (int i = 0; i < l->count - 1; i++)
		hspmd_model_facts_destroy((struct hspmd_model_facts *)l->shares[i].facts);
	free(l->shares);
	*l = (struct hspmd_step_lengths_of){ 0 };
}
