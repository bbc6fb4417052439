/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at Slurm: seldom while nothing happens, off the loop, one look at a time. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld/daemon_private.h"

void look_soon(struct ctld *d)
{
	ctld_pace_soon(&d->pace, hspmd_now());
	tick_at(d, d->pace.next_s);
}

/* On a thread of the pool. */
static void look(uv_work_t *work)
{
	struct ctld *d = work->data;
	d->new_view = NULL;
	d->look_rpcs = 0;
	d->look_rc = d->options->look(d->options->look_context, d->view, &d->new_view, &d->look_rpcs, &d->look_error);
}

static bool same_nodes(const struct hspmd_view *a, const struct hspmd_view *b)
{
	if (!a || a->node_count != b->node_count)
		return false;
	for (int i = 0; i < a->node_count; i++)
		if (strcmp(a->nodes[i].name, b->nodes[i].name) != 0)
			return false;
	return true;
}

/* What is remembered of nodes goes on; a node that was working and is not there any more was lost. */
static int carry_notes(struct ctld *d, double dt)
{
	struct hspmd_view *v = d->new_view;
	if (!same_nodes(d->view, v)) {
		struct ctld_node_note *notes = hspmd_calloc((size_t)v->node_count, sizeof *notes);
		if (!notes)
			return -1;
		free(d->notes);
		d->notes = notes;
		return 0;
	}
	int up = 0, lost = 0;
	for (int i = 0; i < v->node_count; i++) {
		bool was_up = d->view->nodes[i].state != HSPMD_VIEW_UNUSABLE;
		bool goes = d->view->nodes[i].state == HSPMD_VIEW_BUSY && v->nodes[i].state == HSPMD_VIEW_UNUSABLE;
		d->notes[i].up_s += was_up ? dt : 0;
		d->notes[i].losses += goes;
		up += was_up;
		lost += goes;
	}
	d->totals.up_node_s += up * dt;
	d->totals.lost_nodes += (uint64_t)lost;
	if (lost > 1)
		d->totals.together += (double)lost * (lost - 1) / (up - 1);
	return 0;
}

static void take_view(struct ctld *d, double now)
{
	if (carry_notes(d, now - d->viewed_s) < 0) {
		hspmd_error_log("out of memory while looking at the cluster");
		hspmd_view_destroy(d->new_view);
		return;
	}
	hspmd_view_destroy(d->view);
	d->view = d->new_view;
	d->viewed_s = now;
	d->dirty = true;
	sweep_peers(d);
	forget_given(d);
}

static void look_failed(struct ctld *d)
{
	d->totals.failed_looks++;
	if (strcmp(d->trouble, d->look_error.text) != 0)
		record(d, "trouble", 0, d->look_error.text, NULL);
	strcpy(d->trouble, d->look_error.text);
}

static void looked(uv_work_t *work, int status)
{
	struct ctld *d = work->data;
	double now = hspmd_now();
	(void)status;
	d->looking = false;
	if (d->stopping) {
		hspmd_view_destroy(d->new_view);
		return;
	}
	d->totals.rounds++;
	d->totals.rpcs += (uint64_t)d->look_rpcs;
	enum ctld_look what = CTLD_LOOK_FAILED;
	if (d->look_rc < 0) {
		look_failed(d);
	} else {
		if (*d->trouble)
			record(d, "trouble_over", 0, "slurmctld answers again", NULL);
		*d->trouble = '\0';
		bool same = !d->look_rc || (d->view && hspmd_view_same(d->view, d->new_view));
		what = same ? CTLD_LOOK_SAME : CTLD_LOOK_NEWS;
	}
	if (d->look_rc >= 0)
		d->seen_s = d->look_began_s;
	ctld_pace_looked(&d->pace, d->look_began_s, now, what);
	if (d->look_rc > 0)
		take_view(d, now);
	/* At once: somebody may be waiting for just this. */
	if (d->dirty)
		decide(d);
	tick_at(d, d->pace.next_s);
}

void look_begin(struct ctld *d)
{
	d->work.data = d;
	d->look_began_s = hspmd_now();
	d->looking = uv_queue_work(&d->loop, &d->work, look, looked) == 0;
	d->pace.next_s = d->look_began_s + d->pace.interval_s;
}
