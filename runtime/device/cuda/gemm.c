/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/gemm.h"

#include <cublasLt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/device/cuda/autotune_cache.h"
#include "runtime/device/cuda/autotune_log.h"
#include "runtime/device/cuda/gemm_trial.h"

#define CANDIDATES 8
#define CANDIDATES_MOST 64
#define TIMED_RUNS 5
#define MOST_BIT 56   /* in flags of a key, from here on: 1 + the logarithm of workspace_most, or 0 */
#define LEFT_MOST 511 /* multiprocessors; as a number of these: what the key of hspmd_cuda_gemm_leave has */

/* A product as cuBLASLt sees it: column-major, so that our B comes first and m and n are exchanged. */
struct plan {
	cublasLtMatmulDesc_t operation;
	cublasLtMatrixLayout_t a, b, d;
};

struct hspmd_cuda_gemm_choice {
	struct hspmd_cuda_autotune_key key;
	bool none; /* cuBLASLt has no algorithm: use hspmd_cuda_gemm_fallback */
	cublasLtMatmulAlgo_t algorithm;
	size_t workspace;
	size_t workspace_most; /* of all candidates: another of them may be chosen instead (hspmd_cuda_blas_choose) */
	bool measured, fp8;
	/* Of products that are to need less workspace (workspace_most of hspmd_cuda_gemm); base: the choice of such a product that is not;
	 * NULL: it is none of these. */
	const struct hspmd_cuda_gemm_choice *base;
	size_t room;
	struct plan plan;
};

struct hspmd_cuda_blas {
	cublasLtHandle_t handle;
	pthread_mutex_t lock; /* protects `chosen`: programs are built while another runs */
	size_t count, capacity;
	struct hspmd_cuda_gemm_choice **chosen; /* the entries never move */
	struct hspmd_cuda_autotune_cache *choices;
	bool tune, tf32;
	int candidates;
};

static int failed(cublasStatus_t status, const char *what, struct hspmd_error *err)
{
	return hspmd_fail(err, "%s: %s", what, cublasLtGetStatusString(status));
}

static bool is_set(const char *name, const char *value)
{
	const char *have = getenv(name);
	return have && !strcmp(have, value);
}

int hspmd_cuda_blas_create(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	struct hspmd_cuda_blas *b = calloc(1, sizeof *b);
	if (!b)
		return hspmd_fail_memory(err, "opening a CUDA device");
	pthread_mutex_init(&b->lock, NULL);
	cuda->blas = b;
	b->tune = !is_set("HSPMD_CUDA_TUNE", "0");
	b->tf32 = is_set("HSPMD_CUDA_TF32", "1");
	const char *candidates = getenv("HSPMD_CUDA_CANDIDATES");
	b->candidates = candidates ? atoi(candidates) : CANDIDATES;
	if (b->candidates < 1 || b->candidates > CANDIDATES_MOST)
		return hspmd_fail(err, "HSPMD_CUDA_CANDIDATES=%s: expected 1..%d", candidates, CANDIDATES_MOST);
	cublasStatus_t status = cublasLtCreate(&b->handle);
	if (status != CUBLAS_STATUS_SUCCESS)
		return failed(status, "cuBLASLt cannot be used", err);
	b->choices = hspmd_cuda_autotune_cache_open("cublaslt", cuda->model, cublasLtGetVersion());
	return b->choices ? 0 : hspmd_fail_memory(err, "opening a CUDA device");
}

static void destroy_plan(struct plan *p)
{
	if (p->operation)
		cublasLtMatmulDescDestroy(p->operation);
	if (p->a)
		cublasLtMatrixLayoutDestroy(p->a);
	if (p->b)
		cublasLtMatrixLayoutDestroy(p->b);
	if (p->d)
		cublasLtMatrixLayoutDestroy(p->d);
	*p = (struct plan){ NULL, NULL, NULL, NULL };
}

