# SPDX-License-Identifier: Apache-2.0
"""The one-line changes of C files that tests/mutate tries."""
import collections
import fnmatch
import os
import random
import re
import subprocess

BREAKS = [
    # name, pattern, what may stand instead
    ("comparison", r"(?<![<>=!\-])(<=|>=|==|!=|<|>)(?![<>=])", {"<": "<=", ">": ">=", "<=": "<", ">=": ">", "==": "!=", "!=": "=="}),
    ("arithmetic", r"(?<=[\w)\]] )([+\-*/])(?= [\w(])", {"+": "-", "-": "+", "*": "/", "/": "*"}),
    ("logic", r"(&&|\|\|)", {"&&": "||", "||": "&&"}),
    ("constant", r"(?<![\w.\"])(\d+)(?![\w.\"])", None),
    ("assignment", r"( [+\-]= )", {" += ": " -= ", " -= ": " += "}),
    ("negation", r"\b(if \()(?=.*\)( \{)?$)", None),
    ("statement", r"^\t+(\w[\w\->.\[\]]* = [^;]+;|\w+\([^;]*\);)$", None),
    ("min and max", r"\b(fmin|fmax|MIN|MAX)(?=\()", {"fmin": "fmax", "fmax": "fmin", "MIN": "MAX", "MAX": "MIN"}),
]
FOLDERS = ("common/", "policies/", "controller/", "runtime/", "spank/")
NOT_CODE = ("static ", "extern ", "struct ", "enum ", "const ", "case ")
LEFT_OUT = ("runtime/device/cuda/*", "controller/cli/main.c")
# Calls without which memory or files leak, or a line of the log is missing: the sanitizers and the readers of logs see those.
NO_BREAK = re.compile(r"\b(free|close|fclose|json_decref|va_end|\w+_(destroy|free|close|decref)|hspmd_log\w*|perror)\(")


def places(path, text):
    """(path, line number, kind, new line) for every break that this file offers."""
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        comment = inside or bare.startswith(("/*", "//", "#"))
        if "/*" in line:
            inside = "*/" not in line[line.rindex("/*") :]
        elif "*/" in line:
            inside = False
        if comment or not line.startswith("\t") or '"' in line or bare.startswith(NOT_CODE):
            continue
        code = line.split("/*")[0]
        for kind, pattern, table in BREAKS:
            for m in re.finditer(pattern, code):
                start, end = m.span(1)
                if kind == "constant":
                    new = str(int(m.group(1)) + 1)
                elif kind == "statement":
                    if NO_BREAK.search(code):
                        continue
                    new = ";"
                elif kind == "negation":
                    close = code.rstrip(" {")
                    if close.count("(") != close.count(")"):
                        continue
                    new = "if (!(" + close[end:] + ")"
                    end = len(close)
                else:
                    new = table[m.group(1)]
                yield path, number, kind, line[:start] + new + line[end:]


def component(path):
    """The folder of a file."""
    return os.path.dirname(path)


def draw(top, args):
    """As many breaks of each component as its share of all lines that can be broken, at least one; kinds evenly."""
    draw = random.Random(args.seed)
    listed = subprocess.run(["git", "-C", top, "ls-files", "*.c"], capture_output=True, text=True, check=True).stdout.split()
    skipped = (*LEFT_OUT, *args.skip)
    files = [f for f in listed if f.startswith(FOLDERS) and not any(fnmatch.fnmatch(f, s) for s in skipped)]
    files = [f for f in files if any(fnmatch.fnmatch(f, o) for o in args.only or ["*"])]
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    lines = collections.defaultdict(set)
    for f in files:
        with open(os.path.join(top, f), encoding="utf-8") as text:
            for place in places(f, text.read()):
                found[component(f)][place[2]].append(place)
                lines[component(f)].add(place[:2])
    total = sum(len(n) for n in lines.values())
    exact = {c: max(1.0, args.count * len(n) / total) for c, n in lines.items()}
    share = {c: int(x) for c, x in exact.items()}
    for c in sorted(exact, key=lambda c: (share[c] - exact[c], c)):
        if sum(share.values()) < args.count:
            share[c] += 1
    chosen = []
    for c in sorted(found):
        for _ in range(share[c]):
            kinds = sorted(k for k in found[c] if found[c][k])
            if kinds:
                kind = found[c][draw.choice(kinds)]
                chosen.append(kind.pop(draw.randrange(len(kind))))
    draw.shuffle(chosen)
    return chosen[: args.count]


def listed(name):
    """Those of a file: one "PATH:LINE: NEW LINE" each."""
    with open(name, encoding="utf-8") as f:
        for line in f:
            m = re.match(r"([^:]+):(\d+): ?(.*)$", line.rstrip("\n"))
            if m and not line.startswith("#"):
                yield m.group(1), int(m.group(2)), "by hand", m.group(3)
