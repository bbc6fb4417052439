/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/range.h"

#define TIMEOUT_MAX_S 3600

void hspmd_tcp_keep_alive(int fd, double timeout_s)
{
	int on = 1, idle_s = 5, between_s = 2, probes = 3;
	unsigned timeout_ms = timeout_s > TIMEOUT_MAX_S ? TIMEOUT_MAX_S * 1000u : (unsigned)(timeout_s * 1000) + 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes); /* without a timeout, on kernels that lack it */
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

int hspmd_tcp_ports_parse(const char *text, int *low, int *high, struct hspmd_error *err)
{
	if (hspmd_range_parse(text, low, high, err))
		return -1;
	return *high <= 65535 ? 0 : hspmd_fail(err, "expected ports from 1 to 65535, got \"%s\"", text);
}

int hspmd_tcp_bind(int fd, const struct sockaddr *address, socklen_t size)
{
	union {
		struct sockaddr_storage any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} a;
	const char *ports = getenv(HSPMD_TCP_PORTS);
	int low, high, off = 0;
	if (size > sizeof a) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&a, address, size);
	in_port_t *port = a.any.ss_family == AF_INET6 ? &a.in6.sin6_port : &a.in.sin_port;
	if (*port || !ports || hspmd_tcp_ports_parse(ports, &low, &high, NULL))
		return bind(fd, address, size);
	/* With it, two sockets could be bound to one port, and only the first could listen. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &off, sizeof off);
	int count = high - low + 1, first = (int)((unsigned)getpid() * 7919u % (unsigned)count); /* processes of a node start together */
	for (int i = 0; i < count; i++) {
		*port = htons((in_port_t)(low + (first + i) % count));
		if (!bind(fd, (const struct sockaddr *)&a, size))
			return 0;
		if (errno != EADDRINUSE && errno != EACCES)
			return -1;
	}
	errno = EADDRINUSE;
	return -1;
}

int hspmd_tcp_fail_bind(struct hspmd_error *err, const char *what)
{
	const char *ports = getenv(HSPMD_TCP_PORTS);
	if (errno == EADDRINUSE && ports)
		return hspmd_fail(err, "%s: no port of %s (--ports, " HSPMD_TCP_PORTS ") is free", what, ports);
	return hspmd_fail_errno(err, "%s", what);
}
