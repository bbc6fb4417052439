/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the search for a stage's program. */
#ifndef HSPMD_SYNTHESIS_SYNTHESIS_INTERNAL_H
#define HSPMD_SYNTHESIS_SYNTHESIS_INTERNAL_H

#include "common/arena.h"
#include "common/clock.h"
#include "runtime/op/op.h"
#include "runtime/synthesis/synthesis.h"

/* How a tensor lies: a number below HSPMD_MAX_RANK is the dimension that is split. */
enum {
	LAYOUT_WHOLE = HSPMD_MAX_RANK,
	LAYOUT_SUM,
	LAYOUT_ROWS,    /* whole, but only the rows of each device's experts count; only an operator of experts reads it */
	LAYOUT_ROW_SUM, /* a sum to which each device adds in the rows of its experts */
	LAYOUT_COUNT,
	LAYOUT_NONE = 255
};

#define MAX_LIVE 256 /* tensors of a state */

/* Dimensions that operators divide together, in equal steps. */
struct segment {
	int64_t steps;    /* that may go to different devices: elements, heads or experts */
	int64_t *weights; /* shares of the devices */
};

/* The gradient of an activation: a sum of contributions, one or more per operator that reads it. */
struct contribution {
	int of;   /* the forward tensor */
	int leaf; /* the gradient tensor that is its part; -1: the gradient of `from`, unchanged */
	int from;
};

/* A forward operator and its backward operators, which are divided together. */
struct group {
	int op;
	int backward_count;
	int *backward;
	int contribution_count;
	struct contribution *contributions; /* that this group makes */
	int touched_count;
	int *touched; /* activations, and parameters that several groups read, that this group reads, makes or contributes to */
	int choice_count;
	struct choice *choices;
	double least; /* of the choices' own costs, without those that are excluded */
};

struct layout_use {
	int tensor;
	unsigned char layout;
};

/* Ways to keep the parameters of a group. */
enum {
	KEPT_AS_READ,
	KEPT_IN_PARTS, /* along the longest dimension, if it is read whole */
	KEPT_LAYOUT,   /* + a layout: parameters that several groups read */
};

/* One way to divide a group. */
struct choice {
	int segment;  /* that is divided; -1: none */
	int backward; /* that is divided in the backward pass if none is in the forward pass; -1: none */
	bool factors;
	int kept_how;  /* KEPT_ */
	bool rows;     /* an operator of experts reads only the rows of each device's experts */
	bool excluded; /* from this run of the search */
	double seconds;    /* its own cost */
	double any_shares; /* the same at least, under any shares of the devices */
	double *bytes;  /* per device, if memory is limited: parameters' state, and what is kept for the backward pass */
	unsigned char take[HSPMD_OP_MAX_IO], out[HSPMD_OP_MAX_IO];
	unsigned char gradient[HSPMD_OP_MAX_IO]; /* of outputs: the layout in which the backward operators get their gradients */
	unsigned char kept[HSPMD_OP_MAX_IO];     /* of inputs that are parameters */
	unsigned char sum[HSPMD_OP_MAX_IO];      /* of their gradients, before the step's end; LAYOUT_NONE: there is none */
	unsigned char (*backward_take)[HSPMD_OP_MAX_IO];
	int need_count; /* activations and shared parameters in layouts in which they are read, in the order of reading */
	struct layout_use need[3 * HSPMD_OP_MAX_IO];
	int gives_count; /* layouts of the group's contributions, in their order; and gradients of shared parameters */
	unsigned char gives[2 * HSPMD_OP_MAX_IO];
	int sums_count;
	struct layout_use sums[HSPMD_OP_MAX_IO];
};

/* What is known of a tensor that later groups touch. */
struct live {
	unsigned char home;     /* as it is made; of a parameter: as it is kept */
	unsigned char first;    /* the first layout that is not a sum, from which others are made; LAYOUT_NONE: none yet */
	unsigned char partial;  /* some contribution to its gradient is a sum; of a parameter: 1 + the layout of its gradient */
	unsigned char gradient; /* in which its gradient is brought to its producer */
	uint32_t made;          /* bits: other layouts that exist and were not free */
	double plain;           /* seconds to bring the contributions so far to the gradient's layout, ... */
	double sum;             /* ... and to sums */
};

/* Seconds of operators on every device, in the order in which an evaluation of a program meets them. */
struct op_record {
	size_t count, capacity;
	double *seconds; /* [count][device_count]; owned */
};

