"""Rules taken out again, one at a time: each class here reopens one hole that the replicated log closes.

The simulation must find every one of them; what it takes is told in docs/simulation.md. Nothing here is ever
imported by the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from node.raft.host import RaftHost


@dataclass(frozen=True, slots=True)
class Sabotage:
    name: str
    hole: str
    host_class: type[RaftHost]


SABOTAGES: dict[str, Sabotage] = {}


@contextmanager
def reopened(name: str | None) -> Iterator[type[RaftHost]]:
    yield RaftHost if name is None else SABOTAGES[name].host_class
