/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* the module links nothing that it does not need */
#include <xxhash.h>

#include "common/alloc.h"
#include "runtime/device/cuda/autotune_cache.h"
#include "runtime/device/cuda/autotune_log.h"
#include "runtime/device/cuda/dnn.h"
#include "runtime/device/cuda/dnn_support.h"
#include "runtime/device/cuda/attention_desc.h"
#include "runtime/device/cuda/autotune_timer.h"

#define PLANS 4
#define TIMED_RUNS 3
#define BF16_BYTES 2

/* What may be chosen beside cuDNN's plans, which are numbered from 0 on. */
#define OWN_NEWEST -1
#define OWN_MMA -2

/* How choices are written to the file: the value of a choice's first word. */
#define WORD_OWN_MMA 1
#define WORD_FIRST_PLAN 2
#define WORD_OWN_NEWEST 0x100

struct chosen {
	struct hspmd_dnn_attention about;
	struct hspmd_dnn_plan *plans[PLANS]; /* for one part: all that may be chosen */
	int count, best;
	int64_t samples, kv_heads; /* of a part: some samples with all heads, or some heads of one sample */
};

struct hspmd_cuda_dnn {
	pthread_mutex_t lock;          /* protects `chosen`: programs are built while another runs */
	pthread_mutex_t planning_lock; /* held while a choice is made; a step that finds its choices made never waits for it */
	atomic_bool unusable;          /* no cuDNN, or one that is not trusted */
	bool tried, tune;
	size_t workspace_most;
	struct hspmd_dnn *running, *planning; /* running: on the device's stream; planning: on the timer's. NULL: no cuDNN */
	struct hspmd_cuda_autotune_timer watch;
	struct hspmd_cuda_autotune_cache *choices;
	char *told; /* the last choices made elsewhere, until there is a cache for them */
	size_t count, capacity;
	struct chosen **chosen; /* the entries never move */
};

int hspmd_cuda_dnn_create(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	struct hspmd_cuda_dnn *d = cuda->dnn = calloc(1, sizeof *d);
	const char *tune = getenv("HSPMD_CUDA_TUNE"), *workspace = getenv("HSPMD_CUDNN_WORKSPACE");
	if (!d)
		return hspmd_fail_memory(err, "opening a CUDA device");
	pthread_mutex_init(&d->lock, NULL);
	pthread_mutex_init(&d->planning_lock, NULL);
	d->tune = !tune || strcmp(tune, "0") != 0;
	d->workspace_most = workspace ? strtoull(workspace, NULL, 10) : HSPMD_ATTENTION_DNN;
	return 0;
}

static void close_library(struct hspmd_cuda_dnn *d)
{
	hspmd_cuda_autotune_cache_close(d->choices);
	hspmd_dnn_close(d->running);
	hspmd_dnn_close(d->planning);
	hspmd_cuda_autotune_timer_close(&d->watch);
	d->choices = NULL;
	d->running = d->planning = NULL;
}

static void free_chosen(struct chosen *c)
{
	for (int i = 0; i < c->count; i++)
		hspmd_dnn_plan_destroy(c->plans[i]);
	free(c);
}

void hspmd_cuda_dnn_destroy(struct hspmd_cuda *cuda)
{
	struct hspmd_cuda_dnn *d = cuda->dnn;
	if (!d)
		return;
	for (size_t i = 0; i < d->count; i++)
		free_chosen(d->chosen[i]);
	free(d->chosen);
	free(d->told);
	close_library(d);
	pthread_mutex_destroy(&d->planning_lock);
	pthread_mutex_destroy(&d->lock);
	free(d);
	cuda->dnn = NULL;
}

