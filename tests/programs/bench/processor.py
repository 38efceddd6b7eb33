"""What a command takes, with all processes below it: `python -m tests.programs.bench.processor COMMAND...`.

Spark's Java and its Python workers are ended by different parents, some of which do not wait for them. So
this process adopts what they leave behind, and its own account of ended children has them all. It prints one
line of JSON, and ends with the command's exit code.
"""

from __future__ import annotations

import ctypes
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from os import WNOHANG, waitpid
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_REAP_SECONDS = 20.0
"""Longest wait for processes that outlive the command. What is left then is not counted."""


def tree(pids: Iterable[int]) -> list[psutil.Process]:
    """These processes and all below them."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            found += [parent, *parent.children(recursive=True)]
    return found


def used(pids: Iterable[int]) -> float:
    """User and system seconds so far of these processes and all below them, with children that have ended."""
    total = 0.0
    for process in tree(pids):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def peak(pids: Iterable[int]) -> int:
    """Most bytes that one of these processes and all below them has had in memory so far."""
    most = 0
    for process in tree(pids):
        with suppress(OSError):  # it has ended
            status = Path(f"/proc/{process.pid}/status").read_text()
            told = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
            most = max([most, *(int(kilobytes) * 1024 for kilobytes in told)])
    return most


@dataclass(frozen=True)
class Taken:
    """What a command took. Times in seconds."""

    status: int
    seconds: float
    cpu: float
    """Of all processes, user and system."""
    memory: int
    """Bytes of the process that had most."""
    output: str
    errors: str


def run(command: Sequence[str], seconds: float) -> Taken:
    """Run a command in a process of this module; raises TimeoutExpired after so many seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.bench.processor", *command],
        check=False, capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command[:4])} ...: {done.stderr.strip()[-500:]}")
    return Taken(**json.loads(done.stdout))


def main(command: Sequence[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.monotonic() - began
    with suppress(ChildProcessError):
        while time.monotonic() < began + seconds + _REAP_SECONDS:
            if waitpid(-1, WNOHANG) == (0, 0):
                time.sleep(0.05)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = Taken(
        done.returncode,
        seconds,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss * 1024,
        done.stdout,
        done.stderr,
    )
    print(json.dumps(asdict(taken)))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
