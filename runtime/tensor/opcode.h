/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, names and attributes of the operators, which opcode_list.h lists. */
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

/* attr.kind of UNARY. */
enum hspmd_unary {
	HSPMD_UNARY_RELU,
	HSPMD_UNARY_SIGMOID,
	HSPMD_UNARY_SILU,
	HSPMD_UNARY_TANH,
	HSPMD_UNARY_EXP,
	HSPMD_UNARY_LOG,
	HSPMD_UNARY_SQRT,
	HSPMD_UNARY_POWER, /* x^attr.exponent */
	HSPMD_UNARY_COUNT
};

/* attr.kind of BINARY. */
enum hspmd_binary { HSPMD_BINARY_ADD, HSPMD_BINARY_SUB, HSPMD_BINARY_MUL, HSPMD_BINARY_DIV };

/* attr.kind of REDUCE. */
enum hspmd_reduction { HSPMD_REDUCE_SUM, HSPMD_REDUCE_MAX };

/* attr.kind of ELEMENT_LOSS. */
enum hspmd_loss {
	HSPMD_LOSS_SUM,      /* x */
	HSPMD_LOSS_SQUARED,  /* (x - y)^2 */
	HSPMD_LOSS_LOGISTIC, /* the cross-entropy of sigmoid(x) against the probability y */
	HSPMD_LOSS_COUNT
};

/* How a router makes weights of its logits for the experts that a token goes to. */
enum hspmd_router {
	HSPMD_ROUTER_CHOSEN,      /* softmax over the chosen experts */
	HSPMD_ROUTER_ALL,         /* softmax over all experts; the weights of the chosen ones do not add up to 1 */
	HSPMD_ROUTER_SIGMOID,     /* sigmoid, divided by the sum over the chosen experts */
	HSPMD_ROUTER_SIGMOID_ALL, /* sigmoid */
};

enum hspmd_opcode {
#define OP(opcode, name) HSPMD_OP_##opcode,
#include "runtime/tensor/opcode_list.h"
	HSPMD_OP_COUNT
};
extern const char *const hspmd_opcode_names[HSPMD_OP_COUNT]; /* "linear" */

#define HSPMD_OP_MAX_IO 10 /* limit of the inputs, and of the outputs, of an operator */

#define HSPMD_ATTENTION_GRAD_ANGLES 9 /* the input of ATTENTION_GRAD_ROPE that is the table */

#define HSPMD_OP_MAX_NUMBERS 12

struct hspmd_op_attr {
	int kind;                              /* of operators that are several functions: HSPMD_UNARY_... */
	int64_t numbers[HSPMD_OP_MAX_NUMBERS]; /* what opcode_list.h says of the operator */
	int64_t head_dim;
	int64_t heads, kv_heads; /* of the whole tensor */
	int64_t window;
	int64_t part;
	int parts;
	int experts, experts_per_token, groups, top_groups, group_best;
	bool transposed, exact, stochastic, interleaved, plus_one, whole_kv, bidirectional, ignores, history;
	enum hspmd_activation activation;
	enum hspmd_router router;
	double eps, theta, scale, softcap, limit, weight_scale, rate, exponent, smoothing;
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
