/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/inference/inference.h"

#include <inttypes.h>
#include <string.h>

#include "common/alloc.h"
#include "common/half.h"
#include "runtime/inference/forward.h"
#include "runtime/model/model_type.h"

#define CHUNK 256 /* tokens of a prompt that are computed together */

struct parameter {
	char *name;
	void *data; /* on the device */
};

/* Keys and values of one attention: [1, context, width]. */
struct kv_cache {
	void *data[2];
	int64_t width[2];
};

struct hspmd_inference {
	const struct hspmd_model *m;
	struct hspmd_device *dev;
	bool bf16;
	struct hspmd_error uncached; /* "": keys and values are kept */
	struct parameter *parameters;
	size_t parameter_count;
	struct kv_cache *caches;
	int cache_count;
	int64_t context, used, room;         /* room: tokens that the caches can hold */
	int32_t *tokens;                     /* of the sequence */
	struct inference_forward fill, next; /* of `count` tokens of a prompt, without logits; of the last token, or of all if uncached */
	void *arena, *workspace;
	size_t arena_bytes, workspace_bytes;
};

static enum hspmd_dtype dtype_of(const struct hspmd_inference *s)
{
	return s->bf16 ? HSPMD_BF16 : HSPMD_F32;
}

/* ---- parameters */

static int load(struct hspmd_inference *s, const struct hspmd_tensor *t, const struct hspmd_parameter_source *source, struct parameter *p,
                struct hspmd_error *err)
{
	const struct hspmd_device_ops *ops = s->dev->ops;
	int64_t n = hspmd_shape_elements(&t->shape);
	size_t bytes = (size_t)n * hspmd_dtype_bytes(t->dtype);
	p->name = strdup(t->name);
	p->data = p->name ? ops->allocate(s->dev, bytes, err) : NULL;
	if (!p->data)
		return p->name ? -1 : hspmd_fail_memory(err, "loading parameters");
	if (ops->host_memory && t->dtype == HSPMD_F32)
		return source->read(source->context, t->name, &t->shape, p->data, err);
	float *host = hspmd_calloc((size_t)n, sizeof *host);
	if (!host)
		return hspmd_fail_memory(err, "loading parameters");
	int rv = source->read(source->context, t->name, &t->shape, host, err);
	uint16_t *halves = (uint16_t *)host; /* in place: each is written after it has been read */
	for (int64_t i = 0; !rv && t->dtype == HSPMD_BF16 && i < n; i++) {
		float value;
		memcpy(&value, (char *)host + (size_t)i * sizeof value, sizeof value);
		halves[i] = hspmd_bf16_from_float(value);
	}
	if (!rv)
		rv = ops->to_device(s->dev, p->data, host, bytes, err);
	free(host);
	return rv;
}

static int load_all(struct hspmd_inference *s, const struct hspmd_graph *g, const struct hspmd_parameter_source *source,
                    struct hspmd_error *err)
{
	s->parameters = hspmd_calloc(g->tensor_count, sizeof *s->parameters);
	if (!s->parameters)
		return hspmd_fail_memory(err, "loading parameters");
	for (size_t t = 0; t < g->tensor_count; t++)
		if (g->tensors[t].role == HSPMD_TENSOR_PARAMETER &&
		    load(s, &g->tensors[t], source, &s->parameters[s->parameter_count++], err))
			return -1;
	return 0;
}

/* ---- opening and closing */

static int build(struct hspmd_inference *s, struct inference_forward *f, int64_t count, bool logits, struct hspmd_error *err)
{
	struct inference_forward_options o = {
		.count = count, .context = s->context, .bf16 = s->bf16, .cached = !s->uncached.text[0], .logits = logits
	};
	inference_forward_free(f);
	return inference_forward_build(f, s->m, &o, err);
}

