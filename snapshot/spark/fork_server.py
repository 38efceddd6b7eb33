"""A process with all modules loaded that Spark's Python processes need, from which they are forked.

A first query waits for four Python processes, one after the other, and a stream for five. Each would load the
same modules again: PySpark, Arrow, this package. This one loads them while Java starts. A fork of it is there
in a few milliseconds, and shares the modules' memory.

`FORK_SERVER` is the process of this program's sessions. Spark starts `fork_request.py` as its Python, which
hands its streams, arguments and environment over. The fork then does what `python -m` does.
"""

from __future__ import annotations

import gc
import os
import runpy
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from strandline.snapshot.spark.fork_request import STREAMS, TAKEN

_HELD_AT_START: Final = (
    "PYTHON", "LD_", "OMP_", "OPENBLAS_", "MKL_", "MALLOC_", "ARROW_", "PYSPARK_ENABLE_", "LC_", "LANG",
)  # fmt: skip
"""Beginnings of names in the environment that Python and its libraries look at once, when they are loaded."""
_NOT_HELD: Final = ("PYTHON_", "PYTHONPATH", "PYTHONUNBUFFERED")
"""The same of names that Spark sets for what it starts, or that a fork can follow."""
_DAEMON: Final = "pyspark.daemon"
"""The module whose process Spark has fork a worker for each task, all with the same work."""
_STDIN: Final = 0
_BACKLOG: Final = 16
_READ_SECONDS: Final = 10.0
"""Longest wait for the rest of a request."""
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a request; the system limits arguments and environment to less."""


class Request(NamedTuple):
    """A process that Spark starts."""

    folder: bytes
    arguments: list[str]
    environment: dict[bytes, bytes]
    streams: list[int]


class ForkServer:
    """At most one process, which ends with this program."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, path: Path) -> None:
        """Start a process that forks for each request at a socket of this path; raises OSError.

        The socket has no secret: the folder that it is in has to be the user's alone.
        """
        self.stop()
        # Spark gives all its Python processes this one, so that they agree about texts' hashes.
        environment = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **os.environ}
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen(_BACKLOG)
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", __name__, str(listening.fileno())],
                stdin=subprocess.PIPE,  # which the system closes, however this program ends
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                env=environment,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it; forks go on."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


FORK_SERVER: Final = ForkServer()


def serve(listening: socket.socket) -> tuple[Request, socket.socket]:
    """Fork for each request; returns in forks only: what to run, and the connection for its status.

    The server itself ends here, with the program that started it.
    """
    own = dict(os.environb)
    while True:
        ready, _, _ = select.select([_STDIN, listening.fileno()], [], [])
        if listening.fileno() not in ready:
            os._exit(0)  # nothing is ever written to it
        asked, _ = listening.accept()
        streams: list[int] = []
        try:
            asked.settimeout(_READ_SECONDS)
            request = _received(asked, streams)
            # Where there can be no more processes, the one that asked still can go on without a fork.
            if _can_follow(own, request.environment) and os.fork() == 0:
                _take(asked)
                return request, asked
        except (OSError, ValueError):
            pass  # the process that asked goes on without it
        for stream in streams:
            os.close(stream)
        asked.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def _take(asked: socket.socket) -> None:
    """Tell the process that asked that this one runs in its place; ends if that does not wait any more."""
    try:
        asked.sendall(TAKEN)
    except OSError:
        os._exit(1)


def _received(asked: socket.socket, streams: list[int]) -> Request:
    """Read a request; `streams` get the descriptors that come with it. Raises OSError, ValueError."""
    size, found, _, _ = socket.recv_fds(asked, 4, STREAMS)
    streams += found
    left = int.from_bytes(size, "big")
    if len(size) != 4 or len(found) != STREAMS or left > _MOST_BYTES:
        raise ValueError("not a request")
    parts = []
    while left:
        part = asked.recv(left)
        if not part:
            raise ValueError("half a request")
        parts.append(part)
        left -= len(part)
    folder, count, *rest = b"".join(parts).split(b"\0")
    arguments = [os.fsdecode(one) for one in rest[: int(count)]]
    pairs = (one.partition(b"=") for one in rest[int(count) :])
    return Request(folder, arguments, {name: value for name, _, value in pairs}, streams)


def _can_follow(own: dict[bytes, bytes], wanted: dict[bytes, bytes]) -> bool:
    """Whether a process with this environment would have loaded Python and its libraries as this one has."""
    held, but = (tuple(map(os.fsencode, names)) for names in (_HELD_AT_START, _NOT_HELD))
    return all(
        own.get(name) == value
        for name, value in wanted.items()
        if name.startswith(held) and not name.startswith(but)
    )


def _become(request: Request, path: list[str]) -> None:
    """Have what the process that was to be started would have: streams, folder, environment, path."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request.folder)
    os.environb.clear()
    os.environb.update(request.environment)
    time.tzset()
    given = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    here = [] if "PYTHONSAFEPATH" in os.environ else [os.getcwd()]
    sys.path[:] = [*here, *given, *(one for one in path if one not in given)]


def _load() -> None:
    """Import the modules that Spark's processes run and that reads need, with all that these import.

    None of them may start a thread then, since a fork has only the thread that forks. The one that Arrow's
    jemalloc starts gives pages back, and jemalloc's own handlers see to forks.
    """
    import pyspark.sql.datasource_internal
    import pyspark.sql.worker.create_data_source
    import pyspark.sql.worker.lookup_data_sources
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.worker  # noqa: F401

    import strandline.snapshot.spark.python_worker
    import strandline.snapshot.spark.source
    import strandline.snapshot.spark.stream  # noqa: F401


def main(descriptor: int) -> None:
    given = {os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one}
    path = [one for one in sys.path[0 if sys.flags.safe_path else 1 :] if one not in given]
    os.set_inheritable(descriptor, False)
    listening = socket.socket(fileno=descriptor)
    _load()
    gc.collect()
    gc.freeze()  # a collection in a fork would write to all modules, and so copy their memory
    request, asked = serve(listening)
    listening.close()
    _become(request, path)
    status = 1
    if request.arguments[1:2] == [_DAEMON]:
        _quiet(request.arguments[2:])
    try:
        module, sys.argv[:] = request.arguments[1], request.arguments[1:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = _status(ended.code)
        raise
    finally:
        with suppress(OSError):  # Spark has ended the process that asked, and its session
            asked.sendall(bytes([status]))


def _quiet(work: list[str]) -> None:
    """Let the workers of a daemon end without a word; `work` names their module, as Spark does."""
    from strandline.snapshot.spark.python_worker import end_without_a_word

    end_without_a_word(work[0] if work and work[0].startswith("pyspark.") else "pyspark.worker")


def _status(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


if __name__ == "__main__":
    main(int(sys.argv[1]))
