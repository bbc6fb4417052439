/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_MODEL_OWN_INTERNAL_H
#define HSPMD_MODEL_OWN_INTERNAL_H

#include <pthread.h>

#include "common/json.h"
#include "runtime/model/model_type.h"
#include "runtime/model/own.h"

/* Graphs that were asked for, by the text of the request. Plans are checked device by device, and all ask for the same few. */
#define HSPMD_OWN_KEPT 16

struct hspmd_own {
	char *path, *program; /* program NULL: this process's own */
	void *object;         /* NULL: to be read from the path when it is needed */
	size_t size;
	char *config; /* text of model_config */
	pthread_mutex_t lock;
	int kept_next;
	struct {
		char *request;
		json_t *answer;
	} kept[HSPMD_OWN_KEPT];
};

extern const struct hspmd_model_type hspmd_own_type;

static inline struct hspmd_own *hspmd_own_of(const struct hspmd_model *m)
{
	return m->own;
}

/* ---- own.c */

/* j: NULL: no job yet. NULL and err. */
struct hspmd_model *hspmd_own_load(const char *path, const struct hspmd_job *j, const char *program, struct hspmd_error *err);
/* A config.json that is the description of such a model. */
bool hspmd_own_is_description(struct hspmd_json *root);
int hspmd_own_read(struct hspmd_json *root, struct hspmd_model *m);

/* ---- own_object.c */

/* Returns true if a path names a shared object (.so) or a C file (.c). */
bool hspmd_own_is_named(const char *path);
/* Reads the object, or compiles its C file. 0 or -1. */
int hspmd_own_fetch(struct hspmd_own *o, struct hspmd_error *err);

/* ---- own_process.c */

/* Runs the program with these arguments; its output is this process's standard error. Blocks until it has ended. 0, or -1 and err. */
int hspmd_own_run(const char *program, char *const *argv, struct hspmd_error *err);
/* The answer of a process of its own: a new reference. NULL and err: the object is at fault, or gives the process no answer in time. */
json_t *hspmd_own_ask(const struct hspmd_own *o, const json_t *request, struct hspmd_error *err);

/* ---- own_graph.c */

struct hspmd_graph *hspmd_own_graph(const struct hspmd_model *m, const struct hspmd_model_build_options *how, struct hspmd_error *err);

#endif
