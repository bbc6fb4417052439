/* SPDX-License-Identifier: Apache-2.0 */
/* Communication that overlaps computation, in whole programs: one of two devices is held back until the other has done something that is
 * only possible without waiting, or is kept inside a kernel until a message has arrived. If anything waits that should not, both wait
 * for ever, which a deadline ends. Losses equal those of devices that were not held back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "runtime/exec/execute.h"
#include "runtime/model/model.h"
#include "tests/unit/trainer.h"

#define DEVICES 2
#define STEPS 3
#define LIMIT_S 60
#define MESSAGES 4 /* maximum number of messages waited for at a time */

#define MESSAGE_BYTES (16 * 24 * sizeof(float)) /* between stages: positions, and trainer_gpt2's width */

struct scene;

/* The state of one device. */
struct member {
	struct scene *s;
	int number;
	struct hspmd_device *device;
	struct hspmd_device_ops ops; /* the device's functions, wrapped by ours */
	struct hspmd_transport_ops flow_ops;
	struct hspmd_program *program;
	struct hspmd_timeline *timeline;
	struct hspmd_transport *transports[2];
	int64_t step;
	bool fresh;              /* the step has not begun */
	int kernels;             /* started in this step */
	void *awaited[MESSAGES]; /* destinations of messages between operators that have not arrived */
	int came;                /* arrived in this step */
	pthread_t thread;
	struct hspmd_error err;
};

struct span {
	double began, ended;
};

enum event { FIRST, SECOND, EVENTS };

/* Called in the device's thread when a step begins and before and after every kernel, and in any thread when a message has arrived or
 * the timeline is updated. */
struct plot {
	void (*begins)(struct member *m);
	void (*before)(struct member *m, enum hspmd_opcode op);
	void (*after)(struct member *m, enum hspmd_opcode op);
	void (*came)(struct member *m);
	void (*told)(struct member *m, enum hspmd_lane lane, int instruction, struct span span);
};

struct scene {
	const struct plot *plot;
	struct hspmd_model *model;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_job job;
	struct member members[DEVICES];
	struct hspmd_address addresses[2][DEVICES];
	int rank_of[DEVICES], voters[DEVICES];
	atomic_int failed;
	pthread_mutex_t lock;
	pthread_cond_t more;
	int64_t happened[EVENTS]; /* number of steps in which it happened */
	int opened;
	bool late;
	struct span transfer, computation; /* the latest ones in the timeline */
	int intersections;
	double losses[STEPS];
};

static struct scene *scene; /* kernels have no context argument */
static const struct hspmd_device_ops *cpu;

/* ---- events */

static void happens(struct member *m, enum event e)
{
	pthread_mutex_lock(&m->s->lock);
	m->s->happened[e] = m->step + 1;
	pthread_cond_broadcast(&m->s->more);
	pthread_mutex_unlock(&m->s->lock);
}

static bool has_happened(struct member *m, enum event e)
{
	pthread_mutex_lock(&m->s->lock);
	bool has = m->s->happened[e] > m->step;
	pthread_mutex_unlock(&m->s->lock);
	return has;
}

static void await(struct member *m, enum event e)
{
	struct scene *s = m->s;
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += LIMIT_S;
	pthread_mutex_lock(&s->lock);
	while (s->happened[e] <= m->step && !s->late)
		if (pthread_cond_timedwait(&s->more, &s->lock, &until) == ETIMEDOUT)
			s->late = true;
	if (s->late)
		atomic_store(&s->failed, 1);
	pthread_mutex_unlock(&s->lock);
}

/* ---- wrappers of device, transport and timeline */

static struct member *member_with(const struct hspmd_device *dev)
{
	return &scene->members[scene->members[1].device == dev];
}

static int zero_first(struct hspmd_device *dev, void *dst, size_t bytes, struct hspmd_error *err)
{
	struct member *m = member_with(dev);
	bool begins = m->fresh;
	m->fresh = false;
	if (begins && scene->plot->begins)
		scene->plot->begins(m);
	return cpu->zero(dev, dst, bytes, err);
}

