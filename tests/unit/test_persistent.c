/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's state survives kill -9 at any time: at every call that changes the state, before, during and after it, and at random
 * moments. The next process finds the state of a step of an undisturbed run, to the bit, and can train on. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/durable.h"
#include "runtime/generation/generation.h"
#include "runtime/model/model.h"

#define STEPS 400
#define NODE "n"
#define DEVICE "n:0"

/* Large enough that a tensor has several blocks, small enough that most of a step is its update. */
static const char model_text[] = "{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":1,\"n_head\":2,\"n_positions\":8,\"vocab_size\":5000,"
                                 "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
static const char prepare_text[] =
        "{\"type\":\"prepare\",\"generation\":3,\"members\":[\"n:0\"],\"cluster\":{\"format\":\"hspmd-cluster-"
        "1\",\"device_types\":{\"c\":{\"kind\":\"cpu\","
        "\"memory_bytes\":1000000000,\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":"
        "\"n\",\"devices\":[{\"type\":\"c\",\"count\":1}]}],"
        "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]},\"plan\":{\"format\":\"hspmd-"
        "plan-1\",\"global_batch\":2,\"micro_batch\":1,"
        "\"seq_len\":4,\"schedule\":\"1f1b\",\"zero_stage\":0,\"pipelines\":[{\"micro_batches\":2,\"stages\":[{"
        "\"layers\":[0,3],\"devices\":[\"n:0\"]}]}],"
        /* Steps of two lengths: each plan has its gradients in a place of its own. */
        "\"shorter\":[{\"format\":\"hspmd-plan-1\",\"global_batch\":2,\"micro_batch\":1,\"seq_len\":2,\"schedule\":\"zb-h1\","
        "\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,3],\"devices\":[\"n:0\"],"
        "\"recompute\":\"full\"}]}]}]}}";

struct scene {
	char root[64], corpus[96], memory[96];
	struct hspmd_worker_setup setup;
	struct hspmd_generation *g;
};

/* The states of an undisturbed run; in memory that children share. */
struct reference {
	uint64_t state[STEPS + 1];
	double totals[STEPS][HSPMD_TOTALS_COUNT];
	int updates; /* number of calls that change the state, in a step of a worker whose state survives it */
	int64_t shorter; /* the first step but one that runs the shorter plan */
};
static struct reference *reference;

#define MEMORY_BYTES 1000000000

/* ---- a device that kills its process */

enum { BEFORE, WITHIN, BEHIND, WAYS };
static struct {
	bool armed; /* in the process that is to die */
	int64_t step;
	int call, way, calls, first;
	int (*run)(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err);
} death = { .step = -1 };

static int dying_run(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_kernel_args half = *args;
	if (op != HSPMD_OP_UPDATE)
		return death.run(dev, op, args, err);
	death.first += args->attr->update.number == 1;
	bool dies = death.armed && args->attr->update.number == death.step + 1 && death.calls++ == death.call;
	if (dies && death.way == BEFORE)
		raise(SIGKILL);
	for (int k = 0; k < args->output_count; k++)
		half.out[k].shape[0] = half.out[k].full[0] = (args->out[k].shape[0] + 1) / 2;
	half.in[0].shape[0] = half.in[0].full[0] = half.out[0].shape[0];
	int status = death.run(dev, op, dies && death.way == WITHIN ? &half : args, err);
	if (dies)
		raise(SIGKILL);
	return status;
}

/* ---- a worker with one device */

static void write_corpus(const char *path)
{
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	for (int i = 0; i < 4000; i++)
		fputc('a' + i * i % 23, f);
	assert_int_equal(fclose(f), 0);
}

