/* SPDX-License-Identifier: Apache-2.0 */
/* What operators need of a GPU's memory while they run, as the solver predicts it and as the device says when a program is built for it:
 * gradients of attention by kernels for compute capability 9.0 and by cuDNN, and products of which one of cuBLASLt's algorithms needs all
 * that it may have. Nothing runs, so the models are large; and nothing is measured, for the device has no memory for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/solver/cost/costs.h"
#include "runtime/program/program.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/solver_inputs.h"

#define CLOSE 0.01
#define OTHERS 1e6                                     /* bytes that small operators may take instead */
#define MANDATORY 8e6                                  /* most of what operators cannot do without: sums of norms, column by column */
#define PRODUCTS (2 * (double)HSPMD_PRODUCT_WORKSPACE) /* of products, and of those beside other operators */

#define LLAMA(heads, kv_heads, width)                                                                                                      \
	"{\"model_type\":\"llama\",\"hidden_size\":" #width ",\"intermediate_size\":4096,\"num_hidden_layers\":2,"                         \
	"\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv_heads                                                            \
	",\"max_position_embeddings\":8192,\"vocab_size\":256,\"tie_word_embeddings\":false,\"rms_norm_eps\":1e-5}"

static const struct scene {
	const char *name, *model, *devices, *more; /* of the stage */
	int seq_len, samples;
	/* What is computed by: kernels for 9.0, and cuDNN. */
	bool wgmma, dnn;
} scenes[] = {
	{ "GPT-2",
	  "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":2,\"n_head\":12,\"n_positions\":1024,\"vocab_size\":256,"
	  "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}",
	  "0", "", 1024, 8, true, true },
	{ "all gradients of scores at a time", LLAMA(32, 8, 4096), "0", "", 4096, 2, true, true },
	{ "parts of samples", LLAMA(32, 8, 4096), "0", "", 4096, 8, true, true },
	{ "parts of heads", LLAMA(32, 32, 4096), "0", "", 8192, 3, true, true },
	{ "tensor parallelism", LLAMA(32, 8, 4096), "0-1", "", 4096, 4, true, true },
	{ "unequal shares", LLAMA(32, 8, 4096), "0-1", ",\"shard_ratio\":[3,1],\"sequence_parallel\":true", 4096, 4, true, true },
	{ "context parallelism", LLAMA(32, 8, 4096), "0-1", ",\"context\":2", 4096, 4, true, true },
	{ "an odd length", LLAMA(32, 8, 4096), "0", "", 2000, 4, true, false },
	{ "other heads", LLAMA(32, 8, 3072), "0", "", 2048, 4, false, false },
};

static struct hspmd_cluster *cluster_with(const char *capability)
{
	char text[512];
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"cuda\",\"memory_bytes\":80000000000,%s"
	         "\"gbytes_per_s\":3000,\"peak_tflops\":{\"fp32\":60,\"bf16\":900}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":"
	         "\"d\",\"count\":4}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-5,\"gbytes_per_s\":100}]}",
	         capability);
	return cluster_from(text);
}

/* The workspace of device 0, as its program has it and as it is predicted. most: workspace_most of the job; 0: none. */
static void find_workspaces(struct hspmd_device *dev, const struct scene *s, const char *capability, uint32_t most, double *there,
                            double *predicted)
{
	struct hspmd_error err = { "" };
	char text[1024], choices[64] = "";
	struct hspmd_cluster *c = cluster_with(capability);
	struct hspmd_model *m = model_from(s->model);
	struct hspmd_model_facts *f = facts_of(m, s->seq_len);
	if (most)
		snprintf(choices, sizeof choices, "\"choices\":[\"least workspace = %u\"],", (unsigned)most);
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":%d,\"seq_len\":%d,\"schedule\":\"1f1b\",%s\"pipelines\":"
	         "[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:%s\"]%s}]}]}",
	         s->samples, s->samples, s->seq_len, choices, s->devices, s->more);
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, hspmd_model_layers(m), &err);
	struct hspmd_graph_source source = hspmd_graph_source_model(m);
	source.precision = HSPMD_PRECISION_BF16;
	struct hspmd_program *program = p ? hspmd_program_build(&source, p, c, 0, dev, &err) : NULL;
	struct hspmd_costs *costs = program ? hspmd_costs_of_plan(c, f, NULL, HSPMD_PRECISION_BF16, p, &err) : NULL;
	if (!costs)
		fail_msg("%s: %s", s->name, err.text);
	const struct hspmd_layer_copies copies = hspmd_costs_copies(costs, p, 0, 0);
	*there = (double)hspmd_program_workspace(program);
	*predicted = hspmd_costs_memory(costs, &p->pipelines[0].stages[0], 0, s->samples, false, &copies).workspace;
	hspmd_costs_destroy(costs);
	hspmd_program_destroy(program);
	hspmd_plan_destroy(p);
	json_decref(value);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
	hspmd_cluster_destroy(c);
}

