/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds per training step: step CASE LAYOUT THREADS STEPS. LAYOUT:
 *   - one: a device of THREADS threads
 *   - tp: THREADS devices of one thread, tensor parallel in every layer
 *   - pp: THREADS pipeline stages of about equal work, zb-h1; 1f1b: the same with 1f1b
 *   - gpu: one GPU, bf16; gpu-fp32
 *   - split-N-M: two GPUs, data parallel, N and M micro-batches; with HSPMD_CUDA_OVERSUBSCRIBE=1 and
 *     HSPMD_CUDA_SM_PARTITION=88,44 two parts of one GPU
 * STEPS 0 on a GPU only builds the program, which chooses and measures algorithms. Prints one line of JSON with the median and with the
 * matrix products that a token needs, in Tflop: three times those of a forward pass.
 *
 * step product SIZE 1 RUNS: the rate of products of square matrices in BF16 on a GPU.
 *
 * step describe CASE: the case of a GPU's size, as JSON.
 *
 * step rounding SIZE THREADS RUNS and step rounding-gpu SIZE 1 RUNS: the cost of stochastic rounding instead of rounding to nearest, for a
 * CAST on the CPU and for AdamW's update on a GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/order.h"
#include "runtime/device/random.h"
#include "runtime/model/model.h"
#include "runtime/op/op.h"
#include "runtime/exec/train_local.h"

#define GPT2(width, layers, heads, vocab, length)                                                                                          \
	"{\"model_type\":\"gpt2\",\"n_embd\":" #width ",\"n_layer\":" #layers ",\"n_head\":" #heads ",\"vocab_size\":" #vocab              \
	",\"n_positions\":" #length ",\"activation_function\":\"gelu_new\",\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}"

struct bench_case {
	const char *name, *model;
	int layers, width, length, batch, vocab;
	bool gpu; /* of a GPU's size */
};
#define LLAMA(width, layers, heads, kv, ffn, length)                                                                                       \
	"{\"model_type\":\"llama\",\"hidden_size\":" #width ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads           \
	",\"num_key_value_heads\":" #kv ",\"intermediate_size\":" #ffn ",\"max_position_embeddings\":" #length                             \
	",\"vocab_size\":32000,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}"
static const struct bench_case cases[] = {
	{ "gpt2-11m", GPT2(384, 6, 6, 256, 256), 6, 384, 256, 16, 256, false },
	{ "llama-11m",
	  "{\"model_type\":\"llama\",\"hidden_size\":384,\"num_hidden_layers\":6,\"num_attention_heads\":6,\"num_key_value_heads\":6,"
	  "\"vocab_size\":256,"
	  "\"intermediate_size\":1024,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}",
	  6, 384, 256, 16, 256, false },
	{ "gpt2-124m", GPT2(768, 12, 12, 50304, 512), 12, 768, 512, 2, 50304, false },
	{ "gpt2-tiny", GPT2(64, 2, 2, 512, 32), 2, 64, 32, 4, 512, true }, /* for emulated ones */
	{ "gpt2-124m", GPT2(768, 12, 12, 50304, 1024), 12, 768, 1024, 32, 50304, true },
	{ "gpt2-124m-50257", GPT2(768, 12, 12, 50257, 1024), 12, 768, 1024, 32, 50257, true }, /* the vocabulary as published */
	{ "gpt2-1.5b", GPT2(1600, 48, 25, 50304, 1024), 48, 1600, 1024, 8, 50304, true },
	{ "llama-160m", LLAMA(768, 12, 12, 12, 2048, 2048), 12, 768, 2048, 16, 32000, true },
	{ "llama-1b", LLAMA(2048, 16, 32, 8, 8192, 4096), 16, 2048, 4096, 4, 32000, true },
	{ "llama-7b-8l", LLAMA(4096, 8, 32, 32, 11008, 4096), 8, 4096, 4096, 2, 32000, true },
	{ "mixtral-2l", /* two blocks of Mixtral 8x7B */
	  "{\"model_type\":\"mixtral\",\"hidden_size\":4096,\"num_hidden_layers\":2,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
	  "\"intermediate_size\":14336,\"num_local_experts\":8,\"num_experts_per_tok\":2,\"vocab_size\":32000,"
	  "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}",
	  2, 4096, 4096, 4, 32000, true },
};

