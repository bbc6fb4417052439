/* SPDX-License-Identifier: Apache-2.0 */
/* The operators with their inputs and outputs. B samples, T positions, H hidden width, V vocabulary; "acc": the output honours
 * view.accumulate. The gradient of an optional input is an optional output. All activations and parameters of one call have one floating
 * type: F32 or F64 on the CPU device; F32 or BF16 on CUDA, with statistics and gradients of parameters in F32. Tokens and targets are I32.
 * `start` and `full` of a view give a local part's position in the full tensor. */
#ifndef HSPMD_TENSOR_OPCODE_H
#define HSPMD_TENSOR_OPCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/optimizer/optimizer.h"

/* The gated activations: f(gate) * up. */
enum hspmd_activation {
	HSPMD_SILU,
	HSPMD_GELU_TANH,
	HSPMD_GELU_ERF,
	HSPMD_CLAMPED, /* gpt-oss: g sigmoid(1.702 g) (u + 1), where g is at most attr.limit and u within +-attr.limit */
};

/* How a router makes weights of its logits for the experts that a token goes to. */
enum hspmd_router {
	HSPMD_ROUTER_CHOSEN,      /* softmax over the chosen experts */
	HSPMD_ROUTER_ALL,         /* softmax over all experts; the weights of the chosen ones do not add up to 1 */
	HSPMD_ROUTER_SIGMOID,     /* sigmoid, divided by the sum over the chosen experts */
	HSPMD_ROUTER_SIGMOID_ALL, /* sigmoid */
};

