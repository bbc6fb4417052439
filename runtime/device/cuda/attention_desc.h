/* SPDX-License-Identifier: Apache-2.0 */
/* One attention: where heads lie and who works on which of them; and the choice between our kernels and cuDNN's (attention_dnn.c).
 *
 * cuDNN's can take BF16 without documents, where heads and rows lie on multiples of 16 bytes. Which is faster is measured when a program
 * with such a shape is built, never inside a step, and remembered as the algorithms of products are (gemm.h, which names the
 * environment's switches; HSPMD_CUDA_TUNE=0 takes cuDNN's first plan unmeasured). Its backward pass has the same bits each time only with
 * the scores' gradient in memory, T x T for a head; it takes as many heads at a time as fit into 256 MiB (HSPMD_CUDNN_WORKSPACE: bytes). */
#ifndef HSPMD_CUDA_ATTENTION_DESC_H
#define HSPMD_CUDA_ATTENTION_DESC_H

#include "runtime/device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The rows (positions) of one tensor's heads: element d of head h at position t of sample b is data[b * batch + t * row + h * head_dim +
 * d]. */
struct head_rows {
	void *data; /* NULL: not wanted */
	int64_t batch, row;
};

struct attention {
	struct head_rows q, k, v, o;       /* row 0 of q and o is the first query that is worked on */
	struct head_rows dq, dk, dv, dout; /* backward */
	float *lse, *delta;                /* [batch][head][query] */
	const int32_t *segments;           /* NULL: none; of the first key at sample 0 */
	int64_t segment_length;
	int batches, queries, keys, heads, kv_heads, head_dim;
	int first_head, first_kv, group; /* global numbers of the first local ones; query heads that share a kv head */
	int shift;                       /* global position of the first query less that of the first key */
	int window;                      /* 0: none */
	float scale;
};

/* How our kernels do it on cuda->stream: forward; backward, when a->delta has room for the sums of rows. */
typedef int (*hspmd_cuda_own_attention)(struct hspmd_cuda *cuda, const struct attention *a, struct hspmd_error *err);

struct hspmd_cuda_dnn;
int hspmd_cuda_dnn_create(struct hspmd_cuda *cuda, struct hspmd_error *err);
void hspmd_cuda_dnn_destroy(struct hspmd_cuda *cuda);

/* Chooses for attention like this one (pointers are not looked at), in BF16; the workspace that cuDNN needs for it, 0 where our kernels are
 * to do it. */
size_t hspmd_cuda_dnn_workspace(struct hspmd_cuda *cuda, const struct attention *a, bool backward, hspmd_cuda_own_attention own);
/* 1: enqueued; 0: our kernels are to do it; -1 and err. */
int hspmd_cuda_dnn_attention(struct hspmd_cuda *cuda, const struct attention *a, bool backward, hspmd_cuda_own_attention own,
                             void *workspace, size_t workspace_bytes, struct hspmd_error *err);

#ifdef __cplusplus
}
#endif

#endif
