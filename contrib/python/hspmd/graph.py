# SPDX-License-Identifier: Apache-2.0
"""libhspmd from Python, by ctypes: build a net, plan it, train it on this machine's devices, and read checkpoints and metrics of jobs.

    from hspmd import graph

    def build(net):
        x = net.floats("x", 2)
        h = net.relu(net.linear(x, net.parameter("w1", (64, 2), deviation=0.7).split(0), net.parameter("b1", (64,))))
        net.layer(1)
        net.loss(net.linear(h, net.parameter("w2", (3, 64), deviation=0.2)), net.integers("class"))

    training = graph.Training(build, layers=2, cluster=graph.local(3), optimizer={"lr": 0.01})
    plan = training.plan(global_batch=24, seq_len=8)
    losses = training.run(20, lambda name, sample, start, count: ...)
    w1 = training.parameter("w1")

A function of hspmd(3) called hspmd_net_NAME is the method NAME of the net. Tensors have + - * /. What fails raises Error with hspmd's
words; an exception of `build` or of the reader of samples is its __cause__.

Results belong to Python: nothing here has to be freed, and a checkpoint's file is open until its close() or the end of its `with`."""
import array
import ctypes
import json
import math
import os
import threading

from hspmd import library
from hspmd.library import Error

__all__ = ["Checkpoint", "Error", "Net", "Tensor", "Training", "local", "losses", "metrics", "version"]

_DIMS = 6


class _Window(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64 * 2) for name in ("size", "stride", "padding", "dilation")]


class _Attention(ctypes.Structure):
    _fields_ = [("causal", ctypes.c_int), ("window", ctypes.c_int64), ("scale", ctypes.c_double), ("dropout", ctypes.c_double),
                ("segments", ctypes.c_int), ("mask", ctypes.c_int)]  # fmt: skip


class _CrossEntropy(ctypes.Structure):
    _fields_ = [("smoothing", ctypes.c_double), ("ignores", ctypes.c_int), ("ignored", ctypes.c_int), ("weights", ctypes.c_int)]


_BUILD = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_READ = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
_ON_LOSS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_double)

# Arguments after the object: a letter each. T tensor, i int, l int64, d double, s text, I ints, L int64s, S tensors, W window.
_NET = {
    "integers": "s", "floats": "sl", "integer_input": "siL", "float_input": "siL", "parameter": "siLdd",
    "embed": "TT", "linear": "TTT", "layer_norm": "TTTd", "rms_norm": "TTd", "positions": "TT", "rope": "Tld", "attention": "TTTTl",
    "gelu": "T", "gelu_exact": "T", "relu": "T", "silu": "T", "sigmoid": "T", "tanh": "T", "exp": "T", "log": "T", "sqrt": "T",
    "power": "Td", "scale": "Td", "add": "TT", "subtract": "TT", "multiply": "TT", "divide": "TT", "swiglu": "TT", "dropout": "Td",
    "reshape": "TiL", "transpose": "TI", "slice": "Till", "pad": "Till", "concat": "Sii", "repeat": "TiL", "gather": "TTi",
    "reshard": "Ts", "sum": "TIii", "mean": "TIii", "max": "TIii", "matmul": "TTii", "softmax": "T", "group_norm": "TiTTd",
    "conv2d": "TTTWi", "max_pool2d": "TW", "avg_pool2d": "TW", "attend": "TTTlA", "experts": "TTSidi",
    "loss": "TT", "cross_entropy": "TTC", "squared_loss": "TTT", "logistic_loss": "TTT", "mean_loss": "Td",
}  # fmt: skip
_KINDS = {
    "T": ctypes.c_int, "i": ctypes.c_int, "l": ctypes.c_int64, "d": ctypes.c_double, "s": ctypes.c_char_p,
    "I": ctypes.POINTER(ctypes.c_int), "L": ctypes.POINTER(ctypes.c_int64), "S": ctypes.POINTER(ctypes.c_int),
    "W": ctypes.POINTER(_Window), "A": ctypes.POINTER(_Attention), "C": ctypes.POINTER(_CrossEntropy),
}  # fmt: skip

_PLAIN = {name for name, letters in _NET.items() if set(letters) <= set("Tilds")}


