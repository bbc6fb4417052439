/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/server/listen_internal.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/alloc.h"
#include "common/tcp.h"

#define BACKLOG 1024

static int listen_on(const struct addrinfo *a)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1, zero = 0;
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (a->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
	if (!hspmd_tcp_bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, BACKLOG))
		return fd;
	int saved = errno;
	close(fd);
	errno = saved;
	return -1;
}

int server_listen(const char *text, int default_port, struct hspmd_error *err)
{
	struct addrinfo *list = hspmd_address_resolve(text, default_port, true, err);
	bool all = !*text || *text == ':';
	int fd = -1;
	/* A socket of IPv6 for all addresses takes calls over IPv4, too; not the other way round. */
	for (struct addrinfo *a = list; all && a && fd < 0; a = a->ai_next)
		if (a->ai_family == AF_INET6)
			fd = listen_on(a);
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
		if ((fd = listen_on(a)) < 0) {
			char what[300];
			snprintf(what, sizeof what, "listening on %s", text);
			hspmd_tcp_fail_bind(err, what);
		}
	if (list)
		freeaddrinfo(list);
	return fd;
}

static socklen_t bound_to(int fd, struct sockaddr_storage *a)
{
	socklen_t size = sizeof *a;
	return getsockname(fd, (struct sockaddr *)a, &size) ? 0 : size;
}

int server_listening_port(int fd)
{
	struct sockaddr_storage a;
	if (!bound_to(fd, &a))
		return -1;
	return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

static bool is_any(const struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr)
	                                : ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static void add_host(json_t *list, const char *host, int port)
{
	char *text = hspmd_asprintf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
	if (text)
		json_array_append_new(list, json_string(text));
	free(text);
}

static void add_address(json_t *list, const struct sockaddr *a, int port)
{
	char host[256];
	socklen_t size = a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : 0;
	if (size && !getnameinfo(a, size, host, sizeof host, NULL, 0, NI_NUMERICHOST))
		add_host(list, host, port);
}

bool server_is_host_bridge(const char *name)
{
	static const char *const bridges[] = { "docker", "virbr", "lxcbr", "lxdbr", "podman", "cni" };
	for (size_t i = 0; i < sizeof bridges / sizeof *bridges; i++)
		if (!strncmp(name, bridges[i], strlen(bridges[i])))
			return true;
	return !strncmp(name, "br-", 3) && strlen(name) == 15 && strspn(name + 3, "0123456789abcdef") == 12;
}

static void add_interfaces(json_t *list, int port)
{
	struct ifaddrs *all = NULL;
	char host[256];
	if (getifaddrs(&all))
		return;
	for (struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK) || server_is_host_bridge(i->ifa_name))
			continue;
		if (i->ifa_addr->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr))
			continue;
		add_address(list, i->ifa_addr, port);
	}
	freeifaddrs(all);
	if (!gethostname(host, sizeof host))
		add_host(list, host, port);
}

json_t *server_listening_addresses(int fd)
{
	struct sockaddr_storage a;
	int port = server_listening_port(fd);
	json_t *list = json_array();
	if (!list || !bound_to(fd, &a))
		return list;
	if (is_any(&a)) {
		add_interfaces(list, port);
		add_host(list, "127.0.0.1", port);
	} else {
		add_address(list, (struct sockaddr *)&a, port);
	}
	return list;
}
