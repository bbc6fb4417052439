/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of shards on other nodes. Each worker sends its image piece by piece to the workers that keep a copy, and writes what it
 * receives from others as it arrives, so that a copy costs a few buffers and no second image. Checksums of the pieces follow at the end:
 * a copy gets its name only if it agrees with them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/json.h"
#include "runtime/state/state_internal.h"

/* Size of a message, and number of messages in transit per pair. */
#define PIECE ((size_t)8 << 20)
#define WINDOW 2

enum { TAG_OFFER = 1, TAG_PIECE, TAG_SUMS };

/* The first message. */
struct offer {
	uint64_t bytes;
	int64_t step, generation;
	char file[232];
};

/* The data received from one worker. */
struct source {
	int rank;
	struct offer offer;
	struct hspmd_request *request[WINDOW];
	char *piece[WINDOW];
	uint64_t *sums, *expected_sums; /* checksums of the pieces: computed and received */
	size_t pieces, posted;
	struct hspmd_atomic_file store;
	bool open;              /* the file is open; if the disk fails, receiving continues, because the sender waits for it */
	bool declined;          /* it is not kept */
	bool lost, complete;    /* lost: nothing more arrives; complete: everything has arrived and agrees */
	struct hspmd_error err; /* the first error */
};

struct target {
	int rank;
	struct hspmd_request *request[WINDOW];
	bool lost;
};

/* Memory that messages use. After a failure the transport owns it, because abandoned messages may still use it. */
struct block {
	struct hspmd_deferred_free deferred;
	struct block *next;
};

struct run {
	const struct hspmd_copy_routes *c;
	struct hspmd_transport *t;
	const struct hspmd_image *image;
	const char *node;
	bool root; /* shards are reported for a root */
	char *folder;
	struct offer own;
	uint64_t *sums; /* of the image's pieces */
	size_t pieces;
	struct source *sources;
	struct target *targets;
	struct block *blocks;
	struct hspmd_error err; /* the first failure of any copy */
};

/* ---- choice of keepers */

/* Keepers are chosen one shard after the other. */
struct choice {
	const struct hspmd_losses *losses;
	const struct hspmd_copy_worker *w;
	int workers;
	uint64_t *of_node, *of_worker; /* bytes kept for others, by node and by worker */
	int *nodes;                    /* space for all nodes */
};

/* What the parts of a shard lack (hspmd_losses_lack) on their own nodes, those of the `count` keepers chosen so far, and node `more` (-1:
 * none). */
static long lack(const struct choice *c, int self, const int *chosen, int count, int more)
{
	const struct hspmd_copy_worker *w = &c->w[self];
	long sum = 0;
	for (int p = 0; p < w->part_count; p++) {
		int n = w->parts[p].count;
		memcpy(c->nodes, w->parts[p].nodes, (size_t)n * sizeof *c->nodes);
		for (int i = 0; i <= count; i++) {
			int node = i < count ? c->w[chosen[i]].node : more, k = 0;
			while (k < n && c->nodes[k] != node)
				k++;
			if (k == n && node >= 0)
				c->nodes[n++] = node;
		}
		sum += hspmd_losses_lack(c->losses, c->nodes, n);
	}
	return sum;
}

/* Choose the next keeper, among workers that may keep one more copy: on the node that helps most, among these the node that keeps fewest
 * bytes, and there the worker that keeps fewest; among equals the first after `self`, which spreads copies. -1: nothing is missing, or
 * no worker helps. */
static int keeper(const struct choice *c, int self, const int *chosen, int count)
{
	long now = lack(c, self, chosen, count, -1), least = now;
	int best = -1;
	for (int step = 1; step < c->workers && now > 0; step++) {
		int k = (self + step) % c->workers, node = c->w[k].node;
		long then = best >= 0 && node == c->w[best].node ? least : lack(c, self, chosen, count, node);
		if (then > least || then == now)
			continue;
		if (then < least || c->of_node[node] < c->of_node[c->w[best].node] ||
		    (node == c->w[best].node && c->of_worker[k] < c->of_worker[best])) {
			least = then;
			best = k;
		}
	}
	return best;
}