enum hspmd_opcode {
	/* tokens[B,T], table[V,H] -> x[B,T,H]. Rows outside the local part of the table give zeros, so a split of V makes x partial. */
	HSPMD_OP_EMBED,
	HSPMD_OP_EMBED_GRAD, /* tokens, dx, table (unread: dtable takes its annotation) -> dtable (acc) */
	/* x[B,T,H], table[P,H] -> x + table[position], position = x.start[1] + t */
	HSPMD_OP_POSITION_EMBED,
	HSPMD_OP_POSITION_EMBED_GRAD, /* dy -> dtable (acc), rows of the positions that are present */
	/* x[..,H], gain[H], bias[H] (optional) -> y, stats[..,2] = mean, 1/std. attr.eps */
	HSPMD_OP_LAYERNORM,
	HSPMD_OP_LAYERNORM_GRAD, /* dy, x, gain, stats -> dx, dgain (acc), dbias (acc) */
	/* x[..,n*H], gain[H] -> y, stats[..,n] = 1/rms, of each of the n parts of a row (a norm of every head). attr.eps; attr.plus_one:
	 * y is multiplied by 1 + gain */
	HSPMD_OP_RMSNORM,
	HSPMD_OP_RMSNORM_GRAD, /* dy, x, gain, stats -> dx, dgain (acc) */
	/* x[..,K], w, bias[N..] (optional) -> y[..,N..]. If attr.transposed, w is [K,N..] (GPT-2's Conv1D), else [N..,K]. N.. may be
	 * several dimensions. If K is split, the part that starts at 0 adds the bias, so that the sum contains it once. */
	HSPMD_OP_LINEAR,
	HSPMD_OP_LINEAR_GRAD_X, /* dy, w -> dx (acc) */
	HSPMD_OP_LINEAR_GRAD_W, /* dy, x -> dw (acc), dbias (acc, optional) */
	/* q[B,Tq,heads*head_dim], k[B,Tk,kv*head_dim], v[same] -> o[B,Tq,heads*head_dim], lse[B,heads,Tq]; or one input
	 * qkv[B,T,3,heads*head_dim]. Causal by global positions (start[1]); attr.head_dim, attr.scale, attr.window (0: none). Grouped
	 * queries: head h reads kv head h / (heads / kv), in global head numbers. Optional input segments[B,T] I32: positions of
	 * different segments do not attend to one another. Optional last input sinks[heads]: a logit per head that takes a part of the
	 * probability and has no value. attr.softcap c > 0: scores become c tanh(score / c). attr.whole_kv: k and v are not split by
	 * heads, and query heads may be split finer than kv heads. Optional input noise[B,T] after that: attr.rate of the probabilities
	 * are dropped, as by DROPOUT. On the CPU device (acc): if k and v are of other positions than in earlier calls, o and lse become
	 * the results over the earlier positions and these together. */
	HSPMD_OP_ATTENTION,
	HSPMD_OP_ATTENTION_GRAD,       /* do, (q, k, v | qkv), o, lse, (segments), (noise) -> (dq, dk, dv: acc on the CPU device | dqkv) */
	HSPMD_OP_ATTENTION_SINKS_GRAD, /* do, o, lse, sinks -> dsinks (acc). attr.head_dim */
	/* qkv[B,T,3,H] -> q, k, v [B,T,H] */
	HSPMD_OP_SPLIT_QKV,
	HSPMD_OP_SPLIT_QKV_GRAD, /* dq, dk, dv -> dqkv */
	/* x[B,T,n*head_dim] -> y; rotary position embedding, position = start[1] + t, of the first attr.rotary elements of each head (0:
	 * of all; attr.head_dim). Pairs are elements i and i + rotary / 2, or if attr.interleaved 2 i and 2 i + 1. Pair i turns by
	 * position * attr.frequencies[i], or NULL: attr.theta^(-2 i / rotary). attr.rotation_scale multiplies rotated elements (0: 1).
	 * If the device has ROPE_TABLE, an optional last input is the table from position start[1] on. */
	HSPMD_OP_ROPE,
	HSPMD_OP_ROPE_GRAD, /* dy -> dx */
	/* x -> y; attr.exact: erf form, else tanh form */
	HSPMD_OP_GELU,
	HSPMD_OP_GELU_GRAD, /* dy, x -> dx */
	/* gate, up -> f(gate) * up; attr.activation */
	HSPMD_OP_SWIGLU,
	HSPMD_OP_SWIGLU_GRAD, /* dy, gate, up -> dgate, dup */
	/* a, b -> a + b; may be done in place on a */
	HSPMD_OP_ADD,
	/* a[B,T,n*p], b[B,T,n*q], or b[B,T,q] for all heads (attr.whole_kv), or absent (zeros) -> y[B,T,n*(p+q)]: the elements of a and
	 * then those of b, head by head. attr.part = p, attr.head_dim = p + q */
	HSPMD_OP_JOIN_HEADS,
	HSPMD_OP_JOIN_HEADS_GRAD, /* dy -> da, db */
	/* x[B,T,n*head_dim] -> y[B,T,n*part]: the first attr.part elements of each head */
	HSPMD_OP_TAKE_HEADS,
	/* x[B,T,H], noise[B,T] I32 -> y: each element is 0 with probability attr.rate, else x / (1 - rate); where noise is negative, x.
	 * Which ones is a function of the noise, attr.random.stream and the element's number in the row (runtime/device/dropout.h). The
	 * gradient is the same operator. */
	HSPMD_OP_DROPOUT,
	/* x -> attr.scale * x */
	HSPMD_OP_SCALE,
	/* x -> attr.softcap * tanh(x / attr.softcap) */
	HSPMD_OP_SOFTCAP,
	HSPMD_OP_SOFTCAP_GRAD, /* dy, y -> dx */
	/* logits[B,T,V], targets[B,T] -> stats[1,B,T,3] of a tensor [P,B,T,3]: largest logit, sum of exp(logit - largest), target's logit
	 * or 0, over the local part of V. P = attr.parts is the number of vocabulary shards; stats.start[0] is the shard. Loss and gradient
	 * ignore targets < 0. */
	HSPMD_OP_VOCAB_STATS,
	/* stats[P,B,T,3], targets[B,T] -> loss[1] F64 (acc) = attr.scale * sum over tokens of (log sum exp - target's logit) */
	HSPMD_OP_LOSS,
	/* logits, targets, stats[P,B,T,3] -> dlogits = attr.scale * (softmax - onehot); may overwrite logits in place */
	HSPMD_OP_LOSS_GRAD,
	/* Mixture of experts. Router logits r[B,T,E], bias[E] (optional: added to the sigmoid, for the choice alone) -> weights[B,T,k]
	 * of the k largest (attr.router, times attr.weight_scale; 0: 1; attr.groups: only experts of the attr.top_groups groups with the
	 * largest sum of attr.group_best members, 1 or 2, are chosen), choice[B,T,k] I32, aux[1] F64 (acc), and load[B,E]. aux:
	 * attr.scale * sum over samples of E * sum over experts of (tokens of the sample sent to the expert) * (mean over the sample of
	 * its probability among all experts). load: the tokens of each sample sent to each expert. */
	HSPMD_OP_TOPK_ROUTER,
	HSPMD_OP_TOPK_ROUTER_GRAD, /* dweights, r, weights, choice, load -> dr, dbias (acc): 0, for the choice has no gradient */
	/* x[B,T,H], choice, weights, gate[E,F,H], up[E,F,H], down[E,H,F], biases of gate[E,F], up[E,F] and down[E,H] (all three or none) ->
	 * y[B,T,H] with the local experts only (partial if E or F is split; the part of F that starts at 0 adds down's bias).
	 * attr.activation */
	HSPMD_OP_EXPERTS,
	/* dy, x, choice, weights, gate, up, down, (biases) -> dx, dweights, dgate (acc), dup (acc), ddown (acc), (dbiases (acc)) */
	HSPMD_OP_EXPERTS_GRAD,
	/* ---- operators outside a model's graph */
	HSPMD_OP_SUM_SQUARES, /* x -> sum[1] F64 (acc); the same bits for any number of threads */
	HSPMD_OP_UPDATE, /* gradient -> parameter, moments (of attr.update.optimizer), updated in place; on CUDA an optional output: the
	                    parameter in BF16, rounded as by CAST. attr.update; the gradient is multiplied by attr.scale */
	HSPMD_OP_NORMAL, /* -> x: normal random numbers from attr.random, a pure function of (seed, stream, index of the element in the full
	                    tensor) */
	HSPMD_OP_FILL,   /* -> x = attr.scale */
	HSPMD_OP_CAST,   /* x -> y of another floating type, rounded to nearest; if attr.stochastic, F32 to BF16 at random
	                    (runtime/device/rounding.h) by attr.random */
	/* ---- two operators of a program in one kernel (runtime/program/fuse_ops.c), for devices that have the kernel
	 * (hspmd_device_has_kernel); runtime/op/fused.c defines inputs and outputs */
	HSPMD_OP_ADD_LAYERNORM,      /* a, b, gain, bias (optional) -> y, stats, a + b */
	HSPMD_OP_ADD_RMSNORM,        /* a, b, gain -> y, stats, a + b */
	HSPMD_OP_LAYERNORM_GRAD_ADD, /* dy, x, gain, stats, addend -> dx + addend, dgain (acc), dbias (acc) */
	HSPMD_OP_RMSNORM_GRAD_ADD,   /* dy, x, gain, stats, addend -> dx + addend, dgain (acc) */
	HSPMD_OP_LINEAR_ADD,         /* x, w, bias (optional), addend -> y + addend */
	HSPMD_OP_LINEAR_GRAD_X_ADD,  /* dy, w, addend -> dx + addend */
	HSPMD_OP_LINEAR_GELU,        /* x, w, bias (optional) -> gelu(y) in tanh form, y (optional) */
	HSPMD_OP_LINEAR_GRAD_X_GELU, /* dy, w, x -> gradient of x, if the product's input was gelu(x) in tanh form */
	/* ---- values that several operators of a program share */
	HSPMD_OP_ROPE_TABLE, /* -> table[1, positions, rotary / 2 pairs] F32, from position start[1] on: cosine and sine in the layout of
	                        ROPE, with its attributes */
	HSPMD_OP_COUNT
};
extern const char *const hspmd_opcode_names[HSPMD_OP_COUNT]; /* "linear" */

#define HSPMD_OP_MAX_IO 10 /* limit of the inputs, and of the outputs, of an operator */

struct hspmd_op_attr {
	int64_t head_dim;
	int64_t heads, kv_heads; /* of the whole tensor */
	int64_t window;
	int64_t part;
	int parts;
	int experts, experts_per_token, groups, top_groups, group_best;
	bool transposed, exact, stochastic, interleaved, plus_one, whole_kv;
	enum hspmd_activation activation;
	enum hspmd_router router;
	double eps, theta, scale, softcap, limit, weight_scale, rate;
	int64_t rotary;
	const double *frequencies; /* borrowed: hspmd_graph_constant */
	double rotation_scale;
	struct hspmd_optimizer_update update;
	struct {
		uint64_t seed, stream; /* stream: hash of the tensor's name; for a rounding also of the number of updates of the state */
		double mean, deviation;
	} random;
};

#endif
