/* SPDX-License-Identifier: Apache-2.0 */
/* Calling the job controller, and where to find it.
 *
 * A running job leaves a contact file, mode 0600, in its output folder ("contact.json") and in ~/.hspmd/jobs, or the folder
 * that HSPMD_CONTACTS names ("CLUSTER-JOBID.json"):
 *
 *   { "job": "123", "cluster": "c", "user": 1000, "addresses": ["n0:41000", "10.0.0.1:41000"], "auth": "munge" | "cookie", "cookie": "...",
 *     "munge_socket": "...", "host": "n0", "pid": 4242, "output": "/home/x/hspmd-123" }
 */
#ifndef HSPMD_COMMON_CONTACT_H
#define HSPMD_COMMON_CONTACT_H

#include <jansson.h>

#include "common/auth.h"
#include "common/error.h"
#include "common/stream.h"

/* Connect to the first of "host:port" ("[v6]:port") that answers, each within timeout_s. Descriptor, or -1 with err of the last. */
int hspmd_connect_any(const json_t *addresses, double timeout_s, struct hspmd_error *err);

/* $HSPMD_CONTACTS or ~/.hspmd/jobs, malloc'd. */
char *hspmd_contact_folder(struct hspmd_error *err);
/* Durable, mode 0600, the folder 0700. */
int hspmd_contact_write(const char *path, const json_t *contact, struct hspmd_error *err);
/* Of a job id (the newest where several clusters have it, the one of `cluster` before all), or of an output folder. New reference. The file
 * must be this user's own and closed to others. */
json_t *hspmd_contact_find(const char *job, const char *cluster, struct hspmd_error *err);
/* Take one's own contact file away: nothing happens when another run has put its own in its place. */
void hspmd_contact_remove(const char *path, int64_t pid);
/* How to prove oneself to the controller of this contact. */
struct hspmd_auth *hspmd_contact_auth(const json_t *contact, struct hspmd_error *err);

/* Connect and shake hands with `hello` (role and more are the caller's), within timeout_s each. The stream is the caller's. */
struct hspmd_stream *hspmd_contact_connect(const json_t *contact, json_t *hello, double timeout_s, json_t **welcome,
                                           struct hspmd_error *err);

#endif
