/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model's constants that are not in the input: physical, the same for every input, each with its source. "At second hand": the
 * figure is quoted from others who cite the source, not from the source itself. */
#ifndef HSPMD_COST_COST_CONSTANTS_H
#define HSPMD_COST_COST_CONSTANTS_H

/* Part of a data sheet's peak that large matrix products sustain, where nobody measured `tflops`. It lies between what whole training steps
 * reach, 44-52 % (137 to 163 of an A100's 312 TFLOP/s; Megatron-LM, arXiv 2104.04473, table 1), and all of it: the geometric mean of 48 %
 * and 100 %. */
#define HSPMD_SUSTAINED_FLOPS 0.7

/* Part of a data sheet's memory rate that streaming kernels reach: 83 % on V100, 69 % on T4 (Jia et al., arXiv 1804.06826 and 1903.07486,
 * memory throughput; at second hand); their mean. */
#define HSPMD_SUSTAINED_MEMORY 0.76

/* How often the forward pass of a framework that fuses nothing moves each byte that it keeps for the backward pass, reads and writes
 * together; for layers of which no more is known than what they keep (a model's are counted one by one). Counted over a block of Megatron's
 * (h: bytes of one hidden state, a: of one attention matrix): kept 17 h + 2.5 a (arXiv 2205.05198, section 4.1); moved where masks, softmax
 * and dropout are kernels of their own with casts between them 100 h + 17 a: 5.9 and 6.8 times as much. */
#define HSPMD_TRAFFIC 6.0

/* Seconds between two kernels that a host program launches one behind the other, and kernels of one block's forward pass: a kernel of 2.9
 * us takes 3.8 us (NVIDIA, "Getting Started with CUDA Graphs", at second hand); 2 norms, 4 products, attention, rotation, activation, 2
 * residuals, biases, layout. */
#define HSPMD_LAUNCH_S 0.9e-6
#define HSPMD_BLOCK_KERNELS 14

/* Bytes moved for one parameter by a step's end, 4-byte elements: Adam reads weight, gradient, two moments and writes weight and moments
 * (28); clipping reads the gradients for their norm, then reads and writes them (12); they are zeroed (4). With 16-bit weights and
 * gradients beside a master copy: casts to and from fp32 for the reduction (12), unscaling (8), the overflow check (2) and the copy back
 * (6) come on top, less the half that 16-bit gradients save in zeroing (2). */
#define HSPMD_UPDATE_BYTES 44.0
#define HSPMD_UPDATE_BYTES_MIXED 70.0

/* How often cores move each byte of a sum of gradients over a network: into a message and out of one by copies, 2 each; into the other's,
 * which reads both and writes one. */
#define HSPMD_SUM_TRAFFIC 7.0

/* Memory of a CUDA device that is taken before the program has any: context and kernels (Hugging Face Transformers' documentation, "Model
 * training anatomy": 1343 MB once PyTorch has put one element there). */
#define HSPMD_CONTEXT_BYTES (1343.0 * 1024 * 1024)

/* Part of a CUDA device's memory that a caching allocator can fill: what an allocator without fragments wins back is 15 % on average over
 * eight language models (GMLake, ASPLOS'24, arXiv 2401.08156, abstract). hspmd's own programs have none: runtime/program/memory_plan.c
 * plans them whole. */
#define HSPMD_USABLE_MEMORY 0.85

/* Standard deviation of one device's speed around its type's, over devices and over time: on five clusters 8 % variation within a model on
 * average (Sinha et al., "Not All GPUs Are Created Equal", SC'22, arXiv 2208.11035, abstract), taken as the width that holds 95 %, four
 * standard deviations. All devices of a step wait for the slowest. */
#define HSPMD_DEVICE_DEVIATION 0.02

#endif
