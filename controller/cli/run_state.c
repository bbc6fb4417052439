/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/run_state.h"

#include <string.h>

#include "common/log.h"
#include "runtime/state/checkpoint_choice.h"

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

int run_state_choose(const struct run_config *c, json_t *found, json_t *readers, struct run_checkpoint_choice *choice)
{
	json_t *own = json_object(), *list, *one;
	const char *node;
	size_t i;
	struct hspmd_error err = { "" };
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
		rc = hspmd_checkpoint_choose(own, readers, &check, &stored, &err);
	if (rc)
		hspmd_info("no checkpoint to continue from: %s", err.text[0] ? err.text : "out of memory");
	json_decref(own);
	*choice = (struct run_checkpoint_choice){ stored.step, stored.manifest, stored.files, stored.durable };
	return rc;
}