/* A net of the user's own may count positions by itself, from 0. */
static int try_cached(struct hspmd_inference *s, struct hspmd_error *err)
{
	s->context = 1;
	if (s->m->type->graph)
		hspmd_fail(&s->uncached, "the model is of the user's own");
	else if (!build(s, &s->next, 1, true, &s->uncached))
		s->uncached.text[0] = '\0';
	return s->next.graph ? 0 : build(s, &s->next, 1, true, err);
}

struct hspmd_inference *hspmd_inference_open(const struct hspmd_model *m, const struct hspmd_parameter_source *source,
                                             struct hspmd_device *dev, bool bf16, struct hspmd_error *err)
{
	struct hspmd_inference *s = hspmd_calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "preparing to generate");
		return NULL;
	}
	s->m = m;
	s->dev = dev;
	s->bf16 = bf16;
	if (try_cached(s, err) || load_all(s, s->next.graph, source, err)) {
		hspmd_inference_close(s);
		return NULL;
	}
	return s;
}

static void free_caches(struct hspmd_inference *s)
{
	for (int i = 0; i < s->cache_count; i++)
		for (int k = 0; k < 2; k++)
			s->dev->ops->release(s->dev, s->caches[i].data[k]);
	free(s->caches);
	s->caches = NULL;
	s->cache_count = 0;
	s->room = 0;
}

void hspmd_inference_close(struct hspmd_inference *s)
{
	if (!s)
		return;
	free_caches(s);
	for (size_t i = 0; i < s->parameter_count; i++) {
		s->dev->ops->release(s->dev, s->parameters[i].data);
		free(s->parameters[i].name);
	}
	free(s->parameters);
	s->dev->ops->release(s->dev, s->arena);
	s->dev->ops->release(s->dev, s->workspace);
	inference_forward_free(&s->fill);
	inference_forward_free(&s->next);
	free(s->tokens);
	free(s);
}

const char *hspmd_inference_uncached(const struct hspmd_inference *s)
{
	return s->uncached.text[0] ? s->uncached.text : NULL;
}

/* ---- a sequence */

static int make_caches(struct hspmd_inference *s, struct hspmd_error *err)
{
	const struct hspmd_graph *g = s->next.graph;
	free_caches(s);
	s->caches = hspmd_calloc((size_t)s->next.attention_count, sizeof *s->caches);
	if (!s->caches)
		return hspmd_fail_memory(err, "keeping keys and values");
	for (size_t i = 0; i < g->op_count; i++) {
		if (g->ops[i].opcode != HSPMD_OP_ATTENTION)
			continue;
		struct kv_cache *c = &s->caches[s->cache_count++];
		for (int k = 0; k < 2; k++) {
			c->width[k] = g->tensors[g->ops[i].in[1 + k]].shape.dim[2];
			size_t bytes = (size_t)(s->context * c->width[k]) * hspmd_dtype_bytes(dtype_of(s));
			if (!(c->data[k] = s->dev->ops->allocate(s->dev, bytes, err)))
				return hspmd_error_prefix(err, "keeping keys and values of %" PRId64 " tokens", s->context);
		}
	}
	s->room = s->context;
	return 0;
}

int hspmd_inference_begin(struct hspmd_inference *s, int64_t context, struct hspmd_error *err)
{
	if (context > s->m->max_positions && s->m->max_positions > 0)
		return hspmd_fail(err, "a sequence of %" PRId64 " tokens, but the model has %" PRId64 " positions", context,
		                  s->m->max_positions);
	s->used = 0;
	if (context == s->context && s->tokens)
		return 0;
	s->context = context;
	free(s->tokens);
	inference_forward_free(&s->fill);
	if (!(s->tokens = hspmd_calloc((size_t)context, sizeof *s->tokens)))
		return hspmd_fail_memory(err, "beginning a sequence");
	if (s->uncached.text[0])
		return 0;
	if (build(s, &s->next, 1, true, err))
		return -1;
	return context > s->room ? make_caches(s, err) : 0;
}

/* ---- running a graph */

