/* SPDX-License-Identifier: Apache-2.0 */
/* The graphs of attention that cuDNN receives, tested without a GPU: cuDNN makes plans, compiled kernels and all, for GPUs given by a
 * description, with a driver that runs nothing (tests/gpu/emulate/driver.c). Every attention of the benchmarks' models, and odd ones, must
 * have at least one plan within the allowed workspace. Skipped if cuDNN is missing or too old. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/device/cuda/dnn.h"
#include "tests/unit/draw.h"

#define MOST 4
#define WORKSPACE_MOST ((size_t)256 << 20)

static const struct gpu {
	const char *name;
	int version, multiprocessors, cache, shared;
} gpus[] = {
	{ "NVIDIA H200", 900, 132, 62914560, 232448 },
	{ "NVIDIA A100-SXM4-80GB", 800, 108, 41943040, 166912 },
};

/* The shapes of single calls: the heads' gradients are computed in parts (attention_dnn.c), one call each. */
static const struct shape {
	const char *name;
	int64_t batches, queries, keys, heads, kv_heads, head_dim, shift, window, part_samples, part_kv;
	bool packed;
} shapes[] = {
	{ "GPT-2 124M", 32, 1024, 1024, 12, 12, 64, 0, 0, 8, 12, true },
	{ "Llama 160M", 16, 2048, 2048, 12, 12, 64, 0, 0, 1, 12, false },
	{ "Llama 1B", 4, 4096, 4096, 32, 8, 64, 0, 0, 1, 1, false },
	{ "Llama 7B", 2, 4096, 4096, 32, 32, 128, 0, 0, 1, 4, false },
	{ "GPT-2 1.5B", 8, 1024, 1024, 25, 25, 64, 0, 0, 4, 25, true },
	{ "odd lengths", 1, 1000, 1000, 4, 2, 64, 0, 0, 1, 2, false },
	{ "odd heads", 2, 333, 333, 6, 6, 40, 0, 0, 2, 6, true },
	{ "a window", 2, 4096, 4096, 8, 8, 128, 0, 512, 1, 4, false },
	{ "the second half of the queries", 1, 512, 1024, 8, 8, 64, 512, 0, 1, 8, false },
	{ "some of the queries and a window", 1, 256, 1024, 8, 8, 64, 256, 300, 1, 8, false },
	{ "a short one", 3, 16, 16, 4, 2, 16, 0, 0, 3, 2, false },
};

static int open_for(const struct gpu *g, struct hspmd_dnn **dnn, struct hspmd_error *err)
{
	char properties[2048];
	snprintf(properties, sizeof properties,
	         "{\"deviceVer\":%d,\"deviceName\":\"%s\",\"multiProcessorCount\":%d,\"l2CacheSize\":%d,\"maxSharedMemoryPerBlockOptin\":%"
	         "d,\"maxSharedMemoryPerBlock\":49152,"
	         "\"reservedSharedMemoryPerBlock\":1024,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
	         "\"regsPerBlock\":65536,"
	         "\"maxRegistersPerSM\":65536,\"warpSize\":32,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
	         "\"smClockRateKHz\":1980000,"
	         "\"memClockRateKHz\":2619000,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"driverVer\":13000,"
	         "\"cudaDeviceId\":0,\"totalGlobalMem\":85000000000}",
	         g->version, g->name, g->multiprocessors, g->cache, g->shared);
	return hspmd_dnn_open_described(dnn, properties, err);
}

static struct hspmd_dnn *must_open(const struct gpu *g)
{
	struct hspmd_error err = { "" };
	struct hspmd_dnn *dnn;
	if (open_for(g, &dnn, &err))
		fail_msg("%s: %s", g->name, err.text);
	return dnn;
}

static struct hspmd_dnn_attention describe(const struct shape *s, bool backward)
{
	struct hspmd_dnn_attention a;
	int64_t width = s->heads * s->head_dim, kv_width = s->kv_heads * s->head_dim, fold = s->packed ? 3 : 1,
	        group = s->heads / s->kv_heads;
	memset(&a, 0, sizeof a);
	a.batches = backward ? s->part_samples : s->batches;
	a.kv_heads = backward ? s->part_kv : s->kv_heads;
	a.heads = a.kv_heads * group;
	a.queries = s->queries;
	a.keys = s->keys;
	a.head_dim = s->head_dim;
	a.shift = s->shift;
	a.window = s->window;
	a.q = (struct hspmd_dnn_rows){ s->keys * fold * width, fold * width };
	a.k = a.v = (struct hspmd_dnn_rows){ s->keys * fold * kv_width, fold * kv_width };
	a.o = (struct hspmd_dnn_rows){ s->queries * width, width };
	a.scale = 0.125;
	a.backward = backward;
	return a;
}

