/* SPDX-License-Identifier: Apache-2.0 */
/* Logits of one sequence of tokens after another, by the graphs, operators and kernels of training. A model that is too large for one
 * device is divided among several by layers, which compute one after another. The keys and values of earlier tokens are kept where they
 * are made, so that each new token costs one position. A model whose operators do not allow that (its own net, attention to
 * both sides) is computed from its first token on for every new one. */
#ifndef HSPMD_INFERENCE_INFERENCE_H
#define HSPMD_INFERENCE_INFERENCE_H

#include "common/format/model.h"
#include "runtime/device/device.h"

struct hspmd_inference;

/* Where parameters come from. read: all elements of a parameter, packed, in F32. */
struct hspmd_parameter_source {
	int (*read)(void *context, const char *name, const struct hspmd_shape *shape, float *data, struct hspmd_error *err);
	void *context;
};

#define HSPMD_INFERENCE_MAX_DEVICES 32

struct hspmd_inference_devices {
	int count; /* 1 ... HSPMD_INFERENCE_MAX_DEVICES */
	struct hspmd_device *device[HSPMD_INFERENCE_MAX_DEVICES];
	double share[HSPMD_INFERENCE_MAX_DEVICES]; /* of the bytes of parameters, as near as whole layers allow: in any unit */
};

/* Bytes of the model's parameters; -1 and err: memory, or the model has no tokens or logits. */
double hspmd_inference_bytes(const struct hspmd_model *m, bool bf16, struct hspmd_error *err);

/* Reads the parameters into the devices' memory; one that layers of several devices use, into that of each. bf16: computes in BF16, which
 * the devices must be able to. Borrows the model and the devices. NULL and err: memory, the source fails, or the model has no tokens or
 * logits. */
struct hspmd_inference *hspmd_inference_open(const struct hspmd_model *m, const struct hspmd_parameter_source *source,
                                             const struct hspmd_inference_devices *devices, bool bf16, struct hspmd_error *err);
void hspmd_inference_close(struct hspmd_inference *s);
/* The layers [*first, *end) that the device computes; none if both are equal. */
void hspmd_inference_layers(const struct hspmd_inference *s, int device, int *first, int *end);

/* Why keys and values cannot be kept; NULL: they are. */
const char *hspmd_inference_uncached(const struct hspmd_inference *s);

/* Begins a sequence of at most `context` tokens. Rotations that depend on the length are those of `context` tokens. 0, or -1 and err
 * (memory, or the model has fewer positions). */
int hspmd_inference_begin(struct hspmd_inference *s, int64_t context, struct hspmd_error *err);
/* Appends `count` tokens (below the model's vocabulary). logits: receives those after the last token, one per token of the vocabulary;
 * NULL: not wanted. 0; -1 and err: the sequence becomes longer than `context`, memory, or the device failed. */
int hspmd_inference_append(struct hspmd_inference *s, const int32_t *tokens, int64_t count, float *logits, struct hspmd_error *err);

#endif