/* cuDNN is loaded only for a device that could use it, and only once. It is no error if cuDNN cannot be loaded. */
static bool open_library(struct hspmd_cuda *cuda)
{
	struct hspmd_cuda_dnn *d = cuda->dnn;
	if (d->tried)
		return d->running != NULL;
	d->tried = true;
	if (hspmd_dnn_open(&d->running, cuda->stream, NULL))
		return false;
	if (!hspmd_cuda_autotune_timer_open(&d->watch) || hspmd_dnn_open(&d->planning, d->watch.stream, NULL) ||
	    !(d->choices = hspmd_cuda_autotune_cache_open("cudnn", cuda->model, hspmd_dnn_version(d->running))) ||
	    (d->told && hspmd_cuda_autotune_cache_learn(d->choices, d->told)))
		close_library(d);
	return d->running != NULL;
}

/* ---- shapes */

/* Returns true if cuDNN's graph can express this attention. Pointers that are not set yet count as aligned. */
static bool can_describe(const struct attention *a)
{
	return !a->segments && !a->sinks && !a->noise && !a->mask && !a->bidirectional && !(a->softcap > 0) && a->head_dim % 8 == 0 &&
	       a->batches && a->queries && a->keys && a->kv_heads && a->heads == a->kv_heads * a->group &&
	       a->first_head == a->first_kv * a->group && a->shift >= 0 && a->shift + a->queries <= a->keys &&
	       hspmd_cuda_attention_is_aligned(a);
}

static struct hspmd_dnn_attention describe(const struct attention *a, bool backward)
{
	struct hspmd_dnn_attention about;
	memset(&about, 0, sizeof about);
	about.batches = a->batches;
	about.queries = a->queries;
	about.keys = a->keys;
	about.heads = a->heads;
	about.kv_heads = a->kv_heads;
	about.head_dim = a->head_dim;
	about.shift = a->shift;
	about.window = a->window >= a->keys ? 0 : a->window;
	about.q = (struct hspmd_dnn_rows){ a->q.batch, a->q.row };
	about.k = (struct hspmd_dnn_rows){ a->k.batch, a->k.row };
	about.v = (struct hspmd_dnn_rows){ a->v.batch, a->v.row };
	about.o = (struct hspmd_dnn_rows){ a->o.batch, a->o.row };
	about.scale = a->scale;
	about.backward = backward;
	about.any_order = backward && a->any_order; /* the forward pass has one order anyway */
	return about;
}

/* Bytes per head of what the backward pass keeps in memory: the gradients of scores; or, in any order, the sums of dq, and dk and dv of
 * every query head if several share a kv head. */
static int64_t gradient_bytes(const struct hspmd_dnn_attention *a)
{
	if (!a->any_order)
		return a->queries * a->keys * BF16_BYTES;
	return a->head_dim * (a->queries * (int64_t)sizeof(float) + (a->heads > a->kv_heads ? 2 * a->keys * BF16_BYTES : 0));
}

/* Chooses how much is computed at a time. Returns false if there is no room for one kv head. */
static bool choose_part(struct chosen *c, size_t most)
{
	const struct hspmd_dnn_attention *a = &c->about;
	const struct hspmd_attention_sizes sizes = { .batches = a->batches, .kv_heads = a->kv_heads, .group = a->heads / a->kv_heads };
	return hspmd_attention_dnn_part(&sizes, a->backward ? (size_t)gradient_bytes(a) : 0, most, &c->samples, &c->kv_heads);
}

static struct hspmd_dnn_attention part_of(const struct chosen *c)
{
	struct hspmd_dnn_attention part = c->about;
	part.batches = c->samples;
	part.heads = c->kv_heads * (c->about.heads / c->about.kv_heads);
	part.kv_heads = c->kv_heads;
	return part;
}

/* ---- running */

static void *moved(const struct head_rows *rows, int64_t sample, int64_t element)
{
	return rows->data ? (char *)rows->data + (sample * rows->batch + element) * BF16_BYTES : NULL;
}

