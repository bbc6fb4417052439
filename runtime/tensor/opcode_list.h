/* SPDX-License-Identifier: Apache-2.0 */
/* The operators with their inputs and outputs: one line each. Whoever includes this file (any number of times) defines OP(opcode, name) for
 * all of them, or some of OP_GRAPH (operators of a graph), OP_STATE (of programs alone: on parameters and optimizer state, and the loss
 * with its gradient), OP_CAST, OP_FUSED, OP_FUSED_SUM and OP_TABLE (only some devices have these: hspmd_device_has_kernel); they are
 * undefined at the end.
 *
 * B samples, T positions, H hidden width, V vocabulary; "acc": the output honours view.accumulate. The gradient of an optional input is an
 * optional output. All activations and parameters of one call have one floating type: F32 or F64 on the CPU device; F32 or BF16 on CUDA,
 * with statistics and gradients of parameters in F32. Tokens and targets are I32. `start` and `full` of a view give a local part's position
 * in the full tensor. */
#ifndef OP
#define OP(opcode, name)
#endif
#ifndef OP_GRAPH
#define OP_GRAPH OP
#endif
#ifndef OP_STATE
#define OP_STATE OP
#endif
#ifndef OP_CAST
#define OP_CAST OP
#endif
#ifndef OP_FUSED
#define OP_FUSED OP
#endif
#ifndef OP_FUSED_SUM
#define OP_FUSED_SUM OP_FUSED
#endif
#ifndef OP_TABLE
#define OP_TABLE OP
#endif

/* tokens[B,T], table[V,H] -> x[B,T,H]. Rows outside the local part of the table give zeros, so a split of V makes x partial. */
OP_GRAPH(EMBED, embed)
/* tokens, dx, table (unread: dtable takes its annotation) -> dtable (acc) */
OP_GRAPH(EMBED_GRAD, embed_grad)
/* x[B,T,H], table[P,H] -> x + table[position], position = x.start[1] + t */
OP_GRAPH(POSITION_EMBED, position_embed)
/* dy -> dtable (acc), rows of the positions that are present */
OP_GRAPH(POSITION_EMBED_GRAD, position_embed_grad)
/* x[..,H], gain[H], bias[H] (optional) -> y, stats[..,2] = mean, 1/std. attr.eps */
OP_GRAPH(LAYERNORM, layernorm)
/* dy, x, gain, stats -> dx, dgain (acc), dbias (acc) */
OP_GRAPH(LAYERNORM_GRAD, layernorm_grad)
/* x[..,n*H], gain[H] -> y, stats[..,n] = 1/rms, of each of the n parts of a row (a norm of every head). attr.eps; attr.plus_one: y is
 * multiplied by 1 + gain */
OP_GRAPH(RMSNORM, rmsnorm)
/* dy, x, gain, stats -> dx, dgain (acc) */
OP_GRAPH(RMSNORM_GRAD, rmsnorm_grad)
/* x[..,K], w, bias[N..] (optional) -> y[..,N..]. If attr.transposed, w is [K,N..] (GPT-2's Conv1D), else [N..,K]. N.. may be several
 * dimensions. If K is split, the part that starts at 0 adds the bias, so that the sum contains it once. */
OP_GRAPH(LINEAR, linear)
/* dy, w -> dx (acc) */
OP_GRAPH(LINEAR_GRAD_X, linear_grad_x)
/* dy, x -> dw (acc), dbias (acc, optional) */
OP_GRAPH(LINEAR_GRAD_W, linear_grad_w)
/* x[..,K], w, bias[N..] (optional), history[2,64], weight_history[1,64] -> y[..,N..], as LINEAR of x and w that are rounded to E4M3 with
 * scales from their amax histories (runtime/tensor/fp8.h: of x, then of dy; of w). The sums are of F32. attr.scale: factor of the loss */