void hspmd_cuda_blas_destroy(struct hspmd_cuda *cuda)
{
	struct hspmd_cuda_blas *b = cuda->blas;
	if (!b)
		return;
	for (size_t i = 0; i < b->count; i++) {
		destroy_plan(&b->chosen[i]->plan);
		free(b->chosen[i]);
	}
	free(b->chosen);
	if (b->handle)
		cublasLtDestroy(b->handle);
	hspmd_cuda_autotune_cache_close(b->choices);
	pthread_mutex_destroy(&b->lock);
	free(b);
	cuda->blas = NULL;
}

static bool uses_tf32(const struct hspmd_cuda_blas *b, const struct hspmd_cuda_gemm *p)
{
	return p->type == HSPMD_F32 && (b->tf32 || p->tf32);
}

/* How much longer than packed rows those of A, B and D are, in a byte each. */
static uint64_t padding_of(const struct hspmd_cuda_gemm *p)
{
	int64_t a = hspmd_cuda_gemm_lda(p) - (p->trans_a ? p->m : p->k), b = hspmd_cuda_gemm_ldb(p) - (p->trans_b ? p->k : p->n);
	return (uint64_t)a | (uint64_t)b << 8 | (uint64_t)(hspmd_cuda_gemm_ldd(p) - p->n) << 16;
}

static struct hspmd_cuda_autotune_key key_of(const struct hspmd_cuda_blas *b, const struct hspmd_cuda_gemm *p)
{
	struct hspmd_cuda_autotune_key key = {
		.m = p->m,
		.n = p->n,
		.k = p->k,
		.flags = padding_of(p) << 32 | (uint32_t)p->trans_a | (uint32_t)p->trans_b << 1 | (uint32_t)p->accumulate << 2 |
		         (uint32_t)p->has_bias << 3 | (uint32_t)uses_tf32(b, p) << 4 | (uint32_t)p->has_residual << 5 |
		         (uint32_t)p->has_aux << 6 | (uint32_t)p->type << 8 | (uint32_t)p->d_type << 12 | (uint32_t)p->epilogue << 16 |
		         (uint32_t)p->fp8 << 20 | (uint32_t)p->gradient_a << 21 | (uint32_t)p->gradient_b << 22 |
		         (uint32_t)(p->left & LEFT_MOST) << 23,
	};
	for (uint32_t most = p->workspace_most; most; most /= 2)
		key.flags += UINT64_C(1) << MOST_BIT;
	return key;
}

