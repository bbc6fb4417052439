/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/train_local.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/program/program_set.h"

struct shared {
	const struct hspmd_train_local_options *o;
	int members;
	int *device_of, *rank_of, *voters;  /* by rank; by device; all ranks */
	struct hspmd_address *addresses[2]; /* of both transports, by rank */
	struct hspmd_address *devcomm[2];   /* and of device-to-device communication */
	atomic_int failed;
	pthread_mutex_t lock;
	pthread_cond_t more;
	int opened, connected,
	        expected;         /* numbers of members that are ready to connect and that have connected, and the number of all members */
	struct hspmd_error first; /* the first error of any member */
};

struct member {
	struct shared *s;
	int rank;
	pthread_t thread;
	struct hspmd_device *device;
	struct hspmd_program_set *programs;
	struct hspmd_transport *transports[2]; /* of the passes, and of overlapping communication */
	struct hspmd_communicator_cache *communicators;
	struct hspmd_devcomm *devcomm[2];
	struct hspmd_executor *executor;
};

static void report(struct shared *s, const struct hspmd_error *err)
{
	pthread_mutex_lock(&s->lock);
	if (!atomic_load(&s->failed))
		s->first = *err;
	atomic_store(&s->failed, 1);
	pthread_mutex_unlock(&s->lock);
}

static const struct hspmd_program *program_of_step(void *member, int64_t step)
{
	struct member *m = member;
	const struct hspmd_train_local_options *o = m->s->o;
	struct hspmd_error ignored; /* the step itself will tell */
	if (o->length_of_sample)
		return hspmd_program_set_for_step(m->programs, step, o->length_of_sample, o->length_context, &ignored);
	int length = o->length_count ? o->length_of_step(o->length_context, step) : 0;
	return length >= 0 && length < o->length_count ? hspmd_program_set_at(m->programs, length) : m->programs->programs[0];
}

/* Change to the program of a step, and gather the parameters for it. */
static int use_step(struct member *m, int64_t step, struct hspmd_error *err)
{
	const struct hspmd_train_local_options *o = m->s->o;
	if (!o->length_count)
		return hspmd_executor_gather_parameters(m->executor, step, err);
	if (o->length_of_sample) {
		const struct hspmd_program *p = hspmd_program_set_for_step(m->programs, step, o->length_of_sample, o->length_context, err);
		return !p || hspmd_executor_set_program(m->executor, p, err) || hspmd_executor_gather_parameters(m->executor, step, err)
		               ? -1
		               : 0;
	}
	int length_of_step = o->length_of_step(o->length_context, step);
	if (length_of_step < 0 || length_of_step >= o->length_count)
		return hspmd_fail(err, "step %" PRId64 ": length number %d of %d", step, length_of_step, o->length_count);
	return hspmd_executor_set_program(m->executor, hspmd_program_set_at(m->programs, length_of_step), err) ||
	                       hspmd_executor_gather_parameters(m->executor, step, err)
	               ? -1
	               : 0;
}

static int open_devcomm(struct member *m, int lane, double timeout_s, struct hspmd_error *err)
{
	const struct hspmd_train_local_options *o = m->s->o;
	struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(o->cluster);
	struct hspmd_devcomm_options d = {
		.device = m->device,
		.cache = m->communicators,
		.lane = lane,
		.rank = m->rank,
		.size = m->s->members,
		.rank_of = m->s->rank_of,
		.count = o->cluster->device_count,
		.cost = &cost,
		.abort = &m->s->failed,
		.timeout_s = timeout_s,
	};
	struct hspmd_devcomm_use *uses = hspmd_program_set_devcomm_uses(m->programs, lane, &d.use_count);
	d.uses = uses;
	int status = uses ? hspmd_devcomm_open(&d, &m->devcomm[lane], err) : hspmd_fail_memory(err, "training");
	free(uses);
	return status ? -1 : hspmd_devcomm_address(m->devcomm[lane], &m->s->devcomm[lane][m->rank], err);
}