OP_GRAPH(LINEAR_FP8, linear_fp8)
/* dy, w, history, weight_history -> dx (acc), as of dy that is rounded to E5M2, dweight_history (acc): the thermometer of w's amax */
OP_GRAPH(LINEAR_FP8_GRAD_X, linear_fp8_grad_x)
/* dy, x, history -> dw (acc), dbias (acc, optional; of dy itself), dhistory (acc): the thermometers of x and dy */
OP_GRAPH(LINEAR_FP8_GRAD_W, linear_fp8_grad_w)
/* q[B,Tq,heads*head_dim], k[B,Tk,kv*head_dim], v[same] -> o[B,Tq,heads*head_dim], lse[B,heads,Tq]; or one input
 * qkv[B,T,3,heads*head_dim]. Causal by global positions (start[1]); attr.head_dim, attr.scale, attr.window (0: none). Grouped queries:
 * head h reads kv head h / (heads / kv), in global head numbers. Optional input segments[B,T] I32: positions of different segments do
 * not attend to one another. Optional last input sinks[heads]: a logit per head that takes a part of the probability and has no value.
 * attr.softcap c > 0: scores become c tanh(score / c). attr.whole_kv: k and v are not split by heads, and query heads may be split finer
 * than kv heads. Optional input noise[B,T] after that: attr.rate of the probabilities are dropped, as by DROPOUT. Optional input
 * mask[B,heads,Tq,Tk] after that, each dimension of which may be 1: is added to the scores; has no gradient. attr.bidirectional: not
 * causal; k and v may have any length, and attr.window counts to both sides. On the CPU device (acc): if k and v are of other positions
 * than in earlier calls, o and lse become the results over the earlier positions and these together. */
OP_GRAPH(ATTENTION, attention)
/* do, (q, k, v | qkv), o, lse, (segments), (noise), (mask) -> (dq, dk, dv: acc on the CPU device | dqkv) */
OP_GRAPH(ATTENTION_GRAD, attention_grad)
/* do, o, lse, sinks -> dsinks (acc). attr.head_dim */
OP_GRAPH(ATTENTION_SINKS_GRAD, attention_sinks_grad)
/* qkv[B,T,3,H] -> q, k, v [B,T,H] */
OP_GRAPH(SPLIT_QKV, split_qkv)
/* dq, dk, dv -> dqkv */
OP_GRAPH(SPLIT_QKV_GRAD, split_qkv_grad)
/* x[B,T,n*head_dim] -> y; rotary position embedding, position = start[1] + t, of the first attr.rotary elements of each head (0: of all;
 * attr.head_dim). Pairs are elements i and i + rotary / 2, or if attr.interleaved 2 i and 2 i + 1. Pair i turns by position *
 * attr.frequencies[i], or NULL: attr.theta^(-2 i / rotary). attr.rotation_scale multiplies rotated elements (0: 1). If the device has
 * ROPE_TABLE, an optional last input is the table from position start[1] on. */
OP_GRAPH(ROPE, rope)
/* dy -> dx */
OP_GRAPH(ROPE_GRAD, rope_grad)
/* x -> y; attr.exact: erf form, else tanh form */
OP_GRAPH(GELU, gelu)
/* dy, x -> dx */
OP_GRAPH(GELU_GRAD, gelu_grad)
/* gate, up -> f(gate) * up; attr.activation */
OP_GRAPH(SWIGLU, swiglu)
/* dy, gate, up -> dgate, dup */
OP_GRAPH(SWIGLU_GRAD, swiglu_grad)
/* a, b -> a + b; may be done in place on a */
OP_GRAPH(ADD, add)
/* x, parameter (unread: y takes its annotation) -> y (acc): adds a gradient to a parameter's. attr.kind 1: addends that are partial are
 * summed first, for others are not */
OP_GRAPH(ACCUMULATE, accumulate)
/* a[B,T,n*p], b[B,T,n*q], or b[B,T,q] for all heads (attr.whole_kv), or absent (zeros) -> y[B,T,n*(p+q)]: the elements of a and then those
 * of b, head by head. attr.part = p, attr.head_dim = p + q */
