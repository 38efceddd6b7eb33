"""The command that Spark on this machine starts its Python processes with.

Spark puts `pyspark.zip` first on their path. Python keeps no compiled code of what it imports from there, so
each process compiles PySpark again, half a second of processor. A session's first query waits for four or
five such processes, one after the other. The files of an installed PySpark are compiled once, and on Linux
the processes are forks of one that has loaded them (`fork_server.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import py4j  # type: ignore[import-untyped]
import pyspark

from strandline.snapshot.spark import fork_request
from strandline.snapshot.spark.fork_server import FORK_SERVER

_COMMANDS = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
"""Names in the environment of what Spark starts beside the driver and for tasks."""


@contextmanager
def python_of_this_program(folder: Path) -> Iterator[None]:
    """Let a session that starts in this context take this Python, with PySpark from its files.

    Another Python that the environment names stays. `folder` is empty and this user's alone, and has to be
    there as long as the session. After this context the environment names the Python itself.
    """
    ours = [name for name in _COMMANDS if os.environ.get(name, sys.executable) == sys.executable]
    if ours:
        os.environ.update(dict.fromkeys(ours, _command(folder)))
    try:
        yield
    finally:
        os.environ.update(dict.fromkeys(ours, sys.executable))


def _command(folder: Path) -> str:
    """A script in the folder; this Python itself where there can be none, or Spark is another one's."""
    installed = [Path(package.__path__[0]) for package in (pyspark, py4j)]
    if "SPARK_HOME" in os.environ or os.pathsep in str(folder) or not all(one.is_dir() for one in installed):
        return sys.executable
    packages, script = folder / "packages", folder / "python"
    try:
        packages.mkdir()
        for one in installed:
            (packages / one.name).symlink_to(one)
        script.write_text(
            "#!/bin/sh\n"
            f'export PYTHONPATH={quote(str(packages))}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
            f'exec {_asking_for_a_fork(folder / "forks")}{quote(sys.executable)} "$@"\n'
        )
        script.chmod(0o700)
    except OSError:
        return sys.executable
    # In a file system that executes nothing, it must not be done, whatever the file's mode.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _asking_for_a_fork(path: Path) -> str:
    """Words of the script before the Python itself, with a server at the path; empty if there is none."""
    asks = Path(fork_request.__file__)
    if os.uname().sysname != "Linux" or not asks.is_file():
        return ""
    try:
        FORK_SERVER.start(path)
    except OSError:  # the path is too long for a socket
        return ""
    return " ".join(map(quote, (sys.executable, "-I", "-S", str(asks), str(path)))) + " "
