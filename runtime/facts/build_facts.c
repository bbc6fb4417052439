/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a model's facts together. The model is reduced to one layer of each kind, and programs of the reduced model are probed in layouts of
 * one, two and four tensor-parallel shares by as many context groups: four points, through which each quantity is a function of both. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/recompute_sets.h"
#include "runtime/facts/facts_internal.h"
#include "runtime/model/own.h"

/* ---- layouts */

/* T and C: degrees of tensor and context parallelism; S: with sequence parallelism. */
enum { ONE, TENSOR, CONTEXT, BOTH, C4, T2_C4, S2, S2_C2, S4, T4, LAYOUTS };

static const struct hspmd_probe_layout layouts[LAYOUTS] = {
	[ONE] = { 1, 1, false, 1 }, [TENSOR] = { 2, 1, false, 1 }, [CONTEXT] = { 1, 2, false, 1 }, [BOTH] = { 2, 2, false, 1 },
	[C4] = { 1, 4, false, 1 },  [T2_C4] = { 2, 4, false, 1 },  [S2] = { 2, 1, true, 1 },       [S2_C2] = { 2, 2, true, 1 },
	[S4] = { 4, 1, true, 1 },   [T4] = { 4, 1, false, 1 },
};

/* Four layouts that memory is a function through: at (share[0], context[0]), (share[1], context[0]), and both at context[1]. */
struct corners {
	int at[4];
	double share[2], context[2];
};

/* A group gathers and sends what a single device does not, so the layout of one device is not on the line of those of several. (With both
 * degrees, whose layouts of eight devices and more take long to make, it is taken as if it were.) */
enum { NO_CONTEXT, NO_CONTEXT_FAR, CONTEXTS, CONTEXTS_FAR, SEQUENCE, SEQUENCE_FAR, SEQUENCE_CONTEXTS, CORNERS };

static const struct corners corners[CORNERS] = {
	[NO_CONTEXT] = { { ONE, TENSOR, ONE, TENSOR }, { 1, 0.5 }, { 1, 0.5 } },
	[NO_CONTEXT_FAR] = { { TENSOR, T4, TENSOR, T4 }, { 0.5, 0.25 }, { 1, 0.5 } },
	[CONTEXTS] = { { ONE, TENSOR, CONTEXT, BOTH }, { 1, 0.5 }, { 1, 0.5 } },
	[CONTEXTS_FAR] = { { CONTEXT, BOTH, C4, T2_C4 }, { 1, 0.5 }, { 0.5, 0.25 } },
	[SEQUENCE] = { { ONE, S2, ONE, S2 }, { 1, 0.5 }, { 1, 0.5 } },
	[SEQUENCE_FAR] = { { S2, S4, S2, S4 }, { 0.5, 0.25 }, { 1, 0.5 } },
	[SEQUENCE_CONTEXTS] = { { ONE, S2, CONTEXT, S2_C2 }, { 1, 0.5 }, { 1, 0.5 } },
};

/* [context parallelism][division] */
static const unsigned char far_corners[2][HSPMD_FACTS_DIVISIONS] = {
	{ NO_CONTEXT, NO_CONTEXT_FAR, SEQUENCE_FAR },
	{ CONTEXTS_FAR, CONTEXTS_FAR, SEQUENCE_CONTEXTS },
};
/* Instead of these for a model that four devices cannot divide, or need not: without sequence parallelism most gather nothing. */
static const unsigned char near_corners[2][HSPMD_FACTS_DIVISIONS] = {
	{ NO_CONTEXT, NO_CONTEXT, SEQUENCE },
	{ CONTEXTS, CONTEXTS, SEQUENCE_CONTEXTS },
};

struct build {
	struct hspmd_model_facts *facts;
	struct hspmd_graph_source reduced;
	bool possible[LAYOUTS];
	struct hspmd_probe in_parts[LAYOUTS], gathered[LAYOUTS];       /* programs of forms PARTS_FP32 and GATHERED_BF16 */
	struct hspmd_program *again[LAYOUTS][HSPMD_RECOMPUTE_KINDS];   /* those of PARTS_FP32 under 1F1B that were made so far */
	struct hspmd_probe_memory *memory[HSPMD_FACTS_FORMS][LAYOUTS]; /* [kind] */
	double (*results[HSPMD_FACTS_FORMS][LAYOUTS])[2];              /* [facts->result_count] */
	struct hspmd_error *err;
};

