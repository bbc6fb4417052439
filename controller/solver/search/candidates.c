/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates: which sequences of submeshes a pipeline may be made of.
 *
 * If there are few, all of them: every multiset of submeshes that the cluster can supply, in every order that differs (few classes, few
 * devices). If there are many, those into which the inventory can be distributed evenly: for every set of device classes, the best
 * degrees of each, and every number of pipelines P, a sequence has the P-th part of each device class's submeshes, rounded down or up.
 * The order matters little, except which device classes come first, as early stages hold more activations: device classes are kept
 * together and tried in a few orders. For the next micro-batches and schedules only the sequences that did well with the first one are
 * tried, for ZB-H1 as many of those that it has the memory for.
 *
 * Of the sequences with the same devices the best few are kept. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/candidates_internal.h"

#define SEQUENCES_ALL 5000 /* up to so many sequences, all are tried */
#define ORDERS_ALL 120      /* orders of one multiset that are tried if all sequences are */
#define ORDERS_EVEN 12      /* orders tried in even distributions of one or two device classes */
#define ORDERS_MANY 4       /* and of more device classes */
#define DEVICES_SHARED 32   /* least number of devices for which several threads look at sequences, */
#define TOGETHER 128        /* ... so many at a time */
#define CHOICES 64       /* choices of one degree per device class of a set */
#define CLASSES_FEW 5    /* up to so many device classes, every set of them is distributed */
#define PIPELINE_STEP 12 /* numbers of pipelines above this are tried in steps */
#define SEQUENCES_MIN                                                                                                                      \
	6000 /* sequences that are tried in even distributions: SEQUENCES_WORK divided by the number of devices, within these limits */
#define SEQUENCES_MAX 16000
#define SEQUENCES_WORK 2000000
#define SEQUENCES_FEW 3 /* divides their number where a part is enough */

void hspmd_candidates_clear(struct hspmd_candidates *l)
{
	free(l->candidates);
	*l = (struct hspmd_candidates){ 0 };
}

/* ---- every order */

static double orders(const struct builder *b)
{
	double n = 1;
	for (int u = 0, placed = 0; u < b->t->submesh_count; u++)
		for (int i = 1; i <= b->chosen[u]; i++)
			n = n * ++placed / i;
	return n;
}

/* The next permutation in lexicographic order. Returns false after the last. */
static bool next_order(unsigned char *x, int n)
{
	int i = n - 2, j = n - 1;
	while (i >= 0 && x[i] >= x[i + 1])
		i--;
	if (i < 0)
		return false;
	while (x[j] <= x[i])
		j--;
	unsigned char swap = x[i];
	x[i] = x[j];
	x[j] = swap;
	for (int a = i + 1, z = n - 1; a < z; a++, z--) {
		swap = x[a];
		x[a] = x[z];
		x[z] = swap;
	}
	return true;
}

/* Try sequences that keep the submeshes of each device class together, the device classes in the order given, wide submeshes before
 * narrow ones or the other way round. */
static void try_blocks(struct builder *b, const int *device_classes, int count, bool wide_first)
{
	struct hspmd_stage_sequence sequence = { 0 };
	for (int k = 0; k < count; k++)
		for (int i = 0; i < b->t->submesh_count; i++) {
			int u = wide_first ? b->t->submesh_count - 1 - i : i;
			if (b->t->submeshes[u].device_class != device_classes[k])
				continue;
			for (int n = 0; n < b->chosen[u]; n++)
				sequence.submesh[sequence.stages++] = (unsigned char)u;
		}
	hspmd_candidates_try(b, &sequence);
}

static void order_classes(struct builder *b, int *device_classes, int from, int count, int *left)
{
	if (from == count) {
		bool mixed = false;
		for (int u = 1; u < b->t->submesh_count; u++)
			mixed = mixed || (b->chosen[u] && b->chosen[u - 1] &&
			                  b->t->submeshes[u].device_class == b->t->submeshes[u - 1].device_class);
		try_blocks(b, device_classes, count, true);
		if (mixed)
			try_blocks(b, device_classes, count, false);
		(*left)--;
		return;
	}
	for (int i = from; i<count && * left> 0; i++) {
		int swap = device_classes[from];
		device_classes[from] = device_classes[i];
		device_classes[i] = swap;
		order_classes(b, device_classes, from + 1, count, left);
		swap = device_classes[from];
		device_classes[from] = device_classes[i];
		device_classes[i] = swap;
	}
}

