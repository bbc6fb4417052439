/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the devices of a node, each in its own process as workers are, and the nodes of a Slurm step together.
 *
 * Messages between a node's task and a device's process, over a socketpair: `open` with the cluster and the device's number is answered
 * by the transport's address; `measure` with all addresses is answered by the measurements; both may also be answered by a fault.
 * Processes are forked before the PMIx connection is opened, because a library with threads does not survive a fork. Every task takes
 * part in all three exchanges even after errors, because the others wait for it; but a task that loses a device during the measurement
 * ends the step, because other nodes' devices may be waiting for that one. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/clock.h"
#include "common/cores.h"
#include "common/log.h"
#include "common/progress.h"
#include "common/wire.h"
#include "runtime/measure/measure.h"

/* Time limit for starting, and additional time beyond the measuring budget. */
#define START_S 60.0
#define OVERTIME 3.0
#define END_S 10.0

struct device_process {
	pid_t pid;
	int fd; /* -1: no process */
	struct hspmd_wire_reader *reader;
};

struct node {
	const struct hspmd_measure_options *options;
	struct hspmd_topology *topology;
	struct device_process *devices;
	int count, first; /* number in the cluster of the first one */
	double began;
};

static double patience(const struct hspmd_measure_options *w)
{
	return START_S + OVERTIME * w->budget_s;
}

/* ---- a device's process */

struct self {
	struct hspmd_measure_context context;
	const struct hspmd_measure_options *options;
	struct hspmd_wire_reader *reader;
	int fd;
};

static json_t *hear(const struct self *s, struct hspmd_error *err)
{
	json_t *m = NULL;
	return hspmd_wire_receive(s->fd, s->reader, patience(s->options), &m, err) == 1 ? m : NULL;
}

static int open_transport(struct self *s, struct hspmd_cluster *cluster, int number, char **address, struct hspmd_error *err)
{
	s->context.cluster = cluster;
	s->context.device = number;
	size_t n = (size_t)cluster->device_count;
	*address = strdup("");
	if (n == 1)
		return *address ? 0 : hspmd_fail_memory(err, "starting a device");
	char(*names)[64] = hspmd_calloc(n, sizeof *names);
	const struct hspmd_transport_ops *ops = hspmd_transport_find(s->options->transport, err);
	for (size_t d = 0; names && d < n; d++)
		hspmd_cluster_device_address(cluster, (int)d, names[d], sizeof *names);
	struct hspmd_transport_options o = { .rank = number, .size = (int)n, .timeout_s = patience(s->options), .names = names };
	struct hspmd_address own = { 0 };
	int rv = !ops || ops->open(&o, &s->context.transport, err) || s->context.transport->ops->address(s->context.transport, &own, err)
	                 ? -1
	                 : 0;
	free(names);
	free(*address);
	*address = rv ? NULL : hspmd_base64_encode(own.data, own.size);
	free(own.data);
	return rv || *address ? rv : hspmd_fail_memory(err, "starting a device");
}

static int answer_open(struct self *s, struct hspmd_error *err)
{
	json_t *m = hear(s, err), *cluster;
	char *address = NULL;
	int number, rv = -1;
	if (m && json_unpack(m, "{so,si}", "cluster", &cluster, "device", &number))
		hspmd_fail(err, "open: a field is missing");
	else if (m) {
		struct hspmd_cluster *c = hspmd_cluster_from_json(cluster, "cluster", err);
		rv = c ? open_transport(s, c, number, &address, err) : -1;
	}
	json_decref(m);
	json_t *answer = rv ? NULL : json_pack("{ss}", "address", address);
	if (!rv)
		rv = answer ? hspmd_wire_send(s->fd, answer, START_S, err) : hspmd_fail_memory(err, "starting a device");
	json_decref(answer);
	free(address);
	return rv;
}

