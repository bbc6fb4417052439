/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"
#include "runtime/model/model.h"

static json_t *written(const json_t *value, struct hspmd_error *err)
{
	struct hspmd_model *m = hspmd_model_from_json((json_t *)value, "input", err);
	if (!m)
		return NULL;
	fuzz_check(hspmd_model_layers(m) > 2, "a model has layers");
	json_t *o = json_incref(m->config);
	hspmd_model_destroy(m);
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_round_trip(data, size, written);
}