static cudaDataType_t type_of(enum hspmd_dtype dtype)
{
	return dtype == HSPMD_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* gradient: of an operand of FP8. */
static cudaDataType_t operand_type(const struct hspmd_cuda_gemm *p, bool gradient)
{
	return !p->fp8 ? type_of(p->type) : gradient ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

static cublasLtEpilogue_t epilogue_of(const struct hspmd_cuda_gemm *p)
{
	switch (p->epilogue) {
	case HSPMD_EPILOGUE_GELU:
		if (p->has_aux)
			return p->has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
		return p->has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
	case HSPMD_EPILOGUE_GELU_GRAD:
		return CUBLASLT_EPILOGUE_DGELU;
	case HSPMD_EPILOGUE_BGRAD_A: /* the operands are exchanged */
		return CUBLASLT_EPILOGUE_BGRADB;
	case HSPMD_EPILOGUE_BGRAD_B:
		return CUBLASLT_EPILOGUE_BGRADA;
	case HSPMD_EPILOGUE_NONE:
		break;
	}
	return p->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Returns true if a vector is added to the product's rows, or gets sums of an operand. */
static bool has_small_operand(const struct hspmd_cuda_gemm *p)
{
	return p->has_bias || p->epilogue == HSPMD_EPILOGUE_BGRAD_A || p->epilogue == HSPMD_EPILOGUE_BGRAD_B;
}

/* The scales of our A and B; the operands are exchanged. */
static cublasStatus_t set_scales(const struct plan *plan, const void *scale_a, const void *scale_b)
{
	cublasStatus_t status =
	        cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale_b, sizeof scale_b);
	if (status)
		return status;
	return cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale_a, sizeof scale_a);
}

static int make_plan(const struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, struct plan *plan, struct hspmd_error *err)
{
	const struct hspmd_cuda_blas *b = cuda->blas;
	int32_t held = cuda->multiprocessors - p->left;
	cublasComputeType_t compute = uses_tf32(b, p) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	cublasOperation_t first = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, second = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasLtEpilogue_t epilogue = epilogue_of(p);
	int64_t row = p->n;
	const void *any_address = (const void *)(uintptr_t)4096;
	uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
	cublasStatus_t status = cublasLtMatmulDescCreate(&plan->operation, compute, CUDA_R_32F);
	if (!status)
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
	if (!status)
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
	if (!status)
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
	if (!status && p->has_aux)
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &row, sizeof row);
	/* The heuristics read the alignment of these operands from their addresses; every run sets its own, which are aligned as well. */
	if (!status && has_small_operand(p))
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &any_address,
		                                        sizeof any_address);
	if (!status && p->has_aux)
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &any_address,
		                                        sizeof any_address);
	if (!status && p->fp8)
		status = set_scales(plan, any_address, any_address);
	if (!status && p->left)
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &held, sizeof held);
	if (!status)
		status = cublasLtMatrixLayoutCreate(&plan->a, operand_type(p, p->gradient_b), p->trans_b ? k : n, p->trans_b ? n : k,
		                                    hspmd_cuda_gemm_ldb(p));
	if (!status)
		status = cublasLtMatrixLayoutCreate(&plan->b, operand_type(p, p->gradient_a), p->trans_a ? m : k, p->trans_a ? k : m,
		                                    hspmd_cuda_gemm_lda(p));
	if (!status)
		status = cublasLtMatrixLayoutCreate(&plan->d, type_of(p->d_type), n, m, hspmd_cuda_gemm_ldd(p));
	if (!status)
		return 0;
	destroy_plan(plan);
	return failed(status, "describing a matrix product", err);
}

/* Returns the number of algorithms found that need at most so many bytes; 0: there is none, for whatever reason: versions differ in how
 * they say so. */
static int ask_heuristics(const struct hspmd_cuda_blas *b, const struct plan *plan, size_t most, cublasLtMatmulHeuristicResult_t *found)
{
	cublasLtMatmulPreference_t preference;
	uint32_t alignment = 16;
	int count = 0;
	cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
	if (status)
		return 0;
	static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	};
	status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
	for (int i = 0; !status && i < 4; i++)
		status = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment);
	if (!status)
		status = cublasLtMatmulAlgoGetHeuristic(b->handle, plan->operation, plan->a, plan->b, plan->d, plan->d, preference,
		                                        b->candidates, found, &count);
	cublasLtMatmulPreferenceDestroy(preference);
	return status ? 0 : count;
}

static cublasStatus_t run_plan(const struct hspmd_cuda_blas *b, const struct plan *plan, const struct hspmd_cuda_gemm *p,
                               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
	float one = 1, beta = p->accumulate || p->has_residual ? 1 : 0;
	const void *small = p->has_bias ? p->bias : p->bgrad;
	cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
	/* One thread runs a device, and the call copies the pointers' values. */
	if (has_small_operand(p))
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &small, sizeof small);
	if (!status && p->has_aux)
		status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->beside,
		                                        sizeof p->beside);
	if (!status && p->fp8)
		status = set_scales(plan, p->scale_a, p->scale_b);
	if (status)
		return status;
	return cublasLtMatmul(b->handle, plan->operation, &one, p->b, plan->a, p->a, plan->b, &beta, p->has_residual ? p->residual : p->d,
	                      plan->d, p->d, plan->d, algorithm, workspace, workspace_bytes, stream);
}

/* ---- measuring */