def _declare(lib):
    function = library.declarer(lib)
    pointer, text, err = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(library.Text)
    for name, letters in _NET.items():
        function("net_" + name, ctypes.c_int, pointer, *[_KINDS[letter] for letter in letters])
    function("version", text)
    function("net_samples", ctypes.c_int64, pointer)
    function("net_length", ctypes.c_int64, pointer)
    function("net_layer", None, pointer, ctypes.c_int)
    function("net_rank", ctypes.c_int, pointer, ctypes.c_int)
    function("net_dim", ctypes.c_int64, pointer, ctypes.c_int, ctypes.c_int)
    function("net_no_decay", None, pointer, ctypes.c_int)
    function("net_split", None, pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    function("net_annotate", None, pointer, ctypes.c_int, text)
    function("training_create", pointer, _BUILD, pointer, ctypes.c_int)
    function("training_destroy", None, pointer)
    for name in ("cluster", "plan", "optimizer"):
        function("training_" + name, ctypes.c_int, pointer, text, err)
    function("training_solve", pointer, pointer, ctypes.c_int64, ctypes.c_int64, err)
    function("training_program", pointer, pointer, text, err)
    function("training_seed", None, pointer, ctypes.c_uint64)
    function("training_threads", ctypes.c_int, pointer, text, ctypes.c_int, err)
    function("training_samples", None, pointer, _READ, pointer)
    function("training_on_loss", None, pointer, _ON_LOSS, pointer)
    function("training_run", ctypes.c_int, pointer, ctypes.c_int64, err)
    function("training_parameter", ctypes.c_int, pointer, text, pointer, ctypes.c_int64, err)
    function("checkpoint_open", pointer, text, err)
    function("checkpoint_close", None, pointer)
    function("checkpoint_step", ctypes.c_int64, pointer)
    function("checkpoint_parameter", text, pointer, ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int64))
    function("checkpoint_read", ctypes.c_int, pointer, text, pointer, ctypes.c_int64, err)


def _load():
    return library.load(_declare)


def _call(name, *arguments):
    return library.call(_load(), name, *arguments)


def _take_text(pointer):
    """Copies a text that the library allocated, and frees it."""
    value = ctypes.cast(pointer, ctypes.c_char_p).value.decode()
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = [ctypes.c_void_p], None
    free(pointer)
    return value


def version():
    return _load().hspmd_version().decode()


def _shaped(values, shape):
    """An array of floats as a memoryview of this shape, which NumPy takes as it is."""
    return memoryview(values).cast("B").cast("f", list(shape)) if shape else memoryview(values)


def _floats(shape):
    return array.array("f", bytes(4 * math.prod(shape)))


# ---- a net


class Tensor:
    """A tensor of a net that is being built."""

    def __init__(self, net, number):
        self._net, self.number = net, number

    @property
    def shape(self):
        lib, net = _load(), self._net._pointer
        return tuple(lib.hspmd_net_dim(net, self.number, d) for d in range(max(lib.hspmd_net_rank(net, self.number), 0)))

    def split(self, dim, unit=1):
        """Splits this parameter over the devices of its stage, in multiples of `unit`. Returns it."""
        _load().hspmd_net_split(self._net._pointer, self.number, dim, unit)
        return self

    def annotate(self, annotation):
        _load().hspmd_net_annotate(self._net._pointer, self.number, annotation.encode())
        return self

    def no_decay(self):
        _load().hspmd_net_no_decay(self._net._pointer, self.number)
        return self

    def __add__(self, other):
        return self._net.add(self, other)

    def __sub__(self, other):
        return self._net.subtract(self, other)

    def __mul__(self, other):
        return self._net.scale(self, other) if isinstance(other, (int, float)) else self._net.multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self._net.scale(self, 1 / other) if isinstance(other, (int, float)) else self._net.divide(self, other)


def _listed(kind, values):
    values = [v.number if isinstance(v, Tensor) else v for v in values]
    return (kind * max(len(values), 1))(*values)


def _pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


