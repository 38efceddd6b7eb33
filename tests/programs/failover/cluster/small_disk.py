"""A small disk that can be full at any moment and have room again at the next, without filling anything.

It is a tmpfs whose size is lowered to what it holds. Mounting needs root.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

_BLOCK = 4096
_FILL_SECONDS = 5.0


class SmallDisk:
    """A tmpfs at `path`, of `size` bytes while it is not full."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size
        path.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"mode=0700,size={size}", "tmpfs", str(path))

    @staticmethod
    def possible() -> bool:
        """Whether this user may mount one."""
        return os.geteuid() == 0

    def fill(self) -> None:
        """No byte more fits; what is there may still be overwritten."""
        deadline = time.monotonic() + _FILL_SECONDS
        while True:
            told = os.statvfs(self.path)
            used = max((told.f_blocks - told.f_bfree) * told.f_frsize, _BLOCK)
            try:
                _run("mount", "-o", f"remount,size={used}", str(self.path))
                return
            except subprocess.CalledProcessError:
                # Refused when somebody wrote meanwhile, and more is used by now.
                if time.monotonic() > deadline:
                    raise

    def free(self) -> None:
        """There is room again."""
        _run("mount", "-o", f"remount,size={self._size}", str(self.path))

    def unmount(self) -> None:
        """What it held is gone."""
        _run("umount", str(self.path))


def take_reserve_back(file: Path) -> None:
    """Give back the space set aside behind the last byte written, as file systems do that copy on write.

    There, setting space aside promises nothing: the next write into it may fail. Nobody may write meanwhile.
    """
    chunk = 1 << 20
    descriptor = os.open(file, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        start = max(0, size - chunk)
        used = 0
        while True:
            data = os.pread(descriptor, chunk, start).rstrip(b"\0")
            if data or not start:
                used = start + len(data)
                break
            start = max(0, start - chunk)
        used = -(-used // _BLOCK) * _BLOCK
    finally:
        os.close(descriptor)
    if used < size:
        _run("fallocate", "--punch-hole", "--offset", str(used), "--length", str(size - used), str(file))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
