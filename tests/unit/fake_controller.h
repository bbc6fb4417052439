/* SPDX-License-Identifier: Apache-2.0 */
/* A job controller's side of the wire, for tests of what talks to it: agents and commands. It listens on this machine and proves by a
 * cookie who it is. Every wait has a deadline, after which the test fails. */
#ifndef HSPMD_TESTS_FAKE_CONTROLLER_H
#define HSPMD_TESTS_FAKE_CONTROLLER_H

#include <jansson.h>

#include "common/auth.h"
#include "common/stream.h"

#define FAKE_CONTROLLER_COOKIE "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define FAKE_CONTROLLER_WAIT_S 60

struct fake_controller {
	int listener, port; /* listener -1: it does not listen */
	struct hspmd_auth *auth;
	struct hspmd_stream *peer; /* the last that was accepted */
};

void fake_controller_open(struct fake_controller *c);
void fake_controller_close(struct fake_controller *c);
/* Stops listening, and listens on the same port again. */
void fake_controller_deafen(struct fake_controller *c);
void fake_controller_listen(struct fake_controller *c);

/* Accepts a connection, sends a challenge and reads the answer, without a welcome. Returns the content of the peer's `hello`. */
json_t *fake_controller_challenge(struct fake_controller *c);
/* The same, with the welcome. */
json_t *fake_controller_accept(struct fake_controller *c);
void fake_controller_send(struct fake_controller *c, json_t *message); /* steals the message */
/* The next message (new reference). */
json_t *fake_controller_receive(struct fake_controller *c);
/* Drops the messages before the next one of this type, which is returned (new reference). */
json_t *fake_controller_await(struct fake_controller *c, const char *type);
void fake_controller_hang_up(struct fake_controller *c);

#endif
