/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses at which a member of a generation listens, as a blob for its peers; and the endpoints to try for reaching a peer. */
#ifndef HSPMD_COMM_SOCKET_ADDRESS_H
#define HSPMD_COMM_SOCKET_ADDRESS_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/error.h"
#include "runtime/comm/transport.h"

#define HSPMD_SOCKET_TOKEN 16

/* A Unix socket for peers on this machine (same kernel, same network namespace) and a TCP socket for others. A peer that connects must
 * present the token, so that a stranger who finds the port is rejected. */
struct hspmd_socket_listener {
	int unix_fd, tcp_fd; /* tcp_fd -1: this machine has no network */
	struct sockaddr_un unix_name;
	socklen_t unix_length;
	uint8_t token[HSPMD_SOCKET_TOKEN];
};

int hspmd_socket_listen(struct hspmd_socket_listener *l, struct hspmd_error *err);
void hspmd_socket_unlisten(struct hspmd_socket_listener *l);
int hspmd_socket_address(const struct hspmd_socket_listener *l, struct hspmd_address *own, struct hspmd_error *err);

/* A peer's blob, decoded: its token, and its endpoints, the likeliest to work first. */
struct hspmd_socket_endpoint {
	struct sockaddr_storage name;
	socklen_t length;
};
struct hspmd_socket_target {
	uint8_t token[HSPMD_SOCKET_TOKEN];
	int count;
	struct hspmd_socket_endpoint *endpoints;
};
int hspmd_socket_target(const struct hspmd_address *blob, struct hspmd_socket_target *target, struct hspmd_error *err);

/* "10.0.0.2 port 4711", "this machine". Returns buf. */
const char *hspmd_socket_endpoint_text(const struct hspmd_socket_endpoint *endpoint, char *buf, size_t size);

#endif
