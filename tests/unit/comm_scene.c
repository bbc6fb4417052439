/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/comm_scene.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/comm/comm_internal.h"
#include "tests/unit/comm_scene_parts.h"

#define LIMIT_S 60.0
#define SCENE_REPEAT 3

static struct scene_ground *ground;
static int chains; /* scenes whose sums have passed along the members */
static int rings;  /* scenes whose parts have */

void scene_use(struct scene_ground *use)
{
	ground = use;
}

void scene_add_box(float *dst, const struct hspmd_box *dst_box, const float *src, const struct hspmd_box *src_box,
                   const struct hspmd_box *part)
{
	for (int64_t r = part->lo[0]; r < part->hi[0]; r++)
		for (int64_t k = part->lo[1]; k < part->hi[1]; k++)
			dst[(r - dst_box->lo[0]) * (dst_box->hi[1] - dst_box->lo[1]) + k - dst_box->lo[1]] +=
			        src[(r - src_box->lo[0]) * (src_box->hi[1] - src_box->lo[1]) + k - src_box->lo[1]];
}

/* ---- counting messages */

static struct scene *playing;

static int send_and_count(struct hspmd_transport *t, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                          struct hspmd_error *err)
{
	playing->sent[t->options.rank][to]++; /* one thread per rank */
	return hspmd_transport_memory.send(t, to, tag, data, bytes, r, err);
}

static uint64_t seed = 1;

static int64_t draw(int64_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (int64_t)((seed >> 33) % (uint64_t)below);
}

static struct hspmd_box random_box(const struct hspmd_box *within)
{
	struct hspmd_box b = { .rank = 2 };
	for (int d = 0; d < 2; d++) {
		int64_t n = within->hi[d] - within->lo[d], a = draw(n), z = draw(n);
		b.lo[d] = within->lo[d] + (a < z ? a : z);
		b.hi[d] = within->lo[d] + (a < z ? z : a) + 1;
	}
	return b;
}

static struct hspmd_box around(const struct hspmd_box *inner, const struct hspmd_box *whole)
{
	struct hspmd_box b = *inner;
	for (int d = 0; d < 2; d++) {
		b.lo[d] -= draw(2) ? draw(b.lo[d] - whole->lo[d] + 1) : 0;
		b.hi[d] += draw(2) ? draw(whole->hi[d] - b.hi[d] + 1) : 0;
	}
	return b;
}

static float *at(float *data, const struct hspmd_box *box, int64_t r, int64_t k)
{
	return &data[(r - box->lo[0]) * (box->hi[1] - box->lo[1]) + k - box->lo[1]];
}

static struct hspmd_layout make_layout(const struct scene *s, const struct hspmd_box *held)
{
	struct hspmd_layout l = { .device_count = s->members };
	l.devices = calloc(SCENE_MEMBERS, sizeof *l.devices);
	l.box = calloc(SCENE_MEMBERS, sizeof *l.box);
	for (int r = 0; r < s->members; r++) {
		l.devices[r] = 3 + 2 * r; /* device numbers ascend with ranks; members are a permutation of them */
		l.box[r] = held[r];
	}
	return l;
}

static void fill_scene(struct scene *s)
{
	for (int r = 0; r < s->members; r++) {
		int64_t n = hspmd_box_elements(&s->held_in[r]), m = hspmd_box_elements(&s->held_out[r]);
		s->in[r] = malloc((size_t)n * sizeof(float));
		s->out[r] = malloc((size_t)m * sizeof(float));
		s->want[r] = malloc((size_t)m * sizeof(float));
		for (int64_t i = 0; i < n; i++)
			/* Sums of these values are not exact, so that the order of addition shows. */
			s->in[r][i] = ground->devcomm ? (float)draw(1000) : ldexpf((float)(draw(1 << 24) - (1 << 23)), (int)draw(12));
		for (int64_t i = 0; i < m; i++)
			s->out[r][i] = s->want[r][i] = (float)draw(1000);
	}
	s->layout[0] = make_layout(s, s->held_in);
	s->layout[1] = make_layout(s, s->held_out);
	s->transfer.element_bytes = 4;
	s->transfer.value_count = 2;
	s->transfer.layout = s->layout;
	s->step.input = 0;
	s->step.output = 1;
}

static int rank_of_device(int device)
{
	return (device - 3) / 2;
}

