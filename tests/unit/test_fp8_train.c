/* SPDX-License-Identifier: Apache-2.0 */
/* Training with products of FP8 operands, on the CPU device, which rounds as GPUs do. The scales do not depend on the plan: after a step
 * the amax histories of every plan have the same bits. Losses follow those in fp32 as closely as those in bf16 do, and those of plans are
 * as close to one another; a plan that computes the same sums gives the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>

#include "common/alloc.h"
#include "runtime/device/device.h"
#include "runtime/exec/execute.h"
#include "runtime/program/program.h"
#include "runtime/tensor/fp8.h"
#include "tests/pretend/pretend.h"
#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/trainer.h"

#define STEPS 40
#define BOUND 5e-3 /* of plans, relative, as for BF16 in tests/gpu/test_cuda_train.c. Here: 1.4e-3 at most */
#define MOST_HISTORIES 64
#define HEAD                                                                                                                               \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"         \
	"\"pipelines\":"
#define ZERO(stage)                                                                                                                        \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":" #stage    \
	","                                                                                                                                \
	"\"pipelines\":[{\"micro_batches\":2,\"micro_batch\":3,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"]}]},"                  \
	"{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:2\"]}]}]}"

/* trainer_mixtral with as many layers as the others. */
static const char mixtral[] = "{\"model_type\":\"mixtral\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
                              "\"num_key_value_heads\":4,\"intermediate_size\":20,\"max_position_embeddings\":64,\"vocab_size\":256,"
                              "\"num_local_experts\":4,\"num_experts_per_tok\":2}";

static const char one[] = HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]}]}";

static const struct plan {
	const char *name, *text;
	int devices;
	bool same; /* sums as `one` does */
} plans[] = {
	{ "4 stages",
	  HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,1],\"devices\":[\"n:0\"]},{\"layers\":[1,3],\"devices\":[\"n:1\"]},"
	       "{\"layers\":[3,4],\"devices\":[\"n:2\"]},{\"layers\":[4,5],\"devices\":[\"n:3\"]}]}]}",
	  4, false },
	{ "recomputation", HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"],\"recompute\":\"full\"}]}]}", 1,
	  true },
	{ "micro-batches of 4",
	  "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":4,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"
	  "\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]}]}",
	  1, false },
	{ "data parallel",
	  HEAD "[{\"micro_batches\":5,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]},{\"micro_batches\":3,\"stages\":[{\"layers\":"
	       "[0,5],\"devices\":[\"n:1\"]}]}]}",
	  2, false },
	{ "tensor parallel", HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"]}]}]}", 2, false },
	{ "tensor parallel, unequal, sequence too",
	  HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"],\"shard_ratio\":[0.7,0.3],"
	       "\"sequence_parallel\":true}]}]}",
	  2, false },
	{ "context parallel", HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"],\"context\":2}]}]}", 2,
	  false },
	{ "pipelines of unequal widths, ZeRO-1", ZERO(1), 3, false },
	{ "pipelines of unequal widths, ZeRO-2", ZERO(2), 3, false },
	{ "pipelines of unequal widths, ZeRO-3", ZERO(3), 3, false },
	{ "gradients of weights apart",
	  "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"zb-h1\",\"zero_stage\":1,"
	  "\"pipelines\":[{\"micro_batches\":6,\"stages\":[{\"layers\":[0,1],\"devices\":[\"n:0\"]},{\"layers\":[1,3],"
	  "\"devices\":[\"n:1-2\"]},{\"layers\":[3,5],\"devices\":[\"n:3\"]}]},{\"micro_batches\":2,\"stages\":["
	  "{\"layers\":[0,5],\"devices\":[\"n:4\"]}]}]}",
	  5, false },
};
#define PLANS (sizeof plans / sizeof *plans)

/* The amax histories of a training, put together from all devices' parts. */
struct histories {
	int count;
	struct {
		char *name;
		int rows;
		float values[HSPMD_EXPERTS_OPERANDS * HSPMD_AMAX_BINS];
		bool seen[HSPMD_EXPERTS_OPERANDS * HSPMD_AMAX_BINS];
	} of[MOST_HISTORIES];
};

