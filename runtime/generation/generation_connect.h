/* SPDX-License-Identifier: Apache-2.0 */
/* A generation's connections: two transports, what goes straight between devices, and the one that carries copies to other nodes (the rest
 * is in generation.h). */
#ifndef HSPMD_GENERATION_GENERATION_CONNECT_H
#define HSPMD_GENERATION_GENERATION_CONNECT_H

#include "runtime/generation/generation.h"

/* Open this member's ends, and put together the addresses that the others need. Nothing with one member. 0, or -1 and err. */
int hspmd_generation_open_endpoints(struct hspmd_generation *g, struct hspmd_error *err);

#endif
