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
	void *data[HSPMD_INFERENCE_MAX_DEVICES]; /* NULL: no layer of the device uses it */
};

/* Layers that one device computes. */
struct stage {
	struct hspmd_device *dev;
	int first, end;
	void *arena, *workspace; /* values lie at the same offsets in the arenas of all devices */
	size_t arena_bytes, workspace_bytes;
};

/* Keys and values of one attention: [1, context, width]. */
struct kv_cache {
	struct hspmd_device *dev;
	void *data[2];
	int64_t width[2];
};

struct hspmd_inference {
	const struct hspmd_model *m;
	struct stage stages[HSPMD_INFERENCE_MAX_DEVICES];
	int stage_count;
	bool bf16;
	struct hspmd_error uncached; /* "": keys and values are kept */
	struct parameter *parameters;
	size_t parameter_count;
	struct kv_cache *caches;
	int cache_count;
	int64_t context, used, room;         /* room: tokens that the caches can hold */
	int32_t *tokens;                     /* of the sequence */
	struct inference_forward fill, next; /* of `count` tokens of a prompt, without logits; of the last token, or of all if uncached */
	void *passed;                        /* a value on its way from one device to another */
	size_t passed_bytes;
};

static enum hspmd_dtype dtype_of(const struct hspmd_inference *s)
{
	return s->bf16 ? HSPMD_BF16 : HSPMD_F32;
}

/* ---- layers */

static int stage_of(const struct hspmd_inference *s, int layer)
{
	int i = 0;
	while (i + 1 < s->stage_count && layer >= s->stages[i].end)
		i++;
	return i;
}

static double parameter_bytes(const struct hspmd_graph *g, int first, int end)
{
	double bytes = 0;
	for (size_t t = 0; t < g->tensor_count; t++)
		if (g->tensors[t].role == HSPMD_TENSOR_PARAMETER && g->tensors[t].layer >= first && g->tensors[t].layer < end)
			bytes += (double)hspmd_shape_elements(&g->tensors[t].shape) * (double)hspmd_dtype_bytes(g->tensors[t].dtype);
	return bytes;
}

double hspmd_inference_bytes(const struct hspmd_model *m, bool bf16, struct hspmd_error *err)
{
	struct inference_forward_options o = { .count = 1, .context = 1, .bf16 = bf16, .logits = true };
	struct inference_forward f = { 0 };
	if (inference_forward_build(&f, m, &o, err))
		return -1;
	double bytes = parameter_bytes(f.graph, 0, hspmd_model_layers(m));
	inference_forward_free(&f);
	return bytes;
}

/* Gives each layer to the device in whose share of all bytes its middle is. */
static void divide_layers(struct hspmd_inference *s, const struct hspmd_graph *g, const struct hspmd_inference_devices *devices)
{
	int layers = hspmd_model_layers(s->m), stage = 0;
	double all = parameter_bytes(g, 0, layers), shares = 0, before = 0, share = devices->share[0];
	for (int i = 0; i < devices->count; i++)
		shares += devices->share[i];
	for (int l = 0; l < layers; l++) {
		double bytes = parameter_bytes(g, l, l + 1);
		for (; stage + 1 < s->stage_count && (before + bytes / 2) * shares > share * all; share += devices->share[++stage])
			s->stages[stage].end = s->stages[stage + 1].first = s->stages[stage + 1].end = l;
		before += bytes;
		s->stages[stage].end = l + 1;
	}
	for (; stage + 1 < s->stage_count; stage++)
		s->stages[stage + 1].first = s->stages[stage + 1].end = layers;
}

void hspmd_inference_layers(const struct hspmd_inference *s, int device, int *first, int *end)
{
	*first = s->stages[device].first;
	*end = s->stages[device].end;
}

/* ---- parameters */

/* Halves in place of floats: each is written after the float has been read. */
static void halve(float *data, int64_t n)
{
	uint16_t *halves = (uint16_t *)data;
	for (int64_t i = 0; i < n; i++) {
		float value;
		memcpy(&value, (char *)data + (size_t)i * sizeof value, sizeof value);
		halves[i] = hspmd_bf16_from_float(value);
	}
}

