/* SPDX-License-Identifier: Apache-2.0 */
/* What hspmdctld and the others say to each other. Frames as in common/wire.h, proofs as in common/auth.h; hspmdctld accepts, so it speaks
 * first.
 *
 * Role "controller": a job's controller calls hspmdctld (its address comes in HSPMD_CTLD, "UID@HOST:PORT", UID being who hspmdctld runs as)
 * and stays. hello     { role: "controller", job: id }     the user who proves it must be the job's, by Slurm's word
 *   -> state  { min_nodes, max_nodes, policy, members: [job ids], curve: [tokens_per_s on 1, 2, ... reference nodes], relative_speed: { a
 * node: what it and those like it are in reference nodes }, nodes, tokens_per_s (now, 0: not training), pause_s, lost_s, step } when
 * something of it changes, at most once a second
 *   <- request { id, command: "grow", by: n, names: [nodes that lie idle for it], reason }
 *             { id, command: "shrink", names: [nodes to give back], reason }
 *   <- risk   { losses_per_node_s, correlated }      how nodes are lost, as far as was seen: after the first state, and when it has changed
 * by a fifth
 *   -> answer { id, ok, text }                     after the change, or at once when it declines
 *
 * Role "viewer": `hspmd cluster`, and through it the plugin at submission; a job's controller when it starts.
 *   -> query {}           <- cluster { ... }       what is seen, was decided, and why
 *   -> quote { job, partition, features, gres, nodes, names }   <- quote { jobs, price_per_hour, seen_s_ago }      see quote.h; it has
 * Slurm looked at
 */
#ifndef HSPMD_CTLD_CLIENT_PROTOCOL_H
#define HSPMD_CTLD_CLIENT_PROTOCOL_H

#define CTLD_PORT 6899
#define CTLD_MEMBERS_MAX 1024         /* of a job */
#define CTLD_HELLO_FRAME (64u << 10)  /* longest from one who has not proved himself */
#define CTLD_FRAME (1u << 20)         /* longest after */
#define CTLD_HELLO_S 5.0              /* to prove oneself */
#define CTLD_HEARTBEAT_TIMEOUT_S 90.0 /* a controller that says nothing for so long is gone; it says its state every 30 s */
#define CTLD_ANSWER_S 600.0           /* for a request to be answered */
#define CTLD_MESSAGES_S 20            /* more messages a second, on the average over 10 s, break the connection */

#endif
