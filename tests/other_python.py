# SPDX-License-Identifier: Apache-2.0
"""For tests that need Python packages which this Python may lack."""
import os
import sys


def go_on_elsewhere(what):
    """Starts the script anew with the next Python that may have its packages: $HSPMD_TORCH_PYTHON (contrib/packages/torch), then the
    system's, for which distributions package torch. Skips the test (exit 77) if none is left."""
    tried = os.environ.get("HSPMD_PYTHONS_TRIED", "").split(":")
    for python in (os.environ.get("HSPMD_TORCH_PYTHON", ""), "/usr/bin/python3"):
        if os.path.exists(python) and python not in tried:
            os.environ["HSPMD_PYTHONS_TRIED"] = ":".join(tried + [python])
            os.execv(python, [python] + sys.argv)
    print("%s for %s" % (what, sys.executable))
    sys.exit(77)
