/* SPDX-License-Identifier: Apache-2.0 */
/* What clients may cost a job's controller. */
#ifndef HSPMD_CONTROLLER_RUN_PEER_LIMITS_H
#define HSPMD_CONTROLLER_RUN_PEER_LIMITS_H

#include "common/auth.h"
#include "common/wire.h"
#include "controller/server/server.h"

/* Agents of one user who trusts himself: no limit on what he sends. A node that is cut off must be noticed soon. */
static const struct hspmd_server_limits run_peer_limits = {
	.hello_s = 10,
	.network_s = 11,
	.hello_bytes = HSPMD_HELLO_MAX,
	.message_bytes = HSPMD_WIRE_MAX,
	.unsent_bytes = 256u << 20,
	.strangers = 512,
	.source_strangers = 128,
	.peers = 16384,
	.user_peers = 16384,
};

#endif