struct candidate {
	const struct hspmd_cuda_blas *b;
	const struct plan *plan;
	const struct hspmd_cuda_gemm *p;
	const struct hspmd_cuda_gemm_trial *trial;
	const cublasLtMatmulHeuristicResult_t *algorithm;
};

static int run_candidate(const void *what)
{
	const struct candidate *c = what;
	const struct hspmd_cuda_gemm_trial *t = c->trial;
	return run_plan(c->b, c->plan, c->p, &c->algorithm->algo, t->workspace, c->algorithm->workspaceSize, t->watch.stream) ? -1 : 0;
}

static float time_algorithm(const struct hspmd_cuda_blas *b, const struct plan *plan, const struct hspmd_cuda_gemm *p,
                            const struct hspmd_cuda_gemm_trial *t, const cublasLtMatmulHeuristicResult_t *algorithm)
{
	struct hspmd_cuda_gemm q = hspmd_cuda_gemm_trial_product(t, p);
	return hspmd_cuda_autotune_timer_time(&t->watch, TIMED_RUNS, run_candidate, &(struct candidate){ b, plan, &q, t, algorithm });
}

static void log_candidate(const struct hspmd_cuda_gemm *p, int candidate, int of, float milliseconds)
{
	static const char *const epilogues[] = { "", "gelu", "gelu_grad", "bgrad_a", "bgrad_b" };
	double seconds = (double)milliseconds * 1e-3 / TIMED_RUNS, flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
	if (!hspmd_cuda_autotune_log_is_on())
		return;
	hspmd_cuda_autotune_log(
	        "{\"product\": [%" PRId64 ", %" PRId64 ", %" PRId64
	        "], \"transposed\": \"%s%s\", \"type\": \"%s\", \"result\": \"%s\", \"epilogue\": \"%s\", \"bias\": %s, "
	        "\"accumulate\": %s, \"residual\": %s, \"candidate\": %d, \"candidates\": %d, \"ms\": %.6g, \"tflops\": %.4g}",
	        p->m, p->n, p->k, p->trans_a ? "a" : "", p->trans_b ? "b" : "",
	        p->fp8                  ? "fp8"
	        : p->type == HSPMD_BF16 ? "bf16"
	                                : "fp32",
	        p->d_type == HSPMD_BF16 ? "bf16" : "fp32", epilogues[p->epilogue], p->has_bias ? "true" : "false",
	        p->accumulate ? "true" : "false", p->has_residual ? "true" : "false", candidate, of, milliseconds < 0 ? -1 : seconds * 1e3,
	        milliseconds > 0 ? flop / seconds / 1e12 : 0);
}

/* *measured: false if there was no memory for it; then it is the first one. */
static int fastest(struct hspmd_cuda_blas *b, const struct plan *plan, const struct hspmd_cuda_gemm *p,
                   const cublasLtMatmulHeuristicResult_t *found, int count, bool *measured)
{
	struct hspmd_cuda_gemm_trial t;
	int best = 0;
	float best_time = -1;
	*measured = count < 2;
	if (count > 1 && hspmd_cuda_gemm_trial_start(&t, p)) {
		*measured = true;
		for (int i = 0; i < count; i++) {
			float time = time_algorithm(b, plan, p, &t, &found[i]);
			log_candidate(p, i, count, time);
			if (time >= 0 && (best_time < 0 || time < best_time)) {
				best_time = time;
				best = i;
			}
		}
	}
	if (count > 1)
		hspmd_cuda_gemm_trial_end(&t);
	return best;
}

/* ---- choosing */

static bool is_usable(const struct hspmd_cuda_blas *b, const struct hspmd_cuda_gemm_choice *c, const cublasLtMatmulAlgo_t *algorithm,
                      size_t *workspace)
{
	cublasLtMatmulHeuristicResult_t check;
	if (cublasLtMatmulAlgoCheck(b->handle, c->plan.operation, c->plan.a, c->plan.b, c->plan.d, c->plan.d, algorithm, &check) ||
	    check.workspaceSize > HSPMD_CUDA_GEMM_WORKSPACE)
		return false;
	*workspace = check.workspaceSize;
	return true;
}

