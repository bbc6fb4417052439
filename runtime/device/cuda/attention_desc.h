/* SPDX-License-Identifier: Apache-2.0 */
/* Describes one attention: where its heads are in memory, and which heads and positions are computed. Also the choice between our kernels
 * and cuDNN's (attention_dnn.c).
 *
 * cuDNN can compute BF16 without documents if heads and rows are aligned to 16 bytes. The fastest of its plans and our kernels, those for
 * compute capability 9.0 and those for every GPU, is found by measurement when a program with such a shape is built, never inside a step,
 * and remembered as the algorithms of products are (gemm.h, which names the environment variables; HSPMD_CUDA_TUNE=0 takes cuDNN's first
 * plan unmeasured). What cuDNN cannot compute is not measured. cuDNN's backward pass is deterministic only with the gradient of the scores
 * in memory, T x T per head; each call computes as many heads as fit into 256 MiB (HSPMD_CUDNN_WORKSPACE: bytes). */
#ifndef HSPMD_CUDA_ATTENTION_DESC_H
#define HSPMD_CUDA_ATTENTION_DESC_H

#include "common/format/attention_memory.h"
#include "runtime/device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The rows (positions) of one tensor's heads. Element d of head h at position t of sample b is data[b * batch + t * row + h * head_dim +
 * d]. */
struct head_rows {
	void *data; /* NULL: not wanted */
	int64_t batch, row;
};

/* What of a call is to be done: our kernels that need more than the usual shared memory must be allowed it before they are launched. */
enum attention_stage {
	ATTENTION_UNPREPARED, /* allow it, and launch */
	ATTENTION_PREPARING,  /* allow it */
	ATTENTION_PREPARED,   /* launch */
};

/* Which of our kernels on tensor cores. */
enum attention_kernels {
	ATTENTION_NEWEST, /* attention_wgmma.cu where the device has what they need, else attention_mma.cu */
	ATTENTION_MMA,
};

/* What documents leave of a tile of DOCUMENT_TILE queries, or of keys (attention_documents.cu). */
#define DOCUMENT_TILE HSPMD_ATTENTION_TILE
#define DOCUMENTS_MANY INT32_MIN
struct tile_documents {
	int32_t first, end;  /* keys that its queries may see, or queries that may see its keys; empty if end <= first */
	int32_t document[2]; /* of each half: the one that all positions are of, or DOCUMENTS_MANY */
};

struct attention {
	struct head_rows q, k, v, o;       /* row 0 of q and o is the first query to compute */
	struct head_rows dq, dk, dv, dout; /* backward */
	const float *angles; /* [key][head_dim / 2] cosine and sine by which the elements i and i + head_dim / 2 of q and k were
	                                      turned: dq and dk are turned back; NULL: they are not */
	float *lse, *delta;                /* [batch][head][query] */
	void *scores;                      /* for gradients of scores, aligned to 256 bytes; NULL: none */
	size_t scores_bytes;
	uint32_t workspace_most;           /* as in struct hspmd_kernel_args */
	const int32_t *segments;           /* NULL: none; points at the first key of sample 0 */
	int64_t segment_length;
	struct tile_documents *documents; /* if there are segments: [batch] those of the tiles of queries, then of keys */
	int batches, queries, keys, heads, kv_heads, head_dim;
	int first_head, first_kv, group; /* global numbers of the first local heads; query heads per kv head */
	int shift;                       /* global position of the first query minus that of the first key */
	int window;                      /* 0: none */
	bool bidirectional;              /* else causal */
	bool any_order;                  /* sums may have another order each time */
	float scale, softcap;            /* softcap 0: none */
	const void *sinks;               /* of the first local head on; NULL: none */
	const int32_t *noise;            /* of dropout; NULL: none; points at the first key of sample 0 */
	int64_t noise_length, first_key; /* first_key: global position */
	const void *mask;                /* added to scores; NULL: none */
	int64_t mask_step[4];            /* elements between samples, heads, queries and keys; 0: the same for all */
	double rate;
	uint64_t stream;
	enum attention_stage stage;
	enum attention_kernels kernels;
};