/* Compute one element of every output after the step. */
static void reference(struct scene *s)
{
	struct hspmd_comm_step *p = &s->step;
	bool sums = p->kind == HSPMD_COMM_ALL_REDUCE || p->kind == HSPMD_COMM_REDUCE_SCATTER;
	for (int m = 0; sums && m < p->member_count; m++) {
		int r = rank_of_device(p->members[m]);
		for (int64_t y = p->out[m].lo[0]; y < p->out[m].hi[0]; y++)
			for (int64_t x = p->out[m].lo[1]; x < p->out[m].hi[1]; x++) {
				float sum = 0;
				for (int i = 0; i < p->member_count; i++) {
					int from = rank_of_device(p->members[i]);
					float v = *at(s->in[from], &s->held_in[from], y, x);
					sum = i ? sum + v : v;
				}
				*at(s->want[r], &s->held_out[r], y, x) = sum;
			}
	}
	bool moves = p->kind == HSPMD_COMM_ALL_GATHER || p->kind == HSPMD_COMM_ALL_TO_ALL;
	for (int i = 0; moves && i < p->member_count; i++)
		for (int j = 0; j < p->member_count; j++) {
			int from = rank_of_device(p->members[i]), to = rank_of_device(p->members[j]);
			struct hspmd_box b;
			if (hspmd_box_intersect(&p->in[i], &p->out[j], &b))
				hspmd_box_copy(s->want[to], &s->held_out[to], s->in[from], &s->held_in[from], &b, 4);
		}
	for (int add = 0; add < 2; add++)
		for (int i = 0; i < p->move_count; i++) {
			struct hspmd_move *v = &p->moves[i];
			int from = rank_of_device(v->from), to = rank_of_device(v->to);
			if (v->add != add)
				continue;
			if (add)
				scene_add_box(s->want[to], &s->held_out[to], s->in[from], &s->held_in[from], &v->box);
			else
				hspmd_box_copy(s->want[to], &s->held_out[to], s->in[from], &s->held_in[from], &v->box, 4);
		}
	if (p->kind == HSPMD_COMM_COPY || p->kind == HSPMD_COMM_ZERO)
		for (int m = 0; m < p->member_count; m++) {
			int r = rank_of_device(p->members[m]);
			struct hspmd_box b = p->out[m];
			if (p->kind == HSPMD_COMM_COPY && !hspmd_box_intersect(&p->in[m], &p->out[m], &b))
				continue;
			for (int64_t y = b.lo[0]; y < b.hi[0]; y++)
				for (int64_t x = b.lo[1]; x < b.hi[1]; x++)
					*at(s->want[r], &s->held_out[r], y, x) =
					        p->kind == HSPMD_COMM_ZERO ? 0 : *at(s->in[r], &s->held_in[r], y, x);
		}
	if (p->kind == HSPMD_COMM_SEND_RECEIVE) {
		int from = rank_of_device(p->members[0]), to = rank_of_device(p->members[1]);
		hspmd_box_copy(s->want[to], &s->held_out[to], s->in[from], &s->held_in[from], &p->in[0], 4);
	}
}

/* ---- running the step */

struct runner {
	struct scene *s;
	int rank;
	pthread_t thread;
};

/* Open device-to-device communication: this rank's part, from all members' addresses. */
static int open_direct(struct scene *s, int rank, struct hspmd_device *dev, const int *rank_of, struct hspmd_communicator_cache *cache,
                       struct hspmd_devcomm **d, struct hspmd_error *err)
{
	struct hspmd_devcomm_use uses[SCENE_REPEAT];
	for (int i = 0; i < s->repeat; i++)
		uses[i] = (struct hspmd_devcomm_use){ &s->step, (uint64_t)(i + 1) << 8 };
	struct hspmd_devcomm_options o = {
		.device = dev,
		.cache = cache,
		.rank = rank,
		.size = s->members,
		.rank_of = rank_of,
		.count = 3 + 2 * SCENE_MEMBERS,
		.uses = uses,
		.use_count = (size_t)s->repeat,
		.abort = &s->failed,
		.timeout_s = LIMIT_S,
	};
	bool left_out = s->left_out == rank;
	int rv = left_out ? 0 : hspmd_devcomm_open(&o, d, err);
	if (!rv)
		rv = hspmd_devcomm_address(*d, &s->devcomm[rank], err);
	if (rv)
		atomic_store(&s->failed, 1);
	pthread_barrier_wait(&s->everybody);
	if (!atomic_load(&s->failed) && *d && (hspmd_devcomm_preconnect(*d, s->devcomm, err) || hspmd_devcomm_wait_ready(*d, err)))
		rv = -1;
	int groups, devcomm;
	hspmd_devcomm_counts(*d, &groups, &devcomm);
	s->directs += !rank && devcomm;
	return rv;
}

