/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V3 and R1 (arXiv 2412.19437): latent attention; experts are chosen by sigmoid and a bias within the best groups of experts.
 * The bias has no gradient and stays as it is. The layers that predict further tokens (num_nextn_predict_layers) are not trained. */
#include "runtime/model/latent.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_latent_defaults absent = {
		.q_rank = 1536,
		.kv_rank = 512,
		.nope = 128,
		.rotated = 64,
		.values = 128,
		.positions = 4096,
		.first_dense = 3,
		.experts = 256,
		.per_token = 8,
		.shared = 1,
		.groups = 8,
		.top_groups = 4,
		.weight_scale = 2.5,
	};
	struct hspmd_latent *l = hspmd_latent_read(root, m, &absent);
	if (!l)
		return;
	l->d.experts.router = hspmd_json_bool_or(root, "norm_topk_prob", true) ? HSPMD_ROUTER_SIGMOID : HSPMD_ROUTER_SIGMOID_ALL;
	l->d.experts.group_best = 2;
	l->d.experts.choice_bias = true;
}

extern const struct hspmd_model_type hspmd_model_deepseek_v3;
const struct hspmd_model_type hspmd_model_deepseek_v3 = {
	.names = { "deepseek_v3" }, .read = read, .block = hspmd_latent_block, .weights = hspmd_latent_weights
};