/* The function with these values at shares 1 and 1/2 of both kinds. */
static struct hspmd_facts_amount amount(double one, double tensor, double context, double both)
{
	double p = one - tensor, q = context - both;
	struct hspmd_facts_amount a = { .by_both = 4 * (p - q) };
	a.by_share = 2 * p - a.by_both;
	a.by_context = 2 * (one - context) - a.by_both;
	a.whole = one - a.by_share - a.by_context - a.by_both;
	return a;
}

static struct hspmd_facts_work work(double one, double half)
{
	return (struct hspmd_facts_work){ .replicated = 2 * half - one, .sharded = 2 * (one - half) };
}

/* The function through the values at four corners. */
static struct hspmd_facts_amount through(const struct corners *c, double a, double b, double far_a, double far_b)
{
	double share = c->share[0] - c->share[1], context = c->context[0] - c->context[1];
	struct hspmd_facts_amount f = { .by_both = (a - b - far_a + far_b) / (share * context) };
	f.by_share = (a - b) / share - f.by_both * c->context[0];
	f.by_context = (a - far_a) / context - f.by_both * c->share[0];
	f.whole = a - f.by_share * c->share[0] - f.by_context * c->context[0] - f.by_both * c->share[0] * c->context[0];
	return f;
}

/* The corners that there are. */
static const struct corners *corners_of(const struct build *b, int context, int division)
{
	const struct corners *c = &corners[far_corners[context][division]];
	for (int i = 0; i < 4; i++)
		if (!b->possible[c->at[i]])
			return &corners[near_corners[context][division]];
	return c;
}

#define AMOUNT(field) through(c, at[0]->field, at[1]->field, at[2]->field, at[3]->field)

/* A pass of a layer has the same moments in every layout; if it has not, all of its weights and gradients count all the time. */
static struct hspmd_layer_moments moments_of(const struct corners *c, const struct hspmd_probe_memory *const at[4], bool backward)
{
	const struct hspmd_probe_moments *first = &at[0]->moments[backward];
	struct hspmd_layer_moments m = { .count = first->count };
	for (int k = 1; k < 4; k++)
		m.count = at[k]->moments[backward].count == first->count ? m.count : 0;
	for (int i = 0; i < m.count; i++) {
		m.unread[i] = first->unread[i];
		m.summed[i] = first->summed[i];
		m.bytes[i] = AMOUNT(moments[backward].bytes[i]);
	}
	return m;
}

static void set_memory(struct build *b, enum hspmd_facts_form form, enum hspmd_recompute recompute, int kind)
{
	for (int i = 0; i < 2 * HSPMD_FACTS_DIVISIONS; i++) {
		int context = i / HSPMD_FACTS_DIVISIONS, division = i % HSPMD_FACTS_DIVISIONS;
		const struct corners *c = corners_of(b, context, division);
		const struct hspmd_probe_memory *at[4];
		for (int k = 0; k < 4; k++)
			at[k] = &b->memory[form][c->at[k]][kind];
		b->facts->kinds[kind].memory[form][context][division][recompute] = (struct hspmd_layer_memory){
			.saved = AMOUNT(saved),
			.offloads = AMOUNT(offloads),
			.offloads_later = AMOUNT(offloads_later),
			.deferred = AMOUNT(deferred),
			.forward = AMOUNT(forward),
			.backward = AMOUNT(backward),
			.split_backward = AMOUNT(split_backward),
			.left_forward = AMOUNT(left_forward),
			.left_backward = AMOUNT(left_backward),
			.moments = { moments_of(c, at, false), moments_of(c, at, true) },
		};
	}
}

