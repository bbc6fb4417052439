/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/rope.h"

#include <math.h>

#include "runtime/model/fields.h"

#define THETA_MAX 1e18

static double mscale(double factor, double m)
{
	return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

/* The number of the frequency that makes `turns` rotations over the original positions. */
static double frequency_of_turns(const struct hspmd_rope *r, double turns)
{
	return (double)r->dims * log(r->original / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

void hspmd_rope_set_yarn(struct hspmd_rope *r, double factor, double original, double fast, double slow, bool whole)
{
	r->kind = HSPMD_ROPE_YARN;
	r->factor = factor;
	r->original = original;
	r->scale = mscale(factor, 1);
	r->low = frequency_of_turns(r, fast);
	r->high = frequency_of_turns(r, slow);
	r->low = fmax(whole ? floor(r->low) : r->low, 0);
	r->high = fmin(whole ? ceil(r->high) : r->high, (double)r->dims - 1);
}

static void read_yarn(struct hspmd_json *at, struct hspmd_rope *r)
{
	double fast = hspmd_json_number_or(at, "beta_fast", HSPMD_JSON_POSITIVE, 1e9, 32),
	       slow = hspmd_json_number_or(at, "beta_slow", HSPMD_JSON_POSITIVE, 1e9, 1);
	double m = hspmd_json_number_or(at, "mscale", 0, 1e3, 0), all = hspmd_json_number_or(at, "mscale_all_dim", 0, 1e3, 0);
	hspmd_rope_set_yarn(r, r->factor, r->original, fast, slow, hspmd_json_bool_or(at, "truncate", true));
	if (m > 0 && all > 0)
		r->scale = mscale(r->factor, m) / mscale(r->factor, all);
	r->scale = hspmd_json_number_or(at, "attention_factor", HSPMD_JSON_POSITIVE, 1e3, r->scale);
}

static void read_llama3(struct hspmd_json *at, struct hspmd_rope *r)
{
	r->low = hspmd_json_number(at, "low_freq_factor", HSPMD_JSON_POSITIVE, 1e6);
	r->high = hspmd_json_number(at, "high_freq_factor", HSPMD_JSON_POSITIVE, 1e6);
	struct hspmd_json high = hspmd_json_any(at, "high_freq_factor");
	if (!hspmd_json_failed(at) && r->high <= r->low)
		hspmd_json_fail(&high, "expected more than low_freq_factor, %g", r->low);
}

static void read_list(struct hspmd_json *at, const char *key, const struct hspmd_rope *r, double *to)
{
	size_t count = (size_t)(r->dims / 2);
	struct hspmd_json list = hspmd_json_array(at, key, count, count);
	for (size_t i = 0; i < hspmd_json_length(&list); i++) {
		struct hspmd_json value = hspmd_json_at(&list, i);
		to[i] = hspmd_json_number_value(&value, HSPMD_JSON_POSITIVE, 1e9);
	}
}

static void read_long(struct hspmd_json *at, int64_t max_positions, struct hspmd_rope *r)
{
	read_list(at, "short_factor", r, r->factors[0]);
	read_list(at, "long_factor", r, r->factors[1]);
	double factor = hspmd_json_has(at, "factor") ? r->factor : (double)max_positions / r->original;
	r->scale = factor <= 1 || r->original <= 1 ? 1 : sqrt(1 + log(factor) / log(r->original));
	r->scale = hspmd_json_number_or(at, "attention_factor", HSPMD_JSON_POSITIVE, 1e3, r->scale);
}

static enum hspmd_rope_kind kind_of(struct hspmd_json *at)
{
	static const char *const names[] = { "default", "linear", "dynamic", "yarn", "llama3", "longrope", "su", NULL };
	const char *key = hspmd_json_has(at, "rope_type") || !hspmd_json_has(at, "type") ? "rope_type" : "type";
	int kind = hspmd_json_enum_or(at, key, names, 0);
	return kind == 6 ? HSPMD_ROPE_LONG : (enum hspmd_rope_kind)kind; /* "su": the first name of longrope */
}

static void read_scaling(struct hspmd_json *root, struct hspmd_json *at, int64_t max_positions, struct hspmd_rope *r)
{
	r->kind = kind_of(at);
	if (r->kind == HSPMD_ROPE_PLAIN) {
		hspmd_refuse_number_unless(at, "factor", 1);
		return;
	}
	struct hspmd_json *original = hspmd_json_has(at, "original_max_position_embeddings") ? at : root;
	r->original = (double)hspmd_json_int_or(original, "original_max_position_embeddings", 1, HSPMD_POSITIONS_MAX, max_positions);
	r->factor = r->kind == HSPMD_ROPE_LONG ? hspmd_json_number_or(at, "factor", HSPMD_JSON_POSITIVE, 1e6, 1)
	                                       : hspmd_json_number(at, "factor", HSPMD_JSON_POSITIVE, 1e6);
	if (hspmd_json_failed(root))
		return;
	if (r->dims > 2 * HSPMD_ROPE_FREQUENCIES) {
		hspmd_json_fail(at, "scaled rotation of %lld elements is not supported; expected at most %d", (long long)r->dims,
		                2 * HSPMD_ROPE_FREQUENCIES);
		return;
	}
	if (r->kind == HSPMD_ROPE_YARN)
		read_yarn(at, r);
	else if (r->kind == HSPMD_ROPE_LLAMA3)
		read_llama3(at, r);
	else if (r->kind == HSPMD_ROPE_LONG)
		read_long(at, max_positions, r);
}

void hspmd_rope_read(struct hspmd_json *root, const char *layers, int64_t max_positions, struct hspmd_rope *r)
{
	struct hspmd_json scaling = hspmd_json_object_or_none(root, "rope_scaling");
	struct hspmd_json parameters = hspmd_json_object_or_none(root, "rope_parameters");
	if (layers && parameters.value && hspmd_json_has(&parameters, layers))
		parameters = hspmd_json_object_or_none(&parameters, layers);
	r->scale = 1;
	r->theta = hspmd_json_number_or(root, "rope_theta", HSPMD_JSON_POSITIVE, THETA_MAX, r->theta);
	r->theta = hspmd_json_number_or(&parameters, "rope_theta", HSPMD_JSON_POSITIVE, THETA_MAX, r->theta);
	if (json_object_size(parameters.value))
		read_scaling(root, &parameters, max_positions, r);
	if (json_object_size(scaling.value))
		read_scaling(root, &scaling, max_positions, r);
}

static double yarn(const struct hspmd_rope *r, double plain, int64_t i)
{
	double wide = r->high == r->low ? 0.001 : r->high - r->low, ramp = fmin(fmax(((double)i - r->low) / wide, 0), 1);
	return plain / r->factor * ramp + plain * (1 - ramp);
}

static double llama3(const struct hspmd_rope *r, double plain)
{
	double turns = r->original * plain / (2 * M_PI);
	if (turns < r->low)
		return plain / r->factor;
	if (turns > r->high)
		return plain;
	double smooth = (turns - r->low) / (r->high - r->low);
	return (1 - smooth) * plain / r->factor + smooth * plain;
}

/* The base that stretches the longest wavelength over seq_len positions. */
static double dynamic_base(const struct hspmd_rope *r, int64_t seq_len)
{
	double length = fmax((double)seq_len, r->original), d = (double)r->dims;
	return r->dims > 2 ? r->theta * pow(r->factor * length / r->original - (r->factor - 1), d / (d - 2)) : r->theta;
}

void hspmd_rope_frequencies(const struct hspmd_rope *r, int64_t seq_len, double *frequencies)
{
	double base = r->kind == HSPMD_ROPE_DYNAMIC ? dynamic_base(r, seq_len) : r->theta;
	for (int64_t i = 0; i < r->dims / 2; i++) {
		double plain = pow(base, -2.0 * (double)i / (double)r->dims);
		frequencies[i] = r->kind == HSPMD_ROPE_LINEAR   ? plain / r->factor
		                 : r->kind == HSPMD_ROPE_YARN   ? yarn(r, plain, i)
		                 : r->kind == HSPMD_ROPE_LLAMA3 ? llama3(r, plain)
		                 : r->kind == HSPMD_ROPE_LONG   ? plain / r->factors[(double)seq_len > r->original][i]
		                                                : plain;
	}
}
