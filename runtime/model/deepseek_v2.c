/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V2 (arXiv 2405.04434): latent attention; experts are chosen by softmax, perhaps within the best groups of experts. */
#include "runtime/model/latent.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const char *const methods[] = { "greedy", "group_limited_greedy", NULL };
	static const struct hspmd_latent_defaults absent = { .q_rank = 1536,
		                                             .kv_rank = 512,
		                                             .nope = 128,
		                                             .rotated = 64,
		                                             .values = 128,
		                                             .positions = 2048,
		                                             .experts = 64,
		                                             .per_token = 6,
		                                             .shared = 2,
		                                             .weight_scale = 1 };
	struct hspmd_latent *l = hspmd_latent_read(root, m, &absent);
	if (!l)
		return;
	l->d.experts.router = HSPMD_ROUTER_ALL;
	l->d.experts.group_best = 1;
	if (hspmd_json_enum_or(root, "topk_method", methods, 0) == 0)
		l->d.experts.groups = 0;
}

extern const struct hspmd_model_type hspmd_model_deepseek_v2;
const struct hspmd_model_type hspmd_model_deepseek_v2 = {
	.names = { "deepseek_v2" }, .read = read, .block = hspmd_latent_block, .weights = hspmd_latent_weights
};