static void try_chosen(struct builder *b)
{
	struct hspmd_stage_sequence sequence = { 0 };
	if (!b->stages || b->short_of_memory || hspmd_search_is_over(b->s))
		return;
	int most = b->out->exhaustive ? ORDERS_ALL : b->t->device_classes->count <= 2 ? ORDERS_EVEN : ORDERS_MANY;
	if (orders(b) <= most) {
		for (int u = 0; u < b->t->submesh_count; u++)
			for (int n = 0; n < b->chosen[u]; n++)
				sequence.submesh[sequence.stages++] = (unsigned char)u;
		do
			hspmd_candidates_try(b, &sequence);
		while (next_order(sequence.submesh, sequence.stages));
		return;
	}
	int device_classes[HSPMD_DEVICE_CLASSES_MAX], count = 0, left = most;
	for (int k = 0; k < b->t->device_classes->count; k++)
		if (b->use[k])
			device_classes[count++] = k;
	order_classes(b, device_classes, 0, count, &left);
}

/* ---- all multisets */

static int deepest(const struct builder *b)
{
	return b->t->layers < HSPMD_STAGES_MAX ? b->t->layers : HSPMD_STAGES_MAX;
}

/* Count the multisets of submeshes from `submesh` on, or try them; stops at SEQUENCES_ALL. */
static void multisets(struct builder *b, int submesh, bool count_only)
{
	if (submesh == b->t->submesh_count) {
		if (count_only)
			b->sequences += (int)fmin(orders(b), ORDERS_ALL);
		else
			try_chosen(b);
		return;
	}
	const struct hspmd_submesh *u = &b->t->submeshes[submesh];
	int in_nodes =
	            b->t->device_classes->list[u->device_class].node_count * (b->t->device_classes->list[u->device_class].per_node / u->tp),
	    taken = 0;
	while (!count_only || b->sequences <= SEQUENCES_ALL) {
		multisets(b, submesh + 1, count_only);
		if (taken == in_nodes || b->stages == deepest(b) || b->use[u->device_class] + u->tp > b->s->available[u->device_class])
			break;
		taken++;
		b->chosen[submesh]++;
		b->stages++;
		b->use[u->device_class] += u->tp;
	}
	b->chosen[submesh] = 0;
	b->stages -= taken;
	b->use[u->device_class] -= taken * u->tp;
}

/* ---- even distributions */

static double rate_of_device(const struct builder *b, int submesh)
{
	return b->t->submeshes[submesh].rate / b->t->submeshes[submesh].tp;
}

/* Fill submeshes with the submeshes of a device class, the fastest per device first. Returns their number. */
static int rank_submeshes(const struct builder *b, int device_class, int *submeshes)
{
	int count = 0;
	for (int u = 0; u < b->t->submesh_count; u++) {
		if (b->t->submeshes[u].device_class != device_class || b->t->submeshes[u].tp > b->s->widest)
			continue;
		int at = count++;
		for (; at > 0 && rate_of_device(b, submeshes[at - 1]) < rate_of_device(b, u); at--)
			submeshes[at] = submeshes[at - 1];
		submeshes[at] = u;
	}
	return count;
}

static int submeshes_available(const struct builder *b, int submesh)
{
	const struct hspmd_submesh *u = &b->t->submeshes[submesh];
	const struct hspmd_device_class *k = &b->t->device_classes->list[u->device_class];
	int whole = k->per_node / u->tp * k->node_count, allowed = b->s->available[u->device_class] / u->tp;
	return whole < allowed ? whole : allowed;
}

/* What is distributed over the pipelines: one submesh of each device class of a set. */
struct distribution {
	int count, submesh[HSPMD_DEVICE_CLASSES_MAX], pipelines;
	bool nearest; /* round each device class only to the nearest whole number, not both ways */
};

