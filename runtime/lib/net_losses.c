/* SPDX-License-Identifier: Apache-2.0 */
/* Losses. Each is a mean over the global batch; several add up. */
#include "runtime/lib/net_internal.h"

static double samples_of_global_batch(const struct hspmd_net *net)
{
	return 1 / (net->how->loss_scale * (double)net->how->seq_len);
}

/* Elements of a tensor in one sample; 0: there is no such tensor. */
static double per_sample(const struct hspmd_net *net, int tensor)
{
	const struct hspmd_shape *s = shape_of(net, tensor);
	double count = s ? 1 : 0;
	for (int d = 1; s && d < s->rank; d++)
		count *= (double)s->dim[d];
	return count;
}

int hspmd_net_cross_entropy(struct hspmd_net *net, int logits, int targets, const struct hspmd_cross_entropy *how)
{
	double positions = per_sample(net, targets);
	if (net->g->failed || positions == 0)
		return -1;
	struct hspmd_op_attr attr = {
		.parts = hspmd_net_vocabulary_parts(net, logits),
		.scale = 1 / (samples_of_global_batch(net) * positions),
		.smoothing = how->smoothing,
		.ignores = how->ignores != 0,
		.numbers = { how->ignored },
	};
	int stats = append(net, HSPMD_OP_VOCAB_STATS, &attr, (int[]){ logits, targets }, 2);
	return net->loss = append(net, HSPMD_OP_LOSS, &attr, (int[]){ stats, targets, how->weights }, how->weights >= 0 ? 3 : 2);
}

int hspmd_net_loss(struct hspmd_net *net, int logits, int targets)
{
	return hspmd_net_cross_entropy(net, logits, targets, &(struct hspmd_cross_entropy)HSPMD_CROSS_ENTROPY);
}

static int element_loss(struct hspmd_net *net, enum hspmd_loss kind, double factor, int x, int y, int weights)
{
	double elements = per_sample(net, x);
	if (net->g->failed || elements == 0)
		return -1;
	struct hspmd_op_attr attr = { .kind = kind, .scale = factor / (samples_of_global_batch(net) * elements) };
	return net->loss = append(net, HSPMD_OP_ELEMENT_LOSS, &attr, (int[]){ x, y, weights }, weights >= 0 ? 3 : y >= 0 ? 2 : 1);
}

int hspmd_net_squared_loss(struct hspmd_net *net, int x, int y, int weights)
{
	return y < 0 ? -1 : element_loss(net, HSPMD_LOSS_SQUARED, 1, x, y, weights);
}

int hspmd_net_logistic_loss(struct hspmd_net *net, int x, int y, int weights)
{
	return y < 0 ? -1 : element_loss(net, HSPMD_LOSS_LOGISTIC, 1, x, y, weights);
}

int hspmd_net_mean_loss(struct hspmd_net *net, int x, double factor)
{
	return element_loss(net, HSPMD_LOSS_SUM, factor, x, -1, -1);
}