/* What result `r` of the facts takes of the host's memory. */
static void set_result(struct build *b, enum hspmd_facts_form form, enum hspmd_recompute recompute, int r)
{
	for (int i = 0; i < 4 * HSPMD_FACTS_DIVISIONS; i++) {
		int context = i / (2 * HSPMD_FACTS_DIVISIONS), division = i / 2 % HSPMD_FACTS_DIVISIONS, later = i % 2;
		const struct corners *c = corners_of(b, context, division);
		double at[4];
		for (int k = 0; k < 4; k++)
			at[k] = b->results[form][c->at[k]][r][later];
		b->facts->results[r].bytes[form][context][division][recompute][later] = through(c, at[0], at[1], at[2], at[3]);
	}
}

/* The layout whose values stand for those of a layout that is not possible. */
static int instead_of(const struct build *b, int layout)
{
	static const int next[LAYOUTS] = { [BOTH] = CONTEXT, [S2] = TENSOR, [S2_C2] = BOTH, [T4] = TENSOR };
	while (!b->possible[layout])
		layout = layout == BOTH && !b->possible[CONTEXT] ? TENSOR : next[layout];
	return layout;
}

/* The program of form PARTS_FP32 with this recomputation under 1F1B, which is kept: work and memory are read off it. NULL with err. */
static const struct hspmd_program *program_again(struct build *b, int layout, enum hspmd_recompute recompute)
{
	struct hspmd_program **p = &b->again[layout][recompute];
	if (!*p)
		*p = hspmd_probe_program(&b->in_parts[layout], b->facts->recompute_sets, recompute, HSPMD_SCHEDULE_1F1B, b->err);
	return *p;
}

/* Read the memory of all layers off a program in this form. */
static int read_memory(struct build *b, const struct hspmd_program *p, int layout, enum hspmd_facts_form form, bool deferred)
{
	return hspmd_probe_memory(p, form, deferred, b->facts, b->memory[form][layout], b->results[form][layout], b->err);
}

/* Forms GATHERED_BF16 and GATHERED_FP32 have the same programs. */
static int probe_gathered(struct build *b, int layout, enum hspmd_recompute recompute)
{
	int status = 0;
	for (int deferred = 0; !status && deferred < 2; deferred++) {
		struct hspmd_program *p = hspmd_probe_program(&b->gathered[layout], b->facts->recompute_sets, recompute,
		                                              deferred ? HSPMD_SCHEDULE_ZB_H1 : HSPMD_SCHEDULE_1F1B, b->err);
		status = !p || read_memory(b, p, layout, HSPMD_FACTS_GATHERED_BF16, deferred) ||
		                         read_memory(b, p, layout, HSPMD_FACTS_GATHERED_FP32, deferred)
		                 ? -1
		                 : 0;
		hspmd_program_destroy(p);
	}
	return status;
}

static int probe_in_parts(struct build *b, int layout, enum hspmd_recompute recompute)
{
	const struct hspmd_program *plain = program_again(b, layout, recompute);
	if (!plain || read_memory(b, plain, layout, HSPMD_FACTS_PARTS_FP32, false))
		return -1;
	struct hspmd_program *deferring =
	        hspmd_probe_program(&b->in_parts[layout], b->facts->recompute_sets, recompute, HSPMD_SCHEDULE_ZB_H1, b->err);
	int status = deferring ? read_memory(b, deferring, layout, HSPMD_FACTS_PARTS_FP32, true) : -1;
	hspmd_program_destroy(deferring);
	return status;
}

static int probe_memory(struct build *b)
{
	size_t n = (size_t)b->facts->kind_count;
	for (int recompute = 0; recompute < HSPMD_RECOMPUTE_KINDS; recompute++) {
		enum hspmd_recompute r = (enum hspmd_recompute)recompute;
		bool there = hspmd_recompute_kinds(b->facts->recompute_sets) & 1u << r; /* else as the kind before */
		for (int layout = 0; there && layout < LAYOUTS; layout++) {
			int from = instead_of(b, layout);
			if (from == layout && (probe_gathered(b, layout, r) || probe_in_parts(b, layout, r)))
				return -1;
			for (int form = 0; form < HSPMD_FACTS_FORMS && from != layout; form++) {
				memcpy(b->memory[form][layout], b->memory[form][from], n * sizeof **b->memory[form]);
				memcpy(b->results[form][layout], b->results[form][from],
				       (size_t)b->facts->result_count * sizeof **b->results[form]);
			}
		}
		for (int form = 0; form < HSPMD_FACTS_FORMS; form++) {
			for (int k = 0; k < b->facts->kind_count; k++)
				set_memory(b, (enum hspmd_facts_form)form, r, k);
			for (int k = 0; k < b->facts->result_count; k++)
				set_result(b, (enum hspmd_facts_form)form, r, k);
		}
	}
	hspmd_probe_drop_results(b->facts);
	return 0;
}