static int run_parts(struct hspmd_dnn *dnn, const struct chosen *c, const struct hspmd_dnn_plan *plan, const struct attention *a,
                     void *workspace, struct hspmd_error *err)
{
	int64_t group = c->about.heads / c->about.kv_heads;
	for (int64_t sample = 0; sample < a->batches; sample += c->samples)
		for (int64_t kv = 0; kv < a->kv_heads; kv += c->kv_heads) {
			int64_t to_kv = kv * a->head_dim, to_q = to_kv * group;
			struct hspmd_dnn_buffers b = {
				.q = moved(&a->q, sample, to_q),
				.k = moved(&a->k, sample, to_kv),
				.v = moved(&a->v, sample, to_kv),
				.o = moved(&a->o, sample, to_q),
				.dq = moved(&a->dq, sample, to_q),
				.dk = moved(&a->dk, sample, to_kv),
				.dv = moved(&a->dv, sample, to_kv),
				.dout = moved(&a->dout, sample, to_q),
				.lse = a->lse + (sample * a->heads + kv * group) * a->queries,
				.workspace = workspace,
			};
			if (hspmd_dnn_run(dnn, plan, &b, err))
				return -1;
		}
	return 0;
}

/* ---- measuring */

static enum attention_kernels kernels_of(int plan)
{
	return plan == OWN_MMA ? ATTENTION_MMA : ATTENTION_NEWEST;
}

enum { TRIAL_Q, TRIAL_K, TRIAL_V, TRIAL_O, TRIAL_LSE, TRIAL_WORKSPACE, TRIAL_DOUT, TRIAL_DQ, TRIAL_DK, TRIAL_DV, TRIAL_BUFFERS };

struct trial {
	struct attention a;
	void *memory[TRIAL_BUFFERS];
};

static void end_trial(struct trial *t)
{
	for (int i = 0; i < TRIAL_BUFFERS; i++)
		if (t->memory[i])
			cudaFree(t->memory[i]);
}

/* Allocates trial buffers next to the program's, if there is memory for them; they are filled with bytes that are small numbers in either
 * type. Returns false if there is not enough memory. */
static bool start_trial(const struct hspmd_cuda *cuda, struct trial *t, const struct attention *a, bool backward)
{
	const struct hspmd_cuda_dnn *d = cuda->dnn;
	struct attention whole = *a; /* whatever workspace it is to have, it is measured alike */
	whole.workspace_most = 0;
	size_t delta = hspmd_cuda_attention_delta_bytes(a), scores = hspmd_cuda_attention_wgmma_workspace(cuda, &whole),
	       own = delta + scores, workspace = own > d->workspace_most ? own : d->workspace_most;
	struct head_rows *rows[TRIAL_BUFFERS] = {
		&t->a.q, &t->a.k, &t->a.v, &t->a.o, NULL, NULL, &t->a.dout, &t->a.dq, &t->a.dk, &t->a.dv
	};
	*t = (struct trial){ .a = *a };
	t->a.scores_bytes = scores;
	t->a.workspace_most = 0;
	t->a.angles = NULL;
	for (int i = 0; i < (backward ? TRIAL_BUFFERS : TRIAL_DOUT); i++) {
		size_t bytes = rows[i] ? (size_t)(a->batches * rows[i]->batch) * BF16_BYTES : workspace;
		if (i == TRIAL_LSE)
			bytes = delta;
		if (cudaMalloc(&t->memory[i], bytes + 64) ||
		    (i != TRIAL_WORKSPACE && cudaMemsetAsync(t->memory[i], 0x3c, bytes, d->watch.stream))) {
			cudaGetLastError(); /* lack of memory is no error */
			return false;
		}
		if (rows[i])
			rows[i]->data = t->memory[i];
	}
	t->a.lse = t->memory[TRIAL_LSE];
	t->a.delta = t->memory[TRIAL_WORKSPACE];
	t->a.scores = (char *)t->memory[TRIAL_WORKSPACE] + delta;
	return true;
}

struct candidate {
	struct hspmd_cuda *beside; /* the device, on the timer's stream */
	const struct chosen *c;
	const struct hspmd_dnn_plan *plan; /* NULL: our kernels */
	const struct trial *trial;
	hspmd_cuda_own_attention own;
};

static int run_candidate(const void *what)
{
	const struct candidate *k = what;
	const struct trial *t = k->trial;
	return k->plan ? run_parts(k->beside->dnn->planning, k->c, k->plan, &t->a, t->memory[TRIAL_WORKSPACE], NULL)
	               : k->own(k->beside, &t->a, NULL);
}

