/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of this floating type and instruction set, by opcode. */
#include "runtime/device/cpu/kernel.h"

#define KERNELS(X)                                                                                                                           \
	X(EMBED, embed)                                                                                                                      \
	X(EMBED_GRAD, embed_grad)                                                                                                            \
	X(POSITION, position)                                                                                                                \
	X(POSITION_GRAD, position_grad)                                                                                                      \
	X(LAYERNORM, layernorm)                                                                                                              \
	X(LAYERNORM_GRAD, layernorm_grad)                                                                                                    \
	X(RMSNORM, rmsnorm)                                                                                                                  \
	X(RMSNORM_GRAD, rmsnorm_grad)                                                                                                        \
	X(LINEAR, linear)                                                                                                                    \
	X(LINEAR_GRAD_X, linear_grad_x)                                                                                                      \
	X(LINEAR_GRAD_W, linear_grad_w)                                                                                                      \
	X(ATTENTION, attention)                                                                                                              \
	X(ATTENTION_GRAD, attention_grad)                                                                                                    \
	X(ROPE, rope)                                                                                                                        \
	X(ROPE_GRAD, rope_grad)                                                                                                              \
	X(GELU, gelu)                                                                                                                        \
	X(GELU_GRAD, gelu_grad)                                                                                                              \
	X(SWIGLU, swiglu)                                                                                                                    \
	X(SWIGLU_GRAD, swiglu_grad)                                                                                                          \
	X(ADD, add)                                                                                                                          \
	X(VOCAB_STATS, vocab_stats)                                                                                                          \
	X(LOSS, loss)                                                                                                                        \
	X(LOSS_GRAD, loss_grad)                                                                                                              \
	X(ROUTE, route)                                                                                                                      \
	X(ROUTE_GRAD, route_grad)                                                                                                            \
	X(EXPERTS, experts)                                                                                                                  \
	X(EXPERTS_GRAD, experts_grad)                                                                                                        \
	X(SUM_SQUARES, sum_squares)                                                                                                          \
	X(ADAMW, adamw)                                                                                                                      \
	X(NORMAL, normal)                                                                                                                    \
	X(FILL, fill)

#define DECLARE(opcode, name) extern const struct hspmd_cpu_kernel LOCAL(name);
KERNELS(DECLARE)
extern const struct hspmd_cpu_kernel hspmd_cpu_cast;

#define ENTRY(opcode, name) [HSPMD_OP_##opcode] = &LOCAL(name),
const struct hspmd_cpu_kernel *const LOCAL(kernels)[HSPMD_OP_COUNT] = { KERNELS(ENTRY)[HSPMD_OP_CAST] = &hspmd_cpu_cast };
