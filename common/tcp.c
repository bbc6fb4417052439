/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/range.h"

#define TIMEOUT_MAX_S 3600
#define PORT_MAX 65535
#define APART_LEAST 1000 /* ports above those of outgoing connections, or else ... */
#define APART_BELOW 8000 /* ... so many below, from ... */
#define APART_LOW 10000  /* ... here on: services listen below */

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
	return *high <= PORT_MAX ? 0 : hspmd_fail(err, "expected ports from 1 to 65535, got \"%s\"", text);
}

union address {
	struct sockaddr_storage any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

static in_port_t *port_of(union address *a)
{
	return a->any.ss_family == AF_INET6 ? &a->in6.sin6_port : &a->in.sin_port;
}

static int copy_address(union address *to, const struct sockaddr *from, socklen_t size)
{
	if (size > sizeof *to) {
		errno = EINVAL;
		return -1;
	}
	memcpy(to, from, size);
	return 0;
}

/* Binds to a port from low to high on which nobody else listens. */
static int bind_within(int fd, union address *a, socklen_t size, int low, int high)
{
	int off = 0;
	/* With it, two sockets could be bound to one port, and only the first could listen. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &off, sizeof off);
	int count = high - low + 1, first = (int)((unsigned)getpid() * 7919u % (unsigned)count); /* processes of a node start together */
	for (int i = 0; i < count; i++) {
		*port_of(a) = htons((in_port_t)(low + (first + i) % count));
		if (!bind(fd, (const struct sockaddr *)a, size))
			return 0;
		if (errno != EADDRINUSE && errno != EACCES)
			return -1;
	}
	errno = EADDRINUSE;
	return -1;
}

int hspmd_tcp_bind(int fd, const struct sockaddr *address, socklen_t size)
{
	union address a;
	const char *ports = getenv(HSPMD_TCP_PORTS);
	int low, high;
	if (copy_address(&a, address, size))
		return -1;
	if (*port_of(&a) || !ports || hspmd_tcp_ports_parse(ports, &low, &high, NULL))
		return bind(fd, address, size);
	return bind_within(fd, &a, size, low, high);
}

bool hspmd_tcp_ports_apart(int outgoing_low, int outgoing_high, int *low, int *high)
{
	*low = outgoing_high + 1;
	*high = PORT_MAX;
	if (*high - *low + 1 >= APART_LEAST)
		return true;
	*low = outgoing_low - APART_BELOW;
	*high = outgoing_low - 1;
	return *low >= APART_LOW;
}

/* The kernel takes the ports of outgoing connections from this range. */
static bool read_outgoing_ports(int *low, int *high)
{
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
	bool found = f && fscanf(f, "%d %d", low, high) == 2;
	if (f)
		fclose(f);
	return found;
}

int hspmd_tcp_bind_apart(int fd, const struct sockaddr *address, socklen_t size)
{
	union address a;
	int low, high;
	if (copy_address(&a, address, size))
		return -1;
	if (!getenv(HSPMD_TCP_PORTS) && !*port_of(&a) && read_outgoing_ports(&low, &high) &&
	    hspmd_tcp_ports_apart(low, high, &low, &high) && !bind_within(fd, &a, size, low, high))
		return 0;
	return hspmd_tcp_bind(fd, address, size);
}

int hspmd_tcp_fail_bind(struct hspmd_error *err, const char *what)
{
	const char *ports = getenv(HSPMD_TCP_PORTS);
	if (errno == EADDRINUSE && ports)
		return hspmd_fail(err, "%s: no port of %s (--ports, " HSPMD_TCP_PORTS ") is free", what, ports);
	return hspmd_fail_errno(err, "%s", what);
}