/* ---- work */

/* The points that work is computed from: one device and two of a tensor-parallel group, each with one sample and with two; two of a
 * context group; and two with sequence parallelism. */
enum { WORK_ONE, WORK_ONE_TWICE, WORK_TENSOR, WORK_TENSOR_TWICE, WORK_CONTEXT, WORK_SEQUENCE, WORK_POINTS };

static const struct {
	int layout, samples;
} points[WORK_POINTS] = { { ONE, 1 }, { ONE, 2 }, { TENSOR, 1 }, { TENSOR, 2 }, { CONTEXT, 1 }, { S2, 1 } };

/* Passes per kind: forward, backward, and what each recomputation repeats. */
struct point {
	struct hspmd_probe_pass (*plain)[2];
	struct hspmd_probe_pass *again[HSPMD_RECOMPUTE_KINDS];
};

static struct hspmd_layer_pass pass_of(const struct hspmd_probe_pass *const at[WORK_POINTS])
{
	const struct hspmd_probe_pass *one = at[WORK_ONE], *tensor = at[WORK_TENSOR];
	double more = at[WORK_ONE_TWICE]->bytes - one->bytes, more_of_half = at[WORK_TENSOR_TWICE]->bytes - tensor->bytes;
	double weights_of_half = tensor->bytes - more_of_half; /* with sequence parallelism, too */
	return (struct hspmd_layer_pass){
		.flops = work(one->flops, tensor->flops),
		.fp8 = work(one->fp8, tensor->fp8),
		.fp8_experts = work(one->fp8_experts, tensor->fp8_experts),
		.bytes = work(more, more_of_half),
		.parted_flops = work(one->flops, at[WORK_SEQUENCE]->flops),
		.parted_bytes = work(more, at[WORK_SEQUENCE]->bytes - weights_of_half),
		.weights = work(one->bytes - more, weights_of_half),
		.windows = work(one->windows, tensor->windows),
		.kernels = one->kernels,
		.messages = { tensor->messages, at[WORK_SEQUENCE]->messages },
		.context = at[WORK_CONTEXT]->messages,
	};
}

static const struct hspmd_program *gathered_of(const struct build *b, int layout)
{
	return b->possible[layout] ? b->gathered[layout].program : NULL;
}

/* Those of a layout's program in elements of this width. */
static struct hspmd_probe_others others_of(const struct build *b, int layout, enum hspmd_facts_width width)
{
	bool contexts = layout == CONTEXT;
	return (struct hspmd_probe_others){
		.sequence = contexts       ? gathered_of(b, S2)
		            : layout == S2 ? gathered_of(b, CONTEXT)
		                           : NULL,
		.heads = contexts ? gathered_of(b, TENSOR) : NULL,
		.types = contexts && width == HSPMD_FACTS_FP32 ? b->in_parts[CONTEXT].program->graph : NULL,
	};
}

static int probe_again(struct build *b, int layout, const struct hspmd_program *p, const struct hspmd_probe_others *others,
                       struct point *out)
{
	for (int r = HSPMD_RECOMPUTE_NONE + 1; r < HSPMD_RECOMPUTE_KINDS; r++) {
		if (!(hspmd_recompute_kinds(b->facts->recompute_sets) & 1u << r)) { /* as the kind before */
			memcpy(out->again[r], out->again[r - 1], (size_t)b->facts->kind_count * sizeof *out->again[r]);
			continue;
		}
		const struct hspmd_program *recomputed = program_again(b, layout, (enum hspmd_recompute)r);
		if (!recomputed || hspmd_probe_again(p, recomputed, others, out->again[r], b->err))
			return -1;
	}
	return 0;
}

