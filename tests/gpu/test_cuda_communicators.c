/* SPDX-License-Identifier: Apache-2.0 */
/* Communication directly between CUDA devices: steps of all kinds, whole models, and what happens if a member is gone, NCCL is missing or
 * unusable, or the next generation wants the same communicators. Runs on emulated devices with an emulated NCCL (emulate/nccl.cc), on real
 * ones with the installed NCCL, as far as the GPUs suffice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/comm.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/comm_scene.h"
#include "tests/unit/expert_plans.h"
#include "tests/unit/trainer.h"

static void *played; /* the emulated NCCL */

static const struct hspmd_device_ops *cuda(void)
{
	struct hspmd_error err;
	const struct hspmd_device_ops *ops = hspmd_device_find("cuda", &err);
	assert_non_null(ops);
	return ops;
}

static struct hspmd_device *open_device(int rank)
{
	struct hspmd_device *dev = NULL;
	struct hspmd_error err;
	return cuda()->open(&dev, rank, 0, &err) ? NULL : dev;
}

static void close_device(struct hspmd_device *dev)
{
	dev->ops->close(dev);
}

/* ---- NCCL's version */

static void check_refused(struct hspmd_device *dev, const char *library, const char *version, const char *word)
{
	char kind[HSPMD_COMMUNICATOR_KIND_BYTES];
	struct hspmd_error err = { "" };
	char *before = strdup(getenv("HSPMD_NCCL"));
	if (library)
		setenv("HSPMD_NCCL", library, 1);
	if (version)
		setenv("FAKE_NCCL_VERSION", version, 1);
	assert_int_equal(dev->ops->communicators->probe(dev, kind, &err), -1);
	if (!strstr(err.text, word))
		fail_msg("\"%s\" does not say \"%s\"", err.text, word);
	setenv("HSPMD_NCCL", before, 1);
	unsetenv("FAKE_NCCL_VERSION");
	free(before);
}

/* Runs first: a library, once loaded, stays loaded. */
static void versions(void **state)
{
	(void)state;
	struct hspmd_device *dev = open_device(0);
	char kind[HSPMD_COMMUNICATOR_KIND_BYTES];
	struct hspmd_error err;
	check_refused(dev, "", NULL, "names none");
	check_refused(dev, "/nowhere/libnccl.so", NULL, "cannot be loaded");
	check_refused(dev, "libm.so.6", NULL, "is not NCCL");
	check_refused(dev, NULL, "21308", "2.14 or newer");
	check_refused(dev, NULL, "22803", "2.28.9 or newer");
	check_refused(dev, NULL, "22808", "2.28.9 or newer");
	assert_int_equal(dev->ops->communicators->probe(dev, kind, &err), 0);
	assert_string_equal(kind, "nccl 2.27");
	close_device(dev);
}

/* ---- steps */

static void steps(void **state)
{
	(void)state;
	static struct scene_ground ground = { .open = open_device, .close = close_device, .devcomm = true, .longest = 150 };
	int trials = getenv("HSPMD_LONG") ? 200 : 30;
	scene_use(&ground);
	scene_sums(trials);
	scene_gathers(trials);
	scene_batched(trials);
	scene_local_and_pair(trials);
	assert_true(ground.directs > trials);
}

/* ---- two devices that sum a row */

#define ROW 1000
#define TAG 256

struct pair {
	struct hspmd_comm_step step;
	struct hspmd_layout layout[2];
	struct hspmd_transfer transfer;
	int members[2], rank_of[2];
	struct hspmd_box box[2];
	atomic_int abort;
	double timeout_s;
	size_t cut; /* bytes that are missing at the end of member 1's announcement */
	struct hspmd_communicator_cache *cache[2];
	struct hspmd_device *dev[2];
	struct hspmd_devcomm *devcomm[2];
	struct hspmd_transport *transport[2];
	struct hspmd_comm *comm[2];
	float *row[2];
};