/* Which devices' layers read the tensor, by bits. */
static uint32_t readers_of(const struct hspmd_inference *s, size_t tensor)
{
	const struct hspmd_graph *g = s->next.graph;
	uint32_t readers = 0;
	for (size_t i = 0; i < g->op_count; i++)
		for (int k = 0; s->next.runs[i] && k < g->ops[i].input_count; k++)
			if (g->ops[i].in[k] == (int)tensor)
				readers |= 1u << stage_of(s, g->ops[i].layer);
	return readers;
}

static int load(struct hspmd_inference *s, size_t tensor, const struct hspmd_parameter_source *source, struct parameter *p,
                struct hspmd_error *err)
{
	const struct hspmd_tensor *t = &s->next.graph->tensors[tensor];
	int64_t n = hspmd_shape_elements(&t->shape);
	size_t bytes = (size_t)n * hspmd_dtype_bytes(t->dtype);
	uint32_t readers = readers_of(s, tensor);
	if (!(p->name = strdup(t->name)))
		return hspmd_fail_memory(err, "loading parameters");
	for (int i = 0; i < s->stage_count; i++)
		if (readers >> i & 1 && !(p->data[i] = s->stages[i].dev->ops->allocate(s->stages[i].dev, bytes, err)))
			return hspmd_error_prefix(err, "device %d of %d", i, s->stage_count);
	int only = readers && !(readers & (readers - 1)) ? __builtin_ctz(readers) : -1;
	if (only >= 0 && s->stages[only].dev->ops->host_memory && t->dtype == HSPMD_F32)
		return source->read(source->context, t->name, &t->shape, p->data[only], err);
	float *host = hspmd_calloc((size_t)n, sizeof *host);
	if (!host)
		return hspmd_fail_memory(err, "loading parameters");
	int rv = readers ? source->read(source->context, t->name, &t->shape, host, err) : 0;
	if (t->dtype == HSPMD_BF16)
		halve(host, n);
	for (int i = 0; !rv && i < s->stage_count; i++)
		if (p->data[i])
			rv = s->stages[i].dev->ops->to_device(s->stages[i].dev, p->data[i], host, bytes, err);
	free(host);
	return rv;
}

static int load_all(struct hspmd_inference *s, const struct hspmd_parameter_source *source, struct hspmd_error *err)
{
	const struct hspmd_graph *g = s->next.graph;
	s->parameters = hspmd_calloc(g->tensor_count, sizeof *s->parameters);
	if (!s->parameters)
		return hspmd_fail_memory(err, "loading parameters");
	for (size_t t = 0; t < g->tensor_count; t++)
		if (g->tensors[t].role == HSPMD_TENSOR_PARAMETER && load(s, t, source, &s->parameters[s->parameter_count++], err))
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
                                             const struct hspmd_inference_devices *devices, bool bf16, struct hspmd_error *err)
{
	struct hspmd_inference *s = hspmd_calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "preparing to generate");
		return NULL;
	}
	s->m = m;
	s->bf16 = bf16;
	s->stage_count = devices->count;
	for (int i = 0; i < s->stage_count; i++)
		s->stages[i].dev = devices->device[i];
	int rv = try_cached(s, err);
	if (!rv) {
		divide_layers(s, s->next.graph, devices);
		rv = load_all(s, source, err);
	}
	if (rv) {
		hspmd_inference_close(s);
		return NULL;
	}
	return s;
}

