/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of NCCL. They do not block: a call that NCCL cannot complete at once is polled until it is complete, with a deadline, and a
 * communicator can be aborted at any time. Each has a stream of its own, so that work that waits for another member on the GPU delays only
 * the streams that wait for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "runtime/device/cuda/nccl/nccl.h"

/* Calls of a communicator that may be in progress; one more waits for the first of them. */
#define RING 64
/* The timeout if there is no watch. */
#define PATIENCE_S 60.0
/* How long closing waits for the other members: they close at about the same time, or are gone. */
#define CLOSE_S 5.0

struct hspmd_communicator {
	struct hspmd_cuda *cuda;
	struct hspmd_communicator *next; /* in the device's list, which its waits check */
	nccl_comm comm;
	cudaStream_t stream;
	cudaEvent_t asked;                    /* recorded after the device stream's work so far */
	cudaEvent_t began[RING], ended[RING]; /* call t uses entry t % RING */
	uint64_t issued, finished;            /* numbers of calls, from 1 */
	double since;                         /* when call finished + 1 was first seen to have begun; 0: not yet */
	bool failed;
};

static const struct hspmd_nccl *library(void)
{
	return hspmd_nccl_load(NULL); /* a communicator exists, so NCCL is loaded */
}

static int failed(struct hspmd_communicator *g, int status, const char *what, struct hspmd_error *err)
{
	const struct hspmd_nccl *n = library();
	const char *more = n->last_error ? n->last_error(g ? g->comm : NULL) : NULL;
	if (g)
		g->failed = true;
	return hspmd_fail(err, "NCCL: %s: %s%s%s", what, n->error_string(status), more && *more ? ": " : "", more ? more : "");
}

static int failed_cuda(struct hspmd_communicator *g, cudaError_t status, const char *what, struct hspmd_error *err)
{
	g->failed = true;
	return hspmd_cuda_failed(status, what, err);
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
}

static bool is_called_off(const struct hspmd_cuda *cuda)
{
	return cuda->communicators->watch.abort && atomic_load_explicit(cuda->communicators->watch.abort, memory_order_relaxed);
}

static double patience(const struct hspmd_cuda *cuda)
{
	return cuda->communicators->watch.timeout_s > 0 ? cuda->communicators->watch.timeout_s : PATIENCE_S;
}

/* Waits until NCCL's own threads have completed a call. */
static int settle(struct hspmd_communicator *g, int status, const char *what, double seconds, struct hspmd_error *err)
{
	double until = hspmd_now() + seconds;
	while (status == NCCL_SUCCESS || status == NCCL_IN_PROGRESS) {
		int state, asked = library()->comm_async_error(g->comm, &state);
		if (asked)
			return failed(g, asked, what, err);
		if (state == NCCL_SUCCESS)
			return 0;
		if (state != NCCL_IN_PROGRESS)
			return failed(g, state, what, err);
		g->failed = is_called_off(g->cuda) || hspmd_now() > until;
		if (is_called_off(g->cuda))
			return hspmd_fail(err, "NCCL: %s: called off", what);
		if (g->failed)
			return hspmd_fail(err, "NCCL: %s: not done after %.3g s", what, seconds);
		nap();
	}
	return failed(g, status, what, err);
}

/* ---- what the device checks while it waits */

/* Advances to the first call that is not complete. Returns for how many seconds it has been running; 0: none runs. */
static double running_for(struct hspmd_communicator *g)
{
	while (g->finished < g->issued && !cudaEventQuery(g->ended[(g->finished + 1) % RING])) {
		g->finished++;
		g->since = 0;
	}
	if (g->finished == g->issued || cudaEventQuery(g->began[(g->finished + 1) % RING]))
		return 0;
	if (g->since <= 0)
		g->since = hspmd_now();
	return hspmd_now() - g->since;
}

int hspmd_nccl_check(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	if (is_called_off(cuda))
		return hspmd_fail(err, "called off while waiting for the GPU");
	for (struct hspmd_communicator *g = cuda->communicators->list; g; g = g->next) {
		int state = NCCL_SUCCESS, asked = library()->comm_async_error(g->comm, &state);
		if (asked || (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS))
			return failed(g, asked ? asked : state, "a connection", err);
		if (running_for(g) > patience(cuda)) {
			g->failed = true;
			return hspmd_fail(err, "NCCL: waited %.3g s for the other members", patience(cuda));
		}
	}
	return 0;
}

/* ---- creating and closing */

static int nccl_probe(struct hspmd_device *dev, char kind[HSPMD_COMMUNICATOR_KIND_BYTES], struct hspmd_error *err)
{
	const struct hspmd_nccl *n = hspmd_nccl_load(err);
	(void)dev;
	if (!n)
		return -1;
	snprintf(kind, HSPMD_COMMUNICATOR_KIND_BYTES, "nccl %d.%d", n->version / 10000, n->version / 100 % 100);
	return 0;
}

static uint64_t nccl_device_id(struct hspmd_device *dev)
{
	return (uint64_t)((struct hspmd_cuda *)dev)->index;
}