static int by_bytes(const void *a, const void *b, void *context)
{
	const struct hspmd_copy_worker *w = context;
	int x = *(const int *)a, y = *(const int *)b;
	return w[x].bytes != w[y].bytes ? (w[x].bytes < w[y].bytes ? 1 : -1) : x - y;
}

int hspmd_copies_assign(const struct hspmd_losses *losses, const struct hspmd_copy_worker *w, int workers, int most, int *to,
                        struct hspmd_error *err)
{
	struct choice c = { .losses = losses,
		            .w = w,
		            .workers = workers,
		            .of_node = hspmd_calloc((size_t)losses->nodes, sizeof *c.of_node),
		            .of_worker = hspmd_calloc((size_t)workers, sizeof *c.of_worker),
		            .nodes = hspmd_calloc((size_t)losses->nodes + 1, sizeof *c.nodes) };
	int *order = hspmd_calloc((size_t)workers, sizeof *order);
	int rv = c.of_node && c.of_worker && c.nodes && order ? 0 : hspmd_fail_memory(err, "choosing who keeps copies");
	for (int i = 0; !rv && i < workers; i++)
		order[i] = i;
	if (!rv && workers)
		qsort_r(order, (size_t)workers, sizeof *order, by_bytes,
		        (void *)(uintptr_t)w); /* the largest first, as in LPT scheduling (Graham 1969) */
	for (int i = 0; !rv && i < workers; i++) {
		int self = order[i], *own = &to[self * most], count = 0, k;
		while (count < most && (k = keeper(&c, self, own, count)) >= 0) {
			c.of_node[w[k].node] += w[self].bytes;
			c.of_worker[k] += w[self].bytes;
			own[count++] = k;
		}
		while (count < most)
			own[count++] = -1;
	}
	free(c.of_node);
	free(c.of_worker);
	free(c.nodes);
	free(order);
	return rv;
}

/* ---- memory */

static void *allocate(struct run *r, size_t bytes)
{
	size_t block_bytes = HSPMD_IMAGE_ALIGN + (bytes + HSPMD_IMAGE_ALIGN - 1) / HSPMD_IMAGE_ALIGN * HSPMD_IMAGE_ALIGN;
	struct block *b = aligned_alloc(HSPMD_IMAGE_ALIGN, block_bytes);
	if (!b)
		return NULL;
	memset(b, 0, bytes > PIECE / 2 ? sizeof *b : block_bytes);
	b->next = r->blocks;
	r->blocks = b;
	return (char *)b + HSPMD_IMAGE_ALIGN;
}

static void end_run(struct run *r, bool failed)
{
	while (r->blocks) {
		struct block *next = r->blocks->next;
		if (failed)
			hspmd_transport_free_on_close(r->t, &r->blocks->deferred);
		else
			free(r->blocks);
		r->blocks = next;
	}
	free(r->folder);
}

static size_t piece_count(uint64_t bytes)
{
	return (size_t)((bytes + PIECE - 1) / PIECE);
}

static size_t piece_bytes(uint64_t bytes, size_t piece)
{
	uint64_t rest = bytes - (uint64_t)piece * PIECE;
	return rest < PIECE ? (size_t)rest : PIECE;
}

/* ---- receiving */

static void fail_source(struct run *r, struct source *s)
{
	s->lost = true;
	if (s->open)
		hspmd_atomic_file_close(&s->store, false, NULL);
	s->open = false;
	if (!r->err.text[0])
		r->err = s->err;
}

static int receive(struct run *r, struct source *s, uint64_t tag, void *data, size_t bytes, size_t slot)
{
	return r->t->ops->receive(r->t, s->rank, tag, data, bytes, &s->request[slot], &s->err);
}

static int wait_for(struct run *r, struct source *s, size_t slot)
{
	return hspmd_transport_wait(r->t, &s->request[slot], 1, &s->err);
}

static int post(struct run *r, struct source *s)
{
	if (s->posted == s->pieces)
		return 0;
	size_t number = s->posted++;
	return receive(r, s, TAG_PIECE, s->piece[number % WINDOW], piece_bytes(s->offer.bytes, number), number % WINDOW);
}

