/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/server/strangers_internal.h"

#include <stdlib.h>
#include <string.h>

/* Any user of this machine may call from any of its loopback addresses; they are therefore one source. So are the 2^64 addresses of an IPv6
 * network, all of which one machine may take. */
static struct in6_addr source_address(const struct sockaddr *from)
{
	struct in6_addr a = in6addr_any;
	if (from->sa_family == AF_INET6) {
		a = ((const struct sockaddr_in6 *)from)->sin6_addr;
	} else if (from->sa_family == AF_INET) {
		a.s6_addr[10] = a.s6_addr[11] = 0xff;
		memcpy(a.s6_addr + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
	}
	if (IN6_IS_ADDR_V4MAPPED(&a))
		return a.s6_addr[12] == 127 ? in6addr_loopback : a;
	if (!IN6_IS_ADDR_LOOPBACK(&a))
		memset(a.s6_addr + 8, 0, 8);
	return a;
}

static struct stranger_source *find(const struct strangers *all, const struct in6_addr *address)
{
	struct stranger_source *source = all->sources;
	while (source && !IN6_ARE_ADDR_EQUAL(&source->address, address))
		source = source->next;
	return source;
}

static int add(struct strangers *all, struct stranger *s, const struct in6_addr *address)
{
	struct stranger_source *source = find(all, address);
	if (!source) {
		if (!(source = calloc(1, sizeof *source)))
			return -1;
		source->address = *address;
		TAILQ_INIT(&source->strangers);
		source->next = all->sources;
		all->sources = source;
	}
	TAILQ_INSERT_TAIL(&source->strangers, s, turn);
	s->source = source;
	s->number = all->arrivals++;
	source->count++;
	all->count++;
	return 0;
}

int strangers_add(struct strangers *all, struct stranger *s, const struct sockaddr *from)
{
	struct in6_addr address = source_address(from);
	return add(all, s, &address);
}

int strangers_move(struct strangers *from, struct strangers *to, struct stranger *s, const struct hspmd_server_limits *limits)
{
	struct in6_addr address = s->source->address;
	strangers_remove(from, s);
	const struct stranger_source *own = find(to, &address);
	bool full = to->count >= limits->strangers || (own && own->count >= limits->source_strangers);
	return full ? -1 : add(to, s, &address);
}

void strangers_remove(struct strangers *all, struct stranger *s)
{
	struct stranger_source *source = s->source;
	if (!source)
		return;
	TAILQ_REMOVE(&source->strangers, s, turn);
	s->source = NULL;
	all->count--;
	if (--source->count)
		return;
	for (struct stranger_source **at = &all->sources; *at; at = &(*at)->next)
		if (*at == source) {
			*at = source->next;
			break;
		}
	free(source);
}

/* Of sources that have equally many, the one whose oldest stranger is older. */
struct hspmd_peer *strangers_of_largest_source(const struct strangers *all)
{
	const struct stranger_source *largest = NULL;
	for (const struct stranger_source *s = all->sources; s; s = s->next)
		if (!largest || s->count > largest->count ||
		    (s->count == largest->count && TAILQ_FIRST(&s->strangers)->number < TAILQ_FIRST(&largest->strangers)->number))
			largest = s;
	return largest ? TAILQ_FIRST(&largest->strangers)->peer : NULL;
}

struct hspmd_peer *strangers_in_the_way(const struct strangers *all, const struct sockaddr *from, const struct hspmd_server_limits *limits)
{
	struct in6_addr address = source_address(from);
	const struct stranger_source *own = find(all, &address);
	if (own && own->count >= limits->source_strangers)
		return TAILQ_FIRST(&own->strangers)->peer;
	return all->count >= limits->strangers ? strangers_of_largest_source(all) : NULL;
}