class Net:
    """What `build` gets. Methods: the functions hspmd_net_* of hspmd(3) in the same order of arguments, a list for each array and its
    length, None for a tensor that is not there."""

    def __init__(self, pointer, inputs, shapes):
        self._pointer, self._inputs, self._shapes = pointer, inputs, shapes

    @property
    def samples(self):
        return _load().hspmd_net_samples(self._pointer)

    @property
    def length(self):
        return _load().hspmd_net_length(self._pointer)

    def layer(self, number):
        """Operators and parameters from now on belong to this layer of the plan."""
        _load().hspmd_net_layer(self._pointer, number)

    def _append(self, name, *arguments):
        numbers = [-1 if a is None else a.number if isinstance(a, Tensor) else a.encode() if isinstance(a, str) else a for a in arguments]
        return Tensor(self, getattr(_load(), "hspmd_net_" + name)(self._pointer, *numbers))

    def __getattr__(self, name):
        if name not in _PLAIN:
            raise AttributeError(f"a net has no {name}")
        count = len(_NET[name])

        def method(*arguments):
            if len(arguments) == 2 and _NET[name] == "TTT":  # a bias, weights: may be left out
                arguments += (None,)
            if len(arguments) != count:
                raise TypeError(f"{name}: expected {count} arguments, got {len(arguments)}")
            return self._append(name, *arguments)

        return method

    def integers(self, name):
        self._inputs[name] = ("i", 1)
        return self._append("integers", name)

    def floats(self, name, width):
        self._inputs[name] = ("f", width)
        return self._append("floats", name, width)

    def integer_input(self, name, dims):
        self._inputs[name] = ("i", math.prod(dims[1:]))
        return self._append("integer_input", name, len(dims), _listed(ctypes.c_int64, dims))

    def float_input(self, name, dims):
        self._inputs[name] = ("f", math.prod(dims[1:]))
        return self._append("float_input", name, len(dims), _listed(ctypes.c_int64, dims))

    def parameter(self, name, dims, mean=0.0, deviation=0.0):
        self._shapes[name] = tuple(dims)
        return self._append("parameter", name, len(dims), _listed(ctypes.c_int64, dims), mean, deviation)

    def reshape(self, x, dims):
        return self._append("reshape", x, len(dims), _listed(ctypes.c_int64, dims))

    def repeat(self, x, dims):
        return self._append("repeat", x, len(dims), _listed(ctypes.c_int64, dims))

    def transpose(self, x, order):
        return self._append("transpose", x, _listed(ctypes.c_int, order))

    def concat(self, tensors, dim):
        return self._append("concat", _listed(ctypes.c_int, tensors), len(tensors), dim)

    def sum(self, x, dims, keep=False):
        return self._append("sum", x, _listed(ctypes.c_int, dims), len(dims), keep)

    def mean(self, x, dims, keep=False):
        return self._append("mean", x, _listed(ctypes.c_int, dims), len(dims), keep)

    def max(self, x, dims, keep=False):
        return self._append("max", x, _listed(ctypes.c_int, dims), len(dims), keep)

    def matmul(self, a, b, transpose_a=False, transpose_b=False):
        return self._append("matmul", a, b, transpose_a, transpose_b)

    def _window(self, size=0, stride=0, padding=0, dilation=0):
        pairs = [(ctypes.c_int64 * 2)(*_pair(value)) for value in (size, stride, padding, dilation)]
        return ctypes.byref(_Window(*pairs))

    def conv2d(self, x, weight, bias=None, groups=1, **window):
        return self._append("conv2d", x, weight, bias, self._window(**window), groups)

    def max_pool2d(self, x, size, **window):
        return self._append("max_pool2d", x, self._window(size, **window))

    def avg_pool2d(self, x, size, **window):
        return self._append("avg_pool2d", x, self._window(size, **window))

    def attend(self, q, k, v, head_width, causal=False, window=0, scale=0.0, dropout=0.0, segments=None, mask=None):
        optional = [-1 if tensor is None else tensor.number for tensor in (segments, mask)]
        return self._append("attend", q, k, v, head_width, ctypes.byref(_Attention(causal, window, scale, dropout, *optional)))

    def experts(self, x, router, gate_up_down, per_token, balance=0.0, gate=0):
        return self._append("experts", x, router, _listed(ctypes.c_int, gate_up_down), per_token, balance, gate)

    def cross_entropy(self, logits, targets, smoothing=0.0, ignored=None, weights=None):
        how = _CrossEntropy(smoothing, ignored is not None, ignored or 0, -1 if weights is None else weights.number)
        return self._append("cross_entropy", logits, targets, ctypes.byref(how))


# ---- training


def local(devices=1, memory_bytes=1 << 32):
    """A cluster file (hspmd-cluster(5)) of equal CPU devices of this machine: "local:0", "local:1", .."""
    kind = {"kind": "cpu", "memory_bytes": memory_bytes, "gbytes_per_s": 10, "peak_tflops": {"fp32": 0.05}}
    return {
        "format": "hspmd-cluster-1",
        "device_types": {"core": kind},
        "nodes": [{"name": "local", "devices": [{"type": "core", "count": devices}]}],
        "links": [{"scope": "node", "alpha_s": 1e-6, "gbytes_per_s": 5}],
    }


def _json(value):
    return (value if isinstance(value, str) else json.dumps(value)).encode()


