/* SPDX-License-Identifier: Apache-2.0 */
/* Synthesis of the distributed program of one stage (HAP, arXiv 2401.05965, sections 4 and 5): for every operator of a graph, which of the
 * loops of its rule (runtime/op/rule.h) the stage's devices divide; so for every tensor, how it is split where it is made and where it is
 * read; and the communication that leads from the one to the other.
 *
 * A program. The devices of a stage form one line. Each operator divides one loop among them, or all do all of it. A tensor is then whole
 * on every device, split along one dimension, or a sum of what the devices hold. Dimensions that operators divide together form a segment,
 * which has one vector of shares for all of its tensors. An operator's backward operators are divided by what it read and made; the
 * gradient of an activation is brought to the activation's own layout. A weight is kept as its operator reads it, or in parts, and gathered
 * where it is read; its gradient is summed at the step's end, or the factors whose product it is are gathered in every micro-batch
 * (sufficient factors; Xie et al., arXiv 1512.06216).
 *
 * Cost. Every operator takes as long as its slowest device: operations / rate + bytes / memory rate (common/format/device_speed.h) of its
 * local shapes by the operator's own cost function. Communication takes what the resolver predicts (runtime/resharding). Nothing overlaps.
 * hspmd_synthesis_cost gives the cost of any program of the runtime, so that a program that was found, one written by hand and one deduced
 * from a plan can be compared. It is what the search predicted, or less: a gradient that an operator passes on unchanged may be there
 * already in the layout in which it is added to others, and the search counts that it is brought to it.
 *
 * Shares. Given the program, a linear program finds the shares of all segments together, per type of device: the sum of what the slowest
 * device takes for every operator, as straight lines in the shares, and of the communication, as planes through the shares that were tried,
 * with rows for the devices' memory. Its optimum is rounded to whole steps (heads, experts) and taken as far as the program really gets
 * faster under the resolver's own cost; then steps move between types of devices. Search and shares take turns until nothing improves;
 * only one turn if the search had to leave programs out.
 *
 * Search. A* over partial programs: prefixes of the forward operators. The state of a prefix is how the tensors lie that later operators or
 * their gradients touch; of two prefixes with equal states the cheaper one dominates, if it also needs no more memory on any device where
 * memory could run out.
 *
 * The bound of the rest is the sum over all operators that are left of what each must at least cost by itself: the least, over its choices,
 * of its work and that of its backward operators, the sums of its weights' gradients, and of bringing those tensors to it (and their
 * gradients back) that exist already and that no other operator reads before. It never overestimates: a complete program makes exactly one
 * choice per operator; the work is that choice's own; a tensor changes only where an operator reads it, so its next reader finds it as it
 * is now and is the one to pay; no communication is counted for two operators; and all that is left out costs at least nothing. For the
 * same reason the bound of a longer prefix is never lower than that of a shorter one by more than what was paid between, so no state is
 * taken from the queue twice.
 *
 * If only programs below a limit are wanted (below_s), a search comes first that only proves that there is none: without limits of memory,
 * so that few prefixes differ; and if devices differ, with operators that take what they would if the devices shared the same work best,
 * so that it holds under any shares. It ends at the first prefix that is left out and could lead below the limit.
 *
 * Memory. A prefix is not continued if the groups that are left need more than it leaves, however they are divided. Only devices are
 * watched on which something may not fit that fits on the others.
 *
 * Of two prefixes of which one has copies or cheaper gradients that the other lacks, the other dominates if it is cheaper by what those are
 * worth. After 300 prefixes of one length the search leaves further ones out, and says what they could at best have led to; it then also
 * searches among programs that divide nothing but samples, as data parallelism does, and among those that divide samples and whole experts,
 * and improves the best one, a few operators at a time. A graph with experts is searched from equal shares too. */
#ifndef HSPMD_SYNTHESIS_SYNTHESIS_H
#define HSPMD_SYNTHESIS_SYNTHESIS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/format/cluster.h"
#include "runtime/sharding/spmd.h"

