# SPDX-License-Identifier: Apache-2.0
# A warm interpreter (warm.h): an idle Python that has imported what the last command imported. To start the command, it forks.
#
#     python OPTIONS -c LOADER FD LIST SCRIPT ARGUMENTS...        (or -m MODULE instead of SCRIPT)
#
# Descriptor FD is the stand-in's socket. A byte comes from there with three descriptors: the request, the command's output, and the socket
# for its steps. Packets of JSON go there. Modules of the user's own are not imported, since they may change from one start to the next.
# LIST is a file in which rank 0 leaves the names for interpreters on nodes that join.
import sys

if not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # modules of the user must not stand in for those that are imported here

import atexit
import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import select
import signal
import socket
import sysconfig
import time

RANK_0_FIRST_S = 0.05  # PyTorch's ranks meet at rank 0; one that is there before it looks again only after half a second
QUIET_S = 2  # the command has imported all, if it has imported nothing for so long
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class _Environ(type(os.environ)):
    """Notes what is read by name. A look through all of them (items()) is for other names."""

    def __getitem__(self, name):
        if sys._getframe(1).f_code.co_name != "__iter__":
            _read.add(name)
        return super().__getitem__(name)


class _Names:
    """A finder that finds nothing, and notes what is looked for."""

    def __init__(self, fd):
        self.fd, self.number = fd, os.fstat(fd).st_ino

    def find_spec(self, name, path=None, target=None):
        try:
            if os.fstat(self.fd).st_ino == self.number:  # the command may have closed it
                os.write(self.fd, name.encode() + b"\n")
        except OSError:
            pass  # nobody reads fast enough: that one stays cold
        return None


_read = set()


def is_library(name):
    if name == "hspmd" or name in sys.builtin_module_names:
        return False
    try:
        spec = importlib.machinery.PathFinder.find_spec(name)
    except Exception:
        return False
    places = [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or []) if spec else []
    standard = tuple(sysconfig.get_path(p) + os.sep for p in ("stdlib", "platstdlib"))
    return any(p.startswith(standard) or "site-packages" in p.split(os.sep) or "dist-packages" in p.split(os.sep) for p in places)


def stamp(path):
    try:
        s = os.stat(path)
        return [path, s.st_mtime_ns, s.st_size, s.st_ino]
    except OSError:
        return [path]


def script_stamp(words):
    return words[:2] if words[0] == "-m" else stamp(os.path.abspath(words[0]))


def first_folder(words):
    """What Python puts first into sys.path; None: nothing."""
    if getattr(sys.flags, "safe_path", sys.flags.isolated):
        return None
    return os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.realpath(words[0]))