static int open_member(struct member *m, struct hspmd_error *err)
{
	const struct hspmd_train_local_options *o = m->s->o;
	int device = m->s->device_of[m->rank];
	enum hspmd_device_kind kind = o->cluster->types[o->cluster->devices[device].type].kind;
	const struct hspmd_device_ops *ops = hspmd_device_find(hspmd_device_kind_names[kind], err);
	int threads = o->threads_of ? o->threads_of[device] : o->threads;
	if (!ops || ops->open(&m->device, o->cluster->devices[device].index, threads > 0 ? threads : 1, err))
		return -1;
	struct hspmd_step_lengths lengths = { o->lengths, o->length_count, NULL, o->length_of_sample };
	m->programs = hspmd_program_set_build(&o->source, o->plan, o->cluster, device, m->device, &lengths, err);
	if (!m->programs)
		return -1;
	if (m->s->members == 1)
		return 0;
	struct hspmd_transport_options t = {
		.rank = m->rank,
		.size = m->s->members,
		.abort = &m->s->failed,
		.timeout_s = o->timeout_s > 0 ? o->timeout_s : 60,
	};
	if (!(m->communicators = hspmd_communicator_cache_create()))
		return hspmd_fail_memory(err, "training");
	for (int k = 0; k < 2; k++)
		if (hspmd_transport_memory.open(&t, &m->transports[k], err) ||
		    m->transports[k]->ops->address(m->transports[k], &m->s->addresses[k][m->rank], err) ||
		    open_devcomm(m, k, t.timeout_s, err))
			return -1;
	return 0;
}

static int connect_member(struct member *m, struct hspmd_error *err)
{
	for (int k = 0; k < 2; k++)
		if ((m->transports[k] && m->transports[k]->ops->connect(m->transports[k], m->s->addresses[k], err)) ||
		    (m->devcomm[k] &&
		     (hspmd_devcomm_preconnect(m->devcomm[k], m->s->devcomm[k], err) || hspmd_devcomm_wait_ready(m->devcomm[k], err))))
			return -1;
	return 0;
}

static int train(struct member *m, struct hspmd_error *err)
{
	const struct hspmd_train_local_options *o = m->s->o;
	struct hspmd_executor_options eo = {
		.program = m->programs->programs[0],
		.device = m->device,
		.transport = m->transports[0],
		.overlap_transport = m->transports[1],
		.devcomm = { m->devcomm[0], m->devcomm[1] },
		.rank_of = m->s->rank_of,
		.device_count = o->cluster->device_count,
		.voters = m->s->voters,
		.voter_count = m->s->members,
		.samples = o->samples,
		.program_of_step = program_of_step,
		.program_context = m,
		.job = o->job,
	};
	if (!(m->executor = hspmd_executor_create(&eo, err)) || hspmd_executor_initialise(m->executor, err))
		return -1;
	for (int64_t step = 0; step < o->steps; step++) {
		struct hspmd_totals all = { 0 };
		struct hspmd_step_times times;
		if (use_step(m, step, err) || hspmd_executor_step(m->executor, step, &all, &times, err))
			return -1;
		if (m->rank == 0 && o->on_loss)
			o->on_loss(o->context, step, all.loss);
	}
	if ((!m->programs->mixed && hspmd_executor_set_program(m->executor, m->programs->programs[0], err)) ||
	    hspmd_executor_gather_parameters(m->executor, o->steps, err))
		return -1;
	if (!o->on_end)
		return 0;
	pthread_mutex_lock(&m->s->lock);
	int status = o->on_end(o->context, m->programs->programs[0], m->executor, m->device, err);
	pthread_mutex_unlock(&m->s->lock);
	return status;
}