/* A context group gathers the same bytes at once and in parts; only the former is a plain gathering, in programs of the narrow width. */
static int probe_point(struct build *b, enum hspmd_facts_width width, int which, struct point *out)
{
	int layout = points[which].layout;
	bool wide = width == HSPMD_FACTS_FP32 && layout != CONTEXT;
	const struct hspmd_probe *probe = wide ? &b->in_parts[layout] : &b->gathered[layout];
	struct hspmd_probe twice = { 0 };
	if (points[which].samples > 1) {
		struct hspmd_probe_layout more = layouts[layout];
		more.samples = points[which].samples;
		if (hspmd_probe_open(&twice, &b->reduced, &more, wide ? HSPMD_FACTS_PARTS_FP32 : HSPMD_FACTS_GATHERED_BF16,
		                     b->facts->seq_len, b->err))
			return -1;
		probe = &twice;
	}
	const struct hspmd_probe_others others = others_of(b, layout, width);
	int status = hspmd_probe_work(probe->program, &others, out->plain, b->err);
	if (!status && layout != CONTEXT)
		status = probe_again(b, layout, probe->program, &others, out);
	hspmd_probe_close(&twice);
	return status;
}

/* Of the pass that needs most. */
static struct hspmd_facts_amount workspace_of(const struct point *at, int kind, enum hspmd_facts_workspace which, bool at_once)
{
	double most[WORK_POINTS];
	for (int i = 0; i < WORK_POINTS; i++) {
		const struct hspmd_probe_pass *pass = at[i].plain[kind];
		most[i] = fmax(pass[0].workspace[at_once][which], pass[1].workspace[at_once][which]);
	}
	double one = most[WORK_ONE], both = one > 0 ? most[WORK_TENSOR] * most[WORK_CONTEXT] / one : 0;
	return amount(one, most[WORK_TENSOR], most[WORK_CONTEXT], both);
}

static void set_work(struct build *b, enum hspmd_facts_width width, int kind, const struct point *at)
{
	struct hspmd_layer_facts *f = &b->facts->kinds[kind];
	const struct hspmd_probe_pass *of[WORK_POINTS];
	for (int direction = 0; direction < 2; direction++) {
		for (int i = 0; i < WORK_POINTS; i++)
			of[i] = &at[i].plain[kind][direction];
		*(direction ? &f->backward[width] : &f->forward[width]) = pass_of(of);
	}
	for (int r = 0; r < HSPMD_RECOMPUTE_KINDS; r++) {
		for (int i = 0; i < WORK_POINTS; i++)
			of[i] = &at[i].again[r][kind];
		f->again[r][width] = pass_of(of);
	}
	for (int i = 0; i < HSPMD_FACTS_FORMS * HSPMD_WORKSPACES; i++) {
		int form = i / HSPMD_WORKSPACES, which = i % HSPMD_WORKSPACES;
		if ((width == HSPMD_FACTS_BF16) == (form == HSPMD_FACTS_GATHERED_BF16))
			f->workspace[form][which] =
			        workspace_of(at, kind, (enum hspmd_facts_workspace)which, form != HSPMD_FACTS_PARTS_FP32);
	}
	f->attention = at[WORK_ONE].plain[kind][1].attention;
	f->recomputable = f->again[HSPMD_RECOMPUTE_FULL][width].kernels > 0;
	if (f->recomputable)
		f->again[HSPMD_RECOMPUTE_FULL][width].context = f->forward[width].context;
}

