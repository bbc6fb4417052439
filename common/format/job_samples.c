/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/job_samples.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"

#define PROMPT_MAX 32768 /* bytes: prompts are arguments of a command */
#define TOKENS_MAX 65536

static int read_prompts(struct hspmd_job *j, struct hspmd_json *o)
{
	struct hspmd_json all = hspmd_json_array(o, "prompts", 1, HSPMD_JOB_PROMPTS_MAX);
	size_t n = hspmd_json_length(&all);
	if (!n || !(j->samples.prompts = hspmd_calloc(n, sizeof *j->samples.prompts)))
		return n ? hspmd_json_fail_memory(o) : -1;
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json one = hspmd_json_at(&all, i);
		const char *text = hspmd_json_string_value(&one);
		if (text && strlen(text) > PROMPT_MAX)
			hspmd_json_fail(&one, "expected at most %d bytes, got %zu", PROMPT_MAX, strlen(text));
		else if (text && !(j->samples.prompts[j->samples.prompt_count++] = strdup(text)))
			return hspmd_json_fail_memory(o);
	}
	return 0;
}

/* A relative path is relative to the job file. */
static int read_tokenizer(struct hspmd_job *j, struct hspmd_json *o)
{
	const char *name = hspmd_json_string_or(o, "tokenizer", NULL), *slash = strrchr(j->file, '/');
	if (!name)
		return 0;
	bool plain = *name == '/' || !strcmp(name, "bytes") || !slash;
	j->samples.tokenizer = plain ? strdup(name) : hspmd_asprintf("%.*s%s", (int)(slash - j->file) + 1, j->file, name);
	return j->samples.tokenizer ? 0 : hspmd_json_fail_memory(o);
}

void hspmd_job_samples_read(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json o = hspmd_json_object_or_none(root, "samples"), here = hspmd_json_any(root, "samples");
	if (!o.value)
		return;
	j->samples.every_steps = hspmd_json_int(&o, "every_steps", 1, HSPMD_JOB_STEPS_MAX);
	j->samples.max_tokens = hspmd_json_int_or(&o, "max_tokens", 1, TOKENS_MAX, 64);
	j->samples.temperature = hspmd_json_number_or(&o, "temperature", 0, 1e6, 1);
	j->samples.top_k = hspmd_json_int_or(&o, "top_k", 0, 1 << 24, 50);
	j->samples.top_p = hspmd_json_number_or(&o, "top_p", 0, 1, 1);
	if (read_prompts(j, &o) || read_tokenizer(j, &o))
		return;
	if (!j->checkpoint.shared && !j->checkpoint.local)
		hspmd_json_fail(&here, "expected checkpoint.shared beside it: samples are made from a checkpoint");
	hspmd_json_check_keys(&o);
}

int hspmd_job_samples_check(const struct hspmd_job *j, const struct hspmd_model *m, struct hspmd_error *err)
{
	const char *name = j->samples.tokenizer;
	if (!j->samples.every_steps)
		return 0;
	if (j->data_kind == HSPMD_DATA_OWN)
		return hspmd_fail(err, "%s: samples: not possible with data.kind \"own\": the model may have inputs besides tokens",
		                  j->file);
	if (!name && m->vocab != 256)
		return hspmd_fail(err, "%s: samples.tokenizer: is missing: a tokenizer.json, or \"bytes\" (the model has %lld tokens)",
		                  j->file, (long long)m->vocab);
	if (name && strcmp(name, "bytes") && access(name, R_OK))
		return hspmd_fail_errno(err, "%s: samples.tokenizer: %s", j->file, name);
	return 0;
}

json_t *hspmd_job_samples_json(const struct hspmd_job *j)
{
	json_t *prompts = json_array();
	int bad = !prompts;
	for (int i = 0; i < j->samples.prompt_count; i++)
		bad |= json_array_append_new(prompts, json_string(j->samples.prompts[i]));
	json_t *o =
	        json_pack("{s:I, s:I, s:f, s:I, s:f, s:O, s:s*}", "every_steps", (json_int_t)j->samples.every_steps, "max_tokens",
	                  (json_int_t)j->samples.max_tokens, "temperature", j->samples.temperature, "top_k", (json_int_t)j->samples.top_k,
	                  "top_p", j->samples.top_p, "prompts", prompts, "tokenizer", j->samples.tokenizer);
	json_decref(prompts);
	return hspmd_json_unless_failed(bad, o);
}

void hspmd_job_samples_clear(struct hspmd_job *j)
{
	for (int i = 0; i < j->samples.prompt_count; i++)
		free(j->samples.prompts[i]);
	free(j->samples.prompts);
	free(j->samples.tokenizer);
}