static int receive_offer(struct run *r, struct source *s)
{
	struct offer *o = &s->offer;
	if (wait_for(r, s, 0))
		return -1;
	o->file[sizeof o->file - 1] = '\0';
	if (o->step != r->own.step || o->generation != r->own.generation || !o->bytes || o->bytes > UINT64_C(1) << 52 || !*o->file ||
	    strchr(o->file, '/') || *o->file == '.')
		return hspmd_fail(&s->err, "rank %d offers a shard of another checkpoint", s->rank);
	s->pieces = piece_count(o->bytes);
	s->sums = allocate(r, s->pieces * sizeof *s->sums);
	s->expected_sums = allocate(r, s->pieces * sizeof *s->expected_sums);
	for (int i = 0; i < WINDOW; i++)
		s->piece[i] = allocate(r, PIECE);
	if (!s->sums || !s->expected_sums || !s->piece[0] || !s->piece[1])
		return hspmd_fail_memory(&s->err, "keeping a copy");
	s->open = !s->declined && !hspmd_atomic_file_open(&s->store, r->folder, o->file, o->bytes, &s->err);
	for (int i = 0; i < WINDOW; i++)
		if (post(r, s))
			return -1;
	return 0;
}

static int receive_piece(struct run *r, struct source *s, size_t number)
{
	size_t slot = number % WINDOW, bytes = piece_bytes(s->offer.bytes, number);
	if (wait_for(r, s, slot))
		return -1;
	s->sums[number] = hspmd_checksum_block(s->piece[slot], bytes);
	if (s->open && hspmd_atomic_file_write(&s->store, s->piece[slot], bytes, &s->err)) {
		hspmd_atomic_file_close(&s->store, false, NULL);
		s->open = false;
	}
	return post(r, s);
}

static int check_sums(struct run *r, struct source *s)
{
	size_t bytes = s->pieces * sizeof *s->expected_sums;
	if (receive(r, s, TAG_SUMS, s->expected_sums, bytes, 0) || wait_for(r, s, 0))
		return -1;
	if (s->open && memcmp(s->expected_sums, s->sums, bytes))
		return hspmd_fail(&s->err, "the copy of %s arrived damaged", s->offer.file);
	if (s->declined)
		return 0;
	if (!s->open)
		return -1; /* the disk's failure was logged */
	s->open = false;
	return hspmd_atomic_file_close(&s->store, true, &s->err);
}

/* Receive message `number`; false: there are no more. */
static bool receive_step(struct run *r, struct source *s, size_t number)
{
	int rv;
	if (s->lost || s->complete)
		return false;
	if (!number)
		rv = receive_offer(r, s);
	else if (number <= s->pieces)
		rv = receive_piece(r, s, number - 1);
	else
		rv = check_sums(r, s);
	s->complete = !rv && number > s->pieces && number;
	if (rv)
		fail_source(r, s);
	return true;
}

/* ---- sending */

static int send_message(struct run *r, struct target *to, size_t number)
{
	struct hspmd_request **slot = &to->request[number % WINDOW];
	const void *data = &r->own;
	size_t bytes = sizeof r->own;
	uint64_t tag = TAG_OFFER;
	if (number && number <= r->pieces) {
		data = r->image->data + (number - 1) * PIECE;
		bytes = piece_bytes(r->image->bytes, number - 1);
		tag = TAG_PIECE;
	} else if (number) {
		data = r->sums;
		bytes = r->pieces * sizeof *r->sums;
		tag = TAG_SUMS;
	}
	struct hspmd_error err;
	if (hspmd_transport_wait(r->t, slot, 1, &err) || r->t->ops->send(r->t, to->rank, tag, data, bytes, slot, &err)) {
		to->lost = true;
		if (!r->err.text[0])
			r->err = err;
		return -1;
	}
	return 0;
}

static bool send_step(struct run *r, struct target *to, size_t number)
{
	if (to->lost || number > r->pieces + 1)
		return false;
	send_message(r, to, number);
	return true;
}

/* ---- the exchange */

