/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/own_samples.h"

#include <string.h>

#include "runtime/input/data.h"
#include "runtime/input/shuffle.h"
#include "runtime/tensor/input_names.h"

static int64_t sample_of(const struct hspmd_own_samples *s, int64_t number)
{
	if (!s->count)
		return number;
	uint64_t epoch = (uint64_t)(number / s->count), key = hspmd_mix(s->seed ^ hspmd_mix(epoch));
	return (int64_t)hspmd_shuffle((uint64_t)(number % s->count), (uint64_t)s->count, key);
}

static int read_input(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	const struct hspmd_own_samples *s = context;
	if (!hspmd_input_is_noise(name))
		return s->read(s->context, name, sample_of(s, number), start, count, to, err);
	hspmd_sample_noise(s->seed, !s->validation, number, start, count, to);
	return 0;
}

struct hspmd_sample_source hspmd_own_samples_source(const struct hspmd_own_samples *s)
{
	return (struct hspmd_sample_source){ .read = read_input, .context = (void *)s };
}
