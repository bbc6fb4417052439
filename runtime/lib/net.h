/* SPDX-License-Identifier: Apache-2.0 */
/* A user's net while it is being built (hspmd.h), as a graph source. */
#ifndef HSPMD_LIB_NET_H
#define HSPMD_LIB_NET_H

#include "runtime/lib/hspmd.h"
#include "runtime/program/program.h"

struct hspmd_net_source {
	void (*build)(void *context, struct hspmd_net *net);
	void *context;
	int layers;
};

/* Borrows the source. */
struct hspmd_graph_source hspmd_net_graph_source(const struct hspmd_net_source *source);

#endif
