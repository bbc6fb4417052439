/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: the second format of a manifest. Include after cmocka.h. */
#ifndef HSPMD_TESTS_STATE_ROOT_H
#define HSPMD_TESTS_STATE_ROOT_H

#include "runtime/state/manifest.h"

/* The root over the shards of a manifest that lists their extents: shard i is in folders[i]. names: the parameters, in order. New
 * reference. */
json_t *state_root(const struct hspmd_manifest *m, const char *const *folders, const char *const *names, int name_count);

#endif
