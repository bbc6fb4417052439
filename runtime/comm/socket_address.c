/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/comm/socket_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/tcp.h"

#define BACKLOG 4096
#define MAX_ADDRESSES 32

/* The blob. `machine` is the kernel's boot id and the network namespace: peers that share both can reach the Unix socket. */
struct blob_address {
	uint8_t family; /* 4 or 6 */
	uint8_t ip[16];
};
struct blob {
	char magic[8];
	char machine[64];
	char unix_name[32];
	uint8_t token[HSPMD_SOCKET_TOKEN];
	uint16_t port; /* network byte order; 0: no TCP */
	uint16_t count;
	struct blob_address addresses[MAX_ADDRESSES];
};
static const char magic[8] = "hspmds1";

static void machine_identity(char *text, size_t size)
{
	char boot[40] = "", space[64] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		ssize_t n = read(fd, boot, 36);
		boot[n > 0 ? n : 0] = '\0';
		close(fd);
	}
	ssize_t n = readlink("/proc/self/ns/net", space, sizeof space - 1);
	space[n > 0 ? n : 0] = '\0';
	snprintf(text, size, "%.36s %.24s", boot, space);
}

/* The addresses of this machine's interfaces that are up, except loopback. Returns their number. */
static int own_addresses(struct blob_address *out)
{
	struct ifaddrs *all;
	int count = 0;
	if (getifaddrs(&all))
		return 0;
	for (struct ifaddrs *i = all; i && count < MAX_ADDRESSES; i = i->ifa_next) {
		if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
			continue;
		struct blob_address a = { 0 };
		if (i->ifa_addr->sa_family == AF_INET) {
			a.family = 4;
			memcpy(a.ip, &((struct sockaddr_in *)i->ifa_addr)->sin_addr, 4);
		} else if (i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr)) {
			a.family = 6;
			memcpy(a.ip, &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr, 16);
		} else {
			continue;
		}
		out[count++] = a;
	}
	freeifaddrs(all);
	return count;
}

static int listen_unix(struct hspmd_socket_listener *l, struct hspmd_error *err)
{
	l->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->unix_fd < 0)
		return hspmd_fail_errno(err, "making a Unix socket");
	/* Binding only the family makes the kernel choose an unused abstract name, so there is no file to remove. */
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	l->unix_length = sizeof l->unix_name;
	if (bind(l->unix_fd, (struct sockaddr *)&name, sizeof name.sun_family) || listen(l->unix_fd, BACKLOG) ||
	    getsockname(l->unix_fd, (struct sockaddr *)&l->unix_name, &l->unix_length))
		return hspmd_fail_errno(err, "listening on a Unix socket");
	return 0;
}

/* IPv6 that accepts IPv4 too, or else IPv4 alone; without either the machine has no network and the Unix socket must suffice. */
static int listen_tcp(void)
{
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), off = 0;
	if (fd >= 0) {
		struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
		if (!setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) &&
		    !hspmd_tcp_bind(fd, (struct sockaddr *)&any, sizeof any) && !listen(fd, BACKLOG))
			return fd;
		close(fd);
	}
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY) };
	if (!hspmd_tcp_bind(fd, (struct sockaddr *)&any, sizeof any) && !listen(fd, BACKLOG))
		return fd;
	int why = errno;
	close(fd);
	errno = why;
	return -1;
}

int hspmd_socket_listen(struct hspmd_socket_listener *l, struct hspmd_error *err)
{
	l->tcp_fd = -1;
	if (listen_unix(l, err)) {
		hspmd_socket_unlisten(l);
		return -1;
	}
	if (getrandom(l->token, sizeof l->token, 0) != (ssize_t)sizeof l->token) {
		hspmd_fail_errno(err, "drawing a random token");
		hspmd_socket_unlisten(l);
		return -1;
	}
	if ((l->tcp_fd = listen_tcp()) >= 0 || errno != EADDRINUSE)
		return 0;
	hspmd_tcp_fail_bind(err, "listening for other workers");
	hspmd_socket_unlisten(l);
	return -1;
}

void hspmd_socket_unlisten(struct hspmd_socket_listener *l)
{
	if (l->unix_fd >= 0)
		close(l->unix_fd);
	if (l->tcp_fd >= 0)
		close(l->tcp_fd);
	l->unix_fd = l->tcp_fd = -1;
}

int hspmd_socket_address(const struct hspmd_socket_listener *l, struct hspmd_address *own, struct hspmd_error *err)
{
	struct blob *b = hspmd_calloc(1, sizeof *b);
	if (!b)
		return hspmd_fail_memory(err, "making an address");
	memcpy(b->magic, magic, sizeof magic);
	memcpy(b->token, l->token, sizeof b->token);
	machine_identity(b->machine, sizeof b->machine);
	/* An abstract name: sun_path begins with a NUL, and the length says where it ends. */
	snprintf(b->unix_name, sizeof b->unix_name, "%.*s", (int)(l->unix_length - offsetof(struct sockaddr_un, sun_path) - 1),
	         l->unix_name.sun_path + 1);
	struct sockaddr_storage name;
	socklen_t length = sizeof name;
	if (l->tcp_fd >= 0 && !getsockname(l->tcp_fd, (struct sockaddr *)&name, &length)) {
		b->port = name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port : ((struct sockaddr_in *)&name)->sin_port;
		b->count = (uint16_t)own_addresses(b->addresses);
	}
	own->data = b;
	own->size = offsetof(struct blob, addresses) + b->count * sizeof b->addresses[0];
	return 0;
}

