/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/profile.h"
#include "fuzz.h"

static json_t *written(const json_t *value, struct hspmd_error *err)
{
	struct hspmd_profile *x = hspmd_profile_from_json(value, "input", err);
	if (!x)
		return NULL;
	json_t *o = hspmd_profile_to_json(x);
	hspmd_profile_destroy(x);
	fuzz_check(o != NULL, "what was read can be written");
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_round_trip(data, size, written);
}