static int grow_memory(struct hspmd_inference *s, void **memory, size_t *have, size_t need, struct hspmd_error *err)
{
	if (need <= *have)
		return 0;
	if (s->dev->ops->synchronise(s->dev, err)) /* kernels may still use it */
		return -1;
	s->dev->ops->release(s->dev, *memory);
	*have = 0;
	*memory = s->dev->ops->allocate(s->dev, need, err);
	*have = *memory ? need : 0;
	return *memory ? 0 : -1;
}

static struct hspmd_view view_of(const struct hspmd_inference *s, const struct inference_forward *f, void *const *parameter, int t)
{
	if (t < 0)
		return (struct hspmd_view){ .rank = -1 };
	const struct hspmd_tensor *tensor = &f->graph->tensors[t];
	struct hspmd_view v = { .dtype = tensor->dtype, .rank = tensor->shape.rank };
	v.data = tensor->role == HSPMD_TENSOR_PARAMETER ? parameter[t] : (char *)s->arena + f->offset[t];
	memcpy(v.shape, tensor->shape.dim, sizeof v.shape);
	memcpy(v.full, tensor->shape.dim, sizeof v.full);
	if (f->position_dim[t] >= 0) {
		v.start[f->position_dim[t]] = s->used;
		v.full[f->position_dim[t]] = s->context;
	}
	return v;
}

/* Appends new keys and values to those kept; the views become those of all. */
static int append_kv(struct hspmd_inference *s, struct kv_cache *c, struct hspmd_view *kv, int64_t count, struct hspmd_error *err)
{
	for (int k = 0; k < 2; k++) {
		struct hspmd_box all = { 3, { 0 }, { 1, s->room, c->width[k] } },
		                 new = { 3, { 0, s->used, 0 }, { 1, s->used + count, c->width[k] } };
		if (s->dev->ops->copy_box(s->dev, c->data[k], &all, kv[k].data, &new, &new, kv[k].dtype, false, err))
			return -1;
		kv[k].data = c->data[k];
		kv[k].start[1] = 0;
		kv[k].shape[1] = s->used + count;
	}
	return 0;
}

static int run_op(struct hspmd_inference *s, const struct inference_forward *f, const struct hspmd_op *op, void *const *parameter,
                  struct kv_cache *cache, bool runs, struct hspmd_error *err)
{
	struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
	for (int i = 0; i < op->input_count; i++)
		args.in[i] = view_of(s, f, parameter, op->in[i]);
	for (int o = 0; o < op->output_count; o++)
		args.out[o] = view_of(s, f, parameter, op->out[o]);
	if (cache && append_kv(s, cache, &args.in[1], f->count, err))
		return -1;
	if (!runs)
		return 0;
	if (grow_memory(s, &s->workspace, &s->workspace_bytes, s->dev->ops->workspace(s->dev, op->opcode, &args), err))
		return -1;
	args.workspace = s->workspace;
	args.workspace_bytes = s->workspace_bytes;
	return s->dev->ops->run(s->dev, op->opcode, &args, err);
}

/* The data of the graph's parameters, by tensor. All graphs of a model have the same ones in the same order. */
static void **parameters_of(const struct hspmd_inference *s, const struct hspmd_graph *g, struct hspmd_error *err)
{
	void **data = hspmd_calloc(g->tensor_count, sizeof *data);
	size_t n = 0;
	for (size_t t = 0; data && t < g->tensor_count; t++)
		if (g->tensors[t].role == HSPMD_TENSOR_PARAMETER && n < s->parameter_count) {
			if (strcmp(s->parameters[n].name, g->tensors[t].name)) {
				hspmd_fail(err, "parameter %s of the model becomes %s at another length", s->parameters[n].name,
				           g->tensors[t].name);
				free(data);
				return NULL;
			}
			data[t] = s->parameters[n++].data;
		}
	if (!data)
		hspmd_fail_memory(err, "generating");
	return data;
}

