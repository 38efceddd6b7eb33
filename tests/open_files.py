"""Files that this process has open: other threads open and close descriptors, whatever their numbers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """Paths of open files below a folder, also of those that were deleted; one for each descriptor."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith(f"{folder}/"):
                found.append(name)
    return found
