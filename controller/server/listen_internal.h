/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket of a server. */
#ifndef HSPMD_CONTROLLER_SERVER_LISTEN_INTERNAL_H
#define HSPMD_CONTROLLER_SERVER_LISTEN_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>

#include "common/error.h"

/* Returns a socket that does not block and listens on "ADDRESS:PORT" (see struct hspmd_server_options); -1 and err. */
int server_listen(const char *text, int default_port, struct hspmd_error *err);
int server_listening_port(int fd);
json_t *server_listening_addresses(int fd);

/* Returns true for the bridge of containers or virtual machines: its address may be the same on every node, and a caller elsewhere would
 * then reach its own node. Its address is therefore not listed. */
bool server_is_host_bridge(const char *interface);

#endif
