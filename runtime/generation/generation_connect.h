/* SPDX-License-Identifier: Apache-2.0 */
/* A generation's connections: two transports, device-to-device communication, and the transport that carries copies to other nodes (the
 * other functions are declared in generation.h). */
#ifndef HSPMD_GENERATION_GENERATION_CONNECT_H
#define HSPMD_GENERATION_GENERATION_CONNECT_H

#include "runtime/generation/generation.h"

/* Open this member's endpoints and encode their addresses for the other members. Does nothing if there is one member. 0, or -1 and err. */
int hspmd_generation_open_endpoints(struct hspmd_generation *g, struct hspmd_error *err);
/* Rank of a device address; -1: no member. */
int hspmd_generation_rank(const struct hspmd_generation *g, const char *address);

#endif
