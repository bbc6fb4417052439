# SPDX-License-Identifier: Apache-2.0
"""What must survive: parameters, buffers, the state of any optimizer, the schedule, and what else the user names. Given to ranks that join,
and saved."""
import io
import pickle

import torch

from hspmd.checkpoints import Piece

PIECE_BYTES = 16 << 20  # packed and sent at once


class _Place:
    """Stands for a tensor in a description."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.host = tuple(tensor.shape), tensor.dtype, tensor.device.type == "cpu"


def _walk(value, visit, path):
    """A copy of nested containers in which visit(value, path) has replaced the tensors and places."""
    if isinstance(value, (torch.Tensor, _Place)):
        return visit(value, path)
    if type(value) is dict:
        return {k: _walk(v, visit, f"{path}/{k}") for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_walk(v, visit, f"{path}/{i}") for i, v in enumerate(value))
    return value


def named_once(model):
    """Returns the tensors of a model by name, each once, and { another name: its first } of those that have several."""
    names, once, aliases = {}, [], {}
    for name, t in sorted(model.state_dict(keep_vars=True).items()):
        if not isinstance(t, torch.Tensor):
            continue
        first = names.setdefault(id(t), name)
        if first == name:
            once.append((name, t))
        else:
            aliases[name] = first
    return once, aliases


def _forms(pieces):
    return {p.name: (p.shape, p.tensor.dtype) for p in pieces}


class State:
    def __init__(self, model, optimizer, others, device):
        self.model, self.optimizer, self.others, self.device = model, optimizer, others, device

    def _model_tensors(self):
        """In an order that is the same everywhere, each once. A buffer may change before the end of a step: it is copied."""
        return [Piece(name, t.detach(), parameter=True, changes=not isinstance(t, torch.nn.Parameter))
                for name, t in named_once(self.model)[0]]  # fmt: skip

    def describe(self, numbers):
        """Returns (text, pieces): all but the tensors' contents, and the tensors. numbers: what else goes with it."""
        pieces = self._model_tensors()

        def visit(tensor, name):
            pieces.append(Piece(name, tensor.detach(), parameter=False))
            return _Place(tensor)

        model = _forms(pieces)
        optimizer = _walk(self.optimizer.state_dict(), visit, "optimizer")
        others = {}
        for name, other in self.others.items():
            text = io.BytesIO()
            torch.save(other.state_dict(), text)
            others[name] = text.getvalue()
        note = {"model": model, "aliases": named_once(self.model)[1], "optimizer": optimizer, "others": others, "numbers": numbers}
        return pickle.dumps(note), pieces

    def adopt(self, text):
        """Makes room for what another rank has described. Returns (numbers, pieces to be filled)."""
        note = pickle.loads(text)
        others = note["others"]
        pieces = self._model_tensors()
        if note["model"] != _forms(pieces):
            raise RuntimeError("hspmd: the model of this rank has other tensors than that of the ranks that train")

        def visit(place, name):
            tensor = torch.empty(place.shape, dtype=place.dtype, device="cpu" if place.host else self.device)
            pieces.append(Piece(name, tensor, parameter=False))
            return tensor

        # Not load_state_dict(), which would copy the tensors.
        saved = _walk(note["optimizer"], visit, "optimizer")
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.optimizer.state.clear()
        for number, state in saved["state"].items():
            self.optimizer.state[parameters[number]] = state
        for group, values in zip(self.optimizer.param_groups, saved["param_groups"]):
            group.update({k: v for k, v in values.items() if k != "params"})
        for name, other in self.others.items():
            if name in others:
                other.load_state_dict(torch.load(io.BytesIO(others[name]), map_location=self.device, weights_only=False))
        return note["numbers"], pieces


def optimizer_of(note, tensors):
    """The optimizer's state_dict() of such a description. tensors: by the names of the pieces."""
    return _walk(note["optimizer"], lambda place, name: as_described(tensors[name], place.shape, place.dtype), "optimizer")


def as_described(tensor, shape, dtype):
    """One whose type the files do not know is in them as bytes."""
    return tensor if tensor.dtype == dtype else tensor.view(dtype).reshape(shape)


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
def move(group, pieces, holders, joiners):
    """Gives the tensors of the holders to the joiners (ranks of the group): each joiner gets an equal part of each holder, and every byte
    once. Returns the bytes that this rank has received."""
    flat = _Flat([p.tensor for p in pieces])
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
