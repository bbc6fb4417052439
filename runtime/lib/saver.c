/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of other trainers, written by the writer of jobs. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/json.h"
#include "common/log.h"
#include "runtime/lib/stored_tensor.h"

struct hspmd_saver {
	struct hspmd_writer *writer;
	char *written;
	char node[256];
};

struct hspmd_saver *hspmd_saver_create(struct hspmd_error *err)
{
	struct hspmd_saver *s = hspmd_calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "starting a saver");
		return NULL;
	}
	if (gethostname(s->node, sizeof s->node - 1))
		strcpy(s->node, "node");
	s->writer = hspmd_writer_create(NULL, err);
	if (s->writer)
		return s;
	free(s);
	return NULL;
}

void hspmd_saver_destroy(struct hspmd_saver *s)
{
	if (!s)
		return;
	hspmd_writer_destroy(s->writer);
	free(s->written);
	free(s);
}

int hspmd_saver_begin(struct hspmd_saver *s, const char *folder, int64_t step, int64_t generation, const char *file,
                      const struct hspmd_stored_tensor *tensors, int count, struct hspmd_error *err)
{
	struct hspmd_writer_job job = { .step = step,
		                        .generation = generation,
		                        .file = file,
		                        .node = s->node,
		                        .locations = &folder,
		                        .location_count = 1,
		                        .host = true };
	struct hspmd_state_slice *slices = hspmd_calloc((size_t)count, sizeof *slices);
	int rv = slices ? 0 : hspmd_fail_memory(err, "beginning a checkpoint");
	for (int i = 0; i < count && !rv; i++)
		rv = hspmd_stored_slice(&tensors[i], &slices[i], err);
	if (!rv)
		rv = hspmd_durable_mkdir(folder, 0777, err);
	if (!rv)
		rv = hspmd_writer_begin(s->writer, &job, slices, (size_t)count, err);
	free(slices);
	return rv;
}

int hspmd_saver_wait_copied(struct hspmd_saver *s, struct hspmd_error *err)
{
	return hspmd_writer_wait_copied(s->writer, err);
}

int hspmd_saver_result(struct hspmd_saver *s, double seconds, const char **written, struct hspmd_error *err)
{
	json_t *report = NULL;
	int rv = hspmd_writer_result(s->writer, seconds, &report, err);
	free(s->written);
	s->written = rv > 0 ? json_dumps(json_object_get(report, "shard"), JSON_COMPACT) : NULL;
	json_decref(report);
	*written = s->written;
	return rv > 0 && !s->written ? hspmd_fail_memory(err, "reporting a checkpoint") : rv;
}

static json_t *parse_file(const char *text, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_parse(&doc, "the description of a file", text, strlen(text), err))
		return NULL;
	json_t *value = json_incref(hspmd_json_root(&doc).value);
	hspmd_json_close(&doc);
	return value;
}

int hspmd_saver_commit(const char *folder, int64_t step, int64_t generation, const char *note, const char *const *written, int count,
                       int keep, struct hspmd_error *err)
{
	json_t **files = hspmd_calloc((size_t)count, sizeof(json_t *)), *job = json_pack("{s:s*}", "note", note);
	int rv = files && job ? 0 : hspmd_fail_memory(err, "committing a checkpoint");
	for (int i = 0; i < count && !rv; i++)
		rv = (files[i] = parse_file(written[i], err)) ? 0 : -1;
	struct hspmd_manifest *m = rv ? NULL : hspmd_manifest_assemble(step, generation, job, files, (size_t)count, err);
	rv = !m || hspmd_checkpoint_commit(folder, m, err) ? -1 : 0;
	hspmd_manifest_destroy(m);
	struct hspmd_error pruning;
	if (!rv && hspmd_checkpoint_prune(folder, keep, &pruning))
		hspmd_warn("old checkpoints are not removed: %s", pruning.text);
	for (int i = 0; files && i < count; i++)
		json_decref(files[i]);
	free(files);
	json_decref(job);
	return rv;
}
