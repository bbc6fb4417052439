/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN's graph API (cudnnBackend...), in BF16. cuDNN is loaded when a program first could use it, so that the module needs
 * none of it to load; HSPMD_CUDNN names the library (default libcudnn.so.9; empty: none). A graph is what "FlashAttention-2" (arXiv
 * 2307.08691, section 3) computes, spelt out operator by operator; cuDNN's engines know the pattern and keep T x T out of memory. Only
 * engines that give the same bits each time are taken. tests/gpu/emulate/dnn.cc plays this part on the emulated device. */
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

/* cuDNN on a device; one thread at a time. */
struct hspmd_dnn;
/* One way to compute one attention, for any buffers. */
struct hspmd_dnn_plan;

/* Elements from a sample, and from a position, to the next; of dq as of q, of dk as of k, of dv as of v, of dout as of o. */
struct hspmd_dnn_rows {
	int64_t batch, row;
};

/* What a graph is made for; compared as memory. Query i sees keys j with 0 <= i + shift - j, and < window where window is not 0. Query head
 * h reads kv head h / (heads / kv_heads). */
struct hspmd_dnn_attention {
	int64_t batches, queries, keys, heads, kv_heads, head_dim, shift, window;
	struct hspmd_dnn_rows q, k, v, o;
	double scale;
	int64_t backward; /* 0, 1 */
};

/* Buffers on the device, 16-byte aligned; lse[batches][heads][queries] is written forward and read backward. */
struct hspmd_dnn_buffers {
	void *q, *k, *v, *o, *dq, *dk, *dv, *dout;
	float *lse;
	void *workspace;
};

/* -1 and err: no cuDNN here, or one that is too old. */
int hspmd_dnn_open(struct hspmd_dnn **dnn, cudaStream_t stream, struct hspmd_error *err);
/* For a GPU that is not there, described in cuDNN's JSON: its plans can be made and not run. */
int hspmd_dnn_open_described(struct hspmd_dnn **dnn, const char *properties, struct hspmd_error *err);
void hspmd_dnn_close(struct hspmd_dnn *dnn);
size_t hspmd_dnn_version(const struct hspmd_dnn *dnn); /* 91900: 9.19.0 */

/* At most `most` plans that need no more than workspace_most bytes, the one that is thought fastest first, in an order that is the
 * version's. How many; 0: cuDNN has none that will do, and err says why. */
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