/* Number of leading bits that a and b share; -1 if the families differ. */
static int common_bits(const struct blob_address *a, const struct blob_address *b)
{
	if (a->family != b->family)
		return -1;
	int bits = 0, all = a->family == 4 ? 32 : 128;
	while (bits < all && !((a->ip[bits / 8] ^ b->ip[bits / 8]) & 0x80 >> bits % 8))
		bits++;
	return bits;
}

static void add_tcp_endpoint(struct hspmd_socket_endpoint *r, const struct blob_address *a, uint16_t port)
{
	memset(r, 0, sizeof *r);
	if (a->family == 4) {
		struct sockaddr_in *in = (struct sockaddr_in *)&r->name;
		in->sin_family = AF_INET;
		in->sin_port = port;
		memcpy(&in->sin_addr, a->ip, 4);
		r->length = sizeof *in;
	} else {
		struct sockaddr_in6 *in = (struct sockaddr_in6 *)&r->name;
		in->sin6_family = AF_INET6;
		in->sin6_port = port;
		memcpy(&in->sin6_addr, a->ip, 16);
		r->length = sizeof *in;
	}
}

/* Order the peer's addresses by their distance to ours (longest common prefix first). An address that equals one of ours belongs to a
 * bridge that both machines have; it would lead back to this machine. */
static void order_endpoints(const struct blob *b, struct hspmd_socket_target *target)
{
	struct blob_address mine[MAX_ADDRESSES];
	int mine_count = own_addresses(mine), near[MAX_ADDRESSES];
	for (int i = 0; i < b->count; i++) {
		int best = -1;
		bool ours = false;
		for (int k = 0; k < mine_count; k++) {
			int bits = common_bits(&b->addresses[i], &mine[k]);
			ours |= bits == (mine[k].family == 4 ? 32 : 128);
			best = bits > best ? bits : best;
		}
		if (ours || best < 0)
			continue;
		int at = target->count++;
		for (; at > 0 && near[at - 1] < best; at--) {
			near[at] = near[at - 1];
			target->endpoints[at] = target->endpoints[at - 1];
		}
		near[at] = best;
		add_tcp_endpoint(&target->endpoints[at], &b->addresses[i], b->port);
	}
}

int hspmd_socket_target(const struct hspmd_address *blob, struct hspmd_socket_target *target, struct hspmd_error *err)
{
	struct blob b = { 0 };
	if (blob->size >= offsetof(struct blob, addresses) && blob->size <= sizeof b)
		memcpy(&b, blob->data, blob->size);
	if (memcmp(b.magic, magic, sizeof magic) || b.count > MAX_ADDRESSES ||
	    blob->size != offsetof(struct blob, addresses) + b.count * sizeof b.addresses[0])
		return hspmd_fail(err, "not an address of the socket transport");
	memset(target, 0, sizeof *target);
	target->endpoints = hspmd_calloc((size_t)b.count + 1, sizeof *target->endpoints);
	if (!target->endpoints)
		return hspmd_fail_memory(err, "reading an address");
	memcpy(target->token, b.token, sizeof target->token);
	char machine[64];
	machine_identity(machine, sizeof machine);
	if (strncmp(machine, b.machine, sizeof machine)) {
		order_endpoints(&b, target);
		return 0;
	}
	struct sockaddr_un *name = (struct sockaddr_un *)&target->endpoints[0].name;
	size_t length = strnlen(b.unix_name, sizeof b.unix_name);
	name->sun_family = AF_UNIX;
	memcpy(name->sun_path + 1, b.unix_name, length);
	target->endpoints[0].length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
	target->count = 1;
	return 0;
}

const char *hspmd_socket_endpoint_text(const struct hspmd_socket_endpoint *endpoint, char *buf, size_t size)
{
	char ip[INET6_ADDRSTRLEN] = "?";
	if (endpoint->name.ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)&endpoint->name;
		inet_ntop(AF_INET, &in->sin_addr, ip, sizeof ip);
		snprintf(buf, size, "%s port %d", ip, ntohs(in->sin_port));
	} else if (endpoint->name.ss_family == AF_INET6) {
		const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)&endpoint->name;
		inet_ntop(AF_INET6, &in->sin6_addr, ip, sizeof ip);
		snprintf(buf, size, "%s port %d", ip, ntohs(in->sin6_port));
	} else {
		snprintf(buf, size, "this machine");
	}
	return buf;
}
