"""A copy of the environment whose programs and libraries are nobody else's pages.

The kernel charges a page of a file to the group that read it first, and keeps it while any process maps it.
Nodes that share their interpreter and libraries with others on the machine would so keep them for nothing,
however little memory their own group has. In a container, or on a machine of its own, they do not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_NOT_OF_A_NODE: Final = ("pyspark", "pandas", "matplotlib", "numpy", "numpy.libs", "mypy", "fontTools")


def private_python(folder: Path) -> Path:
    """Make it in `folder`, and give its interpreter. What no process maps (`.py`) is linked if possible."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--copies", "--without-pip", str(folder)], check=True, timeout=60
    )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    here = Path(sys.prefix) / "lib" / version / "site-packages"
    there = folder / "lib" / version / "site-packages"
    ignored = shutil.ignore_patterns(*_NOT_OF_A_NODE)
    shutil.copytree(here, there, dirs_exist_ok=True, ignore=ignored, copy_function=_copy)
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_nlink == 1:
            _forget(path)
    return folder / "bin" / "python"


def _copy(source: str, target: str) -> None:
    if ".so" not in Path(source).name:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system
    shutil.copy2(source, target)


def _forget(path: Path) -> None:
    """Out of the page cache, where it is charged to the process that copied it."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