static int run_between(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct member *m = member_with(dev);
	if (scene->plot->before)
		scene->plot->before(m, op);
	m->kernels++;
	int status = cpu->run(dev, op, args, err);
	if (scene->plot->after)
		scene->plot->after(m, op);
	return status;
}

/* Mark the values that an operator waits for, to observe when they are written. */
static int mark_and_receive(struct hspmd_transport *t, int from, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r,
                            struct hspmd_error *err)
{
	struct member *m = &scene->members[t->options.rank];
	for (int k = 0; k < MESSAGES && bytes == MESSAGE_BYTES; k++)
		if (!m->awaited[k]) {
			m->awaited[k] = memset(data, 0xff, bytes);
			break;
		}
	return hspmd_transport_memory.receive(t, from, tag, data, bytes, r, err);
}

static void progress_and_look(struct hspmd_transport *t)
{
	static const unsigned char mark[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
	struct member *m = &scene->members[t->options.rank];
	hspmd_transport_memory.progress(t);
	for (int k = 0; k < MESSAGES; k++)
		if (m->awaited[k] && memcmp(m->awaited[k], mark, sizeof mark) != 0) {
			m->awaited[k] = NULL;
			m->came++;
			if (scene->plot->came)
				scene->plot->came(m);
		}
}

void __real_hspmd_timeline_add(struct hspmd_timeline *t, enum hspmd_lane lane, int instruction, double began, double ended);
void __wrap_hspmd_timeline_add(struct hspmd_timeline *t, enum hspmd_lane lane, int instruction, double began, double ended);

void __wrap_hspmd_timeline_add(struct hspmd_timeline *t, enum hspmd_lane lane, int instruction, double began, double ended)
{
	__real_hspmd_timeline_add(t, lane, instruction, began, ended);
	if (scene->plot->told)
		scene->plot->told(&scene->members[scene->members[1].timeline == t], lane, instruction, (struct span){ began, ended });
}

/* ---- devices */

static int read_tokens(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	(void)context;
	(void)err;
	int64_t shift = start + !strcmp(name, HSPMD_TENSOR_TARGETS);
	for (int64_t i = 0; i < count; i++)
		((int32_t *)to)[i] = (int32_t)((number * 7 + (shift + i) * (shift + i)) % 250);
	return 0;
}

static int open_member(struct member *m)
{
	struct scene *s = m->s;
	struct hspmd_graph_source source = hspmd_graph_source_model(s->model);
	struct hspmd_transport_options o = { .rank = m->number, .size = DEVICES, .abort = &s->failed, .timeout_s = 2 * LIMIT_S };
	if (cpu->open(&m->device, 0, 1, &m->err))
		return -1;
	m->ops = *cpu;
	m->ops.run = run_between;
	m->ops.zero = zero_first;
	m->device->ops = &m->ops;
	m->program = hspmd_program_build(&source, s->plan, s->cluster, m->number, m->device, &m->err);
	if (!m->program || !(m->timeline = hspmd_timeline_create(m->program->instruction_count)))
		return -1;
	for (int k = 0; k < 2; k++)
		if (hspmd_transport_memory.open(&o, &m->transports[k], &m->err) ||
		    m->transports[k]->ops->address(m->transports[k], &s->addresses[k][m->number], &m->err))
			return -1;
	m->flow_ops = hspmd_transport_memory;
	m->flow_ops.receive = mark_and_receive;
	m->flow_ops.progress = progress_and_look;
	m->transports[0]->ops = &m->flow_ops;
	return 0;
}

static int train(struct member *m)
{
	struct scene *s = m->s;
	struct hspmd_executor_options o = { .program = m->program,
		                            .device = m->device,
		                            .transport = m->transports[0],
		                            .overlap_transport = m->transports[1],
		                            .rank_of = s->rank_of,
		                            .device_count = DEVICES,
		                            .voters = s->voters,
		                            .voter_count = DEVICES,
		                            .samples = { read_tokens, NULL },
		                            .job = &s->job,
		                            .timeline = m->timeline };
	for (int k = 0; k < 2; k++)
		if (m->transports[k]->ops->connect(m->transports[k], s->addresses[k], &m->err))
			return -1;
	struct hspmd_executor *ex = hspmd_executor_create(&o, &m->err);
	int status = ex ? hspmd_executor_initialise(ex, &m->err) || hspmd_executor_gather_parameters(ex, 0, &m->err) : -1;
	for (m->step = 0; !status && m->step < STEPS; m->step++) {
		struct hspmd_totals own = { 0 }, all;
		struct hspmd_step_times times;
		m->fresh = true;
		m->kernels = 0;
		m->came = 0;
		status = hspmd_executor_gradients(ex, m->step, &own, &times, &m->err) ||
		         hspmd_executor_vote(ex, m->step, &own, &all, &m->err) || hspmd_executor_commit(ex, m->step, &all, &m->err) ||
		         hspmd_executor_gather_parameters(ex, m->step + 1, &m->err);
		if (!m->number && !status)
			s->losses[m->step] = all.loss;
	}
	hspmd_executor_destroy(ex);
	return status ? -1 : 0;
}

static void *run_member(void *argument)
{
	struct member *m = argument;
	struct scene *s = m->s;
	int status = open_member(m);
	pthread_mutex_lock(&s->lock);
	s->opened++;
	if (status)
		atomic_store(&s->failed, 1);
	pthread_cond_broadcast(&s->more);
	while (s->opened < DEVICES)
		pthread_cond_wait(&s->more, &s->lock);
	pthread_mutex_unlock(&s->lock);
	if (!atomic_load(&s->failed) && train(m))
		atomic_store(&s->failed, 1);
	for (int k = 0; k < 2; k++)
		if (m->transports[k])
			m->transports[k]->ops->close(m->transports[k]);
	if (m->device)
		m->device->ops->close(m->device);
	return NULL;
}

static void set_up(struct scene *s, const char *model, const char *plan, const struct plot *plot)
{
	static const char cluster[] =
	        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
	        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":2}]}],"
	        "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";
	struct hspmd_error err = { "" };
	json_t *c = json_loads(cluster, 0, NULL), *p = json_loads(plan, 0, NULL), *m = json_loads(model, 0, NULL);
	*s = (struct scene){ .plot = plot, .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER };
	s->job = (struct hspmd_job){
		.seed = 5, .global_batch = 4, .optimizer = { .lr = 2e-3, .values = { 0.9, 0.95, 1e-8 }, .clip = 1 }, .steps = STEPS
	};
	s->cluster = hspmd_cluster_from_json(c, "cluster", &err);
	s->model = s->cluster ? hspmd_model_from_json(m, "model", &err) : NULL;
	s->plan = s->model ? hspmd_plan_from_json(p, "plan", s->cluster, hspmd_model_layers(s->model), &err) : NULL;
	json_decref(c);
	json_decref(p);
	json_decref(m);
	if (!s->plan)
		fail_msg("%s", err.text);
	for (int d = 0; d < DEVICES; d++) {
		s->members[d] = (struct member){ .s = s, .number = d, .fresh = true };
		s->rank_of[d] = s->voters[d] = d;
	}
}

/* Hold devices back as the plot says. */
static void play(struct scene *s, const char *model, const char *plan, const struct plot *plot)
{
	set_up(s, model, plan, plot);
	scene = s;
	for (int d = 0; d < DEVICES; d++)
		assert_int_equal(pthread_create(&s->members[d].thread, NULL, run_member, &s->members[d]), 0);
	for (int d = 0; d < DEVICES; d++)
		pthread_join(s->members[d].thread, NULL);
	bool late = s->late;
	for (int d = 0; d < DEVICES; d++) {
		struct member *m = &s->members[d];
		if (!late && m->err.text[0])
			fail_msg("device %d: %s", d, m->err.text);
		hspmd_program_destroy(m->program);
		hspmd_timeline_destroy(m->timeline);
		for (int k = 0; k < 2; k++)
			free(s->addresses[k][d].data);
	}
	hspmd_plan_destroy(s->plan);
	hspmd_model_destroy(s->model);
	hspmd_cluster_destroy(s->cluster);
	if (late)
		fail_msg("one device waits for what the other does after it");
}

/* The plot changes no bit. */
static void same_losses(const char *model, const char *plan, const struct plot *plot, int intersections)
{
	static const struct plot nothing;
	struct scene held, alone;
	struct hspmd_error err;
	cpu = hspmd_device_find("cpu", &err);
	assert_non_null(cpu);
	play(&alone, model, plan, &nothing);
	play(&held, model, plan, plot);
	assert_memory_equal(held.losses, alone.losses, sizeof held.losses);
	assert_true(alone.losses[0] > 0);
	assert_int_equal(held.intersections, intersections);
}

#define PLAN(pipelines)                                                                                                                    \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"         \
	"\"pipelines\":" pipelines "}"
static const char stages[] =
        PLAN("[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0\"]},{\"layers\":[2,5],\"devices\":[\"n:1\"]}]}]");
static const char ring[] = PLAN("[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"],\"context\":2}]}]");
static const char replicas[] = PLAN("[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:0\"]}]},"
                                    "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n:1\"]}]}]");