static const struct hspmd_cuda_gemm_choice *find(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, struct hspmd_error *err);

/* Returns true if another process, or this one earlier, has chosen. */
static bool known_choice(struct hspmd_cuda_blas *b, struct hspmd_cuda_gemm_choice *c)
{
	_Static_assert(sizeof c->algorithm == sizeof(struct hspmd_cuda_autotune_entry),
	               "an algorithm is 64 bytes that may be written down");
	struct hspmd_cuda_autotune_entry known;
	pthread_mutex_lock(&b->lock);
	bool found = b->tune && hspmd_cuda_autotune_cache_find(b->choices, &c->key, &known);
	pthread_mutex_unlock(&b->lock);
	if (!found)
		return false;
	memcpy(&c->algorithm, &known, sizeof known);
	return is_usable(b, c, &c->algorithm, &c->workspace);
}

static void choose_fastest(struct hspmd_cuda_blas *b, const struct hspmd_cuda_gemm *p, struct hspmd_cuda_gemm_choice *c)
{
	cublasLtMatmulHeuristicResult_t found[CANDIDATES_MOST];
	int count = ask_heuristics(b, &c->plan, HSPMD_CUDA_GEMM_WORKSPACE, found);
	bool known = known_choice(b, c);
	c->none = !count && !known;
	if (count && !known) {
		int best = b->tune ? fastest(b, &c->plan, p, found, count, &c->measured) : 0;
		c->algorithm = found[best].algo;
		c->workspace = found[best].workspaceSize;
	}
	c->workspace_most = c->workspace;
	for (int i = 0; b->tune && i < count; i++)
		c->workspace_most = found[i].workspaceSize > c->workspace_most ? found[i].workspaceSize : c->workspace_most;
}

/* The proposal that needs least. */
static int leanest(const cublasLtMatmulHeuristicResult_t *found, int count)
{
	int best = 0;
	for (int i = 1; i < count; i++)
		best = found[i].workspaceSize < found[best].workspaceSize ? i : best;
	return best;
}

/* Chooses what needs no more than c->room: c->base, or the first that cuBLASLt proposes, so that all devices of a kind choose alike,
 * whichever of them is short of memory. Nothing but cuBLASLt multiplies in FP8: there it is what needs least. c->workspace_most is enough
 * for either, for another base may be chosen (hspmd_cuda_blas_choose). */
static void choose_within(const struct hspmd_cuda_blas *b, struct hspmd_cuda_gemm_choice *c)
{
	cublasLtMatmulHeuristicResult_t found[CANDIDATES_MOST];
	const struct hspmd_cuda_gemm_choice *base = c->base;
	bool fits = !base->none && base->workspace <= c->room, may_not = !base->none && base->workspace_most > c->room;
	int count = may_not ? ask_heuristics(b, &c->plan, c->room, found) : 0, best = 0;
	if (may_not && !count && base->fp8) {
		count = ask_heuristics(b, &c->plan, HSPMD_CUDA_GEMM_WORKSPACE, found);
		best = leanest(found, count);
	}
	size_t instead = count ? found[best].workspaceSize : 0, most = base->workspace_most < c->room ? base->workspace_most : c->room;
	c->none = !fits && !count;
	c->algorithm = fits || !count ? base->algorithm : found[best].algo;
	c->workspace = fits ? base->workspace : instead;
	c->workspace_most = instead > most ? instead : most;
}

