# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/gpu/run: each runs programs within a limit of its own and writes what they told into the results."""
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CASES = ["gpt2-124m", "llama-160m", "llama-1b", "llama-7b-8l", "gpt2-1.5b", "gpt2-124m-50257"]
# Tokens per second of PyTorch 2.11 on an H200 (tests/bench/RESULTS.md), for the cases that it does not run again.
KNOWN_TORCH = {"gpt2-124m": 512026, "llama-160m": 495026, "llama-1b": 69324, "llama-7b-8l": 44969, "gpt2-1.5b": 42535}
TORCH_AGAIN = ["gpt2-124m", "llama-1b"]
FUSED = ["layernorm_grad_add", "rmsnorm_grad_add", "linear_add", "linear_grad_x_add", "linear_gelu", "linear_grad_x_gelu",
         "attention_grad_rope", "cross_entropy"]
# What may be at fault if a case does not run, the cheapest suspicion first. The last one names the operator.
LADDER = [{"HSPMD_CUDA_GRAPHS": "0"}, {"HSPMD_CUDA_BESIDE": "0"}, {"HSPMD_CUDA_PRODUCTS_BESIDE": "0"}, {"HSPMD_CUDA_WGMMA": "0"},
          {"HSPMD_CUDNN": ""}, {"HSPMD_UNFUSED": "all"}, {"HSPMD_CUDA_TUNE": "0"}, {"HSPMD_CUDA_CHECK": "1", "CUDA_LAUNCH_BLOCKING": "1"}]
OWN = {"HSPMD_CUDNN": ""}
PR_SET_CHILD_SUBREAPER = 36


