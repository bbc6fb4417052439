/* SPDX-License-Identifier: Apache-2.0 */
/* What Qwen2 and Qwen3 with experts have in common: their keys, the layers without experts, and the names of the experts' weights. */
#ifndef HSPMD_MODEL_QWEN_MOE_H
#define HSPMD_MODEL_QWEN_MOE_H

#include "runtime/model/model_internal.h"

/* Absent keys: as in the configuration class of the model type. */
struct hspmd_qwen_moe_defaults {
	int experts, per_token;
	int64_t ffn; /* inner width of one expert */
};

/* Reads what concerns experts, but for shared ones. Failures are kept in the document. */
void hspmd_qwen_moe_read(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_decoder *d,
                         const struct hspmd_qwen_moe_defaults *absent);
/* Llama's block with experts, and with a shared expert if the decoder has one. */
int hspmd_qwen_moe_block(struct hspmd_builder *b, int x);
extern const struct hspmd_weight_name hspmd_qwen_moe_weights[];

#endif