/* Without the lock: a step that trains meanwhile must not wait for measurements. */
static struct hspmd_cuda_gemm_choice *choose(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p,
                                             const struct hspmd_cuda_autotune_key *key, struct hspmd_error *err)
{
	struct hspmd_cuda_gemm whole = *p;
	whole.workspace_most = 0;
	const struct hspmd_cuda_gemm_choice *base = p->workspace_most ? find(cuda, &whole, err) : NULL;
	if (p->workspace_most && !base)
		return NULL;
	struct hspmd_cuda_gemm_choice *c = calloc(1, sizeof *c);
	if (!c) {
		hspmd_fail_memory(err, "choosing an algorithm");
		return NULL;
	}
	c->key = *key;
	c->fp8 = p->fp8;
	c->base = base;
	c->room = hspmd_workspace_within(HSPMD_CUDA_GEMM_WORKSPACE, p->workspace_most);
	if (make_plan(cuda, p, &c->plan, err)) {
		free(c);
		return NULL;
	}
	if (base)
		choose_within(cuda->blas, c);
	else
		choose_fastest(cuda->blas, p, c);
	return c;
}

/* The caller holds the lock. */
static struct hspmd_cuda_gemm_choice *look_up(const struct hspmd_cuda_blas *b, const struct hspmd_cuda_autotune_key *key)
{
	for (size_t i = 0; i < b->count; i++)
		if (!memcmp(&b->chosen[i]->key, key, sizeof *key))
			return b->chosen[i];
	return NULL;
}

/* Makes a choice known; returns the one that counts, which is another thread's if that was faster. */
static struct hspmd_cuda_gemm_choice *publish(struct hspmd_cuda_blas *b, struct hspmd_cuda_gemm_choice *c, struct hspmd_error *err)
{
	pthread_mutex_lock(&b->lock);
	struct hspmd_cuda_gemm_choice *first = look_up(b, &c->key);
	int full = first ? 0 : hspmd_array_grow(&b->chosen, &b->capacity, b->count, sizeof *b->chosen);
	if (!first && !full) {
		struct hspmd_cuda_autotune_entry entry;
		memcpy(&entry, &c->algorithm, sizeof entry);
		if (b->tune && !c->none && !c->base)
			hspmd_cuda_autotune_cache_add(b->choices, &c->key, &entry, c->measured);
		b->chosen[b->count++] = c;
	}
	pthread_mutex_unlock(&b->lock);
	if (!first && !full)
		return c;
	destroy_plan(&c->plan);
	free(c);
	if (full)
		hspmd_fail_memory(err, "choosing an algorithm");
	return first;
}

static const struct hspmd_cuda_gemm_choice *find(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, struct hspmd_error *err)
{
	struct hspmd_cuda_blas *b = cuda->blas;
	if (p->choice)
		return p->choice;
	struct hspmd_cuda_autotune_key key = key_of(b, p);
	pthread_mutex_lock(&b->lock);
	struct hspmd_cuda_gemm_choice *c = look_up(b, &key);
	pthread_mutex_unlock(&b->lock);
	if (!c && (c = choose(cuda, p, &key, err)))
		c = publish(b, c, err);
	return c;
}

size_t hspmd_cuda_gemm_workspace(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p)
{
	if (!p->m || !p->n || !p->k)
		return 0;
	const struct hspmd_cuda_gemm_choice *c = find(cuda, p, NULL);
	return c ? c->workspace_most : 0;
}

int hspmd_cuda_gemm_prepare(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, const void **choice, struct hspmd_error *err)
{
	bool empty = !p->m || !p->n || !p->k;
	*choice = empty ? NULL : find(cuda, p, err);
	return *choice || empty ? 0 : -1;
}

bool hspmd_cuda_gemm_exists(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p)
{
	const struct hspmd_cuda_gemm_choice *c = p->m && p->n && p->k ? find(cuda, p, NULL) : NULL;
	return c && !c->none;
}