/* Take one pipeline's part of the `at`-th submesh of the distribution, and go on with the next. */
static void distribute_submesh(struct builder *b, const struct distribution *d, int at)
{
	if (b->short_of_memory || b->stages > deepest(b))
		return;
	if (at == d->count) {
		try_chosen(b);
		return;
	}
	const struct hspmd_submesh *u = &b->t->submeshes[d->submesh[at]];
	int count = submeshes_available(b, d->submesh[at]), low = count / d->pipelines, high = (count + d->pipelines - 1) / d->pipelines;
	if (d->nearest)
		low = high = (count + d->pipelines / 2) / d->pipelines;
	for (int n = low; n <= high; n++) {
		b->chosen[d->submesh[at]] = n;
		b->stages += n;
		b->use[u->device_class] += n * u->tp;
		distribute_submesh(b, d, at + 1);
		b->chosen[d->submesh[at]] = 0;
		b->stages -= n;
		b->use[u->device_class] -= n * u->tp;
	}
}

/* Try every number of pipelines that distributes the submeshes differently: all if there are few, otherwise in steps of a tenth. */
static void distribute_evenly(struct builder *b, struct distribution *d)
{
	int most = 0, sum = 0;
	for (int i = 0; i < d->count; i++) {
		sum += submeshes_available(b, d->submesh[i]);
		most = submeshes_available(b, d->submesh[i]) > most ? submeshes_available(b, d->submesh[i]) : most;
	}
	most = most < b->max_micro_batches ? most : b->max_micro_batches;
	for (int p = most; p > 0 && (sum + p - 1) / p <= 2 * deepest(b) && !hspmd_search_is_over(b->s); p -= 1 + p / PIPELINE_STEP) {
		d->pipelines = b->copies.pipelines = p;
		distribute_submesh(b, d, 0);
	}
}

/* Try all choices of one submesh per device class, of the `widths` best ones each. */
static void distribute_set(struct builder *b, const int *device_classes, int count)
{
	int submeshes[HSPMD_DEVICE_CLASSES_MAX][HSPMD_SUBMESHES_MAX], widths[HSPMD_DEVICE_CLASSES_MAX],
	        at[HSPMD_DEVICE_CLASSES_MAX] = { 0 }, widest = HSPMD_SUBMESHES_MAX;
	struct distribution d = { .count = count, .nearest = count > 2 };
	while (widest > 1 && pow(widest, count) > (count == 1 ? HSPMD_SUBMESHES_MAX : CHOICES))
		widest--;
	for (int i = 0; i < count; i++) {
		widths[i] = rank_submeshes(b, device_classes[i], submeshes[i]);
		widths[i] = widths[i] < widest ? widths[i] : widest;
	}
	for (int i = 0; i < count && b->sequences < b->sequences_max;) {
		for (int k = 0; k < count; k++)
			d.submesh[k] = submeshes[k][at[k]];
		distribute_evenly(b, &d);
		if (b->short_of_memory || hspmd_search_is_over(b->s))
			return;
		for (i = 0; i < count && ++at[i] >= widths[i]; i++)
			at[i] = 0;
	}
}

/* Try sets of device classes: each class alone, all together, pairs, and the other sets if there are few device classes. */
static void even_distributions(struct builder *b)
{
	int device_classes = b->t->device_classes->count, chosen[HSPMD_DEVICE_CLASSES_MAX];
	for (int round = 0; round < device_classes; round++) {
		int size = round == 0 ? 1 : round == 1 ? device_classes : round;
		for (unsigned set = 1; set < 1u << device_classes; set++) {
			int count = 0;
			for (int k = 0; k < device_classes; k++)
				if ((set & 1u << k) && b->s->available[k] > 0)
					chosen[count++] = k;
			if (count != __builtin_popcount(set) || count != size ||
			    (device_classes > CLASSES_FEW && count > 2 && count < device_classes))
				continue;
			distribute_set(b, chosen, count);
		}
	}
}

