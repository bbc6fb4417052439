/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a running job's controller, and connecting to it.
 *
 * A running job has a contact file, mode 0600, in its output folder ("contact.json") and in ~/.hspmd/jobs, or in the folder
 * that HSPMD_CONTACTS names ("CLUSTER-JOBID.json"):
 *
 *   { "job": "123", "cluster": "c", "user": 1000, "addresses": ["n0:41000", "10.0.0.1:41000"], "auth": "munge" | "cookie",
 *     "cookie": "...", "munge_socket": "...", "host": "n0", "pid": 4242, "process": "...", "output": "/home/x/hspmd-123",
 *     "protocol": 4, "version": "0.1.0" }
 *
 * `process` is a random text of the controller's own: its host and pid may be those of another one, in a PID namespace of its own or after
 * the host has started again.
 */
#ifndef HSPMD_COMMON_CONTACT_H
#define HSPMD_COMMON_CONTACT_H

#include <jansson.h>

#include "common/auth.h"
#include "common/error.h"
#include "common/stream.h"

/* Connects to the first address ("host:port", "[v6]:port", and without a port unless default_port is -1) that answers; waits up to
 * timeout_s per address, and as long as the name service takes. Returns a descriptor, or -1 with the last address's error. */
int hspmd_connect_any(const json_t *addresses, int default_port, double timeout_s, struct hspmd_error *err);

/* $HSPMD_CONTACTS or ~/.hspmd/jobs, malloc'd. */
char *hspmd_contact_folder(struct hspmd_error *err);
/* Writes the file durably, mode 0600, in a folder of mode 0700. */
int hspmd_contact_write(const char *path, const json_t *contact, struct hspmd_error *err);
/* The contact of a job id or of an output folder. New reference. If several clusters have the job id: the contact of `cluster`, else the
 * newest. NULL and err unless the file belongs to this user, or this user is root, and
 * nobody else may read it. */
json_t *hspmd_contact_find(const char *job, const char *cluster, struct hspmd_error *err);
/* Removes the contact file of this controller; does nothing if another one has written its own in that place. */
void hspmd_contact_remove(const char *path, const char *process);
/* The authentication that this contact's controller expects. */
struct hspmd_auth *hspmd_contact_auth(const json_t *contact, struct hspmd_error *err);

/* Waits about so many seconds, half as long or as half as long again at random, so that the callers of a crowd do not all come back at the
 * same moment. */
void hspmd_contact_pause(double mean_s);
/* Connects and authenticates with `hello`, which the caller fills (role and more); up to timeout_s for each of the two. Calls again, a few
 * times within timeout_s, if the controller has no room for strangers just now. The caller owns the stream. */
struct hspmd_stream *hspmd_contact_connect(const json_t *contact, json_t *hello, double timeout_s, json_t **welcome,
                                           struct hspmd_error *err);

#endif
