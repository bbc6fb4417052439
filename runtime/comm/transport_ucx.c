/* SPDX-License-Identifier: Apache-2.0 */
/* UCX: shared memory within a node, TCP or RDMA between nodes, with its tag-matching functions.
 *
 * Endpoints have error mode NONE because the other mode excludes shared memory. UCX then does not report the death of a peer on the same
 * node, and operations that are pending towards it can be neither finished nor cancelled; but a worker can be destroyed with all of
 * them. So every generation has its own UCX worker, UCX is not asked which peers are alive, and close() destroys the worker as a whole.
 *
 * A message that is still pending then holds the registration of its memory, which is not released when the worker is destroyed. Because
 * of it, ucp_cleanup aborts the process if UCX was built with assertions (Debian's 1.18: "region->refcount == 0" in rcache.c). A context
 * that has lost a message is therefore kept until the process ends: 30 kB with UCX 1.13, 200 kB with 1.18, and no descriptor, for each
 * generation that ended this way. Disabling the registration cache would avoid this too, but would register every large message anew on
 * RDMA. */
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>
#include <ucp/api/ucp.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "runtime/comm/transport.h"

/* How long a close waits until sent messages have left this process. */
#define FLUSH_S 2.0
/* The longest sleep during that wait: setting the abort flag does not wake a sleeping thread. */
#define NAP_S 5e-3

/* UCX matches 64 bits: the sender's rank is above the caller's tag. */
#define TAG_BITS 44
_Static_assert(HSPMD_TAG_LIMIT == UINT64_C(1) << TAG_BITS && HSPMD_TRANSPORT_MAX_RANKS <= 1 << (64 - TAG_BITS),
               "a rank and a tag fit in 64 bits");

struct ucx_transport;

struct ucx_message {
	struct hspmd_request request;
	TAILQ_ENTRY(ucx_message) all;
	bool done;
	ucs_status_t status;
	size_t received; /* receives: size of the message */
};

struct ucx_peer {
	struct ucx_transport *transport;
	void *address; /* until the endpoint exists; unknown as long as `transport` is NULL */
	ucp_ep_h ep;
	ucs_status_t failed; /* UCS_OK: no failure is known */
};

struct ucx_transport {
	struct hspmd_transport base;
	ucp_context_h context;
	ucp_worker_h worker;
	int event_fd;
	bool failed; /* a message has failed: a flush could wait for a dead peer */
	struct ucx_peer *peers;
	TAILQ_HEAD(, ucx_message) all;
};

/* Contexts that are never cleaned up; in a list, so that leak checkers do not report them. */
struct kept_context {
	struct kept_context *next;
	ucp_context_h context;
};
static _Atomic(struct kept_context *) kept_contexts;

static void leak_context(ucp_context_h context)
{
	struct kept_context *k = malloc(sizeof *k);
	if (!k)
		return; /* it stays allocated nevertheless */
	k->context = context;
	k->next = atomic_load(&kept_contexts);
	while (!atomic_compare_exchange_weak(&kept_contexts, &k->next, k))
		;
}

static int fail_ucx(struct hspmd_error *err, const char *what, ucs_status_t status)
{
	return hspmd_fail(err, "UCX: %s: %s", what, ucs_status_string(status));
}

static void ucx_block(struct hspmd_transport *base, double seconds);

static void close_flushed(struct ucx_transport *t)
{
	if (t->failed || hspmd_transport_aborted(&t->base))
		return;
	ucp_request_param_t param = { 0 };
	void *flush = ucp_worker_flush_nbx(t->worker, &param);
	double until = hspmd_now() + fmin(FLUSH_S, t->base.options.timeout_s);
	if (!UCS_PTR_IS_PTR(flush))
		return;
	while (ucp_request_check_status(flush) == UCS_INPROGRESS && hspmd_now() < until && !hspmd_transport_aborted(&t->base))
		if (!ucp_worker_progress(t->worker))
			ucx_block(&t->base, NAP_S);
	ucp_request_free(flush);
}

static void ucx_close(struct hspmd_transport *base)
{
	struct ucx_transport *t = (struct ucx_transport *)base;
	if (!t)
		return;
	struct ucx_message *m;
	bool pending = false;
	if (t->worker) {
		TAILQ_FOREACH(m, &t->all, all)
		pending |= !m->done;
		if (!pending)
			close_flushed(t);
		/* UCX may still call back into messages until here: they are freed afterwards. */
		ucp_worker_destroy(t->worker);
	}
	if (t->context && (pending || t->failed))
		leak_context(t->context);
	else if (t->context)
		ucp_cleanup(t->context);
	while ((m = TAILQ_FIRST(&t->all))) {
		TAILQ_REMOVE(&t->all, m, all);
		free(m);
	}
	for (int r = 0; t->peers && r < base->options.size; r++)
		free(t->peers[r].address);
	free(t->peers);
	hspmd_transport_fini(base);
	free(t);
}

