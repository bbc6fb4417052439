/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/comm/socket_connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/tcp.h"

/* If there are several addresses, one that does not answer is abandoned after this time. */
#define ROUTE_S 3.0

void hspmd_socket_connection_init(struct hspmd_socket_connection *l, int epoll, void *event, double timeout_s)
{
	*l = (struct hspmd_socket_connection){ .epoll = epoll, .fd = -1, .event = event, .timeout_s = timeout_s };
	TAILQ_INIT(&l->queue);
}

static void drop_queue(struct hspmd_socket_connection *l)
{
	struct hspmd_socket_item *item;
	while ((item = TAILQ_FIRST(&l->queue))) {
		TAILQ_REMOVE(&l->queue, item, queued);
		item->waiting = false;
	}
}

static void die(struct hspmd_socket_connection *l, const char *what, int error)
{
	char endpoint[80] = "this machine";
	if (l->endpoint < l->target.count)
		hspmd_socket_endpoint_text(&l->target.endpoints[l->endpoint], endpoint, sizeof endpoint);
	snprintf(l->why, sizeof l->why, "%s (%s%s%s)", what, endpoint, error ? ": " : "", error ? strerror(error) : "");
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
	l->state = HSPMD_CONNECTION_DEAD;
	drop_queue(l);
}

void hspmd_socket_connection_close(struct hspmd_socket_connection *l)
{
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
	drop_queue(l);
	free(l->target.endpoints);
	l->target.endpoints = NULL;
}

static void watch(struct hspmd_socket_connection *l, bool write)
{
	l->wants_write = write;
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP | (write ? (unsigned)EPOLLOUT : 0u), .data.ptr = l->event };
	epoll_ctl(l->epoll, EPOLL_CTL_MOD, l->fd, &e);
}

/* Start to connect to the current endpoint; 0: in progress, otherwise errno. */
static int try_endpoint(struct hspmd_socket_connection *l)
{
	const struct hspmd_socket_endpoint *r = &l->target.endpoints[l->endpoint];
	l->retry = false;
	l->fd = socket(r->name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->fd < 0)
		return errno;
	if (r->name.ss_family != AF_UNIX)
		hspmd_tcp_keep_alive(l->fd, l->timeout_s);
	int rv = connect(l->fd, (const struct sockaddr *)&r->name, r->length);
	if (rv && errno == EAGAIN) {
		/* The listener's queue is full; connecting to a Unix socket does not wait for it. */
		close(l->fd);
		l->fd = -1;
		l->retry = true;
		return 0;
	}
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP | EPOLLOUT, .data.ptr = l->event };
	if ((rv && errno != EINPROGRESS) || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->fd, &e)) {
		int error = errno;
		close(l->fd);
		l->fd = -1;
		return error;
	}
	l->wants_write = true;
	return 0;
}

/* Start to connect to the first endpoint, from the current one on, that accepts the attempt. */
static void try_endpoints(struct hspmd_socket_connection *l)
{
	int error = 0;
	for (; l->endpoint < l->target.count; l->endpoint++) {
		l->since = hspmd_now();
		error = try_endpoint(l);
		if (!error)
			return;
	}
	l->endpoint = l->target.count ? l->target.count - 1 : 0;
	die(l, l->target.count ? "cannot connect" : "no network that both have", error);
}

void hspmd_socket_connection_connect(struct hspmd_socket_connection *l, int own_rank)
{
	l->state = HSPMD_CONNECTION_CONNECTING;
	l->hello = (struct hspmd_socket_item){
		.frame = { .magic = HSPMD_FRAME_MAGIC,
		           .kind = HSPMD_FRAME_HELLO,
		           .tag = (uint64_t)own_rank,
		           .bytes = sizeof l->target.token },
		.body = l->target.token,
		.body_bytes = sizeof l->target.token,
		.waiting = true,
	};
	TAILQ_INSERT_HEAD(&l->queue, &l->hello, queued);
	try_endpoints(l);
}