static int put_together(struct histories *h, const struct hspmd_program *p, const struct hspmd_executor *executor,
                        struct hspmd_device *device, struct hspmd_error *err)
{
	int number = 0;
	for (int i = 0; i < p->state_count; i++) {
		const struct hspmd_program_state *s = &p->states[i];
		if (!p->graph->tensors[s->tensor].history)
			continue;
		int at = number++;
		if (at >= MOST_HISTORIES)
			return hspmd_fail(err, "more histories than expected");
		h->count = number > h->count ? number : h->count;
		if (!h->of[at].name)
			h->of[at].name = strdup(s->name);
		h->of[at].rows = (int)p->graph->tensors[s->tensor].shape.dim[0];
		if (s->param < 0)
			continue;
		float values[HSPMD_EXPERTS_OPERANDS * HSPMD_AMAX_BINS];
		const struct hspmd_box *box = &s->shard.box;
		int64_t count = hspmd_box_elements(box), width = box->hi[1] - box->lo[1];
		if (device->ops->to_host(device, values, hspmd_executor_slot_data(executor, s->param), (size_t)count * sizeof *values, err))
			return -1;
		for (int64_t k = 0; k < count; k++) {
			int64_t to = (box->lo[0] + k / width) * HSPMD_AMAX_BINS + box->lo[1] + k % width;
			if (h->of[at].seen[to] && h->of[at].values[to] != values[k])
				return hspmd_fail(err, "%s: copies differ", s->name);
			h->of[at].values[to] = values[k];
			h->of[at].seen[to] = true;
		}
	}
	return 0;
}

/* Every device's thread calls this. */
static int take(void *context, const struct hspmd_program *p, const struct hspmd_executor *executor, struct hspmd_device *device,
                struct hspmd_error *err)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&lock);
	int status = put_together(context, p, executor, device, err);
	pthread_mutex_unlock(&lock);
	return status;
}

static void forget(struct histories *h)
{
	for (int i = 0; i < h->count; i++)
		free(h->of[i].name);
	memset(h, 0, sizeof *h);
}

static void train(const struct trainer_options *how, const char *plan, int devices, int steps, double *losses, struct histories *h)
{
	struct hspmd_error err = { "" };
	struct trainer_options o = *how;
	o.plan = plan;
	o.devices = devices;
	o.steps = steps;
	o.on_end = h ? take : NULL;
	o.context = h;
	if (trainer_train(&o, losses, &err))
		fail_msg("%s", err.text);
}

static double worst(const double *a, const double *b, int steps)
{
	double most = 0;
	for (int s = 0; s < steps; s++)
		most = fmax(most, fabs(a[s] - b[s]) / fabs(b[s]));
	return most;
}

/* One step: all operands were the same but for the order of sums. */
static void scales_of_all_plans(void **state)
{
	(void)state;
	static struct histories want, got;
	const char *const models[] = { trainer_gpt2, trainer_llama, mixtral };
	const int counts[] = { 3 * 4 * 2, 3 * 7 * 2, 3 * (4 * 2 + 1) };
	for (int m = 0; m < 3; m++) {
		double losses[1];
		const struct trainer_options o = { .model = models[m], .fp8 = true };
		train(&o, one, 1, 1, losses, &want);
		assert_int_equal(want.count, counts[m]);
		for (int i = 0; i < want.count; i++)
			for (int row = 0; row < want.of[i].rows; row++)
				assert_true(want.of[i].values[row * HSPMD_AMAX_BINS] == HSPMD_AMAX_WINDOW); /* it was not all 0 */
		for (size_t k = 0; k < PLANS; k++) {
			double own[1];
			train(&o, plans[k].text, plans[k].devices, 1, own, &got);
			assert_int_equal(got.count, want.count);
			for (int i = 0; i < want.count; i++)
				if (strcmp(got.of[i].name, want.of[i].name) != 0 ||
				    memcmp(got.of[i].values, want.of[i].values, sizeof want.of[i].values) != 0)
					fail_msg("%s: the history %s is another one", plans[k].name, got.of[i].name);
			if (plans[k].same)
				assert_memory_equal(own, losses, sizeof own);
			forget(&got);
		}
		forget(&want);
	}
}

