/* SPDX-License-Identifier: Apache-2.0 */
/* libhspmd: build a graph of your own, choose how its tensors are distributed over devices, and train it on heterogeneous devices of
 * this machine. See hspmd(3).
 *
 * Objects are opaque. Functions return 0, a tensor's number or a pointer on success; on failure -1 or NULL, with the reason in *err if
 * they take one (err may be NULL). Nothing here exits, prints, or keeps state between objects. */
#ifndef HSPMD_HSPMD_H
#define HSPMD_HSPMD_H

#include <stdint.h>
#ifndef HSPMD_ERROR_H /* hspmd's own sources include this file from another folder */
#include <hspmd/error.h>
#endif

#if defined(__GNUC__) || defined(__clang__)
#define HSPMD_DEPRECATED(advice) __attribute__((deprecated(advice)))
#else
#define HSPMD_DEPRECATED(advice)
#endif

#ifdef __cplusplus
extern "C" {
#endif

const char *hspmd_version(void); /* "0.1.0" */

/* ---- building a net
 *
 * A function of the caller builds the net of one micro-batch, from its parameters and inputs to its loss; the library adds the
 * gradients. The function may be called several times, from several threads, and must build the same net each time except for the
 * micro-batch's size. Tensors are numbers. A call that fails returns -1, calls on tensor -1 return -1, and the training that needed the
 * net reports the first failure; so nothing has to be checked while building. */
struct hspmd_net;
int64_t hspmd_net_samples(const struct hspmd_net *net); /* samples per micro-batch: the first dimension of inputs and activations */
int64_t hspmd_net_length(const struct hspmd_net *net);  /* positions per sample: their second dimension */
/* Operators and parameters added from now on belong to layer `layer`; the plan says which devices compute that layer. The layer starts
 * at 0 and never decreases. */
void hspmd_net_layer(struct hspmd_net *net, int layer);

/* Inputs are filled by the training's sample reader: [samples, length] of 32-bit integers, or [samples, length, width] of floats. */
int hspmd_net_integers(struct hspmd_net *net, const char *name);
int hspmd_net_floats(struct hspmd_net *net, const char *name, int64_t width);
/* Inputs of any shape: [samples, dims[0], dims[1], ..]. The reader is asked for positions of dims[0]. */
int hspmd_net_integer_input(struct hspmd_net *net, const char *name, int rank, const int64_t *dims);
int hspmd_net_float_input(struct hspmd_net *net, const char *name, int rank, const int64_t *dims);
/* Number of a tensor's dimensions, and size of one (-1: of the last). -1: there is no such tensor or dimension. */
int hspmd_net_rank(const struct hspmd_net *net, int tensor);
int64_t hspmd_net_dim(const struct hspmd_net *net, int tensor, int dim);
/* A parameter is initialised with normally distributed random numbers of this mean and deviation (deviation 0: all are `mean`), the same
 * numbers under every plan. */
int hspmd_net_parameter(struct hspmd_net *net, const char *name, int rank, const int64_t *dims, double mean, double deviation);
/* No weight decay for this parameter (biases, gains). */
void hspmd_net_no_decay(struct hspmd_net *net, int parameter);

/* How a tensor is distributed over the devices of its stage.
 * split: along `dim`, in multiples of `unit` elements (the width of a head, or 1), in the ratios of the plan's shard_ratio. A parameter
 * that is not split is replicated on every device.
 * annotate: by an annotation over the stage's devices, numbered from 0: "{[0-2]: 0:3(2:1:1)}" is three unequal parts of dimension 0;
 * "{[0,1]: -1:2 | [2]} h0(3:1)" on an input gives three of four samples to devices 0 and 1 together, the fourth to device 2. An
 * operator's result is brought to its annotation as soon as it is computed, in the layer's stage. The annotation must not contain partial
 * tensors.
 * The annotations of all other tensors are deduced, and the communication between them is resolved. */
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
/* x + table[position]; table [at least length, width]. Positions are counted from the beginning of each document if the job says so
 * (reset_positions). */
int hspmd_net_positions(struct hspmd_net *net, int x, int table);
int hspmd_net_rope(struct hspmd_net *net, int x, int64_t head_width, double theta);
/* Causal attention with heads of width head_width. k and v may have fewer heads than q, by an integer factor. segments: an integer
 * input; positions of different segments do not attend to each other; -1: none. */
int hspmd_net_attention(struct hspmd_net *net, int q, int k, int v, int segments, int64_t head_width);
/* ---- general operators
 *
 * Tensors have up to 6 dimensions; the first is that of samples (parameters need not have it). */

/* Element by element. gelu_exact: by erf. */
int hspmd_net_relu(struct hspmd_net *net, int x);
int hspmd_net_gelu_exact(struct hspmd_net *net, int x);
int hspmd_net_silu(struct hspmd_net *net, int x);
int hspmd_net_sigmoid(struct hspmd_net *net, int x);
int hspmd_net_tanh(struct hspmd_net *net, int x);
int hspmd_net_exp(struct hspmd_net *net, int x);
int hspmd_net_log(struct hspmd_net *net, int x);
int hspmd_net_sqrt(struct hspmd_net *net, int x);
int hspmd_net_power(struct hspmd_net *net, int x, double exponent);
int hspmd_net_scale(struct hspmd_net *net, int x, double factor);
/* Of two tensors (also hspmd_net_add). Dimensions are aligned at the last; where one tensor has no dimension, or one element, it is
 * repeated: [width] and [channels, 1, 1] are biases. */
int hspmd_net_subtract(struct hspmd_net *net, int a, int b);
int hspmd_net_multiply(struct hspmd_net *net, int a, int b);
int hspmd_net_divide(struct hspmd_net *net, int a, int b);
/* Elements of x [samples, positions, width] are 0 with probability `rate`, others are divided by 1 - rate: the same under every plan. The
 * library fills its inputs "noise.."; a reader of samples is not asked for them. */
int hspmd_net_dropout(struct hspmd_net *net, int x, double rate);

/* The same elements in other dimensions; one may be -1: what is left. */
int hspmd_net_reshape(struct hspmd_net *net, int x, int rank, const int64_t *dims);
/* Dimension d of the result is dimension order[d] of x. */
int hspmd_net_transpose(struct hspmd_net *net, int x, const int *order);
/* Elements [first, first + count) of a dimension; x with zeros before and after it; several tensors (at most 10) one after another. */
int hspmd_net_slice(struct hspmd_net *net, int x, int dim, int64_t first, int64_t count);
int hspmd_net_pad(struct hspmd_net *net, int x, int dim, int64_t before, int64_t after);
int hspmd_net_concat(struct hspmd_net *net, const int *tensors, int count, int dim);
/* x repeated to these dimensions, aligned at the last. */
int hspmd_net_repeat(struct hspmd_net *net, int x, int rank, const int64_t *dims);
/* Rows by number. The first `batch_dims` dimensions of x and integers are the same; x's next dimension is replaced by the others of
 * `integers`: 0: x [rows, ..], a table; 1: x [samples, positions, ..], integers [samples, n] -> [samples, n, ..]. Numbers without a row
 * give zeros. */
int hspmd_net_gather(struct hspmd_net *net, int x, int integers, int batch_dims);
/* The same tensor with another annotation: a communication where the caller wants it. */
int hspmd_net_reshard(struct hspmd_net *net, int x, const char *annotation);

/* Over `count` dimensions, which are left out, or have one element if `keep` is not 0. */
int hspmd_net_sum(struct hspmd_net *net, int x, const int *dims, int count, int keep);
int hspmd_net_mean(struct hspmd_net *net, int x, const int *dims, int count, int keep);
int hspmd_net_max(struct hspmd_net *net, int x, const int *dims, int count, int keep);

/* Products of the matrices in the last two dimensions, which are first transposed if so asked; other dimensions must be the same. */
int hspmd_net_matmul(struct hspmd_net *net, int a, int b, int transpose_a, int transpose_b);
int hspmd_net_softmax(struct hspmd_net *net, int x); /* over the last dimension */
/* x [samples, channels, ..] */
int hspmd_net_group_norm(struct hspmd_net *net, int x, int groups, int gain, int bias, double eps);

/* Rows and columns of x [samples, channels, rows, columns]. size: of pooling. 0: stride 1 (pooling: the size), no padding, dilation 1
 * (pooling has none). */
struct hspmd_window {
	int64_t size[2], stride[2], padding[2], dilation[2];
};
/* weight [out, in / groups, rows, columns]; bias [out], -1: none */
int hspmd_net_conv2d(struct hspmd_net *net, int x, int weight, int bias, const struct hspmd_window *window, int groups);
int hspmd_net_max_pool2d(struct hspmd_net *net, int x, const struct hspmd_window *window);
int hspmd_net_avg_pool2d(struct hspmd_net *net, int x, const struct hspmd_window *window); /* padding counts as 0 */

/* Attention of q [samples, queries, width] to k and v [samples, keys, width], which may have fewer heads. Initialise with
 * HSPMD_ATTENTION. */
struct hspmd_attention {
	int causal;     /* else every query sees all keys, of which there may be another number */
	int64_t window; /* only keys less than so many positions away; 0: all */
	double scale;   /* of scores; 0: 1 / sqrt(head_width) */
	double dropout; /* of probabilities */
	int segments;   /* as in hspmd_net_attention; -1: none */
	int mask;       /* added to scores: [samples, heads, queries, keys], where each may be 1; has no gradient. -1: none */
};
#define HSPMD_ATTENTION { 0, 0, 0, 0, -1, -1 }
int hspmd_net_attend(struct hspmd_net *net, int q, int k, int v, int64_t head_width, const struct hspmd_attention *how);

/* A mixture of experts (gate(x Wgate) * x Wup) Wdown: every position of x [samples, positions, width] goes to `per_token` of them, by
 * the softmax of x times router [experts, width] among those. gate_up_down: [experts, inner, width] twice, and [experts, width, inner].
 * `balance` times an auxiliary loss keeps the experts evenly used. */
enum hspmd_gate { HSPMD_GATE_SILU, HSPMD_GATE_GELU, HSPMD_GATE_GELU_EXACT };
int hspmd_net_experts(struct hspmd_net *net, int x, int router, const int *gate_up_down, int per_token, double balance,
                      enum hspmd_gate gate);

/* ---- losses
 *
 * Each is a mean over all positions or elements of the global batch, also those that do not count; several add up. A net has at least
 * one. */

/* Cross-entropy of softmax(logits [samples, positions, values]) against integers [samples, positions]; negative targets are ignored. */
int hspmd_net_loss(struct hspmd_net *net, int logits, int targets);
/* The same with options. Initialise with HSPMD_CROSS_ENTROPY. */
struct hspmd_cross_entropy {
	double smoothing; /* of labels */
	int ignores;      /* the target `ignored` is ignored too */
	int ignored;
	int weights;      /* a factor for each position, [samples, positions] floats; -1: none */
};
#define HSPMD_CROSS_ENTROPY { 0, 0, 0, -1 }
int hspmd_net_cross_entropy(struct hspmd_net *net, int logits, int targets, const struct hspmd_cross_entropy *how);
/* (x - y)^2, and the cross-entropy of sigmoid(x) against probabilities y. y and weights have no gradient. weights: have the first
 * dimensions of x; -1: none. */
int hspmd_net_squared_loss(struct hspmd_net *net, int x, int y, int weights);
int hspmd_net_logistic_loss(struct hspmd_net *net, int x, int y, int weights);
int hspmd_net_mean_loss(struct hspmd_net *net, int x, double factor); /* factor times the mean of x itself */

/* ---- training
 *
 * One thread per device, messages through memory. For training that spans processes and machines, and survives their failure, see
 * hspmd-run(1). */
struct hspmd_training;
/* `layers` is the last layer passed to hspmd_net_layer, plus one. */
struct hspmd_training *hspmd_training_create(void (*build)(void *context, struct hspmd_net *net), void *context, int layers);
void hspmd_training_destroy(struct hspmd_training *t);

/* Call these before hspmd_training_run. JSON texts are as in hspmd-cluster(5), hspmd-plan(5) (call after hspmd_training_cluster) and the
 * optimizer of hspmd-job(5); error messages name the keys. The plan sets global_batch and seq_len. Default optimizer: AdamW with a
 * learning rate of 1e-3. */
int hspmd_training_cluster(struct hspmd_training *t, const char *json, struct hspmd_error *err);
int hspmd_training_plan(struct hspmd_training *t, const char *json, struct hspmd_error *err);
int hspmd_training_optimizer(struct hspmd_training *t, const char *json, struct hspmd_error *err);
void hspmd_training_seed(struct hspmd_training *t, uint64_t seed); /* default 1 */
/* Number of cores that the CPU device "node:index" uses; default 1. */
int hspmd_training_threads(struct hspmd_training *t, const char *device, int threads, struct hspmd_error *err);
/* `read` fills `to` with positions [start, start + count) of input `name` of sample `number`, which counts all samples of the training:
 * step * global_batch + index within the batch. The result must depend on nothing but these arguments. `read` is called from several
 * threads at once. If it returns non-zero, the training fails. */
void hspmd_training_samples(struct hspmd_training *t,
                            int (*read)(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to),
                            void *context);
/* Several sequence lengths with one program: step s has samples of lengths[length_of_step(context, s)] positions. The `count` lengths
 * are at most the plan's seq_len. A length that cannot be split as the plan splits its own is an error before the first step, which
 * names the required multiple. Without this call all steps have the plan's length. */
int hspmd_training_lengths(struct hspmd_training *t, const int64_t *lengths, int count, int (*length_of_step)(void *context, int64_t step),
                           void *context, struct hspmd_error *err);
/* Called with the loss of every step, from one of the threads. */
void hspmd_training_on_loss(struct hspmd_training *t, void (*on_loss)(void *context, int64_t step, double loss), void *context);
/* Deprecated: the former name of hspmd_training_on_loss. */
void hspmd_training_told(struct hspmd_training *t, void (*on_loss)(void *context, int64_t step, double loss), void *context)
        HSPMD_DEPRECATED("use hspmd_training_on_loss");

/* Instead of hspmd_training_plan: the fastest plan that the solver finds for the cluster (hspmd-plan(1)). Blocks while it searches. Returns
 * the plan as JSON, which the caller frees; NULL and err: there is none, for example for lack of memory. */
char *hspmd_training_solve(struct hspmd_training *t, int64_t global_batch, int64_t seq_len, struct hspmd_error *err);

/* The instructions that device "node:index" executes in a step, one per line, and its memory. The caller frees the text. */
char *hspmd_training_program(struct hspmd_training *t, const char *device, struct hspmd_error *err);
/* Train from random parameters. Blocks until all steps are done. A plan that does not fit the net is an error here, before the first
 * step. */
int hspmd_training_run(struct hspmd_training *t, int64_t steps, struct hspmd_error *err);
/* A full parameter as the last run left it: count floats, row-major. */
int hspmd_training_parameter(struct hspmd_training *t, const char *name, float *to, int64_t count, struct hspmd_error *err);

/* ---- checkpoints of jobs */

/* The newest complete checkpoint in a folder: one that a job names, or one inside it. What several folders hold of it is read as one.
 * NULL and err: there is none. */
struct hspmd_checkpoint;
struct hspmd_checkpoint *hspmd_checkpoint_open(const char *folder, struct hspmd_error *err);
void hspmd_checkpoint_close(struct hspmd_checkpoint *c);
int64_t hspmd_checkpoint_step(const struct hspmd_checkpoint *c); /* steps that were done */
/* The name of parameter `index`, counted from 0; NULL: there are no more. It is the checkpoint's. Sets *rank and up to 6 dims. */
const char *hspmd_checkpoint_parameter(const struct hspmd_checkpoint *c, int index, int *rank, int64_t *dims);
/* A full parameter: count floats, row-major. Damaged files are an error, unless there is another copy. */
int hspmd_checkpoint_read(struct hspmd_checkpoint *c, const char *name, float *to, int64_t count, struct hspmd_error *err);

/* ---- checkpoints of other trainers
 *
 * Files of the same form as those of jobs, for whatever tensors a trainer has: `hspmd checkpoint` lists and verifies them. Each process of
 * the trainer writes one file, beside its training. When all files are written, one process commits the checkpoint; until then it does
 * not exist. A crash at any point leaves the old or the new checkpoint complete. */
struct hspmd_stored_tensor {
	const char *name;
	int parameter;             /* 1: of the model, to be exported; 0: else. A name may be used for one of each */
	const char *type;          /* of an element: "F32", "BF16", "F16", "F64", "I64", "I32", "I16", "I8", "U8" or "BOOL" */
	int rank;                  /* number of dimensions, at most 6 */
	const int64_t *shape;      /* of the whole tensor */
	const int64_t *low, *high; /* the part [low, high) of each dimension that data is; NULL: all. It must not be empty */
	void *data;                /* packed, row-major, in memory of the host */
};

/* A saver has a thread of its own, and memory for one file. */
struct hspmd_saver;
struct hspmd_saver *hspmd_saver_create(struct hspmd_error *err);
/* Waits until a file that is being written is there. */
void hspmd_saver_destroy(struct hspmd_saver *saver);
/* Begins to write the tensors to `file` (a name that ends in .safetensors) of the checkpoint of this step and generation in `folder`. Data
 * must not change until hspmd_saver_wait_copied has returned; all else may be freed at once. -1 and err: the
 * last file is still being written, a tensor is not valid, the folder cannot be made, or memory runs out. */
int hspmd_saver_begin(struct hspmd_saver *saver, const char *folder, int64_t step, int64_t generation, const char *file,
                      const struct hspmd_stored_tensor *tensors, int count, struct hspmd_error *err);
/* Helps to copy the data. Returns at once if nothing is being copied. */
int hspmd_saver_wait_copied(struct hspmd_saver *saver, struct hspmd_error *err);
/* The end of a write, for which it waits so many seconds. 1: the file is there, and *written describes it, as a text that is the saver's
 * until the next call of this function. 0: not yet, or nothing new. -1 and err: it could not be written. */
int hspmd_saver_result(struct hspmd_saver *saver, double seconds, const char **written, struct hspmd_error *err);
/* Commits the checkpoint whose files these texts describe, durably. note: a text in UTF-8 that is kept with it; NULL: none. -1 and err: a
 * part of a tensor is in none of the files, or the folder cannot be written. Then removes all but the newest `keep` checkpoints of this
 * folder; one that cannot be removed is only logged. */
int hspmd_saver_commit(const char *folder, int64_t step, int64_t generation, const char *note, const char *const *written, int count,
                       int keep, struct hspmd_error *err);
/* The note of a checkpoint; NULL: it has none. It is the checkpoint's. */
const char *hspmd_checkpoint_note(const struct hspmd_checkpoint *c);
/* Describes tensor number `index`, those of the model first; what it points to is the checkpoint's, and data is NULL. Returns 1, or 0:
 * there are fewer. A job's parameters are listed, but not the moments of its optimizer. */
int hspmd_checkpoint_tensor(const struct hspmd_checkpoint *c, int index, struct hspmd_stored_tensor *tensor);
/* Fills the tensors' data, each byte checked. A part that is in no file, and another type, are errors. */
int hspmd_checkpoint_fill(struct hspmd_checkpoint *c, const struct hspmd_stored_tensor *tensors, int count, struct hspmd_error *err);

/* ---- a model of one's own, as a shared object
 *
 * "model": "model.so" in a job file (hspmd-job(5)) names a shared object that defines
 *
 *     const struct hspmd_model_definition hspmd_model = { .version = HSPMD_MODEL_VERSION, .name = "mine", ... };
 *
 * hspmd-build(1) makes it of a C file, without linking it with libhspmd: it uses the functions of the process that loads it. Every
 * function that fails returns -1 or NULL, and writes the reason into err->text. Strings and the definition itself stay as they are while
 * the object is loaded. */
#define HSPMD_MODEL_VERSION 1

struct hspmd_model_sizes {
	int layers;         /* the last layer passed to hspmd_net_layer, plus one */
	int64_t vocabulary; /* number of different tokens; 0: the net does not read hspmd's data */
	int64_t max_length; /* positions per sample, at most; 0: any number */
};

/* What `open_samples` reads. */
struct hspmd_model_data {
	const char *const *files; /* of the job's data.train or data.valid: absolute paths */
	int file_count;
	int validation; /* 1: data.valid */
	uint64_t seed;
	int64_t length; /* positions per sample */
};

struct hspmd_model_definition {
	int version;      /* HSPMD_MODEL_VERSION */
	const char *name; /* in messages and profiles */
	struct hspmd_model_sizes sizes;

	/* Reads the job's "model_config", JSON text ("{}": there is none), may change the sizes, and sets *context, which the other
	 * functions get. NULL: the sizes are fixed, and context is NULL. `destroy` frees the context; NULL: there is nothing to free. */
	int (*configure)(const char *config, struct hspmd_model_sizes *sizes, void **context, struct hspmd_error *err);
	void (*destroy)(void *context);

	/* Builds the net ("building a net" above). The inputs "tokens" and "targets" are filled with the job's data, "targets" being one
	 * position later; "segments" with the number of each position's document within its sample, "positions" with its place in that
	 * document. The net has no other inputs, unless the object has the functions below and the job's data are of kind "own": then
	 * these fill all inputs. Parameters are exported and imported under their own names. */
	void (*build)(void *context, struct hspmd_net *net);

	/* Optional: a reader of samples. `open_samples` sets *count to the number of samples; every epoch has each sample once, in an order
	 * that follows from the job's seed. 0: there is no end, and sample numbers count all samples of the training. `read_sample` fills
	 * `to` with positions [start, start + length) of input `input` of sample `sample`. Its result must depend on nothing but these
	 * arguments and the files, so that every plan trains on the same. It is called from several processes, and from one thread of
	 * each. */
	void *(*open_samples)(void *context, const struct hspmd_model_data *data, int64_t *count, struct hspmd_error *err);
	int (*read_sample)(void *samples, const char *input, int64_t sample, int64_t start, int64_t length, void *to,
	                   struct hspmd_error *err);
	void (*close_samples)(void *samples); /* NULL: nothing to free */
};

#ifdef __cplusplus
}
#endif
#endif