/* plan: one's number, or which of our kernels. */
static float time_plan(struct hspmd_cuda *cuda, const struct chosen *c, int plan, struct trial *t, hspmd_cuda_own_attention own)
{
	struct hspmd_cuda beside = *cuda;
	beside.stream = cuda->dnn->watch.stream;
	t->a.kernels = kernels_of(plan);
	return hspmd_cuda_autotune_timer_time(&cuda->dnn->watch, TIMED_RUNS, run_candidate,
	                                      &(struct candidate){ &beside, c, plan < 0 ? NULL : c->plans[plan], t, own });
}

static void log_candidate(const struct hspmd_dnn_attention *a, int plan, float milliseconds)
{
	char how[32];
	snprintf(how, sizeof how, "%s", plan == OWN_NEWEST ? "own, wgmma" : "own, mma");
	if (plan >= 0)
		snprintf(how, sizeof how, "cuDNN plan %d", plan);
	hspmd_cuda_autotune_log("{\"attention\": {\"batches\": %" PRId64 ", \"queries\": %" PRId64 ", \"keys\": %" PRId64
	                        ", \"heads\": %" PRId64 ", \"kv_heads\": %" PRId64 ", \"head_dim\": %" PRId64 ", \"window\": %" PRId64
	                        ", \"backward\": %s}, \"how\": \"%s\", \"ms\": %.6g}",
	                        a->batches, a->queries, a->keys, a->heads, a->kv_heads, a->head_dim, a->window,
	                        a->backward ? "true" : "false", how, milliseconds < 0 ? -1 : (double)milliseconds / TIMED_RUNS);
}

/* Returns what is fastest. If there is no memory to measure, returns the plan that cuDNN expects to be fastest. */
static int fastest(struct hspmd_cuda *cuda, const struct chosen *c, const struct attention *a, hspmd_cuda_own_attention own, bool *measured)
{
	struct trial t;
	int best = 0;
	if ((*measured = start_trial(cuda, &t, a, c->about.backward))) {
		float time, best_time = time_plan(cuda, c, OWN_MMA, &t, own);
		best = OWN_MMA;
		log_candidate(&c->about, OWN_MMA, best_time);
		for (int i = cuda->wgmma ? OWN_NEWEST : 0; i < c->count; i++) {
			time = time_plan(cuda, c, i, &t, own);
			log_candidate(&c->about, i, time);
			if (time >= 0 && (best_time < 0 || time < best_time)) {
				best_time = time;
				best = i;
			}
		}
		cudaStreamSynchronize(cuda->dnn->watch.stream);
	}
	end_trial(&t);
	return best;
}

/* ---- choosing */

static struct hspmd_cuda_autotune_key key_of(const struct hspmd_dnn_attention *a)
{
	return (struct hspmd_cuda_autotune_key){ .m = a->queries, .n = a->keys, .k = a->head_dim, .flags = XXH3_64bits(a, sizeof *a) };
}

/* Returns true if it is known what is best, from the file or from elsewhere. */
static bool known_plan(struct hspmd_cuda_dnn *d, const struct chosen *c, int *best)
{
	struct hspmd_cuda_autotune_key key = key_of(&c->about);
	struct hspmd_cuda_autotune_entry known;
	if (!hspmd_cuda_autotune_cache_find(d->choices, &key, &known))
		return false;
	if (known.word[0] == WORD_OWN_MMA || known.word[0] == WORD_OWN_NEWEST)
		*best = known.word[0] == WORD_OWN_MMA ? OWN_MMA : OWN_NEWEST;
	else if (known.word[0] >= WORD_FIRST_PLAN && known.word[0] - WORD_FIRST_PLAN < (uint64_t)c->count)
		*best = (int)(known.word[0] - WORD_FIRST_PLAN);
	else
		return false;
	return true;
}

