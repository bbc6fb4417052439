# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the whole state, written by libhspmd beside training: each rank that has a part writes a file, and rank 0 commits the
checkpoint when all files are there. `hspmd checkpoint` lists, verifies and exports them."""
import base64
import ctypes
import os
import sys
import threading
import time

import torch

from hspmd import library

KEPT = 2  # checkpoints
PATIENCE_S = 600  # for the files of all ranks
_TYPES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}


class _Tensor(ctypes.Structure):  # struct hspmd_stored_tensor
    _fields_ = [
        ("name", ctypes.c_char_p), ("parameter", ctypes.c_int), ("type", ctypes.c_char_p), ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("low", ctypes.POINTER(ctypes.c_int64)), ("high", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    ]  # fmt: skip


def _declare(lib):
    function = library.declarer(lib)
    pointer, text, err, many = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(library.Text), ctypes.POINTER(_Tensor)
    step = ctypes.c_int64
    function("saver_create", pointer, err)
    function("saver_begin", ctypes.c_int, pointer, text, step, step, text, many, ctypes.c_int, err)
    function("saver_wait_copied", ctypes.c_int, pointer, err)
    function("saver_result", ctypes.c_int, pointer, ctypes.c_double, ctypes.POINTER(text), err)
    function("saver_commit", ctypes.c_int, text, step, step, text, ctypes.POINTER(text), ctypes.c_int, ctypes.c_int, err)
    function("checkpoint_open", pointer, text, err)
    function("checkpoint_close", None, pointer)
    function("checkpoint_step", step, pointer)
    function("checkpoint_note", text, pointer)
    function("checkpoint_tensor", ctypes.c_int, pointer, ctypes.c_int, many)
    function("checkpoint_fill", ctypes.c_int, pointer, many, ctypes.c_int, err)


def _lib():
    return library.load(_declare)


def _call(name, *arguments):
    return library.call(_lib(), name, *arguments)


class Piece:
    """What a rank has of a tensor. box: (offsets, lengths) in the whole tensor; None: all. parameter: it is the model's. changes: not only
    in the optimizer's step."""

    def __init__(self, name, tensor, *, parameter, shape=None, box=None, changes=False):
        self.name, self.tensor, self.parameter, self.changes = name, tensor, parameter, changes
        self.shape = tuple(tensor.shape) if shape is None else tuple(shape)
        self.box = ((0,) * len(self.shape), self.shape) if box is None else box

    def described(self, data, keep):
        """For the library. data: the tensor as packed memory of the host; keep: gets what must outlive the call."""
        type_name, shape, (low, lengths) = _TYPES.get(data.dtype), self.shape, self.box
        if type_name is None:  # as bytes
            each = data.element_size()
            type_name, shape, low, lengths = "U8", (*shape, each), (*low, 0), (*lengths, each)
        numbers = [(ctypes.c_int64 * max(1, len(shape)))(*n) for n in (shape, low, [a + b for a, b in zip(low, lengths)])]
        keep.append(numbers)
        return _Tensor(self.name.encode(), self.parameter, type_name.encode(), len(shape), *numbers, data.data_ptr())


def _array(pieces, tensors, keep):
    return (_Tensor * max(1, len(pieces)))(*[p.described(t, keep) for p, t in zip(pieces, tensors)])


def _is_plain(tensor):
    return tensor.device.type == "cpu" and tensor.is_contiguous()


class Saved:
    """The newest complete checkpoint of a folder, open; raises library.Error if there is none. step; note: bytes, or None."""

    def __init__(self, folder):
        self._open = _call("checkpoint_open", os.fsencode(folder))
        self.step = _lib().hspmd_checkpoint_step(self._open)
        note = _lib().hspmd_checkpoint_note(self._open)
        self.note = None if note is None else base64.b64decode(note)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _lib().hspmd_checkpoint_close(self._open)

    @torch.no_grad()
    def fill(self, pieces):
        pieces = [p for p in pieces if p.tensor.numel()]
        plain = [p.tensor if _is_plain(p.tensor) else torch.empty(p.tensor.shape, dtype=p.tensor.dtype) for p in pieces]
        keep = []
        _call("checkpoint_fill", self._open, _array(pieces, plain, keep), len(pieces))
        for piece, data in zip(pieces, plain):
            if data is not piece.tensor:
                piece.tensor.copy_(data)

    def read(self):
        """All tensors: those of the model, and the others, each by name."""
        pieces, found = [], _Tensor()
        while _lib().hspmd_checkpoint_tensor(self._open, len(pieces), ctypes.byref(found)):
            room = torch.empty(found.shape[: found.rank], dtype=_DTYPES[found.type.decode()])
            pieces.append(Piece(found.name.decode(), room, parameter=bool(found.parameter)))
        self.fill(pieces)
        return tuple({p.name: p.tensor for p in pieces if p.parameter == wanted} for wanted in (True, False))