/* ---- sequences that did well with another micro-batch */

static void try_warm_starts(struct builder *b)
{
	const struct hspmd_search *s = b->s;
	int count = b->t->schedule == HSPMD_SCHEDULE_ZB_H1 ? s->warm_start_count : s->warm_start_any;
	for (int i = 0; i < count && !b->short_of_memory && !hspmd_search_is_over(b->s); i++) {
		const struct hspmd_stage_sequence *sequence = &s->warm_starts[i].sequence;
		memset(b->use, 0, sizeof b->use);
		for (int k = 0; k < sequence->stages; k++)
			b->use[b->t->submeshes[sequence->submesh[k]].device_class] += b->t->submeshes[sequence->submesh[k]].tp;
		b->copies.pipelines = s->warm_starts[i].pipelines;
		b->stages = sequence->stages;
		hspmd_candidates_try(b, sequence);
	}
	memset(b->use, 0, sizeof b->use);
	b->stages = 0;
}

static int by_waste(const void *x, const void *y)
{
	const struct hspmd_pipeline_candidate *a = x, *b = y;
	double p = a->partition.period_s * a->rates, q = b->partition.period_s * b->rates;
	if (p != q)
		return p < q ? -1 : 1;
	int d = a->partition.sequence.stages - b->partition.sequence.stages;
	return d ? d : memcmp(a->partition.sequence.submesh, b->partition.sequence.submesh, (size_t)a->partition.sequence.stages);
}

/* Returns true if the candidate's sequence can hold the model under ZB-H1 too, which needs more memory than the others. */
static bool fits_zb_h1(const struct builder *b, const struct hspmd_pipeline_candidate *c)
{
	enum hspmd_schedule own = b->t->schedule;
	b->t->schedule = HSPMD_SCHEDULE_ZB_H1;
	bool fits = hspmd_partition_fits(b->t, &c->partition.sequence, &c->copies, b->max_micro_batches);
	b->t->schedule = own;
	return fits;
}

static void remember_one(struct hspmd_search *s, struct hspmd_pipeline_candidate *c)
{
	s->warm_starts[s->warm_start_count].sequence = c->partition.sequence;
	s->warm_starts[s->warm_start_count++].pipelines = c->copies.pipelines;
	c->remembered = true;
}

/* Remember the sequences that lose least time to imbalance. Half of the places go to the sequences of each depth in turn, as a larger
 * micro-batch may need more stages. Where memory is short, those that only other schedules than ZB-H1 have the memory for may take most
 * places: as many as are missing are added for it. */
static void remember(struct builder *b, const struct hspmd_candidates *l)
{
	struct hspmd_search *s = b->s;
	int of_depth[HSPMD_STAGES_MAX + 1] = { 0 };
	qsort(l->candidates, (size_t)l->count, sizeof *l->candidates, by_waste);
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < l->count && s->warm_start_count < (pass ? HSPMD_WARM_STARTS : HSPMD_WARM_STARTS / 2); i++) {
			struct hspmd_pipeline_candidate *c = &l->candidates[i];
			bool deep = ++of_depth[c->partition.sequence.stages] > HSPMD_WARM_STARTS / 32;
			if (pass ? deep : i >= HSPMD_WARM_STARTS / 2)
				continue;
			remember_one(s, c);
		}
	s->warm_start_any = s->warm_start_count;
	if (b->t->schedule == HSPMD_SCHEDULE_ZB_H1 || !(s->caps.schedules & 1u << HSPMD_SCHEDULE_ZB_H1))
		return;
	int missing = s->warm_start_any;
	for (int i = 0; i < l->count; i++)
		missing -= l->candidates[i].remembered && fits_zb_h1(b, &l->candidates[i]);
	for (int i = 0; i < l->count && missing > 0 && !hspmd_search_is_over(s); i++)
		if (!l->candidates[i].remembered && fits_zb_h1(b, &l->candidates[i])) {
			remember_one(s, &l->candidates[i]);
			missing--;
		}
}

struct ranked {
	double waste; /* period divided by the bound on it; 1: no time is lost */
	int candidate;
};

