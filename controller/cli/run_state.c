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

json_t *run_state_manifest(const struct run_config *c, const char *id, json_t *cluster, json_t *plan, json_t *written,
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
	json_t *manifest = json_object_get(checkpoint, "manifest");
	const char *run = json_string_value(json_object_get(json_object_get(manifest, "job"), "run"));
	return !manifest || (run && !strcmp(run, c->run));
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
			parameters[count++] = (struct hspmd_state_parameter){ g->tensors[i].name, &g->tensors[i].shape };
	int status = hspmd_manifest_check_model(m, parameters, count, err);
	free(parameters);
	return status;
}

static int check_kinds(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	return hspmd_manifest_check_kinds(m, c->job->optimizer.type, err) ? hspmd_error_prefix(err, "optimizer.type") : 0;
}

static int compare_with_job(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	/* A model of the user's own is described alike whatever it builds. */
	bool same = !hspmd_model_is_own(c->model) && json_equal(json_object_get(m->job, "model"), c->model_json);
	struct hspmd_graph *g = same ? NULL : hspmd_model_job_graph(c->model, c->job, err);
	int status = same || (g && !compare_parameters(m, g, err)) ? 0 : -1;
	hspmd_graph_destroy(g);
	if (status)
		return hspmd_error_prefix(err, "model (%s)", c->job->model_path);
	return check_kinds(c, m, err);
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

/* A root does not list what its shards contain: it is all that follows from the model and the optimizer of its job. */
static int list_root(const struct hspmd_manifest *m, const struct hspmd_graph *g, struct hspmd_manifest *listed, struct hspmd_error *err)
{
	int kinds = 1 + moments_of(m);
	*listed = *m;
	listed->extents = hspmd_calloc(g->tensor_count * (size_t)kinds, sizeof *listed->extents);
	if (!listed->extents)
		return hspmd_fail_memory(err, "comparing a checkpoint with the model");
	for (size_t i = 0; i < g->tensor_count; i++)
		for (int k = 0; g->tensors[i].role == HSPMD_TENSOR_PARAMETER && k < kinds; k++)
			listed->extents[listed->extent_count++] = (struct hspmd_extent){ .tensor = g->tensors[i].name,
				                                                         .kind = (enum hspmd_state_kind)k,
				                                                         .shape = g->tensors[i].shape };
	return 0;
}

/* The net that wrote it cannot be built again, but its description has a hash of its parameters. */
static int compare_own_root(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	json_t *stored = json_object_get(json_object_get(m->job, "model"), "parameters");
	struct hspmd_extent of_kind[HSPMD_STATE_KIND_COUNT] = { 0 };
	struct hspmd_manifest listed = { .extents = of_kind };
	if (!json_equal(stored, json_object_get(c->model_json, "parameters")))
		return hspmd_fail(err, "model (%s): names or shapes of its parameters are others than those of the checkpoint",
		                  c->job->model_path);
	while (listed.extent_count <= moments_of(m)) {
		of_kind[listed.extent_count].kind = (enum hspmd_state_kind)listed.extent_count;
		listed.extent_count++;
	}
	return check_kinds(c, &listed, err);
}

static int compare_root(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	if (hspmd_model_is_own(c->model))
		return compare_own_root(c, m, err);
	static const struct hspmd_model_build_options plain = {
		.batch = 1, .seq_len = 1, .vocab_parts = 1, .loss_scale = 1, .forward_only = true
	}; /* shapes of parameters do not depend on these sizes */
	struct hspmd_manifest listed = { 0 };
	struct hspmd_model *was = hspmd_model_from_json(json_object_get(m->job, "model"), "the checkpoint's model", err);
	struct hspmd_graph *g = was ? hspmd_model_graph(was, &plain, err) : NULL;
	int status = g && !list_root(m, g, &listed, err) ? compare_with_job(c, &listed, err) : -1;
	free(listed.extents);
	hspmd_graph_destroy(g);
	hspmd_model_destroy(was);
	return status;
}

static int compare(const struct run_config *c, const struct hspmd_manifest *m, struct hspmd_error *err)
{
	return m->root ? compare_root(c, m, err) : compare_with_job(c, m, err);
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
			json_t *at = json_object_get(one, "manifest");
			const char *place = json_string_value(json_object_get(one, "place"));
			if (!place || json_integer_value(json_object_get(at, "step")) != m->step ||
			    json_integer_value(json_object_get(at, "generation")) != m->generation)
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

int run_state_choose(const struct run_config *c, json_t *found, json_t *readers, struct run_checkpoint_choice *choice,
                     struct hspmd_error *err)
{
	json_t *own = json_object(), *list, *one;
	const char *node;
	size_t i;
	struct hspmd_error none = { "" };
	struct hspmd_checkpoint_choice stored = { 0 };
	struct hspmd_root_check check = { hspmd_root_checker_covered, c->state };
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
		rc = hspmd_checkpoint_choose(own, readers, &check, &stored, &none);
	if (rc)
		hspmd_info("no checkpoint to continue from: %s", none.text[0] ? none.text : "out of memory");
	int chosen = rc ? 0 : check_model(c, own, stored.manifest, err) ? -1 : 1;
	json_decref(own);
	if (chosen == 1) {
		*choice = (struct run_checkpoint_choice){ stored.step, stored.manifest, stored.files, stored.durable };
	} else {
		json_decref(stored.manifest);
		json_decref(stored.files);
	}
	return chosen;
}