static void open_pair(struct pair *p, struct hspmd_comm_step *step, double timeout_s)
{
	memset(p, 0, sizeof *p);
	p->members[1] = p->rank_of[1] = 1;
	for (int r = 0; r < 2; r++)
		p->box[r] = (struct hspmd_box){ .rank = 1, .hi = { ROW } };
	p->step = *step;
	p->step.members = p->members;
	p->step.member_count = 2;
	p->step.in = p->step.out = p->box;
	p->step.output = 1;
	for (int v = 0; v < 2; v++)
		p->layout[v] = (struct hspmd_layout){ 2, p->members, p->box };
	p->transfer = (struct hspmd_transfer){ .element_bytes = 4, .value_count = 2, .layout = p->layout };
	p->timeout_s = timeout_s;
	for (int r = 0; r < 2; r++) {
		p->dev[r] = open_device(r);
		p->cache[r] = hspmd_communicator_cache_create();
		p->row[r] = cuda()->allocate(p->dev[r], ROW * sizeof(float), NULL);
		assert_non_null(p->row[r]);
	}
}

static void close_pair(struct pair *p)
{
	for (int r = 0; r < 2; r++) {
		hspmd_communicator_cache_destroy(p->cache[r]);
		cuda()->release(p->dev[r], p->row[r]);
		close_device(p->dev[r]);
	}
}

/* Begins a generation: both members open, exchange their addresses, and connect. Returns -1 and err if one of them cannot. */
static int begin(struct pair *p, uint64_t other_tag, struct hspmd_error *err)
{
	struct hspmd_address own[2], devcomm[2];
	int rv = 0;
	for (int r = 0; r < 2; r++) {
		struct hspmd_devcomm_use use = { &p->step, r ? other_tag : TAG };
		struct hspmd_devcomm_options o = {
			.device = p->dev[r],
			.cache = p->cache[r],
			.rank = r,
			.size = 2,
			.rank_of = p->rank_of,
			.count = 2,
			.uses = &use,
			.use_count = 1,
			.abort = &p->abort,
			.timeout_s = p->timeout_s,
		};
		struct hspmd_transport_options t = { .rank = r, .size = 2, .abort = &p->abort, .timeout_s = 60 };
		assert_int_equal(hspmd_devcomm_open(&o, &p->devcomm[r], err), 0);
		assert_non_null(p->devcomm[r]);
		assert_int_equal(hspmd_devcomm_address(p->devcomm[r], &devcomm[r], err), 0);
		devcomm[r].size -= r == 1 ? p->cut : 0;
		assert_int_equal(hspmd_transport_memory.open(&t, &p->transport[r], err), 0);
		assert_int_equal(hspmd_transport_memory.address(p->transport[r], &own[r], err), 0);
		p->comm[r] = hspmd_comm_create(p->dev[r], p->transport[r], p->rank_of, 2, r, err);
		assert_non_null(p->comm[r]);
		hspmd_comm_use_devcomm(p->comm[r], p->devcomm[r]);
	}
	for (int r = 0; r < 2 && !rv; r++)
		rv = hspmd_transport_memory.connect(p->transport[r], own, err) || hspmd_devcomm_preconnect(p->devcomm[r], devcomm, err) ? -1
		                                                                                                                        : 0;
	for (int r = 0; r < 2 && !rv; r++)
		rv = hspmd_devcomm_wait_ready(p->devcomm[r], err);
	for (int r = 0; r < 2; r++) {
		free(own[r].data);
		free(devcomm[r].data);
	}
	return rv;
}

static void end(struct pair *p, bool broken)
{
	for (int r = 0; r < 2; r++)
		hspmd_devcomm_close(p->devcomm[r], broken);
	for (int r = 0; r < 2; r++) {
		hspmd_comm_destroy(p->comm[r]);
		hspmd_transport_memory.close(p->transport[r]);
	}
	atomic_store(&p->abort, 0);
}

static void fill(struct pair *p)
{
	float host[ROW];
	for (int r = 0; r < 2; r++) {
		for (int i = 0; i < ROW; i++)
			host[i] = (float)(i + 1000 * r);
		assert_int_equal(cuda()->to_device(p->dev[r], p->row[r], host, sizeof host, NULL), 0);
	}
}

static int sum(struct pair *p, int r, struct hspmd_error *err)
{
	if (hspmd_comm_run(p->comm[r], &p->transfer, &p->step, HSPMD_F32, p->row[r], p->row[r], TAG, err))
		return -1;
	return hspmd_comm_stream_wait(p->comm[r], p->row[r], ROW * sizeof(float), err);
}

