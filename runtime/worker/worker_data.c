/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker trains on: the job's data, and the code of a model of the user's own. */
#include <stdlib.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "runtime/lib/object.h"
#include "runtime/model/own.h"
#include "runtime/worker/worker_internal.h"

int worker_load_model(struct worker *w, const char *object, struct hspmd_error *err)
{
	struct hspmd_worker_setup *s = &w->setup;
	size_t size = 0;
	void *bytes = object ? hspmd_base64_decode(object, &size) : NULL;
	if (!bytes)
		return hspmd_fail(err, object ? "the controller's object cannot be read" : "the controller sent no object");
	w->object = hspmd_own_object_open(bytes, size, s->model->name, hspmd_own_config(s->model), NULL, err);
	free(bytes);
	if (!w->object)
		return -1;
	if (w->object->sizes.layers != s->source.layers)
		return hspmd_fail(err, "it has %d layers here, and %d where the job started: configure must depend on model_config alone",
		                  w->object->sizes.layers, s->source.layers);
	struct hspmd_graph_source own = hspmd_net_graph_source(&w->object->net);
	s->source.build = own.build;
	s->source.context = own.context;
	return 0;
}

static int open_own(struct worker *w, struct hspmd_error *err)
{
	struct hspmd_worker_setup *s = &w->setup;
	if (!w->object)
		return hspmd_fail(err, "%s: data.kind: \"own\" is for models of one's own", s->job->file);
	if (hspmd_own_object_open_samples(w->object, s->job, false, &w->own_samples[0], err) ||
	    (s->job->valid_count && hspmd_own_object_open_samples(w->object, s->job, true, &w->own_samples[1], err)))
		return hspmd_error_prefix(err, "%s", s->job->model_path);
	s->samples = hspmd_own_samples_source(&w->own_samples[0]);
	s->valid_samples = hspmd_own_samples_source(&w->own_samples[1]);
	s->valid_count = w->own_samples[1].count;
	return 0;
}

int worker_open_data(struct worker *w, struct hspmd_error *err)
{
	struct hspmd_worker_setup *s = &w->setup;
	if (s->job->data_kind == HSPMD_DATA_OWN)
		return open_own(w, err);
	char *index = hspmd_asprintf("%s/" HSPMD_DATA_INDEX_FILE, s->output);
	if (!index)
		return hspmd_fail_memory(err, "opening data");
	s->data = hspmd_data_open(s->job, s->model->vocab, index, err);
	free(index);
	if (!s->data || (s->job->valid_count && !(s->valid = hspmd_data_open_valid(s->job, s->model->vocab, err))))
		return -1;
	s->samples = hspmd_data_source(s->data);
	if (s->valid) {
		s->valid_samples = hspmd_data_source(s->valid);
		s->valid_count = hspmd_data_samples(s->valid);
	}
	return 0;
}

void worker_close_data(struct worker *w)
{
	hspmd_data_close(w->setup.data);
	hspmd_data_close(w->setup.valid);
	hspmd_own_object_close_samples(&w->own_samples[0]);
	hspmd_own_object_close_samples(&w->own_samples[1]);
	hspmd_own_object_close(w->object);
}
