"""The object of a stored state: its cut, and for each operator its runs' objects and its small value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgpack

VERSION: Final = 1
_DIGEST_BYTES: Final = 32
Place = tuple[str, int]
"""A topic's name, and the number of a partition."""


class StateDamaged(Exception):
    """A stored state is not what was written, or not there, or another release wrote it."""


class Kept(NamedTuple):
    """The state of one operator: names of objects of runs, spine by spine, and a small msgpack value."""

    spines: Sequence[Sequence[str]]
    value: bytes


class StoredState(NamedTuple):
    """Operators go by their digests."""

    cut: Mapping[Place, int]
    operators: Mapping[str, Kept]

    @property
    def runs(self) -> frozenset[str]:
        """The names of all objects of runs."""
        return frozenset(run for kept in self.operators.values() for spine in kept.spines for run in spine)


def written(state: StoredState) -> list[bytes]:
    """Give a state as an object's parts."""
    at = [[topic, partition, offset] for (topic, partition), offset in sorted(state.cut.items())]
    rows = {name: [kept.spines, kept.value] for name, kept in state.operators.items()}
    body = msgpack.packb([VERSION, at, rows])
    return [body, hashlib.sha256(body).digest()]


def read(name: str, stored: bytes) -> StoredState:
    """Read what `written` gave as the object `name`; raises StateDamaged for anything else."""
    body, digest = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise StateDamaged(f"{name} is not what was written")
    version, at, rows = msgpack.unpackb(body)
    if version != VERSION:
        raise StateDamaged(
            f"STATE_VERSION: another release wrote {name}, in version {version}, and this one reads "
            f"{VERSION}: run that release on this node, or stop the version (`strandline view stop`) and "
            "apply it again, which fills it from the beginning"
        )
    cut = {(topic, partition): offset for topic, partition, offset in at}
    return StoredState(cut, {operator: Kept(spines, value) for operator, (spines, value) in rows.items()})


def gone(name: str) -> StateDamaged:
    """The error of an object of a state that is not there: the newest two states of a version stay, and a
    cluster that was restored to an earlier point needs one from before."""
    return StateDamaged(
        f"STATE_GONE: {name} is not in the storage: bring it back; or, as after a restore to an earlier point"
        " and in a clone of one, stop the version (`strandline view stop`) and apply it again, which fills it"
        " from the beginning"
    )
