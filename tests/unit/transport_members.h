/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of transports: members, each a thread or a process, that join one transport. */
#ifndef HSPMD_TESTS_TRANSPORT_MEMBERS_H
#define HSPMD_TESTS_TRANSPORT_MEMBERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/error.h"
#include "runtime/comm/transport.h"

#define MEMBERS 5

#define LIMIT_S 60.0

#define BLOB_MAX 4096

/* The state that the members of a test share: threads of this process, or forked processes. */
struct shared {
	atomic_int ready, done;
	atomic_int abort;
	struct {
		size_t size;
		char data[BLOB_MAX];
	} blob[MEMBERS];
	double sums[MEMBERS][3];
	atomic_int progress; /* for the test with a killed peer: messages that arrived */
	struct hspmd_error err[MEMBERS];
};

typedef int member_function(struct shared *s, const struct hspmd_transport_ops *ops, int rank);

extern const char *const transport_names[3];
int members_wait_for(atomic_int *what, int value, struct hspmd_error *err);
bool within(double until);
uint64_t mix(uint64_t x);
struct hspmd_transport *members_join(struct shared *s, const struct hspmd_transport_ops *ops, int rank, int size, double timeout_s);
struct shared *members_share(void);
pid_t members_run_process(struct shared *s, const struct hspmd_transport_ops *ops, member_function *f, int rank);
void run_members(struct shared *s, const struct hspmd_transport_ops *ops, int count, member_function *f);
void each_transport(int members, member_function *f, void (*check)(struct shared *s));

#endif
