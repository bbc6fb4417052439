# SPDX-License-Identifier: Apache-2.0
"""libhspmd by ctypes: where it is, and how its functions are called."""
import ctypes
import os


class Error(Exception):
    """What hspmd reports."""


class Text(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 1024)]  # struct hspmd_error


_library = None
_declared = set()


def _find():
    """The library of the installation or of the built clone that this file is of, or that the system knows."""
    here = os.path.dirname(os.path.abspath(__file__))
    prefix = os.path.normpath(os.path.join(here, "..", "..", "..", ".."))  # PREFIX/share/hspmd/python/hspmd
    clone = os.path.normpath(os.path.join(here, "..", "..", ".."))  # CLONE/contrib/python/hspmd
    given = os.environ.get("HSPMD_LIBRARY")
    near = [os.path.join(prefix, lib, "libhspmd.so.0") for lib in ("lib", "lib64")] + [os.path.join(clone, "build/.libs/libhspmd.so.0")]
    return given or next((path for path in near if os.path.exists(path)), "libhspmd.so.0")


def declarer(lib):
    """Returns a function that states the types of one of the library's: (name without hspmd_, result, arguments...)."""

    def function(name, result, *arguments):
        f = getattr(lib, "hspmd_" + name)
        f.restype, f.argtypes = result, arguments

    return function


def load(declare):
    """The library. declare(library) is called once for each declare."""
    global _library
    if _library is None:
        try:
            _library = ctypes.CDLL(_find())
        except OSError as error:
            raise Error(f"libhspmd cannot be loaded: {error} (HSPMD_LIBRARY names it)") from error
    if declare not in _declared:
        declare(_library)
        _declared.add(declare)
    return _library


def call(lib, name, *arguments):
    """Calls a function that takes an error, and raises it."""
    err = Text()
    result = getattr(lib, "hspmd_" + name)(*arguments, ctypes.byref(err))
    if result is None or (isinstance(result, int) and result == -1):
        raise Error(err.text.decode(errors="replace"))
    return result
