/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/fields.h"

void hspmd_refuse_set(struct hspmd_json *root, const char *key)
{
	struct hspmd_json at = hspmd_json_any(root, key);
	if (at.value)
		hspmd_json_fail(&at, "not supported; expected null");
}

void hspmd_refuse_unless(struct hspmd_json *root, const char *key, bool wanted)
{
	struct hspmd_json at = hspmd_json_any(root, key);
	if (hspmd_json_bool_or(root, key, wanted) != wanted)
		hspmd_json_fail(&at, "not supported; expected %s", wanted ? "true" : "false");
}

void hspmd_refuse_number_unless(struct hspmd_json *root, const char *key, double wanted)
{
	struct hspmd_json at = hspmd_json_any(root, key);
	if (hspmd_json_number_or(root, key, -HSPMD_JSON_UNBOUNDED, HSPMD_JSON_UNBOUNDED, wanted) != wanted)
		hspmd_json_fail(&at, "not supported; expected %g", wanted);
}

void hspmd_check_divides(struct hspmd_json *root, const char *key, int64_t by, const char *what, int64_t whole)
{
	struct hspmd_json at = hspmd_json_any(root, key);
	if (whole % by)
		hspmd_json_fail(&at, "%lld does not divide the %s, %lld", (long long)by, what, (long long)whole);
}

int64_t hspmd_size_of(struct hspmd_json *root, const char *key, const char *shared, int64_t max)
{
	bool other = !hspmd_json_has(root, key) && hspmd_json_has(root, shared);
	return hspmd_json_int(root, other ? shared : key, 1, max);
}

int64_t hspmd_window_of(struct hspmd_json *root, int64_t absent)
{
	if (json_is_null(json_object_get(root->value, "sliding_window")))
		absent = 0;
	return hspmd_json_int_or(root, "sliding_window", 1, HSPMD_POSITIONS_MAX, absent);
}

double hspmd_rate_of(struct hspmd_json *root, const char *key, double absent)
{
	return hspmd_json_number_or(root, key, 0, 0.999, absent);
}