def json_lines(text):
    """The objects of the lines that are JSON."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
    return found


def last_line(text):
    return (text.strip().splitlines() or ["no word"])[-1]


def children(pid):
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def end_descendants():
    """Ends all that commands have left: as their subreaper this process is the parent of those whose own has ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = children(os.getpid())
        if not left:
            return
        waiting = list(left)
        while waiting:
            pid = waiting.pop()
            waiting += children(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in left:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass


class Campaign:
    """What is known so far. The results' file is whole after every save: a kill at any moment leaves what was known at the last."""

    def __init__(self, args, names, environment, out):
        self.args, self.names, self.environment, self.out = args, names, environment, out
        self.emulated = args.emulated
        self.began = time.monotonic()
        self.results = {"format": "hspmd-gpu-results-1", "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                        "emulated": args.emulated, "parts": {}}
        self.log = open(os.path.join(out, "gpu.log"), "w", encoding="utf-8", errors="replace")
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.save()

    def say(self, text):
        print("[%5.1f s] %s" % (time.monotonic() - self.began, text), flush=True)

    def left(self):
        return self.args.minutes * 60 - (time.monotonic() - self.began)

    def save(self):
        path = os.path.join(self.out, "gpu.json")
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump(self.results, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".new", path)

    def run(self, command, seconds, **more):
        """Exit status (-1: out of time) and output. The command has a process group of its own, and nothing of it is left afterwards."""
        seconds = max(1, min(seconds, self.left()))
        environment = dict(self.environment, **more)
        self.log.write("$ %s%s\n" % ("".join("%s=%s " % pair for pair in more.items()), " ".join(command)))
        with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as output:
            try:
                process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                           start_new_session=True)
            except OSError as e:
                return 127, str(e)
            try:
                status = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                status = -1
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            end_descendants()
            output.seek(0)
            text = output.read()
        self.log.write("%s\n(%s)\n" % (text, "out of time" if status == -1 else "exit status %d" % status))
        self.log.flush()
        return status, text

    def part(self, name, function, seconds):
        """Runs a part; whatever it does, the next one follows."""
        entry = self.results["parts"][name] = {"state": "running"}
        began = time.monotonic()
        self.save()
        if self.left() < 5:
            entry.update(state="not run", why="out of time")
            self.say("%s: not run, out of time" % name)
            self.save()
            return
        self.say(name)
        if self.emulated: # by a processor, which may have other work
            seconds *= 10
        try:
            entry["state"] = function(self, time.monotonic() + min(seconds, self.left())) or "done"
        except Exception as e: # the parts read what programs print, which may be anything
            entry.update(state="failed", why="%s: %s" % (type(e).__name__, e))
        entry["seconds"] = round(time.monotonic() - began, 1)
        self.say("%s: %s%s" % (name, entry["state"], " (%s)" % entry["why"] if "why" in entry else ""))
        self.save()


def until(deadline):
    return deadline - time.monotonic()


# ---- parts, the most valuable first; each returns its state (None: done)


def versions(c, deadline):
    found = c.results["versions"] = {}
    status, text = c.run(["nvidia-smi", "-q"], min(20, until(deadline)))
    for key in ("Driver Version", "CUDA Version", "Product Name", "SM", "Memory"):
        match = re.search(r"^\s*%s\s*: (.*)$" % re.escape(key), text, re.M) if status == 0 else None
        if match:
            found[key] = match.group(1)
    for library, call in (("libcudnn.so.9", "cudnnGetVersion"), ("libcublasLt.so.13", "cublasLtGetVersion"), ("libnccl.so.2", None)):
        probe = "import ctypes\nl = ctypes.CDLL(%r)\n" % library
        probe += "v = ctypes.c_int()\nl.ncclGetVersion(ctypes.byref(v))\nprint(v.value)" if not call else \
            "f = getattr(l, %r)\nf.restype = ctypes.c_size_t\nprint(f())" % call
        status, text = c.run([sys.executable, "-c", probe], min(20, until(deadline)))
        found[library] = text.strip() if status == 0 else "not there"
    status, text = c.run([c.names["step"], "product", "64" if c.emulated else "8192", "1", "20"], until(deadline))
    found["product"] = (json_lines(text) or [None])[-1] if status == 0 else last_line(text)
    return "done" if isinstance(found["product"], dict) else "failed"


def tiles(c, deadline):
    """Products of warp-groups alone: if they are wrong, attention by them is."""
    name = "tiles_emulated" if c.emulated else "tiles"
    return program(name)(c, deadline) if name in c.names else "skipped: not built"


def operators(c, deadline):
    """A child process per family; one that is ended by a case goes on with the case after it."""
    rows = c.results["operators"] = []
    status, text = c.run([c.names["op_table"], "families"], min(60, until(deadline)))
    families = text.split() if status == 0 else []
    if not families:
        raise RuntimeError("op_table lists no families: " + last_line(text))
    if c.emulated:
        families = [f for f in families if f in ("embed", "rmsnorm", "softmax")]
    ways = {"own": OWN} if c.emulated else {"own": OWN, "own, mma": dict(OWN, HSPMD_CUDA_WGMMA="0"), "cuDNN": {}}
    for way, more in ways.items():
        for family in families if way == "own" else ["attention"]:
            for kind in ("bf16", "fp32"):
                if until(deadline) < 2:
                    rows.append({"family": family, "type": kind, "way": way, "good": False, "why": "out of time"})
                    return "failed"
                rows += family_rows(c, family, kind, way, more, deadline)
                c.save()
    bad = [r for r in rows if not r["good"]]
    for r in bad[:20]:
        c.say("WRONG: %s" % r)
    return "failed" if bad else "done"


def family_rows(c, family, kind, way, more, deadline):
    rows, first = [], 0
    while until(deadline) > 1:
        status, text = c.run([c.names["op_table"], family, kind, str(first)], min(60, until(deadline)), HSPMD_CUDA_TUNE="0", **more)
        begun = None
        for row in json_lines(text):
            if "begins" in row:
                begun = row
            else:
                rows.append(dict(row, family=family, way=way))
        if status in (0, 1):
            return rows
        why = "out of time" if status == -1 else last_line(text)
        rows.append({"family": family, "type": kind, "way": way, "case": begun["case"] if begun else None, "good": False, "why": why})
        if not begun:
            return rows
        first = begun["begins"] + 1
    return rows


def candidates(c, deadline):
    """Every product and attention of the cases, by every algorithm that the libraries propose; with fused operators and without."""
    choices = os.path.join(c.out, "tune.jsonl")
    for name in c.args.cases:
        for unfused in ("", "all"):
            more = {"HSPMD_CUDA_TUNE_LOG": choices, "HSPMD_CUDA_CANDIDATES": "32", "HSPMD_UNFUSED": unfused}
            if c.emulated:
                more["HSPMD_CUDNN"] = "played"
            if until(deadline) > 2:
                c.run([c.names["step"], name, "gpu", "1", "0"], until(deadline), **more)
    lines = []
    if os.path.exists(choices):
        with open(choices, encoding="utf-8") as f:
            lines = json_lines(f.read())
        os.remove(choices)
    c.results["products"] = [x for x in lines if "product" in x]
    c.results["attention"] = [x for x in lines if "attention" in x]
    return "done" if c.results["products"] else "failed"


def profile_rows(text):
    rows = []
    for line in text.splitlines():
        match = re.match(r"\s*(\d+) calls\s+([\d.]+) s\s+([\d.]+) % (.*)", line)
        if match:
            rows.append({"calls": int(match.group(1)), "seconds": float(match.group(2)), "percent": float(match.group(3)),
                         "call": match.group(4)})
    return rows


def find_culprit(c, name, deadline):
    """Turns suspects off one by one, each in addition to those before, until the case runs."""
    more, tried = {}, []
    for suspect in LADDER:
        more.update(suspect)
        if until(deadline) < 2:
            break
        status, text = c.run([c.names["step"], name, "gpu", "1", "2"], min(60, until(deadline)), **more)
        tried.append({"with": dict(more), "runs": status == 0, "why": None if status == 0 else last_line(text)})
        if status == 0:
            break
    return tried


def steps(c, deadline):
    table = c.results["steps"] = {}
    failed = False
    for name in c.args.cases:
        if until(deadline) < 2:
            table[name] = {"why": "out of time"}
            continue
        row = table[name] = {}
        status, text = c.run([c.names["step"], name, "gpu", "1", str(c.args.steps)], min(120, until(deadline)))
        row["hspmd"] = (json_lines(text) or [None])[-1] if status == 0 else None
        if not row["hspmd"]:
            failed = True
            row["why"] = "out of time" if status == -1 else last_line(text)
            row["ladder"] = find_culprit(c, name, deadline)
        c.say("%s: %s" % (name, row["hspmd"] or row["why"]))
        c.save()
        if row["hspmd"] and until(deadline) > 2:
            status, text = c.run([c.names["step"], name, "gpu", "1", "3"], min(60, until(deadline)), HSPMD_CUDA_PROFILE="1")
            row["profile"] = profile_rows(text)
            c.save()
    return "failed" if failed else "done"


def torch(c, deadline):
    script = os.path.join(os.environ.get("HSPMD_BENCH", ""), "torch_gpu.py")
    if not os.path.isfile(script):
        return "skipped: HSPMD_BENCH names no folder with torch_gpu.py"
    table = c.results["torch"] = {}
    for name in [n for n in c.args.cases if n in TORCH_AGAIN]:
        if until(deadline) > 5:
            status, text = c.run([sys.executable, script, name], until(deadline))
            table[name] = (json_lines(text) or [None])[-1] if status == 0 else {"why": last_line(text)}
            c.save()
    return "done"


def ablations(c, deadline):
    """What each means of being fast brings: steps without it, in turn with steps that have all."""
    ways = {"all": {}, "no cuDNN": OWN, "no warp-group products": {"HSPMD_CUDA_WGMMA": "0"},
            "neither": dict(OWN, HSPMD_CUDA_WGMMA="0"), "8 GiB for cuDNN": {"HSPMD_CUDNN_WORKSPACE": str(8 << 30)},
            "nothing fused": {"HSPMD_UNFUSED": "all"}, "graphs": {"HSPMD_CUDA_GRAPHS": "1"}, "no graphs": {"HSPMD_CUDA_GRAPHS": "0"},
            "no tuning": {"HSPMD_CUDA_TUNE": "0"}, "steps wait for updates": {"HSPMD_CUDA_BESIDE": "0"},
            "no products beside": {"HSPMD_CUDA_PRODUCTS_BESIDE": "0"}, "products leave 28": {"HSPMD_CUDA_PRODUCTS_BESIDE": "28"},
            **{"no " + f: {"HSPMD_UNFUSED": f} for f in FUSED}}
    table = c.results["ablations"] = {}
    packed = {"all": {}, "packed rows": {"HSPMD_UNFUSED": "pad_rows"}}
    for name in [n for n in c.args.cases if n in ("gpt2-tiny", "gpt2-124m-50257", *TORCH_AGAIN)]:
        for way, more in (packed if name == "gpt2-124m-50257" else ways).items():
            if until(deadline) < 2:
                return "failed"
            status, text = c.run([c.names["step"], name, "gpu", "1", "2" if c.emulated else "6"], min(60, until(deadline)), **more)
            line = (json_lines(text) or [None])[-1] if status == 0 else None
            table.setdefault(name, {})[way] = line["step_s"] if line else last_line(text)
            c.save()
    return "done"


def kernels(c, deadline):
    """What the profiler says of the dearest kernels of our own."""
    ncu = shutil.which("ncu", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    if c.emulated or not ncu:
        return "skipped: no GPU" if c.emulated else "skipped: ncu is not installed"
    found = c.results["kernels"] = {}
    for kernel in ("norm_grad", "cross_entropy", "adamw", "keys_grad", "swiglu"):
        if until(deadline) > 5:
            status, text = c.run([ncu, "--set", "basic", "--clock-control", "none", "--launch-count", "1", "--kernel-name",
                                  "regex:" + kernel, c.names["step"], "llama-1b", "gpu", "1", "1"], min(30, until(deadline)),
                                 HSPMD_CUDA_GRAPHS="0")
            found[kernel] = text if status == 0 else last_line(text)
            c.save()
    return "done"


def program(name):
    """A part that is one test program, or a script."""
    def run(c, deadline):
        command = [c.names[name]] if name in c.names else [sys.executable, os.path.join(TOP, "tests", "gpu", name)]
        status, text = c.run(command, until(deadline), HSPMD_CUDA_CACHE="", HSPMD=c.names["hspmd"])
        c.results.setdefault("tests", {})[name] = [x for x in text.splitlines() if re.match(r"\[  (FAILED|ERROR)|(not )?ok ", x)]
        return {0: "done", 77: "skipped: " + last_line(text), -1: "out of time"}.get(status, "failed")
    return run


def jobs(c, deadline):
    """Several ranks on one GPU, a kill -9, a live switch, a restart. NCCL's makers do not support several ranks per GPU, so if the first
    try fails a second one goes through host memory."""
    command = [sys.executable, os.path.join(TOP, "tests", "gpu", "jobs")] + ([] if c.emulated else ["--long"])
    for more in ({}, {"HSPMD_NCCL": ""}):
        status, text = c.run(command, min(120, until(deadline)), HSPMD=c.names["hspmd"], **more)
        c.results.setdefault("jobs", []).append({"with": more, "figures": (json_lines(text) or [{}])[-1],
                                                 "lines": [x for x in text.splitlines() if re.match(r"(not )?ok ", x)]})
        c.save()
        if status == 0 or until(deadline) < 20:
            break
    return "done" if status == 0 else "failed"


def split(c, deadline):
    """Two unequal parts of one GPU, data parallel: micro-batches by size against equal ones."""
    more = {"HSPMD_CUDA_OVERSUBSCRIBE": "1", **({} if c.emulated else {"HSPMD_CUDA_SM_PARTITION": "88,44"})}
    table = c.results["split"] = {}
    for name, layout in (("even", "split-6-6"), ("by size", "split-8-4")):
        status, text = c.run([c.names["step"], c.args.cases[0], layout, "1", "2" if c.emulated else "10"], min(60, until(deadline)), **more)
        table[name] = (json_lines(text) or [None])[-1] if status == 0 else {"why": last_line(text)}
        c.save()
    return "done" if all("step_s" in (row or {}) for row in table.values()) else "failed"


def memcheck(c, deadline):
    """Our own kernels under compute-sanitizer; the libraries' kernels would cost most of the time and are not ours."""
    sanitizer = shutil.which("compute-sanitizer", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    if c.emulated or not sanitizer:
        return "skipped: no GPU" if c.emulated else "skipped: compute-sanitizer is not installed"
    found = c.results["memcheck"] = {}
    status, text = c.run([c.names["op_table"], "families"], 30)
    for family in text.split() if status == 0 else []:
        for tool in ("memcheck", "racecheck"):
            if until(deadline) > 3:
                status, text = c.run([sanitizer, "--error-exitcode", "9", "--tool", tool, "--kernel-regex-exclude",
                                      "kernel_substring=cutlass,kernel_substring=nvjet,kernel_substring=cudnn", c.names["op_table"],
                                      family, "bf16", "0"], min(30, until(deadline)), HSPMD_CUDA_TUNE="0", HSPMD_CUDNN="")
                found["%s, %s" % (family, tool)] = {0: "passed", -1: "out of time"}.get(status, last_line(text))
                c.save()
    return "failed" if any(w not in ("passed", "out of time") for w in found.values()) else "done"


# name: function, seconds on a GPU. Together they take more than a call has: what is last is left out first.
PARTS = {
    "versions": (versions, 20), "tiles": (tiles, 20), "operators": (operators, 70), "candidates": (candidates, 60), "steps": (steps, 150),
    "ablations": (ablations, 90), "kernels": (kernels, 60), "trainings": (program("test_cuda_train"), 60),
    "losses": (program("torch_parity"), 60), "jobs": (jobs, 120), "split": (split, 60), "torch": (torch, 150),
    "pairs": (program("test_cuda_fused"), 60), "groups": (program("test_cuda_communicators"), 60),
    "copies": (program("test_cuda_copies"), 30), "prepared": (program("test_cuda_prepared"), 60),
    "beside": (program("test_cuda_beside"), 60), "rows": (program("test_cuda_rows"), 60), "attention": (program("test_cuda_attention"), 60),
    "experts": (program("test_cuda_experts"), 30), "memcheck": (memcheck, 90),
}