static int connect_all(struct self *s, const json_t *addresses, struct hspmd_error *err)
{
	size_t n = (size_t)s->context.cluster->device_count;
	if (!s->context.transport)
		return 0;
	struct hspmd_address *all = hspmd_calloc(n, sizeof *all);
	int rv = all ? 0 : hspmd_fail_memory(err, "connecting");
	for (size_t d = 0; !rv && d < n; d++) {
		const char *text = json_string_value(json_array_get(addresses, d));
		all[d].data = text ? hspmd_base64_decode(text, &all[d].size) : NULL;
		if (!all[d].data)
			rv = hspmd_fail(err, "measure: address %zu is missing", d);
	}
	if (!rv)
		rv = s->context.transport->ops->connect(s->context.transport, all, err);
	for (size_t d = 0; all && d < n; d++)
		free(all[d].data);
	free(all);
	return rv;
}

static int answer_measure(struct self *s, struct hspmd_error *err)
{
	json_t *m = hear(s, err);
	int rv = m ? connect_all(s, json_object_get(m, "addresses"), err) : -1;
	json_decref(m);
	json_t *row = rv ? NULL : hspmd_measure_device(&s->context, s->options, err);
	json_t *answer = row ? json_pack("{so}", "row", row) : NULL;
	if (!rv)
		rv = answer ? hspmd_wire_send(s->fd, answer, START_S, err) : -1;
	json_decref(answer);
	return rv;
}

static void run_device(int fd, const struct hspmd_binding *where, const struct hspmd_model *model, const struct hspmd_model_facts *facts,
                       const struct hspmd_measure_options *options, double began)
{
	struct hspmd_error err = { "" };
	struct self s = { .context = { .model = model, .facts = facts, .seq_len = options->seq_len, .began = began },
		          .options = options,
		          .fd = fd };
	const struct hspmd_device_ops *ops = hspmd_device_find(hspmd_device_kind_names[where->kind], &err);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "hspmd-device"); /* visible in process listings */
	hspmd_bind_to_cores(where->cpus);
	s.reader = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	int rv = !s.reader || !ops || ops->open(&s.context.dev, where->gpu < 0 ? 0 : where->gpu, where->cores, &err) ||
	         answer_open(&s, &err) || answer_measure(&s, &err);
	json_t *fault = rv ? json_pack("{ss}", "fault", err.text) : NULL;
	if (fault)
		hspmd_wire_send(fd, fault, START_S, NULL);
	/* The process's memory is freed when it exits; but the transport must be closed properly, for peers that still read messages. */
	if (s.context.transport)
		s.context.transport->ops->close(s.context.transport);
	_exit(rv ? 1 : 0);
}

/* ---- the node's side */

static int start_devices(struct node *n, const struct hspmd_model *model, const struct hspmd_model_facts *facts, struct hspmd_error *err)
{
	n->devices = hspmd_calloc((size_t)n->topology->binding_count, sizeof *n->devices);
	if (!n->devices)
		return hspmd_fail_memory(err, "starting devices");
	for (; n->count < n->topology->binding_count; n->count++) {
		struct device_process *d = &n->devices[n->count];
		int ends[2];
		d->reader = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
		if (!d->reader || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
			hspmd_wire_reader_destroy(d->reader);
			return hspmd_fail_errno(err, "starting a device");
		}
		d->pid = fork();
		if (!d->pid) {
			close(ends[0]);
			for (int i = 0; i < n->count; i++)
				close(n->devices[i].fd);
			run_device(ends[1], &n->topology->bindings[n->count], model, facts, n->options, n->began);
		}
		close(ends[1]);
		d->fd = ends[0];
		if (d->pid < 0) {
			close(ends[0]);
			hspmd_wire_reader_destroy(d->reader);
			return hspmd_fail_errno(err, "starting a device");
		}
	}
	return 0;
}

/* done: the processes have answered everything and end by themselves; their last messages may still be in transit. */
static void end_devices(struct node *n, bool done)
{
	for (int i = 0; i < n->count; i++) {
		struct device_process *d = &n->devices[i];
		json_t *m = NULL;
		if (done && hspmd_wire_receive(d->fd, d->reader, END_S, &m, NULL) > 0)
			json_decref(m);
		close(d->fd);
		kill(d->pid, SIGKILL);
		while (waitpid(d->pid, NULL, 0) < 0)
			;
		hspmd_wire_reader_destroy(d->reader);
	}
	free(n->devices);
}

