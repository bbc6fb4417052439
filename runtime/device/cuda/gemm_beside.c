/* SPDX-License-Identifier: Apache-2.0 */
/* How many multiprocessors a product leaves to operators that are bound by memory and run beside it (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET).
 *
 * A multiprocessor can move more bytes a cycle than all of them together are given by the memory, so a few do for such an operator. A
 * product goes over its result in rounds of one tile for each multiprocessor: of the numbers with which both together are expected to be
 * fastest, the largest that costs the product no further round. Whether they then are faster than one after the other is measured, with a
 * copy of as many bytes in the operator's place, where algorithms of products are (gemm.h), and remembered with these. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device/cuda/autotune_log.h"
#include "runtime/device/cuda/gemm_trial.h"

/* Of a multiprocessor in a cycle, on compute capability 9.0: operations of a product (in BF16, TF32 and F32), bytes that it moves if few
 * others do, and its share if all do. */
#define BF16_FLOPS 4096.0
#define TF32_FLOPS 2048.0
#define F32_FLOPS 256.0
#define FEW_BYTES 48.0
#define ALL_BYTES 20.0
#define FULL 0.9 /* of the tiles that its rounds could have */

#define TIMED_RUNS 5
#define ROOM_MOST ((size_t)128 << 20) /* of either side of the copy: more than caches hold */

static double rounds(double tiles, int multiprocessors)
{
	return ceil(tiles / multiprocessors);
}

/* How many times as long the product takes if it leaves so many. Where tiles of 128 x 256 do not fill their rounds, algorithms divide the
 * work otherwise, and in equal parts. */
static double slowed(const struct hspmd_cuda_gemm *p, int all, int left)
{
	double wide = ceil((double)p->m / 128) * ceil((double)p->n / 256), high = ceil((double)p->m / 256) * ceil((double)p->n / 128),
	       tiles = fmin(wide, high);
	if (tiles < FULL * all * rounds(tiles, all))
		return (double)all / (all - left);
	return rounds(tiles, all - left) / rounds(tiles, all);
}

/* By what is expected; 0: none. Blocks come in pairs. */
static int expect(const struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, double bytes)
{
	int all = cuda->multiprocessors, step = all >= 16 ? 2 : 1, best = 0;
	double rate = p->type == HSPMD_BF16 ? BF16_FLOPS
	              : p->tf32             ? TF32_FLOPS
	                                    : F32_FLOPS,
	       alone = 2.0 * (double)p->m * (double)p->n * (double)p->k / rate / all, best_time = alone + bytes / (ALL_BYTES * all);
	for (int left = step; left <= all / 2; left += step) {
		double product = alone * slowed(p, all, left), time = fmax(product, bytes / (FEW_BYTES * left));
		if (time < best_time || (best && time <= best_time)) {
			best = left;
			best_time = time;
		}
	}
	return best;
}

/* ---- measuring */

struct rehearsal {
	struct hspmd_cuda here; /* the device, with two streams of its own */
	struct hspmd_cuda_gemm p;
	struct hspmd_cuda_gemm_trial trial;
	void *from, *to;
	size_t room;
	int64_t bytes;
};

static int run_both(const void *what)
{
	const struct rehearsal *r = what;
	struct hspmd_cuda here = r->here, on = r->here;
	bool beside = r->p.left > 0;
	on.stream = beside ? here.apart : here.stream;
	if ((beside && hspmd_cuda_apart_fork(&here)) ||
	    hspmd_cuda_gemm_run(&on, &r->p, r->trial.workspace, HSPMD_CUDA_GEMM_WORKSPACE, NULL))
		return -1;
	hspmd_cuda_move_bytes(&here, r->to, r->from, r->room, r->bytes);
	return beside && hspmd_cuda_apart_join(&here) ? -1 : 0;
}

static bool start(struct rehearsal *r, const struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int64_t bytes)
{
	r->here = *cuda;
	r->here.apart = NULL;
	r->here.apart_fork = r->here.apart_done = NULL;
	r->bytes = bytes;
	r->room = bytes / 2 < (int64_t)ROOM_MOST ? (size_t)bytes / 2 + 16 : ROOM_MOST;
	if (!hspmd_cuda_gemm_trial_start(&r->trial, p))
		return false;
	r->here.stream = r->trial.watch.stream;
	return !hspmd_cuda_apart_create(&r->here) && !cudaMalloc(&r->from, r->room) && !cudaMalloc(&r->to, r->room) &&
	       !cudaMemsetAsync(r->from, 0x3c, r->room, r->here.stream);
}

static void end(struct rehearsal *r)
{
	cudaGetLastError(); /* it is no error that nothing can be measured */
	hspmd_cuda_apart_destroy(&r->here);
	cudaFree(r->from);
	cudaFree(r->to);
	hspmd_cuda_gemm_trial_end(&r->trial);
}

/* Returns true if it was measured; *faster: beside each other is faster. */
static bool measure(const struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int left, int64_t bytes, bool *faster)
{
	float took[2] = { -1, -1 };
	struct rehearsal *r = calloc(1, sizeof *r);
	if (!r)
		return false;
	bool started = start(r, cuda, p, bytes);
	for (int beside = 0; started && beside < 2; beside++) {
		r->p = hspmd_cuda_gemm_trial_product(&r->trial, p);
		r->p.left = beside ? left : 0;
		took[beside] = hspmd_cuda_autotune_timer_time(&r->trial.watch, TIMED_RUNS, run_both, r);
	}
	end(r);
	free(r);
	*faster = took[1] >= 0 && took[1] < took[0];
	if (hspmd_cuda_autotune_log_is_on() && started)
		hspmd_cuda_autotune_log("{\"product\": [%lld, %lld, %lld], \"bytes beside\": %lld, \"multiprocessors left\": %d, "
		                        "\"ms one after the other\": %.6g, \"ms beside\": %.6g}",
		                        (long long)p->m, (long long)p->n, (long long)p->k, (long long)bytes, left,
		                        (double)took[0] / TIMED_RUNS, (double)took[1] / TIMED_RUNS);
	return took[0] >= 0 && took[1] >= 0;
}

int hspmd_cuda_gemm_leave(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, int64_t bytes, int *other)
{
	const char *told = getenv("HSPMD_CUDA_PRODUCTS_BESIDE");
	bool faster = false;
	int left = told ? atoi(told) : 0, most = cuda->multiprocessors - 1;
	*other = 0;
	struct hspmd_cuda_gemm whole = *p; /* whatever workspace it is to have, it is decided alike */
	whole.workspace_most = 0;
	p = &whole;
	if (!hspmd_cuda_can_run_apart(cuda) || !hspmd_cuda_gemm_exists(cuda, p))
		return 0;
	if (told && strcmp(told, "auto") != 0)
		return *other = left < 0 ? 0 : left < most ? left : most;
	*other = expect(cuda, p, (double)bytes);
	if (!*other || !hspmd_cuda_gemm_is_tuned(cuda))
		return *other = 0;
	if (hspmd_cuda_gemm_known_beside(cuda, p, bytes, &left))
		return left ? *other : 0;
	bool measured = measure(cuda, p, *other, bytes, &faster);
	left = faster ? *other : 0;
	hspmd_cuda_gemm_remember_beside(cuda, p, bytes, left, measured);
	return left;
}