OP_GRAPH(JOIN_HEADS, join_heads)
/* dy -> da, db */
OP_GRAPH(JOIN_HEADS_GRAD, join_heads_grad)
/* x[B,T,n*head_dim] -> y[B,T,n*part]: the first attr.part elements of each head */
OP_GRAPH(TAKE_HEADS, take_heads)
/* x[B,T,H], noise[B,T] I32 -> y: each element is 0 with probability attr.rate, else x / (1 - rate); where noise is negative, x. Which ones
 * is a function of the noise, attr.random.stream and the element's number in the row (runtime/device/dropout.h). The gradient is the same
 * operator. */
OP_GRAPH(DROPOUT, dropout)
/* x -> attr.scale * x */
OP_GRAPH(SCALE, scale)
/* x -> attr.softcap * tanh(x / attr.softcap) */
OP_GRAPH(SOFTCAP, softcap)
/* dy, y -> dx */
OP_GRAPH(SOFTCAP_GRAD, softcap_grad)
/* logits[B,T,V], targets[B,T] -> stats[1,B,T,3] of a tensor [P,B,T,3]: largest logit, sum of exp(logit - largest), target's logit or 0,
 * over the local part of V; with attr.smoothing > 0 also the sum of logits divided by V. P = attr.parts is the number of vocabulary shards;
 * stats.start[0] is the shard. Loss and gradient ignore targets < 0, and if attr.ignores the target numbers[0]. */
OP_GRAPH(VOCAB_STATS, vocab_stats)
/* stats[P,B,T,3], targets[B,T], weights[B,T] (optional) -> loss[1] F64 (acc) = attr.scale * sum over tokens of weight * (log sum exp -
 * target's logit), where with s = attr.smoothing the target's logit counts as (1 - s) times itself plus s times the mean of all logits */
OP_GRAPH(LOSS, loss)
/* logits, targets, stats[P,B,T,3], weights (optional) -> dlogits = attr.scale * weight * (softmax - (1 - s) onehot - s / V); may overwrite
 * logits in place */
OP_GRAPH(LOSS_GRAD, loss_grad)
/* Mixture of experts. Router logits r[B,T,E], bias[E] (optional: added to the sigmoid, for the choice alone) -> weights[B,T,k] of the k
 * largest (attr.router, times attr.weight_scale; 0: 1; attr.groups: only experts of the attr.top_groups groups with the largest sum of
 * attr.group_best members, 1 or 2, are chosen), choice[B,T,k] I32, aux[1] F64 (acc), and load[B,E]. aux: attr.scale * sum over samples of
 * E * sum over experts of (tokens of the sample sent to the expert) * (mean over the sample of its probability among all experts). load:
 * the tokens of each sample sent to each expert. */
OP_GRAPH(TOPK_ROUTER, topk_router)
/* dweights, r, weights, choice, load -> dr, dbias (acc): 0, for the choice has no gradient */
OP_GRAPH(TOPK_ROUTER_GRAD, topk_router_grad)
/* x[B,T,H], choice, weights, gate[E,F,H], up[E,F,H], down[E,H,F], biases of gate[E,F], up[E,F] and down[E,H] (all three or none) ->
 * y[B,T,H] with the local experts only (partial if E or F is split; the part of F that starts at 0 adds down's bias). attr.activation */
OP_GRAPH(EXPERTS, experts)
/* dy, x, choice, weights, gate, up, down, (biases) -> dx, dweights, dgate (acc), dup (acc), ddown (acc), (dbiases (acc)) */
OP_GRAPH(EXPERTS_GRAD, experts_grad)
/* x, choice, weights, gate, up, down, history[9,64] -> y, as EXPERTS without biases of which each operand of a product is rounded to E4M3,
 * with a scale from its amax history (runtime/tensor/fp8.h, enum hspmd_experts_operand). The sums are of F32, and what is between the
 * products has the type of x. attr.scale: factor of the loss */
OP_GRAPH(EXPERTS_FP8, experts_fp8)
/* dy, x, choice, weights, gate, up, down, history -> dx, dweights, dgate (acc), dup (acc), ddown (acc), dhistory (acc): thermometers. dy
 * and gradients of gate and up are rounded to E5M2 */
