/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/dnn_support.h"

#include <stdbool.h>

/* Shapes known to be computed correctly, forward and backward, from a version on. Sources:
 * - PyTorch issue 169849: wrong results if a length is no multiple of 128, repaired in 9.15.1.
 * - PyTorch issue 196678: NaN in the gradient of queries on Hopper if a length is 64 more than a multiple of 128, in later versions too.
 * - cudnn-frontend issue 160: lengths that are no such multiples need a padding mask, which our graph does not have.
 * Heads of other sizes than 64 and 128 are rarely used with cuDNN, and nobody reports them as tested. */
static const struct {
	size_t since;
	int64_t head_dim, length_multiple;
} sound[] = {
	{ 91501, 64, 128 },
	{ 91501, 128, 128 },
};

const char *hspmd_dnn_unsupported(size_t version, const struct hspmd_dnn_attention *a)
{
	bool head = false, length = false;
	for (size_t i = 0; i < sizeof sound / sizeof *sound; i++) {
		bool same_head = a->head_dim == sound[i].head_dim,
		     whole = a->queries % sound[i].length_multiple == 0 && a->keys % sound[i].length_multiple == 0;
		if (same_head && whole && version >= sound[i].since)
			return NULL;
		head |= same_head;
		length |= same_head && whole;
	}
	return !head     ? "the size of heads is neither 64 nor 128"
	       : !length ? "a length is no multiple of 128"
	                 : "this cuDNN is older than 9.15.1";
}
