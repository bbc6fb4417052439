/* SPDX-License-Identifier: Apache-2.0 */
/* Further tensors of a joined step: their boxes and values follow from the scene's. */
#include "tests/unit/comm_scene_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct hspmd_box stretched(const struct hspmd_box *box, int part)
{
	struct hspmd_box b = *box;
	b.lo[0] *= part + 1;
	b.hi[0] *= part + 1;
	return b;
}

static struct hspmd_box *all_stretched(const struct hspmd_box *boxes, int count, int part)
{
	struct hspmd_box *copy = calloc((size_t)count + 1, sizeof *copy);
	for (int i = 0; i < count; i++)
		copy[i] = stretched(&boxes[i], part);
	return copy;
}

/* The values of a box in tensor number `part`. */
static float *expanded(const float *values, const struct hspmd_box *box, int part)
{
	int64_t columns = box->hi[1] - box->lo[1], rows = (box->hi[0] - box->lo[0]) * (part + 1);
	float *all = malloc((size_t)(rows * columns) * sizeof *all + 1), factor = ldexpf(1, part);
	for (int64_t row = 0; row < rows; row++)
		for (int64_t i = 0; i < columns; i++)
			all[row * columns + i] = values[row / (part + 1) * columns + i] * factor;
	return all;
}

int scene_open_part(const struct scene *s, int rank, int number, struct hspmd_device *dev, struct scene_part *p)
{
	const struct hspmd_device_ops *ops = dev->ops;
	p->step = s->step;
	p->transfer = s->transfer;
	p->transfer.layout = p->layout;
	for (int v = 0; v < 2; v++) {
		p->layout[v] = s->layout[v];
		p->layout[v].box = all_stretched(s->layout[v].box, s->layout[v].device_count, number);
	}
	p->step.in = all_stretched(s->step.in, s->step.member_count, number);
	p->step.out = all_stretched(s->step.out, s->step.member_count, number);
	p->step.moves = calloc((size_t)s->step.move_count + 1, sizeof *p->step.moves);
	for (int i = 0; i < s->step.move_count; i++) {
		p->step.moves[i] = s->step.moves[i];
		p->step.moves[i].box = stretched(&s->step.moves[i].box, number);
	}
	p->values[0] = expanded(s->in[rank], &s->held_in[rank], number);
	p->values[1] = expanded(s->out[rank], &s->held_out[rank], number);
	p->values[2] = expanded(s->want[rank], &s->held_out[rank], number);
	p->in_bytes = (size_t)hspmd_box_elements(&s->held_in[rank]) * 4 * (size_t)(number + 1);
	p->out_bytes = (size_t)hspmd_box_elements(&s->held_out[rank]) * 4 * (size_t)(number + 1);
	p->in = ops->allocate(dev, p->in_bytes, NULL);
	p->out = s->in_place ? p->in : ops->allocate(dev, p->out_bytes, NULL);
	return p->in && p->out ? 0 : -1;
}

int scene_close_part(const struct scene *s, struct hspmd_device *dev, struct scene_part *p, bool check, struct hspmd_error *err)
{
	const struct hspmd_device_ops *ops = dev->ops;
	int rv = check ? ops->to_host(dev, p->values[1], p->out, p->out_bytes, err) : 0;
	if (check && !rv && memcmp(p->values[1], p->values[2], p->out_bytes))
		rv = hspmd_fail(err, "wrong result of a further tensor");
	ops->release(dev, p->in);
	if (!s->in_place)
		ops->release(dev, p->out);
	for (int v = 0; v < 3; v++)
		free(p->values[v]);
	for (int v = 0; v < 2; v++)
		free(p->layout[v].box);
	free(p->step.in);
	free(p->step.out);
	free(p->step.moves);
	return rv;
}