OP_GRAPH(EXPERTS_FP8_GRAD, experts_fp8_grad)
/* ---- general operators: any number of dimensions; attr.numbers holds what is said of numbers[] */
/* x -> f(x); attr.kind is an hspmd_unary. May be done in place */
OP_GRAPH(UNARY, unary)
/* dy, x (SILU, LOG, POWER) or y (the others) -> dx */
OP_GRAPH(UNARY_GRAD, unary_grad)
/* a, b -> a + b, a - b, a b or a / b; attr.kind is an hspmd_binary. Dimensions are aligned at the last; where one tensor has no
 * dimension or one element, it is repeated */
OP_GRAPH(BINARY, binary)
/* x -> y: attr.scale times the sum (attr.kind HSPMD_REDUCE_SUM), or the largest, over the dimensions whose bits are set in numbers[0]. y
 * lacks them, or if numbers[1] is 1 has one element there, or no dimension (aligned at the last) */
OP_GRAPH(REDUCE, reduce)
/* dy, y, x -> dx of the largest: equal shares for equal elements */
OP_GRAPH(MAX_GRAD, max_grad)
/* x -> y: attr.scale x, repeated along the dimensions of y whose bits are set in numbers[0]; x has them or not as y of REDUCE.
 * numbers[2] is the rank of y, then its dimensions (not for gradients) */
OP_GRAPH(BROADCAST, broadcast)
/* x -> y: the same elements in numbers[0] dimensions, which follow; one may be -1. May be done in place */
OP_GRAPH(RESHAPE, reshape)
/* x -> y: dimension d of y is dimension numbers[d] of x */
OP_GRAPH(TRANSPOSE, transpose)
/* x -> y: the box of x that begins at numbers[0..5] and has sizes numbers[6..11] */
OP_GRAPH(SLICE, slice)
/* x -> y: zeros of sizes numbers[6..11], with x from numbers[0..5] on */
OP_GRAPH(PAD, pad)
/* x, x, .. -> y: one after another along dimension numbers[0] */
OP_GRAPH(CONCAT, concat)
/* x[B..,N,R..], index[B..,K..] I32 -> y[B..,K..,R..]; numbers[0]: dimensions in B.. . Rows outside the local part of N give zeros */
OP_GRAPH(GATHER, gather)
/* dy, index, x (unread: dx takes its annotation) -> dx (acc) */
OP_GRAPH(GATHER_GRAD, gather_grad)
/* a, b -> y: the product of the matrices in the last two dimensions, for each combination of the others (acc). attr.kind: 1 if those of
 * a are transposed, plus 2 if those of b are */
OP_GRAPH(MATMUL, matmul)
/* x -> y: softmax over the last dimension; may be done in place */
OP_GRAPH(SOFTMAX, softmax)
/* dy, y -> dx; may be done in place */
OP_GRAPH(SOFTMAX_GRAD, softmax_grad)
/* x[B,C,..], gain[C], bias[C] -> y, stats[B,attr.groups,2] = mean, 1/std over the channels and positions of each group. attr.eps */
OP_GRAPH(GROUP_NORM, group_norm)
/* dy, x, gain, stats -> dx, dgain (acc), dbias (acc) */
OP_GRAPH(GROUP_NORM_GRAD, group_norm_grad)
/* x[B,C,H,W], w[O,C/groups,h,w], bias[O] (optional) -> y[B,O,..]. attr.groups (0: 1); numbers: stride, padding, dilation, each for rows and
 * columns. If C is split, the part that starts at 0 adds the bias */
OP_GRAPH(CONV, conv)
/* dy, w -> dx */
OP_GRAPH(CONV_GRAD_X, conv_grad_x)
/* dy, x -> dw (acc), dbias (acc, optional) */
OP_GRAPH(CONV_GRAD_W, conv_grad_w)
/* x[B,C,H,W] -> y: the largest (attr.kind HSPMD_REDUCE_MAX) or the mean (HSPMD_REDUCE_SUM) of a window. numbers: window, stride,
 * padding, each for rows and columns. Padding counts as 0 for the mean */
OP_GRAPH(POOL, pool)
/* dy, x -> dx */
OP_GRAPH(POOL_GRAD, pool_grad)
/* x, y (not for HSPMD_LOSS_SUM), weights (optional; the first dimensions of x) -> loss[1] F64 (acc) = attr.scale * sum over the elements of
 * weight * f(x, y); attr.kind is an hspmd_loss */
