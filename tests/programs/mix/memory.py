"""A memory cgroup of our own: what is in it shares one limit, and the kernel takes pages back at the limit.

Version 1 of cgroups (`memory.limit_in_bytes`) and version 2 (`memory.max`). It needs root.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

MOUNT: Final = Path("/sys/fs/cgroup")
_NAME: Final = "strandline-mix"
_REMOVE_SECONDS: Final = 5.0


class NoGroup(Exception):
    """There is no memory cgroup to be had here; says why."""


class Use(NamedTuple):
    """What the group holds, in bytes, and what was done to it since it was made."""

    total: int
    files: int
    """Page cache: programs, libraries, logs, objects. This is what is taken back at the limit."""
    refaults: int
    """Pages of files that were taken back and needed again soon."""
    major_faults: int
    """Times at which a process stood still for the disk because a page was not in memory."""
    killed: int
    """Processes that the kernel ended because nothing could be taken back."""

    @property
    def held(self) -> int:
        """What no reclaim takes back without swap: pages that processes wrote to, and the kernel's own."""
        return self.total - self.files


class MemoryGroup:
    """One group; `close` removes it once it is empty."""

    def __init__(self, folder: Path, version: int, outside: Path) -> None:
        """`outside` is the group that this process is in."""
        self.folder = folder
        self._version = version
        self._outside = outside

    @classmethod
    def make(cls, mount: Path = MOUNT, own: Path = Path("/proc/self/cgroup")) -> Self:
        """A new group below the one this process is in, or, in version 2, beside it. Raises NoGroup."""
        version, outside = _own(mount, own.read_text())
        # In version 2 a group with processes of its own has no others below it.
        parent = outside if version == 1 or outside == mount else outside.parent
        folder = parent / f"{_NAME}-{os.getpid()}"
        try:
            if version == 2:
                (parent / "cgroup.subtree_control").write_text("+memory")
            folder.mkdir()
        except OSError as error:
            raise NoGroup(f"no memory cgroup can be made: {error}") from error
        return cls(folder, version, outside)

    def close(self) -> None:
        """Remove it; what still runs in it keeps it there for some seconds."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        while True:
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Processes that are started meanwhile are in the group, from their first page on."""
        self._enter(self.folder)
        try:
            yield
        finally:
            self._enter(self._outside)

    def limit(self, size: int | None) -> None:
        """Let everything in it have `size` bytes together, or as much as it likes.

        A lower limit is only tried: what cannot be taken back at once stays.
        """
        name = "memory.limit_in_bytes" if self._version == 1 else "memory.max"
        text = str(size) if size is not None else "-1" if self._version == 1 else "max"
        with contextlib.suppress(OSError):
            (self.folder / name).write_text(text)

    def wait_at_limit(self) -> None:
        """Let processes wait where nothing can be taken back, until the limit is raised, and kill none.

        Version 2 has no such setting.
        """
        if self._version == 1:
            (self.folder / "memory.oom_control").write_text("1")

    def use(self) -> Use:
        """What it holds at this moment."""
        stat = _pairs(self.folder / "memory.stat")
        if self._version == 1:
            killed = _pairs(self.folder / "memory.oom_control").get("oom_kill", 0)
            total = int((self.folder / "memory.usage_in_bytes").read_text())
            return Use(total, stat["total_cache"], stat["total_workingset_refault_file"],
                       stat["total_pgmajfault"], killed)  # fmt: skip
        killed = _pairs(self.folder / "memory.events").get("oom_kill", 0)
        total = int((self.folder / "memory.current").read_text())
        return Use(total, stat["file"], stat["workingset_refault_file"],
                   stat["pgmajfault"], killed)  # fmt: skip

    def _enter(self, folder: Path) -> None:
        (folder / "cgroup.procs").write_text(str(os.getpid()))


def _own(mount: Path, own: str) -> tuple[int, Path]:
    """Which version has the memory controller here, and the folder of this process' group."""
    unified = None
    for line in own.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return 1, mount / "memory" / path.lstrip("/")
        if number == "0":
            unified = mount / path.lstrip("/")
    if unified is None or not (unified / "cgroup.controllers").exists():
        raise NoGroup(f"there is no memory controller in {mount}")
    return 2, unified


def _pairs(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value in lines}