class Warm:
    def __init__(self, control, path, words):
        self.control, self.path, self.words = control, path, words
        self.script = script_stamp(words)
        self.environment = dict(os.environ)
        self.names, self.names_write = os.pipe()
        os.set_blocking(self.names, False)
        os.set_blocking(self.names_write, False)
        self.rest, self.wanted, self.had, self.done = b"", [], set(), []
        self.files = {}  # of modules: stamps
        os.environ.__class__ = _Environ

    def say(self, **message):
        self.control.send(json.dumps(message).encode())

    # ---- import

    def note(self):
        try:
            lines = (self.rest + os.read(self.names, 1 << 16)).split(b"\n")
        except BlockingIOError:
            return
        self.rest = lines.pop()
        self.want(line.decode() for line in lines)

    def want(self, names):
        for name in names:
            if name and name not in self.had:
                self.had.add(name)
                self.wanted.append(name)

    def warm_up(self):
        """Imports what is wanted; returns early if the stand-in asks for something. Rests between imports: the command computes."""
        libraries = {}
        while self.wanted:
            began = time.monotonic()
            name = self.wanted.pop(0)
            top = name.partition(".")[0]
            if top not in libraries:
                libraries[top] = is_library(top)
            if libraries[top] and name not in sys.modules:
                try:
                    importlib.import_module(name)
                except BaseException:
                    pass  # the command has tried it, too
            if name in sys.modules:
                self.done.append(name)
            if select.select([self.control], [], [], time.monotonic() - began)[0]:
                return
        self.stamp_files()
        gc.collect()
        gc.freeze()
        why = self.unfit()
        if why:
            self.say(unfit=why)
        else:
            self.leave_names()
            self.say(ready=len(sys.modules), bytes=own_bytes())

    def stamp_files(self):
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and path not in self.files:
                self.files[path] = stamp(path)

    def unfit(self):
        """Why this process cannot be forked any more; None: it can."""
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        if len(os.listdir("/proc/self/task")) > 1:  # those that know of forks have ended before this one
            return "an import has started threads"
        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink("/proc/self/fd/" + fd).startswith("/dev/nvidia"):
                    return "an import has opened a GPU"
            except OSError:
                pass
        return None

    # ---- names for others

    def key(self):
        return [self.script, sys.version, sys.prefix]

    def leave_names(self):
        if self.environment.get("RANK") != "0" or not self.done:
            return
        try:
            with open(self.path + ".tmp", "w") as file:
                file.write(json.dumps({"key": self.key(), "names": self.done}) + "\n")
            os.replace(self.path + ".tmp", self.path)
        except OSError:
            pass

    def take_names(self):
        try:
            with open(self.path) as file:
                left = json.load(file)
            if left["key"] == json.loads(json.dumps(self.key())):
                self.want(left["names"])
        except (OSError, ValueError, KeyError, TypeError):
            pass

    # ---- start

    def changed(self, words, environment):
        """What makes a command that starts now differ from one that a new interpreter would run; None: nothing."""
        for name in _read:
            if self.environment.get(name) != environment.get(name):
                return f"an import has read {name}"
        if words[0] != self.words[0] or (words[0] == "-m" and words[1] != self.words[1]) or script_stamp(words) != self.script:
            return "the script has changed"
        self.stamp_files()
        for path, was in self.files.items():
            if stamp(path) != was:
                return f"{path} has changed"
        folder = first_folder(words)
        tops = {name for name in sys.modules if "." not in name}
        for entry in os.listdir(folder) if folder else []:
            name, path = entry.partition(".")[0], os.path.join(folder, entry)
            if name not in tops or not (entry == name + ".py" or os.path.exists(os.path.join(path, "__init__.py"))):
                continue
            if not (getattr(sys.modules[name], "__file__", None) or path).startswith(path):
                return f"{path} stands in for a module"
        return None

    def serve(self):
        """Answers a request. Returns what a forked process is to run; None: this is not that process."""
        byte, fds, _, _ = socket.recv_fds(self.control, 1, 3)
        if not byte:
            os._exit(0)
        parts = os.read(fds[0], 1 << 30).split(b"\0")[:-1]
        count = int(parts[0])
        words = [os.fsdecode(p) for p in parts[1 : 1 + count]]
        environment = dict(os.fsdecode(p).partition("=")[::2] for p in parts[1 + count :])
        why = self.changed(words, environment)
        child = None
        if why:
            self.say(stale=why)
        elif self.fork():
            child = words, environment, fds
        else:
            self.environment = environment
        for fd in fds if not child else fds[:1]:
            os.close(fd)
        return child

    def fork(self):
        """True in the new process. The one between them ends, so that the stand-in becomes its parent."""
        told, tell = os.pipe()
        gate, go = os.pipe()
        stand_in = os.getppid()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(tell, b"%d" % pid)
                os._exit(0)
            os.read(gate, 1)
            for fd in (told, tell, gate, go, self.names):
                os.close(fd)
            self.control.close()
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != stand_in:
                os._exit(1)
            return True
        os.waitpid(between, 0)
        self.say(pid=int(os.read(told, 32)))
        os.write(go, b"\n")
        for fd in (told, tell, gate, go):
            os.close(fd)
        return False

    def run(self):
        """Returns in a new process, as serve() does."""
        self.take_names()
        rest = 0 if self.wanted else None
        if not self.wanted:
            self.say(ready=0, bytes=own_bytes())
        while True:
            found = select.select([self.control, self.names], [], [], rest)[0]
            if self.control in found:
                child = self.serve()
                if child:
                    return child
            elif found:
                self.note()
            else:
                self.warm_up()
            rest = QUIET_S if self.wanted else None


def own_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Private_"))


def become(child, names):
    """Makes this process what a new interpreter would be. Returns the words of the command."""
    words, environment, (_, output, steps) = child
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.set_inheritable(steps, True)
    environment["HSPMD_FD"] = str(steps)
    os.environ.__class__ = _Environ.__base__
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    restore_oom_score()
    sys.meta_path.insert(0, _Names(names))
    folder = first_folder(words)
    if folder is not None:
        sys.path.insert(0, folder)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own begins anew by itself
    atexit.register(gc.unfreeze)  # the last to run, before objects are destroyed
    if environment.get("RANK", "0") != "0":
        time.sleep(RANK_0_FIRST_S)
    return words


_oom_score = None


def raise_oom_score():
    """If memory is short, this idle process is ended before any that computes."""
    global _oom_score
    with open("/proc/self/oom_score_adj") as file:
        _oom_score = file.read()
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def restore_oom_score():
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(_oom_score)
    except (OSError, TypeError):
        pass


def start():
    """Returns in a new process: the words of the command, which is to be run."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    fd, path, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    os.set_inheritable(fd, False)
    try:
        raise_oom_score()
    except OSError:
        pass
    warm = Warm(socket.socket(fileno=fd), path, words)
    return become(warm.run(), warm.names_write)


def run_script(words, main):
    """As the interpreter does with the words of its command line."""
    sys.orig_argv[sys.orig_argv.index("-c") :] = words
    main.clear()
    main.update({"__name__": "__main__", "__doc__": None, "__package__": None, "__spec__": None, "__builtins__": sys.modules["builtins"]})
    if words[0] == "-m":
        import runpy

        sys.argv[:] = ["-m", *words[2:]]
        return lambda: runpy._run_module_as_main(words[1])
    sys.argv[:] = words
    path = os.path.abspath(words[0])
    with open(path, "rb") as file:
        text = file.read()
    main.update({"__file__": path, "__cached__": None, "__loader__": importlib.machinery.SourceFileLoader("__main__", path)})
    return lambda: exec(compile(text, path, "exec"), main)


def without_own(traceback):
    while traceback and traceback.tb_frame.f_code.co_filename == "<string>":
        traceback = traceback.tb_next
    return traceback


def act():
    words = start()
    try:
        run_script(words, sys.modules["__main__"].__dict__)()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        sys.excepthook(type(error), error.with_traceback(without_own(error.__traceback__)), error.__traceback__)
        sys.exit(1)


act()