static int blame(const struct node *n, int i, struct hspmd_error *err)
{
	return hspmd_error_prefix(err, "device %s:%d", n->topology->cluster->nodes[0].name, i);
}

static int send_message(struct node *n, int i, json_t *m, struct hspmd_error *err)
{
	int rv = m ? hspmd_wire_send(n->devices[i].fd, m, START_S, err) : hspmd_fail_memory(err, "telling a device");
	json_decref(m);
	return rv ? blame(n, i, err) : 0;
}

/* The value of `key` in a device's answer: a new reference, or NULL. */
static json_t *request(struct node *n, int i, const char *key, double wait_s, struct hspmd_error *err)
{
	json_t *m = NULL, *value = NULL;
	int got = hspmd_wire_receive(n->devices[i].fd, n->devices[i].reader, wait_s, &m, err);
	const char *fault = m ? json_string_value(json_object_get(m, "fault")) : NULL;
	if (got == 0)
		hspmd_fail(err, "its process has ended");
	else if (got == 1 && fault)
		hspmd_fail(err, "%s", fault);
	else if (got == 1 && !(value = json_incref(json_object_get(m, key))))
		hspmd_fail(err, "its process did not answer with %s", key);
	json_decref(m);
	if (!value)
		blame(n, i, err);
	return value;
}

/* The answers of all devices as one text; NULL and err if one has no answer. */
static char *request_all(struct node *n, const char *key, double wait_s, struct hspmd_error *err)
{
	json_t *list = json_array();
	int bad = !list;
	char *text = NULL;
	for (int i = 0; !bad && i < n->count; i++)
		bad = json_array_append_new(list, request(n, i, key, wait_s, err));
	if (!bad && !(text = json_dumps(list, JSON_COMPACT)))
		hspmd_fail_memory(err, "gathering");
	json_decref(list);
	return text;
}

static char *open_all(struct node *n, const struct hspmd_cluster *all, struct hspmd_error *err)
{
	json_t *cluster = hspmd_cluster_to_json(all);
	int rv = cluster ? 0 : hspmd_fail_memory(err, "starting devices");
	n->first = all->nodes[hspmd_cluster_find_node(all, n->topology->cluster->nodes[0].name)].first_device;
	for (int i = 0; !rv && i < n->count; i++)
		rv = send_message(n, i, json_pack("{ss,sO,si}", "type", "open", "cluster", cluster, "device", n->first + i), err);
	json_decref(cluster);
	return rv ? NULL : request_all(n, "address", START_S, err);
}

/* Shows how much of the time for measuring is over, until the first device has an answer. */
static void watch_measuring(const struct node *n)
{
	double began = hspmd_now(), spent = 0, most = patience(n->options);
	struct pollfd one = { .fd = n->count ? n->devices[0].fd : -1, .events = POLLIN };
	hspmd_progress_begin("profile");
	while (n->count && spent < most && poll(&one, 1, 200) == 0) {
		spent = hspmd_now() - began;
		hspmd_progress(spent, n->options->budget_s);
	}
	hspmd_progress_end();
}

static char *measure_all(struct node *n, json_t *addresses, struct hspmd_error *err)
{
	for (int i = 0; i < n->count; i++)
		if (send_message(n, i, json_pack("{ss,sO}", "type", "measure", "addresses", addresses), err))
			return NULL;
	watch_measuring(n);
	return request_all(n, "row", patience(n->options), err);
}

/* ---- the Slurm step */

/* Join the lists of all tasks in their order. A task that passed something before (`given`) and nothing now has failed. */
static json_t *join_lists(char *const *texts, char *const *given, int size, struct hspmd_error *err)
{
	json_t *all = json_array();
	for (int i = 0; all && i < size; i++) {
		if (!given[i])
			continue;
		json_t *list = texts[i] ? json_loads(texts[i], 0, NULL) : NULL;
		int bad = !list || json_array_extend(all, list);
		json_decref(list);
		if (bad) {
			json_decref(all);
			hspmd_fail(err, "task %d of the step could not measure; it says why", i);
			return NULL;
		}
	}
	if (!all)
		hspmd_fail_memory(err, "gathering");
	return all;
}

