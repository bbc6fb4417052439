/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"
#include "runtime/model/model.h"

static json_t *written(const json_t *value, struct hspmd_error *err)
{
	struct hspmd_model *m = hspmd_model_from_json((json_t *)value, "input", err);
	if (!m)
		return NULL;
	for (int i = 0; i < hspmd_model_layers(m); i += 1 + hspmd_model_layers(m) / 8) {
		fuzz_check(hspmd_model_layer_params(m, i) > 0, "a layer has parameters");
		fuzz_check(hspmd_model_layer_flops(m, i, m->max_positions) >= 0, "a layer costs something or nothing");
		fuzz_check(hspmd_model_layer_output(m, i, 1) > 0, "a layer hands something on");
	}
	fuzz_check(hspmd_model_params(m) > 0, "a model has parameters");
	json_t *o = json_incref(m->config);
	hspmd_model_destroy(m);
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_round_trip(data, size, written);
}
