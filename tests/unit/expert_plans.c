/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/expert_plans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>

#include "runtime/program/program.h"
#include "tests/unit/trainer.h"

#define HEAD "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":"
#define PIPELINE "\"pipelines\":[{\"micro_batches\":4,\"stages\":["

static const char deepseek[] =
        "{\"model_type\":\"deepseek_v2\",\"hidden_size\":24,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
        "\"intermediate_size\":20,\"max_position_embeddings\":64,\"vocab_size\":256,\"n_routed_experts\":4,\"num_experts_per_tok\":2,"
        "\"moe_intermediate_size\":12,\"topk_method\":\"greedy\",\"first_k_dense_replace\":1,\"q_lora_rank\":null,\"kv_lora_rank\":7,"
        "\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,\"v_head_dim\":8,\"n_shared_experts\":1}";

static const struct {
	const char *plan;
	int divided; /* devices that have a part of the experts for which not all rows come */
} plans[EXPERT_PLANS + SHARED_PLANS] = {
	{ HEAD "0," PIPELINE "{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]}", 0 },
	{ HEAD "0," PIPELINE "{\"layers\":[0,4],\"devices\":[\"n:0-3\"],\"sequence_parallel\":true}]}]}", 4 },
	{ HEAD "1," PIPELINE "{\"layers\":[0,4],\"devices\":[\"n:0-2\"],\"sequence_parallel\":true,\"shard_ratio\":[2,1,1]}]}]}", 3 },
	{ HEAD "0," PIPELINE "{\"layers\":[0,4],\"devices\":[\"n:0-3\"],\"context\":2,\"sequence_parallel\":true}]}]}", 4 },
	{ HEAD "2," PIPELINE "{\"layers\":[0,2],\"devices\":[\"n:0-1\"],\"sequence_parallel\":true,\"recompute\":\"full\"},"
	       "{\"layers\":[2,4],\"devices\":[\"n:2-3\"],\"sequence_parallel\":true,\"shard_ratio\":[3,1]}]}]}",
	  2 }, /* not stage 1: all rows choose one of three of four experts */
	{ HEAD "0,\"pipelines\":[{\"micro_batches\":3,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:1-3\"],\"sequence_parallel\":true,"
	       "\"shard_ratio\":[1,2,1]}]},{\"micro_batches\":1,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]}",
	  3 },
	{ HEAD "0," PIPELINE "{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]}", 0 },
	{ HEAD "0," PIPELINE "{\"layers\":[0,4],\"devices\":[\"n:0-3\"],\"sequence_parallel\":true}]}]}", 4 },
};

/* Of a training. */
struct counted {
	bool shared;
	atomic_int devices;
};

/* Counts the devices whose program sends rows of experts in both passes. */
static int count(void *context, const struct hspmd_program *p, const struct hspmd_executor *executor, struct hspmd_device *device,
                 struct hspmd_error *err)
{
	bool sends[2][2] = { 0 }, lacks = false; /* combines, backward; lacks: of some value only rows of experts are known to be there */
	(void)executor;
	(void)device;
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		enum hspmd_comm_kind kind = in->kind == HSPMD_INSTRUCTION_COMM ? in->transfer->steps[in->step].kind : HSPMD_COMM_KIND_COUNT;
		if (kind == HSPMD_COMM_DISPATCH || kind == HSPMD_COMM_COMBINE)
			sends[kind == HSPMD_COMM_COMBINE][in->backward] = true;
		for (int k = 0; k < in->input_count; k++) {
			const struct hspmd_annotation *a = in->in[k] < 0 ? NULL : p->slot_types[p->slots[in->in[k]].slot_type].annotation;
			lacks |= a && a->rows && !hspmd_annotation_is_partial(a);
		}
	}
	if (lacks && !sends[0][0])
		return hspmd_fail(err, "all rows are sent, but not known to be there");
	struct counted *c = context;
	bool dispatches = !c->shared;
	if (sends[0][0] == dispatches && sends[0][1] == dispatches && sends[1][0] && sends[1][1] == dispatches)
		atomic_fetch_add(&c->devices, 1);
	return 0;
}

/* One node. Its links are so slow that even a GPU does not wait for the choice in vain. */
static void write_cluster(unsigned gpus, char *text, size_t size)
{
	static const char rates[] = "\"memory_bytes\":1000000000,\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}";
	size_t n =
	        (size_t)snprintf(text, size,
	                         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",%s},\"g\":{\"kind\":\"cuda\","
	                         "%s}},\"nodes\":[{\"name\":\"n\",\"devices\":[",
	                         rates, rates);
	for (int d = 0; d < EXPERT_DEVICES; d++)
		n += (size_t)snprintf(text + n, size - n, "%s{\"type\":\"%c\",\"count\":1}", d ? "," : "", gpus >> d & 1 ? 'g' : 'c');
	n += (size_t)snprintf(text + n, size - n, "]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":0.001}]}");
	assert_true(n < size);
}

void expert_plan_train(int number, unsigned gpus, double *losses)
{
	struct hspmd_error err = { "" };
	char cluster[1024];
	write_cluster(gpus, cluster, sizeof cluster);
	struct counted counted = { .shared = number >= EXPERT_PLANS };
	struct trainer_options o = {
		.model = counted.shared ? deepseek : trainer_mixtral,
		.plan = plans[number].plan,
		.devices = EXPERT_DEVICES,
		.steps = EXPERT_STEPS,
		.cluster = cluster,
		.gpus = gpus,
		.on_end = count,
		.context = &counted,
	};
	if (trainer_train(&o, losses, &err))
		fail_msg("plan %d: %s", number, err.text);
	if (counted.devices != plans[number].divided)
		fail_msg("plan %d: %d devices send rows of experts, not %d", number, counted.devices, plans[number].divided);
}
