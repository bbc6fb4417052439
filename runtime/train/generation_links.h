/* SPDX-License-Identifier: Apache-2.0 */
/* A generation's connections: two transports, what goes straight between devices, and the one that carries copies to other nodes (the rest is in generation.h). */
#ifndef HSPMD_TRAIN_GENERATION_LINKS_H
#define HSPMD_TRAIN_GENERATION_LINKS_H

#include "runtime/train/generation.h"

/* Open this member's ends, and put together the addresses that the others need. Nothing with one member. 0, or -1 and err. */
int hspmd_generation_open(struct hspmd_generation *g, struct hspmd_error *err);

#endif
