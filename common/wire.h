/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages: JSON objects, each in a frame of 4 bytes "HSP1", 4 bytes big-endian length, and the text. Bulk state never goes this
 * way.
 *
 * Who talks: controller <-> agent over TCP (authenticated by the first message, see auth.h), agent <-> its workers over a socketpair
 * (descriptor 3 of the worker), command line <-> controller over TCP. The agent passes messages between controller and workers on: towards
 * a worker a message has "to": "n0:1" (a device address; or a list of them; "*" is every worker of the agent), from a worker the agent adds
 * "from": "n0:1".
 *
 * Every message has "type" and, where it belongs to one, "generation"; what bears an old generation is dropped by the receiver.
 *
 * controller -> worker
 *   job       job: hspmd-job-1 object, file: its path, model: config.json object, output: folder, node, device ("n0:1"), kind ("cpu" or
 * "cuda"), index (of the GPU among the visible ones), threads, transport (name or null), memory: folder in the nodes' memory in which a
 * CPU's worker has its state, so that it outlives the process, or null. Sent once, first. prepare   generation, cluster (of all members'
 * nodes), plan, members: [device address of every worker that takes part, rank order; those in no stage of the plan only give state away],
 * replicas: copies on other nodes that are kept of what only one worker has (default: the job's), keep: how many of the nodes that hold
 * state a shrink by count leaves at least (common/losses.h; default: all). The worker specialises, opens its transport and answers
 * `prepared` (or `fault`). May come while it still trains. preconnect generation, addresses: as in `start`, while the generation before
 * trains, if some answer to `prepare` says `needs_preconnect`: the worker begins to make what takes long between devices, and answers
 * `preconnected` when it is made start     generation, addresses: [base64 transport address per member], copies: [the same of the transport
 * that carries copies of checkpoints, or null], step: the step that is to be run next (= steps done), state: where it comes from: init:
 * true (random or job.init), or one or both of live: [{ cluster, plan, holders: [device addresses that still hold the state of `step` under
 * that plan] }] manifest: { hspmd-checkpoint-1 }, memory, local and shared: folders or null (as in `checkpoint`), files: {
 * "n0-1.safetensors": [device addresses of members that can read this shard] } The worker connects, moves state, answers `started`, trains.
 * If state of the old plan is held it stays valid until `started`. stop      generation: end after the current step (agreed in the vote of
 * the step); all answer `stopped` checkpoint generation, id, memory, local, shared: folders or null: snapshot at the end of the first step
 * before whose vote all were asked, or at once by who runs no steps (any more), write in the background, send copies to other nodes (as
 * many as the generation's `replicas`, where the plan does not hold the state twice anyway), answer `checkpoint_written`, also where
 * nothing can be written write_manifest id, manifest: {...}, folders: [paths], keep: number (default: the job's): write the manifest
 * durably into these folders, remove what `keep` no longer covers; answer `manifest_written` abort     generation: stop waiting, throw the
 * transport away, keep the state; answer `aborted`. revive: true: a process that holds nothing takes up first what the one before it on
 * this device left in memory settle    generation, apply: step or null, sums: [numbers] : apply (or drop) the step whose gradients were
 * complete; answer `settled` query     generation: answer `query_reply` (a controller that was restarted asks) ping      answer `pong`,
 * whatever else is being done quit      end the process (state is thrown away)
 *
 * worker -> controller
 *   hello     device, pid
 *   prepared  generation, address: base64, copies: base64 or absent, memory_bytes: planned peak, seconds, needs_preconnect: true where
 * connections between devices take long to make; else absent preconnected generation started   generation, step, bytes: { local, peers,
 * disk, shared }, seconds: { connect, move } step      generation, step, loss, tokens, step_s, lr, grad_norm, compute_s   from the reporter
 * (member 0 of the plan's devices); other workers send `heartbeat` with step and compute_s (mean of the steps since the last) at most once
 * a second stopped   generation, step (next to run), losses: [[step, loss], ...] the last few (at least two), so that no line of metrics is
 *             missing when the reporter dies between committing a step and telling of it
 *   finished  generation, step: all steps of the job are done; the state is kept until quit
 *   checkpoint_written id, step, generation, and the report of hspmd_writer_result (runtime/state/checkpoint.h) | error: text
 *   manifest_written id | error: text
 *   aborted   generation, step (next to run), holds: generation whose share of the state it has, or null, ready: step whose gradients are
 * complete but not applied, or null, applied: last step applied, or null, sums: [numbers] the totals of `applied`; losses as in `stopped`
 *   settled   generation, step, losses as in `stopped`
 *   query_reply generation, step, holds as in `aborted`, training: whether that generation's steps are being run, losses as in `stopped`
 *   fault     generation, text: what this worker cannot do (peer does not answer, out of memory, bad file); it keeps its state and waits.
 * unreadable: { step, generation, file } where it was said to have a shard of which no copy on its node is good
 *
 * controller -> agent (no "to")
 *   spawn     device, serial: start the worker of this device
 *   kill      device, serial: end it now (it hangs)
 *   list_checkpoints id, memory, local, shared: folders or null: answer `checkpoint_list` with the checkpoints that lie in one of them
 *   quit      end all workers, then yourself
 *
 * agent -> controller
 *   hello     (sealed, see auth.h) role "agent", node, job (of Slurm, that it is a step of), pid, cluster: the node's part, bindings: [{
 * threads, index }] of its devices, workers: [{ device, serial, pid }] that live exited    device, serial, status, signal (0: none), text
 *   checkpoint_list id, checkpoints: [{ place: "memory", "local" or "shared", manifest (or step, generation: it is not here), shards:
 * [files of it that are here] }] terminating text: the agent was told to end by someone else (SIGTERM: preemption, cancellation, time
 * limit); it goes on until it is killed
 *
 * An agent that loses the controller keeps its workers, which keep their state and wait, and calls again until its reconnect time-out is
 * over (the controller alone decides who is alive); then it ends them and itself. What workers say meanwhile it keeps and sends after its
 * `hello`, which tells the workers that it still has; what was on its way when the controller went is lost.
 */
#ifndef HSPMD_COMMON_WIRE_H
#define HSPMD_COMMON_WIRE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define HSPMD_WIRE_MAX (64u << 20) /* a longer frame is refused */

/* One message as a frame, malloc'd. */
int hspmd_wire_encode(const json_t *message, char **frame, size_t *size, struct hspmd_error *err);

/* Incremental decoder: feed bytes as they come, take messages out. */
struct hspmd_wire_reader;
struct hspmd_wire_reader *hspmd_wire_reader_create(size_t max_frame);
void hspmd_wire_reader_destroy(struct hspmd_wire_reader *r);
void hspmd_wire_reader_set_max_frame(struct hspmd_wire_reader *r, size_t max_frame); /* for frames still to come */
/* -1: not our protocol, frame too long, not JSON, no memory; the connection must be closed. */
int hspmd_wire_feed(struct hspmd_wire_reader *r, const void *data, size_t size, struct hspmd_error *err);
json_t *hspmd_wire_next(struct hspmd_wire_reader *r); /* new reference, NULL: no whole message yet */

/* Blocking use of a descriptor, for workers and the command line. timeout_s < 0: no limit. */
int hspmd_wire_send(int fd, const json_t *message, double timeout_s, struct hspmd_error *err);
/* 1 message (new reference), 0 the peer closed, -1 error or deadline. */
int hspmd_wire_receive(int fd, struct hspmd_wire_reader *r, double timeout_s, json_t **message, struct hspmd_error *err);

#endif
