/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/job_optimizer.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define LR_MAX 1000
#define WEIGHT_DECAY_MAX 1000
#define PATTERNS_MAX 1024

const char *const hspmd_lr_schedule_names[] = { "constant", "cosine", "linear", "wsd", NULL };
const char *const hspmd_lr_decay_names[] = { "linear", "cosine", "sqrt", NULL };

/* ---- reading */

static void read_schedule(struct hspmd_job *j, struct hspmd_json *o)
{
	int before = hspmd_json_mistakes(o);
	j->optimizer.warmup_steps = hspmd_json_int_or(o, "warmup_steps", 0, HSPMD_JOB_STEPS_MAX, 0);
	j->optimizer.schedule = (enum hspmd_lr_schedule)hspmd_json_enum_or(o, "schedule", hspmd_lr_schedule_names, HSPMD_LR_CONSTANT);
	struct hspmd_json steps = hspmd_json_any(o, "decay_steps"), shape = hspmd_json_any(o, "decay");
	if (hspmd_json_mistakes(o) > before || !j->steps)
		return;
	if (j->optimizer.schedule != HSPMD_LR_WSD) {
		if (steps.value || shape.value)
			hspmd_json_fail(steps.value ? &steps : &shape, "expected schedule \"wsd\" beside it");
		return;
	}
	int64_t rest = j->steps > j->optimizer.warmup_steps ? j->steps - j->optimizer.warmup_steps : 0, tenth = j->steps / 10;
	j->optimizer.decay_steps = hspmd_json_int_or(o, "decay_steps", 0, HSPMD_JOB_STEPS_MAX, tenth < rest ? tenth : rest);
	j->optimizer.decay = (enum hspmd_lr_decay)hspmd_json_enum_or(o, "decay", hspmd_lr_decay_names, HSPMD_DECAY_LINEAR);
	if (hspmd_json_mistakes(o) == before && j->optimizer.decay_steps > rest)
		hspmd_json_fail(&steps, "expected at most the steps after the warm-up, %lld, got %lld", (long long)rest,
		                (long long)j->optimizer.decay_steps);
}

static int read_no_decay(struct hspmd_job *j, struct hspmd_json *o)
{
	struct hspmd_json all = hspmd_json_array_or_none(o, "no_decay", 0, PATTERNS_MAX);
	size_t n = hspmd_json_length(&all);
	if (!n)
		return 0;
	if (!(j->optimizer.no_decay = hspmd_calloc(n, sizeof(char *))))
		return hspmd_json_fail_memory(o);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json one = hspmd_json_at(&all, i);
		const char *text = hspmd_json_string_value(&one);
		if (!text)
			continue;
		if (!(j->optimizer.no_decay[j->optimizer.no_decay_count] = strdup(text)))
			return hspmd_json_fail_memory(o);
		j->optimizer.no_decay_count++;
	}
	return 0;
}

static void know_all_keys(struct hspmd_json *o)
{
	for (int t = 0; hspmd_optimizer_names[t]; t++)
		for (int k = 0; k < HSPMD_OPTIMIZER_KEYS && hspmd_optimizer_types[t]->keys[k].name; k++)
			hspmd_json_any(o, hspmd_optimizer_types[t]->keys[k].name);
}

int hspmd_job_optimizer_read(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json o = hspmd_json_object(root, "optimizer");
	int before = hspmd_json_mistakes(root);
	j->optimizer.type = (enum hspmd_optimizer)hspmd_json_enum_or(&o, "type", hspmd_optimizer_names, HSPMD_OPTIMIZER_ADAMW);
	const struct hspmd_optimizer_key *keys = hspmd_optimizer_types[j->optimizer.type]->keys;
	bool known = hspmd_json_mistakes(root) == before;
	j->optimizer.lr = hspmd_json_number(&o, "lr", HSPMD_JSON_POSITIVE, LR_MAX);
	j->optimizer.min_lr = hspmd_json_number_or(&o, "min_lr", 0, j->optimizer.lr > 0 ? j->optimizer.lr : LR_MAX, j->optimizer.lr / 10);
	read_schedule(j, &o);
	j->optimizer.weight_decay = hspmd_json_number_or(&o, "weight_decay", 0, WEIGHT_DECAY_MAX, 0.1);
	for (int k = 0; known && k < HSPMD_OPTIMIZER_KEYS && keys[k].name; k++)
		j->optimizer.values[k] = hspmd_json_number_or(&o, keys[k].name, keys[k].least, keys[k].most, keys[k].standard);
	j->optimizer.clip = hspmd_json_number_or(&o, "clip", 0, 1e9, 1.0);
	if (!known) /* any type's keys may be meant */
		know_all_keys(&o);
	return read_no_decay(j, &o) ? -1 : hspmd_json_check_keys(&o);
}

