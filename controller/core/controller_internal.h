/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that the controller's files offer each other. Private to controller/core. */
#ifndef HSPMD_CORE_CONTROLLER_INTERNAL_H
#define HSPMD_CORE_CONTROLLER_INTERNAL_H

#include "controller/core/controller_state.h"

/* The job runs the command of another trainer. Its workers are stand-ins (runtime/command/standin.h): the state is the command's own. */
static inline bool runs_command(const struct hspmd_controller *m)
{
	return m->config->job->command.argc > 0;
}

/* False: the state is the command's own affair, and no rank is asked for it. */
static inline bool workers_give_state(const struct hspmd_controller *m)
{
	return !runs_command(m) || m->elastic;
}

/* The integer at `key`, or `absent`. */
static inline int64_t message_integer(const json_t *message, const char *key, int64_t absent)
{
	const json_t *v = json_object_get(message, key);
	return json_is_integer(v) ? json_integer_value(v) : absent;
}

/* The calls between the files, from the lowest to the highest: a file calls only files that stand above its own lines. */

/* actions.c: requests to the loop */
void emit(struct hspmd_controller *m, enum run_action_kind kind, const char *node, json_t *value, int64_t id); /* takes `value` over */
void emit_words(struct hspmd_controller *m, enum run_action_kind kind, const char *node, const char *text);
void log_msg(struct hspmd_controller *m, enum hspmd_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Sends `message`, which it takes over, through the agent of each node that has workers of `to`; those whose process is not up are left
 * out. */
void send_workers(struct hspmd_controller *m, struct worker *const *to, int count, json_t *message);
/* The same, and each node's message has one more key, whose value is that of the node's name in the object `by_node`. */
void send_workers_own(struct hspmd_controller *m, struct worker *const *to, int count, json_t *message, const char *key,
                      const json_t *by_node);
void send_node(struct hspmd_controller *m, const struct node *n, json_t *message); /* to the agent; takes `message` over */
void reply(struct hspmd_controller *m, int64_t id, bool ok, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
json_t *check_alloc(struct hspmd_controller *m, json_t *value); /* returns `value`; notes that memory is short if it is NULL */
/* An event of `hspmd events`, which is logged, too. */
void note_event(struct hspmd_controller *m, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same, and its line in the log is a warning. */
void note_warning(struct hspmd_controller *m, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* request_list.c: requests that wait for a reply */
struct request *request_add(struct hspmd_controller *m, const struct run_event *e, int kind); /* NULL: out of memory; noted */
void request_drop(struct hspmd_controller *m, struct request *r);
void request_answer(struct hspmd_controller *m, const struct request *r, bool ok, const char *text); /* none if the client is gone */
/* Returns true, and what to answer, if the growth that r asked for has been carried out. */
bool request_grown(const struct hspmd_controller *m, const struct request *r, char *text, size_t size);
void requests_checkpoint_done(struct hspmd_controller *m, int64_t number, int64_t step, const char *why_not);
void requests_trace_done(struct hspmd_controller *m, bool ok, const char *text);
void requests_end(struct hspmd_controller *m); /* answers all of them, because the run ends */
void on_disconnected(struct hspmd_controller *m, const struct run_event *e);
double requests_deadline(const struct hspmd_controller *m);

/* run_end.c */
/* Ends the run: its agents quit, and the controller exits when they have, or after a while. No effect if the run is ending already. */
void end_run(struct hspmd_controller *m, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A generation has failed, or could not begin. What fails with it, such as all other workers of a network that is gone, counts no more. */
void count_attempt(struct hspmd_controller *m);
/* Ends the run, and returns true, if it has failed too often without a step. */
bool check_attempts(struct hspmd_controller *m);

/* command.c: jobs with a command */
void command_progress(struct hspmd_controller *m, const json_t *message); /* a newer checkpoint forgives earlier failures */
/* Seconds of notice that ranks get now; negative: as many as the job says. */
double command_notice_s(const struct hspmd_controller *m);
void command_stopped(struct hspmd_controller *m);         /* all ranks have ended: notes how */
double command_stop_at(const struct hspmd_controller *m); /* when ranks are told that the job's time ends; INFINITY: never */
void command_log_tail(struct hspmd_controller *m);

/* nodes.c: the table of nodes and workers */
#define FAILED_READS 2   /* of a quarantined node; then nothing is read there until the quarantine ends */
#define AGENT_ATTEMPTS 5 /* starts of a node's agent; then the node is not used until the allocation changes */
struct node *node_find(struct hspmd_controller *m, const char *name);        /* NULL: unknown */
struct worker *worker_find(struct hspmd_controller *m, const char *address); /* NULL: unknown */
struct node *node_add(struct hspmd_controller *m, const char *name);         /* NULL: out of memory; noted */
void node_free(struct node *n);
void nodes_forget_names(struct hspmd_controller *m); /* for node_find(), once no node is looked for any more */
/* Makes worker objects for `count` devices of n; existing ones are reused. -1: out of memory. */
int workers_make(struct hspmd_controller *m, struct node *n, int count);
/* Adds a node with `devices` devices that an earlier incarnation's journal names; no effect if its agent is connected. */
void node_restore(struct hspmd_controller *m, const char *name, int devices);
bool node_usable(const struct node *n); /* new plans may use it */
/* What it has of the state can be read there: it is usable, or quarantined and has not failed too often since. */
bool node_readable(const struct node *n);
int nodes_usable(const struct hspmd_controller *m);
int nodes_held(const struct hspmd_controller *m);     /* in the allocation */
bool nodes_pending(const struct hspmd_controller *m); /* the agent of some node is starting */
int nodes_quarantined(const struct hspmd_controller *m);
void nodes_rejoin(struct hspmd_controller *m);         /* the others train: plans may use those again that were left out until then */
bool nodes_to_retry(const struct hspmd_controller *m); /* the agent of some node did not start, and will be started again */
bool name_listed(const json_t *names, const char *name);
/* The usable nodes as one cluster. New reference; NULL and err: there are none, or they cannot be merged. */
json_t *usable_cluster(struct hspmd_controller *m, struct hspmd_error *err);
/* The same of the nodes that have a member of g, including nodes that only send state. */
json_t *members_cluster(struct hspmd_controller *m, const struct generation *g, struct hspmd_error *err);
void agent_start(struct hspmd_controller *m, struct node *n);
void worker_spawn(struct hspmd_controller *m, struct worker *w);
/* Has the agent kill the worker's process with this serial number. */
void send_kill(struct hspmd_controller *m, const struct worker *w, int64_t serial);
/* Gives back the held nodes for which `matches` returns true. `ticket`: of the request that waits for it; 0: none. */
void release_nodes(struct hspmd_controller *m, bool (*matches)(const struct node *n), int64_t ticket);

/* The job has made progress: failures before it do not count any more. */
void forgive_failures(struct hspmd_controller *m);

/* replan.c: requests for a new plan */
/* Requests a new plan. `cause`: "grow", "shrink", "scontrol", "member-left", "node-lost", "worker-lost", "fault", "hang", "start",
 * "requeue", "controller", "risk"; "straggler": the new plan is used only if it is enough faster. "better-plan" is the cause of changes
 * that better_plan.c begins. */
void request_replan(struct hspmd_controller *m, const char *cause);
/* All devices of the latest plan have started to train, though perhaps no step of it is done yet. */
bool is_switched(const struct hspmd_controller *m);
/* The job trains, and no change of the plan is under way. */
bool is_steady(const struct hspmd_controller *m);
/* Begins a change of this cause, unless one has begun; no new plan is requested. */
void change_open(struct hspmd_controller *m, const char *cause);
/* Of a change without which the job would go on: returns true if steps of plan_s instead of current_s seconds (0: unknown) are enough
 * faster for the site's policy, and save in the steps that are left more than the change costs; if not, `why` says so. */
bool change_pays_off(const struct hspmd_controller *m, double current_s, double plan_s, struct hspmd_error *why);

/* checkpoint_schedule.c: when checkpoints are due, and how many copies; starts none itself */
bool checkpoint_possible(const struct hspmd_controller *m); /* to some disk */
bool checkpoint_may_begin(const struct hspmd_controller *m);
bool checkpoint_under_way(const struct hspmd_controller *m); /* any part */
bool checkpoint_shared_due(const struct hspmd_controller *m);
double checkpoint_interval_s(const struct hspmd_controller *m); /* between checkpoints to disk; INFINITY: counted in steps */
/* When copies in memory are due; INFINITY: none are made, or there is no new step. */
double checkpoint_copy_deadline(const struct hspmd_controller *m);
double checkpoint_deadline(const struct hspmd_controller *m); /* when the next checkpoint is due; INFINITY: not by time */
void checkpoint_step_done(struct hspmd_controller *m, double step_s);
struct run_intervals checkpoint_intervals(const struct hspmd_controller *m); /* current ones */
int copies_wanted(const struct hspmd_controller *m, int nodes);              /* on other nodes, of the state of a plan on `nodes` nodes */
/* Returns true if the workers that are left hold all state after any loss that `copies` copies are meant to survive. */
bool bound_plan_survives(struct hspmd_controller *m, const struct bound_plan *l, int copies);
/* Counts the nodes of the plan that a shrink by count leaves (l->keep). -1: out of memory; noted. */
int layout_keep_nodes(struct hspmd_controller *m, struct bound_plan *l);

/* generation.c: plans bound to workers, members and their answers */
/* Returns a reference. NULL and err: invalid, or a device is gone. */
struct bound_plan *bound_plan_create(struct hspmd_controller *m, json_t *cluster, json_t *plan, const char *name, struct hspmd_error *err);
struct bound_plan *bound_plan_ref(struct bound_plan *l); /* NULL is fine, also below */
void bound_plan_unref(struct bound_plan *l);
bool bound_plan_uses(const struct bound_plan *l, const struct worker *w);
/* Where the worker is in a list of a generation's members, or of its plan's devices, some of which may be gone; -1: nowhere. */
int place_of(struct worker *const *list, int count, int64_t generation, const struct worker *w);
char *bound_plan_summary(const struct hspmd_controller *m, const struct bound_plan *l); /* malloc'd; NULL: out of memory */
/* Returns true if the agents of all its nodes are connected. */
bool bound_plan_agents_up(const struct bound_plan *l);
/* Returns true if both plans have the same work for the same devices. */
bool plans_same_work(json_t *a, json_t *b);
/* Returns true if no worker of the plan is gone: a checkpoint can be written from the state that they hold. */
bool bound_plan_is_whole(const struct bound_plan *l);
/* Members: all workers of l, and those of `donor` (NULL: none) that hold state. -1: out of memory; noted. */
int generation_set_members(struct hspmd_controller *m, struct generation *g, struct bound_plan *l, struct bound_plan *donor);
void generation_clear(struct generation *g);
void next_drop(struct hspmd_controller *m);                           /* cancels the next generation */
int member_index(const struct generation *g, const struct worker *w); /* -1: not a member */
void record_answer(struct generation *g, const struct worker *w, json_t *message);
/* Forgets all answers; the members have timeout_s to answer again. */
void enter_phase(struct generation *g, enum phase phase, double now, double timeout_s);
bool all_answered(const struct generation *g);
/* Removes a lost member: no answer of it is awaited any more, even if its device gets a new worker. */
void generation_remove_member(struct generation *g, const struct worker *w);
/* Adds a member, whose answer is awaited. -1: out of memory; noted. */
int generation_add_member(struct hspmd_controller *m, struct generation *g, struct worker *w);
/* Writes the addresses of members that have not answered. */
void list_unanswered(const struct generation *g, char *text, size_t size);
/* The members' addresses by rank, in an array that the caller frees. NULL: out of memory; noted. */
const char **member_names(struct hspmd_controller *m, const struct generation *g);
/* What each node is told of the members' transport addresses, which are in their answers: { node: { device: address } }, for
 * send_workers_own(). New reference. */
json_t *member_addresses(struct hspmd_controller *m, const struct generation *g);

/* choices.c: what devices have chosen by measurement */
void choices_take_plan(struct hspmd_controller *m, const json_t *plan, bool instead); /* instead: of what is known */
void choices_take_answers(struct hspmd_controller *m, const struct generation *g);    /* of `prepared` */
void choices_put(struct hspmd_controller *m, struct bound_plan *l);                   /* into its plan_json */

/* journal.c: what a later incarnation of the controller needs */
void journal(struct hspmd_controller *m);
void adopt_end(struct hspmd_controller *m); /* the journal of the earlier incarnation is no longer needed */

/* committed.c: checkpoints in nodes' own folders */
/* Of the workers who[0..count), NULL for none, one on each node whose process is up, in the same order. Returns their number. */
int one_per_node(struct worker *const *who, int count, struct worker **one);
/* Orders workers, one per node, such that the first n get a manifest, the one on the lowest node first: all in a small job, else so few
 * that no loss that the copies survive takes all of these. Returns n; 0: out of memory; noted. */
int manifest_holders(struct hspmd_controller *m, const struct bound_plan *of, struct worker **one, int count);
void committed_restore(struct hspmd_controller *m, json_t *from); /* a journal */
/* A checkpoint is taken up that the agents have listed; `chosen`: its manifest. */
void committed_found(struct hspmd_controller *m, const json_t *chosen);
/* The agents have listed none that can be taken up: if there was none at all, what parts there are may go when one is committed. */
void committed_none(struct hspmd_controller *m);

/* checkpoint_search.c */
void checkpoint_search_begin(struct hspmd_controller *m);
/* Asks one more node, or looks at deadlines. m->checkpoint_search.done: there is nothing to wait for. */
void checkpoint_search_check(struct hspmd_controller *m);
/* The choice depends on this manifest. */
void checkpoint_search_want(struct hspmd_controller *m, const char *sum);
/* There is no checkpoint to continue from. Returns true if the search goes on, as somebody has named one whose manifest nobody has sent. */
bool checkpoint_search_again(struct hspmd_controller *m);
/* { node: address of the device that reads the node's files }: the first member on each. */
json_t *checkpoint_readers(struct hspmd_controller *m, const struct generation *g);
/* The choice among those that were found, as run_config's `choose` makes it; 0 also if nothing was found. */
int checkpoint_choose(struct hspmd_controller *m, json_t *readers, struct run_checkpoint_choice *choice, struct hspmd_error *err);
void checkpoint_search_clear(struct hspmd_controller *m);
void on_checkpoint_list(struct hspmd_controller *m, struct node *n, json_t *message);
void on_manifest(struct hspmd_controller *m, struct node *n, json_t *message);
/* Whether those that are remembered are all that the job keeps. */
static inline bool committed_known(const struct hspmd_controller *m)
{
	return m->committed_all || json_array_size(m->committed) >= (size_t)m->config->job->checkpoint.keep;
}
/* This plan's checkpoint of `step` is committed in its nodes' own folders: on disk, or in memory, where it replaces all others. */
void committed_locally(struct hspmd_controller *m, const struct bound_plan *of, int64_t step);
void committed_in_memory(struct hspmd_controller *m, const struct bound_plan *of, int64_t step);

/* straggler.c */
void straggler_begin(struct hspmd_controller *m); /* a generation has started to train */
/* Of a `step` or `heartbeat`: only steps that run the plan itself count, not those of its shorter plans. */
void straggler_sample(const struct hspmd_controller *m, struct worker *w, const json_t *message);
void straggler_tick(struct hspmd_controller *m);
double straggler_deadline(const struct hspmd_controller *m);

/* status_detail.c: what a live view needs */
void device_load_note(struct worker *w, const json_t *message); /* `step` or `heartbeat` */
/* Saves how long each device of the current generation has computed; it has ended. */
void device_loads_save(struct hspmd_controller *m);
void history_note(struct hspmd_controller *m, int64_t step, double loss);
/* Adds device_list, history and events to a status. -1: out of memory. */
int status_add_detail(const struct hspmd_controller *m, json_t *status);

/* trace.c */
/* Returns why no trace of so many steps can begin now; NULL: it can. */
const char *trace_obstacle(const struct hspmd_controller *m, int64_t steps);
/* Begins a trace of the steps from `first` on; -1: from the next step that can be. */
void trace_begin(struct hspmd_controller *m, int64_t first, int64_t steps);
void on_clock(struct hspmd_controller *m, struct worker *w, const json_t *message);
void on_trace_part(struct hspmd_controller *m, struct worker *w, json_t *message);
void trace_pause(struct hspmd_controller *m, double from, double to); /* a change has paused training */
void trace_worker_lost(struct hspmd_controller *m, struct worker *w, const char *why);
void trace_end(struct hspmd_controller *m); /* ends the trace, if there is one, with what has come */
bool advance_trace(struct hspmd_controller *m);
double trace_deadline(const struct hspmd_controller *m);

/* step_metrics.c */
void on_step(struct hspmd_controller *m, struct worker *w, json_t *message);
/* Writes the lines of steps that only the survivors know. `losses`: [[step, loss]]. */
void report_losses(struct hspmd_controller *m, json_t *losses);
void report_change(struct hspmd_controller *m); /* writes the line of a change that is carried out, without waiting for a step */
double slowest_recent_step(const struct hspmd_controller *m); /* seconds; 0: no step of this generation yet */
void extend_step_deadline(struct hspmd_controller *m);

/* checkpoint.c */
/* Starts a checkpoint. false: one to the nodes' own folders is under way, the workers are in no state for it, or there is no folder for
 * `target`: the shared one is left out while it is busy with an earlier checkpoint. */
bool checkpoint_begin(struct hspmd_controller *m, const char *why, enum checkpoint_target target);
bool checkpoint_if_due(struct hspmd_controller *m);
void on_checkpoint_written(struct hspmd_controller *m, struct worker *w, json_t *message);
void on_manifest_written(struct hspmd_controller *m, struct worker *w, json_t *message);
void checkpoint_worker_lost(struct hspmd_controller *m, const struct worker *w);
void checkpoint_tick(struct hspmd_controller *m);
void checkpoint_clear(struct hspmd_controller *m);

/* samples.c */
void samples_init(struct hspmd_controller *m);
bool samples_due(const struct hspmd_controller *m);
void samples_checkpoint_done(struct hspmd_controller *m, int64_t step, bool shared);
void samples_checkpoint_failed(struct hspmd_controller *m);
void on_sampled(struct hspmd_controller *m, const struct run_event *e);

/* settle.c: what survivors of a failure agree on */
void settle_collect(struct hspmd_controller *m); /* reads what each member holds */
bool settle_begin(struct hspmd_controller *m);
void settle_end(struct hspmd_controller *m);

/* revive.c: state that outlived its workers */
/* If the living workers do not hold all state together, starts processes for lost workers, which take up their state. They become members
 * of the current generation, which waits for their answers. Returns true if there are any. */
bool revive_missing(struct hspmd_controller *m);
void revive_agent_up(struct hspmd_controller *m, struct node *n);
/* Asks a process that has just started to take up the state. */
void revive_ask(struct hspmd_controller *m, struct worker *w);
/* Gives up reviving this worker. */
void revive_drop(struct hspmd_controller *m, struct worker *w);
/* The same, and no process of this device is tried again before the next committed step. */
void revive_give_up(struct hspmd_controller *m, struct worker *w);
void revive_drop_node(struct hspmd_controller *m, struct node *n); /* revive_give_up() of those that have no process */

/* current_generation.c: started, stopped or aborted */
bool advance_current(struct hspmd_controller *m);
void start_generation(struct hspmd_controller *m);
void stop_current(struct hspmd_controller *m);
void abort_current(struct hspmd_controller *m, const char *cause);
/* Asks all members what they hold; they stop to train. */
void ask_holders(struct hspmd_controller *m);
void on_answer(struct hspmd_controller *m, struct worker *w, const char *type, json_t *message);
/* Keeps a message that came before all members had started, for replay_deferred(). */
void defer_message(struct hspmd_controller *m, const struct worker *w, json_t *message);
void replay_deferred(struct hspmd_controller *m);
/* The newest state that living workers hold completely: its bound plan (borrowed) and step. NULL: no state is complete. */
struct bound_plan *held_bound_plan(const struct hspmd_controller *m, int64_t *step);
/* For `prepare`: `live` of the `start` that will follow, if no member is lost until then and the state of `donor` (NULL: none) is moved.
 * New reference; NULL: not known. */
json_t *expected_holders(struct hspmd_controller *m, const struct generation *g, const struct bound_plan *donor);

/* adopt.c: workers of an earlier incarnation of the controller */
void adopt_begin(struct hspmd_controller *m);
bool adopt_holds(const struct hspmd_controller *m, const struct node *n); /* by the journal, the job held this node */
/* Takes over the workers in `living` (of the agent's hello) that the journal names, and kills the others. */
void adopt_workers(struct hspmd_controller *m, struct node *n, json_t *living);
/* Binds the journal's generation, and asks its workers what they hold, once their agents are back. */
bool advance_adopt(struct hspmd_controller *m);
/* Once all have answered: they train on, or the generation is aborted. */
bool advance_adopted(struct hspmd_controller *m);

/* failure.c: processes that are lost or must be killed */
void worker_lost(struct hspmd_controller *m, struct worker *w, const char *why);
/* Kills the worker's process. `cause`: of the new plan, as request_replan() has it. */
void worker_kill(struct hspmd_controller *m, struct worker *w, const char *cause, const char *why);
/* All workers of the node are lost with its agent. */
void node_lost(struct hspmd_controller *m, struct node *n, const char *why);
void on_agent_lost(struct hspmd_controller *m, const struct run_event *e);
void on_fault(struct hspmd_controller *m, struct worker *w, json_t *message);
void revive_tick(struct hspmd_controller *m);
/* Kill the members that have not answered by their generation's deadline. */
bool advance_current_overdue(struct hspmd_controller *m);
bool advance_next_overdue(struct hspmd_controller *m);

/* liveness.c: hung processes */
void liveness_heard(struct hspmd_controller *m, struct worker *w); /* any message */
void liveness_tick(struct hspmd_controller *m);
double liveness_deadline(const struct hspmd_controller *m);

/* next_generation.c: solved, spawned, prepared */
bool advance_next(struct hspmd_controller *m);
/* Asks the solver for a plan for this cluster (taken over) to follow l (NULL: none). Returns the ticket. */
int64_t solve_ask(struct hspmd_controller *m, json_t *cluster, const struct bound_plan *l, bool urgent);
/* A generation of this plan, which is taken over, is to follow the current one. */
void next_begin(struct hspmd_controller *m, struct bound_plan *l);
void on_plan(struct hspmd_controller *m, const struct run_event *e);
void on_prepared(struct hspmd_controller *m, struct worker *w, json_t *message);
void on_preconnected(struct hspmd_controller *m, struct worker *w, json_t *message);

/* better_plan.c: after a repaired plan */
bool advance_better_plan(struct hspmd_controller *m);
void on_better_plan(struct hspmd_controller *m, const struct run_event *e);
void better_plan_forget(struct hspmd_controller *m);
double better_plan_deadline(const struct hspmd_controller *m);
/* What the status tells of the plan in use, if it was repaired; NULL: it was not, or memory is short. */
json_t *better_plan_status(const struct hspmd_controller *m, double now);

/* members.c: nodes of other jobs of the same user */
void members_update(struct hspmd_controller *m, const json_t *allocation);
/* Notes which job holds the node, from EVENT_ALLOCATION's value. */
void member_update(struct hspmd_controller *m, struct node *n, const json_t *allocation);
/* The member job that brought the node, if it is over to Slurm but its agent still runs; 0: it is not so. Slurm takes a job that has run
 * out of time for over at once, and ends its processes only after KillWait. */
int64_t member_ending_job(const struct hspmd_controller *m, const struct node *n, const json_t *allocation);
/* The member's job was told to end: the time that it is left is used to change to a plan without it. */
void member_terminating(struct hspmd_controller *m, struct node *n);
/* Writes how the member job that brought this node ended. false: the node is not a member's, or the end is unknown. */
bool member_exit_reason(const struct hspmd_controller *m, const struct node *n, char *text, size_t size);
/* An agent of a node outside the allocation has connected. Returns true if it may wait until Slurm has named the node. */
bool member_admit(struct hspmd_controller *m, struct node *n, const json_t *hello);
/* Ends the member job of a node that is of no use. */
void member_release(struct hspmd_controller *m, struct node *n, const char *why);
/* Ends agents of leaving members once nothing needs them. */
bool advance_members(struct hspmd_controller *m);
void members_tick(struct hspmd_controller *m);
double members_deadline(const struct hspmd_controller *m);

/* requests.c: requests of users and of hspmdctld */
void on_command(struct hspmd_controller *m, const struct run_event *e);
void on_resized(struct hspmd_controller *m, const struct run_event *e);
void requests_tick(struct hspmd_controller *m);
bool advance_requests(struct hspmd_controller *m);

/* shutdown.c */
bool advance_end(struct hspmd_controller *m);
void on_shutdown(struct hspmd_controller *m, const struct run_event *e);
void shutdown_tick(struct hspmd_controller *m);
double shutdown_stop_at(const struct hspmd_controller *m); /* when the run ends because the job's time does; INFINITY: never */

/* node_events.c: nodes and processes that come and go */
void on_allocation(struct hspmd_controller *m, const struct run_event *e);
void on_agent_up(struct hspmd_controller *m, const struct run_event *e);
void on_worker_hello(struct hspmd_controller *m, struct worker *w);
void nodes_tick(struct hspmd_controller *m);
/* Warns, once per start of its agent, if the job cannot use all that it holds on a node. */
void idle_check(struct hspmd_controller *m, struct node *n);
/* Describes what of `held` { cpus, gpus } is idle, given the step's `granted` { cpus, gpus } (gpus absent: all) and how many GPUs were
 * found. Returns false, with an empty text, if nothing is. */
bool idle_describe(const json_t *held, const json_t *granted, int gpus_found, char *text, size_t size);

/* newcomer.c: a second agent of a node */
void on_newcomer(struct hspmd_controller *m, const struct run_event *e);
void on_newcomer_message(struct hspmd_controller *m, const struct run_event *e);
void on_newcomer_gone(struct hspmd_controller *m, const struct run_event *e);
/* The node's first agent has answered `ping`, or has connected. */
void newcomer_first_lives(struct hspmd_controller *m, const char *node);
void newcomer_first_heard(struct hspmd_controller *m, struct node *n); /* a message of the first agent */
void newcomers_tick(struct hspmd_controller *m);
double newcomers_deadline(const struct hspmd_controller *m); /* INFINITY: none waits */

#endif
