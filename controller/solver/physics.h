/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model's constants that are not in the input: physical, the same for every input, each with its source. */
#ifndef HSPMD_CONTROLLER_SOLVER_PHYSICS_H
#define HSPMD_CONTROLLER_SOLVER_PHYSICS_H

/* Part of a data sheet's peak that large matrix products sustain. NVIDIA's "Matrix Multiplication Background" guide shows 70-85 % on
 * V100 and A100 for dimensions of some thousands; Megatron-LM (arXiv 2104.04473, table 1) reaches 44-52 % of A100's peak for whole steps. */
#define HSPMD_SUSTAINED 0.75

/* Seconds between the starts of two small kernels on a CUDA stream (NVIDIA, "Getting Started with CUDA Graphs": 3.4 us inside a stream, 9.6 us
 * with the launch from the host). */
#define HSPMD_LAUNCH_S 5e-6
/* Kernels of one transformer block's forward pass: 2 norms, 4 products, attention, rotation, activation, 2 residuals, bias and layout. */
#define HSPMD_BLOCK_KERNELS 14

/* Bytes that one Adam update moves for one parameter: reads weight, gradient and two moments, writes weight and two moments, 4 bytes each. */
#define HSPMD_ADAM_BYTES 28

/* Memory of a CUDA device that is not the program's: context and loaded kernels (some 300-500 MB on Volta and newer), library workspaces (cuBLAS
 * 32 MiB on Hopper, 4-8 MiB before) and communication buffers (NCCL: some 100 MB a communicator). */
#define HSPMD_CONTEXT_BYTES (700.0 * 1024 * 1024)

#endif
