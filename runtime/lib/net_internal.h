/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that build a user's net. */
#ifndef HSPMD_LIB_NET_INTERNAL_H
#define HSPMD_LIB_NET_INTERNAL_H

#include "common/error.h"
#include "runtime/lib/net.h"
#include "runtime/op/op.h"

struct hspmd_net {
	struct hspmd_graph *g;
	const struct hspmd_model_build_options *how;
	int layers, layer;
	int loss;          /* the last one; -1: none yet */
	uint64_t dropouts; /* so far */
};

static inline int refuse(struct hspmd_net *net)
{
	net->g->failed = true;
	return -1;
}

/* Appends an operator to the present layer; returns its first output. */
static inline int append(struct hspmd_net *net, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, const int *in, int count)
{
	int outputs[HSPMD_OP_MAX_IO];
	return hspmd_graph_append(net->g, opcode, attr, net->layer, in, count, outputs);
}

/* A tensor's shape; NULL after a failure, or if there is no such tensor: operators report that. */
static inline const struct hspmd_shape *shape_of(const struct hspmd_net *net, int tensor)
{
	return net->g->failed || tensor < 0 || tensor >= (int)net->g->tensor_count ? NULL : &net->g->tensors[tensor].shape;
}

/* Number of heads of `width` in a tensor [.., n * width]; 0: the operator's shape rule will report the error. */
static inline int64_t heads_of(const struct hspmd_net *net, int tensor, int64_t width)
{
	const struct hspmd_shape *s = shape_of(net, tensor);
	return s && s->rank && width >= 1 ? s->dim[s->rank - 1] / width : 0;
}

/* An input of floats, in the type that the net computes in. */
int hspmd_net_computed(struct hspmd_net *net, int x);

/* Number of parts in which logits are split along their last dimension. */
int hspmd_net_vocabulary_parts(const struct hspmd_net *net, int logits);

#endif
