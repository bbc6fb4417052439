/* SPDX-License-Identifier: Apache-2.0 */
/* What the nets of this folder are built of. Each net's file is complete with this header: it defines its sizes and a function that builds the
 * net, of which a program or a shared object makes use. */
#ifndef HSPMD_EXAMPLES_PARTS_H
#define HSPMD_EXAMPLES_PARTS_H

#ifndef HSPMD_HSPMD_H /* hspmd's own tests include it from elsewhere */
#include <hspmd/hspmd.h>
#endif
#include <stdarg.h>
#include <stdio.h>

#define DIMS(...) ((int64_t[]){ __VA_ARGS__ })

/* A parameter called "PREFIX.NAME". Vectors are `mean` everywhere and do not decay; matrices are random. */
static inline int parameter(struct hspmd_net *net, const char *prefix, const char *name, int rank, const int64_t *dims, double mean,
                            double deviation)
{
	char full[256];
	snprintf(full, sizeof full, "%s%s%s", prefix, *prefix ? "." : "", name);
	int p = hspmd_net_parameter(net, full, rank, dims, mean, deviation);
	if (rank == 1)
		hspmd_net_no_decay(net, p);
	return p;
}

/* How a layer's weight is split over the devices of a stage. */
enum split { WHOLE, BY_OUTPUT, BY_INPUT };

/* y = x W' + bias; `unit`: outputs (or inputs) that stay together, such as the width of a head. */
static inline int linear(struct hspmd_net *net, const char *prefix, int x, int64_t out, enum split split, int64_t unit, int has_bias)
{
	int64_t in = hspmd_net_dim(net, x, -1);
	int weight = parameter(net, prefix, "weight", 2, DIMS(out, in), 0, 0.02), bias = -1;
	if (split != WHOLE)
		hspmd_net_split(net, weight, split == BY_INPUT, unit);
	if (has_bias) {
		bias = parameter(net, prefix, "bias", 1, &out, 0, 0);
		if (split == BY_OUTPUT)
			hspmd_net_split(net, bias, 0, unit);
	}
	return hspmd_net_linear(net, x, weight, bias);
}

static inline int layer_norm(struct hspmd_net *net, const char *prefix, int x, double eps)
{
	int64_t width = hspmd_net_dim(net, x, -1);
	return hspmd_net_layer_norm(net, x, parameter(net, prefix, "weight", 1, &width, 1, 0),
	                            parameter(net, prefix, "bias", 1, &width, 0, 0), eps);
}

/* "PREFIX.NUMBER.NAME" in a buffer of the caller's. */
static inline const char *named(char (*buffer)[96], const char *prefix, int number, const char *name)
{
	snprintf(*buffer, sizeof *buffer, "%s.%d.%s", prefix, number, name);
	return *buffer;
}

/* Attention of a transformer's block among all positions: heads are split over devices. mask: as of struct hspmd_attention. */
static inline int self_attention(struct hspmd_net *net, const char *prefix, int number, int x, int64_t heads, int mask, double dropout)
{
	char name[96];
	int64_t width = hspmd_net_dim(net, x, -1), head = heads > 0 ? width / heads : 0;
	struct hspmd_attention how = HSPMD_ATTENTION;
	how.mask = mask;
	how.dropout = dropout;
	int q = linear(net, named(&name, prefix, number, "query"), x, width, BY_OUTPUT, head, 1);
	int k = linear(net, named(&name, prefix, number, "key"), x, width, BY_OUTPUT, head, 1);
	int v = linear(net, named(&name, prefix, number, "value"), x, width, BY_OUTPUT, head, 1);
	return linear(net, named(&name, prefix, number, "output"), hspmd_net_attend(net, q, k, v, head, &how), width, BY_INPUT, head, 1);
}

/* Two linear layers with GELU between them. */
static inline int mlp(struct hspmd_net *net, const char *prefix, int number, int x, int64_t inner)
{
	char name[96];
	int y = hspmd_net_gelu_exact(net, linear(net, named(&name, prefix, number, "up"), x, inner, BY_OUTPUT, 1, 1));
	return linear(net, named(&name, prefix, number, "down"), y, hspmd_net_dim(net, x, -1), BY_INPUT, 1, 1);
}

#endif