static int run_joined(struct hspmd_comm *c, const struct scene *s, const struct scene_part *all, uint64_t tag, struct hspmd_error *err)
{
	struct hspmd_comm_part parts[SCENE_PARTS];
	for (int k = 0; k < s->parts; k++)
		parts[k] = (struct hspmd_comm_part){ &all[k].transfer, k ? &all[k].step : &s->step, all[k].in, all[k].out };
	return hspmd_comm_run_joined(c, parts, s->parts, HSPMD_F32, tag, err);
}

static int run_steps(struct scene *s, int rank, struct hspmd_device *dev, struct hspmd_comm *c, struct hspmd_error *err)
{
	const struct hspmd_device_ops *ops = dev->ops;
	struct scene_part part[SCENE_PARTS] = { 0 };
	int rv = 0, expected = 0;
	for (int k = 0; k < s->parts && !rv; k++)
		rv = scene_open_part(s, rank, k, dev, &part[k]);
	for (int i = 0; i < s->repeat && !rv; i++) {
		for (int k = 0; k < s->parts && !rv; k++) {
			if (!s->in_place)
				rv = ops->to_device(dev, part[k].out, part[k].values[1], part[k].out_bytes, err);
			if (!rv)
				rv = ops->to_device(dev, part[k].in, part[k].values[0], part[k].in_bytes, err);
		}
		/* Some members post receives early, some several steps ahead. */
		int ahead = s->parts > 1 ? 0 : rank % 3 == 1 ? i + 1 : rank % 3 == 2 ? s->repeat : 0;
		for (; expected < ahead && !rv; expected++)
			rv = hspmd_comm_post_receives(c, &s->transfer, &s->step, HSPMD_F32, (uint64_t)(expected + 1) << 8, err) < 0;
		if (!rv && s->parts > 1)
			rv = run_joined(c, s, part, (uint64_t)(i + 1) << 8, err);
		else if (!rv)
			rv = hspmd_comm_run(c, &s->transfer, &s->step, HSPMD_F32, part->in, part->out, (uint64_t)(i + 1) << 8, err);
		for (int k = 0; k < s->parts && !rv; k++)
			rv = i % 2 ? hspmd_comm_flush(c, part[k].in, part[k].in_bytes, err) : hspmd_comm_flush(c, NULL, 0, err);
		for (int k = 0; k < s->parts && !rv; k++)
			rv = hspmd_comm_stream_wait(c, part[k].out, part[k].out_bytes, err);
	}
	if (!rv)
		rv = ops->to_host(dev, s->out[rank], part->out, part->out_bytes, err);
	bool check = !rv;
	for (int k = 0; k < s->parts; k++)
		rv |= part[k].in ? scene_close_part(s, dev, &part[k], check && k, err) : 0;
	return rv;
}

static int run_rank(struct scene *s, int rank)
{
	struct hspmd_error *err = &s->err[rank];
	struct hspmd_device *dev = ground->open(rank);
	struct hspmd_communicator_cache *cache = hspmd_communicator_cache_create();
	struct hspmd_devcomm *devcomm = NULL;
	int rank_of[3 + 2 * SCENE_MEMBERS], rv = dev && cache ? 0 : hspmd_fail(err, "no device");
	for (int d = 0; d < 3 + 2 * SCENE_MEMBERS; d++)
		rank_of[d] = d < 3 || d % 2 == 0 || rank_of_device(d) >= s->members ? -1 : rank_of_device(d);
	struct hspmd_comm *c = rv ? NULL : hspmd_comm_create(dev, s->transport[rank], rank_of, 3 + 2 * SCENE_MEMBERS, 3 + 2 * rank, err);
	if (!c)
		return -1;
	if (ground->devcomm)
		rv = open_direct(s, rank, dev, rank_of, cache, &devcomm, err);
	hspmd_comm_use_devcomm(c, devcomm);
	if (!rv)
		rv = run_steps(s, rank, dev, c, err);
	/* When all is sent nothing uses a buffer any more: otherwise every step would take new ones. */
	if (!rv)
		rv = hspmd_comm_flush(c, NULL, 0, err);
	for (const struct hspmd_scratch *b = c->pool; b && !rv; b = b->next)
		if (b->users)
			rv = hspmd_fail(err, "a buffer of %zu bytes still has %d users", b->size, b->users);
	hspmd_devcomm_close(devcomm, rv != 0);
	hspmd_comm_destroy(c);
	hspmd_communicator_cache_destroy(cache);
	ground->close(dev);
	return rv;
}

