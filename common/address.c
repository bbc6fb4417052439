/* SPDX-License-Identifier: Apache-2.0 */
#include "common/address.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

struct addrinfo *hspmd_address_resolve(const char *text, int default_port, bool passive, struct hspmd_error *err)
{
	char host[256], port[16];
	const char *colon = strrchr(text, ':'), *bracket = strchr(text, ']');
	if (colon && bracket && colon < bracket)
		colon = NULL; /* "[::1]" without a port */
	size_t n = colon ? (size_t)(colon - text) : strlen(text);
	const char *from = text;
	if (n >= 2 && *from == '[' && from[n - 1] == ']') {
		from++;
		n -= 2;
	}
	if (n >= sizeof host || (colon && strlen(colon + 1) >= sizeof port)) {
		hspmd_fail(err, "%.60s...: too long for an address", text);
		return NULL;
	}
	if (colon ? !colon[1] : default_port < 0) {
		hspmd_fail(err, "%s: expected HOST:PORT", text);
		return NULL;
	}
	snprintf(host, sizeof host, "%.*s", (int)n, from);
	snprintf(port, sizeof port, "%d", default_port);
	if (colon)
		snprintf(port, sizeof port, "%s", colon + 1);
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = (passive ? AI_PASSIVE : 0) | AI_NUMERICSERV }, *list = NULL;
	int rc = getaddrinfo(*host ? host : NULL, port, &hints, &list);
	if (rc == 0)
		return list;
	hspmd_fail(err, "%s: %s", text, gai_strerror(rc));
	return NULL;
}
