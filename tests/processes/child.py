"""What every node process shares: its settings, its answers, and what it says of its own resources."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from typing import Any

import psutil


def settings() -> dict[str, Any]:
    """What the driver gave on the command line; logging goes to standard error from here on."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    loaded: dict[str, Any] = json.loads(sys.argv[1])
    return loaded


def answer(number: int, **fields: Any) -> None:
    """Answer request `number`; 0 is the hello of a process that is ready."""
    line = json.dumps({"id": number, **fields}).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]


def usage() -> dict[str, Any]:
    """Processor seconds used so far, resident bytes, and time.monotonic()."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu": used.ru_utime + used.ru_stime,
        "rss": psutil.Process().memory_info().rss,
        "threads": psutil.Process().num_threads(),
        "at": time.monotonic(),
    }
