/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/run_state.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/log.h"
#include "runtime/model/build.h"
#include "runtime/model/own.h"
#include "runtime/state/checkpoint_choice.h"
#include "runtime/state/manifest.h"

static json_t *make_manifest(const struct run_config *c, const char *id, json_t *cluster, json_t *plan, json_t *written,
                             struct hspmd_error *err)
{
	json_t *job = json_pack("{s:s, s:s, s:s, s:O, s:O, s:O, s:O}", "run", c->run, "job_id", c->job_id, "id", id, "job", c->job_json,
	                        "model", c->model_json, "cluster", cluster, "plan", plan);
	if (!job) {
		hspmd_fail_memory(err, "assembling a manifest");
		return NULL;
	}
	struct hspmd_root_check check = { hspmd_root_checker_covered, c->state };
	json_t *manifest = hspmd_manifest_from_reports(written, job, &check, err);
	json_decref(job);
	return manifest;
}

/* This run must not resume from another run's checkpoints in the same folder. */
static bool ours(const struct run_config *c, const json_t *checkpoint)
{
	const char *run = json_string_value(json_object_get(checkpoint, "run"));
	return !json_object_get(checkpoint, "sum") || (run && !strcmp(run, c->run));
}

/* ---- is it of this job's model? */

static int compare_parameters(const struct hspmd_manifest *m, const struct hspmd_graph *g, struct hspmd_error *err)
{
	struct hspmd_state_parameter *parameters = hspmd_calloc(g->tensor_count, sizeof *parameters);
	size_t count = 0;
	if (!parameters)
		return hspmd_fail_memory(err, "comparing a checkpoint with the model");
	for (size_t i = 0; i < g->tensor_count; i++)
		if (g->tensors[i].role == HSPMD_TENSOR_PARAMETER)
			parameters[count++] =
			        (struct hspmd_state_parameter){ g->tensors[i].name, &g->tensors[i].shape, g->tensors[i].history };
	int status = hspmd_manifest_check_model(m, parameters, count, err);
	free(parameters);
	return status;
}

static int compare_with_job(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	struct hspmd_graph *g = hspmd_model_job_graph(c->model, c->job, err);
	int status = g ? compare_parameters(m, g, err) : -1;
	hspmd_graph_destroy(g);
	return status;
}

/* A root does not list what its shards contain: it is all parameters of the model of its job. */
static int compare_root(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	struct hspmd_model *was = hspmd_model_from_json(json_object_get(m->job, "model"), "the checkpoint's model", err);
	struct hspmd_graph *g = was ? hspmd_model_parameters_graph(was, err) : NULL;
	struct hspmd_manifest listed = { .extents = g ? hspmd_calloc(g->tensor_count, sizeof *listed.extents) : NULL };
	int status = g && !listed.extents ? hspmd_fail_memory(err, "comparing a checkpoint with the model") : g ? 0 : -1;
	for (size_t i = 0; !status && i < g->tensor_count; i++)
		if (g->tensors[i].role == HSPMD_TENSOR_PARAMETER)
			listed.extents[listed.extent_count++] =
			        (struct hspmd_extent){ .tensor = g->tensors[i].name, .shape = g->tensors[i].shape };
	if (!status)
		status = compare_with_job(c, &listed, err);
	free(listed.extents);
	hspmd_graph_destroy(g);
	hspmd_model_destroy(was);
	return status;
}

/* The net of the user's own that wrote a root cannot be built again, but its description has a hash of its parameters. */
static int compare_own_root(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	const json_t *was = json_object_get(json_object_get(m->job, "model"), "parameters");
	return json_equal(was, json_object_get(c->model_json, "parameters"))
	               ? 0
	               : hspmd_fail(err, "names or shapes of its parameters are others than those of the checkpoint");
}

static int compare_models(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	if (hspmd_model_is_own(c->model)) /* described alike whatever it builds */
		return m->root ? compare_own_root(c, m, err) : compare_with_job(c, m, err);
	if (json_equal(json_object_get(m->job, "model"), c->model_json))
		return 0;
	return m->root ? compare_root(c, m, err) : compare_with_job(c, m, err);
}

/* Values that the optimizer of a checkpoint's job keeps per parameter. */
static int moments_of(const struct hspmd_manifest *m)
{
	json_t *optimizer = json_object_get(json_object_get(m->job, "job"), "optimizer");
	const char *name = json_string_value(json_object_get(optimizer, "type"));
	for (int t = 0; name && hspmd_optimizer_names[t]; t++)
		if (!strcmp(name, hspmd_optimizer_names[t]))
			return hspmd_optimizer_types[t]->moments;
	return hspmd_optimizer_types[HSPMD_OPTIMIZER_ADAMW]->moments;
}

static int compare_optimizers(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	struct hspmd_extent of_kind[HSPMD_STATE_KIND_COUNT] = { 0 };
	struct hspmd_manifest listed = { .extents = of_kind };
	for (int moments = moments_of(m); listed.extent_count <= moments; listed.extent_count++)
		of_kind[listed.extent_count].kind = (enum hspmd_state_kind)listed.extent_count;
	return hspmd_manifest_check_kinds(m->root ? &listed : m, c->job->optimizer.type, err);
}

