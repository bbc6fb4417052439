/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

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
