/* SPDX-License-Identifier: Apache-2.0 */
/* connects PORT RATE SECONDS [AT-ONCE]: a stranger who connects to a port of this machine so many times a second, says nothing, and keeps
 * the last AT-ONCE (500) connections open. Prints what it achieved. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define SLICE_S 0.005

static int open_one(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)to, sizeof *to) && errno != EINPROGRESS) {
		close(fd);
		fd = -1;
	}
	return fd;
}

int main(int argc, char **argv)
{
	int port = argc > 3 ? atoi(argv[1]) : 0, at_once = argc > 4 ? atoi(argv[4]) : 500;
	double rate = argc > 3 ? atof(argv[2]) : 0, seconds = argc > 3 ? atof(argv[3]) : 0;
	struct rlimit files = { .rlim_cur = (rlim_t)at_once + 16, .rlim_max = (rlim_t)at_once + 16 };
	int *held = at_once > 0 ? calloc((size_t)at_once, sizeof *held) : NULL;
	if (port < 1 || port > 65535 || rate <= 0 || seconds <= 0 || !held) {
		fprintf(stderr, "usage: connects PORT RATE SECONDS [AT-ONCE]\n");
		free(held);
		return 2;
	}
	setrlimit(RLIMIT_NOFILE, &files);
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	double began = hspmd_now(), now;
	long made = 0, failed = 0;
	while ((now = hspmd_now()) < began + seconds) {
		for (long due = (long)((now - began) * rate); made + failed < due;) {
			int *place = &held[(made + failed) % at_once];
			if (*place)
				close(*place);
			int fd = open_one(&to);
			*place = fd > 0 ? fd : 0;
			*(fd < 0 ? &failed : &made) += 1;
		}
		nanosleep(&(struct timespec){ .tv_nsec = (long)(SLICE_S * 1e9) }, NULL);
	}
	printf("%.0f connects a second for %.0f s, %ld failed\n", (double)made / (now - began), now - began, failed);
	free(held);
	return 0;
}