static int open_worker(struct ucx_transport *t, struct hspmd_error *err)
{
	ucp_config_t *config;
	ucs_status_t status = ucp_config_read(NULL, NULL, &config);
	if (status != UCS_OK)
		return fail_ucx(err, "reading its configuration", status);
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
		.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
		.estimated_num_eps = (size_t)t->base.options.size,
	};
	status = ucp_init(&params, config, &t->context);
	ucp_config_release(config);
	if (status != UCS_OK) {
		t->context = NULL;
		return fail_ucx(err, "starting", status);
	}
	/* The worker process's main thread opens it, another thread may use it later; never two at once. */
	ucp_worker_params_t worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED };
	status = ucp_worker_create(t->context, &worker, &t->worker);
	if (status != UCS_OK) {
		t->worker = NULL;
		return fail_ucx(err, "making a worker", status);
	}
	status = ucp_worker_get_efd(t->worker, &t->event_fd);
	return status == UCS_OK ? 0 : fail_ucx(err, "asking for its event descriptor", status);
}

static int ucx_open(const struct hspmd_transport_options *o, struct hspmd_transport **out, struct hspmd_error *err)
{
	struct ucx_transport *t = hspmd_calloc(1, sizeof *t);
	if (!t)
		return hspmd_fail_memory(err, "opening a transport");
	TAILQ_INIT(&t->all);
	if (hspmd_transport_init(&t->base, &hspmd_transport_ucx, o, err)) {
		free(t);
		return -1;
	}
	t->peers = hspmd_calloc((size_t)o->size, sizeof *t->peers);
	if (!t->peers || open_worker(t, err)) {
		if (!t->peers)
			hspmd_fail_memory(err, "opening a transport");
		ucx_close(&t->base);
		return -1;
	}
	*out = &t->base;
	return 0;
}

static int ucx_address(struct hspmd_transport *base, struct hspmd_address *own, struct hspmd_error *err)
{
	struct ucx_transport *t = (struct ucx_transport *)base;
	ucp_address_t *address;
	size_t size;
	ucs_status_t status = ucp_worker_get_address(t->worker, &address, &size);
	if (status != UCS_OK)
		return fail_ucx(err, "asking for the worker's address", status);
	own->data = malloc(size);
	own->size = size;
	if (own->data)
		memcpy(own->data, address, size);
	ucp_worker_release_address(t->worker, address);
	return own->data ? 0 : hspmd_fail_memory(err, "making an address");
}

static int ucx_connect(struct hspmd_transport *base, const struct hspmd_address *addresses, struct hspmd_error *err)
{
	struct ucx_transport *t = (struct ucx_transport *)base;
	for (int r = 0; r < base->options.size; r++) {
		char peer[80];
		if (!addresses[r].size || t->peers[r].transport)
			continue;
		/* UCX has no function that checks an address; it would read past the end of one shorter than its fixed part. */
		if (addresses[r].size < 16 || addresses[r].size > 1 << 20)
			return hspmd_fail(err, "%s has sent no UCX address", hspmd_transport_peer(base, r, peer, sizeof peer));
		t->peers[r].address = malloc(addresses[r].size);
		if (!t->peers[r].address)
			return hspmd_fail_memory(err, "connecting");
		t->peers[r].transport = t;
		memcpy(t->peers[r].address, addresses[r].data, addresses[r].size);
	}
	return 0;
}

static void on_peer_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)ep;
	struct ucx_peer *peer = arg;
	peer->failed = status;
	peer->transport->failed = true;
}

static int endpoint(struct ucx_transport *t, int to, struct hspmd_error *err)
{
	struct ucx_peer *peer = &t->peers[to];
	if (!peer->transport)
		return hspmd_transport_fail_unknown(&t->base, to, err);
	if (peer->failed != UCS_OK)
		return fail_ucx(err, "the connection", peer->failed);
	if (peer->ep)
		return 0;
	ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = peer->address,
		.err_mode = UCP_ERR_HANDLING_MODE_NONE,
		.err_handler = { .cb = on_peer_error, .arg = peer },
	};
	ucs_status_t status = ucp_ep_create(t->worker, &params, &peer->ep);
	if (status != UCS_OK) {
		peer->ep = NULL;
		return fail_ucx(err, "connecting", status);
	}
	free(peer->address);
	peer->address = NULL;
	return 0;
}

