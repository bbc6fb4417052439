/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/parameter_layout.h"

#include <math.h>
#include <string.h>

#include "common/alloc.h"

/* Ratios are converted to integer weights that are precise enough for any split that fits in memory. */
#define RATIO_STEPS 1048576.0
#define SHARED_BACK 64 /* parameters looked back at for like ones: more than a block has */

static void whole_weights(const double *ratio, int n, int64_t *weights)
{
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += ratio[i];
	for (int i = 0; i < n; i++)
		weights[i] = (int64_t)fmax(1, round(ratio[i] / sum * RATIO_STEPS));
}

void hspmd_spmd_stage_of_plan(const struct hspmd_stage *stage, struct hspmd_spmd_stage *out, int64_t *weights)
{
	int width = stage->device_count / stage->context;
	*out = (struct hspmd_spmd_stage){ .device_count = stage->device_count,
		                          .devices = stage->devices,
		                          .context = stage->context,
		                          .sequence_parallel = stage->sequence_parallel };
	if (stage->shard_ratio) {
		whole_weights(stage->shard_ratio, width, weights);
		out->tensor_weights = weights;
	}
	if (stage->context_ratio) {
		whole_weights(stage->context_ratio, stage->context, weights + width);
		out->context_weights = weights + width;
	}
}

int *hspmd_spmd_stage_of_layer(const struct hspmd_pipeline *pipeline, struct hspmd_error *err)
{
	int layers = pipeline->stages[pipeline->stage_count - 1].layers[1];
	int *of = malloc((size_t)layers * sizeof *of);
	if (!of) {
		hspmd_fail_memory(err, "reading the plan");
		return NULL;
	}
	for (int s = 0; s < pipeline->stage_count; s++)
		for (int l = pipeline->stages[s].layers[0]; l < pipeline->stages[s].layers[1]; l++)
			of[l] = s;
	return of;
}

/* Per tensor, the layers of the forward operators that use it: of tensor t, layer[first[t]..first[t + 1]). */
struct users {
	size_t *first;
	int *layer;
};

static int find_users(const struct hspmd_graph *g, struct users *u, struct hspmd_error *err)
{
	size_t count = 0;
	u->first = hspmd_calloc(g->tensor_count + 2, sizeof *u->first);
	for (size_t i = 0; u->first && i < g->op_count; i++)
		for (int k = 0; !g->ops[i].backward && k < g->ops[i].input_count; k++)
			if (g->ops[i].in[k] >= 0) {
				u->first[g->ops[i].in[k] + 2]++;
				count++;
			}
	u->layer = hspmd_calloc(count, sizeof *u->layer);
	if (!u->first || !u->layer)
		return hspmd_fail_memory(err, "laying out parameters");
	for (size_t t = 2; t < g->tensor_count + 2; t++)
		u->first[t] += u->first[t - 1];
	for (size_t i = 0; i < g->op_count; i++) /* leaves first[t + 1] where the layers of t end */
		for (int k = 0; !g->ops[i].backward && k < g->ops[i].input_count; k++)
			if (g->ops[i].in[k] >= 0)
				u->layer[u->first[g->ops[i].in[k] + 1]++] = g->ops[i].layer;
	return 0;
}

/* Finds the stages of the pipeline that use the tensor, without duplicates, into stages[0..length). Returns how many. Among stages that
 * run on the same devices (chunks of `length` stages) the first counts. */
static int using_stages(const struct users *u, int tensor, const int *stage_of_layer, int length, int *stages)
{
	int n = 0;
	for (size_t i = u->first[tensor]; i < u->first[tensor + 1]; i++) {
		int s = stage_of_layer[u->layer[i]] % length, at = 0;
		while (at < n && stages[at] != s)
			at++;
		if (at == n)
			stages[n++] = s;
	}
	return n;
}

