/* SPDX-License-Identifier: Apache-2.0 */
/* The connections that have not proved who they are, by source, and which of them must make room. */
#ifndef HSPMD_CONTROLLER_SERVER_STRANGERS_INTERNAL_H
#define HSPMD_CONTROLLER_SERVER_STRANGERS_INTERNAL_H

#include <netinet/in.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "controller/server/server.h"

struct stranger_source;

/* Part of a connection while it is a stranger's. */
struct stranger {
	TAILQ_ENTRY(stranger) turn;
	struct stranger_source *source; /* NULL: not a stranger */
	struct hspmd_peer *peer;
	uint64_t number; /* of its arrival */
};

/* One address with strangers. */
struct stranger_source {
	struct stranger_source *next;
	struct in6_addr address;          /* IPv4: mapped */
	TAILQ_HEAD(, stranger) strangers; /* the oldest first */
	int count;
};

struct strangers {
	struct stranger_source *sources;
	int count;
	uint64_t arrivals;
};

/* Adds a connection from this address, whose `peer` is set. -1: out of memory. */
int strangers_add(struct strangers *all, struct stranger *s, const struct sockaddr *from);
/* Moves it to another list of its own source. -1: that has as many as it may have, or out of memory; it is then in none. */
int strangers_move(struct strangers *from, struct strangers *to, struct stranger *s, const struct hspmd_server_limits *limits);
/* Removes it; nothing if it is no stranger. */
void strangers_remove(struct strangers *all, struct stranger *s);
/* Returns who must make room before another stranger from this address is added; NULL: there is room. */
struct hspmd_peer *strangers_in_the_way(const struct strangers *all, const struct sockaddr *from, const struct hspmd_server_limits *limits);
/* Returns the oldest stranger of the source that has most; NULL: there are no strangers. */
struct hspmd_peer *strangers_of_largest_source(const struct strangers *all);

#endif