static int choose_plan(struct hspmd_cuda *cuda, struct chosen *c, const struct attention *a, hspmd_cuda_own_attention own)
{
	struct hspmd_cuda_dnn *d = cuda->dnn;
	struct hspmd_cuda_autotune_key key = key_of(&c->about);
	bool measured;
	int best;
	if (!c->count || !d->tune)
		return c->count ? 0 : OWN_NEWEST;
	if (known_plan(d, c, &best))
		return best;
	best = fastest(cuda, c, a, own, &measured);
	uint64_t word = best == OWN_MMA ? WORD_OWN_MMA : best == OWN_NEWEST ? WORD_OWN_NEWEST : WORD_FIRST_PLAN + (uint64_t)best;
	hspmd_cuda_autotune_cache_add(d->choices, &key, &(struct hspmd_cuda_autotune_entry){ { word } }, measured);
	return best;
}

static struct chosen *choose(struct hspmd_cuda *cuda, const struct attention *a, const struct hspmd_dnn_attention *about,
                             hspmd_cuda_own_attention own, struct hspmd_error *err)
{
	struct hspmd_cuda_dnn *d = cuda->dnn;
	struct chosen *c = calloc(1, sizeof *c);
	if (!c) {
		hspmd_fail_memory(err, "choosing how to compute attention");
		return NULL;
	}
	c->about = *about;
	if (choose_part(c, d->workspace_most)) {
		struct hspmd_dnn_attention part = part_of(c);
		c->count = hspmd_dnn_find_plans(d->planning, &part, d->workspace_most, c->plans, PLANS, NULL);
	}
	c->best = choose_plan(cuda, c, a, own);
	return c;
}

static bool is_within(const struct hspmd_dnn_plan *plan, uint32_t workspace_most)
{
	size_t bytes = hspmd_dnn_plan_workspace(plan);
	return hspmd_workspace_within(bytes, workspace_most) == bytes;
}

/* NULL: our kernels, also in the place of a plan that needs more than the attention is to have. */
static const struct hspmd_dnn_plan *plan_of(const struct chosen *c, uint32_t workspace_most)
{
	return c->best < 0 || !is_within(c->plans[c->best], workspace_most) ? NULL : c->plans[c->best];
}

/* What the plans need, for another may be chosen instead (hspmd_cuda_dnn_choose). */
static size_t room_for_plans(const struct hspmd_cuda_dnn *d, const struct chosen *c, uint32_t workspace_most)
{
	size_t most = 0;
	for (int i = 0; i < c->count; i++)
		if ((d->tune || i == c->best) && is_within(c->plans[i], workspace_most) && hspmd_dnn_plan_workspace(c->plans[i]) > most)
			most = hspmd_dnn_plan_workspace(c->plans[i]);
	return most;
}

static struct chosen *look_up(struct hspmd_cuda_dnn *d, const struct hspmd_dnn_attention *about)
{
	struct chosen *c = NULL;
	pthread_mutex_lock(&d->lock);
	for (size_t i = 0; i < d->count && !c; i++)
		if (!memcmp(&d->chosen[i]->about, about, sizeof *about))
			c = d->chosen[i];
	pthread_mutex_unlock(&d->lock);
	return c;
}

/* Chooses, and makes the choice known. */
static struct chosen *choose_new(struct hspmd_cuda *cuda, const struct attention *a, const struct hspmd_dnn_attention *about,
                                 hspmd_cuda_own_attention own, struct hspmd_error *err)
{
	struct hspmd_cuda_dnn *d = cuda->dnn;
	struct chosen *c = choose(cuda, a, about, own, err);
	if (!c)
		return NULL;
	pthread_mutex_lock(&d->lock);
	int full = hspmd_array_grow(&d->chosen, &d->capacity, d->count, sizeof *d->chosen);
	if (!full)
		d->chosen[d->count++] = c;
	pthread_mutex_unlock(&d->lock);
	if (!full)
		return c;
	free_chosen(c);
	hspmd_fail_memory(err, "choosing how to compute attention");
	return NULL;
}

/* Returns 1 if a choice was made or found, 0 if cuDNN cannot be used, -1 and err on failure. Versions are trusted with all shapes or with
 * none, so that one shape that is refused speaks for all. */
