/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages: JSON objects. A frame is the 4 bytes "HSP1", the length of the text as 4 bytes big-endian, and the text. On a TCP
 * connection, once both sides are authenticated, it is a signed frame: "HSP2" in place of "HSP1", and the signature of all this
 * (common/signer.h) behind the text.
 * Bulk state never goes this way. For a job with a command runtime/command/standin.h says what differs.
 *
 * Connections: controller <-> agent over TCP (the first message authenticates it, see auth.h), agent <-> each of its workers over a
 * socketpair (descriptor 3 of the worker), command line <-> controller over TCP. The agent forwards messages between controller and
 * workers. A message to a worker has "to": "n0:1" (a device address, or a list of addresses; "*" is every worker of the agent). The
 * agent adds "from": "n0:1" to a message of a worker.
 *
 * Every message has "type". A message about a generation has "generation"; the receiver drops messages of an old generation.
 *
 * controller -> worker
 *
 *   job                 first message, sent once.
 *                       job: hspmd-job-1 object; file: its path; model: config.json object; output: folder; node; device ("n0:1");
 *                       kind (its name in cluster files); index: of the GPU among the visible GPUs; threads; transport: name or null;
 *                       memory: folder in the node's memory in which the worker of a CPU device keeps its state, so that the state
 *                       outlives the process, or null; id, checkpoint: of a job with a command, its id and
 *                       its folder
 *   prepare             the worker specialises and opens its transport. May arrive while the worker still trains.
 *                       Answer: `prepared` or `fault`.
 *                       generation; cluster: of all members' nodes; plan;
 *                       members: [runs of device addresses (common/format/device_runs.h) of all workers that take part, in rank order;
 *                       a member in no stage of the plan only sends state]; replicas: number of copies on other nodes of state that
 *                       only one worker has (default: the job's);
 *                       keep: number of nodes that hold state that a shrink by count leaves at least (common/losses.h; default: all);
 *                       live: as in `state` of `start`, who is expected to hold the state then; absent: not known. The worker plans its
 *                       moves now, and anew only if `start` says something else
 *   preconnect          sent while the previous generation trains, if some answer to `prepare` has `needs_preconnect`. The workers
 *                       exchange their addresses, and begin to make the connections between devices that take long. Answer, when they are
 *                       made: `preconnected`.
 *                       generation; addresses: as in `start`
 *   start               the worker connects, moves state, answers `started` and trains. If it holds state of the old plan, that state
 *                       stays valid until `started`.
 *                       generation; addresses: { device: base64 }: of the members on this node, and of the leaders of its neighbours in
 *                       the tree along which the members exchange the rest (common/address_tree.h); absent if they have done so already;
 *                       choices: as in a plan, if some were made since `prepare`: they count instead of the device's own;
 *                       step: the next step to run (= steps done); state: where the state comes from:
 *                         init: true (random, or job.init), or one or both of
 *                         live: [{ cluster, plan, holders: [runs of devices that still hold the state of `step` under that plan] }];
 *                           true: as in `prepare`
 *                         manifest: { hspmd-checkpoint-1 or -2 }, memory, local, shared: folders or null (as in `checkpoint`),
 *                           files: { "n0-1.safetensors": [device addresses of the members that can read this shard] }; of -2 also
 *                           true: all can, as it is in the shared folder, and each reads what it needs itself;
 *                         stored: true: the first member was sent manifest and files before (`stored`), and passes them on to the others
 *                           along the tree
 *   stored              to the first member, before a `start` whose state says so.
 *                       generation; state: { manifest, files }
 *   stop                end after the current step (agreed in the vote of the step). Answer of all: `stopped`.
 *                       generation
 *   checkpoint          snapshot at the end of the first step before whose vote all workers had received this message, or at once if
 *                       the worker runs no steps (any more); write in the background; send copies to other nodes (as many as the
 *                       generation's `replicas`, unless the plan holds the state twice anyway).
 *                       Answer, also if nothing can be written: `checkpoint_written`, one for the shared folder and one for the others.
 *                       If the shared folder is busy with an earlier checkpoint, the others do not wait for it.
 *                       generation; id; memory, local, shared: folders or null
 *   write_manifest      to a worker on each node that gets the manifest: write it durably into the folders; from a folder that all nodes
 *                       share remove the checkpoints beyond the job's `keep`. Answer: `manifest_written`.
 *                       id; manifest: {...}; folders: [paths]; shared: whether it is the shared folder
 *   committed           to a worker on each node, when a checkpoint is: remove from this node's part of the folder the checkpoints that
 *                       were written before the newest of these and are not among them. No answer.
 *                       folder; checkpoints: [[step, generation]] that stand
 *   abort               stop waiting, throw the transport away, keep the state. Answer: `aborted`.
 *                       generation; revive: true: a process that holds nothing first takes up the state that the previous process of
 *                       this device left in memory
 *   settle              apply (or drop) the step whose gradients were complete. Answer: `settled`.
 *                       generation; apply: step or null; sums: [numbers]
 *   query               from a restarted controller. Answer: `query_reply`.
 *                       generation
 *   ping                Answer, whatever else the worker is doing: `pong`.
 *   clock               Answer, at once: `clock`.  sent: the controller's time
 *   trace               record steps, and what changes of the plan take meanwhile, and send it as `trace_part`.
 *                       trace: its number; first, end: steps [first, end); origin: when it began, by the worker's clock; generation: the
 *                       current one then (common/format/trace_lanes.h)
 *   quit                end the process; its state is thrown away
 *
 * worker -> controller
 *
 *   hello               device; pid
 *   prepared            generation; address: base64, of all its transports; memory_bytes: planned peak; seconds;
 *                       needs_preconnect: true if it takes long to connect, else absent; choices: [lines] of the device
 *                       (runtime/device/device.h) that the plan's `choices` do not have, and the limit of its workspace
 *                       (common/format/workspace_limit.h) if it is another, else absent
 *   preconnected        generation
 *   started             generation; step; bytes: { local, peers, disk, shared }; seconds: { connect, move; of which plan: 0 if `prepare`
 *                       had the same `live` }
 *   step                from the reporter (member 0 of the plan's devices):
 *                       generation; step; loss; tokens; step_s; lr; grad_norm; compute_s; memory_bytes, sent_bytes as in `heartbeat`;
 *                       if the plan has shorter plans: plan_seq_len of the plan that the step ran, gather_s until its parameters
 *                       were in place, plan_compute_s: compute_s, if it was the plan itself
 *   heartbeat           from the other workers, at most once per second:
 *                       generation; step; compute_s: mean of the steps since the last heartbeat; steps: number of them; memory_bytes: at
 *                       the peak; sent_bytes: to other devices, in these steps; if the plan has shorter plans, plan_compute_s: mean
 *                       of those steps that ran the plan itself; absent if none did
 *   stopped             generation; step: next to run; losses: [[step, loss], ...] of the last few steps (at least two), so that no
 *                       line of metrics is missing if the reporter dies between committing a step and reporting it
 *   finished            generation; step: all steps of the job are done; the worker keeps its state until `quit`
 *   clock               sent: of the question; now: the worker's time
 *   trace_part          trace; text: events of JSON, each with a comma before it; process, thread, labels, kinds, spans: further ones, at
 *                       most about 0.3 MB (common/format/trace_spans.h), absent if there are none; last: nothing more comes; steps:
 *                       recorded so far; dropped: spans for which there was no room
 *   checkpoint_written  id; step; generation; shared: true if it is of the shared folder; and the report of hspmd_writer_result
 *                       (runtime/state/checkpoint.h), without `shard` if an earlier answer of this id had it | error: text
 *   manifest_written    id; shared: as in `write_manifest` | error: text
 *   aborted             generation; step: next to run; holds: generation of whose state it has its share, or null;
 *                       ready: step whose gradients are complete but not applied, or null; applied: last step applied, or null;
 *                       sums: [numbers] the totals of `applied`; losses: as in `stopped`
 *   settled             generation; step; losses: as in `stopped`
 *   query_reply         generation; step; holds: as in `aborted`; training: whether the steps of that generation are being run;
 *                       losses: as in `stopped`
 *   fault               the worker keeps its state and waits.
 *                       generation; text: what this worker cannot do (peer does not answer, out of memory, bad file);
 *                       unreadable: { step, generation, file } if no copy on its node of a shard that it was said to have is good
 *
 * controller -> agent (no "to")
 *
 *   spawn               start the worker of this device.  device; serial; command: "device" or "node" if the job has a command that runs
 *                       once per device or node; then the worker is a stand-in
 *   kill                end the worker now (it hangs).  device; serial
 *   list_checkpoints    Answer: `checkpoint_list`, with the checkpoints in one of the folders.  id; memory, local, shared: folders or null
 *   read_manifest       Answer: `manifest`, of one that the agent has named.  id; sum; memory, local, shared: folders or null
 *   ping                Answer: `pong`. Sent if another agent of the node has connected.
 *   turned_away         as `quit`, but what is in the node's memory stays: another agent of the node works for the controller.  text
 *   quit                end all workers, then the agent
 *
 * agent -> controller
 *
 *   hello               sealed, see auth.h.
 *                       role: "agent"; node; job: the Slurm job of which the agent is a step; pid; process: a random text that is
 *                       the same as long as the process lives; cluster: the node's part;
 *                       bindings: [{ threads, index }] of its devices; workers: [{ device, serial, pid }] that live;
 *                       alone: true if it holds the lock of the node's part of the job's memory, false if another process does, which
 *                       is a living agent of the node; absent: unknown
 *   alone               after a hello with `alone` false: this agent holds the lock now
 *   exited              device; serial; status; signal (0: none); text
 *   checkpoint_list     id; checkpoints: [{ place: "memory", "local" or "shared"; step; generation;
 *                         sum: names the manifest (runtime/state/manifest.h), and run: of whose job it is; both absent if it is not here;
 *                         shards: [files of it that are here], or true: all of its manifest }]
 *   manifest            id; sum; manifest: { hspmd-checkpoint-1 or -2 } | error: text
 *   checkpoint_wanted   the agent got SIGUSR1 (sbatch --signal=USR1@120): the controller makes a checkpoint
 *   terminating         text: somebody other than the controller told the agent to end (SIGTERM: preemption, cancellation, time limit);
 *                       the agent continues until it is killed
 *
 * An agent that loses the controller keeps its workers, which keep their state and wait. It connects again until its reconnect timeout
 * is over (only the controller decides who is alive: doc/design.md, law 2); then it ends them and itself. Meanwhile it keeps the messages
 * of its workers. It sends them after its `hello`, which lists the workers that it still has. A message that was under way when the
 * controller went is lost. */
#ifndef HSPMD_COMMON_WIRE_H
#define HSPMD_COMMON_WIRE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/signer.h"

#define HSPMD_WIRE_MAX (64u << 20) /* a longer frame is an error */

/* One message as a frame; the caller frees it. 0 or -1. */
int hspmd_wire_encode(const json_t *message, char **frame, size_t *size, struct hspmd_error *err);
/* A message for many peers that differs in some keys: the text is made once, of the keys that all share, and each peer's frame of the text
 * and of an object with this peer's own keys. The caller frees both. 0 or -1. hspmd_wire_text_packed() compresses a long text ("packed":
 * base64 of a zlib stream of a zlib stream of the text's delta encoding (common/delta_text.h); "bytes": [length of the text, of its
 * encoding, of the inner stream]). Readers take such a message apart, but only on a signed connection. */
int hspmd_wire_text(const json_t *message, char **text, size_t *size, struct hspmd_error *err);
int hspmd_wire_text_packed(const json_t *message, char **text, size_t *size, struct hspmd_error *err);
int hspmd_wire_encode_with(const char *text, size_t text_size, const json_t *own, char **frame, size_t *size, struct hspmd_error *err);
/* Makes a signed frame of a copy of a frame: `copy` has room for HSPMD_SIGNATURE_BYTES behind the frame's `size` bytes. */
int hspmd_wire_sign(struct hspmd_signer *signer, char *copy, size_t size, struct hspmd_error *err);

/* Incremental decoder: feed bytes as they arrive, take complete messages out. */
struct hspmd_wire_reader;
struct hspmd_wire_reader *hspmd_wire_reader_create(size_t max_frame);
void hspmd_wire_reader_destroy(struct hspmd_wire_reader *r);
void hspmd_wire_reader_set_max_frame(struct hspmd_wire_reader *r, size_t max_frame); /* for the following frames */
/* From now on all frames must be signed. Takes over the signer, also on failure. Signed frames that came before wait for this call, as the
 * other side may send them right behind the last frame of the handshake. Returns as hspmd_wire_feed() for these. */
int hspmd_wire_reader_expect_signed(struct hspmd_wire_reader *r, struct hspmd_signer *signer, struct hspmd_error *err);
/* For a process with many connections on which it is sent the same: the readers that share a memo take each compressed text apart once, if
 * it comes several times in a row, and their messages share its values, which must then not be changed. Borrowed; for one thread. */
struct hspmd_wire_memo;
struct hspmd_wire_memo *hspmd_wire_memo_create(void); /* NULL: no memory */
void hspmd_wire_memo_destroy(struct hspmd_wire_memo *memo);
void hspmd_wire_reader_set_memo(struct hspmd_wire_reader *r, struct hspmd_wire_memo *memo);
/* 0 or -1: not this protocol, frame too long, not JSON, wrong signature, no memory. After -1 the caller must close the connection. */
int hspmd_wire_feed(struct hspmd_wire_reader *r, const void *data, size_t size, struct hspmd_error *err);
json_t *hspmd_wire_next(struct hspmd_wire_reader *r); /* new reference; NULL: no complete message yet */

/* Blocking use of a descriptor, for workers and the command line. timeout_s < 0: no limit. 0 or -1. */
int hspmd_wire_send(int fd, const json_t *message, double timeout_s, struct hspmd_error *err);
/* Returns 1: message (new reference); 0: the peer closed; -1: error or timeout. */
int hspmd_wire_receive(int fd, struct hspmd_wire_reader *r, double timeout_s, json_t **message, struct hspmd_error *err);

#endif