static void *run_thread(void *arg)
{
	struct runner *r = arg;
	r->s->rv[r->rank] = run_rank(r->s, r->rank);
	return NULL;
}

/* Small moves from one member to another use one message, however many boxes there are; moves that add use another. */
static void check_messages(const struct scene *s)
{
	int most[SCENE_MEMBERS][SCENE_MEMBERS] = { 0 };
	for (int i = 0; i < s->step.move_count; i++) {
		const struct hspmd_move *m = &s->step.moves[i];
		bool first = m->from != m->to;
		for (int k = 0; k < i; k++)
			first &= s->step.moves[k].from != m->from || s->step.moves[k].to != m->to || !s->step.moves[k].add != !m->add;
		most[rank_of_device(m->from)][rank_of_device(m->to)] += first;
	}
	for (int from = 0; from < s->members; from++)
		for (int to = 0; to < s->members; to++)
			if (s->sent[from][to] != s->repeat * most[from][to])
				fail_msg("%d messages from rank %d to %d in %d turns, not %d each", s->sent[from][to], from, to, s->repeat,
				         most[from][to]);
}

/* Sums of many members, unless they are small, pass along the members: each sends to the one before and the one after it only, and the last
 * one of a reduce-scatter to the owners. */
static void check_chain(const struct scene *s)
{
	bool scatter = s->step.kind == HSPMD_COMM_REDUCE_SCATTER, all = s->step.kind == HSPMD_COMM_ALL_REDUCE;
	size_t bytes = s->members * (size_t)hspmd_box_elements(&s->step.in[0]) * 4;
	if (ground->devcomm || s->members <= 16 || !(scatter || (all && bytes > 4u << 20)))
		return;
	for (int i = 0; i < s->members; i++)
		for (int k = 0; k < s->members; k++) {
			bool may = k == i + 1 || (all && k == i - 1) || (scatter && i == s->members - 1);
			int sent = s->sent[rank_of_device(s->step.members[i])][rank_of_device(s->step.members[k])];
			if (sent && !may)
				fail_msg("%s of %d: member %d has sent %d messages to member %d", hspmd_comm_kind_names[s->step.kind],
				         s->members, i, sent, k);
		}
	chains++;
}

/* In an all-gather of many members, unless it is small, each sends to the next one only. */
static void check_ring(const struct scene *s)
{
	size_t most = 0;
	for (int i = 0; i < s->members; i++) {
		size_t bytes = (size_t)hspmd_box_elements(&s->step.in[i]) * 4;
		most = bytes > most ? bytes : most;
	}
	if (ground->devcomm || s->step.kind != HSPMD_COMM_ALL_GATHER || s->members <= 16 || most * (size_t)s->members <= 4u << 20)
		return;
	for (int i = 0; i < s->members; i++)
		for (int k = 0; k < s->members; k++)
			if (k != (i + 1) % s->members && s->sent[rank_of_device(s->step.members[i])][rank_of_device(s->step.members[k])])
				fail_msg("all-gather of %d: member %d has sent messages to member %d", s->members, i, k);
	rings++;
}