static void check_sums(struct pair *p)
{
	float host[ROW];
	struct hspmd_error err = { "" };
	fill(p);
	for (int r = 0; r < 2; r++)
		if (sum(p, r, &err))
			fail_msg("%s", err.text);
	for (int r = 0; r < 2; r++) {
		if (cuda()->to_host(p->dev[r], host, p->row[r], sizeof host, &err))
			fail_msg("%s", err.text);
		for (int i = 0; i < ROW; i++)
			assert_true(host[i] == (float)(2 * i + 1000));
	}
}

static int made(void)
{
	return atomic_load((atomic_int *)dlsym(played, "nccl_fake_made"));
}

static struct hspmd_comm_step all_reduce = { .kind = HSPMD_COMM_ALL_REDUCE };

/* The same members again: the same communicators, unless they were aborted. */
static void generations(void **state)
{
	(void)state;
	struct pair p;
	struct hspmd_error err = { "" };
	int before = made();
	open_pair(&p, &all_reduce, 60);
	assert_int_equal(begin(&p, TAG, &err), 0);
	assert_int_equal(made(), before + 2);
	check_sums(&p);
	/* The next generation begins before the old one ends. */
	struct pair next = p;
	assert_int_equal(begin(&next, TAG, &err), 0);
	end(&p, false);
	check_sums(&next);
	assert_int_equal(made(), before + 2);
	struct pair third = next;
	end(&next, true);
	assert_int_equal(begin(&third, TAG, &err), 0);
	assert_int_equal(made(), before + 4);
	check_sums(&third);
	end(&third, false);
	close_pair(&p);
}

/* If a communicator is aborted after the next generation was prepared with it, the next generation gets an error instead of waiting. */
static void given_up(void **state)
{
	(void)state;
	struct pair p;
	struct hspmd_error err = { "" };
	open_pair(&p, &all_reduce, 60);
	assert_int_equal(begin(&p, TAG, &err), 0);
	struct pair next = p;
	assert_int_equal(begin(&next, TAG, &err), 0);
	end(&p, true);
	fill(&next);
	assert_int_equal(sum(&next, 0, &err), -1);
	assert_non_null(strstr(err.text, "aborted"));
	end(&next, true);
	close_pair(&p);
}

/* Members that would call in different orders do not share a communicator. */
static void disagreement(void **state)
{
	(void)state;
	struct pair p;
	struct hspmd_error err = { "" };
	int groups, devcomm, before = made();
	open_pair(&p, &all_reduce, 60);
	assert_int_equal(begin(&p, TAG + 256, &err), 0);
	hspmd_devcomm_counts(p.devcomm[0], &groups, &devcomm);
	assert_int_equal(groups, 1);
	assert_int_equal(devcomm, 0);
	assert_int_equal(made(), before);
	end(&p, false);
	close_pair(&p);
}

/* Nor do members of which one announces more groups than it sends: nothing is read beyond the end. */
static void cut_short(void **state)
{
	(void)state;
	static const size_t missing[] = { 1, 8, 60 };
	for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
		struct pair p;
		struct hspmd_error err = { "" };
		int groups, devcomm, before = made();
		open_pair(&p, &all_reduce, 60);
		p.cut = missing[i];
		assert_int_equal(begin(&p, TAG, &err), 0);
		hspmd_devcomm_counts(p.devcomm[0], &groups, &devcomm);
		assert_int_equal(groups, 1);
		assert_int_equal(devcomm, 0);
		assert_int_equal(made(), before);
		end(&p, false);
		close_pair(&p);
	}
}

/* Checks the error of a member whose peer never comes: it contains `word`. */
static void check_alone(void (*happens)(struct pair *p), const char *word)
{
	struct pair p;
	float host[ROW];
	struct hspmd_error err = { "" };
	open_pair(&p, &all_reduce, 60);
	assert_int_equal(begin(&p, TAG, &err), 0);
	check_sums(&p);
	fill(&p);
	assert_int_equal(sum(&p, 0, &err), 0); /* it is in progress; nobody has waited for it */
	happens(&p);
	assert_int_equal(cuda()->to_host(p.dev[0], host, p.row[0], sizeof host, &err), -1);
	if (!strstr(err.text, word))
		fail_msg("\"%s\" does not say \"%s\"", err.text, word);
	end(&p, true);
	/* The device is still usable. */
	assert_int_equal(begin(&p, TAG, &err), 0);
	check_sums(&p);
	end(&p, false);
	close_pair(&p);
}

