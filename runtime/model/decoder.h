/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a decoder: blocks of causal attention and an MLP or experts. The own data of most types of model (hspmd_model.own) begins
 * with this struct. */
#ifndef HSPMD_MODEL_DECODER_H
#define HSPMD_MODEL_DECODER_H

#include "common/format/model.h"
#include "common/json.h"
#include "runtime/model/rope.h"
#include "runtime/tensor/opcode.h"

enum hspmd_rotation { HSPMD_ROTATION, HSPMD_ROTATION_LOCAL, HSPMD_ROTATION_NONE, HSPMD_ROTATION_COUNT = HSPMD_ROTATION_NONE };

struct hspmd_decoder_layer {
	bool slides;   /* attention has the window */
	bool is_dense; /* no experts in this layer, although others have them */
	enum hspmd_rotation rotation;
};

struct hspmd_decoder {
	int64_t heads, kv_heads, head_dim;
	int64_t ffn; /* inner width of the dense MLP */
	double norm_eps;
	double init_range;        /* standard deviation of random weights */
	double attention_scale;   /* of the products of queries and keys */
	double attention_softcap; /* 0: none */
	double logit_softcap;     /* 0: none */
	double embedding_scale;   /* factor of the embedding's result */
	bool layer_norm;          /* norms subtract the mean and have a bias */
	bool gain_plus_one;       /* norms multiply by 1 + weight */
	enum hspmd_activation activation;
	bool qkv_bias, out_bias, mlp_bias;
	enum { HSPMD_QK_NORM_NONE, HSPMD_QK_NORM_HEADS, HSPMD_QK_NORM_WHOLE } qk_norm; /* of each head, or over all heads together */
	bool sinks;     /* attention has a logit per head that takes a part of the probability */
	int64_t window; /* of the layers that slide; 0: none */
	struct {
		double embedding, residual,
		        attention; /* rates: of the embedding's result, of what attention and MLP add, of probabilities */
	} dropout;
	struct hspmd_rope rope[HSPMD_ROTATION_COUNT];
	struct hspmd_decoder_layer *layers; /* [block_count], in the same allocation */
	struct {
		int count, per_token; /* 0: dense */
		int64_t ffn;          /* inner width of one expert */
		int64_t shared_ffn;   /* inner width of the shared experts together, which all tokens take; 0: none */
		enum hspmd_router router;
		double aux_coef;                    /* factor of the loss that balances the experts' tokens */
		double limit;                       /* of the clamped activation */
		double weight_scale;                /* factor of the router's weights; 0: 1 */
		int groups, top_groups, group_best; /* of which experts are chosen (TOPK_ROUTER); groups 0: none */
		bool choice_bias;                   /* the choice of experts adds a bias that has no gradient */
		bool biases;                        /* of the router and the experts' matrices */
	} experts;
};

/* What an absent key means, as in the configuration class of the model type in Transformers. */
struct hspmd_decoder_defaults {
	int64_t kv_heads; /* 0: as many as heads */
	int64_t head_dim; /* 0: hidden / heads */
	int64_t max_positions;
	double norm_eps, rope_theta;
	double partial_rotary; /* share of a head's elements that are rotated; 0: all */
	bool tied;
	bool attention_softcap, logit_softcap; /* attn_logit_softcapping, final_logit_softcapping are read, else they must be null */
	const char *activation_key;            /* NULL: "hidden_act" */
	enum hspmd_activation activation;
};

/* Allocates m->own, `bytes` (at least sizeof(struct hspmd_decoder)) and the layers, and reads the keys that almost all types share. Layers
 * do not slide and are rotated. Returns NULL if the document has failed. Call hspmd_decoder_check last. */
struct hspmd_decoder *hspmd_decoder_read(struct hspmd_json *root, struct hspmd_model *m, size_t bytes,
                                         const struct hspmd_decoder_defaults *absent);
/* As hspmd_decoder_read, without reading anything: for types whose keys have other names. */
struct hspmd_decoder *hspmd_decoder_create(struct hspmd_json *root, struct hspmd_model *m, size_t bytes, int64_t block_count);
/* Whether a layer slides. */
typedef bool hspmd_slides_fn(const struct hspmd_decoder *d, int64_t layer, int64_t n);
/* Sets the window, and the layers that slide: by layer_types, else those for which slides() is true. slides NULL: all or none, and
 * layer_types must agree. */
void hspmd_decoder_read_window(struct hspmd_json *root, struct hspmd_model *m, int64_t window, hspmd_slides_fn *slides, int64_t n);
/* Rules for slides: all layers from n on; all but each n-th. */
hspmd_slides_fn hspmd_slides_from, hspmd_slides_but_each;
/* attention_bias and mlp_bias must be absent or `qkv` and false. */
void hspmd_decoder_refuse_biases(struct hspmd_json *root, struct hspmd_decoder *d, bool qkv);
/* num_experts_per_tok and the experts' number under `key`. `aux`: default of router_aux_loss_coef. */
void hspmd_decoder_read_experts(struct hspmd_json *root, struct hspmd_decoder *d, const char *key, int count, int per_token, double aux);
/* Checks values against one another, and fills what *m has of them. */
void hspmd_decoder_check(struct hspmd_json *root, struct hspmd_model *m);

/* The model's decoder. */
static inline const struct hspmd_decoder *hspmd_decoder_of(const struct hspmd_model *m)
{
	return m->own;
}

#endif