static const char cluster_text[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"core\":{\"kind\":\"cpu\",\"memory_bytes\":100000000000,"
        "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.2}},\"gpu\":{\"kind\":\"cuda\",\"memory_bytes\":140000000000,"
        "\"gbytes_per_s\":4800,\"peak_tflops\":{\"bf16\":800}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"core\","
        "\"count\":64}]},{\"name\":\"g\",\"devices\":[{\"type\":\"gpu\",\"count\":2}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,"
        "\"gbytes_per_s\":5}]}";

/* Micro-batches of a pipeline: eight fill two stages well. */
static int micro_batches(const struct bench_case *c, bool pipeline)
{
	return !pipeline ? 1 : c->batch < 8 ? c->batch : 8;
}

/* Work of the layers before `end`, in products of a token with one column of a matrix: a block has twelve matrices of width x width, and an
 * attention whose products run at less than half the rate of those; the last layer has the vocabulary. */
static double work(const struct bench_case *c, int end)
{
	int blocks = end < 1 ? 0 : end - 1 < c->layers ? end - 1 : c->layers;
	return blocks * (12.0 * c->width + 2.25 * c->length) + (end == c->layers + 2 ? c->vocab : 0);
}

/* First layer of stage `stage` of `stages`, so that each has about as much work. */
static int first_layer(const struct bench_case *c, int stage, int stages)
{
	double wanted = work(c, c->layers + 2) * stage / stages;
	int layer = stage;
	while (work(c, layer + 1) - wanted < wanted - work(c, layer) && layer + 1 < c->layers + 2 - (stages - stage - 1))
		layer++;
	return layer;
}

/* Two devices, data parallel, with these numbers of micro-batches. */
static char *split_plan(const struct bench_case *c, int first, int second)
{
	int each = c->batch / (first + second) > 0 ? c->batch / (first + second) : 1;
	return hspmd_asprintf(
	        "{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":%d,\"seq_len\":%d,\"schedule\":\"1f1b\",\"zero_stage\":0,"
	        "\"pipelines\":[{\"micro_batches\":%d,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"g:0\"]}]},"
	        "{\"micro_batches\":%d,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"g:1\"]}]}]}",
	        each * (first + second), each, c->length, first, c->layers + 2, second, c->layers + 2);
}

static char *plan_of(const struct bench_case *c, const char *layout, int devices)
{
	int layers = c->layers + 2;
	bool pipeline = !strcmp(layout, "pp") || !strcmp(layout, "1f1b");
	int count = micro_batches(c, pipeline);
	char *stages = strdup("");
	for (int s = 0; s < (pipeline ? devices : 1); s++) {
		char *next = hspmd_asprintf("%s%s{\"layers\":[%d,%d],\"devices\":[\"%s:%d-%d\"]}", stages ? stages : "", s ? "," : "",
		                            pipeline && s ? first_layer(c, s, devices) : 0,
		                            pipeline && s + 1 < devices ? first_layer(c, s + 1, devices) : layers, c->gpu ? "g" : "n",
		                            pipeline ? s : 0, pipeline ? s : devices - 1);
		free(stages);
		stages = next;
	}
	char *plan =
	        hspmd_asprintf("{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":%d,\"seq_len\":%d,\"schedule\":\"%s\","
	                       "\"zero_stage\":0,\"pipelines\":[{\"micro_batches\":%d,\"stages\":[%s]}]}",
	                       c->batch, c->batch / count, c->length, strcmp(layout, "pp") ? "1f1b" : "zb-h1", count, stages ? stages : "");
	free(stages);
	return plan;
}

struct measurement {
	const struct bench_case *c;
	double *seconds, last, loss, bytes, work;
	int64_t samples; /* a step */
};

/* Random tokens from the whole vocabulary: targets are tokens one position later. */
static int read_sample(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	const struct measurement *m = context;
	int64_t shift = strcmp(name, HSPMD_TENSOR_TARGETS) == 0;
	(void)err;
	for (int64_t i = 0; i < count; i++) {
		uint32_t words[4];
		hspmd_random_words(1, (uint64_t)number, (uint64_t)(start + i + shift), words);
		((int32_t *)to)[i] = (int32_t)(words[0] % (uint32_t)m->c->vocab);
	}
	return 0;
}

static void take_time(void *context, int64_t step, double loss)
{
	struct measurement *m = context;
	double now = hspmd_now();
	m->seconds[step] = now - m->last;
	m->last = now;
	m->loss = loss;
}

/* Memory that the program takes on the GPU; 0: unknown. Algorithms are chosen here too, before anything is timed. */
static double bytes_of(const struct hspmd_train_local_options *o)
{
	struct hspmd_device *dev = NULL;
	const struct hspmd_device_ops *ops = hspmd_device_find("cuda", NULL);
	if (!ops || ops->open(&dev, 0, 0, NULL))
		return 0;
	struct hspmd_program *p =
	        hspmd_program_build(&o->source, o->plan, o->cluster, o->plan->pipelines[0].stages[0].devices[0], dev, NULL);
	double bytes = p ? (double)(p->arena_bytes + p->fixed_bytes + p->workspace_bytes) : 0;
	hspmd_program_destroy(p);
	ops->close(dev);
	return bytes;
}

/* Tflop of products per token: those of a forward pass and twice as many backward; of attention only pairs that its mask allows.
 * Recomputation does not count. */
static double work_of_token(const struct hspmd_model *model, const struct bench_case *c, struct hspmd_error *err)
{
	struct hspmd_model_build_options how = {
		.batch = 1, .seq_len = c->length, .vocab_parts = 1, .loss_scale = 1, .forward_only = true
	};
	struct hspmd_graph *g = hspmd_model_graph(model, &how, err);
	double work = 0;
	for (size_t i = 0; g && i < g->op_count; i++) {
		const struct hspmd_op *op = &g->ops[i];
		struct hspmd_op_view v = { .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
		double flops = 0, bytes;
		if (op->opcode != HSPMD_OP_LINEAR && op->opcode != HSPMD_OP_ATTENTION)
			continue;
		for (int k = 0; k < op->input_count; k++)
			v.in[k] = op->in[k] >= 0 ? g->tensors[op->in[k]].shape : (struct hspmd_shape){ .rank = -1 };
		for (int k = 0; k < op->output_count; k++)
			v.out[k] = g->tensors[op->out[k]].shape;
		hspmd_op_types[op->opcode]->cost(&v, &flops, &bytes);
		work += 3 * flops;
	}
	hspmd_graph_destroy(g);
	return work / (double)c->length / 1e12;
}

static int train(struct measurement *m, const char *layout, int threads, int steps, struct hspmd_error *err)
{
	bool one = !strcmp(layout, "one") || m->c->gpu;
	int first, second;
	bool split = sscanf(layout, "split-%d-%d", &first, &second) == 2;
	char *text = split ? split_plan(m->c, first, second) : plan_of(m->c, layout, one ? 1 : threads);
	json_t *c = json_loads(cluster_text, 0, NULL), *p = text ? json_loads(text, 0, NULL) : NULL, *j = json_loads(m->c->model, 0, NULL);
	struct hspmd_cluster *cluster = c ? hspmd_cluster_from_json(c, "cluster", err) : NULL;
	struct hspmd_model *model = j ? hspmd_model_from_json(j, "model", err) : NULL;
	struct hspmd_plan *plan = p && cluster && model ? hspmd_plan_from_json(p, "plan", cluster, hspmd_model_layers(model), err) : NULL;
	struct hspmd_job job = { .global_batch = plan ? plan->global_batch : 0, .seq_len = m->c->length, .steps = steps, .seed = 1 };
	job.optimizer.lr = job.optimizer.min_lr = 3e-4;
	job.optimizer.weight_decay = 0.01;
	memcpy(job.optimizer.values, (double[]){ 0.9, 0.999, 1e-8 }, 3 * sizeof(double));
	job.optimizer.clip = 1;
	int rc = -1;
	if (plan) {
		struct hspmd_train_local_options o = { .source = hspmd_graph_source_model(model),
			                               .cluster = cluster,
			                               .plan = plan,
			                               .job = &job,
			                               .samples = { read_sample, m },
			                               .steps = steps,
			                               .threads = one ? threads : 1,
			                               .on_loss = take_time,
			                               .context = m };
		o.source.precision = split || !strcmp(layout, "gpu") ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32;
		m->samples = plan->global_batch;
		m->work = work_of_token(model, m->c, err);
		m->bytes = m->c->gpu ? bytes_of(&o) : 0;
		m->last = hspmd_now();
		rc = steps ? hspmd_train_local(&o, err) : 0;
	}
	hspmd_plan_destroy(plan);
	hspmd_model_destroy(model);
	hspmd_cluster_destroy(cluster);
	json_decref(c);
	json_decref(p);
	json_decref(j);
	free(text);
	return rc;
}

static int measure(const struct bench_case *c, const char *layout, int threads, int steps)
{
	const int warm = steps ? 2 : 0;
	struct hspmd_error err = { "out of memory" };
	struct measurement m = { .c = c, .seconds = hspmd_calloc((size_t)(steps + warm), sizeof(double)) };
	int rc = m.seconds ? train(&m, layout, threads, steps + warm, &err) : -1;
	if (rc) {
		fprintf(stderr, "step: %s\n", err.text);
	} else if (!steps) {
		printf("{\"peer\": \"hspmd\", \"case\": \"%s\", \"layout\": \"%s\", \"peak_gib\": %.2f, \"tflop_token\": %.6g}\n", c->name,
		       layout, m.bytes / (1 << 30), m.work);
	} else {
		qsort(m.seconds + warm, (size_t)steps, sizeof *m.seconds, hspmd_double_order);
		double median = m.seconds[warm + steps / 2];
		printf("{\"peer\": \"hspmd\", \"case\": \"%s\", \"layout\": \"%s\", \"threads\": %d, \"step_s\": %.4f, \"least_s\": %.4f, "
		       "\"tokens_s\": %.0f, "
		       "\"loss\": %.3f, \"peak_gib\": %.2f, \"tflop_token\": %.6g}\n",
		       c->name, layout, threads, median, m.seconds[warm], (double)m.samples * c->length / median, m.loss,
		       m.bytes / (1 << 30), m.work);
	}
	free(m.seconds);
	return rc ? 1 : 0;
}

/* Allocates this many elements on the device: BF16 random numbers, because zeros draw less power. Returns NULL with err on failure. */
static void *random_matrix(struct hspmd_device *dev, int64_t size, uint64_t stream, struct hspmd_error *err)
{
	size_t elements = (size_t)(size * size);
	struct hspmd_op_attr attr = { .random = { .seed = 1, .stream = stream, .deviation = 1 } };
	struct hspmd_view wide = { .data = dev->ops->allocate(dev, elements * 4, err),
		                   .dtype = HSPMD_F32,
		                   .rank = 2,
		                   .shape = { size, size },
		                   .full = { size, size } };
	struct hspmd_view half = wide;
	half.data = wide.data ? dev->ops->allocate(dev, elements * 2, err) : NULL;
	half.dtype = HSPMD_BF16;
	struct hspmd_kernel_args fill = { .attr = &attr, .output_count = 1, .out = { wide } };
	struct hspmd_kernel_args cast = { .attr = &attr, .input_count = 1, .output_count = 1, .in = { wide }, .out = { half } };
	int status = !half.data || dev->ops->run(dev, HSPMD_OP_NORMAL, &fill, err) || dev->ops->run(dev, HSPMD_OP_CAST, &cast, err);
	dev->ops->release(dev, wide.data);
	if (status)
		dev->ops->release(dev, half.data);
	return status ? NULL : half.data;
}

static int run_products(struct hspmd_device *dev, const struct hspmd_kernel_args *args, int runs, struct hspmd_error *err)
{
	for (int i = 0; i < runs; i++)
		if (dev->ops->run(dev, HSPMD_OP_LINEAR, args, err))
			return -1;
	return dev->ops->synchronise(dev, err);
}

/* Prints the rate of products of matrices of size x size, one after the other. */
static int measure_products(int64_t size, int runs)
{
	struct hspmd_error err = { "" };
	struct hspmd_device *dev = NULL;
	const struct hspmd_device_ops *ops = hspmd_device_find("cuda", &err);
	if (!ops || ops->open(&dev, 0, 0, &err)) {
		fprintf(stderr, "step: %s\n", err.text);
		return 1;
	}
	struct hspmd_op_attr attr = { .transposed = true };
	struct hspmd_kernel_args args = { .attr = &attr, .input_count = 2, .output_count = 1 };
	void *data[3] = { NULL };
	int status = 0;
	for (int i = 0; !status && i < 3; i++) {
		data[i] = random_matrix(dev, size, (uint64_t)i, &err);
		*(i < 2 ? &args.in[i] : &args.out[0]) = (struct hspmd_view){
			.data = data[i], .dtype = HSPMD_BF16, .rank = 2, .shape = { size, size }, .full = { size, size }
		};
		status = data[i] ? 0 : -1;
	}
	args.workspace_bytes = status ? 0 : ops->workspace(dev, HSPMD_OP_LINEAR, &args);
	args.workspace = status ? NULL : ops->allocate(dev, args.workspace_bytes, &err);
	status = !args.workspace || run_products(dev, &args, 2, &err);
	double began = hspmd_now();
	if (status || run_products(dev, &args, runs, &err))
		fprintf(stderr, "step: %s\n", err.text);
	else
		printf("{\"product\": %lld, \"tflops\": %.6g}\n", (long long)size,
		       2 * (double)size * (double)size * (double)size * runs / (hspmd_now() - began) / 1e12);
	for (int i = 0; i < 3; i++)
		ops->release(dev, data[i]);
	ops->release(dev, args.workspace);
	ops->close(dev);
	return status;
}

/* Least seconds of an operator that rounds to nearest and stochastically, alternately, on square matrices, each split in half along the
 * second dimension as tensor parallelism does. */
static int time_rounding(struct hspmd_device *dev, enum hspmd_opcode opcode, struct hspmd_view whole, int runs, double least[2],
                         struct hspmd_error *err)
{
	struct hspmd_op_attr attr = { .scale = 1,
		                      .random = { .seed = 1, .deviation = 1 },
		                      .update = hspmd_optimizer_update(HSPMD_OPTIMIZER_ADAMW, (double[]){ 0.9, 0.95, 1e-8 }, 1e-3, 0, 1) };
	struct hspmd_kernel_args args = { .attr = &attr, .input_count = 1, .output_count = opcode == HSPMD_OP_CAST ? 1 : 4 };
	struct hspmd_view *copy = &args.out[args.output_count - 1],
	                  *all[5] = { &args.in[0], &args.out[0], &args.out[1], &args.out[2], copy };
	int status = 0;
	whole.shape[1] /= 2;
	for (int k = 0; !status && k < 5; k++) {
		struct hspmd_kernel_args fill = { .attr = &attr, .output_count = 1 };
		if (all[k]->data || (opcode == HSPMD_OP_CAST && k > 0 && k < 4))
			continue;
		*all[k] = whole;
		status = (all[k]->data = dev->ops->allocate(dev, (size_t)(whole.shape[0] * whole.shape[1]) * sizeof(float), err)) ? 0 : -1;
		fill.out[0] = *all[k];
		attr.random.stream = (uint64_t)k;
		if (!status)
			status = dev->ops->run(dev, HSPMD_OP_NORMAL, &fill, err);
	}
	copy->dtype = HSPMD_BF16;
	least[0] = least[1] = 1e30;
	for (int i = 0; !status && i < 2 * runs + 2; i++) {
		attr.stochastic = i % 2;
		double began = hspmd_now();
		status = dev->ops->run(dev, opcode, &args, err) || dev->ops->synchronise(dev, err);
		double took = hspmd_now() - began;
		least[i % 2] = i >= 2 && took < least[i % 2] ? took : least[i % 2];
	}
	for (int k = 0; k < 5; k++)
		if (k == 4 || all[k] != copy)
			dev->ops->release(dev, all[k]->data);
	return status;
}

static int measure_rounding(const char *device, enum hspmd_opcode opcode, int64_t size, int threads, int runs)
{
	struct hspmd_error err = { "" };
	struct hspmd_device *dev = NULL;
	const struct hspmd_device_ops *ops = hspmd_device_find(device, &err);
	struct hspmd_view whole = { .dtype = HSPMD_F32, .rank = 2, .shape = { size, size }, .full = { size, size } };
	double least[2];
	int status = !ops || ops->open(&dev, 0, threads, &err);
	if (!status)
		status = time_rounding(dev, opcode, whole, runs, least, &err);
	if (status)
		fprintf(stderr, "step: %s\n", err.text);
	else
		printf("{\"rounding\": \"%s\", \"device\": \"%s\", \"elements\": %lld, \"nearest_s\": %.6g, \"stochastic_s\": %.6g, "
		       "\"ratio\": %.3g}\n",
		       opcode == HSPMD_OP_CAST ? "cast" : "adamw", device, (long long)(size * (size / 2)), least[0], least[1],
		       least[1] / least[0]);
	if (dev)
		ops->close(dev);
	return status ? 1 : 0;
}

static int describe(const char *name)
{
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
		if (cases[c].gpu && !strcmp(name, cases[c].name)) {
			printf("{\"model\": %s, \"layers\": %d, \"length\": %d, \"batch\": %d}\n", cases[c].model, cases[c].layers + 2,
			       cases[c].length, cases[c].batch);
			return 0;
		}
	fprintf(stderr, "step: no case %s of a GPU's size\n", name);
	return 2;
}

int main(int argc, char **argv)
{
	static const char *const layouts[] = { "one", "tp", "pp", "1f1b", "gpu", "gpu-fp32" };
	int threads = argc == 5 ? atoi(argv[3]) : 0, steps = argc == 5 ? atoi(argv[4]) : 0;
	if (argc == 3 && !strcmp(argv[1], "describe"))
		return describe(argv[2]);
	if (steps > 0 && !strcmp(argv[1], "product") && atoi(argv[2]) > 0)
		return measure_products(atoi(argv[2]), steps);
	if (steps > 0 && threads > 0 && !strcmp(argv[1], "rounding") && atoi(argv[2]) > 1)
		return measure_rounding("cpu", HSPMD_OP_CAST, atoi(argv[2]), threads, steps);
	if (steps > 0 && !strcmp(argv[1], "rounding-gpu") && atoi(argv[2]) > 1)
		return measure_rounding("cuda", HSPMD_OP_UPDATE, atoi(argv[2]), 0, steps);
	for (size_t c = 0; argc == 5 && threads > 0 && threads <= 64 && steps >= 0 && c < sizeof cases / sizeof *cases; c++)
		for (size_t l = 0; !strcmp(argv[1], cases[c].name) && l < sizeof layouts / sizeof *layouts; l++)
			if ((!strcmp(argv[2], layouts[l]) && cases[c].gpu == (l > 3)) || (cases[c].gpu && !strncmp(argv[2], "split-", 6)))
				return steps || cases[c].gpu ? measure(&cases[c], argv[2], threads, steps) : 2;
	fprintf(stderr, "usage: step gpt2-11m|llama-11m|gpt2-124m one|tp|pp|1f1b THREADS STEPS\n"
	                "       step gpt2-tiny|gpt2-124m|gpt2-124m-50257|gpt2-1.5b|llama-160m|llama-1b|llama-7b-8l|mixtral-2l gpu|gpu-fp32|"
	                "split-N-M 1 STEPS\n"
	                "       step describe CASE\n"
	                "       step product SIZE 1 RUNS\n"
	                "       step rounding SIZE THREADS RUNS\n"
	                "       step rounding-gpu SIZE 1 RUNS\n");
	return 2;
}