static void lose_patience(struct pair *p)
{
	cuda()->communicators->watch(p->dev[0], &(struct hspmd_communicator_watch){ &p->abort, 0.2 });
}

static void call_off(struct pair *p)
{
	atomic_store(&p->abort, 1);
}

static void break_all(struct pair *p)
{
	void (*call)(void);
	void *found = dlsym(played, "nccl_fake_break");
	(void)p;
	memcpy(&call, &found, sizeof call);
	call();
}

static void members_gone(void **state)
{
	(void)state;
	check_alone(lose_patience, "waited 0.2 s for the other members");
	check_alone(call_off, "called off");
	check_alone(break_all, "remote process exited");
}

/* A member that is missing when communicators are created. */
static void never_met(void **state)
{
	(void)state;
	struct pair p;
	struct hspmd_error err = { "" };
	struct hspmd_address own[2];
	open_pair(&p, &all_reduce, 0.3);
	for (int r = 0; r < 2; r++) {
		struct hspmd_devcomm_use use = { &p.step, TAG };
		struct hspmd_devcomm_options o = {
			.device = p.dev[r],
			.cache = p.cache[r],
			.rank = r,
			.size = 2,
			.rank_of = p.rank_of,
			.count = 2,
			.uses = &use,
			.use_count = 1,
			.abort = &p.abort,
			.timeout_s = p.timeout_s,
		};
		assert_int_equal(hspmd_devcomm_open(&o, &p.devcomm[r], &err), 0);
		assert_int_equal(hspmd_devcomm_address(p.devcomm[r], &own[r], &err), 0);
	}
	assert_int_equal(hspmd_devcomm_preconnect(p.devcomm[0], own, &err), 0);
	assert_int_equal(hspmd_devcomm_preconnected(p.devcomm[0], &err), 0);
	assert_int_equal(hspmd_devcomm_wait_ready(p.devcomm[0], &err), -1);
	assert_non_null(strstr(err.text, "waited 0.3 s"));
	/* No malformed address leads to a connection. */
	for (size_t size = 0; size < own[0].size; size += 7) {
		struct hspmd_address bad[2] = { own[0], { own[1].data, size } };
		int groups, devcomm;
		struct hspmd_devcomm *d;
		struct hspmd_devcomm_use use = { &p.step, TAG };
		struct hspmd_devcomm_options o = {
			.device = p.dev[1],
			.cache = p.cache[1],
			.rank = 1,
			.size = 2,
			.rank_of = p.rank_of,
			.count = 2,
			.uses = &use,
			.use_count = 1,
			.abort = &p.abort,
			.timeout_s = p.timeout_s,
		};
		assert_int_equal(hspmd_devcomm_open(&o, &d, &err), 0);
		assert_int_equal(hspmd_devcomm_preconnect(d, bad, &err), 0);
		hspmd_devcomm_counts(d, &groups, &devcomm);
		assert_int_equal(devcomm, 0);
		hspmd_devcomm_close(d, true);
	}
	for (int r = 0; r < 2; r++) {
		hspmd_devcomm_close(p.devcomm[r], true);
		free(own[r].data);
	}
	close_pair(&p);
}

/* ---- whole models */

#define STEPS 4
#define HEAD "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":"

static void train(const char *plan, int devices, unsigned gpus, bool bf16, double *losses)
{
	struct hspmd_error err = { "" };
	struct trainer_options o = { .model = trainer_llama, .plan = plan, .devices = devices, .steps = STEPS, .gpus = gpus, .bf16 = bf16 };
	if (trainer_train(&o, losses, &err))
		fail_msg("%s", err.text);
}

static long asked(void)
{
	long counts[EMULATE_COUNTS];
	gpu_counts(counts);
	return counts[EMULATE_ASKED];
}