/* The training state of a job in FP8 has amax histories. */
static int compare_precision(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	const char *was = json_string_value(json_object_get(json_object_get(m->job, "job"), "precision")),
	           *is = hspmd_precision_names[c->job->precision], *fp8 = hspmd_precision_names[HSPMD_PRECISION_FP8];
	if (!was || !strcmp(was, fp8) == !strcmp(is, fp8))
		return 0;
	return hspmd_fail(err, "the checkpoint's job is in %s and this one in %s, but the scales of fp8 are part of the training state",
	                  was, is);
}

static int compare(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	if (compare_precision(c, m, err))
		return hspmd_error_prefix(err, "precision");
	if (compare_models(c, m, err))
		return hspmd_error_prefix(err, "model (%s)", c->job->model_path);
	return compare_optimizers(c, m, err) ? hspmd_error_prefix(err, "optimizer.type") : 0;
}

/* The folder of a checkpoint, by the first node that has found it; malloc'd. */
static char *folder_of(const struct run_config *c, json_t *found, const struct hspmd_manifest *m)
{
	const char *node;
	char name[64];
	json_t *list, *one;
	size_t i;
	hspmd_checkpoint_name(m->step, m->generation, name, sizeof name);
	json_object_foreach(found, node, list)
		json_array_foreach(list, i, one) {
			const char *place = json_string_value(json_object_get(one, "place"));
			if (!place || !json_object_get(one, "sum") || json_integer_value(json_object_get(one, "step")) != m->step ||
			    json_integer_value(json_object_get(one, "generation")) != m->generation)
				continue;
			if (!strcmp(place, "shared"))
				return hspmd_asprintf("%s/%s", c->shared, name);
			return hspmd_asprintf("%s/%s/%s (on %s)", !strcmp(place, "local") ? c->local : c->memory, node, name, node);
		}
	return strdup(name);
}

static int check_model(const struct run_config *c, json_t *found, json_t *manifest, struct hspmd_error *err)
{
	struct hspmd_manifest *m = hspmd_manifest_from_json(manifest, "manifest", err);
	struct hspmd_error why;
	if (!m)
		return -1;
	int status = compare(c, m, &why);
	char *folder = status ? folder_of(c, found, m) : NULL;
	if (status)
		hspmd_fail(
		        err,
		        "%s: %s. The checkpoint is of this run, in %s: continue with the model and the optimizer that wrote it (\"job\" in "
		        "its manifest.json), or begin another run with the new ones (hspmd run --output)",
		        c->job->file, why.text, folder ? folder : "its folder");
	free(folder);
	hspmd_manifest_destroy(m);
	return status;
}

/* One of another model is chosen even if shards are missing: it is refused then, with its reason. */
static int covered_or_foreign(void *context, const struct hspmd_manifest *m, const bool *there, struct hspmd_error *err)
{
	const struct run_config *c = context;
	struct hspmd_error why;
	return compare(c, m, &why) ? 0 : hspmd_root_checker_covered(c->state, m, there, err);
}

static int choose(const struct run_config *c, json_t *found, json_t *manifests, json_t *readers, struct run_checkpoint_choice *choice,
                  struct hspmd_error *err)
{
	json_t *own = json_object(), *list, *one;
	const char *node;
	size_t i;
	struct hspmd_error none = { "" };
	struct hspmd_checkpoint_choice stored = { 0 };
	struct hspmd_root_check check = { covered_or_foreign, (void *)(uintptr_t)c };
	int rc = own ? 0 : -1;
	json_object_foreach(found, node, list) {
		json_t *kept = json_array();
		json_array_foreach(list, i, one)
			if (ours(c, one) && json_array_append(kept, one))
				rc = -1;
		if (!kept || json_object_set_new(own, node, kept))
			rc = -1;
	}
	if (!rc)
		rc = hspmd_checkpoint_choose(own, manifests, readers, &check, &stored, &none);
	if (rc < 0)
		hspmd_fail(err, "%s", none.text[0] ? none.text : "out of memory");
	int chosen = rc < 0 ? 0 : rc > 0 ? 2 : check_model(c, own, stored.manifest, err) ? -1 : 1;
	json_decref(own);
	_Static_assert(RUN_MANIFEST_SUM == HSPMD_MANIFEST_SUM, "both have room for one name");
	if (chosen > 0) {
		*choice = (struct run_checkpoint_choice){ stored.step, "", stored.manifest, stored.files, stored.durable };
		memcpy(choice->sum, stored.sum, sizeof choice->sum);
	} else {
		json_decref(stored.manifest);
		json_decref(stored.files);
	}
	return chosen;
}

void run_state_bind(struct run_config *c, struct hspmd_root_checker *roots)
{
	c->state = roots;
	c->manifest = make_manifest;
	c->choose = choose;
	c->check_manifest = hspmd_manifest_is;
}
