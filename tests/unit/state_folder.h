/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of checkpoints: a folder that is removed after each test, and its contents read back as workers under any plan would. Include
 * after cmocka.h. */
#ifndef HSPMD_TESTS_STATE_FOLDER_H
#define HSPMD_TESTS_STATE_FOLDER_H

#include "tests/unit/state_scene.h"

extern char scene_root[64];

/* cmocka's fixtures: create the folder, remove it. */
int scene_setup(void **state);
int scene_teardown(void **state);
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, scene_setup, scene_teardown)

/* A path in the folder; valid until the eighth later call. */
const char *scene_path(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The folder of a checkpoint in a node's location; valid as that of scene_path. */
const char *scene_folder(const struct hspmd_manifest *m, const char *node);

/* rv must be 0; else the test fails and shows err. */
void must(int rv, const struct hspmd_error *err);

/* The state that a worker needs under a plan, read from these folders, must be equal to what was written; returns the number of gaps. */
size_t scene_read_worker(const struct hspmd_manifest *m, const char *const *folders, int count, int along, int worker, int workers);

/* The same checkpoint, of shards n0-0, n1-0, ... in the locations n0, n1, ..., with a manifest that is a root. The parameters are numbered
 * as in scene_tensors. Destroys m. */
struct hspmd_manifest *scene_as_root(struct hspmd_manifest *m, int workers);

#endif
