/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of opcode.h as X(OPCODE, name), for tables of operators. Those of HSPMD_OPS_TYPED compute in one floating type. */
#ifndef HSPMD_TENSOR_OPCODE_LIST_H
#define HSPMD_TENSOR_OPCODE_LIST_H

#define HSPMD_OPS_TYPED(X)                                                                                                                 \
	X(EMBED, embed)                                                                                                                    \
	X(EMBED_GRAD, embed_grad)                                                                                                          \
	X(POSITION_EMBED, position_embed)                                                                                                  \
	X(POSITION_EMBED_GRAD, position_embed_grad)                                                                                        \
	X(LAYERNORM, layernorm)                                                                                                            \
	X(LAYERNORM_GRAD, layernorm_grad)                                                                                                  \
	X(RMSNORM, rmsnorm)                                                                                                                \
	X(RMSNORM_GRAD, rmsnorm_grad)                                                                                                      \
	X(LINEAR, linear)                                                                                                                  \
	X(LINEAR_GRAD_X, linear_grad_x)                                                                                                    \
	X(LINEAR_GRAD_W, linear_grad_w)                                                                                                    \
	X(ATTENTION, attention)                                                                                                            \
	X(ATTENTION_GRAD, attention_grad)                                                                                                  \
	X(ATTENTION_SINKS_GRAD, attention_sinks_grad)                                                                                      \
	X(SPLIT_QKV, split_qkv)                                                                                                            \
	X(SPLIT_QKV_GRAD, split_qkv_grad)                                                                                                  \
	X(ROPE, rope)                                                                                                                      \
	X(ROPE_GRAD, rope_grad)                                                                                                            \
	X(GELU, gelu)                                                                                                                      \
	X(GELU_GRAD, gelu_grad)                                                                                                            \
	X(SWIGLU, swiglu)                                                                                                                  \
	X(SWIGLU_GRAD, swiglu_grad)                                                                                                        \
	X(ADD, add)                                                                                                                        \
	X(JOIN_HEADS, join_heads)                                                                                                          \
	X(JOIN_HEADS_GRAD, join_heads_grad)                                                                                                \
	X(TAKE_HEADS, take_heads)                                                                                                          \
	X(DROPOUT, dropout)                                                                                                                \
	X(SCALE, scale)                                                                                                                    \
	X(SOFTCAP, softcap)                                                                                                                \
	X(SOFTCAP_GRAD, softcap_grad)                                                                                                      \
	X(VOCAB_STATS, vocab_stats)                                                                                                        \
	X(LOSS, loss)                                                                                                                      \
	X(LOSS_GRAD, loss_grad)                                                                                                            \
	X(TOPK_ROUTER, topk_router)                                                                                                        \
	X(TOPK_ROUTER_GRAD, topk_router_grad)                                                                                              \
	X(EXPERTS, experts)                                                                                                                \
	X(EXPERTS_GRAD, experts_grad)                                                                                                      \
	X(SUM_SQUARES, sum_squares)                                                                                                        \
	X(UPDATE, update)                                                                                                                  \
	X(NORMAL, normal)                                                                                                                  \
	X(FILL, fill)

/* Two operators in one kernel. */
#define HSPMD_OPS_FUSED(X)                                                                                                                 \
	X(ADD_LAYERNORM, add_layernorm)                                                                                                    \
	X(ADD_RMSNORM, add_rmsnorm)                                                                                                        \
	X(LAYERNORM_GRAD_ADD, layernorm_grad_add)                                                                                          \
	X(RMSNORM_GRAD_ADD, rmsnorm_grad_add)                                                                                              \
	X(LINEAR_ADD, linear_add)                                                                                                          \
	X(LINEAR_GRAD_X_ADD, linear_grad_x_add)                                                                                            \
	X(LINEAR_GELU, linear_gelu)                                                                                                        \
	X(LINEAR_GRAD_X_GELU, linear_grad_x_gelu)

/* Operators that only some devices have (hspmd_device_has_kernel). */
#define HSPMD_OPS_EXTRA(X) HSPMD_OPS_FUSED(X) X(ROPE_TABLE, rope_table)

#define HSPMD_OPS(X) HSPMD_OPS_TYPED(X) X(CAST, cast) HSPMD_OPS_EXTRA(X)

#endif
