/* SPDX-License-Identifier: Apache-2.0 */
/* Annotations: how a tensor is laid out on devices (HSPMD, arXiv 2504.20490, section 4; glossary in HACKING.md).
 *
 * An annotation is a union of subgroups. A subgroup is an ordered list of devices and a distributed state: an ordered list of (dimension,
 * parts), outermost first. The product of parts is the number of devices; device number i has the digits of i in that mixed radix. A
 * dimension >= 0 is split, -1 is duplicated, -2 is partial (the true value is the sum over the parts). A dimension may appear more than
 * once: a later entry splits the result of an earlier one (so ZeRO shards are nested in tensor-parallel shards). Splits may be unequal:
 * the bound after part k of a range of n elements is unit * round(ceil(n / unit) * prefix_weight(k) / total_weight), limited to n, so
 * that the parts of an even split that does not divide differ by at most one unit.
 *
 * hdim says how subgroups relate. A dimension >= 0: each subgroup has its part of that dimension, cut before the subgroup's own splits.
 * -1: each subgroup has the full tensor. -2: the value is the sum over subgroups. With hsize 1, hdim is -1.
 *
 * Devices are small integers whose meaning is the caller's (device numbers of a cluster). The subgroups of one union have no device in
 * common.
 *
 * Rows of experts. The tokens of a mixture of experts are rows of a tensor (all dimensions but the last number them), and a router chooses
 * the experts of each (Jiang et al., arXiv 2401.04088). Where devices divide the experts, a device needs of all copies only the rows that
 * chose one of its experts, and adds to a sum nothing in the others. An annotation may say so (`rows`): then a copy holds these rows and
 * what the others are is not defined, and an addend is 0 in the others. Only deduction makes such annotations. */
#ifndef HSPMD_ANNOTATION_ANNOTATION_H
#define HSPMD_ANNOTATION_ANNOTATION_H

#include "common/error.h"
#include "runtime/tensor/box.h"

#define HSPMD_DUPLICATE (-1)
#define HSPMD_PARTIAL (-2)
#define HSPMD_ANNOTATION_MAX_DEVICES 65536

struct hspmd_split {
	int dim;
	int parts;        /* >= 1 */
	int64_t unit;     /* granularity in elements of that dimension, >= 1; 1 if dim < 0 */
	int64_t *weights; /* one per part, each >= 1; NULL: even; NULL if dim < 0 */
};

struct hspmd_subgroup {
	int device_count;
	int *devices;
	int split_count;
	struct hspmd_split *splits;
};

struct hspmd_expert_rows;

struct hspmd_annotation {
	int hsize;
	struct hspmd_subgroup *groups;
	int hdim;
	int64_t hunit;     /* granularity of the split along hdim >= 0 */
	int64_t *hweights; /* one per subgroup; NULL: even */
	struct hspmd_expert_rows *rows; /* only the rows of the device's experts count; NULL: all rows do. Owned */
};

struct hspmd_expert_rows {
	struct hspmd_annotation *experts; /* of the tensor [count] of all experts: which of them each device has. Owned */
	int64_t count;
	int per_token; /* experts that a row chooses */
};

/* One subgroup of `count` devices with an empty state (copies the array). Complete if count is 1; else add entries until the product of
 * their parts is count. */
struct hspmd_annotation *hspmd_annotation_single(const int *devices, int count);
/* Appends an entry, innermost so far, to subgroup `group`. weights may be NULL; copied. unit is used only for dim >= 0. 0 or -1
 * (memory). */
int hspmd_annotation_split(struct hspmd_annotation *a, int group, int dim, int parts, int64_t unit, const int64_t *weights);
/* A union of the subgroups of `count` annotations, in order; copies. How the subgroups within one of `parts` were related is lost. hunit is
 * used only for hdim >= 0, and a union of one subgroup has hdim -1 whatever the argument is. It has the rows of its part if there is only
 * one. NULL: memory, as for every function here that makes an annotation. */
struct hspmd_annotation *hspmd_annotation_union(const struct hspmd_annotation *const *parts, int count, int hdim, int64_t hunit,
                                                const int64_t *hweights);
struct hspmd_annotation *hspmd_annotation_copy(const struct hspmd_annotation *a);
void hspmd_annotation_destroy(struct hspmd_annotation *a);

/* Returns true if the same devices hold the same boxes with the same partial structure for this shape, however the annotations are written.
 * Both must have been checked for the shape. Also returns false if memory is short. */
bool hspmd_annotation_equal(const struct hspmd_annotation *a, const struct hspmd_annotation *b, const struct hspmd_shape *shape);

/* Lets only the rows of a device's experts count. Takes ownership of `experts`, an annotation over the same devices, also on failure. 0 or
 * -1 (memory). */
int hspmd_annotation_set_rows(struct hspmd_annotation *a, struct hspmd_annotation *experts, int64_t count, int per_token);
/* Lets all rows count again. */
void hspmd_annotation_drop_rows(struct hspmd_annotation *a);
/* Returns true if what devices hold by `have` is all that `want` asks for, without a message: the annotations are equal, or differ only in
 * that the one or the other has all rows: all copies of a row include those that are wanted, and addends that are 0 are addends. */
bool hspmd_annotation_serves(const struct hspmd_annotation *have, const struct hspmd_annotation *want, const struct hspmd_shape *shape);

/* Returns the most addends that make up an element; 1: every device holds finished elements. */
int hspmd_annotation_addends(const struct hspmd_annotation *a);
/* Returns true if some device holds only an addend. */
bool hspmd_annotation_is_partial(const struct hspmd_annotation *a);

/* Checks that the annotation is legal for a tensor of this shape: products of parts, disjoint subgroups, dimensions in range, positive
 * weights, no device without elements. shape NULL: only the checks that do not need one. 0, or -1 and an err that names the fault and the
 * annotation. */
int hspmd_annotation_check(const struct hspmd_annotation *a, const struct hspmd_shape *shape, struct hspmd_error *err);

/* The part of a tensor that one device holds. */
struct hspmd_local_shard {
	struct hspmd_box box;
	int group;    /* index of the subgroup */
	int position; /* index of the device within it */
	int partial;  /* number of the device's addend among those whose sum is the value; 0 if not partial */
	int partials; /* number of addends; 1 if not partial */
	/* Number of the device's copy. The devices with copy 0 hold each element (of each addend) exactly once, so they are the ones to
	 * count. */
	int replica;
};
/* Elements [*lo, *hi) of part k of a range of n elements that is cut into `parts` by the rule above. weights may be NULL. */
void hspmd_split_range(int64_t n, int64_t unit, int parts, const int64_t *weights, int k, int64_t *lo, int64_t *hi);
/* Returns false if the annotation does not contain the device. The annotation must have been checked for this shape. */
bool hspmd_annotation_local_shard(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int device,
                                  struct hspmd_local_shard *shard);
/* All devices in the order of subgroups: fills devices[0..count) and shards[0..count), each unless NULL; returns count. */
int hspmd_annotation_local_shards(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int *devices,
                                  struct hspmd_local_shard *shards);

/* Text form, e.g. "{[0-3]: 0:2/64(5:3) -1:2 | [4]} h0(2:1)", which hspmd_annotation_parse reads back, but for rows of experts, which it
 * refuses. malloc'd; the grammar is in annotation_text.c. */
char *hspmd_annotation_text(const struct hspmd_annotation *a);
/* Also makes the checks that do not depend on a shape. */
struct hspmd_annotation *hspmd_annotation_parse(const char *text, struct hspmd_error *err);

#endif
