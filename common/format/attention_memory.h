/* SPDX-License-Identifier: Apache-2.0 */
/* What the gradient of an attention in BF16 needs of a GPU's memory while it runs: one account for the device (runtime/device/cuda), and
 * for plans, which are made where there is none. */
#ifndef HSPMD_FORMAT_ATTENTION_MEMORY_H
#define HSPMD_FORMAT_ATTENTION_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Gradients of scores are written in tiles of so many queries and keys. */
#define HSPMD_ATTENTION_TILE 128
/* Most bytes of them that kernels for compute capability 9.0 have in memory at a time. */
#define HSPMD_ATTENTION_SCORES ((size_t)2 << 30)
/* Most bytes that cuDNN gets. */
#define HSPMD_ATTENTION_DNN ((size_t)256 << 20)

struct hspmd_attention_sizes {
	int64_t batches, queries, keys;
	int64_t heads, kv_heads; /* on the device; heads: of queries */
	int64_t group;           /* query heads that share a kv head */
	int64_t head_dim;
	/* What may compute it, on a device that has it: kernels for compute capability 9.0, and cuDNN. */
	bool wgmma, dnn;
};

/* Parts of the heads and samples that the kernels for compute capability 9.0 compute at a time: some samples with all heads, or some kv
 * heads of one. */
struct hspmd_attention_parts {
	int batches, kv_heads; /* of each; 0: there is no room for one */
	int buffers;           /* of gradients of scores: one pass of a part reads one while another pass of the next writes the other */
	size_t bytes;          /* of each buffer */
};

/* For a device of so many multiprocessors and at most so many bytes of buffers. */
struct hspmd_attention_parts hspmd_attention_parts_of(const struct hspmd_attention_sizes *a, int multiprocessors, size_t most);
/* What cuDNN computes at a time, so that the gradients of scores leave a quarter of the bytes that it may have for what else it needs: sets
 * *samples and *kv_heads. in_memory: bytes per query head. Returns false if there is no room for one kv head. */
bool hspmd_attention_dnn_part(const struct hspmd_attention_sizes *a, size_t in_memory, size_t most, int64_t *samples, int64_t *kv_heads);
/* Bytes of the sums of rows, which are computed first, up to a multiple of 256. */
size_t hspmd_attention_delta_bytes(const struct hspmd_attention_sizes *a);
/* Most bytes that a GPU needs for it; wgmma: it has compute capability 9.0; dnn: it may have cuDNN. */
size_t hspmd_attention_workspace(const struct hspmd_attention_sizes *a, bool wgmma, bool dnn);

#ifdef __cplusplus
}
#endif

#endif
