/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt. Of the algorithms that its heuristics propose for a shape the fastest is taken, by measurement when a
 * program with that shape is built (never inside a step). The choice is remembered in memory, and in a file so that the next run takes the
 * same algorithm and gives the same bits. A product that is to need less workspace than that algorithm takes the first that cuBLASLt
 * proposes for as much, unmeasured.
 *
 * Environment:
 * - HSPMD_CUDA_CANDIDATES=N measures up to N of the proposals (default 8, at most 64).
 * - HSPMD_CUDA_TUNE=0 takes the first proposal of the heuristics without measuring.
 * - HSPMD_CUDA_PRODUCTS_BESIDE=0: no product runs beside another operator; =N: all that can do, and leave them N multiprocessors, without
 *   measuring. Without it, or =auto: where that is measured to be faster (gemm_beside.c).
 * - HSPMD_CUDA_CACHE names the file's folder (default $XDG_CACHE_HOME/hspmd or ~/.cache/hspmd; empty: no file).
 * - HSPMD_CUDA_TF32=1 lets all products of F32 use TF32, as a job's "precision": "tf32" does. */
#ifndef HSPMD_CUDA_GEMM_H
#define HSPMD_CUDA_GEMM_H

#include "common/format/product_memory.h"
#include "runtime/device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HSPMD_CUDA_GEMM_WORKSPACE ((size_t)HSPMD_PRODUCT_WORKSPACE) /* no algorithm gets more */

/* Applied to a product before it is written. */
enum hspmd_epilogue {
	HSPMD_EPILOGUE_NONE,
	HSPMD_EPILOGUE_GELU,      /* tanh form; if has_aux, `beside` receives the GELU input (CUBLASLT_EPILOGUE_GELU_AUX) */
	HSPMD_EPILOGUE_GELU_GRAD, /* D is the gradient of the GELU input in `beside` */
	HSPMD_EPILOGUE_BGRAD_A,   /* `bgrad` receives the sums of op(A) or op(B) over k, in d's type: m or n elements */
	HSPMD_EPILOGUE_BGRAD_B,
};

/* How products of one shape are computed: an entry of what the device knows, which lives as long as the device. */
struct hspmd_cuda_gemm_choice;

/* Row-major D[m, n] = op(A) op(B) (+ bias[n]) (+ residual), added to D if accumulate. A is [m, k], or [k, m] if trans_a; B is [k, n], or
 * [n, k] if trans_b. */
struct hspmd_cuda_gemm {
	int64_t m, n, k;
	const void *a, *b;
	void *d;
	int64_t lda, ldb,
	        ldd; /* elements from one row of A, B, D (and residual) to the next, at most 255 more than its length; 0: packed */
	bool trans_a, trans_b, accumulate, has_bias, has_residual, has_aux;
	int left;             /* multiprocessors that it leaves to others, by the choice of hspmd_cuda_gemm_leave; 0: none */
	uint32_t workspace_most; /* as in struct hspmd_kernel_args */
	bool tf32;            /* for F32: operands may be rounded to TF32 */
	/* a and b are E4M3 numbers, or E5M2 ones if they are gradients (not both), and `type` is that of what they were rounded from;
	 * only if trans_b and not trans_a. The result is multiplied by both scales, which are on the device. */
	bool fp8, gradient_a, gradient_b;
	const float *scale_a, *scale_b;
	const void *bias;     /* of d's type, like the next three */
	const void *residual; /* [m, n]; may be d */
	void *beside;         /* [m, n], packed */
	void *bgrad;
	enum hspmd_epilogue epilogue;  /* other than NONE only if hspmd_cuda_gemm_exists */
	enum hspmd_dtype type, d_type; /* type: of a and b, unless fp8; d_type: the same, or F32 for BF16 */
	const struct hspmd_cuda_gemm_choice *choice; /* of hspmd_cuda_gemm_prepare for such a product; NULL: it is looked up */
};

/* Elements from one row of an operand to the next. */
static inline int64_t hspmd_cuda_gemm_lda(const struct hspmd_cuda_gemm *p)
{
	return p->lda ? p->lda : p->trans_a ? p->m : p->k;
}

static inline int64_t hspmd_cuda_gemm_ldb(const struct hspmd_cuda_gemm *p)
{
	return p->ldb ? p->ldb : p->trans_b ? p->k : p->n;
}

static inline int64_t hspmd_cuda_gemm_ldd(const struct hspmd_cuda_gemm *p)
{
	return p->ldd ? p->ldd : p->n;
}

/* gemm_beside.c: how many multiprocessors the product is to leave to operators beside it, which move so many bytes; 0: it runs alone,
 * before them, because that was measured to be faster, or nothing was measured (HSPMD_CUDA_TUNE=0, no memory for it), or
 * HSPMD_CUDA_PRODUCTS_BESIDE is 0. *other: how many it leaves if it does: the choice that counts may be made elsewhere
 * (hspmd_cuda_blas_choose). */
int hspmd_cuda_gemm_leave(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int64_t bytes, int *other);
/* Returns true if choices are measured. */
bool hspmd_cuda_gemm_is_tuned(const struct hspmd_cuda *cuda);
/* What is known of this product beside so many bytes, and how it becomes known: by measurement or not. */
bool hspmd_cuda_gemm_known_beside(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int64_t bytes, int *left);
void hspmd_cuda_gemm_remember_beside(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int64_t bytes, int left, bool measured);

int hspmd_cuda_blas_create(struct hspmd_cuda *cuda, struct hspmd_error *err);
void hspmd_cuda_blas_destroy(struct hspmd_cuda *cuda);
/* Chooses the algorithm for products of this shape (pointers are ignored). Returns the workspace in bytes that it needs, or any other
 * that may be chosen instead (hspmd_cuda_blas_choose). */
size_t hspmd_cuda_gemm_workspace(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p);
/* Sets *choice for products of this shape; NULL for products without elements. 0, or -1 and err. */
int hspmd_cuda_gemm_prepare(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, const void **choice, struct hspmd_error *err);
/* Returns true if cuBLASLt has an algorithm for the product. */
bool hspmd_cuda_gemm_exists(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p);
int hspmd_cuda_gemm_run(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, void *workspace, size_t workspace_bytes,
                        struct hspmd_error *err);
/* As `choices` and `choose` of device.h; lines for other libraries are left alone. */
char *hspmd_cuda_blas_choices(struct hspmd_cuda *cuda);
int hspmd_cuda_blas_choose(struct hspmd_cuda *cuda, const char *choices);
/* gemm_fallback.cu: products of any sizes, slowly; hspmd_cuda_gemm_run uses it if cuBLASLt has no algorithm. */
int hspmd_cuda_gemm_fallback(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, struct hspmd_error *err);

#ifdef __cplusplus
}
#endif

#endif