/* Write as much of an item as the socket accepts: 1 all, 0 not all, -1 the connection is dead. */
static int write_item(struct hspmd_socket_connection *l, struct hspmd_socket_item *item)
{
	const size_t head = sizeof item->frame;
	while (item->written < head + item->body_bytes) {
		struct iovec part[2];
		int parts = 0;
		if (item->written < head)
			part[parts++] = (struct iovec){ (char *)&item->frame + item->written, head - item->written };
		size_t from = item->written > head ? item->written - head : 0;
		if (from < item->body_bytes)
			part[parts++] = (struct iovec){ (char *)(uintptr_t)item->body + from, item->body_bytes - from };
		struct msghdr m = { .msg_iov = part, .msg_iovlen = (size_t)parts };
		ssize_t n = sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS))
			return 0;
		if (n < 0) {
			die(l, "the connection broke", errno);
			return -1;
		}
		item->written += (size_t)n;
	}
	return 1;
}

static void flush(struct hspmd_socket_connection *l)
{
	struct hspmd_socket_item *item;
	while ((item = TAILQ_FIRST(&l->queue))) {
		int all = write_item(l, item);
		if (all < 0)
			return;
		if (!all) {
			if (!l->wants_write)
				watch(l, true);
			return;
		}
		TAILQ_REMOVE(&l->queue, item, queued);
		item->waiting = false;
	}
	if (l->wants_write)
		watch(l, false);
}

void hspmd_socket_connection_queue(struct hspmd_socket_connection *l, struct hspmd_socket_item *item)
{
	if (l->state == HSPMD_CONNECTION_DEAD)
		return;
	bool idle = TAILQ_EMPTY(&l->queue);
	item->written = 0;
	item->waiting = true;
	TAILQ_INSERT_TAIL(&l->queue, item, queued);
	if (idle && l->state == HSPMD_CONNECTION_OPEN)
		flush(l);
}

void hspmd_socket_connection_cancel(struct hspmd_socket_connection *l, struct hspmd_socket_item *item)
{
	if (!item->waiting)
		return;
	if (item->written)
		die(l, "a message was given up half-way", 0);
	else
		TAILQ_REMOVE(&l->queue, item, queued);
	item->waiting = false;
}

/* Check whether the pending connect has ended, or takes too long while there is another endpoint. */
static void step_connecting(struct hspmd_socket_connection *l)
{
	if (l->retry) {
		try_endpoints(l);
		if (l->state != HSPMD_CONNECTION_CONNECTING || l->retry)
			return;
	}
	struct sockaddr_storage name;
	socklen_t length = sizeof name, size = sizeof(int);
	int error = 0;
	getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &size);
	if (!error && !getpeername(l->fd, (struct sockaddr *)&name, &length)) {
		l->state = HSPMD_CONNECTION_OPEN;
		flush(l);
		return;
	}
	bool late = l->endpoint + 1 < l->target.count && hspmd_now() - l->since > ROUTE_S;
	if (!error && !late)
		return;
	close(l->fd);
	l->fd = -1;
	if (l->endpoint + 1 == l->target.count) {
		die(l, "cannot connect", error);
		return;
	}
	l->endpoint++;
	try_endpoints(l);
}

void hspmd_socket_connection_step(struct hspmd_socket_connection *l)
{
	if (l->state == HSPMD_CONNECTION_CONNECTING) {
		step_connecting(l);
		return;
	}
	if (l->state != HSPMD_CONNECTION_OPEN)
		return;
	/* The peer sends nothing on this connection; only its end can arrive. */
	char byte;
	ssize_t n = recv(l->fd, &byte, 1, MSG_DONTWAIT);
	if (n >= 0)
		die(l, "it has closed its connections", 0);
	else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
		die(l, "the connection broke", errno);
	else
		flush(l);
}
