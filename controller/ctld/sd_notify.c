/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/sd_notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"

void ctld_sd_notify(const char *lines)
{
	const char *where = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	size_t n = where ? strlen(where) : 0;
	if (!n || n >= sizeof to.sun_path || (*where != '/' && *where != '@'))
		return;
	memcpy(to.sun_path, where, n);
	if (*where == '@')
		to.sun_path[0] = '\0'; /* the abstract name space */
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return;
	(void)sendto(fd, lines, strlen(lines), MSG_NOSIGNAL, (const struct sockaddr *)&to,
	             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
	close(fd);
}

void ctld_sd_notify_reloading(void)
{
	char text[80];
	snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(hspmd_now() * 1e6));
	ctld_sd_notify(text);
}

double ctld_sd_notify_every(void)
{
	const char *limit = getenv("WATCHDOG_USEC"), *whom = getenv("WATCHDOG_PID");
	if (!limit || (whom && strtol(whom, NULL, 10) != (long)getpid()))
		return 0;
	return strtod(limit, NULL) / 2e6;
}
