/* SPDX-License-Identifier: Apache-2.0 */
/* Annotations: how a tensor lies on devices (HSPMD, arXiv 2504.20490, section 4; DESIGN "Words").
 *
 * An annotation is a union of subgroups. A subgroup is an ordered list of devices and a distributed state: an ordered list of
 * (dimension, parts), outermost first, whose product of parts is the number of devices; device number i has the digits of i in that mixed
 * radix. A dimension >= 0 is split, -1 is duplicated, -2 is partial (the true value is the sum over the parts). A dimension may appear more
 * than once: a later entry splits what an earlier one left (this is how ZeRO shards lie inside tensor-parallel shards). Splits may be
 * unequal: the bound after part k of a range of n elements is unit * round(ceil(n / unit) * prefix_weight(k) / total_weight), cut at n, so
 * that even splits that do not divide differ by one unit at most.
 *
 * hdim says how subgroups relate: a dimension >= 0 (each has its part of that dimension, cut before the subgroup's own splits), -1 each has
 * all, -2 the sum over subgroups is the value. hsize 1 has hdim -1.
 *
 * Devices are small integers whose meaning is the caller's (device numbers of a cluster). Device groups of one union are disjoint.
 */
#ifndef HSPMD_ANNOTATION_ANNOTATION_H
#define HSPMD_ANNOTATION_ANNOTATION_H

#include "common/error.h"
#include "runtime/tensor/box.h"

#define HSPMD_DUPLICATE (-1)
#define HSPMD_PARTIAL (-2)
#define HSPMD_ANNOTATION_MAX_DEVICES 65536

struct hspmd_partition_layers {
	int dim;
	int parts;        /* >= 1 */
	int64_t unit;     /* granularity in elements of that dimension, >= 1; 1 where dim < 0 */
	int64_t *weights; /* one per part, each >= 1; NULL: even; NULL where dim < 0 */
};

struct hspmd_subgroup {
	int device_count;
	int *devices;
	int split_count;
	struct hspmd_partition_layers *splits;
};

struct hspmd_annotation {
	int hsize;
	struct hspmd_subgroup *groups;
	int hdim;
	int64_t hunit;     /* granularity of the split along hdim >= 0 */
	int64_t *hweights; /* one per subgroup; NULL: even */
};

/* One subgroup of `count` devices with an empty state (copies the array): complete when count is 1, else add entries until their product is
 * count. */
struct hspmd_annotation *hspmd_annotation_single(const int *devices, int count);
/* Append an entry, innermost so far, to subgroup `group`. weights may be NULL; copied. unit counts for dim >= 0 only. 0 or -1 (memory). */
int hspmd_annotation_split(struct hspmd_annotation *a, int group, int dim, int parts, int64_t unit, const int64_t *weights);
/* A union of `count` annotations' subgroups, in order; copies. How the subgroups within one of `parts` related is forgotten; hunit counts
 * for hdim >= 0 only, and a union of one subgroup has hdim -1 whatever is asked. NULL: memory, as for all that make annotations. */
struct hspmd_annotation *hspmd_annotation_union(const struct hspmd_annotation *const *parts, int count, int hdim, int64_t hunit,
                                                const int64_t *hweights);
struct hspmd_annotation *hspmd_annotation_copy(const struct hspmd_annotation *a);
void hspmd_annotation_destroy(struct hspmd_annotation *a);

/* Same devices holding the same boxes with the same partial structure for this shape (spelling may differ). Both must have been checked for
 * it. false also when memory is short. */
bool hspmd_annotation_equal(const struct hspmd_annotation *a, const struct hspmd_annotation *b, const struct hspmd_shape *shape);

/* Whether some device holds an addend only. */
bool hspmd_annotation_is_partial(const struct hspmd_annotation *a);

/* Legal for a tensor of this shape: product of parts, disjoint groups, dimensions in range, positive weights, no device left with nothing.
 * shape NULL: what does not depend on it. Or -1, and err says what is wrong and with which annotation. */
int hspmd_annotation_check(const struct hspmd_annotation *a, const struct hspmd_shape *shape, struct hspmd_error *err);

/* What one device holds. */
struct hspmd_local_shard {
	struct hspmd_box box;
	int group;    /* which subgroup */
	int position; /* which device of it */
	int partial;  /* number of its addend among those whose sum is the value; 0 when not partial */
	int partials; /* how many addends; 1 when not partial */
	/* Number of its copy. What the devices with 0 hold covers each element (of each addend) once, so they are the ones that count. */
	int replica;
};
/* Elements [*lo, *hi) of part k of a range of n elements cut into `parts`, by the rule above. weights may be NULL. */
void hspmd_split_range(int64_t n, int64_t unit, int parts, const int64_t *weights, int k, int64_t *lo, int64_t *hi);
/* false when the device is not in the annotation. The annotation must have been checked for this shape. */
bool hspmd_annotation_local_shard(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int device,
                                  struct hspmd_local_shard *shard);
/* All devices in order of subgroups: fills devices[0..count) and shares[0..count) when not NULL; returns count. */
int hspmd_annotation_local_shards(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int *devices,
                                  struct hspmd_local_shard *shards);

/* Text form, e.g. "{[0-3]: 0:2/64(5:3) -1:2 | [4]} h0(2:1)"; parses what it prints. malloc'd; the grammar is in annotation_text.c. */
char *hspmd_annotation_text(const struct hspmd_annotation *a);
/* Also checks what does not depend on a shape. */
struct hspmd_annotation *hspmd_annotation_parse(const char *text, struct hspmd_error *err);

#endif