static void on_sent(void *ucx, ucs_status_t status, void *arg)
{
	struct ucx_message *m = arg;
	m->done = true;
	m->status = status;
	ucp_request_free(ucx);
}

static void on_received(void *ucx, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg)
{
	struct ucx_message *m = arg;
	m->received = status == UCS_OK ? info->length : 0;
	on_sent(ucx, status, arg);
}

static struct ucx_message *start(struct ucx_transport *t, int peer, bool sending, uint64_t tag, size_t bytes, struct hspmd_error *err)
{
	if (hspmd_transport_check(&t->base, peer, tag, err))
		return NULL;
	struct ucx_message *m = hspmd_calloc(1, sizeof *m);
	if (!m) {
		hspmd_fail_memory(err, "starting a message");
		return NULL;
	}
	m->request = (struct hspmd_request){ .peer = peer, .sending = sending, .bytes = bytes, .tag = tag };
	TAILQ_INSERT_TAIL(&t->all, m, all);
	return m;
}

static int started(struct ucx_transport *t, struct ucx_message *m, ucs_status_ptr_t ucx, struct hspmd_request **r, struct hspmd_error *err)
{
	if (UCS_PTR_IS_ERR(ucx)) {
		t->failed = true;
		TAILQ_REMOVE(&t->all, m, all);
		free(m);
		return fail_ucx(err, "starting a message", UCS_PTR_STATUS(ucx));
	}
	if (!ucx)
		m->done = true;
	*r = &m->request;
	return 0;
}

static int ucx_send(struct hspmd_transport *base, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                    struct hspmd_error *err)
{
	struct ucx_transport *t = (struct ucx_transport *)base;
	struct ucx_message *m = start(t, to, true, tag, bytes, err);
	if (!m)
		return -1;
	if (endpoint(t, to, err)) {
		TAILQ_REMOVE(&t->all, m, all);
		free(m);
		return -1;
	}
	ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = on_sent,
		.user_data = m,
	};
	return started(t, m, ucp_tag_send_nbx(t->peers[to].ep, data, bytes, (uint64_t)base->options.rank << TAG_BITS | tag, &param), r,
	               err);
}

static int ucx_receive(struct hspmd_transport *base, int from, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r,
                       struct hspmd_error *err)
{
	struct ucx_transport *t = (struct ucx_transport *)base;
	struct ucx_message *m = start(t, from, false, tag, bytes, err);
	if (!m)
		return -1;
	ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
		.cb.recv = on_received,
		.user_data = m,
	};
	return started(t, m, ucp_tag_recv_nbx(t->worker, data, bytes, (uint64_t)from << TAG_BITS | tag, UINT64_MAX, &param), r, err);
}

static void ucx_progress(struct hspmd_transport *base)
{
	for (int i = 0; i < 64 && ucp_worker_progress(((struct ucx_transport *)base)->worker); i++)
		;
}

static void ucx_block(struct hspmd_transport *base, double seconds)
{
	struct ucx_transport *t = (struct ucx_transport *)base;
	if (ucp_worker_arm(t->worker) != UCS_OK)
		return;
	struct pollfd events[] = { { .fd = t->event_fd, .events = POLLIN }, { .fd = base->wake_fd, .events = POLLIN } };
	struct timespec limit = { .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) };
	if (ppoll(events, 2, &limit, NULL) > 0 && events[1].revents)
		hspmd_transport_clear_wake(base);
}

static int ucx_test(struct hspmd_transport *base, struct hspmd_request *r, struct hspmd_error *err)
{
	struct ucx_transport *t = (struct ucx_transport *)base;
	struct ucx_message *m = (struct ucx_message *)r;
	int rv = 0;
	if (m->done && m->status != UCS_OK)
		rv = fail_ucx(err, "the transfer", m->status);
	else if (m->done)
		rv = r->sending || m->received == r->bytes ? 1 : hspmd_fail(err, "received %zu bytes", m->received);
	else if (t->peers[r->peer].failed != UCS_OK)
		return fail_ucx(err, "the connection", t->peers[r->peer].failed); /* UCX may still own the request: close() frees it */
	if (rv) {
		t->failed |= rv < 0;
		TAILQ_REMOVE(&t->all, m, all);
		free(m);
	}
	return rv;
}

const struct hspmd_transport_ops hspmd_transport_ucx = {
	.name = "ucx",
	.open = ucx_open,
	.address = ucx_address,
	.connect = ucx_connect,
	.send = ucx_send,
	.receive = ucx_receive,
	.progress = ucx_progress,
	.block = ucx_block,
	.wake = hspmd_transport_signal,
	.test = ucx_test,
	.close = ucx_close,
};