/* ---- a stage continues to send, whether or not the next one receives */

static int kernels_in(const struct hspmd_program *p, int entries)
{
	int count = 0;
	for (size_t i = 0; i < p->vote; i++)
		count += p->instructions[i].kind == HSPMD_INSTRUCTION_RUN && p->instructions[i].schedule_index < entries;
	return count;
}

static void wait_for_two_passes(struct member *m)
{
	if (m->number == 1)
		await(m, FIRST);
}

static void tell_of_two_passes(struct member *m, enum hspmd_opcode op)
{
	(void)op;
	if (m->number == 0 && !m->fresh && m->kernels == kernels_in(m->program, 2))
		happens(m, FIRST);
}

static void sends_beside_passes(void **state)
{
	(void)state;
	same_losses(trainer_gpt2, stages, &(struct plot){ .begins = wait_for_two_passes, .after = tell_of_two_passes }, 0);
}

/* ---- a message arrives while the previous one is processed */

/* It is not sent before the other device is in its kernel. */
static void stay_until_the_next_has_come(struct member *m, enum hspmd_opcode op)
{
	(void)op;
	if (m->number == 1 && m->kernels == 0 && !m->fresh) {
		happens(m, SECOND);
		await(m, FIRST);
	}
	if (m->number == 0 && !m->fresh && m->kernels == kernels_in(m->program, 2) - 1)
		await(m, SECOND);
}

