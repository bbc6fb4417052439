/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the solver predicts for nets of contrib/examples/nets, whose convolutions have columns of windows beside their tensors,
 * compared with the programs that the runtime makes of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/solver/cost/costs.h"
#include "controller/solver/sim/evaluate.h"
#include "runtime/lib/hspmd.h"
#define hspmd_model hspmd_model_of_vgg19
#include "contrib/examples/nets/vgg19.c"
#undef hspmd_model
#include "runtime/lib/net.h"
#include "runtime/program/program.h"
#include "tests/unit/solver_inputs.h"

#define CLOSE 0.02
#define THREADS 3

static struct hspmd_device *open_cpu(void)
{
	struct hspmd_error err = { "" };
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	struct hspmd_device *dev = NULL;
	assert_non_null(ops);
	assert_int_equal(ops->open(&dev, 0, THREADS, &err), 0);
	return dev;
}

/* Returns true if the prediction is close; else it prints both. */
static bool is_predicted(const struct vgg19 *how, int samples, int pipelines)
{
	struct hspmd_error err = { "" };
	char text[512];
	struct hspmd_net_source source = { vgg19_build, (void *)how, VGG19_LAYERS };
	struct hspmd_graph_source graphs = hspmd_net_graph_source(&source);
	struct hspmd_cluster *c =
	        cluster_from("{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"cpu\",\"memory_bytes\":68719476736,"
	                     "\"gbytes_per_s\":20,\"peak_tflops\":{\"fp32\":0.1}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":"
	                     "\"d\",\"count\":2}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-5,\"gbytes_per_s\":5}]}");
	struct hspmd_device *dev = open_cpu();
	hspmd_device_product_blocks(dev, &c->types[0].product_blocks);
	FILE *to = fmemopen(text, sizeof text, "w");
	fprintf(to,
	        "{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":%d,\"seq_len\":1,\"schedule\":\"1f1b\",\"pipelines\":[",
	        4 * samples * pipelines, samples);
	for (int i = 0; i < pipelines; i++)
		fprintf(to, "%s{\"micro_batches\":4,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:%d\"]}]}", i ? "," : "", VGG19_LAYERS,
		        i);
	fputs("]}", to);
	fclose(to);
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, VGG19_LAYERS, &err);
	json_decref(value);
	struct hspmd_program *program = p ? hspmd_program_build(&graphs, p, c, 0, dev, &err) : NULL;
	struct hspmd_model_facts *f = program ? hspmd_model_facts_build(&graphs, "vgg19", 1, &err) : NULL;
	struct hspmd_costs *costs = f ? hspmd_costs_of_plan(c, f, NULL, HSPMD_PRECISION_FP32, p, &err) : NULL;
	if (!costs || hspmd_evaluate(c, f, NULL, HSPMD_PRECISION_FP32, p, NULL, &err))
		fail_msg("%s", err.text);
	const struct hspmd_layer_copies copies = hspmd_costs_copies(costs, p, 0, 0);
	const struct hspmd_memory m = hspmd_costs_memory(costs, &p->pipelines[0].stages[0], 0, samples, false, &copies);
	double image = 0, predicted = p->predicted.memory_bytes[0];
	for (int i = 0; i < program->state_count; i++)
		if (program->states[i].param >= 0)
			image += 3 * (double)program->slot_types[program->slots[program->states[i].param].slot_type].bytes / pipelines;
	double passes = (double)program->arena_bytes, workspace = (double)program->workspace_bytes,
	       messages = (double)program->message_bytes, all = (double)program->fixed_bytes + passes + workspace + messages + image;
	bool close = fabs(predicted - all) <= CLOSE * all && fabs(m.workspace - workspace) <= CLOSE * all;
	if (!close)
		printf("%d samples of %d x %d: predicted %.2f MB, state %.2f, running %.2f, workspace %.2f; the program takes %.2f, %.2f, "
		       "%.2f, %.2f, messages %.2f\n",
		       samples, (int)how->images.size, (int)how->images.size, predicted / 1e6, m.state / 1e6, m.running / 1e6,
		       m.workspace / 1e6, all / 1e6, ((double)program->fixed_bytes + image) / 1e6, passes / 1e6, workspace / 1e6,
		       messages / 1e6);
	hspmd_costs_destroy(costs);
	hspmd_model_facts_destroy(f);
	hspmd_program_destroy(program);
	hspmd_plan_destroy(p);
	dev->ops->close(dev);
	hspmd_cluster_destroy(c);
	return close;
}

static void convolutions_need_what_is_predicted(void **state)
{
	static const struct vgg19 nets[] = { { { 128, 1000 }, 64, 2048 }, { { 224, 1000 }, 64, 4096 } };
	(void)state;
	int off = 0;
	for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
		for (int samples = 1; samples <= 8; samples *= 2)
			for (int pipelines = 1; pipelines <= 2; pipelines++)
				off += !is_predicted(&nets[i], samples, pipelines);
	assert_int_equal(off, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(convolutions_need_what_is_predicted) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