static void run_scene(struct scene *s, const char *what)
{
	struct hspmd_address a[SCENE_MEMBERS];
	struct runner runner[SCENE_MEMBERS];
	struct hspmd_error err;
	struct hspmd_transport_ops counting = hspmd_transport_memory;
	counting.send = send_and_count;
	playing = s;
	fill_scene(s);
	reference(s);
	pthread_barrier_init(&s->everybody, NULL, (unsigned)s->members);
	for (int r = 0; r < s->members; r++) {
		struct hspmd_transport_options o = { .rank = r, .size = s->members, .timeout_s = LIMIT_S };
		assert_int_equal(hspmd_transport_memory.open(&o, &s->transport[r], &err), 0);
		assert_int_equal(hspmd_transport_memory.address(s->transport[r], &a[r], &err), 0);
	}
	for (int r = 0; r < s->members; r++)
		assert_int_equal(hspmd_transport_memory.connect(s->transport[r], a, &err), 0);
	for (int r = 0; r < s->members; r++)
		s->transport[r]->ops = &counting;
	for (int r = 0; r < s->members; r++) {
		runner[r] = (struct runner){ .s = s, .rank = r };
		assert_int_equal(pthread_create(&runner[r].thread, NULL, run_thread, &runner[r]), 0);
	}
	for (int r = 0; r < s->members; r++)
		pthread_join(runner[r].thread, NULL);
	for (int r = 0; r < s->members; r++) {
		size_t bytes = (size_t)hspmd_box_elements(&s->held_out[r]) * 4;
		if (s->rv[r] || memcmp(s->out[r], s->want[r], bytes)) {
			print_error("%s: rank %d of %d: %s\n", what, r, s->members, s->rv[r] ? s->err[r].text : "wrong result");
			fail();
		}
		hspmd_transport_memory.close(s->transport[r]);
		free(a[r].data);
		free(s->devcomm[r].data);
		free(s->in[r]);
		free(s->out[r]);
		free(s->want[r]);
	}
	pthread_barrier_destroy(&s->everybody);
	if (s->small)
		check_messages(s);
	check_chain(s);
	check_ring(s);
	ground->directs += s->directs;
	for (int v = 0; v < 2; v++) {
		free(s->layout[v].devices);
		free(s->layout[v].box);
	}
	free(s->step.members);
	free(s->step.in);
	free(s->step.out);
	free(s->step.moves);
}

static void new_scene(struct scene *s, enum hspmd_comm_kind kind, int members)
{
	memset(s, 0, sizeof *s);
	s->members = members;
	s->repeat = 1 + (int)draw(SCENE_REPEAT);
	s->left_out = ground->devcomm && draw(4) == 0 ? (int)draw(members) : -1;
	s->parts = draw(3) ? 1 : 2 + (int)draw(SCENE_PARTS - 1);
	s->step.kind = kind;
	s->step.member_count = members;
	s->step.members = calloc(SCENE_MEMBERS, sizeof *s->step.members);
	s->step.in = calloc(SCENE_MEMBERS, sizeof *s->step.in);
	s->step.out = calloc(SCENE_MEMBERS, sizeof *s->step.out);
	for (int m = 0; m < members; m++)
		s->step.members[m] = 3 + 2 * m;
	for (int m = members - 1; m > 0; m--) {
		int k = (int)draw(m + 1), t = s->step.members[m];
		s->step.members[m] = s->step.members[k];
		s->step.members[k] = t;
	}
}

/* Small shapes that fit one message, and some that need many. */
static struct hspmd_box random_whole(int trial)
{
	struct hspmd_box w = { .rank = 2, .lo = { draw(5), draw(5) } };
	bool large = trial % 8 == 0;
	w.hi[0] = w.lo[0] + 1 + draw(large ? ground->longest : 40);
	w.hi[1] = w.lo[1] + 1 + draw(large ? ground->longest : 40);
	return w;
}

void scene_sums(int trials)
{
	for (int trial = 0; trial < trials; trial++) {
		struct scene s;
		bool scatter = trial % 2;
		int few = ground->devcomm || trial % 3 ? SCENE_FEW : 0;
		new_scene(&s, scatter ? HSPMD_COMM_REDUCE_SCATTER : HSPMD_COMM_ALL_REDUCE,
		          few ? 1 + (int)draw(few) : SCENE_MEMBERS - (int)draw(8));
		struct hspmd_box whole = random_whole(trial / 2), box = random_box(&whole);
		s.in_place = !scatter && trial % 4 == 0;
		for (int m = 0; m < s.members; m++) {
			int r = rank_of_device(s.step.members[m]);
			s.step.in[m] = box;
			s.step.out[m] = scatter ? random_box(&box) : box;
			s.held_in[r] = s.in_place ? box : around(&box, &whole);
			s.held_out[r] = s.in_place ? box : around(&s.step.out[m], &whole);
		}
		if (s.in_place)
			s.repeat = 1;
		run_scene(&s, hspmd_comm_kind_names[s.step.kind]);
	}
	assert_true(ground->devcomm || trials < 100 || chains > trials / 20);
}