struct hspmd_synthesis_stage {
	const struct hspmd_cluster *cluster;
	int device_count;
	const int *devices; /* indexes into the cluster's devices */
	int micro_batches;  /* per step */
	enum hspmd_precision precision;
	double state_bytes; /* of one element of a parameter: value, gradient, master and moments; 0: memory is not limited */
	bool keep_shares;   /* in proportion to the devices' speed: only programs are searched */
	double until_s;     /* hspmd_now() from which on nothing more is tried; 0: never */
	double below_s;     /* programs that take as long for a micro-batch, or longer, are not wanted; 0: all are */
};

struct hspmd_synthesis;

struct hspmd_synthesis_result {
	double seconds; /* predicted for one micro-batch, with its part of what a step does once */
	double bound; /* no program with these shares takes less; equal to `seconds` unless the search had to leave partial programs out */
	double first_bound;  /* what it knew of that before its first step */
	double shares_bound; /* the optimum of the last linear program, in parts of steps: about what any shares of this program take */
	int turns;           /* in which shares were found for a program, and a program for those */
	long expanded;      /* partial programs that were taken from the queue */
	bool settled;       /* under these shares nothing else was found at last */
};

/* Reads the graph (forward and backward operators; none annotated by hand). It must outlive the result, and so must `stage`'s pointers.
 * NULL and err: memory, or an operator whose gradients the search does not understand (names it). */
struct hspmd_synthesis *hspmd_synthesis_create(const struct hspmd_graph *g, const struct hspmd_synthesis_stage *stage,
                                               struct hspmd_error *err);
void hspmd_synthesis_destroy(struct hspmd_synthesis *s);

/* Finds the fastest program and shares, starting with shares in proportion to the devices' speed, or to their memory if nothing else fits.
 * 0; 1: no program takes less than stage->below_s; -1 and err: no program fits into memory, none divides the graph legally, or none was
 * found in time. */
int hspmd_synthesis_search(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result, struct hspmd_error *err);

/* Writes the program that was found into a graph equal to the one searched: annotations of parameters, inputs and gradients, and how every
 * operator reads its inputs. The sharding pass over the stage's devices then makes exactly this program. 0, or -1: memory. */
int hspmd_synthesis_apply(struct hspmd_synthesis *s, struct hspmd_graph *g, struct hspmd_error *err);

/* The program that was found, or loaded, as JSON (saved_program.c); a new reference. NULL and err: memory. */
json_t *hspmd_synthesis_save(const struct hspmd_synthesis *s, struct hspmd_error *err);
/* Instead of a search: takes the program that a search over an equal graph and as many devices has saved. Further keys are ignored. 0, or
 * -1 and err: memory, or what is not a program of this graph, by its place in the value. */
int hspmd_synthesis_load(struct hspmd_synthesis *s, const json_t *value, struct hspmd_error *err);

/* Writes in words how the program that was found, or loaded, divides every operator, why, and what it sends. 0, or -1 and err: memory. */
int hspmd_synthesis_explain(struct hspmd_synthesis *s, FILE *f, struct hspmd_error *err);

/* Where the seconds of a program go. */
struct hspmd_synthesis_seconds {
	double operators, messages; /* of a micro-batch */
	double sync;                /* of a step: sums of gradients */
	long operator_count;        /* of a micro-batch */
	double *busy;               /* [device_count]: the device's own operators are added; NULL: not wanted. The caller's */
};

/* Predicted seconds of a micro-batch of any program over the stage's devices, with its part of what a step does once, under the cost model
 * above; -1 and err: memory. Fills *parts, which may be NULL. */
double hspmd_synthesis_cost(const struct hspmd_spmd *spmd, const struct hspmd_synthesis_stage *stage, const struct hspmd_link_cost *cost,
                            struct hspmd_synthesis_seconds *parts, struct hspmd_error *err);

#endif