static void tell_of_two_messages(struct member *m)
{
	if (m->number == 1 && m->came == 2)
		happens(m, FIRST);
}

static void receives_beside_passes(void **state)
{
	(void)state;
	same_losses(trainer_gpt2, stages, &(struct plot){ .before = stay_until_the_next_has_come, .came = tell_of_two_messages }, 0);
}

/* ---- keys and values travel around the ring while a device computes on its own */

static void wait_for_attention(struct member *m)
{
	if (m->number == 0)
		await(m, FIRST);
}

static void attend_until_keys_have_come(struct member *m, enum hspmd_opcode op)
{
	if (m->number == 1 && op == HSPMD_OP_ATTENTION && !has_happened(m, FIRST)) {
		happens(m, FIRST);
		await(m, SECOND);
	}
}

/* Returns true if a span of computation that was recorded after a transfer's overlapped with it. */
static void meets_transfer(struct scene *s, struct span span)
{
	s->intersections += span.began < s->transfer.ended && s->transfer.began < span.ended;
	s->transfer = (struct span){ 0 };
}

static void see_ring(struct member *m, enum hspmd_lane lane, int instruction, struct span span)
{
	const struct hspmd_instruction *in = &m->program->instructions[instruction];
	if (m->number != 1)
		return;
	if (lane == HSPMD_LANE_TRANSFERS && in->transfer->steps[in->step].kind == HSPMD_COMM_BATCHED && !has_happened(m, SECOND)) {
		m->s->transfer = span;
		happens(m, SECOND);
	} else if (lane == HSPMD_LANE_COMPUTE && in->opcode == HSPMD_OP_ATTENTION && m->s->transfer.ended > 0) {
		meets_transfer(m->s, span);
	}
}