static int find(struct hspmd_cuda *cuda, const struct attention *a, bool backward, hspmd_cuda_own_attention own,
                const struct chosen **found, struct hspmd_error *err)
{
	struct hspmd_cuda_dnn *d = cuda->dnn;
	if (!can_describe(a) || atomic_load(&d->unusable))
		return 0;
	struct hspmd_dnn_attention about = describe(a, backward);
	if (hspmd_dnn_unsupported(SIZE_MAX, &about))
		return 0;
	if ((*found = look_up(d, &about)))
		return 1;
	pthread_mutex_lock(&d->planning_lock);
	bool there = open_library(cuda) && !hspmd_dnn_unsupported(hspmd_dnn_version(d->running), &about);
	if (there && !(*found = look_up(d, &about)))
		*found = choose_new(cuda, a, &about, own, err);
	atomic_store(&d->unusable, !there);
	pthread_mutex_unlock(&d->planning_lock);
	return there ? *found ? 1 : -1 : 0;
}

size_t hspmd_cuda_dnn_workspace(struct hspmd_cuda *cuda, const struct attention *a, bool backward, hspmd_cuda_own_attention own)
{
	const struct chosen *c;
	return find(cuda, a, backward, own, &c, NULL) == 1 ? room_for_plans(cuda->dnn, c, a->workspace_most) : 0;
}

int hspmd_cuda_dnn_prepare(struct hspmd_cuda *cuda, const struct attention *a, bool backward, hspmd_cuda_own_attention own,
                           const void **choice, struct hspmd_error *err)
{
	const struct chosen *c = NULL;
	int there = find(cuda, a, backward, own, &c, err);
	*choice = there > 0 ? c : NULL;
	return there < 0 ? -1 : 0;
}

int hspmd_cuda_dnn_attention(struct hspmd_cuda *cuda, struct attention *a, bool backward, hspmd_cuda_own_attention own, const void *choice,
                             void *workspace, size_t workspace_bytes, struct hspmd_error *err)
{
	const struct chosen *c = choice;
	if (backward && !(a->dq.data && a->dk.data && a->dv.data))
		return 0;
	int there = a->stage == ATTENTION_PREPARED ? c != NULL : find(cuda, a, backward, own, &c, err);
	const struct hspmd_dnn_plan *plan = there > 0 ? plan_of(c, a->workspace_most) : NULL;
	a->kernels = there > 0 ? kernels_of(c->best) : ATTENTION_NEWEST;
	if (!plan)
		return there < 0 ? -1 : 0;
	if (hspmd_dnn_plan_workspace(plan) > workspace_bytes)
		return hspmd_fail(err, "attention by cuDNN was given %zu bytes of workspace and needs %zu", workspace_bytes,
		                  hspmd_dnn_plan_workspace(plan));
	return run_parts(cuda->dnn->running, c, plan, a, workspace, err) ? -1 : 1;
}

/* ---- choices that are made elsewhere */

char *hspmd_cuda_dnn_choices(struct hspmd_cuda *cuda)
{
	struct hspmd_cuda_dnn *d = cuda->dnn;
	pthread_mutex_lock(&d->planning_lock);
	char *text = hspmd_cuda_autotune_cache_text(d->choices);
	pthread_mutex_unlock(&d->planning_lock);
	return text;
}

int hspmd_cuda_dnn_choose(struct hspmd_cuda *cuda, const char *choices)
{
	struct hspmd_cuda_dnn *d = cuda->dnn;
	int rv = 0;
	pthread_mutex_lock(&d->planning_lock);
	if (!d->choices) {
		free(d->told);
		d->told = strdup(choices);
		rv = d->told ? 0 : -1;
	} else {
		rv = hspmd_cuda_autotune_cache_learn(d->choices, choices);
		for (size_t i = 0; i < d->count && d->tune; i++)
			known_plan(d, d->chosen[i], &d->chosen[i]->best);
	}
	pthread_mutex_unlock(&d->planning_lock);
	return rv;
}
