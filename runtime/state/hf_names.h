/* SPDX-License-Identifier: Apache-2.0 */
/* Differences between our tensors and Hugging Face's files: the experts of a layer are one stack here and single tensors there; GPT-2's
 * q, k and v are a dimension of size three here and are concatenated there, with the elements in the same order. */
#ifndef HSPMD_STATE_HF_NAMES_H
#define HSPMD_STATE_HF_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/tensor/box.h"

/* Returns true if this is a stack of experts ("...experts.w1.weight"). */
bool hspmd_hf_is_expert_stack(const char *name);
/* The name of one of its experts in the file ("...experts.3.w1.weight"); the caller frees it. NULL: memory. */
char *hspmd_hf_expert_name(const char *name, int64_t expert);

/* The shape of a tensor in the file. */
struct hspmd_shape hspmd_hf_shape(const char *name, const struct hspmd_shape *shape);

#endif