static void free_caches(struct hspmd_inference *s)
{
	for (int i = 0; i < s->cache_count; i++)
		for (int k = 0; k < 2; k++)
			s->caches[i].dev->ops->release(s->caches[i].dev, s->caches[i].data[k]);
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
	for (int k = 0; k < s->stage_count; k++) {
		struct stage *at = &s->stages[k];
		for (size_t i = 0; i < s->parameter_count; i++)
			at->dev->ops->release(at->dev, s->parameters[i].data[k]);
		at->dev->ops->release(at->dev, at->arena);
		at->dev->ops->release(at->dev, at->workspace);
	}
	for (size_t i = 0; i < s->parameter_count; i++)
		free(s->parameters[i].name);
	free(s->parameters);
	free(s->passed);
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
		c->dev = s->stages[stage_of(s, g->ops[i].layer)].dev;
		for (int k = 0; k < 2; k++) {
			c->width[k] = g->tensors[g->ops[i].in[1 + k]].shape.dim[2];
			size_t bytes = (size_t)(s->context * c->width[k]) * hspmd_dtype_bytes(dtype_of(s));
			if (!(c->data[k] = c->dev->ops->allocate(c->dev, bytes, err)))
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

/* A run of a graph. */
struct pass {
	const struct inference_forward *f;
	const struct parameter **parameter; /* per tensor; NULL: it is none */
	uint32_t *held;                     /* per tensor: the devices that have its value, by bits */
};

static int grow_memory(struct hspmd_device *dev, void **memory, size_t *have, size_t need, struct hspmd_error *err)
{
	if (need <= *have)
		return 0;
	if (dev->ops->synchronise(dev, err)) /* kernels may still use it */
		return -1;
	dev->ops->release(dev, *memory);
	*have = 0;
	*memory = dev->ops->allocate(dev, need, err);
	*have = *memory ? need : 0;
	return *memory ? 0 : -1;
}

/* Copies a value from a device that has it, unless the device `to` has it. One that nobody has is not read. */
static int pass_on(struct hspmd_inference *s, struct pass *p, int tensor, int to, struct hspmd_error *err)
{
	if (tensor < 0 || !p->held[tensor] || p->held[tensor] >> to & 1)
		return 0;
	const struct stage *a = &s->stages[__builtin_ctz(p->held[tensor])], *b = &s->stages[to];
	const struct hspmd_tensor *t = &p->f->graph->tensors[tensor];
	size_t bytes = (size_t)hspmd_shape_elements(&t->shape) * hspmd_dtype_bytes(t->dtype), offset = p->f->offset[tensor];
	if (bytes > s->passed_bytes) {
		void *larger = realloc(s->passed, bytes);
		if (!larger)
			return hspmd_fail_memory(err, "generating");
		s->passed = larger;
		s->passed_bytes = bytes;
	}
	p->held[tensor] |= 1u << to;
	if (a->dev->ops->to_host(a->dev, s->passed, (char *)a->arena + offset, bytes, err))
		return -1;
	return b->dev->ops->to_device(b->dev, (char *)b->arena + offset, s->passed, bytes, err);
}

static struct hspmd_view view_of(const struct hspmd_inference *s, const struct pass *p, int t, int stage)
{
	if (t < 0)
		return (struct hspmd_view){ .rank = -1 };
	const struct inference_forward *f = p->f;
	const struct hspmd_tensor *tensor = &f->graph->tensors[t];
	struct hspmd_view v = { .dtype = tensor->dtype, .rank = tensor->shape.rank };
	v.data = p->parameter[t] ? p->parameter[t]->data[stage] : (char *)s->stages[stage].arena + f->offset[t];
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
		if (c->dev->ops->copy_box(c->dev, c->data[k], &all, kv[k].data, &new, &new, kv[k].dtype, false, err))
			return -1;
		kv[k].data = c->data[k];
		kv[k].start[1] = 0;
		kv[k].shape[1] = s->used + count;
	}
	return 0;
}

/* cache: of an operator ATTENTION, which then only receives keys and values if it does not run. */
static int run_op(struct hspmd_inference *s, struct pass *p, const struct hspmd_op *op, struct kv_cache *cache, bool runs,
                  struct hspmd_error *err)
{
	struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
	int number = stage_of(s, op->layer);
	struct stage *at = &s->stages[number];
	for (int i = 0; i < op->input_count; i++) {
		if (pass_on(s, p, op->in[i], number, err))
			return -1;
		args.in[i] = view_of(s, p, op->in[i], number);
	}
	for (int o = 0; o < op->output_count; o++)
		args.out[o] = view_of(s, p, op->out[o], number);
	if (cache && append_kv(s, cache, &args.in[1], p->f->count, err))
		return -1;
	if (!runs)
		return 0;
	if (grow_memory(at->dev, &at->workspace, &at->workspace_bytes, at->dev->ops->workspace(at->dev, op->opcode, &args), err))
		return -1;
	args.workspace = at->workspace;
	args.workspace_bytes = at->workspace_bytes;
	for (int o = 0; o < op->output_count; o++)
		if (op->out[o] >= 0)
			p->held[op->out[o]] = 1u << number;
	return at->dev->ops->run(at->dev, op->opcode, &args, err);
}

/* Finds the graph's parameters. All graphs of a model have the same ones in the same order. */
static int find_parameters(const struct hspmd_inference *s, struct pass *p, struct hspmd_error *err)
{
	const struct hspmd_graph *g = p->f->graph;
	size_t n = 0;
	for (size_t t = 0; t < g->tensor_count; t++) {
		if (g->tensors[t].role != HSPMD_TENSOR_PARAMETER || n >= s->parameter_count)
			continue;
		p->parameter[t] = &s->parameters[n++];
		if (strcmp(p->parameter[t]->name, g->tensors[t].name))
			return hspmd_fail(err, "parameter %s of the model becomes %s at another length", p->parameter[t]->name,
			                  g->tensors[t].name);
	}
	return 0;
}

static int run_pass(struct hspmd_inference *s, struct pass *p, const int32_t *tokens, struct hspmd_error *err)
{
	const struct inference_forward *f = p->f;
	const struct hspmd_graph *g = f->graph;
	bool cached = !s->uncached.text[0];
	int attentions = 0;
	for (int i = 0; i < s->stage_count; i++)
		if (grow_memory(s->stages[i].dev, &s->stages[i].arena, &s->stages[i].arena_bytes, f->arena_bytes, err))
			return -1;
	int first = stage_of(s, g->tensors[f->tokens].layer);
	const struct stage *at = &s->stages[first];
	p->held[f->tokens] = 1u << first;
	if (find_parameters(s, p, err) ||
	    at->dev->ops->to_device(at->dev, (char *)at->arena + f->offset[f->tokens], tokens, (size_t)f->count * sizeof *tokens, err))
		return -1;
	for (size_t i = 0; i < g->op_count; i++) {
		struct kv_cache *c = cached && g->ops[i].opcode == HSPMD_OP_ATTENTION ? &s->caches[attentions++] : NULL;
		if ((f->runs[i] || c) && run_op(s, p, &g->ops[i], c, f->runs[i], err))
			return -1;
	}
	return 0;
}

static int run_graph(struct hspmd_inference *s, const struct inference_forward *f, const int32_t *tokens, struct hspmd_error *err)
{
	size_t n = f->graph->tensor_count;
	struct pass p = { f, hspmd_calloc(n, sizeof *p.parameter), hspmd_calloc(n, sizeof *p.held) };
	int rv = p.parameter && p.held ? run_pass(s, &p, tokens, err) : hspmd_fail_memory(err, "generating");
	free(p.parameter);
	free(p.held);
	return rv;
}

/* Those after the graph's last token. */
static int read_logits(struct hspmd_inference *s, const struct inference_forward *f, float *logits, struct hspmd_error *err)
{
	const struct hspmd_tensor *t = &f->graph->tensors[f->logits];
	const struct stage *at = &s->stages[stage_of(s, t->layer)];
	int64_t vocab = t->shape.dim[t->shape.rank - 1];
	size_t bytes = (size_t)vocab * hspmd_dtype_bytes(t->dtype);
	const char *last = (const char *)at->arena + f->offset[f->logits] + (size_t)(f->count - 1) * bytes;
	if (t->dtype == HSPMD_F32)
		return at->dev->ops->to_host(at->dev, logits, last, bytes, err);
	uint16_t *halves = malloc(bytes);
	int rv = halves ? at->dev->ops->to_host(at->dev, halves, last, bytes, err) : hspmd_fail_memory(err, "reading logits");
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
