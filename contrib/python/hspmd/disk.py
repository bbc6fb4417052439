# SPDX-License-Identifier: Apache-2.0
"""Parts of a divided model's state in a folder of the node's own: this rank's, and the copies that it has of its peers'. The ranks of a
later job put the state together from all nodes that are left."""
import os
import sys

import torch

from hspmd import library, shards
from hspmd.checkpoints import Checkpoints, Piece, Saved
from hspmd.control import local_rank


def folder_of_rank(folder):
    """Each of a node's ranks commits checkpoints of its own."""
    return folder and os.path.join(folder, f"rank-{local_rank()}")


def save(places: Checkpoints, stamp, parts):
    """Returns at once. stamp: the same number on all ranks, and another one for each time that they save."""
    note = shards.pack((stamp, [(*part.header(), part.rank, part.forms()) for part in parts]))
    pieces = [Piece(f"{i}/{name}", t, parameter=False) for i, part in enumerate(parts) for name, t in part.tensors.items()]
    generation, step = parts[0].key
    places.save(step, generation, note, pieces)


class _OnDisk(shards.Part):
    """One that is read when its tensors are asked for."""

    def __init__(self, path, number, stamp, header):
        key, shapes, boxes, text, rank, forms = header
        # Behind what ranks still have of the same step, and never mixed with parts that were saved at another time.
        super().__init__((-stamp, key[1]), rank, shapes, boxes, text, None)
        self._path, self._number, self._forms = path, number, forms

    @property
    def tensors(self):
        if self._read is None:
            pieces = [Piece(f"{self._number}/{n}", torch.empty(shape, dtype=dtype), parameter=False)
                      for n, (dtype, shape) in self._forms.items()]  # fmt: skip
            with Saved(self._path) as saved:
                saved.fill(pieces)
            self._read = {name: piece.tensor for name, piece in zip(self._forms, pieces)}
        return self._read

    @tensors.setter
    def tensors(self, value):
        self._read = value


def parts(folder):
    """Those that all ranks of this node have saved in complete checkpoints."""
    found = []
    if not folder or not os.path.isdir(folder):
        return found
    for path in sorted(os.path.join(folder, rank, step) for rank in os.listdir(folder) if rank.startswith("rank-")
                       for step in os.listdir(os.path.join(folder, rank)) if step.startswith("step-")):  # fmt: skip
        try:
            with Saved(path) as saved:
                stamp, headers = shards.unpack(saved.note)
        except library.Error as error:
            if "there is no checkpoint" not in str(error):
                print(f"hspmd: {error}", file=sys.stderr)
            continue
        found += [_OnDisk(path, i, stamp, header) for i, header in enumerate(headers)]
    return found
