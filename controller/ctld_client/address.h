/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CTLD_CLIENT_ADDRESS_H
#define HSPMD_CTLD_CLIENT_ADDRESS_H

#include "common/error.h"

struct addrinfo;

/* Resolves "HOST:PORT", "[v6]:PORT" or ":PORT" into the list of getaddrinfo(3), which the caller frees with freeaddrinfo(). Without a port:
 * default_port. `passive` != 0: the addresses are for bind(2). May block in a name server. NULL and err. */
struct addrinfo *ctld_resolve_address(const char *text, int default_port, int passive, struct hspmd_error *err);

#endif
