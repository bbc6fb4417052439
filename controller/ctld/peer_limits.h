/* SPDX-License-Identifier: Apache-2.0 */
/* What clients may cost hspmdctld. */
#ifndef HSPMD_CONTROLLER_CTLD_PEER_LIMITS_H
#define HSPMD_CONTROLLER_CTLD_PEER_LIMITS_H

#include "controller/ctld_client/protocol.h"
#include "controller/server/server.h"

static const struct hspmd_server_limits ctld_peer_limits = {
	.hello_s = CTLD_HELLO_S,
	.network_s = CTLD_HEARTBEAT_TIMEOUT_S,
	.hello_bytes = CTLD_HELLO_FRAME,
	.message_bytes = CTLD_FRAME,
	.unsent_bytes = 4u << 20,
	.strangers = 512,
	.source_strangers = 128,
	.peers = 16384,
	.user_peers = 2048,
	.messages_s = CTLD_MESSAGES_S,
};

#endif