static void set_up(struct scene *s, bool persistent)
{
	struct hspmd_error err = { "" };
	static struct hspmd_device_ops dying;
	struct hspmd_worker_setup *w = &s->setup;
	json_t *model = json_loads(model_text, 0, NULL);
	json_t *job =
	        json_pack("{ss,ss,ss,s{s[s],ss,si,s[ii]},si,si,si,si,s{ss,sf,ss}}", "format", "hspmd-job-1", "model", "/none", "init",
	                  "random", "data", "train", s->corpus, "kind", "bytes", "document_end", 'b', "lengths", 2, 4, "seq_len", 4,
	                  "global_batch", 2, "steps", STEPS, "seed", 7, "optimizer", "type", "adamw", "lr", 3e-3, "schedule", "constant");
	memset(w, 0, sizeof *w);
	w->job = hspmd_job_from_json(job, "/job.json", NULL, &err);
	w->model = hspmd_model_from_json(model, "model", &err);
	if (!w->job || !w->model)
		fail_msg("%s", err.text);
	w->source = hspmd_graph_source_job(w->model, w->job);
	w->address = DEVICE;
	w->node = NODE;
	w->memory = persistent ? s->memory : NULL;
	w->data = hspmd_data_open(w->job, w->model->vocab, NULL, &err);
	w->samples = hspmd_data_source(w->data);
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	if (!w->data || !ops || ops->open(&w->device, 0, 1, &err))
		fail_msg("%s", err.text);
	dying = *ops;
	death.run = ops->run;
	dying.run = dying_run;
	w->device->ops = &dying;
	json_decref(model);
	json_decref(job);
}

static void tear_down(struct scene *s)
{
	hspmd_generation_destroy(s->g);
	s->g = NULL;
	hspmd_data_close(s->setup.data);
	s->setup.device->ops->close(s->setup.device);
	hspmd_model_destroy(s->setup.model);
	hspmd_job_destroy(s->setup.job);
}

/* With this much device memory. */
static json_t *prepare_message(int64_t memory_bytes)
{
	json_t *message = json_loads(prepare_text, 0, NULL);
	json_t *type = json_object_get(json_object_get(json_object_get(message, "cluster"), "device_types"), "c");
	json_object_set_new(type, "memory_bytes", json_integer(memory_bytes));
	return message;
}

static void begin(struct scene *s, int64_t memory_bytes)
{
	struct hspmd_error err = { "" };
	struct hspmd_load_report report;
	json_t *message = prepare_message(memory_bytes), *init = json_pack("{sb}", "init", 1);
	s->g = hspmd_generation_prepare(&s->setup, message, 0, &err);
	if (!s->g || hspmd_generation_connect(s->g, &err) || hspmd_generation_allocate(s->g, NULL, &err) ||
	    hspmd_generation_load(s->g, NULL, init, 0, &report, &err))
		fail_msg("%s", err.text);
	if (s->g->persistent)
		hspmd_persistent_begin(s->g->persistent, 0);
	json_decref(message);
	json_decref(init);
}

static int step(struct scene *s, int64_t number, struct hspmd_totals *all, struct hspmd_error *err)
{
	struct hspmd_executor *ex = s->g->executor;
	struct hspmd_persistent *l = s->g->persistent;
	struct hspmd_totals own = { 0 };
	struct hspmd_step_times times;
	if (l)
		hspmd_persistent_ready(l, false);
	if (hspmd_generation_use_step(s->g, &number, err) || hspmd_executor_gather_parameters(ex, number, err) ||
	    hspmd_executor_gradients(ex, number, &own, &times, err))
		return -1;
	if (l)
		hspmd_persistent_ready(l, true);
	return hspmd_executor_vote(ex, number, &own, all, err) || hspmd_executor_commit(ex, number, all, err) ? -1 : 0;
}

static uint64_t state_of(const struct hspmd_generation *g)
{
	uint64_t hash = 0;
	for (int i = 0; i < g->program->state_count; i++) {
		const struct hspmd_program_state *s = &g->program->states[i];
		const int slot[] = { s->param, s->moments[0], s->moments[1] };
		for (int k = 0; k < 3 && slot[k] >= 0; k++)
			hash = XXH3_64bits_withSeed(hspmd_executor_slot_data(g->executor, slot[k]),
			                            g->program->slot_types[g->program->slots[slot[k]].slot_type].bytes, hash);
	}
	return hash;
}

