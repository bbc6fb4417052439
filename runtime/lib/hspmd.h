/* SPDX-License-Identifier: Apache-2.0 */
/* libhspmd: build a graph of your own, say how its tensors lie on devices, and train it on unequal devices of this machine. See hspmd(3).
 *
 * Objects are opaque. Functions return 0, a tensor's number or a pointer; or -1 or NULL, with the reason in *err where they take one (err
 * may be NULL). Nothing here exits, prints, or keeps state between objects. */
#ifndef HSPMD_HSPMD_H
#define HSPMD_HSPMD_H

#include <stdint.h>
#ifndef HSPMD_ERROR_H /* within hspmd's own sources it lies elsewhere */
#include <hspmd/error.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

const char *hspmd_version(void); /* "0.1.0" */

/* ---- building a net
 *
 * A function of the caller builds the net of one micro-batch from its parameters and inputs to its loss; gradients are the library's work.
 * It may be called several times, from several threads, and must build the same net each time but for the micro-batch's size. Tensors are
 * numbers; a call that fails returns -1, calls on tensor -1 return -1, and the training that wanted the net reports the first failure. So
 * nothing has to be checked while building. */
struct hspmd_net;
int64_t hspmd_net_samples(const struct hspmd_net *net); /* of the micro-batch: the first dimension of inputs and activations */
int64_t hspmd_net_length(const struct hspmd_net *net);  /* positions of a sample: their second dimension */
/* What is built from now on belongs to layer `layer`: the plan says which devices have it. Begins at 0, and never goes back. */
void hspmd_net_layer(struct hspmd_net *net, int layer);

/* Inputs are filled by the training's sample reader: [samples, length] of 32-bit integers, or [samples, length, width] of floats. */
int hspmd_net_integers(struct hspmd_net *net, const char *name);
int hspmd_net_floats(struct hspmd_net *net, const char *name, int64_t width);
/* A parameter begins as normally distributed random numbers of this mean and deviation (deviation 0: all are `mean`), the same under every
 * plan. */
int hspmd_net_parameter(struct hspmd_net *net, const char *name, int rank, const int64_t *dims, double mean, double deviation);
/* No weight decay for this parameter (biases, gains). */
void hspmd_net_no_decay(struct hspmd_net *net, int parameter);

/* How a parameter or an input lies on the devices of the stage that has it.
 * split: cut along `dim`, in whole multiples of `unit` elements (the width of a head, else 1), in the plan's shard_ratio. What is not split
 * every device has whole. annotate: by hand, as an annotation over the stage's devices, numbered from 0: "{[0-2]: 0:3(2:1:1)}" is three
 * unequal parts of dimension 0;
 * "{[0,1]: -1:2 | [2]} h0(3:1)" on an input gives three of four samples to devices 0 and 1 together, the fourth to device 2. Nothing in it
 * may be partial. All else follows by deduction, and what must move for it is found by resolution. */
void hspmd_net_split(struct hspmd_net *net, int parameter, int dim, int64_t unit);
void hspmd_net_annotate(struct hspmd_net *net, int tensor, const char *annotation);

/* Operators. x is [samples, length, width]. */
int hspmd_net_embed(struct hspmd_net *net, int integers, int table);      /* table [values, width] */
int hspmd_net_linear(struct hspmd_net *net, int x, int weight, int bias); /* weight [out, in]; bias [out], -1: none */
int hspmd_net_layer_norm(struct hspmd_net *net, int x, int gain, int bias, double eps);
int hspmd_net_rms_norm(struct hspmd_net *net, int x, int gain, double eps);
int hspmd_net_gelu(struct hspmd_net *net, int x);
int hspmd_net_swiglu(struct hspmd_net *net, int gate, int up); /* silu(gate) * up */
int hspmd_net_add(struct hspmd_net *net, int a, int b);
int hspmd_net_positions(struct hspmd_net *net, int x, int table); /* x + table[position]; table [at least length, width] */
int hspmd_net_rope(struct hspmd_net *net, int x, int64_t head_width, double theta);
/* Causal attention with heads of head_width; k and v may have fewer heads than q, by a whole factor. segments: integers, positions of
 * different ones do not see one another; -1: none. */
int hspmd_net_attention(struct hspmd_net *net, int q, int k, int v, int segments, int64_t head_width);
/* The net's loss, once: cross-entropy of softmax(logits) against integers (negative ones count nothing), the mean over all positions of the
 * global batch. */
int hspmd_net_loss(struct hspmd_net *net, int logits, int targets);

/* ---- training
 *
 * A thread a device, messages through memory. What spans processes and machines, and survives them, is hspmd-run(1). */
struct hspmd_training;
/* `layers` is one more than the last hspmd_net_layer. */
struct hspmd_training *hspmd_training_create(void (*build)(void *context, struct hspmd_net *net), void *context, int layers);
void hspmd_training_destroy(struct hspmd_training *t);

/* Each of these before hspmd_training_run. JSON texts are as in hspmd-cluster(5), hspmd-plan(5) (after the cluster) and the optimizer of
 * hspmd-job(5); messages name their keys. The plan says global_batch and seq_len. Without an optimizer: AdamW with a learning rate of
 * 1e-3. */
int hspmd_training_cluster(struct hspmd_training *t, const char *json, struct hspmd_error *err);
int hspmd_training_plan(struct hspmd_training *t, const char *json, struct hspmd_error *err);
int hspmd_training_optimizer(struct hspmd_training *t, const char *json, struct hspmd_error *err);
void hspmd_training_seed(struct hspmd_training *t, uint64_t seed); /* default 1 */
/* Cores of the CPU device "node:index"; default 1. */
int hspmd_training_threads(struct hspmd_training *t, const char *device, int threads, struct hspmd_error *err);
/* Fill `to` with positions [start, start + count) of input `name` of sample `number` of all training: step * global_batch + place in the
 * batch. The same answer whenever and whoever asks; called from several threads at once. Not 0: it could not be done, and training ends. */
void hspmd_training_samples(struct hspmd_training *t,
                            int (*read)(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to),
                            void *context);
/* Steps of several lengths by one program: step s has samples of lengths[which(context, s)] positions, of `count` lengths up to the plan's
 * seq_len. Before the first step one that cannot be split as the plan splits its own is refused, with the multiple that is expected.
 * Without this all have the plan's. */
int hspmd_training_lengths(struct hspmd_training *t, const int64_t *lengths, int count, int (*length_of_step)(void *context, int64_t step),
                           void *context, struct hspmd_error *err);
/* The loss of every step, from one of the threads. */
void hspmd_training_on_loss(struct hspmd_training *t, void (*on_loss)(void *context, int64_t step, double loss), void *context);

/* What the device "node:index" will do in a step, an instruction a line, and its memory. To be freed by the caller. */
char *hspmd_training_program(struct hspmd_training *t, const char *device, struct hspmd_error *err);
/* Train from random parameters. A plan that does not fit the net is an error here, before the first step. */
int hspmd_training_run(struct hspmd_training *t, int64_t steps, struct hspmd_error *err);
/* A whole parameter as the last run left it: count floats, row-major. */
int hspmd_training_parameter(struct hspmd_training *t, const char *name, float *to, int64_t count, struct hspmd_error *err);

#ifdef __cplusplus
}
#endif
#endif
