/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a Hugging Face config.json. Each type of model has a file of its own here (model_list.h): the values that it reads, the graph
 * that it builds, and the names of its weights in safetensors files. */
#ifndef HSPMD_MODEL_MODEL_H
#define HSPMD_MODEL_MODEL_H

#include "common/format/job.h"
#include "runtime/tensor/file_tensor.h"

/* Read and check; "model.so" and "model.c" are models of one's own (own.h); errors name file and JSON path; an unknown model_type is
 * answered with a list of the known ones. A folder stands for the config.json in it. hspmd_model_destroy frees the model. NULL and err:
 * cannot be read, or asks for what hspmd does not do. */
struct hspmd_model *hspmd_model_read(const char *path, struct hspmd_error *err);
/* The model of a job, with its model_config. program: of `hspmd` (char *), which loads a model of one's own; NULL: this process's own. */
struct hspmd_model *hspmd_model_read_job(const struct hspmd_job *j, void *program, struct hspmd_error *err);
/* For hspmd_job_check_files, whose context is `program` as above. */
extern const struct hspmd_job_models hspmd_job_models;
struct hspmd_model *hspmd_model_from_json(json_t *value, const char *name, struct hspmd_error *err);

/* All values of model_type, sorted as in model_list.h: element `index`; NULL: there are no more. */
const char *hspmd_model_type_name(int index);

/* Where the elements of the model's parameters are in its safetensors files. Borrows the model. */
struct hspmd_file_map hspmd_model_file_map(const struct hspmd_model *m);

#endif