static int make_reference(void **state)
{
	static struct scene s;
	struct hspmd_error err = { "" };
	strcpy(s.root, access("/dev/shm", W_OK) ? "/tmp/hspmd-persistent-XXXXXX" : "/dev/shm/hspmd-persistent-XXXXXX");
	assert_non_null(mkdtemp(s.root));
	snprintf(s.corpus, sizeof s.corpus, "%s/corpus", s.root);
	snprintf(s.memory, sizeof s.memory, "%s/run", s.root);
	write_corpus(s.corpus);
	reference = mmap(NULL, sizeof *reference, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(reference != MAP_FAILED);
	set_up(&s, false);
	begin(&s, MEMORY_BYTES);
	for (int64_t n = 0; n < STEPS; n++) {
		struct hspmd_totals all;
		reference->state[n] = state_of(s.g);
		if (n > 1 && !reference->shorter && hspmd_generation_step_plan(s.g, n))
			reference->shorter = n;
		if (step(&s, n, &all, &err))
			fail_msg("%s", err.text);
		memcpy(reference->totals[n], &all, sizeof all);
	}
	reference->state[STEPS] = state_of(s.g);
	tear_down(&s);
	*state = &s;
	return 0;
}

static int remove_all(void **state)
{
	struct scene *s = *state;
	struct hspmd_error err;
	munmap(reference, sizeof *reference);
	return hspmd_remove_tree(s->root, &err);
}

/* A process that trains until it is killed, by itself or after this many microseconds. */
static void train_and_die(struct scene *s, long after_us)
{
	int ready[2];
	char byte;
	assert_int_equal(pipe(ready), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct hspmd_error err;
		struct hspmd_totals all;
		set_up(s, true);
		begin(s, MEMORY_BYTES);
		death.calls = death.first = 0;
		death.armed = true;
		if (!s->g->persistent || write(ready[1], "", 1) != 1)
			_exit(3);
		for (int64_t n = 0; n < STEPS; n++) {
			if (step(s, n, &all, &err))
				_exit(4);
			if (n == 0)
				reference->updates = death.first;
		}
		raise(SIGKILL);
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	if (after_us >= 0) {
		nanosleep(&(struct timespec){ .tv_nsec = after_us * 1000 }, NULL);
		kill(pid, SIGKILL);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* The remaining state is that of a step, to the bit; if its gradients were complete, the step can be completed; and training continues.
 * Returns the step. */
static int64_t take_up(struct scene *s)
{
	struct hspmd_error err = { "" };
	struct hspmd_totals all;
	set_up(s, true);
	s->g = hspmd_generation_revive(&s->setup, &err);
	if (!s->g)
		fail_msg("%s", err.text);
	assert_int_equal(s->g->number, 3);
	int64_t found = hspmd_persistent_step(s->g->persistent), now = found;
	assert_true(now >= 0 && now <= STEPS);
	assert_true(state_of(s->g) == reference->state[now]);
	double totals[HSPMD_PERSISTENT_TOTALS];
	if (now > 0) {
		assert_true(hspmd_persistent_totals(s->g->persistent, now - 1, totals));
		assert_memory_equal(totals, reference->totals[now - 1], sizeof totals);
	}
	if (hspmd_persistent_is_ready(s->g->persistent)) {
		memcpy(&all, reference->totals[now], sizeof all);
		assert_int_equal(hspmd_executor_commit(s->g->executor, now, &all, &err), 0);
		assert_true(state_of(s->g) == reference->state[++now]);
		assert_int_equal(hspmd_persistent_step(s->g->persistent), now);
	}
	for (int i = 0; i < 2 && now < STEPS; i++) {
		if (step(s, now, &all, &err))
			fail_msg("%s", err.text);
		assert_memory_equal(&all, reference->totals[now], sizeof all);
		assert_true(state_of(s->g) == reference->state[++now]);
	}
	tear_down(s);
	return found;
}

static void test_every_call(void **state)
{
	struct scene *s = *state;
	train_and_die(s, -1); /* undisturbed */
	assert_int_equal(take_up(s), STEPS);
	assert_true(reference->updates > 10);
	assert_in_range(reference->shorter, 2, 40);
	int most = getenv("HSPMD_LONG") ? 1 : 3; /* every third call, another third in each direction */
	for (death.way = 0; death.way < WAYS; death.way++)
		for (death.call = death.way % most; death.call < reference->updates; death.call += most) {
			death.step = death.call % 2 ? reference->shorter : 2;
			train_and_die(s, -1);
			assert_int_equal(take_up(s), death.step + 1); /* all had voted: the step is completed */
		}
	death.step = -1;
}

static void test_random(void **state)
{
	struct scene *s = *state;
	unsigned x = 1;
	for (int i = 0; i < (getenv("HSPMD_LONG") ? 2000 : 40); i++) {
		x = x * 1103515245 + 12345;
		train_and_die(s, (long)(x >> 8) % 20000);
		take_up(s);
	}
}

/* ---- unusable files */

static struct hspmd_persistent *make(const char *folder, int64_t generation, size_t bytes, struct hspmd_error *err)
{
	return hspmd_persistent_create(&(struct hspmd_persistent_spec){ folder, "n-0", generation, 5, bytes, "text" }, err);
}

static void test_files(void **state)
{
	struct scene *s = *state;
	struct hspmd_error err = { "" };
	char folder[128], path[160];
	snprintf(folder, sizeof folder, "%s/files", s->root);
	assert_null(hspmd_persistent_open(folder, "n-0", 0, &err));
	/* More than is available: reported at once, and nothing of it remains. */
	assert_null(make(folder, 1, (size_t)1 << 50, &err));
	assert_true(strstr(err.text, "MiB are free") || strstr(err.text, "No space left"));
	assert_null(hspmd_persistent_open(folder, "n-0", 0, &err));
	struct hspmd_persistent *l = make(folder, 1, 10000, &err);
	assert_non_null(l);
	memset(hspmd_persistent_data(l), 7, 10000);
	hspmd_persistent_begin(l, 40);
	/* In use: its process may still write. */
	assert_null(hspmd_persistent_open(folder, "n-0", 0.01, &err));
	assert_non_null(strstr(err.text, "waited"));
	hspmd_persistent_close(l, true);
	/* A newer file that was still being filled, a truncated one and an unrelated one are skipped. */
	hspmd_persistent_close(make(folder, 2, 10000, &err), true);
	for (int g = 3; g < 5; g++) {
		snprintf(path, sizeof path, "%s/n-0.g%d.live", folder, g);
		int fd = open(path, O_RDWR | O_CREAT, 0600);
		assert_int_equal(ftruncate(fd, g == 3 ? 100 : 100000), 0);
		close(fd);
	}
	assert_null(hspmd_persistent_open(folder, "n-1", 0, &err));
	assert_null(hspmd_persistent_open(folder, "n", 0, &err));
	l = hspmd_persistent_open(folder, "n-0", 0, &err);
	assert_non_null(l);
	assert_int_equal(hspmd_persistent_step(l), 40);
	assert_int_equal(hspmd_persistent_layout(l), 5);
	assert_int_equal(hspmd_persistent_bytes(l), 10000);
	assert_string_equal(hspmd_persistent_text(l), "text");
	assert_int_equal(((char *)hspmd_persistent_data(l))[9999], 7);
	assert_false(hspmd_persistent_totals(l, 39, (double[HSPMD_PERSISTENT_TOTALS]){ 0 }));
	/* The next complete one replaces all of them. */
	struct hspmd_persistent *next = make(folder, 9, 1, &err);
	assert_non_null(next);
	hspmd_persistent_begin(next, 50);
	hspmd_persistent_close(l, true);
	assert_int_equal(access(path, F_OK), -1);
	hspmd_persistent_close(next, false);
	assert_null(hspmd_persistent_open(folder, "n-0", 0, &err));
}

/* If the folder cannot be used, training continues in memory that is lost with the process. */
static void test_no_place(void **state)
{
	struct scene s = *(struct scene *)*state;
	struct hspmd_error err = { "" };
	struct hspmd_totals all;
	snprintf(s.memory, sizeof s.memory, "%s", s.corpus); /* a file */
	set_up(&s, true);
	begin(&s, MEMORY_BYTES);
	assert_null(s.g->persistent);
	assert_int_equal(step(&s, 0, &all, &err), 0);
	assert_true(state_of(s.g) == reference->state[1]);
	tear_down(&s);
}

static int count_persistent(const struct scene *s)
{
	char folder[128];
	int count = 0;
	snprintf(folder, sizeof folder, "%s/%s", s->memory, NODE);
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));)
		count += strstr(e->d_name, ".live") != NULL;
	if (d)
		closedir(d);
	return count;
}

/* The generation after s->g, on the same device and with the same plan, until its memory is allocated. */
static struct hspmd_generation *prepare_another(struct scene *s, int64_t memory_bytes, json_t **state)
{
	struct hspmd_error err = { "" };
	json_t *message = prepare_message(memory_bytes);
	json_object_set_new(message, "generation", json_integer(s->g->number + 1));
	*state = json_pack("{s[{sO,sO,s[s]}]}", "live", "cluster", json_object_get(message, "cluster"), "plan",
	                   json_object_get(message, "plan"), "holders", DEVICE);
	struct hspmd_generation *g = hspmd_generation_prepare(&s->setup, message, hspmd_generation_peak_bytes(s->g), &err);
	if (!g || hspmd_generation_connect(g, &err))
		fail_msg("%s", err.text);
	json_decref(message);
	return g;
}

static void change_to(struct scene *s, struct hspmd_generation *g, json_t *state)
{
	struct hspmd_error err = { "" };
	struct hspmd_load_report report;
	uint64_t before = state_of(s->g);
	if (hspmd_generation_allocate(g, s->g, &err) || hspmd_generation_load(g, s->g, state, 1, &report, &err))
		fail_msg("%s", err.text);
	assert_non_null(g->persistent);
	hspmd_persistent_begin(g->persistent, 1);
	hspmd_generation_destroy(s->g);
	s->g = g;
	assert_true(state_of(g) == before);
	assert_int_equal(count_persistent(s), 1);
	json_decref(state);
}

/* A switch takes no more memory than the device has: the next plan's memory is allocated while the current one trains if there is
 * enough, after it has ended if there is not, and if both states are too much, the old one is spilled to disk. */
static void test_full_device(void **state)
{
	struct scene *s = *state;
	struct hspmd_error err = { "" };
	struct hspmd_totals all;
	char disk[128], blocked[160];
	json_t *live;
	snprintf(disk, sizeof disk, "%s/disk", s->root);
	snprintf(blocked, sizeof blocked, "%s/folder", s->corpus); /* a file blocks it */
	set_up(s, true);
	begin(s, MEMORY_BYTES);
	int64_t taken = hspmd_generation_peak_bytes(s->g), need = hspmd_generation_memory(s->g),
	        fixed = (int64_t)hspmd_persistent_bytes(s->g->persistent);
	assert_true(taken > need && need > fixed);

	struct hspmd_generation *next = prepare_another(s, taken + fixed, &live);
	assert_non_null(next->persistent);
	assert_int_equal(count_persistent(s), 2);
	assert_true(hspmd_generation_fits(next, s->g));
	change_to(s, next, live);

	next = prepare_another(s, taken + fixed - 1, &live);
	assert_null(next->persistent);
	assert_int_equal(count_persistent(s), 1);
	assert_true(hspmd_generation_fits(next, s->g));
	change_to(s, next, live);

	struct hspmd_generation *tight = prepare_another(s, need - 1, &live); /* a little more than predicted: it starts nevertheless */
	assert_true(hspmd_generation_fits(tight, NULL));
	hspmd_generation_destroy(tight);
	json_decref(live);

	next = prepare_another(s, need + fixed - 1, &live);
	assert_null(next->persistent);
	assert_false(hspmd_generation_fits(next, s->g));
	assert_int_equal(hspmd_generation_spill(s->g, NULL, &err), -1);
	uint64_t before = state_of(s->g);
	assert_int_equal(hspmd_generation_spill(s->g, blocked, &err), -1);
	assert_non_null(strstr(err.text, s->corpus));
	assert_non_null(s->g->persistent);
	if (hspmd_generation_spill(s->g, disk, &err))
		fail_msg("%s", err.text);
	assert_int_equal(count_persistent(s), 0);
	assert_true(state_of(s->g) == before);
	assert_true(hspmd_generation_fits(next, s->g));
	change_to(s, next, live);
	if (step(s, 0, &all, &err))
		fail_msg("%s", err.text);
	assert_memory_equal(&all, reference->totals[0], sizeof all);
	assert_true(state_of(s->g) == reference->state[1]);
	tear_down(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_call), cmocka_unit_test(test_random),      cmocka_unit_test(test_files),
		cmocka_unit_test(test_no_place),   cmocka_unit_test(test_full_device),
	};
	return cmocka_run_group_tests(tests, make_reference, remove_all);
}