static void ring_beside_attention(void **state)
{
	(void)state;
	same_losses(trainer_llama, ring,
	            &(struct plot){ .begins = wait_for_attention, .before = attend_until_keys_have_come, .told = see_ring }, STEPS);
}

/* ---- gradients are summed while those of earlier layers are computed */

static void wait_for_last_kernel(struct member *m)
{
	if (m->number == 1)
		await(m, FIRST);
}

static void compute_until_a_sum_is_done(struct member *m, enum hspmd_opcode op)
{
	(void)op;
	if (m->number == 0 && !m->fresh && m->kernels == kernels_in(m->program, INT32_MAX) - 1) {
		happens(m, FIRST);
		await(m, SECOND);
	}
}

static void see_sum(struct member *m, enum hspmd_lane lane, int instruction, struct span span)
{
	const struct hspmd_instruction *in = &m->program->instructions[instruction];
	if (m->number != 0)
		return;
	if (lane == HSPMD_LANE_SUMS && !has_happened(m, SECOND)) {
		m->s->transfer = span;
		happens(m, SECOND);
	} else if (lane == HSPMD_LANE_COMPUTE && in->kind == HSPMD_INSTRUCTION_RUN && m->s->transfer.ended > 0) {
		meets_transfer(m->s, span);
	}
}

static void sums_beside_backward_passes(void **state)
{
	(void)state;
	static const char model[] =
	        "{\"model_type\":\"gpt2\",\"n_embd\":128,\"n_layer\":4,\"n_head\":4,\"n_positions\":32,\"vocab_size\":257,"
	        "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
	same_losses(model, replicas,
	            &(struct plot){ .begins = wait_for_last_kernel, .before = compute_until_a_sum_is_done, .told = see_sum }, STEPS);
}

/* ---- parameters of a layer are gathered while the layer before it computes, forward and backward */

static const char in_parts[] =
        "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":3,"
        "\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]},"
        "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:1\"]}]}]}";

/* The first attention of a step is that of layer 1, and the first backward that of layer 3. */
static void attend_until_the_next_layer_has_come(struct member *m, enum hspmd_opcode op)
{
	if (m->number == 0 && op == HSPMD_OP_ATTENTION)
		await(m, FIRST);
	if (m->number == 0 && op == HSPMD_OP_ATTENTION_GRAD)
		await(m, SECOND);
}

static void see_gathered(struct member *m, enum hspmd_lane lane, int instruction, struct span span)
{
	const struct hspmd_instruction *in = &m->program->instructions[instruction];
	(void)span;
	if (m->number == 0 && lane == HSPMD_LANE_TRANSFERS && in->ahead && in->layer == 2 && in->micro_batch == 0)
		happens(m, in->backward ? SECOND : FIRST);
}

static void gathers_beside_the_layer_before(void **state)
{
	(void)state;
	same_losses(trainer_gpt2, in_parts, &(struct plot){ .before = attend_until_the_next_layer_has_come, .told = see_gathered }, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sends_beside_passes),
		cmocka_unit_test(receives_beside_passes),
		cmocka_unit_test(ring_beside_attention),
		cmocka_unit_test(sums_beside_backward_passes),
		cmocka_unit_test(gathers_beside_the_layer_before),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
