"""What every node process shares: its settings, its answers, and the processor time it has used."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from typing import Any


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


def usage() -> dict[str, float]:
    """Processor seconds used so far, more exactly than they can be seen from outside."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu": used.ru_utime + used.ru_stime}