static struct hspmd_device *open_with(const char *wgmma, const char *dnn)
{
	setenv("HSPMD_CUDA_TUNE", "1", 1); /* room for whatever may be chosen */
	setenv("HSPMD_CUDA_CACHE", "", 1);
	setenv("HSPMD_EMULATE_MEMORY", "0", 1);
	char most[32];
	snprintf(most, sizeof most, "%d", HSPMD_PRODUCT_WORKSPACE);
	setenv("HSPMD_EMULATE_PRODUCT_WORKSPACE", most, 1);
	setenv("HSPMD_EMULATE_MULTIPROCESSORS", "132", 1);
	setenv("HSPMD_CUDA_WGMMA", wgmma, 1);
	setenv("HSPMD_CUDNN", dnn, 1);
	return gpu_open();
}

/* cuDNN might take more, so that more is predicted; never less. */
static void own_kernels_need_what_is_predicted(void **state)
{
	(void)state;
	struct hspmd_device *dev = open_with("1", "");
	for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
		const struct scene *s = &scenes[i];
		double there, predicted;
		find_workspaces(dev, s, "\"compute_capability\":9.0,", 0, &there, &predicted);
		printf("%s: %.1f MB, predicted %.1f MB\n", s->name, there / 1e6, predicted / 1e6);
		if (s->wgmma && !(predicted >= there / (1 + CLOSE) && predicted <= fmax(there * (1 + CLOSE), PRODUCTS / 2 + (256 << 20))))
			fail_msg("%s: predicted %.1f MB, the device needs %.1f MB", s->name, predicted / 1e6, there / 1e6);
		if (!s->wgmma && !(fabs(predicted - PRODUCTS) < OTHERS && fabs(there - PRODUCTS) < OTHERS))
			fail_msg("%s: predicted %.1f MB, the device needs %.1f MB", s->name, predicted / 1e6, there / 1e6);
	}
	dev->ops->close(dev);
}

static void cudnn_needs_what_is_predicted(void **state)
{
	(void)state;
	struct hspmd_device *dev = open_with("0", "played");
	for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
		const struct scene *s = &scenes[i];
		double there, predicted;
		find_workspaces(dev, s, "", 0, &there, &predicted);
		printf("%s: %.1f MB, predicted %.1f MB\n", s->name, there / 1e6, predicted / 1e6);
		double products = PRODUCTS / 2, attention = there - products; /* beside which products have their own */
		if (s->dnn && !(predicted >= there && predicted <= products + 4.0 / 3 * attention * (1 + CLOSE) && predicted > PRODUCTS))
			fail_msg("%s: predicted %.1f MB, the device needs %.1f MB", s->name, predicted / 1e6, there / 1e6);
		if (!s->dnn && !(fabs(predicted - PRODUCTS) < OTHERS && fabs(there - PRODUCTS) < OTHERS))
			fail_msg("%s: predicted %.1f MB, the device needs %.1f MB", s->name, predicted / 1e6, there / 1e6);
	}
	dev->ops->close(dev);
}

/* Small operators, and sums of rows of attention, have no use for less. */
static void less_is_enough(void **state)
{
	(void)state;
	static const char *const dnn[] = { "", "played" };
	static const uint32_t mosts[] = { 1, 1 << 13, 1 << 26 };
	for (size_t k = 0; k < 2; k++) {
		struct hspmd_device *dev = open_with(k ? "0" : "1", dnn[k]);
		for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
			for (size_t m = 0; m < sizeof mosts / sizeof *mosts; m++) {
				uint32_t most = mosts[m];
				double there, predicted;
				find_workspaces(dev, &scenes[i], "\"compute_capability\":9.0,", most, &there, &predicted);
				if (there > 2 * (double)(most > 1 ? most : 0) + MANDATORY)
					fail_msg("%s: %.1f MB, of which %u bytes may be what operators can do without", scenes[i].name,
					         there / 1e6, (unsigned)most);
			}
		dev->ops->close(dev);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(own_kernels_need_what_is_predicted),
		                            cmocka_unit_test(cudnn_needs_what_is_predicted), cmocka_unit_test(less_is_enough) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