static void losses_of_all_plans(void **state)
{
	(void)state;
	static double want[STEPS], got[STEPS], again[STEPS];
	const char *const models[] = { trainer_gpt2, mixtral };
	const unsigned twice = draw_count(3, PLANS), first = draw_first(twice, PLANS);
	const int steps = draw_count(1, 2) == 2 ? STEPS : STEPS / 2;
	for (int m = 0; m < 2; m++) {
		const struct trainer_options o = { .model = models[m], .fp8 = true };
		train(&o, one, 1, steps, want, NULL);
		for (size_t k = 0; k < PLANS; k++) {
			train(&o, plans[k].text, plans[k].devices, steps, got, NULL);
			printf("%s: losses differ by %.2g\n", plans[k].name, worst(got, want, steps));
			if (!(worst(got, want, 1) < 1e-7 && worst(got, want, steps) < BOUND))
				fail_msg("%s: losses differ by %g at first, by %g at most", plans[k].name, worst(got, want, 1),
				         worst(got, want, steps));
			if (plans[k].same)
				assert_memory_equal(got, want, (size_t)steps * sizeof *got);
			if (k < first || k >= first + twice)
				continue;
			train(&o, plans[k].text, plans[k].devices, steps, again, NULL);
			assert_memory_equal(got, again, (size_t)steps * sizeof *got);
		}
	}
}

/* ---- beside bf16 */

#define MOST_STEPS 120
#define LAST 20 /* steps whose mean is the final loss */
#define MOST_SEEDS 6

