/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/trained_model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"

static int read_checkpoint(void *context, const char *name, const struct hspmd_shape *shape, float *data, struct hspmd_error *err)
{
	struct trained_model *t = context;
	struct hspmd_state_need need = { name, HSPMD_STATE_PARAM, HSPMD_F32, hspmd_box_full(shape), data };
	return hspmd_reader_load(t->reader, &need, 1, NULL, NULL, NULL, err);
}

static int read_weights(void *context, const char *name, const struct hspmd_shape *shape, float *data, struct hspmd_error *err)
{
	struct trained_model *t = context;
	struct hspmd_box all = hspmd_box_full(shape);
	return hspmd_weights_read(t->weights, &t->map, name, shape, &all, data, err);
}

static int open_checkpoint(struct trained_model *t, const char *path, int64_t step, const char *config, struct hspmd_error *err)
{
	if (hspmd_checkpoint_index_open(&t->index, path, err))
		return -1;
	struct hspmd_checkpoint_group *c = hspmd_checkpoint_index_choose(&t->index, step, path, err);
	if (!c)
		return -1;
	const json_t *about = c->manifest->job;
	const char *precision = json_string_value(json_object_get(json_object_get(about, "job"), "precision"));
	if (json_object_get(about, "note") && !config)
		return hspmd_fail(err, "%s: the checkpoint is of another trainer, whose model hspmd does not know", path);
	if (!config && !json_is_object(json_object_get(about, "model")))
		return hspmd_fail(err, "%s: the checkpoint does not hold the model's config.json: name it with --config", path);
	t->model = config ? hspmd_model_read(config, err)
	                  : hspmd_model_from_json(json_object_get(about, "model"), "the checkpoint's config.json", err);
	t->step = c->step;
	t->bf16 = precision && (!strcmp(precision, "bf16") || !strcmp(precision, "fp8"));
	t->reader = c->reader;
	t->source = (struct hspmd_parameter_source){ read_checkpoint, t };
	return t->model ? 0 : -1;
}

static int open_folder(struct trained_model *t, const char *path, const char *config, struct hspmd_error *err)
{
	t->model = hspmd_model_read(config ? config : path, err);
	if (!t->model || !(t->weights = hspmd_weights_open(path, err)))
		return -1;
	t->map = hspmd_model_file_map(t->model);
	t->source = (struct hspmd_parameter_source){ read_weights, t };
	return 0;
}

int trained_model_open(struct trained_model *t, const char *path, int64_t step, const char *config, struct hspmd_error *err)
{
	struct stat st;
	*t = (struct trained_model){ .step = -1 };
	if (stat(path, &st))
		return hspmd_fail_errno(err, "%s", path);
	if (!S_ISDIR(st.st_mode))
		return hspmd_fail(err, "%s: expected a folder", path);
	char *beside = hspmd_asprintf("%s/config.json", path);
	bool published = beside && !access(beside, F_OK);
	free(beside);
	if (!beside)
		return hspmd_fail_memory(err, "opening a model");
	if (published && step >= 0)
		return hspmd_fail(err, "%s: a folder with config.json has no steps to choose from", path);
	return published ? open_folder(t, path, config, err) : open_checkpoint(t, path, step, config, err);
}

void trained_model_close(struct trained_model *t)
{
	hspmd_weights_destroy(t->weights);
	hspmd_model_destroy(t->model);
	hspmd_checkpoint_index_close(&t->index);
	*t = (struct trained_model){ .step = -1 };
}
