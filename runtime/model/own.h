/* SPDX-License-Identifier: Apache-2.0 */
/* A model of the user's own: a shared object (struct hspmd_model_definition in runtime/lib/hspmd.h), or the C file of one. Its code is not
 * loaded here: for each question a process of its own loads it (`hspmd model-answer`, runtime/lib/answer.h), so that nothing that it does
 * harms this process. Only workers load it themselves (runtime/lib/object.h). The object is read once; all questions and all workers get
 * these bytes, whatever becomes of the file. */
#ifndef HSPMD_MODEL_OWN_H
#define HSPMD_MODEL_OWN_H

#include <stddef.h>

#include "runtime/model/build.h"

/* File descriptors of the process that answers: standard input is the request; standard output is standard error, because user code may
 * print. */
#define HSPMD_OWN_ANSWER_FD 3
#define HSPMD_OWN_OBJECT_FD 4

/* The answer's lines: what the process is about to do ("at its function build"), and last the answer itself, {"error": text} or a value. */
#define HSPMD_OWN_AT "at "
#define HSPMD_OWN_ANSWER "answer "

/* The request: {"question": .., "name": of the object's file, "config": text of model_config, ..}. */
#define HSPMD_OWN_DESCRIBE "describe" /* "job", if there is one: the model's own data are opened, and a sample is read */
#define HSPMD_OWN_GRAPH "graph"       /* "how": struct hspmd_model_build_options as a string of hexadecimal digits */

#define HSPMD_OWN_FORMAT "hspmd-model-1" /* of the description that stands for the model in checkpoints and exports */

#define HSPMD_OWN_OBJECT_MAX ((size_t)32 << 20) /* bytes: it travels in messages */
#define HSPMD_OWN_LAYERS_MAX 16384

bool hspmd_model_is_own(const struct hspmd_model *m);
/* The shared object's bytes; NULL: not of the user's own, or read from a checkpoint, or attached before. */
const void *hspmd_own_object(const struct hspmd_model *m, size_t *size);
/* What the model's `configure` gets: the text of the job's model_config. The model's. */
const char *hspmd_own_config(const struct hspmd_model *m);
const char *hspmd_own_name_of_file(const struct hspmd_model *m);

/* A file in memory with these bytes, closed at exec, read from its start. The descriptor, or -1 with errno. */
int hspmd_own_memory_file(const char *name, const void *bytes, size_t size);

/* Options as text, and back: 0 or -1. */
char *hspmd_own_options_text(const struct hspmd_model_build_options *how);
int hspmd_own_options_parse(const char *text, struct hspmd_model_build_options *how);

#endif
