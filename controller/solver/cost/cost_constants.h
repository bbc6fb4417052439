/* SPDX-License-Identifier: Apache-2.0 */
/* Physical constants of the cost model: the same for every input, each with its source. "At second hand" means that the figure is quoted
 * from authors who cite the source, not from the source itself. */
#ifndef HSPMD_COST_COST_CONSTANTS_H
#define HSPMD_COST_COST_CONSTANTS_H

#include "common/format/device_speed.h"

/* How many times the forward pass of a framework without fused kernels moves each byte that it saves for the backward pass, reads and
 * writes together. Used for layers of which only the saved bytes are known (a model's operations are counted one by one). Counted over
 * one block of Megatron's (h: bytes of one hidden state, a: of one attention matrix): it saves 17 h + 2.5 a (arXiv 2205.05198, section
 * 4.1); it moves, if masks, softmax and dropout are kernels of their own with casts between them, 100 h + 17 a: 5.9 and 6.8 times as
 * much. */
#define HSPMD_TRAFFIC 6.0

/* Kernels in one block's forward pass: 2 norms, 4 products, attention, rotation, activation, 2 residuals, biases, layout. */
#define HSPMD_BLOCK_KERNELS 14

/* Bytes moved per parameter at a step's end, 4-byte elements, without the moments, which are read and written: an optimizer reads weight
 * and gradient, and writes the weight (12); clipping reads the gradients for their norm, then reads and writes them (12); they are zeroed
 * (4). With 16-bit weights and gradients and a master copy, add casts to and from fp32 for the reduction (12), unscaling (8), the overflow
 * check (2) and copying back the weights (6), and subtract the half that 16-bit gradients save in zeroing (2). */
#define HSPMD_UPDATE_BYTES 28.0
#define HSPMD_UPDATE_BYTES_MIXED 54.0

/* How many times CPU cores move each byte that they send on and receive: 2 to copy it into a message, 2 to copy it out of one. */
#define HSPMD_COPY_TRAFFIC 4.0

/* The same of a gradient sum: 3 more to add it (two reads and one write). */
#define HSPMD_SUM_TRAFFIC (HSPMD_COPY_TRAFFIC + 3)

/* Fraction of a CUDA device's memory that a caching allocator can fill: an allocator without fragmentation gains 15 % on average over
 * eight language models (GMLake, ASPLOS'24, arXiv 2401.08156, abstract). hspmd's own programs have no fragmentation:
 * runtime/program/memory_plan.c plans all of their memory. */
#define HSPMD_USABLE_MEMORY 0.85

/* Factor by which hspmd's memory plan exceeds what is in use at one time under zb-h1, whose weight gradients end micro-batches in another
 * order than they began: up to 3 %, 1 % on average over the plans of tests/unit/test_solver_memory.c. The other schedules' plans leave
 * smaller gaps or none. */
#define HSPMD_PLAN_GAPS 1.01

/* The same of plans that offload activations and gather weights ahead (ZeRO-3): up to 9 %, 3 % on average over the same plans. */
#define HSPMD_PLAN_GAPS_AHEAD 1.03

/* The same of interleaved plans that gather weights ahead: up to 8 %. */
#define HSPMD_PLAN_GAPS_INTERLEAVED 1.04

/* Bytes of gradients whose messages are joined: hspmd's programs sum no more of a layer at a time (HSPMD_PROGRAM_BUCKET in
 * runtime/program/program.h; test_solver_memory compares). */
#define HSPMD_JOINED_BYTES ((double)(64 << 20))

/* How many times offloaded optimizer state must fit into the host's memory: itself, its part of the image from which a checkpoint is
 * written, and the same of the next plan while state moves to that. Activations must fit once: a plan's are gone when the next begins. */
#define HSPMD_HOST_COPIES 3.0

/* Standard deviation of one device's speed relative to its type's, over devices and over time: on five clusters the average variation
 * within a model is 8 % (Sinha et al., "Not All GPUs Are Created Equal", SC'22, arXiv 2208.11035, abstract), taken as the width that
 * holds 95 %, which is four standard deviations. All devices of a step wait for the slowest. */
#define HSPMD_DEVICE_DEVIATION 0.02

#endif
