/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a beam search (beam_search.c). Private to the search. */
#ifndef HSPMD_SEARCH_BEAM_SEARCH_INTERNAL_H
#define HSPMD_SEARCH_BEAM_SEARCH_INTERNAL_H

#include "controller/solver/search/search_internal.h"

#define HSPMD_BEAM_SEEN_MAX 32768  /* drafts that are looked at, per search; */
#define HSPMD_BEAM_KNOWN_MAX 131072 /* ... and by all searches on a ground */
#define HSPMD_BEAM_BATCH 256        /* most drafts that are judged together */
#define HSPMD_BEAM_ORIGINS_MAX 64  /* drafts that a search may begin with; */
#define HSPMD_BEAM_FAR_BEHIND 1.3  /* ... none that is slower than the best one by this factor, by the estimate */

/* Pipelines whose layers are not divided yet: by sequence, and how many there are of each. */
struct beam_draft {
	int count;
	struct hspmd_stage_sequence sequence[HSPMD_PIPELINE_GROUPS_MAX];
	int copies[HSPMD_PIPELINE_GROUPS_MAX];
	enum hspmd_placement how; /* the better one, by the estimate */
	double seconds;           /* estimate */
	double objective;         /* of the plan */
	struct hspmd_plan *plan;  /* NULL: it is not placed */
	struct beam_known *known; /* what is known of it; NULL: nothing */
	bool judged;              /* the estimate is there */
	bool expanded;            /* its successors have been made */
};

/* The best drafts, ascending by what they are judged by. */
struct beam_list {
	int count, most;
	struct beam_draft *drafts;
};

/* What is known of a draft. */
struct beam_known {
	uint64_t what;    /* its fingerprint; 0: a free place */
	double seconds;   /* estimate */
	double objective; /* of the plan; 0: it has not been placed; INFINITY: it cannot be, or does not fit */
	int search;       /* number of the last search that looked at it */
	enum hspmd_placement how;
};

/* What all beam searches for plans of one kind have in common, however many there are. */
struct hspmd_beam_ground {
	struct hspmd_submesh_tables *t;      /* has the micro-batch, the schedule, and whether stages offload */
	struct hspmd_submesh_tables **views; /* of t, per thread: for partitions */
	bool zero;                      /* the pipelines divide the optimizer state */
	struct hspmd_partition_memo *memos[HSPMD_PLACEMENT_COUNT];
	struct beam_known *known; /* open addressing, twice HSPMD_BEAM_KNOWN_MAX places */
	int known_count, searches;
};

struct beam {
	struct hspmd_search *s;
	struct hspmd_beam_ground *ground;
	struct hspmd_submesh_tables *t; /* this and the next two are of the ground */
	bool zero;
	struct hspmd_partition_memo **memos;
	int total;                   /* micro-batches */
	struct beam_list successors; /* of one draft, by the estimate */
	struct beam_list placed;     /* by the objective */
	int batch_count;             /* drafts that have been considered and are not among the successors yet */
	struct beam_draft *batch;
	struct hspmd_beam_judging *judging;
	int search;                  /* its number on the ground */
	int seen_count;              /* drafts that it has looked at */
	bool short_of_memory;
};

/* beam_drafts.c: the submesh of so many devices of a class; -1: there is none. */
int hspmd_beam_submesh(const struct hspmd_submesh_tables *t, int device_class, int tp);
/* Add `times` the devices that a pipeline of the sequence uses to use[], by device class. */
void hspmd_beam_add_use(const struct beam *b, const struct hspmd_stage_sequence *x, int times, int *use);
/* Add copies of a pipeline. Returns false if the draft has too many different ones. */
bool hspmd_beam_add_copies(struct beam_draft *d, const struct hspmd_stage_sequence *x, int copies);
void hspmd_beam_remove_copies(struct beam_draft *d, int group, int copies);
/* How many it has. */
static inline int hspmd_beam_pipelines(const struct beam_draft *d)
{
	int pipelines = 0;
	for (int g = 0; g < d->count; g++)
		pipelines += d->copies[g];
	return pipelines;
}
/* The draft of a plan. Returns false if a stage is no submesh, or pipelines are of too many kinds. */
bool hspmd_beam_draft_of(const struct beam *b, const struct hspmd_plan *p, struct beam_draft *d);
/* Insert a draft, which takes its plan along, after those that are not worse, unless one is equally good. A list that is full loses its
 * last one. */
void hspmd_beam_insert(struct beam_list *l, const struct beam_draft *d, bool by_objective);
/* What is known of a draft; NULL: nothing, and there is no place for more. */
struct beam_known *hspmd_beam_known(struct beam *b, const struct beam_draft *d);
/* Take up a draft that the search has not looked at yet: it will be judged, and be a successor if it is among the best. */
void hspmd_beam_consider(struct beam *b, const struct beam_draft *d);
/* Judge the drafts that have been considered, and keep the best ones as successors. Returns 0, or -1 if memory runs out. */
int hspmd_beam_judge_considered(struct beam *b);

/* beam_judge.c. NULL: memory. The caller frees it. */
struct hspmd_beam_judging *hspmd_beam_judging_new(void);
/* Set the estimates of at most HSPMD_BEAM_BATCH drafts, and how they are placed. Returns 0, or -1 if memory runs out. */
int hspmd_beam_judge(struct beam *b, struct beam_draft *const *drafts, int count);
/* Fill the partitions of the draft's pipelines, on the thread of this number. Returns false if one cannot hold the model. */
bool hspmd_beam_partition(const struct beam *b, int thread, const struct beam_draft *d, struct hspmd_draft *out);

enum beam_origins {
	HSPMD_BEAM_ORIGINS_ALIKE,     /* pipelines of one sequence that did well, as many as the inventory allows */
	HSPMD_BEAM_ORIGINS_COMPLETED, /* as many as micro-batches divide among well, with what devices that leaves over */
	HSPMD_BEAM_ORIGINS_PLANS,     /* the pipelines of the best plans, under whatever schedule */
};
/* beam_origins.c: the best draft of a beginning's sequences, or of the best plans (then `from` does not count), by the estimate, for each
 * number of pipelines, at most HSPMD_BEAM_ORIGINS_MAX. Returns how many there are, the best first; -1 if memory runs out. */
int hspmd_beam_origins(struct beam *b, const struct hspmd_beginning *from, enum beam_origins which, struct beam_draft *origins);

/* beam_successors.c: consider all successors of a draft. */
void hspmd_beam_expand(struct beam *b, const struct beam_draft *base);

#endif