static int prepare(struct run *r, const char *file, int64_t step, int64_t generation)
{
	const struct hspmd_copy_routes *c = r->c;
	r->own = (struct offer){ .bytes = r->image->bytes, .step = step, .generation = generation };
	if (snprintf(r->own.file, sizeof r->own.file, "%s", file) >= (int)sizeof r->own.file)
		return hspmd_fail(&r->err, "the name %s is too long", file);
	r->pieces = piece_count(r->image->bytes);
	r->folder = hspmd_checkpoint_make_folder(c->location, step, generation, &r->err);
	if (!r->folder)
		return -1;
	r->sums = allocate(r, r->pieces * sizeof *r->sums);
	r->sources = allocate(r, (size_t)c->from_count * sizeof *r->sources);
	r->targets = allocate(r, (size_t)c->to_count * sizeof *r->targets);
	if (!r->sums || !r->sources || !r->targets)
		return hspmd_fail_memory(&r->err, "making copies");
	for (size_t i = 0; i < r->pieces; i++)
		r->sums[i] = hspmd_checksum_block(r->image->data + i * PIECE, piece_bytes(r->image->bytes, i));
	for (int i = 0; i < c->to_count; i++)
		r->targets[i].rank = c->to[i];
	for (int i = 0; i < c->from_count; i++) {
		struct source *s = &r->sources[i];
		s->rank = c->from[i];
		s->declined = c->declined && c->declined[i];
		if (receive(r, s, TAG_OFFER, &s->offer, sizeof s->offer, 0)) {
			r->err = s->err;
			return -1;
		}
	}
	return 0;
}

/* Alternate one message in each direction, sends first: if all workers do so, there is no circular wait. A pair that fails does not
 * affect others. */
static void exchange(struct run *r)
{
	bool more = true;
	for (size_t number = 0; more; number++) {
		more = false;
		for (int i = 0; i < r->c->to_count; i++)
			more |= send_step(r, &r->targets[i], number);
		for (int i = 0; i < r->c->from_count; i++)
			more |= receive_step(r, &r->sources[i], number);
	}
	for (int i = 0; i < r->c->to_count; i++) {
		struct hspmd_error err;
		if (!r->targets[i].lost && hspmd_transport_wait(r->t, r->targets[i].request, WINDOW, &err) && !r->err.text[0])
			r->err = err;
	}
}

/* The shard object of a copy, from the copy itself. */
static json_t *describe(const struct run *r, const struct source *s, struct hspmd_error *err)
{
	char *path = hspmd_asprintf("%s/%s", r->folder, s->offer.file), *node = (char *)(uintptr_t)r->node;
	struct hspmd_shard_header head;
	json_t *shard = NULL;
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0) {
		hspmd_fail_errno(err, "%s", s->offer.file);
	} else if (!hspmd_shard_header_read(fd, path, &head, err)) {
		shard = r->root ? hspmd_root_shard_json(s->offer.file, s->offer.bytes, node, head.list, NULL)
		                : hspmd_shard_json(s->offer.file, s->offer.bytes, &node, 1, head.extents, (int)head.count);
		hspmd_shard_header_free(&head);
		if (!shard)
			hspmd_fail_memory(err, "describing a copy");
	}
	if (fd >= 0)
		close(fd);
	free(path);
	return shard;
}

static json_t *list_stored(struct run *r)
{
	json_t *kept = json_array();
	for (int i = 0; kept && r->sources && i < r->c->from_count; i++) {
		struct hspmd_error err;
		if (r->sources[i].declined)
			continue;
		json_t *shard = r->sources[i].complete ? describe(r, &r->sources[i], &err) : NULL;
		if (r->sources[i].complete && (!shard || json_array_append_new(kept, shard)) && !r->err.text[0])
			r->err = err;
	}
	return kept;
}

int hspmd_copies_run(const struct hspmd_copy_routes *c, const char *node, int64_t step, int64_t generation, const char *file,
                     const struct hspmd_image *image, bool root, json_t **kept, struct hspmd_error *err)
{
	struct run *r = NULL;
	struct run first = { .c = c, .t = c->transport, .image = image, .node = node, .root = root };
	*kept = NULL;
	/* The offer is in it: memory that messages use. */
	r = allocate(&first, sizeof *r);
	if (!r)
		return hspmd_fail_memory(err, "making copies");
	*r = first;
	if (!prepare(r, file, step, generation)) {
		exchange(r);
		*kept = list_stored(r);
	}
	bool failed = r->err.text[0] != '\0';
	if (failed && err)
		*err = r->err;
	struct run last = *r; /* r is freed with the blocks */
	end_run(&last, failed);
	return failed ? -1 : 0;
}
