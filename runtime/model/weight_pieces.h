/* SPDX-License-Identifier: Apache-2.0 */
/* Usual places of our tensors in those of a file, for `place` of struct hspmd_weight_name. */
#ifndef HSPMD_MODEL_WEIGHT_PIECES_H
#define HSPMD_MODEL_WEIGHT_PIECES_H

#include "runtime/tensor/file_tensor.h"

/* The file has the last two dimensions as one. */
void hspmd_piece_joined(struct hspmd_file_piece *piece);
/* Our tensor is the rows from `first` on of a tensor of `rows` rows. */
void hspmd_piece_rows(struct hspmd_file_piece *piece, int64_t first, int64_t rows);
/* `count` tensors of the same shape have turns of `block` rows in the file; ours is number `number`. */
void hspmd_piece_interleaved(struct hspmd_file_piece *piece, int64_t number, int64_t count, int64_t block);

/* Our rows stand in blocks of `block` rows; in the file a block begins every `period` rows, the first at row `first`. */
void hspmd_piece_blocks(struct hspmd_file_piece *piece, int64_t first, int64_t block, int64_t period);

#endif
