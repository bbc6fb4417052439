/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/expert_plans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>

#include "runtime/program/program.h"
#include "tests/unit/trainer.h"

#define HEAD "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":"
#define PIPELINE "\"pipelines\":[{\"micro_batches\":4,\"stages\":["

static const struct {
	const char *plan;
	int divided; /* devices that have a part of the experts for which not all rows come */
} plans[EXPERT_PLANS] = {
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
};

/* Counts the devices whose program sends rows of experts in both passes. */
static int count(void *context, const struct hspmd_program *p, const struct hspmd_executor *executor, struct hspmd_device *device,
                 struct hspmd_error *err)
{
	bool sends[2][2] = { 0 }; /* combines, backward */
	(void)executor;
	(void)device;
	(void)err;
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		enum hspmd_comm_kind kind = in->kind == HSPMD_INSTRUCTION_COMM ? in->transfer->steps[in->step].kind : HSPMD_COMM_KIND_COUNT;
		if (kind == HSPMD_COMM_DISPATCH || kind == HSPMD_COMM_COMBINE)
			sends[kind == HSPMD_COMM_COMBINE][in->backward] = true;
	}
	if (sends[0][0] && sends[0][1] && sends[1][0] && sends[1][1])
		atomic_fetch_add((atomic_int *)context, 1);
	return 0;
}

void expert_plan_train(int number, unsigned gpus, double *losses)
{
	struct hspmd_error err = { "" };
	atomic_int counted = 0;
	struct trainer_options o = {
		.model = trainer_mixtral,
		.plan = plans[number].plan,
		.devices = EXPERT_DEVICES,
		.steps = EXPERT_STEPS,
		.gpus = gpus,
		.on_end = count,
		.context = &counted,
	};
	if (trainer_train(&o, losses, &err))
		fail_msg("plan %d: %s", number, err.text);
	if (counted != plans[number].divided)
		fail_msg("plan %d: %d devices send rows of experts, not %d", number, counted, plans[number].divided);
}
