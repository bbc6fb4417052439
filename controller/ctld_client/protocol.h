/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol between hspmdctld and its clients. Frames as in common/wire.h, proofs as in common/auth.h; hspmdctld accepts connections and
 * therefore sends the first message, the challenge.
 *
 * Role "controller": a job's controller connects to hspmdctld and stays connected. Its environment has the address in HSPMD_CTLD,
 * "UID@HOST:PORT"; UID is the user as whom hspmdctld runs.
 *      hello  { role: "controller", job: id }           sealed by a user who, as Slurm says, owns the job
 *   -> state  { min_nodes, max_nodes, policy, members: [job ids], curve: [tokens_per_s on 1, 2, ... reference nodes],
 *               worth: { node: how many reference nodes it, and each node like it, equals }, nodes, tokens_per_s (now; 0: not training),
 *               pause_s, lost_s, step }                when a member has changed, at most once a second, and every 30 s
 *               With figures, if hspmdctld has asked for them: { step, generation, devices, step_s, loss (absent: not finite), checkpoint_s
 *               (wall clock; 0: none); since the controller began: tokens, resizes, steps_lost, paused_s, trained_device_s,
 *               paused_device_s, lost_device_s }
 *   <- ask    { id, command: "grow", by: n, names: [idle nodes that are reserved for it], reason }
 *             { id, command: "shrink", names: [nodes to return], reason }
 *   <- risk   { losses_per_node_s, together }          observed losses of nodes, per node and second, and the mean fraction of the other
 *               nodes that is lost with one; after the first state, and when one of them has changed by a fifth
 *   <- figures {}                                      states may have the member `figures`, which older daemons refuse; after the hello
 *   -> answer { id, ok, text }                         after the resize, or at once if the controller declines
 *
 * Role "viewer": `hspmd cluster`, the Slurm plugin (through that command), and a job's controller at its start.
 *   -> show {}       <- cluster { ... }                the view, the last decisions and their reasons
 *   -> quote { job, partition, features, gres, nodes, names }   <- quote { jobs, price_per_hour, seen_s_ago }    controller/ctld/quote.h;
 *                                                      also makes hspmdctld poll Slurm soon
 *
 * Daemon, controllers and viewers may be of different versions, since running jobs outlive an upgrade. hspmdctld closes the connection of a
 * controller whose state has an unknown member, and of a viewer that sends an unknown type; controllers ignore messages of an unknown type.
 * Names of messages and members therefore never change, even where the code uses another term. */
#ifndef HSPMD_CTLD_CLIENT_PROTOCOL_H
#define HSPMD_CTLD_CLIENT_PROTOCOL_H

#define CTLD_MESSAGE_REQUEST "ask"
#define CTLD_MESSAGE_QUERY "show"
#define CTLD_KEY_RELATIVE_SPEED "worth"
#define CTLD_KEY_CORRELATED "together" /* run_risk_read() reads it */

#define CTLD_PORT 6899
#define CTLD_MEMBERS_MAX 1024         /* member jobs of a job */
#define CTLD_HELLO_FRAME (64u << 10)  /* bytes of the longest frame that is accepted before the hello */
#define CTLD_FRAME (1u << 20)         /* bytes of the longest frame after it */
#define CTLD_HELLO_S 5.0              /* seconds for a client to prove its user; and for a viewer between two messages */
#define CTLD_HEARTBEAT_TIMEOUT_S 90.0 /* a controller that has sent nothing for so long is disconnected; it sends its state every 30 s */
#define CTLD_ANSWER_S 600.0           /* for a request to be answered */
#define CTLD_MESSAGES_S 20            /* more messages per second, averaged over 10 s, end the connection */

#endif
