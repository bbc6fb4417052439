/* SPDX-License-Identifier: Apache-2.0 */
/* Asks hspmdctld what it sees: `hspmd cluster`, and a job that starts. */
#ifndef HSPMD_CONTROLLER_CLI_ASK_CLUSTER_H
#define HSPMD_CONTROLLER_CLI_ASK_CLUSTER_H

#include <jansson.h>

#include "common/error.h"

/* `where` is "[UID@]HOST[:PORT]"; without UID hspmdctld must run as "slurm", or root where there is no such user. `munge`: munged's socket, NULL: the
 * usual one. New reference; NULL and err, at the latest after three times timeout_s. */
json_t *hspmd_ask_cluster(const char *where, const char *munge, double timeout_s, struct hspmd_error *err);

#endif
