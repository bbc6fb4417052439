/* SPDX-License-Identifier: Apache-2.0 */
/* The types of models, each in runtime/model/NAME.c, as X(NAME). */
#ifndef HSPMD_MODEL_MODEL_LIST_H
#define HSPMD_MODEL_MODEL_LIST_H

#define HSPMD_MODELS(X)                                                                                                                    \
	X(deepseek_v2)                                                                                                                     \
	X(deepseek_v3)                                                                                                                     \
	X(gemma2)                                                                                                                          \
	X(gemma3)                                                                                                                          \
	X(gpt2)                                                                                                                            \
	X(gpt_neox)                                                                                                                        \
	X(gpt_oss)                                                                                                                         \
	X(llama)                                                                                                                           \
	X(mistral)                                                                                                                         \
	X(mixtral)                                                                                                                         \
	X(olmo2)                                                                                                                           \
	X(phi3)                                                                                                                            \
	X(qwen2)                                                                                                                           \
	X(qwen2_moe)                                                                                                                       \
	X(qwen3)                                                                                                                           \
	X(qwen3_moe)                                                                                                                       \
	X(smollm3)

#endif
