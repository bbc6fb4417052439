/* SPDX-License-Identifier: Apache-2.0 */
/* Network addresses as text. */
#ifndef HSPMD_COMMON_ADDRESS_H
#define HSPMD_COMMON_ADDRESS_H

#include <stdbool.h>

#include "common/error.h"

struct addrinfo;

/* Resolves "HOST:PORT", "[v6]:PORT" or ":PORT" into the list of getaddrinfo(3), which the caller frees with freeaddrinfo(). Without a port:
 * default_port; -1: there must be one. `passive`: the addresses are for bind(2). May block in a name server. NULL and err. */
struct addrinfo *hspmd_address_resolve(const char *text, int default_port, bool passive, struct hspmd_error *err);

#endif