class Training:
    """Trains a net with a thread per device of the cluster.

    build(net): builds the net; may be called several times, from several threads. layers: the last number given to net.layer, plus one.
    cluster, optimizer: as in hspmd-cluster(5) and hspmd-job(5), dicts or JSON."""

    def __init__(self, build, layers, cluster=None, optimizer=None, seed=1):
        self._lib, self._lock, self._cause, self._inputs, self._shapes = _load(), threading.Lock(), None, {}, {}
        self._user_build, self._read, self._losses = build, None, []
        # The library keeps these: they must live as long as it does.
        self._callbacks = _BUILD(self._call_build), _READ(self._call_read), _ON_LOSS(self._call_loss)
        self._pointer = self._lib.hspmd_training_create(self._callbacks[0], None, layers)
        if not self._pointer:
            raise MemoryError
        self._lib.hspmd_training_seed(self._pointer, seed)
        self._lib.hspmd_training_samples(self._pointer, self._callbacks[1], None)
        self._lib.hspmd_training_on_loss(self._pointer, self._callbacks[2], None)
        _call("training_cluster", self._pointer, _json(local() if cluster is None else cluster))
        if optimizer is not None:
            _call("training_optimizer", self._pointer, _json(optimizer))

    def __del__(self):
        if getattr(self, "_pointer", None):
            self._lib.hspmd_training_destroy(self._pointer)

    def _fail(self, error):
        with self._lock:
            self._cause = self._cause or error

    def _call_build(self, _, pointer):
        try:
            self._user_build(Net(pointer, self._inputs, self._shapes))
        except BaseException as error:  # no exception may leave a callback
            self._fail(error)
            self._lib.hspmd_net_add(pointer, -1, -1)  # the net is not complete

    def _call_read(self, _, name, sample, start, count, to):
        try:
            kind, width = self._inputs[name.decode()]
            values = self._read(name.decode(), sample, start, count)
            if not isinstance(values, (bytes, bytearray, memoryview)) and not hasattr(values, "__array_interface__"):
                values = array.array(kind, values)
            view = memoryview(values)
            if view.nbytes != 4 * count * width or view.format not in (kind, "B"):
                wanted = f"{count * width} elements of format {kind!r}"
                raise ValueError(f"input {name.decode()}: expected {wanted}, got {view.nbytes} bytes of format {view.format!r}")
            ctypes.memmove(to, view.tobytes(), view.nbytes)
            return 0
        except BaseException as error:
            self._fail(error)
            return -1

    def _call_loss(self, _, step, loss):
        self._losses.append(loss)

    def _checked(self, name, *arguments):
        self._cause = None
        try:
            return _call(name, self._pointer, *arguments)
        except Error as error:
            raise error from self._cause

    def plan(self, plan=None, *, global_batch=None, seq_len=None):
        """Sets a plan as in hspmd-plan(5); or lets the solver find the fastest one for batches of `global_batch` samples of `seq_len`
        positions. Returns it, a dict."""
        if plan is not None:
            self._checked("training_plan", _json(plan))
            return json.loads(_json(plan))
        if global_batch is None or seq_len is None:
            raise TypeError("plan: expected a plan, or global_batch and seq_len")
        return json.loads(_take_text(self._checked("training_solve", global_batch, seq_len)))

    def threads(self, device, count):
        """The number of cores that the CPU device "node:index" uses."""
        self._checked("training_threads", device.encode(), count)

    def program(self, device):
        """The instructions of a step of the device "node:index", one per line."""
        return _take_text(self._checked("training_program", device.encode()))

    def run(self, steps, read):
        """Trains from random parameters. Returns the losses of all steps.

        read(name, sample, start, count): positions [start, start + count) of an input of a sample, which is counted over all training:
        a flat sequence of numbers, an array.array, or a buffer of 4-byte integers or floats. It is called from several threads, and its
        result may depend on nothing but these arguments."""
        self._read, self._losses = read, []
        self._checked("training_run", steps)
        return list(self._losses)

    def parameter(self, name):
        """A parameter as the last run left it: a memoryview of floats in its shape."""
        shape = self._shapes.get(name, (0,))
        values = _floats(shape)
        self._checked("training_parameter", name.encode(), values.buffer_info()[0], len(values))
        return _shaped(values, shape)


# ---- what jobs leave


class Checkpoint:
    """The newest complete checkpoint in a folder that a job names. shapes: of each parameter. c["name"]: its values."""

    def __init__(self, folder):
        self._pointer = _call("checkpoint_open", os.fsencode(folder))
        self.step = _load().hspmd_checkpoint_step(self._pointer)
        self.shapes = {}
        rank, dims = ctypes.c_int(), (ctypes.c_int64 * _DIMS)()
        while (name := _load().hspmd_checkpoint_parameter(self._pointer, len(self.shapes), ctypes.byref(rank), dims)) is not None:
            self.shapes[name.decode()] = tuple(dims[: rank.value])

    def close(self):
        if getattr(self, "_pointer", None):
            _load().hspmd_checkpoint_close(self._pointer)
            self._pointer = None

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getitem__(self, name):
        if not self._pointer:
            raise Error("the checkpoint is closed")
        shape = self.shapes[name]
        values = _floats(shape)
        _call("checkpoint_read", self._pointer, name.encode(), values.buffer_info()[0], len(values))
        return _shaped(values, shape)


def metrics(output):
    """The lines of metrics.jsonl in a job's output folder, as dicts. A last line that is still being written is left out."""
    found = []
    with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                found.append(json.loads(line))
    return found


def losses(output):
    """The loss of each step in a job's output folder, by step. Of a step that was done again, the last."""
    return {line["step"]: line["loss"] for line in metrics(output) if "step" in line and "loss" in line}