static int by_ranked_waste(const void *x, const void *y)
{
	const struct ranked *a = x, *b = y;
	return a->waste < b->waste ? -1 : a->waste > b->waste ? 1 : a->candidate - b->candidate;
}

int *hspmd_candidates_rank(const struct hspmd_candidates *l)
{
	struct ranked *ranked = hspmd_calloc((size_t)l->count, sizeof *ranked);
	int *order = ranked ? hspmd_calloc((size_t)l->count, sizeof *order) : NULL;
	for (int i = 0; order && i < l->count; i++)
		ranked[i] = (struct ranked){ l->candidates[i].partition.period_s * l->candidates[i].rates, i };
	if (order)
		qsort(ranked, (size_t)l->count, sizeof *ranked, by_ranked_waste);
	for (int i = 0; order && i < l->count; i++)
		order[i] = ranked[i].candidate;
	free(ranked);
	return order;
}

bool hspmd_candidates_are_exhaustive(struct hspmd_search *s, struct hspmd_submesh_tables *t)
{
	struct builder b = { .s = s, .t = t };
	if (s->request->even_only)
		return false;
	multisets(&b, 0, true);
	return b.sequences <= SEQUENCES_ALL;
}

/* Try sequences. Returns 0, or -1 if memory runs out. */
static int fill(struct builder *b, bool zero)
{
	struct hspmd_search *s = b->s;
	struct hspmd_candidates *out = b->out;
	if (out->exhaustive) {
		multisets(b, 0, false);
		hspmd_candidates_look(b);
		return b->short_of_memory ? -1 : 0;
	}
	if (s->warm_start_micro_batch <= b->t->micro_batch && s->warm_start_zero == zero)
		try_warm_starts(b);
	hspmd_candidates_look(b);
	if (b->t->schedule == HSPMD_SCHEDULE_ZB_H1 && s->warm_start_count && s->caps.schedules & 1u << HSPMD_SCHEDULE_1F1B)
		return b->short_of_memory ? -1 : 0; /* those for 1F1B need less memory: there are no others */
	if ((out->count + b->useless) * 2 <= s->warm_start_any || !s->warm_start_count || s->warm_start_micro_batch > b->t->micro_batch ||
	    s->warm_start_zero != zero) {
		even_distributions(b);
		hspmd_candidates_look(b);
		s->warm_start_count = 0;
		s->warm_start_micro_batch = b->t->micro_batch;
		s->warm_start_zero = zero;
		remember(b, out);
	}
	return b->short_of_memory ? -1 : 0;
}

int hspmd_candidates_fill(struct hspmd_search *s, struct hspmd_submesh_tables *t, int pipelines, bool zero,
                          struct hspmd_partition_memo *memo, struct hspmd_candidates *out)
{
	struct builder b = { .s = s,
		             .t = t,
		             .copies = { .pipelines = pipelines, .zero = zero },
		             .max_micro_batches = s->request->global_batch / t->micro_batch,
		             .memo = memo,
		             .together = 1,
		             .out = out };
	int devices = 0;
	for (int k = 0; k < t->device_classes->count; k++)
		devices += s->available[k];
	b.fair = (double)b.max_micro_batches / devices;
	b.sequences_max = (int)fmin(fmax((double)SEQUENCES_WORK / devices, SEQUENCES_MIN), SEQUENCES_MAX);
	b.sequences_max /= s->few_sequences ? SEQUENCES_FEW : 1;
	out->exhaustive = hspmd_candidates_are_exhaustive(s, t);
	if (!out->exhaustive && !memo && devices >= DEVICES_SHARED) { /* without a memo no sequence needs what was found for another */
		b.together = TOGETHER;
		b.views = hspmd_search_tables_views(s, t);
	}
	b.waiting = hspmd_calloc((size_t)b.together, sizeof *b.waiting);
	int rc = b.waiting && (b.views || b.together == 1) ? fill(&b, zero) : -1;
	hspmd_search_tables_views_destroy(s, b.views);
	free(b.waiting);
	return rc;
}