/* Disjoint rows of a box, some of them empty. */
static void deal_rows(const struct scene *s, const struct hspmd_box *box, struct hspmd_box *part)
{
	int64_t lo = box->lo[0];
	for (int m = 0; m < s->members; m++) {
		part[m] = *box;
		part[m].lo[0] = lo;
		lo = m + 1 == s->members ? box->hi[0] : lo + draw(box->hi[0] - lo + 1);
		part[m].hi[0] = lo;
	}
}

void scene_gathers(int trials)
{
	for (int trial = 0; trial < trials; trial++) {
		struct scene s;
		bool all = trial % 2;
		int few = ground->devcomm || (trial % 3 && trial % 16 > 1) ? SCENE_FEW : 0; /* large ones have many */
		new_scene(&s, all ? HSPMD_COMM_ALL_GATHER : HSPMD_COMM_ALL_TO_ALL, few ? 1 + (int)draw(few) : SCENE_MEMBERS - (int)draw(8));
		struct hspmd_box whole = random_whole(trial / 2), box = few ? random_box(&whole) : whole;
		deal_rows(&s, &box, s.step.in);
		for (int m = 0; m < s.members; m++) {
			int r = rank_of_device(s.step.members[m]);
			s.step.out[m] = all ? box : random_box(&box);
			s.held_in[r] = hspmd_box_empty(&s.step.in[m]) ? box : around(&s.step.in[m], &whole);
			s.held_out[r] = around(&s.step.out[m], &whole);
		}
		run_scene(&s, hspmd_comm_kind_names[s.step.kind]);
	}
	assert_true(ground->devcomm || trials < 100 || rings > trials / 100);
}

static int by_pair(const void *a, const void *b)
{
	const struct hspmd_move *x = a, *y = b;
	return x->from != y->from ? x->from - y->from : x->to - y->to;
}

/* Moves to one receiver that overwrite must not overlap; moves that add may. Rows are assigned accordingly. */
void scene_batched(int trials)
{
	for (int trial = 0; trial < trials; trial++) {
		struct scene s;
		new_scene(&s, HSPMD_COMM_BATCHED, 1 + (int)draw(SCENE_FEW));
		struct hspmd_box whole = random_whole(trial), part[SCENE_MEMBERS];
		s.step.moves = calloc(8 * SCENE_MEMBERS, sizeof *s.step.moves);
		for (int to = 0; to < s.members; to++) {
			s.held_in[to] = s.held_out[to] = whole;
			deal_rows(&s, &whole, part);
			for (int k = 0; k < s.members; k++)
				if (!hspmd_box_empty(&part[k]) && draw(4))
					s.step.moves[s.step.move_count++] = (struct hspmd_move){ .from = 3 + 2 * (int)draw(s.members),
						                                                 .to = 3 + 2 * to,
						                                                 .box = part[k] };
			for (int k = (int)draw(3); k > 0; k--)
				s.step.moves[s.step.move_count++] = (struct hspmd_move){
					.from = 3 + 2 * (int)draw(s.members), .to = 3 + 2 * to, .box = random_box(&whole), .add = 1
				};
		}
		qsort(s.step.moves, (size_t)s.step.move_count, sizeof *s.step.moves, by_pair);
		s.small = trial % 8 && !ground->devcomm;
		run_scene(&s, hspmd_comm_kind_names[s.step.kind]);
	}
}

void scene_local_and_pair(int trials)
{
	static const enum hspmd_comm_kind kinds[] = { HSPMD_COMM_COPY, HSPMD_COMM_ZERO, HSPMD_COMM_SEND_RECEIVE };
	for (int trial = 0; trial < trials; trial++) {
		struct scene s;
		new_scene(&s, kinds[trial % 3], trial % 3 == 2 ? 2 : 1 + (int)draw(SCENE_FEW));
		struct hspmd_box whole = random_whole(trial / 3), box = random_box(&whole);
		for (int m = 0; m < s.members; m++) {
			int r = rank_of_device(s.step.members[m]);
			s.step.in[m] = box;
			s.step.out[m] = trial % 3 == 2 ? box : random_box(&box);
			s.held_in[r] = around(&box, &whole);
			s.held_out[r] = around(&box, &whole);
		}
		run_scene(&s, hspmd_comm_kind_names[s.step.kind]);
	}
}
