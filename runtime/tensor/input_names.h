/* SPDX-License-Identifier: Apache-2.0 */
/* Names of a language model's inputs, which the data reader fills. */
#ifndef HSPMD_TENSOR_INPUT_NAMES_H
#define HSPMD_TENSOR_INPUT_NAMES_H

#include <stdbool.h>
#include <string.h>

#define HSPMD_TENSOR_TOKENS "tokens"     /* [B,T] I32 */
#define HSPMD_TENSOR_TARGETS "targets"   /* [B,T] I32, -1: not counted */
#define HSPMD_TENSOR_SEGMENTS "segments" /* [B,T] I32, number of the position's document within the sample; only for documents */
#define HSPMD_TENSOR_POSITIONS "positions" /* [B,T] I32, position in the document; only for learnt positions that documents reset */
/* [B,T] I32, a random number for each position of each sample of the training, from which dropout follows; negative: no dropout. Only for
 * models with dropout. Nets whose inputs have several lengths have one per length: "noise.LENGTH". */
#define HSPMD_TENSOR_NOISE "noise"
static inline bool hspmd_input_is_noise(const char *name)
{
	const size_t n = sizeof HSPMD_TENSOR_NOISE - 1;
	return !strncmp(name, HSPMD_TENSOR_NOISE, n) && (!name[n] || name[n] == '.');
}

#endif
