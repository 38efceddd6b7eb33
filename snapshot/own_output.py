"""Standard output for results alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def own_output() -> Iterator[TextIO]:
    """Standard output for results alone: what Java or a library prints there meanwhile goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(kept, "w", encoding="utf-8", newline="", closefd=False) as output:
            yield output
    finally:
        os.dup2(kept, 1)
        os.close(kept)
