# SPDX-License-Identifier: Apache-2.0
"""The state of a divided model: what a rank has of it, how it gets to other ranks, and its files."""
import io
import pickle
import threading

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from hspmd import layout
from hspmd.checkpoints import Piece
from hspmd.state import as_described, named_once

pack, unpack = pickle.dumps, pickle.loads


def local(tensor):
    """What this rank has of it, as plain memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_placed(p, value):
    """What an optimizer keeps for what this rank has of a parameter, as it keeps it for the parameter."""
    if not isinstance(p, DTensor) or not isinstance(value, torch.Tensor) or value.shape != local(p).shape:
        return value
    return DTensor.from_local(value, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def _box_of(tensor):
    """What this rank has of a DTensor."""
    for placement in tensor.placements:
        if not placement.is_replicate() and type(placement).__name__ not in ("Shard", "_StridedShard"):
            raise ValueError(f"hspmd: the placement {placement} is no part of a tensor that could be kept: Shard and Replicate are")
    lengths, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(lengths) != tuple(tensor.to_local().shape):
        shape = tuple(tensor.shape)
        raise ValueError(f"hspmd: the placements {tensor.placements} cut a tensor of shape {shape} into parts that are no boxes")
    return tuple(offsets), tuple(lengths)


def _has_it_alone(tensor, rank):
    """Of several ranks that have the same part, one saves it."""
    if not isinstance(tensor, DTensor):
        return rank == 0
    coordinate = tensor.device_mesh.get_coordinate() or []
    return all(at == 0 for at, placement in zip(coordinate, tensor.placements) if placement.is_replicate())


def share(tensor, size):
    """The sum over all `size` ranks of what each has of a tensor, times this, has each element once."""
    parts = 1
    if isinstance(tensor, DTensor):
        for dim, placement in enumerate(tensor.placements):
            parts *= 1 if placement.is_replicate() else tensor.device_mesh.size(dim)
    return parts / size


def as_parameter(p):
    """Its gradient, placed as the parameter is."""
    if isinstance(p, DTensor) and isinstance(p.grad, DTensor) and p.grad.placements != p.placements:
        p.grad = p.grad.redistribute(placements=p.placements)
    return p.grad


def _piece_name(name):
    return name.removeprefix("model/")


def _place(value):
    """What stands for a value in a description: (shape, type, whether it is the host's) of a tensor, a list with anything else."""
    return (tuple(value.shape), value.dtype, value.device.type == "cpu") if isinstance(value, torch.Tensor) else [value]


class Part:
    """What one rank has, or had, of the state. key: (generation, step). text: all but the tensors' contents, the same on all ranks.
    A copy has all in one run of the host's bytes: flat, which ends with `words` bytes of description."""

    def __init__(self, key, rank, shapes, boxes, text, tensors, flat=None, words=0):
        self.key, self.rank, self.shapes, self.boxes, self.text, self.tensors = key, rank, shapes, boxes, text, tensors
        self.flat, self.words = flat, words

    def header(self):
        return self.key, self.shapes, self.boxes, self.text

    def forms(self):
        return {name: (t.dtype, tuple(t.shape)) for name, t in self.tensors.items()}

    @torch.no_grad()
    def copy(self):
        forms = self.forms()
        words = torch.frombuffer(bytearray(pack((*self.header(), self.rank, forms))), dtype=torch.uint8)
        flat = torch.empty(_size(forms) + len(words), dtype=torch.uint8)
        flat[-len(words) :] = words
        copies = _views(flat, forms)
        for name, t in self.tensors.items():
            copies[name].copy_(t)
        return Part(self.key, self.rank, self.shapes, self.boxes, self.text, copies, flat, len(words))


def _described(flat, words):
    """The copy that has been sent as these bytes."""
    key, shapes, boxes, text, rank, forms = unpack(flat[-words:].numpy().tobytes())
    return Part(key, rank, shapes, boxes, text, _views(flat, forms), flat, words)


def _bytes_of(dtype, shape):
    """Of a tensor in a copy: the next one begins at a multiple of 64."""
    return -(-layout.volume(((), shape)) * dtype.itemsize // 64) * 64


def _size(forms):
    return sum(_bytes_of(*form) for form in forms.values())


def _views(flat, forms):
    views, at = {}, 0
    for name, (dtype, shape) in forms.items():
        n = layout.volume(((), shape)) * dtype.itemsize
        views[name] = flat[at : at + n].view(dtype).view(shape)
        at += _bytes_of(dtype, shape)
    return views


class Held:
    """The state of this generation's own objects."""

    def __init__(self, model, optimizer, others, device):
        self._optimizer, self._others, self._device = optimizer, others, device
        self._boxes = {}  # by how a tensor is placed: DTensor takes long to work one out
        once, self._aliases = named_once(model)
        self._model = {"model/" + name: t for name, t in once}
        names = {id(t): name for name, t in self._model.items()}
        self._parameters = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
        self._changing = set(self._model) - set(self._parameters)  # not only in the optimizer's step

    def _tensors(self):
        found = dict(self._model)
        for name, p in self._parameters.items():
            for key, value in self._optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor):
                    found[f"{name}/{key}"] = value
        return found

    def _box(self, tensor):
        if not isinstance(tensor, DTensor):
            return layout.whole(tensor.shape)
        placed = tensor.shape, tensor.placements, tensor.device_mesh
        if placed not in self._boxes:
            self._boxes[placed] = _box_of(tensor)
        return self._boxes[placed]

    @torch.no_grad()
    def pieces(self, rank=None):
        """What this rank has, in memory; of a rank: what that rank is to save."""
        return [
            Piece(_piece_name(name), local(t).detach(), parameter=name in self._model, shape=t.shape, box=self._box(t),
                  changes=name in self._changing)
            for name, t in self._tensors().items()
            if local(t).numel() and (rank is None or _has_it_alone(t, rank))
        ]  # fmt: skip

    @torch.no_grad()
    def boxes(self):
        return {name: self._box(t) for name, t in self._tensors().items() if local(t).numel()}

    def replicated(self):
        return not any(isinstance(t, DTensor) and any(not p.is_replicate() for p in t.placements) for t in self._model.values())

    @torch.no_grad()
    def locals(self):
        return {name: local(t).detach() for name, t in self._tensors().items() if local(t).numel()}

    def part(self, key, rank, numbers):
        """May be copied until the optimizer's next step."""
        state = {}
        for name, p in self._parameters.items():
            values = self._optimizer.state.get(p, {})
            state[name] = {key: _place(value) for key, value in values.items()}
        names = {id(p): name for name, p in self._parameters.items()}
        groups = [g | {"params": [names[id(p)] for p in g["params"]]} for g in self._optimizer.param_groups]
        others = {}
        for name, other in self._others.items():
            text = io.BytesIO()
            torch.save(other.state_dict(), text)
            others[name] = text.getvalue()
        shapes = {name: tuple(t.shape) for name, t in self._tensors().items()}
        model = {_piece_name(name): _place(t)[:2] for name, t in self._model.items()}
        note = {"model": model, "state": state, "groups": groups, "aliases": self._aliases, "others": others, "numbers": numbers}
        tensors = {name: t.clone() if name in self._changing else t for name, t in self.locals().items()}
        return Part(key, rank, shapes, self.boxes(), pack(note), tensors)

    @torch.no_grad()
    def adopt(self, text):
        """Makes room for what another rank has described. Returns the numbers that came with it."""
        note = unpack(text)
        state, others = note["state"], note["others"]
        if set(state) != set(self._parameters):
            raise ValueError("hspmd: the model of this generation has other parameters than that of the last")
        self._optimizer.state.clear()
        for name, values in state.items():
            p = self._parameters[name]
            for key, value in values.items():
                self._optimizer.state[p][key] = value[0] if isinstance(value, list) else self._room(p, *value)
        for group, values in zip(self._optimizer.param_groups, note["groups"]):
            group.update({k: v for k, v in values.items() if k != "params"})
        for name, other in self._others.items():
            if name in others:
                other.load_state_dict(torch.load(io.BytesIO(others[name]), map_location=self._device, weights_only=False))
        return note["numbers"]

    def _room(self, p, shape, dtype, host):
        if isinstance(p, DTensor) and shape == tuple(p.shape):
            return as_placed(p, torch.empty_like(local(p), dtype=dtype))
        return torch.empty(shape, dtype=dtype, device="cpu" if host else self._device)


def optimizer_of(note, tensors):
    """The optimizer's state_dict() of such a description, as that of one process. tensors: by the names of the pieces."""
    numbers, state = {name: i for i, name in enumerate(note["state"])}, {}
    for name, values in note["state"].items():
        own = {}
        for key, value in values.items():
            place = f"{_piece_name(name)}/{key}"
            own[key] = value[0] if isinstance(value, list) else as_described(tensors[place], *value[:2])
        if own:
            state[numbers[name]] = own
    return {"state": state, "param_groups": [g | {"params": [numbers[n] for n in g["params"]]} for g in note["groups"]]}


def _cut(tensor, box, part):
    """The view of this part of a tensor that is this box of the whole."""
    return tensor[tuple(slice(o - b, o - b + n) for o, n, b in zip(part[0], part[1], box[0]))]


def _bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


class Source:
    """The state that a generation begins with. chosen: offers (member, key, shapes, boxes, text, number) that make it up; mine: the parts
    that this member has offered, by number. Members below `world` train."""

    def __init__(self, group, me, world, chosen, mine):
        self._group, self._me, self._world, self._chosen, self._mine = group, me, world, chosen, mine

    def _part(self, i):
        return self._mine[self._chosen[i][5]]

    def fill(self, held):
        """Returns (numbers, bytes received)."""
        numbers = held.adopt(self._chosen[0][4])
        self._group.publish(f"want/{self._me}", pack(held.boxes()))
        return numbers, self._move(held.locals(), held.boxes())

    def give(self):
        self._move({}, {})

    @torch.no_grad()
    def _move(self, tensors, boxes):
        targets = {i: unpack(self._group.read(f"want/{i}")) for i in range(self._world)}
        sources = [(offer[0], offer[3]) for offer in self._chosen]
        moves = layout.plan(sources, targets)
        sends, receives = {}, {}
        for source, to, name, part in moves:
            of = sources[source][0]
            if of == self._me and to == self._me:
                mine = self._part(source)
                _cut(tensors[name], boxes[name], part).copy_(_cut(mine.tensors[name], mine.boxes[name], part))
            elif of == self._me:
                mine = self._part(source)
                sends.setdefault(to, []).append(_bytes(_cut(mine.tensors[name], mine.boxes[name], part)))
            elif to == self._me:
                receives.setdefault(of, []).append(_cut(tensors[name], boxes[name], part))
        return _transfer(self._group, sends, receives)


def _transfer(group, sends, receives):
    """sends, receives: { peer: list of bytes, of tensors to be filled }. Returns the bytes received."""
    work, buffers = [], []
    for of, wanted in receives.items():
        buffers.append((torch.empty(sum(t.numel() * t.element_size() for t in wanted), dtype=torch.uint8, device=group.device), wanted))
        work.append(group.receive(buffers[-1][0], of))
    outgoing = [(torch.cat(pieces).to(group.device), to) for to, pieces in sends.items()]
    work += [group.send(buffer, to) for buffer, to in outgoing]
    group.wait(work)
    for buffer, wanted in buffers:
        at = 0
        for t in wanted:
            n = t.numel() * t.element_size()
            piece = buffer[at : at + n]
            t.copy_((piece.clone() if at % t.element_size() else piece).view(t.dtype).view(t.shape))
            at += n
    return sum(buffer.numel() for buffer, _ in buffers)


def swap(group, part, to, of):
    """Gives a copied part to a peer, and takes another's. Returns it."""
    sizes, theirs = torch.tensor([part.flat.numel(), part.words]), torch.zeros(2, dtype=torch.int64)
    _exchange(group, sizes, to, theirs, of)
    size, words = theirs.tolist()
    flat = torch.empty(size, dtype=torch.uint8)
    _exchange(group, part.flat, to, flat, of)
    return _described(flat, words)


def _exchange(group, mine, to, theirs, of):
    """Of the host's memory."""
    room = theirs if group.device.type == "cpu" else theirs.to(group.device)
    group.wait([group.receive(room, of), group.send(mine.to(group.device), to)])
    if room is not theirs:
        theirs.copy_(room)


class Copying:
    """This rank's part is copied, and sent to `replicas` peers, which send theirs: beside training if it is in the host's memory, until the
    state changes. parts: the copies that are there so far."""

    def __init__(self, group, own, rank, size, replicas):
        self.parts, self._error = [], None
        self._arguments = group, own, rank, size, min(replicas, size - 1)
        self._thread = None
        if group.device.type == "cpu":
            self._thread = threading.Thread(target=self._run, name="hspmd-copies", daemon=True)
            self._thread.start()
        else:
            self._run()

    def _run(self):
        group, part, rank, size, replicas = self._arguments
        try:
            own = part.copy()
            self.parts.append(own)
            for k in range(1, replicas + 1):
                self.parts.append(swap(group, own, (rank + k) % size, (rank - k) % size))
        except Exception as error:
            self._error = error

    def wait(self):
        """Returns the parts. Raises what has stopped it."""
        self.end()
        if self._error:
            raise self._error
        return self.parts

    def end(self):
        """Waits until no more will come."""
        if self._thread:
            self._thread.join()
        return self.parts
