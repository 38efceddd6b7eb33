"""The processes that this command has started, distinguished from others that may have their pid by now.

A pid alone is a poor name: the kernel gives it to another process once the process is gone, and a file that
holds it outlives both. So a process is known by its pid, the boot of the machine, the moment it started and
its command line, and nothing is ever signalled that differs in one of them. A signal goes through a pidfd,
which stays with the process that was looked at, whatever happens to the number in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_POLL_SECONDS: Final = 0.01
_STATE_FIELD: Final = 3  # proc(5), /proc/pid/stat, fields counted from 1
_THREADS_FIELD: Final = 20
_START_FIELD: Final = 22


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """One process that was started here; `started` in the kernel's clock ticks since `boot`."""

    pid: int
    boot: str
    started: int
    command: tuple[str, ...]

    @classmethod
    def spawn(cls, command: Sequence[str], log: Path, environ: dict[str, str]) -> OwnProcess:
        """Start `command` in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it.

        What it prints is appended to `log`, which only the owner may read. It gets no other file of the
        caller's: a lock (`flock LOCK strandline cluster up`) or a pipe would be held as long as it runs.
        Raises OSError.
        """
        pid = os.posix_spawn(
            command[0],
            list(command),
            environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_CLOSE, file) for file in _inheritable_files()),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        )
        fields = _stat(pid)
        if fields is None:  # gone and reaped already: cannot be, as no other process waits for it
            raise ProcessLookupError(f"process {pid} was gone at once")
        return cls(pid, _boot(), int(fields[_START_FIELD - 1]), tuple(command))

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> OwnProcess:
        """Inverse of `to_plain`; raises KeyError, TypeError or ValueError for other values."""
        return cls(
            int(plain["pid"]),
            str(plain["boot"]),
            int(plain["started"]),
            tuple(str(word) for word in plain["command"]),
        )

    def to_plain(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "pid": self.pid, "boot": self.boot, "started": self.started, "command": list(self.command)
        }  # fmt: skip

    def alive(self) -> bool:
        """Whether this very process is there; one that has died and was not waited for is not."""
        fields = _stat(self.pid)
        if fields is None or int(fields[_START_FIELD - 1]) != self.started or _boot() != self.boot:
            return False
        if fields[_STATE_FIELD - 1] in ("Z", "X"):
            if int(fields[_THREADS_FIELD - 1]) > 1:
                return True  # its first thread is gone; what the others hold, a port, is not free yet
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)  # only its parent can, and needs to
            return False
        # None while it dies: its memory is gone already, its sockets may not be.
        return _command_line(self.pid) in (self.command, ())

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process is gone, or another process has its number now."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, or does within this time."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True


def _boot() -> str:
    return _BOOT_ID.read_text().strip()


def _stat(pid: int) -> list[str] | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the name in parentheses, may hold anything, parentheses and spaces among it.
    before, _, after = line.rpartition(")")
    return [*before.split(" (", 1), *after.split()]


def _command_line(pid: int) -> tuple[str, ...]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return tuple(os.fsdecode(word) for word in words.split(b"\0")[:-1])


def _inheritable_files() -> list[int]:
    """Files that a program started now would inherit, beside the three standard ones."""
    files = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of this listing is closed by now
            if int(name) > 2 and os.get_inheritable(int(name)):
                files.append(int(name))
    return files
