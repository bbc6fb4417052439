/* SPDX-License-Identifier: Apache-2.0 */
/* What gathering unequal parts takes, and in which form: one cost for the resolver, the planner and the devices. */
#ifndef HSPMD_FORMAT_COLLECTIVE_COST_H
#define HSPMD_FORMAT_COLLECTIVE_COST_H

/* How a group gathers parts, or scatters sums into parts. */
enum hspmd_collective_form {
	HSPMD_FORM_DIRECT, /* every member sends to every other, parts as they are: through host memory */
	HSPMD_FORM_EVEN,   /* around a ring; parts are equal */
	HSPMD_FORM_PADDED, /* around a ring, every part padded to the longest */
	HSPMD_FORM_GROUPED /* around a ring, a call per part in its own length, all of them grouped */
};

/* The gain that justifies one more hop on the way from some parts to others, per hop: predictions are not exact enough to accept a further
 * hop, with its buffer and its rendezvous, for less than this. */
#define HSPMD_WORTH_A_HOP 0.05

/* Seconds of the cheapest form around a ring of n members: with padding, all parts but one pass every link, and each part has the length of
 * the longest; with grouped calls, each part passes every link once in its own length, but every call has its latency (HAP, arXiv
 * 2401.05965, section 4.3). parts: bytes per member. link: seconds of a message from member i to the next. *form: which. Empty parts have
 * no call of their own. */
double hspmd_ring_seconds(const double *parts, int n, double (*link)(const void *context, int i, double bytes), const void *context,
                          enum hspmd_collective_form *form);

#endif