/* Every task executes all of this; the first failure sets `err`. n->count 0: this task has nothing to contribute. *failed: a device of
 * this node failed while others may have been communicating with it. */
static int exchange(struct node *n, struct hspmd_pmix *step, struct hspmd_cluster **cluster, json_t **rows, bool *failed,
                    struct hspmd_error *err)
{
	int size = hspmd_pmix_size(step);
	bool first = !hspmd_pmix_rank(step);
	double wait_s = START_S + OVERTIME * n->options->budget_s + HSPMD_PMIX_WAIT_S; /* for the slowest node */
	char **parts = NULL, **lists = NULL, *own = n->count ? hspmd_topology_text(n->topology->cluster) : NULL;
	int rv = hspmd_pmix_gather(step, own, &parts, wait_s, err);
	struct hspmd_cluster *all = rv ? NULL : hspmd_topology_merge(parts, size, err);
	free(own);
	own = all && n->count ? open_all(n, all, err) : NULL;
	rv = hspmd_pmix_gather(step, own, &lists, wait_s, all ? err : NULL) || !all ? -1 : 0;
	bool lost = all && n->count && !own;
	json_t *addresses = rv || lost ? NULL : join_lists(lists, parts, size, err);
	hspmd_pmix_free_texts(lists, size);
	lists = NULL;
	free(own);
	own = addresses && n->count ? measure_all(n, addresses, err) : NULL;
	*failed = addresses && n->count && !own;
	rv = *failed || hspmd_pmix_gather(step, own, first ? &lists : NULL, wait_s, addresses && !lost ? err : NULL) || !addresses || lost
	             ? -1
	             : 0;
	if (!rv && first) {
		*rows = join_lists(lists, parts, size, err);
		*cluster = *rows ? all : NULL;
		rv = *rows ? 0 : -1;
	}
	if (!*cluster)
		hspmd_cluster_destroy(all);
	json_decref(addresses);
	hspmd_pmix_free_texts(lists, size);
	hspmd_pmix_free_texts(parts, size);
	free(own);
	return rv;
}

/* Only the first task of a node measures. */
static bool is_first_of_node(void)
{
	const char *local = getenv("SLURM_LOCALID");
	return !local || !strcmp(local, "0");
}

int hspmd_measure_cluster(const struct hspmd_topology_options *look, const struct hspmd_model *model,
                          const struct hspmd_measure_options *options, struct hspmd_cluster **cluster, json_t **rows,
                          struct hspmd_error *err)
{
	struct node n = { .options = options, .began = hspmd_now() };
	struct hspmd_error missing = { "" };
	bool wanted = is_first_of_node();
	*cluster = NULL;
	*rows = NULL;
	struct hspmd_model_facts *facts = wanted ? hspmd_model_facts_of(model, options->seq_len, &missing) : NULL;
	n.topology = facts ? hspmd_topology_discover(look, &missing) : NULL;
	if (n.topology && start_devices(&n, model, facts, &missing)) {
		end_devices(&n, false);
		n.devices = NULL;
		n.count = 0;
	}
	struct hspmd_pmix *step = hspmd_pmix_open(err);
	bool failed = false;
	int rv = step ? exchange(&n, step, cluster, rows, &failed, err) : -1;
	if (failed)
		hspmd_pmix_leave(step);
	else if (hspmd_pmix_close(step, rv ? NULL : err))
		rv = -1;
	if (!rv && wanted && !n.count)
		hspmd_warn("this node was left out: %s", missing.text);
	else if (missing.text[0] && err)
		*err = missing;
	end_devices(&n, !rv);
	hspmd_topology_destroy(n.topology);
	hspmd_model_facts_destroy(facts);
	return rv;
}
