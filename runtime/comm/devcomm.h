/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a program's communication goes straight from device to device, and how it gets there (runtime/device/communicator.h). What
 * cannot (a member without such groups, members of different versions, two on one GPU of one process) goes over the transport as before.
 *
 * A group is either the members of a collective, or the two ends of messages in one direction: messages of a pair in both directions would
 * wait for one another in an order that pipelines do not keep. Everybody says before a generation begins which groups its program wants and
 * in what order it calls them; a group is made when all its members say the same, so nobody has to ask. Groups outlive their generation:
 * the next one that wants the same members in a group takes it over. */
#ifndef HSPMD_COMM_DEVCOMM_H
#define HSPMD_COMM_DEVCOMM_H

#include "runtime/device/communicator.h"
#include "runtime/comm/transport.h"
#include "runtime/resharding/resolve.h"

/* Groups that a worker has made; one a device. May be asked in several threads. Destroyed after all that were opened with it. */
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
	int lane;           /* of several sets of groups between the same members, which go on independently */
	int rank, size;     /* in the transport */
	char (*names)[64];  /* of the ranks; NULL: they are numbers */
	const int *rank_of; /* of device numbers, -1: not a member; `count` entries */
	int count;
	const struct hspmd_devcomm_use *uses; /* all communication of the program, in its order; read while opening */
	size_t use_count;
	const struct hspmd_link_cost
	        *cost; /* chooses among the ways of an unequal collective; NULL: as in resolve.h. Read while opening, the same for all */
	const atomic_int *abort;
	double timeout_s;
}; /* what is pointed to is borrowed until it is closed */

struct hspmd_devcomm;

/* *out NULL and 0: the device cannot (told once, in the log). */
int hspmd_devcomm_open(const struct hspmd_devcomm_options *o, struct hspmd_devcomm **out, struct hspmd_error *err);
/* What the others must know; d NULL: that this one has nothing direct. The caller frees own->data. */
int hspmd_devcomm_address(const struct hspmd_devcomm *d, struct hspmd_address *own, struct hspmd_error *err);
/* Settle with everybody's addresses (by rank) which groups there are, and begin to make those that are new. Does not wait. Addresses come
 * from peers: they are checked. */
int hspmd_devcomm_preconnect(struct hspmd_devcomm *d, const struct hspmd_address *addresses, struct hspmd_error *err);
/* Have all groups been made? 1, 0 (ask again), -1. */
int hspmd_devcomm_preconnected(struct hspmd_devcomm *d, struct hspmd_error *err);
/* Wait until they are, and until every pair has met; nothing of another generation is running any more. */
int hspmd_devcomm_wait_ready(struct hspmd_devcomm *d, struct hspmd_error *err);
/* Members are gone: end all groups at once. Of all lanes before any is closed, as what one waits for holds up the device that the other
 * waits for. NULL is fine. */
void hspmd_devcomm_abort(struct hspmd_devcomm *d);
/* broken: members may be gone, nothing is waited for and no group is kept. The device's memory that it used is free afterwards. NULL is
 * fine. */
void hspmd_devcomm_close(struct hspmd_devcomm *d, bool broken);

/* For messages: how many groups this device is in, and how many of them are direct. */
void hspmd_devcomm_counts(const struct hspmd_devcomm *d, int *groups, int *devcomm);

#endif
