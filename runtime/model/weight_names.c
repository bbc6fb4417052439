/* SPDX-License-Identifier: Apache-2.0 */
/* Where the elements of a model's parameters are in its files: the rows of the type's table of names, or as they are. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/model/model_type.h"
#include "runtime/model/weight_pieces.h"

/* The elements of `part` one after another, from element `first` of the file's tensor on. */
static void place_in_order(struct hspmd_file_piece *piece, int first_dim)
{
	int64_t stride = 1;
	for (int d = piece->box.rank - 1; d >= first_dim; d--) {
		piece->stride[d] = stride;
		stride *= piece->box.hi[d] - piece->box.lo[d];
	}
	piece->block = INT64_MAX;
}

/* `name` with `file` in place of `ours`, and `index` in place of "%d". */
static void substitute(char *to, size_t size, const char *name, const char *at, const struct hspmd_weight_name *w, int64_t index)
{
	const char *number = strstr(w->file, "%d");
	int head = (int)(at - name);
	if (number)
		snprintf(to, size, "%.*s%.*s%" PRId64 "%s%s", head, name, (int)(number - w->file), w->file, index, number + 2,
		         at + strlen(w->ours));
	else
		snprintf(to, size, "%.*s%s%s", head, name, w->file, at + strlen(w->ours));
}

static bool find_piece(const void *context, const char *tensor, const struct hspmd_shape *shape, int64_t index,
                       struct hspmd_file_piece *piece)
{
	const struct hspmd_model *m = context;
	*piece = (struct hspmd_file_piece){ .shape = *shape, .box = hspmd_box_full(shape) };
	const struct hspmd_weight_name *w = m->type->weights;
	const char *at = NULL;
	while (w && w->ours && !(at = strstr(tensor, w->ours)))
		w++;
	bool rows = at && strstr(w->file, "%d") && shape->rank > 1;
	if (index >= (rows ? shape->dim[0] : 1))
		return false;
	place_in_order(piece, rows ? 1 : 0);
	if (!at) {
		snprintf(piece->name, sizeof piece->name, "%s", tensor);
		return true;
	}
	substitute(piece->name, sizeof piece->name, tensor, at, w, index);
	if (rows) {
		piece->box.lo[0] = index;
		piece->box.hi[0] = index + 1;
		piece->shape.rank--;
		memmove(piece->shape.dim, shape->dim + 1, (size_t)piece->shape.rank * sizeof *shape->dim);
	}
	if (w->place)
		w->place(m, shape, piece);
	return true;
}

struct hspmd_file_map hspmd_model_file_map(const struct hspmd_model *m)
{
	static const char *const usual[] = { "model.", NULL };
	return (struct hspmd_file_map){ .piece = find_piece, .context = m, .prefixes = m->type->prefixes ? m->type->prefixes : usual };
}

/* ---- places */

void hspmd_piece_joined(struct hspmd_file_piece *piece)
{
	struct hspmd_shape *s = &piece->shape;
	s->rank--;
	s->dim[s->rank - 1] *= s->dim[s->rank];
	s->dim[s->rank] = 0;
}

void hspmd_piece_rows(struct hspmd_file_piece *piece, int64_t first, int64_t rows)
{
	piece->first = first * piece->stride[0];
	piece->shape.dim[0] = rows;
}

void hspmd_piece_blocks(struct hspmd_file_piece *piece, int64_t first, int64_t block, int64_t period)
{
	piece->first = first * piece->stride[0];
	piece->block = block;
	piece->block_stride = period * piece->stride[0];
	piece->shape.dim[0] = piece->shape.dim[0] / block * period;
}

void hspmd_piece_interleaved(struct hspmd_file_piece *piece, int64_t number, int64_t count, int64_t block)
{
	hspmd_piece_blocks(piece, number * block, block, count * block);
}
