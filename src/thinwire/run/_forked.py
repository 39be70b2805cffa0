"""Imported by the fork server: what the processes forked from it find loaded."""

from __future__ import annotations

import ctypes
import signal
import sys

__all__ = []

IN_SERVER = any("multiprocessing.forkserver" in argument for argument in sys.orig_argv)

if IN_SERVER and sys.platform == "linux":
    # Ends at once with the process that started it, in the middle of an import too.
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

import sklearn.datasets  # noqa: E402, F401
import torch  # noqa: E402

import thinwire.report  # noqa: E402
import thinwire.run.experiment  # noqa: E402
import thinwire.tasks  # noqa: E402
import thinwire.wire.sockets  # noqa: E402, F401

if IN_SERVER:
    # Torch loads its compiler with the first optimizer, which takes as long as torch itself.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
