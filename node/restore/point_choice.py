"""A restore goes on from the newest restore point, of documents or of tails, or from the one it is told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from strandline.node.checkpoints.tail_pruning import stored_points
from strandline.node.config.node_config import PublishSection
from strandline.node.objectstore.storage_owner import Owner
from strandline.node.objectstore.store import ObjectNotFound, ObjectStore, every_name
from strandline.node.restore.reading import CannotRestore
from strandline.snapshot.restore_point import (
    RestorePoint,
    RestorePointDamaged,
    decode_point,
    point_name,
    point_number,
    points_prefix,
)
from strandline.snapshot.tail_point import (
    READ_POINTS,
    TailPoint,
    TailPointDamaged,
    TailPointTooNew,
    decode_tail_point,
    parse_tail_point_name,
    tail_point_name,
)

_DOCUMENTS: Final = -1
"""A tail point of the same number is later: its controller has the entry with which the documents were asked
for."""
_POINT_CURE: Final = "bring it back, or name another point with --point"
T = TypeVar("T")


class Candidate(NamedTuple):
    """A point that is there. Of two, the greater one was taken later."""

    number: int
    taken_ms: int
    """Of a tail point; _DOCUMENTS for a restore point of documents."""

    @property
    def is_tail_point(self) -> bool:
        return self.taken_ms != _DOCUMENTS

    def __str__(self) -> str:
        return f"the tail point {self.number} of {self.taken_ms}"


async def candidates(
    store: ObjectStore, owner: Owner, number: int | None, *, leased: bool
) -> list[Candidate]:
    """The points to try, newest first: the last one is one of documents, if there is any.

    Of those with the `number` asked for, one of documents is meant. Raises CannotRestore, StoreError.
    """
    found = [Candidate(one, _DOCUMENTS) for one in await numbers(store, owner)]
    if not leased:
        found += await _tail_points(store, owner)
    if not found and leased:
        raise CannotRestore(
            f"the storage of {owner} has no restore point of documents, of which alone a clone is made",
            "take one with `strandline checkpoint`, and repeat this",
        )
    if not found:
        raise CannotRestore(
            f"the storage of {owner} has no restore point",
            "bring back the data folders of a majority of its nodes. A running cluster makes one with"
            " `strandline checkpoint`, or by itself unless checkpoints.interval is 0",
        )
    wanted = sorted((one for one in found if number in (None, one.number)), reverse=True)
    if not wanted:
        told = ", ".join(map(str, sorted({one.number for one in found})))
        raise CannotRestore(f"there is no restore point {number}", f"name one of {told}")
    if number is not None:
        wanted = [one for one in wanted if not one.is_tail_point] or wanted
    behind = next((place for place, one in enumerate(wanted) if not one.is_tail_point), len(wanted))
    return [*wanted[: min(behind, READ_POINTS)], *wanted[behind : behind + 1]]


async def _tail_points(store: ObjectStore, owner: Owner) -> list[Candidate]:
    names = await stored_points(store, owner.cluster)
    return [Candidate(*one) for name in names if (one := parse_tail_point_name(name)) is not None]


async def publishing_ms(store: ObjectStore, owner: Owner) -> int:
    """`publish.seconds` of the nodes, in ms, as the newest tail point that can be read has it; where there is
    none, as nodes have it that are not told otherwise. Raises StoreError."""
    for candidate in sorted(await _tail_points(store, owner), reverse=True)[:READ_POINTS]:
        with suppress(CannotRestore):
            return (await read_tail_point(store, owner, candidate)).interval_ms
    return round(1000 * PublishSection().seconds)


async def numbers(store: ObjectStore, owner: Owner) -> list[int]:
    """Numbers of the restore points of documents; raises StoreError."""
    names = await every_name(store, points_prefix(owner.cluster))
    return [found for name in names if (found := point_number(name)) is not None]


async def read_documents_point(store: ObjectStore, owner: Owner, wanted: int) -> RestorePoint:
    name = point_name(owner.cluster, wanted)
    point = decoded(name, decode_point, bytes(await store.get(name)), _POINT_CURE)
    if (point.cluster, point.number) != (owner.cluster, wanted):
        raise CannotRestore(
            f"{name} is restore point {point.number} of cluster {point.cluster!r}",
            "the object was copied or renamed: bring the right one back",
        )
    return point


async def read_tail_point(store: ObjectStore, owner: Owner, candidate: Candidate) -> TailPoint:
    name = tail_point_name(owner.cluster, candidate.number, candidate.taken_ms)
    try:
        point = decode_tail_point(bytes(await store.get(name)))
    except ObjectNotFound:
        raise CannotRestore(f"{name} is gone", _POINT_CURE) from None
    except (TailPointDamaged, TailPointTooNew) as error:
        raise CannotRestore(f"{name}: {error}", _POINT_CURE) from None
    if point.name != name:
        raise CannotRestore(
            f"{name} is {point.name}", "the object was copied or renamed: bring the right one back"
        )
    return point


def decoded(name: str, decode: Callable[[bytes], T], data: bytes, cure: str) -> T:
    """Decode an object; raises CannotRestore, with the cure, where it is damaged."""
    try:
        return decode(data)
    except RestorePointDamaged as error:
        raise CannotRestore(f"{name}: {error}", cure) from None
