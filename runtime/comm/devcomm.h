/* SPDX-License-Identifier: Apache-2.0 */
/* Device-to-device communication: which communication of a program uses it, and how it is done (runtime/device/communicator.h).
 * Communication that cannot use it (a member without such communicators, members of different versions, two members on one GPU of one
 * process) uses the transport.
 *
 * A group is either the members of a collective, or the two ends of messages in one direction: messages of a pair in both directions in
 * one group would wait for each other in an order that pipelines do not keep. Before a generation begins, every member announces which
 * groups its program uses and in which order it calls them; a communicator is created if all members announce the same, so that no
 * agreement is needed. Communicators outlive their generation: the next generation takes over those with the same members. */
#ifndef HSPMD_COMM_DEVCOMM_H
#define HSPMD_COMM_DEVCOMM_H

#include "runtime/comm/transport.h"
#include "runtime/device/communicator.h"
#include "runtime/resharding/resolve.h"

/* The communicators that a worker has created; one cache per device. May be used by several threads. Destroy it after everything that
 * was opened with it. */
struct hspmd_communicator_cache;
struct hspmd_communicator_cache *hspmd_communicator_cache_create(void); /* NULL: memory */
void hspmd_communicator_cache_destroy(struct hspmd_communicator_cache *c);

struct hspmd_devcomm_use {
	const struct hspmd_comm_step *step;
	uint64_t tag;
};

struct hspmd_devcomm_options {
	struct hspmd_device *device;
	struct hspmd_communicator_cache *cache;
	int lane;           /* number of one of several sets of groups between the same members; lanes progress independently */
	int rank, size;     /* in the transport */
	char (*names)[64];  /* names of the ranks; NULL: ranks are known by number only */
	const int *rank_of; /* rank by device number, -1: not a member; `count` entries */
	int count;
	const struct hspmd_devcomm_use *uses; /* all communication of the program, in its order; read only while opening */
	size_t use_count;
	const struct hspmd_link_cost *cost; /* chooses the algorithm of an unequal collective; NULL: as in resolve.h. Read only while
	                                       opening; the same on all members */
	const atomic_int *abort;
	double timeout_s;
}; /* pointers are borrowed until hspmd_devcomm_close */

struct hspmd_devcomm;

/* *out NULL and 0: the device has no device-to-device communication (logged once). */
int hspmd_devcomm_open(const struct hspmd_devcomm_options *o, struct hspmd_devcomm **out, struct hspmd_error *err);
/* The announcement for the other members; d NULL: this member uses no device-to-device communication. The caller frees own->data. */
int hspmd_devcomm_address(const struct hspmd_devcomm *d, struct hspmd_address *own, struct hspmd_error *err);
/* Determine from all members' announcements (by rank) which groups exist, and start to create the communicators that are new. Does not
 * block. Announcements come from peers and are checked. */
int hspmd_devcomm_preconnect(struct hspmd_devcomm *d, const struct hspmd_address *addresses, struct hspmd_error *err);
/* Returns 1 if all communicators are created, 0 if not yet, -1 with err on failure. */
int hspmd_devcomm_preconnected(struct hspmd_devcomm *d, struct hspmd_error *err);
/* Wait until they are, and until every pair has exchanged a message. No other generation may use the communicators meanwhile. */
int hspmd_devcomm_wait_ready(struct hspmd_devcomm *d, struct hspmd_error *err);
/* To be called if members have failed: abort all groups at once. Call it for all lanes before closing any, because one lane's wait can
 * block the device that another lane waits for. NULL is fine. */
void hspmd_devcomm_abort(struct hspmd_devcomm *d);
/* broken: members may have failed; nothing is waited for and no communicator is kept. The device memory that it used is free afterwards.
 * NULL is fine. */
void hspmd_devcomm_close(struct hspmd_devcomm *d, bool broken);

/* For log messages: the number of groups that this device is in, and how many of them use device-to-device communication. */
void hspmd_devcomm_counts(const struct hspmd_devcomm *d, int *groups, int *devcomm);

#endif