/* One graph costs a second of processor time: without HSPMD_LONG a part of them is drawn. */
static void plans_are_made(void **state)
{
	(void)state;
	struct hspmd_dnn *dnn[sizeof gpus / sizeof *gpus] = { NULL };
	const unsigned kinds = sizeof gpus / sizeof *gpus, all = 2 * kinds * sizeof shapes / sizeof *shapes, count = draw_count(6, all),
	               first = draw_first(count, all);
	for (unsigned i = first; i < first + count; i++) {
		const struct gpu *gpu = &gpus[i % kinds];
		const struct shape *s = &shapes[i / kinds / 2];
		bool backward = i / kinds % 2;
		struct hspmd_dnn_attention a = describe(s, backward);
		struct hspmd_dnn_plan *plans[MOST];
		struct hspmd_error err = { "" };
		if (!dnn[i % kinds])
			dnn[i % kinds] = must_open(gpu);
		int found = hspmd_dnn_find_plans(dnn[i % kinds], &a, WORKSPACE_MOST, plans, i / kinds < 10 ? MOST : 1, &err);
		if (found < 1)
			fail_msg("%s, %s of %s: %s", gpu->name, backward ? "gradient" : "attention", s->name, err.text);
		for (int n = 0; n < found; n++) {
			assert_true(hspmd_dnn_plan_workspace(plans[n]) <= WORKSPACE_MOST);
			/* The workspace contains at least the sums of rows. */
			assert_true(!a.backward || hspmd_dnn_plan_workspace(plans[n]) >= (size_t)(a.batches * a.heads * a.queries * 4));
			hspmd_dnn_plan_destroy(plans[n]);
		}
	}
	for (unsigned g = 0; g < kinds; g++)
		hspmd_dnn_close(dnn[g]);
}

/* If sums may have any order, the gradients of scores need not be in memory: the whole gradient of a large model is one call. */
static void any_order_needs_no_parts(void **state)
{
	(void)state;
	struct hspmd_dnn *dnn = must_open(&gpus[0]);
	for (int s = 1; s < 4; s += 2) {
		struct hspmd_dnn_attention a = describe(&shapes[s], true);
		struct hspmd_dnn_plan *plan;
		struct hspmd_error err = { "" };
		a.batches = shapes[s].batches;
		a.kv_heads = shapes[s].kv_heads;
		a.heads = shapes[s].heads;
		a.any_order = 1;
		if (hspmd_dnn_find_plans(dnn, &a, WORKSPACE_MOST, &plan, 1, &err) != 1)
			fail_msg("gradient of %s in any order: %s", shapes[s].name, err.text);
		assert_true(hspmd_dnn_plan_workspace(plan) <= WORKSPACE_MOST);
		hspmd_dnn_plan_destroy(plan);
	}
	hspmd_dnn_close(dnn);
}

/* The whole gradient of a large model's attention would need more workspace than is allowed. */
static void workspace_is_limited(void **state)
{
	(void)state;
	struct hspmd_dnn *dnn = must_open(&gpus[0]);
	struct hspmd_dnn_attention a = describe(&shapes[2], true);
	struct hspmd_dnn_plan *plan;
	struct hspmd_error err = { "" };
	a.batches = shapes[2].batches;
	a.kv_heads = shapes[2].kv_heads;
	a.heads = shapes[2].heads;
	assert_int_equal(hspmd_dnn_find_plans(dnn, &a, WORKSPACE_MOST, &plan, 1, &err), 0);
	assert_non_null(strstr(err.text, "workspace"));
	hspmd_dnn_close(dnn);
}

/* An attention that no engine supports is refused with a message, not computed in another way. */
static void others_are_refused(void **state)
{
	(void)state;
	struct hspmd_dnn *dnn = must_open(&gpus[0]);
	struct hspmd_dnn_attention a = describe(&shapes[0], false);
	struct hspmd_dnn_plan *plan;
	struct hspmd_error err = { "" };
	a.head_dim = 61; /* rows that do not begin on multiples of 16 bytes */
	a.q.row = a.k.row = a.v.row = a.o.row = a.heads * a.head_dim;
	a.q.batch = a.k.batch = a.v.batch = a.o.batch = a.queries * a.q.row;
	assert_int_equal(hspmd_dnn_find_plans(dnn, &a, WORKSPACE_MOST, &plan, 1, &err), 0);
	assert_true(*err.text);
	hspmd_dnn_close(dnn);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(plans_are_made), cmocka_unit_test(any_order_needs_no_parts),
		                            cmocka_unit_test(workspace_is_limited), cmocka_unit_test(others_are_refused) };
	const char *build = getenv("builddir");
	char path[4096];
	snprintf(path, sizeof path, "%s/hspmd-driver-emulated.so", build ? build : ".");
	if (!access(CUDA_DIR "/lib/libcudnn.so.9", R_OK))
		setenv("HSPMD_CUDNN", CUDA_DIR "/lib/libcudnn.so.9", 0);
	if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) && !dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
		printf("skipped: neither a driver nor one that is played (%s)\n", dlerror());
		return 77;
	}
	struct hspmd_error err = { "" };
	struct hspmd_dnn *dnn;
	if (open_for(&gpus[0], &dnn, &err)) {
		printf("skipped: %s\n", err.text);
		return 77;
	}
	hspmd_dnn_close(dnn);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
