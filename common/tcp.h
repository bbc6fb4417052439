/* SPDX-License-Identifier: Apache-2.0 */
/* Options of TCP connections, and the ports on which processes listen. */
#ifndef HSPMD_COMMON_TCP_H
#define HSPMD_COMMON_TCP_H

#include <stdbool.h>
#include <sys/socket.h>

#include "common/error.h"

/* Makes the kernel send small messages at once, probe a connection that has been idle for a few seconds, and break it if the other machine
 * has acknowledged nothing for timeout_s seconds (at most an hour). Options that the kernel refuses are left out. */
void hspmd_tcp_keep_alive(int fd, double timeout_s);

/* The site may let jobs listen on few ports only: "LO-HI" in this variable of the environment. */
#define HSPMD_TCP_PORTS "HSPMD_PORTS"
/* 1 <= low <= high <= 65535. Returns 0, or -1 and err. */
int hspmd_tcp_ports_parse(const char *text, int *low, int *high, struct hspmd_error *err);
/* As bind(2); an address without a port gets one of HSPMD_PORTS, if that is set, on which nobody else listens. The socket's SO_REUSEADDR
 * is then off. Returns 0, or -1 and errno: EADDRINUSE if there is no such port. */
int hspmd_tcp_bind(int fd, const struct sockaddr *address, socklen_t size);
/* As hspmd_tcp_bind, for a port that another process binds after this one has closed its socket. Without HSPMD_PORTS, it is one that the
 * kernel gives to no outgoing connection, so that none takes it in between: neither that of a third process, nor that of a peer that
 * tries to connect to the port already, which would be connected to itself. If there are too few of them, any port. */
int hspmd_tcp_bind_apart(int fd, const struct sockaddr *address, socklen_t size);
/* Returns true and ports that lie apart from outgoing_low to outgoing_high; false if there are too few. */
bool hspmd_tcp_ports_apart(int outgoing_low, int outgoing_high, int *low, int *high);
/* Reports that `what` failed with errno; names the range if all its ports are in use. Returns -1. */
int hspmd_tcp_fail_bind(struct hspmd_error *err, const char *what);

#endif