static int probe_work(struct build *b, enum hspmd_facts_width width)
{
	size_t n = (size_t)b->facts->kind_count;
	struct point at[WORK_POINTS] = { 0 };
	int status = 0;
	for (int i = 0; !status && i < WORK_POINTS; i++) {
		at[i].plain = hspmd_calloc(n, sizeof *at[i].plain);
		status = at[i].plain ? 0 : hspmd_fail_memory(b->err, "probing a model's work");
		for (int r = 0; !status && r < HSPMD_RECOMPUTE_KINDS; r++)
			if (!(at[i].again[r] = hspmd_calloc(n, sizeof *at[i].again[r])))
				status = hspmd_fail_memory(b->err, "probing a model's work");
	}
	for (int i = 0; !status && i < WORK_POINTS; i++)
		if (b->possible[points[i].layout])
			status = probe_point(b, width, i, &at[i]);
	for (int k = 0; !status && k < b->facts->kind_count; k++) {
		struct point own[WORK_POINTS];
		memcpy(own, at, sizeof own);
		if (!b->possible[TENSOR]) {
			own[WORK_TENSOR] = own[WORK_ONE];
			own[WORK_TENSOR_TWICE] = own[WORK_ONE_TWICE];
		}
		if (!b->possible[CONTEXT])
			own[WORK_CONTEXT] = own[WORK_ONE];
		if (!b->possible[S2])
			own[WORK_SEQUENCE] = own[WORK_TENSOR];
		set_work(b, width, k, own);
	}
	for (int i = 0; i < WORK_POINTS; i++) {
		free(at[i].plain);
		for (int r = 0; r < HSPMD_RECOMPUTE_KINDS; r++)
			free(at[i].again[r]);
	}
	return status;
}

static int probe_products(struct build *b)
{
	return hspmd_probe_products(b->in_parts[ONE].program, b->possible[TENSOR] ? b->in_parts[TENSOR].program : NULL, b->facts->kinds,
	                            b->err);
}

/* ---- parameters */

/* Weights of one layer of each kind, from a program's share of the reduced model; vectors: those of one dimension alone. */
static void add_params(const struct hspmd_program *p, bool vectors, double *params)
{
	for (int i = 0; i < p->state_count; i++) {
		const struct hspmd_tensor *t = &p->graph->tensors[p->states[i].tensor];
		if (p->states[i].used >= 0 && (!vectors || t->shape.rank < 2))
			params[t->layer] += (double)hspmd_box_elements(&p->slot_types[p->slots[p->states[i].used].slot_type].box);
	}
}

static int set_params(struct build *b)
{
	size_t n = (size_t)b->facts->kind_count;
	for (int vectors = 0; vectors < 2; vectors++) {
		double *one = hspmd_calloc(2 * n, sizeof *one), *half = one + n;
		if (!one)
			return hspmd_fail_memory(b->err, "probing a model's weights");
		add_params(b->in_parts[ONE].program, vectors, one);
		add_params(b->in_parts[instead_of(b, TENSOR)].program, vectors, half);
		for (size_t k = 0; k < n; k++)
			*(vectors ? &b->facts->kinds[k].vectors : &b->facts->kinds[k].params) = work(one[k], half[k]);
		free(one);
	}
	return 0;
}

/* Count the elements of weights whose gradients are parts of sums on the devices of a tensor-parallel group. */
static void count_partial(struct build *b)
{
	const struct hspmd_program *p = b->possible[TENSOR] ? b->in_parts[TENSOR].program : NULL;
	for (size_t i = 0; p && i < p->graph->tensor_count; i++) {
		const struct hspmd_tensor *t = &p->graph->tensors[i];
		int value = t->role == HSPMD_TENSOR_PARAMETER && t->grad >= 0 ? hspmd_spmd_value(p->spmd, t->grad, 0) : -1;
		if (value >= 0 && hspmd_annotation_is_partial(p->spmd->values[value].annotation))
			b->facts->kinds[t->layer].partial_params += (double)hspmd_shape_elements(&t->shape);
	}
}

static bool is_read_after(const struct hspmd_graph *g, int tensor, int layer)
{
	for (size_t i = 0; i < g->op_count; i++)
		for (int k = 0; !g->ops[i].backward && g->ops[i].layer > layer && k < g->ops[i].input_count; k++)
			if (g->ops[i].in[k] == tensor)
				return true;
	return false;
}

/* Elements of a layer's results that later layers read; of the last layer, the loss. */
static double output_elements(const struct hspmd_graph *g, int layer, int layer_count)
{
	double elements = layer + 1 < layer_count ? 0 : 1;
	for (size_t t = 0; t < g->tensor_count; t++)
		if (g->tensors[t].layer == layer && g->tensors[t].role == HSPMD_TENSOR_ACTIVATION && is_read_after(g, (int)t, layer))
			elements += (double)hspmd_shape_elements(&g->tensors[t].shape);
	return elements;
}