/* How much of the state each subgroup of a parameter's holders keeps. NULL: as much as the others, or memory (*failed is set). */
static int64_t *zero_weights(const struct hspmd_parameter_layout *l, const struct hspmd_annotation *const *parts,
                             const struct hspmd_plan *plan, bool *failed)
{
	int groups = 0, at = 0;
	if (!plan->has_zero_shares)
		return NULL;
	for (int h = 0; h < l->holder_count; h++)
		groups += parts[h]->hsize;
	double *share = hspmd_calloc((size_t)groups, sizeof *share);
	int64_t *weights = hspmd_calloc((size_t)groups, sizeof *weights);
	for (int h = 0; share && h < l->holder_count; h++) {
		double own = plan->pipelines[l->holders[h].pipeline].stages[l->holders[h].stage].zero_share;
		for (int k = 0; k < parts[h]->hsize; k++)
			share[at++] = (own > 0 ? own : 1) / parts[h]->hsize;
	}
	*failed = !share || !weights;
	if (!*failed)
		whole_weights(share, groups, weights);
	free(share);
	if (!*failed)
		return weights;
	free(weights);
	return NULL;
}

/* ZeRO: split one dimension of the state over the holder's devices, the largest one that tensor parallelism does not split. weights: of
 * the subgroups, of which the result takes ownership; NULL: even. NULL: too small to split, or memory (*failed is set). */
static struct hspmd_annotation *cut_state(const struct hspmd_tensor *t, const struct hspmd_annotation *used, int64_t *weights, bool *failed)
{
	int dim = -1;
	for (int d = 0; d < t->shape.rank; d++)
		if (d != t->split_dim && (dim < 0 || t->shape.dim[d] > t->shape.dim[dim]))
			dim = d;
	if (dim < 0 || t->shape.dim[dim] < used->hsize)
		dim = t->split_dim;
	struct hspmd_annotation *a = dim < 0 ? NULL : hspmd_annotation_copy(used);
	*failed = dim >= 0 && !a;
	if (!a) {
		free(weights);
		return NULL;
	}
	a->hdim = dim;
	a->hunit = 1;
	free(a->hweights);
	a->hweights = weights;
	struct hspmd_error too_small;
	if (hspmd_annotation_check(a, &t->shape, &too_small)) { /* a device would get nothing: not worth splitting */
		hspmd_annotation_destroy(a);
		return NULL;
	}
	return a;
}

/* The annotation of a parameter on one stage that holds it. NULL and err. */
static struct hspmd_annotation *annotate_holder(const struct hspmd_tensor *t, const struct hspmd_plan *plan, struct hspmd_holder holder,
                                                struct hspmd_error *err)
{
	const struct hspmd_stage *stage = &plan->pipelines[holder.pipeline].stages[holder.stage];
	int64_t *weights = malloc((size_t)(stage->device_count + stage->context) * sizeof *weights);
	if (!weights) {
		hspmd_fail_memory(err, "laying out parameters");
		return NULL;
	}
	struct hspmd_spmd_stage view;
	hspmd_spmd_stage_of_plan(stage, &view, weights);
	struct hspmd_annotation *a = hspmd_spmd_parameter(t, &view, err);
	free(weights);
	if (!a)
		hspmd_error_prefix(err, "pipelines[%d].stages[%d]", holder.pipeline, holder.stage);
	return a;
}

/* Append one pipeline's holders of a parameter. */
static int add_holders(struct hspmd_parameter_layout *out, const struct users *u, const struct hspmd_plan *plan, int pipeline,
                       const int *stage_of_layer, struct hspmd_error *err)
{
	int length = plan->pipelines[pipeline].stage_count / plan->virtual_stages;
	int *stages = hspmd_calloc((size_t)length, sizeof *stages);
	int n = stages ? using_stages(u, out->tensor, stage_of_layer, length, stages) : 0;
	for (int i = 0; i < n; i++)
		out->holders[out->holder_count++] = (struct hspmd_holder){ pipeline, stages[i] };
	int status = stages ? 0 : hspmd_fail_memory(err, "laying out parameters");
	free(stages);
	return status;
}

struct hspmd_annotation *hspmd_parameter_layout_join(const struct hspmd_parameter_layout *l, const struct hspmd_annotation *const *parts,
                                                     int hdim, struct hspmd_error *err)
{
	for (int h = 0; l->holder_count > 1 && h < l->holder_count; h++) {
		if (parts[h]->hsize == 1 || parts[h]->hdim == hdim)
			continue;
		char *text = hspmd_annotation_text(parts[h]);
		hspmd_fail(err,
		           "pipelines[%d].stages[%d]: parameter %s: the subgroups of %s are not %s of one another, so no other stage can "
		           "use it",
		           l->holders[h].pipeline, l->holders[h].stage, l->name, text ? text : "?",
		           hdim == HSPMD_PARTIAL ? "addends" : "copies");
		free(text);
		return NULL;
	}
	struct hspmd_annotation *all =
	        l->holder_count == 1 ? hspmd_annotation_copy(parts[0]) : hspmd_annotation_union(parts, l->holder_count, hdim, 1, NULL);
	if (!all)
		hspmd_fail_memory(err, "laying out parameters");
	return all;
}