static void nccl_watch(struct hspmd_device *dev, const struct hspmd_communicator_watch *watch)
{
	((struct hspmd_cuda *)dev)->communicators->watch = *watch;
}

static void nccl_unwatch(struct hspmd_device *dev, const atomic_int *abort)
{
	struct hspmd_cuda_communicators *communicators = ((struct hspmd_cuda *)dev)->communicators;
	if (communicators->watch.abort == abort)
		communicators->watch = (struct hspmd_communicator_watch){ 0 };
}

static int nccl_unique_id(struct hspmd_device *dev, unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES], struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = (struct hspmd_cuda *)dev;
	struct nccl_id own;
	const struct hspmd_nccl *n = hspmd_nccl_load(err);
	if (!n)
		return -1;
	cudaSetDevice(cuda->index);
	int status = n->get_unique_id(&own);
	if (status)
		return failed(NULL, status, "an identifier for a group", err);
	memcpy(id, &own, sizeof own);
	return 0;
}

static void free_group(struct hspmd_communicator *g)
{
	if (g->stream)
		cudaStreamDestroy(g->stream);
	if (g->asked)
		cudaEventDestroy(g->asked);
	for (int i = 0; i < RING; i++) {
		if (g->began[i])
			cudaEventDestroy(g->began[i]);
		if (g->ended[i])
			cudaEventDestroy(g->ended[i]);
	}
	free(g);
}

static int nccl_init(struct hspmd_device *dev, const unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES], int rank, int size,
                     struct hspmd_communicator **out, struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = (struct hspmd_cuda *)dev;
	struct nccl_config config = { sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0 };
	struct nccl_id given;
	const struct hspmd_nccl *n = hspmd_nccl_load(err);
	struct hspmd_communicator *g = n ? calloc(1, sizeof *g) : NULL;
	if (!g)
		return n ? hspmd_fail_memory(err, "making a group") : -1;
	g->cuda = cuda;
	cudaSetDevice(cuda->index);
	cudaError_t status = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
	if (!status)
		status = cudaEventCreateWithFlags(&g->asked, cudaEventDisableTiming);
	for (int i = 0; !status && i < RING; i++)
		if (!(status = cudaEventCreateWithFlags(&g->began[i], cudaEventDisableTiming)))
			status = cudaEventCreateWithFlags(&g->ended[i], cudaEventDisableTiming);
	if (status) {
		free_group(g);
		return hspmd_cuda_failed(status, "making a group", err);
	}
	memcpy(&given, id, sizeof given);
	int made = n->comm_init(&g->comm, size, given, rank, &config);
	if (made != NCCL_SUCCESS && made != NCCL_IN_PROGRESS) {
		failed(NULL, made, "making a communicator", err);
		if (g->comm)
			n->comm_abort(g->comm);
		free_group(g);
		return -1;
	}
	g->next = cuda->communicators->list;
	cuda->communicators->list = g;
	*out = g;
	return 0;
}

static int nccl_init_poll(struct hspmd_communicator *g, struct hspmd_error *err)
{
	int state = NCCL_SUCCESS, asked = library()->comm_async_error(g->comm, &state);
	if (asked || (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS))
		return failed(g, asked ? asked : state, "making a communicator", err);
	return state == NCCL_SUCCESS;
}

