"""The ends of nodes' logs, and what comes after them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_CHUNK: Final = 64 * 1024
_WAIT_SECONDS: Final = 0.2


def lines(logs: Mapping[int, Path], last: int, *, follow: bool) -> Iterator[tuple[int, str]]:
    """(node, line) of the `last` lines of each log, node by node; then, with `follow`, new ones for ever.

    A log that is not there has no lines yet. A last line without its end is given as it is at first, and
    waited for when following.
    """
    places = {}
    for node, path in logs.items():
        found, places[node] = _tail(path, last, whole=follow)
        for line in found:
            yield node, line
    while follow:
        for node, path in logs.items():
            found, places[node] = _since(path, places[node])
            for line in found:
                yield node, line
        time.sleep(_WAIT_SECONDS)


def _tail(path: Path, last: int, *, whole: bool) -> tuple[list[str], int]:
    """The last lines, and the offset behind them; `whole`: none that has no end yet."""
    try:
        with path.open("rb") as log:
            start = end = log.seek(0, os.SEEK_END)
            data = b""
            while start > 0 and data.count(b"\n") <= last:
                start = max(0, start - _CHUNK)
                log.seek(start)
                data = log.read(end - start)
    except FileNotFoundError:
        return [], 0
    if whole:
        data = data[: data.rfind(b"\n") + 1]
        end = start + len(data)
    found = data.decode(errors="replace").removesuffix("\n").split("\n") if data else []
    return found[-last:] if last else [], end


def _since(path: Path, place: int) -> tuple[list[str], int]:
    """Whole lines from this offset on; from the beginning if the log file was replaced."""
    try:
        with path.open("rb") as log:
            if log.seek(0, os.SEEK_END) < place:
                place = 0
            log.seek(place)
            data = log.read(_CHUNK)
    except FileNotFoundError:
        return [], 0
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) == _CHUNK:
        whole = data  # a line longer than that is given in pieces
    return (whole.decode(errors="replace").removesuffix("\n").split("\n") if whole else []), place + len(
        whole
    )
