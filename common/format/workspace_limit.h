/* SPDX-License-Identifier: Apache-2.0 */
/* The most bytes that operators of a job's devices get for what they can also compute with less (`workspace_most` of struct
 * hspmd_kernel_args): a line among what devices have chosen (`choices` of a plan), so that it counts on all nodes and after a restart.
 * It is found by a device that has no memory for more; of several, the least counts. */
#ifndef HSPMD_FORMAT_WORKSPACE_LIMIT_H
#define HSPMD_FORMAT_WORKSPACE_LIMIT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Of keys that begin so the least number counts, not the first that is reported. */
#define HSPMD_CHOICE_LEAST "least "

/* The least limit among lines of choices (NULL is fine): a power of two. 0: there is none. */
uint32_t hspmd_workspace_limit_of(const json_t *choices);
/* The line that says so. The caller owns it; NULL: memory. */
json_t *hspmd_workspace_limit_line(uint32_t most);
/* The next limit below `most` (0: none), of at most `bytes`; 1 at last. */
uint32_t hspmd_workspace_limit_below(uint32_t most, size_t bytes);

#endif