static void nccl_close(struct hspmd_communicator *g, bool abort)
{
	if (!g)
		return;
	const struct hspmd_nccl *n = library();
	struct hspmd_error ignored;
	cudaSetDevice(g->cuda->index);
	if (abort || g->failed || is_called_off(g->cuda) ||
	    settle(g, n->comm_finalize(g->comm), "ending a communicator", CLOSE_S, &ignored))
		n->comm_abort(g->comm);
	else
		n->comm_destroy(g->comm);
	for (struct hspmd_communicator **at = &g->cuda->communicators->list; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	free_group(g);
}

/* ---- calls */

static int type_of(enum hspmd_dtype dtype)
{
	return dtype == HSPMD_BF16 ? NCCL_BFLOAT16 : dtype == HSPMD_F64 ? NCCL_FLOAT64 : dtype == HSPMD_I32 ? NCCL_INT32 : NCCL_FLOAT32;
}

/* Ensures that the call RING calls ago is complete, so that its events may be reused. */
static int make_room(struct hspmd_communicator *g, struct hspmd_error *err)
{
	uint64_t before = g->issued + 1 > RING ? g->issued + 1 - RING : 0;
	if (!before || g->finished >= before)
		return 0;
	if (hspmd_cuda_event_wait(g->cuda, g->ended[before % RING], err))
		return -1;
	g->finished = before > g->finished ? before : g->finished;
	g->since = 0;
	return 0;
}

static int nccl_begin(struct hspmd_communicator *g, struct hspmd_error *err)
{
	if (g->failed)
		return hspmd_fail(err, "NCCL: the communicator has failed before");
	cudaSetDevice(g->cuda->index);
	if (make_room(g, err))
		return -1;
	cudaError_t status = cudaEventRecord(g->asked, g->cuda->stream);
	if (!status)
		status = cudaStreamWaitEvent(g->stream, g->asked, 0);
	if (!status)
		status = cudaEventRecord(g->began[(g->issued + 1) % RING], g->stream);
	if (status)
		return failed_cuda(g, status, "starting communication", err);
	int started = library()->group_start();
	return started ? failed(g, started, "starting communication", err) : 0;
}

static int called(struct hspmd_communicator *g, int status, const char *what, struct hspmd_error *err)
{
	if (status == NCCL_SUCCESS || status == NCCL_IN_PROGRESS)
		return 0;
	failed(g, status, what, err);
	library()->group_end();
	return -1;
}

static int nccl_send(struct hspmd_communicator *g, int to, const void *data, size_t elements, enum hspmd_dtype dtype,
                     struct hspmd_error *err)
{
	return called(g, library()->send(data, elements, type_of(dtype), to, g->comm, g->stream), "send", err);
}

static int nccl_receive(struct hspmd_communicator *g, int from, void *data, size_t elements, enum hspmd_dtype dtype,
                        struct hspmd_error *err)
{
	return called(g, library()->receive(data, elements, type_of(dtype), from, g->comm, g->stream), "receive", err);
}

static int nccl_broadcast(struct hspmd_communicator *g, int root, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
                          struct hspmd_error *err)
{
	return called(g, library()->broadcast(in, out, elements, type_of(dtype), root, g->comm, g->stream), "broadcast", err);
}

static int nccl_reduce(struct hspmd_communicator *g, int root, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
                       struct hspmd_error *err)
{
	return called(g, library()->reduce(in, out, elements, type_of(dtype), NCCL_SUM, root, g->comm, g->stream), "reduce", err);
}

static int nccl_all_reduce(struct hspmd_communicator *g, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
                           struct hspmd_error *err)
{
	return called(g, library()->all_reduce(in, out, elements, type_of(dtype), NCCL_SUM, g->comm, g->stream), "all-reduce", err);
}

static int nccl_all_gather(struct hspmd_communicator *g, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
                           struct hspmd_error *err)
{
	return called(g, library()->all_gather(in, out, elements, type_of(dtype), g->comm, g->stream), "all-gather", err);
}

static int nccl_reduce_scatter(struct hspmd_communicator *g, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
                               struct hspmd_error *err)
{
	return called(g, library()->reduce_scatter(in, out, elements, type_of(dtype), NCCL_SUM, g->comm, g->stream), "reduce-scatter", err);
}

static int nccl_end(struct hspmd_communicator *g, uint64_t *ticket, struct hspmd_error *err)
{
	if (settle(g, library()->group_end(), "communication", patience(g->cuda), err))
		return -1;
	cudaError_t status = cudaEventRecord(g->ended[(g->issued + 1) % RING], g->stream);
	if (status)
		return failed_cuda(g, status, "communication", err);
	*ticket = ++g->issued;
	return 0;
}

/* On the communicator's stream: what the device computes meanwhile does not wait. */
static int nccl_copy_box(struct hspmd_communicator *g, void *dst, const struct hspmd_box *dst_box, const void *src,
                         const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, struct hspmd_error *err)
{
	struct hspmd_cuda own = *g->cuda;
	own.stream = g->stream;
	if (hspmd_cuda_copy_box(&own, dst, dst_box, src, src_box, part, dtype, false, err))
		return -1;
	cudaError_t status = cudaGetLastError();
	return status ? failed_cuda(g, status, "copying what was received", err) : 0;
}

static int nccl_copies_end(struct hspmd_communicator *g, struct hspmd_error *err)
{
	cudaError_t status = cudaEventRecord(g->ended[g->issued % RING], g->stream);
	return status ? failed_cuda(g, status, "copying what was received", err) : 0;
}

static int nccl_stream_wait(struct hspmd_communicator *g, uint64_t ticket, struct hspmd_error *err)
{
	/* The events of a call that long ago were reused, after it was complete. */
	if (ticket + RING <= g->issued)
		return 0;
	cudaError_t status = cudaStreamWaitEvent(g->cuda->stream, g->ended[ticket % RING], 0);
	return status ? failed_cuda(g, status, "waiting for communication", err) : 0;
}

const struct hspmd_communicator_ops hspmd_nccl_communicators = {
	.probe = nccl_probe,
	.device_id = nccl_device_id,
	.watch = nccl_watch,
	.unwatch = nccl_unwatch,
	.unique_id = nccl_unique_id,
	.init = nccl_init,
	.init_poll = nccl_init_poll,
	.close = nccl_close,
	.begin = nccl_begin,
	.send = nccl_send,
	.receive = nccl_receive,
	.broadcast = nccl_broadcast,
	.reduce = nccl_reduce,
	.all_reduce = nccl_all_reduce,
	.all_gather = nccl_all_gather,
	.reduce_scatter = nccl_reduce_scatter,
	.end = nccl_end,
	.copy_box = nccl_copy_box,
	.copies_end = nccl_copies_end,
	.stream_wait = nccl_stream_wait,
};