/* Wait until all members have got this far, or one has failed. */
static void wait_for_all(struct shared *s, int *arrived)
{
	pthread_mutex_lock(&s->lock);
	++*arrived;
	pthread_cond_broadcast(&s->more);
	while (*arrived < s->expected)
		pthread_cond_wait(&s->more, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

static void *run_member(void *argument)
{
	struct member *m = argument;
	struct shared *s = m->s;
	struct hspmd_error err;
	if (open_member(m, &err))
		report(s, &err);
	wait_for_all(s, &s->opened);
	if (!atomic_load(&s->failed) && connect_member(m, &err))
		report(s, &err);
	wait_for_all(s, &s->connected); /* a member without steps to train closes at once, and others could then no longer connect to it */
	if (!atomic_load(&s->failed) && train(m, &err))
		report(s, &err);
	for (int k = 0; k < 2 && atomic_load(&s->failed); k++)
		hspmd_devcomm_abort(m->devcomm[k]);
	for (int k = 0; k < 2; k++)
		hspmd_devcomm_close(m->devcomm[k], atomic_load(&s->failed));
	hspmd_executor_destroy(m->executor);
	hspmd_communicator_cache_destroy(m->communicators);
	for (int k = 0; k < 2; k++)
		if (m->transports[k])
			m->transports[k]->ops->close(m->transports[k]);
	hspmd_program_set_destroy(m->programs);
	if (m->device)
		m->device->ops->close(m->device);
	return NULL;
}

/* Assign ranks in the plan's order; each device once, even if several chunks of an interleaved plan name it. */
static void number_members(struct shared *s)
{
	const struct hspmd_plan *p = s->o->plan;
	for (int q = 0; q < p->pipeline_count; q++)
		for (int g = 0; g < p->pipelines[q].stage_count / p->virtual_stages; g++)
			for (int d = 0; d < p->pipelines[q].stages[g].device_count; d++) {
				s->device_of[s->members] = p->pipelines[q].stages[g].devices[d];
				s->rank_of[s->device_of[s->members]] = s->members;
				s->voters[s->members] = s->members;
				s->members++;
			}
}

static void run_all(struct shared *s, struct member *members)
{
	int started = 0;
	s->expected = s->members;
	while (started < s->members) {
		members[started] = (struct member){ .s = s, .rank = started };
		if (pthread_create(&members[started].thread, NULL, run_member, &members[started]))
			break;
		started++;
	}
	if (started < s->members) {
		struct hspmd_error err;
		hspmd_fail(&err, "cannot start a thread for each of %d devices", s->members);
		report(s, &err);
		pthread_mutex_lock(&s->lock);
		s->expected = started; /* the other threads could not be started */
		pthread_cond_broadcast(&s->more);
		pthread_mutex_unlock(&s->lock);
	}
	for (int r = 0; r < started; r++)
		pthread_join(members[r].thread, NULL);
}

int hspmd_train_local(const struct hspmd_train_local_options *options, struct hspmd_error *err)
{
	size_t devices = (size_t)options->cluster->device_count;
	struct shared s = { .o = options, .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER };
	s.device_of = hspmd_calloc(devices, sizeof *s.device_of);
	s.rank_of = hspmd_calloc(devices, sizeof *s.rank_of);
	s.voters = hspmd_calloc(devices, sizeof *s.voters);
	for (int k = 0; k < 2; k++) {
		s.addresses[k] = hspmd_calloc(devices, sizeof *s.addresses[k]);
		s.devcomm[k] = hspmd_calloc(devices, sizeof *s.devcomm[k]);
	}
	struct member *members = hspmd_calloc(devices, sizeof *members);
	int status = 0;
	if (!s.device_of || !s.rank_of || !s.voters || !s.addresses[0] || !s.addresses[1] || !s.devcomm[0] || !s.devcomm[1] || !members) {
		status = hspmd_fail_memory(err, "training");
	} else {
		memset(s.rank_of, -1, devices * sizeof *s.rank_of);
		number_members(&s);
		run_all(&s, members);
		if (atomic_load(&s.failed)) {
			if (err)
				*err = s.first;
			status = -1;
		}
	}
	for (int k = 0; k < 2; k++) {
		for (size_t r = 0; r < devices; r++) {
			free(s.addresses[k] ? s.addresses[k][r].data : NULL);
			free(s.devcomm[k] ? s.devcomm[k][r].data : NULL);
		}
		free(s.addresses[k]);
		free(s.devcomm[k]);
	}
	free(s.device_of);
	free(s.rank_of);
	free(s.voters);
	free(members);
	return status;
}