static int run_graph(struct hspmd_inference *s, const struct inference_forward *f, const int32_t *tokens, struct hspmd_error *err)
{
	const struct hspmd_graph *g = f->graph;
	bool cached = !s->uncached.text[0];
	int attentions = 0;
	if (grow_memory(s, &s->arena, &s->arena_bytes, f->arena_bytes, err))
		return -1;
	void **parameter = parameters_of(s, g, err);
	if (!parameter)
		return -1;
	int rv = s->dev->ops->to_device(s->dev, (char *)s->arena + f->offset[f->tokens], tokens, (size_t)f->count * sizeof *tokens, err);
	for (size_t i = 0; !rv && i < g->op_count; i++) {
		struct kv_cache *c = cached && g->ops[i].opcode == HSPMD_OP_ATTENTION ? &s->caches[attentions++] : NULL;
		if (f->runs[i] || c)
			rv = run_op(s, f, &g->ops[i], parameter, c, f->runs[i], err);
	}
	free(parameter);
	return rv;
}

/* Those after the graph's last token. */
static int read_logits(struct hspmd_inference *s, const struct inference_forward *f, float *logits, struct hspmd_error *err)
{
	const struct hspmd_tensor *t = &f->graph->tensors[f->logits];
	int64_t vocab = t->shape.dim[t->shape.rank - 1];
	size_t bytes = (size_t)vocab * hspmd_dtype_bytes(t->dtype);
	const char *last = (const char *)s->arena + f->offset[f->logits] + (size_t)(f->count - 1) * bytes;
	if (t->dtype == HSPMD_F32)
		return s->dev->ops->to_host(s->dev, logits, last, bytes, err);
	uint16_t *halves = malloc(bytes);
	int rv = halves ? s->dev->ops->to_host(s->dev, halves, last, bytes, err) : hspmd_fail_memory(err, "reading logits");
	for (int64_t i = 0; !rv && i < vocab; i++)
		logits[i] = hspmd_bf16_to_float(halves[i]);
	free(halves);
	return rv;
}

static int append_cached(struct hspmd_inference *s, const int32_t *tokens, int64_t count, float *logits, struct hspmd_error *err)
{
	int64_t filled = logits ? count - 1 : count;
	for (int64_t i = 0, n; i < filled; i += n) {
		n = filled - i < CHUNK ? filled - i : CHUNK;
		if (s->fill.count != n && build(s, &s->fill, n, false, err))
			return -1;
		if (run_graph(s, &s->fill, tokens + i, err))
			return -1;
		s->used += n;
	}
	if (!logits)
		return 0;
	if (run_graph(s, &s->next, tokens + filled, err))
		return -1;
	s->used++;
	return read_logits(s, &s->next, logits, err);
}

int hspmd_inference_append(struct hspmd_inference *s, const int32_t *tokens, int64_t count, float *logits, struct hspmd_error *err)
{
	if (count < 1 || count > s->context - s->used)
		return hspmd_fail(err, "%" PRId64 " tokens after %" PRId64 ", but the sequence has room for %" PRId64, count, s->used,
		                  s->context);
	for (int64_t i = 0; i < count; i++)
		if (tokens[i] < 0 || tokens[i] >= s->m->vocab)
			return hspmd_fail(err, "token %" PRId32 " is not one of the model's, 0..%" PRId64, tokens[i], s->m->vocab - 1);
	if (!s->uncached.text[0])
		return append_cached(s, tokens, count, logits, err);
	memcpy(s->tokens + s->used, tokens, (size_t)count * sizeof *tokens);
	int64_t all = s->used + count;
	s->used = 0; /* the graph begins with the first token */
	int rv = logits && (build(s, &s->next, all, true, err) || run_graph(s, &s->next, s->tokens, err) ||
	                    read_logits(s, &s->next, logits, err))
	                 ? -1
	                 : 0;
	s->used = all;
	return rv;
}
