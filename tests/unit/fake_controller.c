/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake_controller.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_MAX (1u << 20)

void fake_controller_listen(struct fake_controller *c)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)c->port) };
	socklen_t size = sizeof a;
	int one = 1;
	c->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(c->listener >= 0);
	setsockopt(c->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	assert_int_equal(bind(c->listener, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(c->listener, 16), 0);
	assert_int_equal(getsockname(c->listener, (struct sockaddr *)&a, &size), 0);
	c->port = ntohs(a.sin_port);
}

void fake_controller_deafen(struct fake_controller *c)
{
	if (c->listener >= 0)
		close(c->listener);
	c->listener = -1;
}

void fake_controller_open(struct fake_controller *c)
{
	struct hspmd_error err;
	*c = (struct fake_controller){ .listener = -1, .auth = hspmd_auth_cookie(FAKE_CONTROLLER_COOKIE, &err) };
	assert_non_null(c->auth);
	fake_controller_listen(c);
}

void fake_controller_close(struct fake_controller *c)
{
	fake_controller_hang_up(c);
	fake_controller_deafen(c);
	hspmd_auth_destroy(c->auth);
	c->auth = NULL;
}

void fake_controller_hang_up(struct fake_controller *c)
{
	hspmd_stream_destroy(c->peer);
	c->peer = NULL;
}

/* nonce: receives the challenge's. */
static json_t *greet(struct fake_controller *c, char nonce[static HSPMD_NONCE_HEX])
{
	struct hspmd_error err = { "" };
	struct pollfd p = { .fd = c->listener, .events = POLLIN };
	uid_t who;
	fake_controller_hang_up(c);
	assert_int_equal(poll(&p, 1, FAKE_CONTROLLER_WAIT_S * 1000), 1);
	int fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	c->peer = hspmd_stream_create(fd, FRAME_MAX, FRAME_MAX, &err);
	assert_non_null(c->peer);
	assert_int_equal(hspmd_auth_nonce(nonce, &err), 0);
	json_t *challenge = json_pack("{ss,ss,ss}", "type", "challenge", "nonce", nonce, "job", "1");
	assert_int_equal(hspmd_auth_add_version(challenge, &err), 0);
	fake_controller_send(c, challenge);
	json_t *sealed = fake_controller_receive(c), *hello = hspmd_auth_open(c->auth, "hello", nonce, sealed, &who, &err);
	json_decref(sealed);
	if (!hello)
		fail_msg("%s", err.text);
	return hello;
}

json_t *fake_controller_challenge(struct fake_controller *c)
{
	char nonce[HSPMD_NONCE_HEX];
	return greet(c, nonce);
}

json_t *fake_controller_accept(struct fake_controller *c)
{
	struct hspmd_error err = { "" };
	char nonce[HSPMD_NONCE_HEX];
	json_t *hello = greet(c, nonce), *content = json_object();
	const char *own = json_string_value(json_object_get(hello, "nonce"));
	assert_non_null(own);
	assert_int_equal(hspmd_auth_add_key(content, &err), 0);
	fake_controller_send(c, hspmd_auth_seal(c->auth, "welcome", own, content, getuid(), &err));
	assert_int_equal(hspmd_auth_sign_stream(c->auth, c->peer, true, nonce, hello, content, &err), 0);
	json_decref(content);
	return hello;
}

void fake_controller_send(struct fake_controller *c, json_t *message)
{
	struct hspmd_error err = { "" };
	assert_non_null(message);
	if (hspmd_stream_send(c->peer, message, &err))
		fail_msg("%s", err.text);
	json_decref(message);
}

json_t *fake_controller_receive(struct fake_controller *c)
{
	struct hspmd_error err = { "it has hung up" };
	json_t *message = NULL;
	if (hspmd_stream_receive(c->peer, FAKE_CONTROLLER_WAIT_S, &message, &err) != 1)
		fail_msg("waiting for a message: %s", err.text);
	return message;
}

json_t *fake_controller_await(struct fake_controller *c, const char *type)
{
	for (;;) {
		json_t *message = fake_controller_receive(c);
		const char *got = json_string_value(json_object_get(message, "type"));
		if (got && !strcmp(got, type))
			return message;
		json_decref(message);
	}
}
