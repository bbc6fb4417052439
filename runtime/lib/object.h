/* SPDX-License-Identifier: Apache-2.0 */
/* A loaded model of the user's own (struct hspmd_model_definition): its code runs in this process. For workers, and for processes that only
 * answer questions about it (answer.h). */
#ifndef HSPMD_LIB_OBJECT_H
#define HSPMD_LIB_OBJECT_H

#include "common/format/job.h"
#include "runtime/input/own_samples.h"
#include "runtime/lib/net.h"

struct hspmd_own_object {
	const struct hspmd_model_definition *definition;
	struct hspmd_model_sizes sizes;
	struct hspmd_net_source net;
};

/* Load these bytes and configure the model. name: of the file, for debuggers. config: text of model_config. at: is called before each part
 * of this with its description; NULL: nobody wants to know. The code stays loaded until the process ends. NULL and err: not a shared
 * object, without the symbol `hspmd_model`, of another version, or its own error. */
struct hspmd_own_object *hspmd_own_object_open(const void *bytes, size_t size, const char *name, const char *config,
                                               void (*at)(const char *doing), struct hspmd_error *err);
void hspmd_own_object_close(struct hspmd_own_object *o);

/* Open the job's training or validation data. Fills *out; hspmd_own_object_close_samples frees what it holds. 0, or -1 and err. */
int hspmd_own_object_open_samples(const struct hspmd_own_object *o, const struct hspmd_job *job, bool validation,
                                  struct hspmd_own_samples *out, struct hspmd_error *err);
void hspmd_own_object_close_samples(struct hspmd_own_samples *samples);

#endif