/* ---- all of it */

/* What is read off the whole model: its kinds of layers, weights and results. */
static int read_model(struct build *b, const struct hspmd_reduced_model *m, const char *name)
{
	struct hspmd_model_facts *f = b->facts;
	size_t layers = (size_t)m->kinds.layer_count;
	f->layer_count = m->kinds.layer_count;
	f->kind_count = m->kinds.kind_count;
	f->name = strdup(name);
	f->kind_of_layer = hspmd_calloc(layers, sizeof *f->kind_of_layer);
	f->kinds = hspmd_calloc((size_t)f->kind_count, sizeof *f->kinds);
	f->ties = hspmd_calloc(layers, sizeof *f->ties);
	if (!f->name || !f->kind_of_layer || !f->kinds || !f->ties)
		return hspmd_fail_memory(b->err, "reading a model's layers");
	memcpy(f->kind_of_layer, m->kinds.kind_of_layer, layers * sizeof *f->kind_of_layer);
	for (int k = 0; k < f->kind_count; k++)
		f->kinds[k].output_elements = output_elements(m->whole, m->kinds.first_layer[k], f->layer_count);
	hspmd_facts_count_parameters(f, m->whole);
	return 0;
}

/* *gathers: whether tensor-parallel devices gather anything without sequence parallelism, as norms over all heads do. 0 or -1. */
static int find_gathers(struct build *b, bool *gathers)
{
	struct hspmd_probe_pass(*passes)[2] = hspmd_calloc((size_t)b->facts->kind_count, sizeof *passes);
	*gathers = false;
	if (!passes)
		return hspmd_fail_memory(b->err, "probing a model's work");
	int status = hspmd_probe_work(b->gathered[TENSOR].program, &(struct hspmd_probe_others){ 0 }, passes, b->err);
	for (int k = 0; k < 2 * b->facts->kind_count; k++)
		*gathers |= hspmd_facts_messages_bytes(&passes[k / 2][k % 2].messages, HSPMD_FACTS_GATHERED) > 0;
	free(passes);
	return status;
}

/* Find out how the model can be divided. */
static int open_probes(struct build *b)
{
	for (int layout = 0; layout < LAYOUTS; layout++) {
		struct hspmd_error why, *err = layout == ONE ? b->err : &why;
		bool needed = true;
		if (layout == T4 && b->possible[TENSOR] && find_gathers(b, &needed))
			return -1;
		b->possible[layout] = needed &&
		                      !hspmd_probe_open(&b->gathered[layout], &b->reduced, &layouts[layout], HSPMD_FACTS_GATHERED_BF16,
		                                        b->facts->seq_len, err) &&
		                      !hspmd_probe_open(&b->in_parts[layout], &b->reduced, &layouts[layout], HSPMD_FACTS_PARTS_FP32,
		                                        b->facts->seq_len, err);
		if (!b->possible[ONE])
			return -1;
	}
	if (!b->possible[TENSOR])
		b->facts->parts = b->facts->even_parts = 1;
	return 0;
}

static int choose_sets(struct build *b)
{
	struct hspmd_model_facts *f = b->facts;
	double *weight = hspmd_calloc((size_t)f->kind_count, sizeof *weight);
	if (!weight)
		return hspmd_fail_memory(b->err, "choosing what to recompute");
	for (int l = 0; l < f->layer_count; l++)
		weight[f->kind_of_layer[l]]++;
	int status = hspmd_recompute_sets_choose(b->in_parts[ONE].program, b->possible[TENSOR] ? b->in_parts[TENSOR].program : NULL,
	                                         f->kind_count, weight, &f->recompute_sets, b->err);
	free(weight);
	return status;
}

static void close_probes(struct build *b)
{
	for (int layout = 0; layout < LAYOUTS; layout++) {
		for (int r = 0; r < HSPMD_RECOMPUTE_KINDS; r++)
			hspmd_program_destroy(b->again[layout][r]);
		hspmd_probe_close(&b->gathered[layout]);
		hspmd_probe_close(&b->in_parts[layout]);
	}
}