struct tensor_facts {
	int first_group, last_group; /* that touch it; last -1: none */
	int contributions;           /* to its gradient */
	int add_count;
	int *adds;          /* operators that add them up */
	bool shared;        /* a parameter that several groups read */
	bool read_gradient; /* its producer's backward operators read its gradient */
	int segment[HSPMD_MAX_RANK];
	int expert_op;      /* the only operator of which it has rows of experts (struct hspmd_op_type), -1: none, or several */
	int expert_segment; /* that this operator's experts are of; -1: none */
	struct hspmd_annotation *layout[LAYOUT_COUNT]; /* NULL: not made yet */
	bool illegal[LAYOUT_COUNT];
	double *seconds; /* [LAYOUT_COUNT][LAYOUT_COUNT]; below 0: not known yet */
	double add_seconds[LAYOUT_COUNT];
};

struct hspmd_synthesis {
	const struct hspmd_graph *g;
	struct hspmd_synthesis_stage stage;
	struct hspmd_arena *arena;
	struct hspmd_link_cost cost;
	double *rate, *memory_rate; /* per device */
	int *order;                 /* 0 .. device_count - 1 */
	int segment_count;
	struct segment *segments;
	struct tensor_facts *tensors;
	int group_count;
	struct group *groups;
	int *group_of_op;
	double *rest;            /* per group, and the end: the bound of what is left from it on */
	int *live_count, **live; /* per group, and the end: tensors of the state before it */
	int **live_next;         /* the group that touches each of them next */
	bool alike;              /* devices are, so that their shares are equal */
	bool limited;            /* memory could run out */
	int watched_count, *watched; /* devices that decide what fits: what fits on them fits on the others, too */
	double *watched_memory;
	double *least_bytes, *most_bytes; /* [group][watched]: what groups from it on need of such a device at least, and at most */
	int *chosen;             /* per group: the program that was found; -1: none yet */
	bool found;              /* there is one: what a search still tries may end at any time */
	struct op_record *record; /* what operators take is added to it; NULL: nowhere */
};

/* Returns true if devices hold parts of a sum. */
static inline bool hspmd_synthesis_is_sum(int layout)
{
	return layout == LAYOUT_SUM || layout == LAYOUT_ROW_SUM;
}

/* Returns true if the stage's deadline has passed. */
static inline bool hspmd_synthesis_timed_out(const struct hspmd_synthesis *s)
{
	return s->stage.until_s > 0 && hspmd_now() >= s->stage.until_s;
}

/* The segment of the samples: what the first dimension of inputs belongs to. -1: none. */
int hspmd_synthesis_samples(const struct hspmd_synthesis *s);
/* Makes the known program the chosen one again, after choices have been made anew. */
struct program;
int hspmd_synthesis_choose_again(struct hspmd_synthesis *s, const struct program *p, struct hspmd_error *err);

/* ---- windows.c */
/* Improves the chosen program under the present shares in at most so many rounds over all groups. 0, or -1: memory. */
int hspmd_synthesis_improve_windows(struct hspmd_synthesis *s, int rounds, struct hspmd_synthesis_result *result, struct hspmd_error *err);

/* ---- segments.c */
int hspmd_synthesis_segments(struct hspmd_synthesis *s, struct hspmd_error *err);
/* Forgets all layouts (segment -1), or those of tensors with this segment, after its weights have changed. */
void hspmd_synthesis_forget(struct hspmd_synthesis *s, int segment);
/* The annotation of a layout, on the stage's devices; NULL: illegal, or memory is short. Borrowed. */
const struct hspmd_annotation *hspmd_synthesis_layout(struct hspmd_synthesis *s, int tensor, int layout);
/* The same on devices from 0, owned by the caller. NULL: memory. */
struct hspmd_annotation *hspmd_synthesis_numbered(const struct hspmd_synthesis *s, int tensor, int layout);
/* The layout that an annotation is, LAYOUT_NONE: none. */
int hspmd_synthesis_layout_of(struct hspmd_synthesis *s, int tensor, const struct hspmd_annotation *a);
/* The layout of a tensor whose dimension of `segment` is split: whole if it has none. */
int hspmd_synthesis_split_by(const struct hspmd_synthesis *s, int tensor, int segment);
/* The segment of an operator's experts; -1: it has none that can be divided. */
int hspmd_synthesis_expert_segment(const struct hspmd_synthesis *s, const struct hspmd_op *op);
/* Seconds from one layout to another; HUGE_VAL: impossible. */
double hspmd_synthesis_reshard(struct hspmd_synthesis *s, int tensor, int from, int to);
/* The same between any annotations; element_bytes: 0: of the tensor. */
double hspmd_synthesis_transfer(struct hspmd_synthesis *s, const struct hspmd_shape *shape, size_t element_bytes,
                                const struct hspmd_annotation *from, const struct hspmd_annotation *to);

