/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN's graph API (cudnnBackend...), in BF16. cuDNN is loaded when a program could use it for the first time, so that the
 * module loads without it; HSPMD_CUDNN names the library (default libcudnn.so.9; empty: none). A graph spells out, operator by operator,
 * what "FlashAttention-2" (arXiv 2307.08691, section 3) computes; cuDNN's engines recognise the pattern and keep the T x T matrices out of
 * memory. Only deterministic engines are used, unless any order will do. tests/gpu/emulate/dnn.cc stands in for cuDNN on the emulated
 * device. */
#ifndef HSPMD_CUDA_DNN_H
#define HSPMD_CUDA_DNN_H

#include <cuda_runtime.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "common/error.h"

/* cuDNN on a device; used by one thread at a time. */
struct hspmd_dnn;
/* One way to compute one attention, for any buffers. */
struct hspmd_dnn_plan;

/* Strides in elements between samples and between positions. dq has the strides of q, dk of k, dv of v, dout of o. */
struct hspmd_dnn_rows {
	int64_t batch, row;
};

/* What a graph is built for; compared as memory. Query i sees key j if 0 <= i + shift - j, and i + shift - j < window unless window is 0.
 * Query head h reads kv head h / (heads / kv_heads). */
struct hspmd_dnn_attention {
	int64_t batches, queries, keys, heads, kv_heads, head_dim, shift, window;
	struct hspmd_dnn_rows q, k, v, o;
	double scale;
	int64_t backward;  /* 0 or 1 */
	int64_t any_order; /* 1: sums may have another order, and so other bits, each time */
};

/* Buffers on the device, 16-byte aligned. The forward pass writes lse[batches][heads][queries]; the backward pass reads it. */
struct hspmd_dnn_buffers {
	void *q, *k, *v, *o, *dq, *dk, *dv, *dout;
	float *lse;
	void *workspace;
};

/* Returns -1 and err if there is no cuDNN or it is too old. */
int hspmd_dnn_open(struct hspmd_dnn **dnn, cudaStream_t stream, struct hspmd_error *err);
/* Opens cuDNN for a GPU that is absent but described in cuDNN's JSON: plans can be made for it but not run. */
int hspmd_dnn_open_described(struct hspmd_dnn **dnn, const char *properties, struct hspmd_error *err);
void hspmd_dnn_close(struct hspmd_dnn *dnn);
size_t hspmd_dnn_version(const struct hspmd_dnn *dnn); /* 91900: 9.19.0 */

/* Finds at most `most` plans that need no more than workspace_most bytes, the one that cuDNN expects to be fastest first; the order depends
 * only on cuDNN's version. Returns their number; 0 if cuDNN has no suitable plan, and err says why. */
int hspmd_dnn_find_plans(struct hspmd_dnn *dnn, const struct hspmd_dnn_attention *a, size_t workspace_most, struct hspmd_dnn_plan **plans,
                         int most, struct hspmd_error *err);
void hspmd_dnn_plan_destroy(struct hspmd_dnn_plan *plan);
size_t hspmd_dnn_plan_workspace(const struct hspmd_dnn_plan *plan); /* bytes, 256-byte aligned */
int hspmd_dnn_run(struct hspmd_dnn *dnn, const struct hspmd_dnn_plan *plan, const struct hspmd_dnn_buffers *buffers,
                  struct hspmd_error *err);

#ifdef __cplusplus
}
#endif

#endif