static int allocate_memory(struct build *b)
{
	if (hspmd_probe_list_results(b->in_parts[ONE].program->graph, b->facts, b->err))
		return -1;
	for (int form = 0; form < HSPMD_FACTS_FORMS; form++)
		for (int layout = 0; layout < LAYOUTS; layout++) {
			b->memory[form][layout] = hspmd_calloc((size_t)b->facts->kind_count, sizeof *b->memory[form][layout]);
			b->results[form][layout] = hspmd_calloc((size_t)b->facts->result_count + 1, sizeof *b->results[form][layout]);
			if (!b->memory[form][layout] || !b->results[form][layout])
				return hspmd_fail_memory(b->err, "probing a model's memory");
		}
	return 0;
}

/* Fill the facts of plans whose largest tensor-parallel group has `widest` devices. 0 or -1. */
static int fill_facts(struct hspmd_model_facts *f, const struct hspmd_graph_source *source, struct hspmd_reduced_model *m, const char *name,
                      int seq_len, struct hspmd_error *err)
{
	struct build b = { .facts = f, .reduced = hspmd_reduced_model_source(m), .err = err };
	f->seq_len = seq_len;
	f->moments = hspmd_optimizer_types[source->optimizer]->moments;
	int status = read_model(&b, m, name) || open_probes(&b) || choose_sets(&b) || allocate_memory(&b) || set_params(&b) ||
	                             probe_work(&b, HSPMD_FACTS_FP32) || probe_work(&b, HSPMD_FACTS_BF16) || probe_memory(&b) ||
	                             probe_products(&b)
	                     ? -1
	                     : 0;
	for (int form = 0; form < HSPMD_FACTS_FORMS; form++)
		for (int layout = 0; layout < LAYOUTS; layout++) {
			free(b.memory[form][layout]);
			free(b.results[form][layout]);
		}
	if (!status)
		count_partial(&b);
	close_probes(&b);
	return status;
}

static struct hspmd_model_facts *build_for(const struct hspmd_graph_source *source, const char *name, int seq_len, int widest,
                                           struct hspmd_error *err)
{
	struct hspmd_reduced_model *m = hspmd_reduced_model_create(source, seq_len, widest, err);
	struct hspmd_model_facts *f = NULL;
	if (m && (widest == 1 || hspmd_graph_has_more_parts(m->whole, widest - 1)) && !(f = hspmd_calloc(1, sizeof *f)))
		hspmd_fail_memory(err, "reading a model's layers");
	if (f && fill_facts(f, source, m, name, seq_len, err)) {
		hspmd_model_facts_destroy(f);
		f = NULL;
	}
	hspmd_reduced_model_destroy(m);
	return f;
}

struct hspmd_model_facts *hspmd_model_facts_build(const struct hspmd_graph_source *source, const char *name, int seq_len,
                                                  struct hspmd_error *err)
{
	struct hspmd_model_facts *f = build_for(source, name, seq_len, 1, err);
	struct hspmd_error why;
	if (f && f->even_parts)
		f->wide = build_for(source, name, seq_len, f->even_parts + 1, &why);
	if (f && f->wide && f->wide->even_parts <= f->even_parts) { /* not even among two devices */
		hspmd_model_facts_destroy(f->wide);
		f->wide = NULL;
	}
	return f;
}

int hspmd_model_facts_length(const struct hspmd_model *m, int seq_len, struct hspmd_error *err)
{
	if (seq_len)
		return seq_len;
	if (hspmd_model_is_own(m) && !m->learnt_positions)
		return hspmd_fail(err, "%s: the length of samples is missing (--seq-len): the model takes any", m->name);
	return m->max_positions < INT_MAX ? (int)m->max_positions : INT_MAX;
}

struct hspmd_model_facts *hspmd_model_facts_of(const struct hspmd_model *m, int seq_len, struct hspmd_error *err)
{
	struct hspmd_graph_source source = hspmd_graph_source_model(m);
	int length = hspmd_model_facts_length(m, seq_len, err);
	return length < 0 ? NULL : hspmd_model_facts_build(&source, m->name, length, err);
}
