/* SPDX-License-Identifier: Apache-2.0 */
/* Where our tensors and Hugging Face's files differ: the experts of a layer are one stack here and one by one there; GPT-2's q, k and v are
 * a dimension of three here and lie beside one another there, with the elements in the same order. */
#ifndef HSPMD_STATE_HF_NAMES_H
#define HSPMD_STATE_HF_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/tensor/box.h"

/* Is this a stack of experts ("...experts.w1.weight")? */
bool hspmd_hf_is_expert_stack(const char *name);
/* The name of one of them ("...experts.3.w1.weight"): malloc'd, NULL: memory. */
char *hspmd_hf_expert_name(const char *name, int64_t expert);

/* The shape of a tensor there. */
struct hspmd_shape hspmd_hf_shape(const char *name, const struct hspmd_shape *shape);

#endif