int hspmd_cuda_gemm_run(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, void *workspace, size_t workspace_bytes,
                        struct hspmd_error *err)
{
	if (!p->m || !p->n)
		return 0;
	if (!p->k)
		return hspmd_fail(err, "a matrix product over no elements");
	const struct hspmd_cuda_gemm_choice *c = find(cuda, p, err);
	if (!c)
		return -1;
	if (c->none && p->fp8)
		return hspmd_fail(err, "cuBLASLt has no algorithm for a product of FP8 operands");
	if (c->none && p->epilogue != HSPMD_EPILOGUE_NONE)
		return hspmd_fail(err, "cuBLASLt has no algorithm for what follows a product");
	if (c->none)
		return hspmd_cuda_gemm_fallback(cuda, p, err);
	if (c->workspace > workspace_bytes)
		return hspmd_fail(err, "a product was given %zu bytes of workspace and needs %zu", workspace_bytes, c->workspace);
	cublasStatus_t status = run_plan(cuda->blas, &c->plan, p, &c->algorithm, workspace, c->workspace, cuda->stream);
	return status ? failed(status, "a matrix product", err) : 0;
}

/* ---- products beside other operators */

bool hspmd_cuda_gemm_is_tuned(const struct hspmd_cuda *cuda)
{
	return cuda->blas->tune;
}

static struct hspmd_cuda_autotune_key key_beside(const struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int64_t bytes)
{
	struct hspmd_cuda_gemm q = *p;
	q.left = LEFT_MOST;
	q.workspace_most = 0;
	struct hspmd_cuda_autotune_key key = key_of(cuda->blas, &q);
	key.k |= (bytes >> 20) << 32;
	return key;
}

bool hspmd_cuda_gemm_known_beside(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int64_t bytes, int *left)
{
	struct hspmd_cuda_blas *b = cuda->blas;
	struct hspmd_cuda_autotune_key key = key_beside(cuda, p, bytes);
	struct hspmd_cuda_autotune_entry known;
	pthread_mutex_lock(&b->lock);
	bool found = b->tune && hspmd_cuda_autotune_cache_find(b->choices, &key, &known) && known.word[0] < (uint64_t)cuda->multiprocessors;
	pthread_mutex_unlock(&b->lock);
	*left = found ? (int)known.word[0] : 0;
	return found;
}

void hspmd_cuda_gemm_remember_beside(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int64_t bytes, int left, bool measured)
{
	struct hspmd_cuda_blas *b = cuda->blas;
	struct hspmd_cuda_autotune_key key = key_beside(cuda, p, bytes);
	pthread_mutex_lock(&b->lock);
	if (b->tune)
		hspmd_cuda_autotune_cache_add(b->choices, &key, &(struct hspmd_cuda_autotune_entry){ { (uint64_t)left } }, measured);
	pthread_mutex_unlock(&b->lock);
}

/* ---- choices that are made elsewhere */

char *hspmd_cuda_blas_choices(struct hspmd_cuda *cuda)
{
	struct hspmd_cuda_blas *b = cuda->blas;
	pthread_mutex_lock(&b->lock);
	char *text = hspmd_cuda_autotune_cache_text(b->choices);
	pthread_mutex_unlock(&b->lock);
	return text;
}

int hspmd_cuda_blas_choose(struct hspmd_cuda *cuda, const char *choices)
{
	struct hspmd_cuda_blas *b = cuda->blas;
	pthread_mutex_lock(&b->lock);
	int rv = hspmd_cuda_autotune_cache_learn(b->choices, choices);
	for (size_t i = 0; i < b->count && b->tune; i++) {
		struct hspmd_cuda_gemm_choice *c = b->chosen[i];
		struct hspmd_cuda_autotune_entry entry;
		cublasLtMatmulAlgo_t algorithm;
		size_t workspace;
		if (c->base)
			choose_within(b, c); /* behind its base */
		if (c->base || c->none || !hspmd_cuda_autotune_cache_find(b->choices, &c->key, &entry))
			continue;
		memcpy(&algorithm, &entry, sizeof algorithm);
		if (!memcmp(&algorithm, &c->algorithm, sizeof algorithm) || !is_usable(b, c, &algorithm, &workspace) ||
		    workspace > c->workspace_most)
			continue;
		c->algorithm = algorithm;
		c->workspace = workspace;
	}
	pthread_mutex_unlock(&b->lock);
	return rv;
}
