# SPDX-License-Identifier: Apache-2.0
"""What must survive: parameters, buffers, the state of any optimizer, the schedule, and what else the user names. Given to ranks that join,
and saved."""
import io
import os
import pickle
import threading

import torch

PIECE_BYTES = 16 << 20  # packed and sent at once
KEPT = 2  # checkpoints
PREFIX = "hspmd-step-"


class _Place:
    """Stands for a tensor in a description."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.host = tuple(tensor.shape), tensor.dtype, tensor.device.type == "cpu"


def _walk(value, visit):
    """A copy of nested containers in which visit() has replaced the tensors and places."""
    if isinstance(value, (torch.Tensor, _Place)):
        return visit(value)
    if isinstance(value, dict):
        return type(value)((k, _walk(v, visit)) for k, v in value.items()) if type(value) is dict else value
    if type(value) in (list, tuple):
        return type(value)(_walk(v, visit) for v in value)
    return value


class State:
    def __init__(self, model, optimizer, others, device):
        self.model, self.optimizer, self.others, self.device = model, optimizer, others, device

    def _model_tensors(self):
        """In an order that is the same everywhere, each once."""
        seen, tensors = set(), []
        for _, t in sorted(self.model.state_dict(keep_vars=True).items()):
            if isinstance(t, torch.Tensor) and id(t) not in seen:
                seen.add(id(t))
                tensors.append(t.detach())
        return tensors

    def describe(self, numbers):
        """Returns (text, tensors): all but the tensors' contents, and the tensors. numbers: what else goes with it."""
        tensors = self._model_tensors()

        def visit(tensor):
            tensors.append(tensor.detach())
            return _Place(tensor)

        model = [_Place(t) for t in tensors]
        optimizer = _walk(self.optimizer.state_dict(), visit)
        others = {}
        for name, other in self.others.items():
            text = io.BytesIO()
            torch.save(other.state_dict(), text)
            others[name] = text.getvalue()
        return pickle.dumps((model, optimizer, others, numbers)), tensors

    def adopt(self, text):
        """Makes room for what another rank has described. Returns (numbers, tensors to be filled)."""
        model, optimizer, others, numbers = pickle.loads(text)
        tensors = self._model_tensors()
        if [(p.shape, p.dtype) for p in model] != [(tuple(t.shape), t.dtype) for t in tensors]:
            raise RuntimeError("hspmd: the model of this rank has other tensors than that of the ranks that train")

        def visit(place):
            tensors.append(torch.empty(place.shape, dtype=place.dtype, device="cpu" if place.host else self.device))
            return tensors[-1]

        # Not load_state_dict(), which would copy the tensors.
        saved = _walk(optimizer, visit)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.optimizer.state.clear()
        for number, state in saved["state"].items():
            self.optimizer.state[parameters[number]] = state
        for group, values in zip(self.optimizer.param_groups, saved["param_groups"]):
            group.update({k: v for k, v in values.items() if k != "params"})
        for name, other in self.others.items():
            if name in others:
                other.load_state_dict(torch.load(io.BytesIO(others[name]), map_location=self.device, weights_only=False))
        return numbers, tensors


def _bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)


class _Flat:
    """Tensors as one run of bytes."""

    def __init__(self, tensors):
        self.tensors, self.start, at = tensors, [], 0
        for t in tensors:
            self.start.append(at)
            at += t.numel() * t.element_size()
        self.size = at

    def _parts(self, low, high):
        for t, start in zip(self.tensors, self.start):
            a, b = max(low, start), min(high, start + t.numel() * t.element_size())
            if a < b:
                yield t, a - start, b - start, a - low

    def pack(self, low, high, device):
        piece = torch.empty(high - low, dtype=torch.uint8, device=device)
        for t, a, b, at in self._parts(low, high):
            piece[at : at + b - a].copy_(_bytes_of(t.contiguous())[a:b])
        return piece

    def unpack(self, low, piece):
        for t, a, b, at in self._parts(low, low + piece.numel()):
            if t.is_contiguous():
                _bytes_of(t)[a:b].copy_(piece[at : at + b - a])
            else:
                whole = t.contiguous()
                _bytes_of(whole)[a:b].copy_(piece[at : at + b - a])
                t.copy_(whole)


def _pieces(size, part, parts):
    low, high = size * part // parts, size * (part + 1) // parts
    return [(at, min(at + PIECE_BYTES, high)) for at in range(low, high, PIECE_BYTES)]


@torch.no_grad()
def move(group, tensors, holders, joiners):
    """Gives the tensors of the holders to the joiners (ranks of the group): each joiner gets an equal part of each holder, and every byte
    once. Returns the bytes that this rank has received."""
    flat = _Flat(tensors)
    lists = [_pieces(flat.size, i, len(holders)) for i in range(len(holders))]
    if group.rank in holders:
        for low, high in lists[holders.index(group.rank)]:
            piece = flat.pack(low, high, group.device)
            group.wait([group.send(piece, to) for to in joiners])
        return 0
    for turn in range(max(map(len, lists))):
        work = []
        for of, pieces in zip(holders, lists):
            if turn < len(pieces):
                low, high = pieces[turn]
                piece = torch.empty(high - low, dtype=torch.uint8, device=group.device)
                work.append((low, piece, group.receive(piece, of)))
        group.wait([w for _, _, w in work])
        for low, piece, _ in work:
            flat.unpack(low, piece)
    return flat.size


class Checkpoints:
    """Files in a folder: written by a thread under another name, flushed, and then renamed."""

    def __init__(self, folder):
        self.folder = folder
        self._thread = None
        self.failure = None

    def newest(self):
        """The step of the newest; -1: none."""
        return max(self._steps(), default=-1)

    def _steps(self):
        names = os.listdir(self.folder) if self.folder and os.path.isdir(self.folder) else []
        return [int(n[len(PREFIX) : -3]) for n in names if n.startswith(PREFIX) and n.endswith(".pt") and n[len(PREFIX) : -3].isdigit()]

    def _path(self, step):
        return os.path.join(self.folder, f"{PREFIX}{step}.pt")

    def _remove(self, step):
        os.unlink(self._path(step))

    def busy(self):
        return self._thread is not None and self._thread.is_alive()

    def wait(self):
        if self._thread:
            self._thread.join()

    def save(self, step, text, tensors):
        """Copies the tensors, and returns; a thread writes them."""
        self.wait()
        copies = [t.to("cpu", copy=True) for t in tensors]
        self._thread = threading.Thread(target=self._write, args=(step, text, copies), name="hspmd-save")
        self._thread.start()

    def _write(self, step, text, copies):
        path = self._path(step)
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(path + ".tmp", "wb") as file:
                torch.save({"text": text, "tensors": copies}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".tmp", path)
            for old in sorted(self._steps())[:-KEPT]:
                self._remove(old)
            self.failure = None
        except OSError as error:
            self.failure = error

    @torch.no_grad()
    def load(self, state, step):
        """Fills the state; returns the numbers that were saved with it."""
        saved = torch.load(self._path(step), map_location="cpu", weights_only=True, mmap=True)
        numbers, tensors = state.adopt(saved["text"])
        for tensor, value in zip(tensors, saved["tensors"]):
            tensor.copy_(value)
        return numbers