static int find_holders(struct hspmd_parameter_layout *out, const struct users *u, const struct hspmd_plan *plan,
                        int *const *stage_of_layer, struct hspmd_error *err)
{
	size_t most = 0;
	int status = 0;
	for (int p = 0; p < plan->pipeline_count; p++)
		most += (size_t)plan->pipelines[p].stage_count;
	if (!(out->holders = hspmd_calloc(most, sizeof *out->holders)))
		return hspmd_fail_memory(err, "laying out parameters");
	for (int p = 0; !status && p < plan->pipeline_count; p++)
		status = add_holders(out, u, plan, p, stage_of_layer[p], err);
	struct hspmd_holder *fewer = status ? NULL : realloc(out->holders, ((size_t)out->holder_count + 1) * sizeof *fewer);
	out->holders = fewer ? fewer : out->holders;
	return status;
}

static bool annotated_alike(const struct hspmd_graph *g, const struct hspmd_parameter_layout *a, const struct hspmd_parameter_layout *b)
{
	const struct hspmd_tensor *x = &g->tensors[a->tensor], *y = &g->tensors[b->tensor];
	return !x->annotation && !y->annotation && x->split_dim == y->split_dim && x->split_unit == y->split_unit &&
	       a->shape.rank == b->shape.rank && !memcmp(a->shape.dim, b->shape.dim, (size_t)a->shape.rank * sizeof *a->shape.dim) &&
	       a->holder_count == b->holder_count && !memcmp(a->holders, b->holders, (size_t)a->holder_count * sizeof *a->holders);
}

/* Share the annotations of an earlier parameter that has the same: the blocks of one stage are alike, and there are many devices. Returns
 * false if there is none nearby. */
static bool share(const struct hspmd_parameter_layouts *l, const struct hspmd_graph *g, struct hspmd_parameter_layout *out)
{
	for (int i = l->parameter_count - 2; i >= 0 && i >= l->parameter_count - 1 - SHARED_BACK; i--) {
		const struct hspmd_parameter_layout *like = &l->parameters[i];
		if (!annotated_alike(g, like, out))
			continue;
		out->shared = true;
		out->used = like->used;
		out->state = like->state;
		out->cut = like->cut;
		out->sharded_gradient = like->sharded_gradient;
		out->sharded_parameter = like->sharded_parameter;
		return true;
	}
	return false;
}

static bool in_one_stage(const struct hspmd_parameter_layout *l)
{
	for (int h = 1; h < l->holder_count; h++)
		if (l->holders[h].pipeline == l->holders[h - 1].pipeline)
			return false;
	return true;
}

static int lay_out(struct hspmd_parameter_layout *out, const struct hspmd_graph *g, const struct hspmd_plan *plan, struct hspmd_error *err)
{
	struct hspmd_annotation **parts = hspmd_calloc((size_t)out->holder_count, sizeof *parts);
	int status = parts ? 0 : hspmd_fail_memory(err, "laying out parameters");
	for (int h = 0; !status && h < out->holder_count; h++)
		if (!(parts[h] = annotate_holder(&g->tensors[out->tensor], plan, out->holders[h], err)))
			status = -1;
	if (!status && !(out->used = hspmd_parameter_layout_join(out, (const struct hspmd_annotation *const *)parts, HSPMD_DUPLICATE, err)))
		status = -1;
	if (!status) {
		bool failed = false;
		/* Vectors (gains, biases) stay whole, so that their sums travel together and none is gathered, as small weights do in
		 * DeepSpeed. They are a thousandth of a model. Not under ZeRO-2 and 3, where their messages free those before them
		 * early. */
		bool cuts = plan->zero_stage > 0 && out->holder_count > 1 && (plan->zero_stage > 1 || out->shape.rank > 1);
		int64_t *weights = cuts ? zero_weights(out, (const struct hspmd_annotation *const *)parts, plan, &failed) : NULL;
		if (cuts && !failed)
			out->state = cut_state(&g->tensors[out->tensor], out->used, weights, &failed);
		out->cut = out->state != NULL;
		out->sharded_gradient = out->cut && plan->zero_stage >= 2 && in_one_stage(out);
		out->sharded_parameter = out->sharded_gradient && plan->zero_stage >= 3;
		if (!failed && !out->state)
			failed = !(out->state = hspmd_annotation_copy(out->used));
		if (failed)
			status = hspmd_fail_memory(err, "laying out parameters");
	}
	for (int i = 0; parts && i < out->holder_count; i++)
		hspmd_annotation_destroy(parts[i]);
	free(parts);
	return status;
}