/* Returns true if all rows of all tensors begin on multiples of 16 bytes. Pointers that are not set yet count as aligned. */
static inline bool hspmd_cuda_attention_is_aligned(const struct attention *a)
{
	const struct head_rows *all[] = { &a->q, &a->k, &a->v, &a->o, &a->dq, &a->dk, &a->dv, &a->dout };
	for (int i = 0; i < 8; i++)
		if (all[i]->row % 8 || all[i]->batch % 8 || (uintptr_t)all[i]->data % 16)
			return false;
	return true;
}

/* What its memory depends on. */
static inline struct hspmd_attention_sizes hspmd_cuda_attention_sizes(const struct attention *a)
{
	struct hspmd_attention_sizes sizes = { a->batches, a->queries, a->keys, a->heads, a->kv_heads, a->group, a->head_dim, true, true };
	return sizes;
}

/* Bytes of the sums of rows, which the backward pass computes first, up to a multiple of 256. */
static inline size_t hspmd_cuda_attention_delta_bytes(const struct attention *a)
{
	struct hspmd_attention_sizes sizes = hspmd_cuda_attention_sizes(a);
	return hspmd_attention_delta_bytes(&sizes);
}

/* Bytes of a->documents, up to a multiple of 256. */
static inline size_t hspmd_cuda_attention_documents_bytes(const struct attention *a)
{
	size_t tiles = (size_t)((a->queries + DOCUMENT_TILE - 1) / DOCUMENT_TILE + (a->keys + DOCUMENT_TILE - 1) / DOCUMENT_TILE);
	return a->segments ? ((size_t)a->batches * tiles * sizeof(struct tile_documents) + 255) / 256 * 256 : 0;
}

/* Bytes of a->scores with which attention_grad_wgmma.cu is fastest, within a->workspace_most; it takes less, but not less than one kv head
 * needs. 0: it cannot. */
size_t hspmd_cuda_attention_wgmma_workspace(const struct hspmd_cuda *cuda, const struct attention *a);

/* Enqueues our kernels on cuda->stream (a->stage): the forward pass, or the backward pass, which needs a->delta to have room for the sums
 * of rows. */
typedef int (*hspmd_cuda_own_attention)(struct hspmd_cuda *cuda, const struct attention *a, struct hspmd_error *err);

struct hspmd_cuda_dnn;
int hspmd_cuda_dnn_create(struct hspmd_cuda *cuda, struct hspmd_error *err);
void hspmd_cuda_dnn_destroy(struct hspmd_cuda *cuda);
/* As `choices` and `choose` of device.h; lines for other libraries are left alone. */
char *hspmd_cuda_dnn_choices(struct hspmd_cuda *cuda);
int hspmd_cuda_dnn_choose(struct hspmd_cuda *cuda, const char *choices);

/* Chooses between our kernels and cuDNN for a BF16 attention of this shape (pointers are ignored). Returns the workspace in bytes that
 * cuDNN needs, or 0 if our kernels were chosen. */
size_t hspmd_cuda_dnn_workspace(struct hspmd_cuda *cuda, const struct attention *a, bool backward, hspmd_cuda_own_attention own);
/* Sets *choice for a BF16 attention of this shape, which lives as long as the device; NULL: our kernels. 0, or -1 and err. */
int hspmd_cuda_dnn_prepare(struct hspmd_cuda *cuda, const struct attention *a, bool backward, hspmd_cuda_own_attention own,
                           const void **choice, struct hspmd_error *err);
/* Runs as `choice` says; if a->stage is not ATTENTION_PREPARED, the choice is looked up. Returns 1 if enqueued, 0 if the caller is to use
 * our kernels, those of a->kernels, which is set; -1 and err on failure. */
int hspmd_cuda_dnn_attention(struct hspmd_cuda *cuda, struct attention *a, bool backward, hspmd_cuda_own_attention own, const void *choice,
                             void *workspace, size_t workspace_bytes, struct hspmd_error *err);

#ifdef __cplusplus
}
#endif

#endif