static void models(void **state)
{
	(void)state;
	static const struct {
		const char *plan;
		int devices;
		unsigned gpus;
	} plans[] = {
		{ HEAD "0,\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"],\"sequence_parallel\":"
		       "true}]}]}",
		  2, 3 },
		{ HEAD "1,\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"]},{\"layers\":[2,5],"
		       "\"devices\":[\"n:2\"]}]}]}",
		  3, 7 },
		{ HEAD "1,\"pipelines\":[{\"micro_batches\":3,\"stages\":[{\"layers\":[0,3],\"devices\":[\"n:0\"]},{\"layers\":[3,5],"
		       "\"devices\":[\"n:1\"]}]},"
		       "{\"micro_batches\":1,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:2-3\"],\"shard_ratio\":[0.7,0.3]}]}]}",
		  4, 7 },
		{ HEAD "3,\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]},{\"micro_batches\":2,"
		       "\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:1\"]}]}]}",
		  2, 3 },
	};
	double want[STEPS], got[STEPS], again[STEPS];
	train(HEAD "0,\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]}]}", 1, 0, false, want);
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		int before = gpu_is_emulated() ? made() : 0;
		setenv("HSPMD_CUDA_GRAPHS", "0", 1);
		long launched[2] = { asked(), 0 };
		train(plans[i].plan, plans[i].devices, plans[i].gpus, false, got);
		launched[0] = (launched[1] = asked()) - launched[0];
		/* The same bits if the work between messages is captured in graphs. */
		setenv("HSPMD_CUDA_GRAPHS", "1", 1);
		train(plans[i].plan, plans[i].devices, plans[i].gpus, false, again);
		launched[1] = asked() - launched[1];
		printf("plan %zu: %ld launches and copies in %d steps, %ld where passes are recorded\n", i, launched[0], STEPS,
		       launched[1]);
		assert_true(!gpu_is_emulated() || launched[1] < launched[0] * 9 / 10);
		assert_true(!gpu_is_emulated() || made() > before);
		for (int s = 0; s < STEPS; s++)
			if (!(fabs(got[s] - want[s]) < 1e-4 * want[s]))
				fail_msg("plan %zu: loss of step %d is %.9g, not %.9g", i, s, got[s], want[s]);
		assert_memory_equal(got, again, sizeof got);
	}
	unsetenv("HSPMD_CUDA_GRAPHS");
}

/* Rows of experts: directly between CUDA devices, and through host memory where one of them is a CPU. */
static void rows_of_experts(void **state)
{
	(void)state;
	static const struct {
		int plan;
		unsigned gpus;
	} cases[] = { { 1, 15 }, { 2, 15 }, { 3, 15 }, { 4, 15 }, { 1, 5 }, { 2, 6 } };
	double want[EXPERT_STEPS], got[EXPERT_STEPS];
	expert_plan_train(0, 0, want);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int before = made();
		expert_plan_train(cases[i].plan, cases[i].gpus, got);
		assert_true(cases[i].gpus != 15 || made() > before);
		for (int s = 0; s < EXPERT_STEPS; s++)
			if (!(fabs(got[s] - want[s]) < 1e-4 * want[s]))
				fail_msg("case %zu: loss of step %d is %.9g, not %.9g", i, s, got[s], want[s]);
	}
}

int main(void)
{
	static const struct CMUnitTest emulated[] = {
		cmocka_unit_test(versions),        cmocka_unit_test(steps),        cmocka_unit_test(generations),
		cmocka_unit_test(given_up),        cmocka_unit_test(disagreement), cmocka_unit_test(cut_short),
		cmocka_unit_test(members_gone),    cmocka_unit_test(never_met),    cmocka_unit_test(models),
		cmocka_unit_test(rows_of_experts),
	};
	static const struct CMUnitTest real[] = { cmocka_unit_test(models) };
	setenv("HSPMD_CUDA_OVERSUBSCRIBE", "1", 1);
	setenv("HSPMD_CUDA_TUNE", "0", 0);
	setenv("HSPMD_EMULATE_EAGER", "1", 1);
	close_device(gpu_open()); /* skips the tests if there is no GPU */
	if (!gpu_is_emulated())
		return cmocka_run_group_tests(real, NULL, NULL);
	char path[4096];
	const char *build = getenv("builddir");
	snprintf(path, sizeof path, "%s/hspmd-nccl-emulated.so", build ? build : ".");
	char *whole = realpath(path, NULL);
	played = whole ? dlopen(whole, RTLD_NOW) : NULL;
	if (!played) {
		printf("%s cannot be loaded\n", path);
		return 1;
	}
	setenv("HSPMD_NCCL", whole, 1);
	free(whole);
	return cmocka_run_group_tests(emulated, NULL, NULL);
}