class Checkpoints:
    """In a folder; None: there are none. every_s: seconds from one to the next. rank, size: those who save together, which all see the
    folder. failure: of the last one, once it has ended. kept_step: that of the last one, or of that which was read; -1: none."""

    rank, size = 0, 1

    def __init__(self, folder, every_s):
        self.folder = folder
        self.failure = None
        self.kept_step = -1
        self._every_s, self._at = every_s, time.monotonic()
        self._saver = self._thread = None
        self._kept = []  # tensors that the library reads
        if folder:
            _lib()

    # ---- reading

    def newest(self):
        """The step of the newest; -1: none."""
        if not self.folder or not os.path.isdir(self.folder):
            return -1
        try:
            with Saved(self.folder) as found:
                return found.step
        except library.Error as error:
            if "there is no checkpoint" not in str(error):
                print(f"hspmd: {error}", file=sys.stderr)
            return -1

    def load(self, adopt):
        """From the newest. adopt(note) makes room, and returns (result, pieces to be filled). Returns the result."""
        self.copied()
        with Saved(self.folder) as found:
            result, pieces = adopt(found.note)
            found.fill(pieces)
            self.kept_step = found.step
            return result

    # ---- writing

    def has(self, step):
        """True: it is there, or being written; it has not failed."""
        return self.kept_step == step and not self.failure

    def due(self):
        """True: it is time for the next, and the last one is written."""
        return time.monotonic() - self._at >= self._every_s and not (self._thread and self._thread.is_alive())

    def wait(self):
        if self._thread:
            self._thread.join()

    def copied(self):
        """Before the tensors that were passed to save() change."""
        if self._kept:
            _call("saver_wait_copied", self._saver)
            self._kept = []

    def save(self, step, generation, note, pieces, store=None):
        """Returns at once; the tensors must not change before copied(). note: bytes that are kept with them. store: that of all ranks, in
        which they tell rank 0 of their files; None: this rank saves alone."""
        self.wait()
        self.failure = None
        self.kept_step, self._at = step, time.monotonic()
        where = os.fsencode(self.folder), step, generation
        pieces = [p for p in pieces if p.tensor.numel()]
        try:
            self._saver = self._saver or _call("saver_create")
            if pieces:
                self._begin(where, pieces)
        except library.Error as error:
            self.failure = error
        self._thread = threading.Thread(target=self._end, args=(where, base64.b64encode(note), bool(pieces), store), name="hspmd-save")
        self._thread.start()

    def _begin(self, where, pieces):
        keep = []
        tensors = [p.tensor if _is_plain(p.tensor) and not p.changes else p.tensor.to("cpu", copy=True).contiguous() for p in pieces]
        name = f"rank-{self.rank}.safetensors".encode()
        _call("saver_begin", self._saver, *where, name, _array(pieces, tensors, keep), len(pieces))
        self._kept = tensors

    def _end(self, where, note, writes, store):
        mine = b""
        try:
            if writes and not self.failure:
                mine = self._written()
        except (library.Error, RuntimeError) as error:
            self.failure = error
        try:
            files = [mine] if store is None else self._files_of_all(store, f"saved/{where[1]}/", mine)
            if files and not self.failure:
                _call("saver_commit", *where, note, (ctypes.c_char_p * len(files))(*files), len(files), KEPT)
        except (library.Error, RuntimeError) as error:
            self.failure = self.failure or error

    def _written(self):
        """Waits for this rank's file, and returns its description."""
        text = ctypes.c_char_p()
        if not _call("saver_result", self._saver, float(PATIENCE_S), ctypes.byref(text)):
            raise RuntimeError(f"a file is not written after {PATIENCE_S} s")
        return text.value

    def _files_of_all(self, store, prefix, mine):
        """Rank 0 waits for the others; they return nothing."""
        store.set(prefix + str(self.rank), f"!{self.failure}" if self.failure else mine)
        if self.rank:
            return []
        until, keys = time.monotonic() + PATIENCE_S, [prefix + str(rank) for rank in range(self.size)]
        while not store.check(keys):
            if time.monotonic() > until:
                raise RuntimeError(f"not all ranks have written their files after {PATIENCE_S} s")
            time.sleep(0.05)
        files = [file for file in map(store.get, keys) if file]  # empty: a rank had nothing that no other has
        failed = next((file for file in files if file.startswith(b"!")), None)
        if failed:
            raise RuntimeError(failed[1:].decode(errors="replace"))
        return files