/* Calls `use` for every segment that a choice of group `number` divides, or is divided by, perhaps several times; -1 stands for none. */
void hspmd_synthesis_each_segment(const struct hspmd_synthesis *s, int number, const struct choice *choice,
                                  void (*use)(void *context, int segment), void *context);

/* ---- groups.c */
int hspmd_synthesis_groups(struct hspmd_synthesis *s, struct hspmd_error *err);

/* ---- step_cost.c */
/* Seconds of an operator on the slowest device. in and out: annotations, NULL: absent. each: filled per device; least: what the same work
 * takes the slowest device at least, however the devices share it. Both may be NULL. */
double hspmd_synthesis_op_seconds(const struct hspmd_synthesis_stage *stage, const double *rate, const double *memory_rate,
                                  const struct hspmd_op_view *view, const struct hspmd_op_type *type,
                                  const struct hspmd_annotation *const *in, const struct hspmd_annotation *const *out, double *each,
                                  double *least);
int hspmd_synthesis_rates(const struct hspmd_synthesis_stage *stage, double *rate, double *memory_rate, struct hspmd_error *err);

/* ---- choices.c */
int hspmd_synthesis_choices(struct hspmd_synthesis *s, struct hspmd_error *err);

/* Values a choice of group `number` again, under the present shares. Returns 0; 1 if it is no longer possible; -1 if memory is short. */
int hspmd_synthesis_revalue(struct hspmd_synthesis *s, int number, struct choice *choice);
/* The choice of group `number` that is, or is for other groups, this one; -1: none. */
int hspmd_synthesis_find_choice(const struct hspmd_synthesis *s, int number, const struct choice *choice);

/* ---- bounds.c */
/* Finds the devices that decide what fits, and sets the bounds. After choices have been made. */
void hspmd_synthesis_watch(struct hspmd_synthesis *s);
/* Sets the groups' least costs, and sums of these and of memory. After choices have been excluded. */
void hspmd_synthesis_set_bounds(struct hspmd_synthesis *s);

/* ---- advance.c */
/* The state after group `number`, made by `choice`, from the one before it: `before` as live[number] lists the tensors, `after` as
 * live[number + 1] does. `scratch`: one per tensor. Returns the seconds that this adds; HUGE_VAL: not possible. */
double hspmd_synthesis_advance(struct hspmd_synthesis *s, int number, const struct choice *choice, const struct live *before,
                               struct live *after, struct live *scratch);
/* Returns true if the chosen program adds the parts of a tensor's gradient as sums, which are then brought to the layout `gradient`; false:
 * each part is brought there first. The gradient must have several parts. */
bool hspmd_synthesis_adds_sums(struct hspmd_synthesis *s, int tensor, int gradient);
/* The least that groups from `number` on can cost after this state. `reads`: one per tensor, all false. */
double hspmd_synthesis_bound(struct hspmd_synthesis *s, int number, const struct live *state, struct live *scratch, bool *reads);

/* ---- shares.c */

/* The program that was found, valued under the present shares, whatever they have become since it was found. */
struct program {
	struct choice *choices; /* per group */
	struct live *before, *after, *scratch;
};
/* The program that was found. 0, or -1: memory. */
int hspmd_synthesis_program_open(const struct hspmd_synthesis *s, struct program *p);
void hspmd_synthesis_program_close(struct program *p);
/* Its seconds under the present shares; HUGE_VAL: it is not possible, or does not fit. bytes: per device, if memory is limited. */
double hspmd_synthesis_program_seconds(struct hspmd_synthesis *s, struct program *p, double *bytes);
/* Changes the segments' weights to those with which the program takes least. *seconds: what it then takes. *bound: the optimum of the last
 * linear program. 0, or -1: memory. */
int hspmd_synthesis_balance(struct hspmd_synthesis *s, struct program *p, double *seconds, double *bound, struct hspmd_error *err);

/* ---- astar.c */
/* Finds the fastest program under the present shares. 0; 1: each takes at least below_s (HUGE_VAL: any is wanted); -1 and err. If a search
 * has to leave out what could take less, a program that takes longer is found, too. */
int hspmd_synthesis_astar(struct hspmd_synthesis *s, double below_s, struct hspmd_synthesis_result *result, struct hspmd_error *err);
/* Returns true if no program takes less than the stage's below_s, under any shares. */
bool hspmd_synthesis_is_beaten(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result);
/* Searches among the choices that are not excluded. Keeps the program only if it is faster than the known one. Returns true if it is.
 * scratch: one per group. */
bool hspmd_synthesis_search_again(struct hspmd_synthesis *s, struct hspmd_synthesis_result *known, int *scratch);

#endif
