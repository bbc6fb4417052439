/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model's constants that are not in the input: physical, the same for every input, each with its source. */
#ifndef HSPMD_CONTROLLER_SOLVER_PHYSICS_H
#define HSPMD_CONTROLLER_SOLVER_PHYSICS_H

/* Part of a data sheet's peak that large matrix products sustain: 65-90 % for dimensions of some thousands (NVIDIA, "Matrix Multiplication
 * Background", on V100 and A100). Whole steps reach less (Megatron-LM 44-52 % of A100's peak, arXiv 2104.04473, table 1): the rest of a layer is
 * counted by the bytes it moves. */
#define HSPMD_SUSTAINED_FLOPS 0.7

/* Part of a data sheet's memory rate that streaming kernels reach: 83 % on V100, 69-74 % on T4 (Jia et al., arXiv 1804.06826 and 1903.07486). */
#define HSPMD_SUSTAINED_MEMORY 0.75

/* How often a transformer's forward pass moves each byte that it keeps for the backward pass, reads and writes together.
 * Counted over a block of Megatron's (h: bytes of one hidden state, a: of one attention matrix): kept 17 h + 2.5 a; moved with one kernel an
 * operation and a softmax in fp32 47 h + 16 a, of which the products' own operands are 20 h + 3 a; where masks, softmax and dropout are separate
 * kernels with casts between them 100 h + 17 a. Both ratios lie near 6. Fused attention (arXiv 2205.14135) has no a at all. */
#define HSPMD_TRAFFIC 6.0

/* Seconds between the starts of two kernels launched by a host program, and kernels of one block's forward pass: 3.4 us inside a stream, 9.6 us with
 * the launch (NVIDIA, "Getting Started with CUDA Graphs"); 2 norms, 4 products, attention, rotation, activation, 2 residuals, biases, layout. */
#define HSPMD_LAUNCH_S 5e-6
#define HSPMD_BLOCK_KERNELS 14

/* Bytes moved for one parameter by a step's end, 4-byte elements: Adam reads weight, gradient, two moments and writes weight and moments (28);
 * clipping reads the gradients for their norm, then reads and writes them (12); they are zeroed (4). With 16-bit weights and gradients beside a master
 * copy: casts to and from fp32 for the reduction (12), unscaling (8), the overflow check (2) and the copy back (6) come on top, less the half
 * that 16-bit gradients save in zeroing (2). */
#define HSPMD_UPDATE_BYTES 44.0
#define HSPMD_UPDATE_BYTES_MIXED 70.0

/* Memory of a CUDA device that is taken before the program has any: context and kernels (Hugging Face Transformers' documentation, "Model training
 * anatomy": 1343 MB with PyTorch). */
#define HSPMD_CONTEXT_BYTES (1343.0 * 1024 * 1024)

/* Part of a CUDA device's memory that a caching allocator can fill: it loses 15 % to fragments on average (GMLake, ASPLOS'24, arXiv 2401.08156,
 * abstract). hspmd's own programs have none: place.c plans them whole. */
#define HSPMD_FILLABLE 0.85

/* Standard deviation of one device's speed around its type's, over devices and over time: 8 % from slowest to fastest within a model on five
 * clusters (Sinha et al., "Not All GPUs Are Created Equal", SC'22, arXiv 2208.11035), four standard deviations. All devices of a step wait for
 * the slowest. */
#define HSPMD_DEVICE_DEVIATION 0.02

#endif
