/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CTLD_CLIENT_ADDRESS_H
#define HSPMD_CTLD_CLIENT_ADDRESS_H

#include "common/error.h"

struct addrinfo;

/* "HOST:PORT", "[v6]:PORT", ":PORT" into a list of addresses (getaddrinfo's, freed by freeaddrinfo). NULL and err. */
struct addrinfo *ctld_resolve_address(const char *text, int default_port, int passive, struct hspmd_error *err);

#endif