void hspmd_job_optimizer_clear(struct hspmd_job *j)
{
	for (int i = 0; i < j->optimizer.no_decay_count; i++)
		free(j->optimizer.no_decay[i]);
	free(j->optimizer.no_decay);
}

/* ---- writing */

json_t *hspmd_job_optimizer_json(const struct hspmd_job *j)
{
	json_t *o = json_object(), *patterns = json_array();
	const struct hspmd_optimizer_key *keys = hspmd_optimizer_types[j->optimizer.type]->keys;
	int bad = !o || !patterns;
	bad |= json_object_set_new(o, "type", json_string(hspmd_optimizer_names[j->optimizer.type]));
	bad |= json_object_set_new(o, "lr", hspmd_json_real(j->optimizer.lr));
	bad |= json_object_set_new(o, "min_lr", hspmd_json_real(j->optimizer.min_lr));
	bad |= json_object_set_new(o, "warmup_steps", json_integer(j->optimizer.warmup_steps));
	bad |= json_object_set_new(o, "schedule", json_string(hspmd_lr_schedule_names[j->optimizer.schedule]));
	if (j->optimizer.schedule == HSPMD_LR_WSD) {
		bad |= json_object_set_new(o, "decay_steps", json_integer(j->optimizer.decay_steps));
		bad |= json_object_set_new(o, "decay", json_string(hspmd_lr_decay_names[j->optimizer.decay]));
	}
	bad |= json_object_set_new(o, "weight_decay", hspmd_json_real(j->optimizer.weight_decay));
	for (int k = 0; k < HSPMD_OPTIMIZER_KEYS && keys[k].name; k++)
		bad |= json_object_set_new(o, keys[k].name, hspmd_json_real(j->optimizer.values[k]));
	bad |= json_object_set_new(o, "clip", hspmd_json_real(j->optimizer.clip));
	for (int i = 0; i < j->optimizer.no_decay_count; i++)
		bad |= json_array_append_new(patterns, json_string(j->optimizer.no_decay[i]));
	if (j->optimizer.no_decay_count)
		bad |= json_object_set(o, "no_decay", patterns);
	json_decref(patterns);
	return hspmd_json_unless_failed(bad, o);
}

/* ---- learning rate and weight decay */

/* What is left of lr - min_lr after the part `done` of the decay. */
static double rest_of(enum hspmd_lr_decay decay, double done)
{
	return decay == HSPMD_DECAY_COSINE ? 0.5 * (1 + cos(M_PI * done)) : 1 - (decay == HSPMD_DECAY_SQRT ? sqrt(done) : done);
}

double hspmd_job_lr(const struct hspmd_job *j, int64_t step)
{
	double lr = j->optimizer.lr, low = j->optimizer.min_lr;
	int64_t warmup = j->optimizer.warmup_steps, from = warmup;
	enum hspmd_lr_decay decay = j->optimizer.schedule == HSPMD_LR_COSINE ? HSPMD_DECAY_COSINE : HSPMD_DECAY_LINEAR;
	if (step < warmup)
		return lr * (double)(step + 1) / (double)warmup;
	if (j->optimizer.schedule == HSPMD_LR_WSD) {
		from = j->steps - j->optimizer.decay_steps;
		decay = j->optimizer.decay;
	}
	if (j->optimizer.schedule == HSPMD_LR_CONSTANT || (step < from && j->optimizer.schedule == HSPMD_LR_WSD))
		return lr;
	if (step >= j->steps)
		return low;
	double done = (double)(step - from) / (double)(j->steps - from);
	return fmin(lr, low + (lr - low) * rest_of(decay, done)); /* rounding may exceed lr */
}

bool hspmd_job_no_decay_matches(const struct hspmd_job *j, int pattern, const char *parameter)
{
	return !fnmatch(j->optimizer.no_decay[pattern], parameter, 0);
}

bool hspmd_job_decays(const struct hspmd_job *j, const char *parameter)
{
	for (int i = 0; i < j->optimizer.no_decay_count; i++)
		if (hspmd_job_no_decay_matches(j, i, parameter))
			return false;
	return true;
}