/* Device 0 is a share of the CPU, device 1 computes in bf16, devices 2 and 3 in bf16 and fp8. */
static const char cluster[] = "{\"format\":\"hspmd-cluster-1\",\"device_types\":{"
                              "\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}},"
                              "\"p\":{\"kind\":\"pretend\",\"memory_bytes\":200000000,\"gbytes_per_s\":100,"
                              "\"peak_tflops\":{\"fp32\":0.1,\"bf16\":0.2}},"
                              "\"q\":{\"kind\":\"pretend8\",\"memory_bytes\":200000000,\"gbytes_per_s\":100,"
                              "\"peak_tflops\":{\"fp32\":0.1,\"bf16\":0.2,\"fp8\":0.4}},"
                              "\"r\":{\"kind\":\"anew8\",\"memory_bytes\":200000000,\"gbytes_per_s\":100,"
                              "\"peak_tflops\":{\"fp32\":0.1,\"bf16\":0.2,\"fp8\":0.4}}},"
                              "\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":1},{\"type\":\"p\",\"count\":1},"
                              "{\"type\":\"q\",\"count\":1},{\"type\":\"r\",\"count\":1}]}],"
                              "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-3,\"gbytes_per_s\":0.1}]}";
#define ON(device) HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:" #device "\"]}]}]}"

/* The final loss, and in losses[0] the first one. */
static double final_loss(const struct trainer_options *o, const char *plan, int steps, double *losses)
{
	double sum = 0;
	train(o, plan, 4, steps, losses, NULL);
	for (int s = steps - LAST; s < steps; s++)
		sum += losses[s];
	return sum / LAST;
}

/* How the seed changes the final loss in bf16 is its spread: in fp8 it differs from fp32 by less than half of that. */
static void compare_final(const char *model, int seeds, int steps)
{
	static double losses[MOST_STEPS];
	double fp32[MOST_SEEDS], bf16[MOST_SEEDS], least = INFINITY, most = 0;
	struct trainer_options o = { .model = model, .cluster = cluster };
	for (int k = 0; k < seeds; k++) {
		o.seed = k + 1;
		o.bf16 = false;
		fp32[k] = final_loss(&o, ON(0), steps, losses);
		assert_true(fp32[k] < 0.5 * losses[0]); /* it learns */
		o.bf16 = true;
		bf16[k] = final_loss(&o, ON(1), steps, losses);
		least = fmin(least, bf16[k]);
		most = fmax(most, bf16[k]);
	}
	o.bf16 = false;
	o.fp8 = true;
	for (int k = 0; k < seeds; k++) {
		o.seed = k + 1;
		double fp8 = final_loss(&o, ON(0), steps, losses), both = final_loss(&o, ON(2), steps, losses);
		printf("seed %d, %d steps: %.4f in fp32; bf16 %+.2f %%, fp8 %+.2f %%, fp8 with elements in bf16 %+.2f %%\n", o.seed, steps,
		       fp32[k], 100 * (bf16[k] / fp32[k] - 1), 100 * (fp8 / fp32[k] - 1), 100 * (both / fp32[k] - 1));
		assert_true(fabs(fp8 - fp32[k]) < (most - least) / 2 && fp8 != fp32[k]);
		assert_true(fabs(both - fp32[k]) < (most - least) / 2 && both != fp8);
	}
	printf("of seeds in bf16: %.4f to %.4f, %.2f %%\n", least, most, 100 * (most / least - 1));
}

static void beside_bf16(void **state)
{
	(void)state;
	const char *const models[] = { trainer_llama, mixtral, trainer_gpt2 };
	bool all = getenv("HSPMD_LONG") != NULL;
	const unsigned first = all ? 0 : draw_first(1, 2);
	for (unsigned m = first; m < (all ? 3 : first + 1); m++)
		compare_final(models[m], all ? MOST_SEEDS : 4, all ? MOST_STEPS : 80);
}

/* ---- operands that several products read */

static int repeated;
static struct hspmd_device_ops anew;

/* As if no call found anything of the one before. */
static int run_anew(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_kernel_args own = *args;
	repeated += args->repeats_first;
	own.repeats_first = false;
	return pretend_ops.run(dev, op, &own, err);
}

static int open_anew(struct hspmd_device **dev, int index, int threads, struct hspmd_error *err)
{
	int status = pretend_ops.open(dev, index, threads, err);
	if (!status)
		(*dev)->ops = &anew;
	return status;
}

/* Keys, values and up repeat an operand in each block, and the gradients of each product do. No bit depends on it. */
static void operands_are_rounded_once(void **state)
{
	(void)state;
	const struct trainer_options o = { .model = trainer_llama, .cluster = cluster, .fp8 = true, .bf16 = true };
	const int blocks = 3, micro_batches = 8, steps = 3;
	double losses[3], again[3];
	train(&o, ON(2), 4, steps, losses, NULL);
	repeated = 0;
	train(&o, ON(3), 4, steps, again, NULL);
	assert_memory_equal(losses, again, sizeof losses);
	assert_int_equal(repeated, (3 + 7) * blocks * micro_batches * steps);
}

static void refuses(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	double losses[1];
	const struct trainer_options o = {
		.model = trainer_gpt2, .cluster = cluster, .fp8 = true, .plan = ON(1), .devices = 4, .steps = 1
	};
	assert_int_equal(trainer_train(&o, losses, &err), -1);
	assert_non_null(strstr(err.text, "n:1, a pretend device, cannot compute in fp8"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(scales_of_all_plans),
		cmocka_unit_test(losses_of_all_plans),
		cmocka_unit_test(beside_bf16),
		cmocka_unit_test(operands_are_rounded_once),
		cmocka_unit_test(refuses),
	};
	static struct hspmd_device_ops ops;
	static struct hspmd_device_traits traits, anew_traits;
	ops = pretend_ops;
	traits = pretend_traits;
	ops.name = traits.name = "pretend8";
	traits.fp8 = true;
	anew = ops;
	anew_traits = traits;
	anew.name = anew_traits.name = "anew8";
	anew.open = open_anew;
	anew.run = run_anew;
	if (hspmd_device_add(&pretend_ops, &pretend_traits) < 0 || hspmd_device_add(&ops, &traits) < 0 ||
	    hspmd_device_add(&anew, &anew_traits) < 0)
		return 1;
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
