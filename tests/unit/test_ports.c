/* SPDX-License-Identifier: Apache-2.0 */
/* On which ports processes listen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/tcp.h"
#include "runtime/comm/socket_address.h"
#include "runtime/comm/socket_connection.h"

static int port_of(const struct hspmd_socket_listener *l)
{
	struct sockaddr_storage a;
	socklen_t size = sizeof a;
	assert_int_equal(getsockname(l->tcp_fd, (struct sockaddr *)&a, &size), 0);
	return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

/* Each listens on a port of the site's range; if all are in use, the next one says so rather than listen elsewhere. */
static void test_ports(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_socket_listener any, one, two;
	char range[32], words[128];
	assert_int_equal(hspmd_socket_listen(&any, &err), 0);
	int low = port_of(&any) < 65535 ? port_of(&any) : 65534;
	hspmd_socket_unlisten(&any);
	snprintf(range, sizeof range, "%d-%d", low, low + 1);
	snprintf(words, sizeof words, "listening for other workers: no port of %s (--ports, HSPMD_PORTS) is free", range);
	setenv("HSPMD_PORTS", range, 1);
	assert_int_equal(hspmd_socket_listen(&one, &err), 0);
	assert_in_range(port_of(&one), low, low + 1);
	if (!hspmd_socket_listen(&two, &err)) { /* another program may have the second */
		assert_int_equal(port_of(&two), 2 * low + 1 - port_of(&one));
		assert_int_equal(hspmd_socket_listen(&any, &err), -1);
		hspmd_socket_unlisten(&two);
	}
	assert_string_equal(err.text, words);
	hspmd_socket_unlisten(&one);
	unsetenv("HSPMD_PORTS");
}

static int bound_port(int fd)
{
	struct sockaddr_in a;
	socklen_t size = sizeof a;
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
	return ntohs(a.sin_port);
}

/* A port that a process reserves for another one is none that an outgoing connection may get in between. */
static void test_ports_apart(void **state)
{
	(void)state;
	int low, high, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const struct sockaddr_in any = { .sin_family = AF_INET };
	assert_true(hspmd_tcp_ports_apart(32768, 60999, &low, &high));
	assert_int_equal(low, 61000);
	assert_int_equal(high, 65535);
	assert_true(hspmd_tcp_ports_apart(20000, 65500, &low, &high));
	assert_int_equal(low, 12000);
	assert_int_equal(high, 19999);
	assert_false(hspmd_tcp_ports_apart(9000, 65500, &low, &high));
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
	int from = 1, to = 65535;
	if (f && fscanf(f, "%d %d", &from, &to) != 2)
		from = 1;
	if (f)
		fclose(f);
	assert_int_equal(hspmd_tcp_bind_apart(fd, (const struct sockaddr *)&any, sizeof any), 0);
	assert_in_range(bound_port(fd), 1, 65535);
	if (hspmd_tcp_ports_apart(from, to, &low, &high))
		assert_in_range(bound_port(fd), low, high);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ports),
		cmocka_unit_test(test_ports_apart),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