struct hspmd_parameter_layouts *hspmd_parameter_layouts_build(const struct hspmd_graph *graph, const struct hspmd_plan *plan,
                                                              struct hspmd_error *err)
{
	struct hspmd_parameter_layouts *l = calloc(1, sizeof *l);
	int **stage_of_layer = hspmd_calloc((size_t)plan->pipeline_count, sizeof *stage_of_layer);
	struct users users = { 0 };
	int status = 0, count = 0;
	for (size_t t = 0; t < graph->tensor_count; t++)
		count += graph->tensors[t].role == HSPMD_TENSOR_PARAMETER;
	if (!l || !stage_of_layer || !(l->parameters = hspmd_calloc((size_t)count, sizeof *l->parameters)))
		status = hspmd_fail_memory(err, "laying out parameters");
	if (!status)
		status = find_users(graph, &users, err);
	for (int p = 0; !status && p < plan->pipeline_count; p++)
		if (!(stage_of_layer[p] = hspmd_spmd_stage_of_layer(&plan->pipelines[p], err)))
			status = -1;
	for (size_t t = 0; !status && t < graph->tensor_count; t++) {
		const struct hspmd_tensor *tensor = &graph->tensors[t];
		if (tensor->role != HSPMD_TENSOR_PARAMETER)
			continue;
		struct hspmd_parameter_layout *out = &l->parameters[l->parameter_count++];
		*out = (struct hspmd_parameter_layout){
			.tensor = (int)t, .name = tensor->name, .shape = tensor->shape, .decay = tensor->decay
		};
		status = find_holders(out, &users, plan, stage_of_layer, err);
		if (!status && !share(l, graph, out))
			status = lay_out(out, graph, plan, err);
	}
	for (int p = 0; stage_of_layer && p < plan->pipeline_count; p++)
		free(stage_of_layer[p]);
	free(stage_of_layer);
	free(users.first);
	free(users.layer);
	if (status) {
		hspmd_parameter_layouts_destroy(l);
		return NULL;
	}
	return l;
}

int hspmd_parameter_layouts_share_state(struct hspmd_parameter_layouts *l, const struct hspmd_parameter_layouts *of,
                                        struct hspmd_error *err)
{
	if (l->parameter_count != of->parameter_count)
		return hspmd_fail(err, "the model has %d parameters under one plan and %d under another", of->parameter_count,
		                  l->parameter_count);
	for (int i = 0; i < l->parameter_count; i++) {
		const struct hspmd_parameter_layout *a = &of->parameters[i], *b = &l->parameters[i];
		struct hspmd_box whole[] = { hspmd_box_full(&a->shape), hspmd_box_full(&b->shape) };
		if (strcmp(a->name, b->name) || !hspmd_box_equal(&whole[0], &whole[1]))
			return hspmd_fail(err, "parameter %d is %s under one plan and %s under another, or has another shape", i, a->name,
			                  b->name);
	}
	for (int i = 0; i < l->parameter_count; i++) {
		struct hspmd_parameter_layout *own = &l->parameters[i];
		if (!own->shared)
			hspmd_annotation_destroy(own->state);
		own->state = of->parameters[i].state;
		own->cut = !hspmd_annotation_equal(own->used, own->state, &own->shape);
		own->sharded_gradient = own->sharded_parameter = false;
	}
	l->shares_state = true;
	return 0;
}

void hspmd_parameter_layouts_destroy(struct hspmd_parameter_layouts *l)
{
	if (!l)
		return;
	for (int i = 0; i < l->parameter_count; i++) {
		free(l->parameters[i].holders);
		if (l->parameters[i].shared)
			continue;
		hspmd_annotation_destroy(l->parameters[i].used);
		if (!l->shares_state)
			hspmd_annotation_destroy(l->parameters[i].state);
	}
	free(l->parameters);
	free(l);
}