OP_GRAPH(ELEMENT_LOSS, element_loss)
/* x, y, weights -> dx */
OP_GRAPH(ELEMENT_LOSS_GRAD, element_loss_grad)
/* x -> y: the same; placed by the user, whose annotation of y asks for communication. May be done in place */
OP_GRAPH(RESHARD, reshard)

/* ---- operators outside a model's graph */
/* x -> sum[1] F64 (acc); the same bits for any number of threads */
OP_STATE(SUM_SQUARES, sum_squares)
/* gradient -> parameter, moments (of attr.update.optimizer), updated in place; on CUDA an optional output: the parameter in BF16, rounded
 * as by CAST. attr.update; the gradient is multiplied by attr.scale. attr.history: the parameter is an amax history
 * (runtime/tensor/fp8.h), and its moments stay */
OP_STATE(UPDATE, update)
/* -> x: normal random numbers from attr.random, a pure function of (seed, stream, index of the element in the full tensor) */
OP_STATE(NORMAL, normal)
/* -> x = attr.scale */
OP_STATE(FILL, fill)
/* logits[B,T,V], targets[B,T], weights[B,T] (optional) -> dlogits, as LOSS_GRAD; may overwrite logits in place; stats[1,B,T,3], as
 * VOCAB_STATS: both at once where the vocabulary is whole, with the bits of one after the other (runtime/program/fuse_ops.c). attr of
 * LOSS_GRAD */
OP_STATE(CROSS_ENTROPY, cross_entropy)
/* x -> y of another floating type, rounded to nearest; if attr.stochastic, F32 to BF16 at random (runtime/device/rounding.h) by
 * attr.random. In a graph attr.kind is the type of y */
OP_CAST(CAST, cast)

/* ---- two operators of a program in one kernel (runtime/program/fuse_ops.c), for devices that have the kernel
 * (hspmd_device_has_kernel); OP_FUSED_SUM: a gradient that is added to another one; runtime/op/fused.c defines inputs and outputs */
/* a, b, gain, bias (optional) -> y, stats, a + b */
OP_FUSED(ADD_LAYERNORM, add_layernorm)
/* a, b, gain -> y, stats, a + b */
OP_FUSED(ADD_RMSNORM, add_rmsnorm)
/* dy, x, gain, stats, addend -> dx + addend, dgain (acc), dbias (acc) */
OP_FUSED_SUM(LAYERNORM_GRAD_ADD, layernorm_grad_add)
/* dy, x, gain, stats, addend -> dx + addend, dgain (acc) */
OP_FUSED_SUM(RMSNORM_GRAD_ADD, rmsnorm_grad_add)
/* x, w, bias (optional), addend -> y + addend */
OP_FUSED(LINEAR_ADD, linear_add)
/* dy, w, addend -> dx + addend */
OP_FUSED_SUM(LINEAR_GRAD_X_ADD, linear_grad_x_add)
/* x, w, bias (optional) -> gelu(y) in tanh form, y (optional) */
OP_FUSED(LINEAR_GELU, linear_gelu)
/* dy, w, x -> gradient of x, if the product's input was gelu(x) in tanh form */
OP_FUSED(LINEAR_GRAD_X_GELU, linear_grad_x_gelu)
/* inputs of ATTENTION_GRAD with q, k and v (absent ones: none), table of ROPE_TABLE -> gradients of what whole heads of q and k were before
 * ROPE turned them, in pairs of elements that are not neighbours; dv */
OP_FUSED(ATTENTION_GRAD_ROPE, attention_grad_rope)

/* ---- values that several operators of a program share */
/* -> table[1, positions, rotary / 2 pairs] F32, from position start[1] on: cosine and sine in the layout of ROPE, with its attributes */
OP_TABLE(ROPE_TABLE, rope_table)

#undef OP
#undef OP_GRAPH
#undef OP_STATE
#undef OP_CAST
#undef OP_FUSED
#undef OP_FUSED_SUM
#undef OP_TABLE
