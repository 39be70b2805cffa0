"""Imported by the fork server: what the processes forked from it find loaded."""

from __future__ import annotations

import signal
import sys

from thinwire.run.forks import die_with_starter, load_compiler

__all__ = []

IN_SERVER = any("multiprocessing.forkserver" in argument for argument in sys.orig_argv)

if IN_SERVER:
    die_with_starter(signal.SIGTERM)

import sklearn.datasets  # noqa: E402, F401

import thinwire.report  # noqa: E402
import thinwire.run.experiment  # noqa: E402
import thinwire.tasks  # noqa: E402
import thinwire.wire.sockets  # noqa: E402, F401

if IN_SERVER:
    load_compiler()
