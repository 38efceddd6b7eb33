"""The copies of a compacted partition's table that storage shows, and which of them are compared.

One copy is level one, at each checkpoint; above what is compacted it goes on in level zero. The others are
the replicas' own logs, as their local documents beside a checkpoint tell. There are few of them for each
group, so this is plain Python on the driver; what it gives is joined with the keys, which are many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from strandline.snapshot.local_document import bound
from strandline.snapshot.names import LocalName
from strandline.snapshot.spark.audits.documents import Listing, by_group
from strandline.snapshot.spark.audits.references import GroupPlace

COLUMNS: Final = (
    "root", "group", "log_index", "node", "kind", "voters", "start_offset", "last_stable", "leased",
    "ripe_tombstones", "level_one_clean",
)  # fmt: skip
"""Columns of documents.SCHEMA that are needed here."""
NEWEST: Final = 0
"""Number of the copy that is level one at the newest checkpoint."""
ALL_KEYS: Final = bound(0)


class Pairing(StrEnum):
    """The two copies of a pair. An earlier checkpoint is one that the newest one has under a lease."""

    LEVEL_ONE = "level one earlier, and now"
    LEVEL_ONE_AND_LOCAL = "level one earlier, and a local log now"
    LOCAL = "a local log earlier, and now"
    COPIES = "level one now, and a local log now"


class LevelOneCopy(NamedTuple):
    """Level one, and level zero above it, at a checkpoint."""

    number: int
    log_index: int
    first: int
    end: int
    """The last stable offset: nothing above it is decided."""
    clean: int
    ripe_tombstones: int


class LocalCopy(NamedTuple):
    """A replica's own log beside a checkpoint."""

    number: int
    name: LocalName


class GroupCopies(NamedTuple):
    """Those of one compacted partition: level one's, the newest checkpoint's first, and local logs."""

    root: int
    group: int
    place: GroupPlace
    level_one: Sequence[LevelOneCopy]
    local: Sequence[LocalCopy]
    missing: Sequence[int]
    """Voters without a local document beside the newest checkpoint."""


class Pair(NamedTuple):
    """Two copies, by number, and what of them is compared."""

    root: int
    group: int
    pairing: str
    left: int
    right: int
    log_index: int
    node: int | None
    """Of the local log."""
    until: int
    """The tables are those of the records below; for COPIES the end of what both have."""
    start: int
    ripe: int
    told: bool
    """Whether no tombstone that was written since can have been removed."""
    log_end: int
    """The end of the local log; above it level one goes on."""
    bound: bytes
    """Keys below it are compared."""


PAIR: Final = (
    "root int, `group` long, pairing string, left int, right int, log_index long, node int, until long, "
    "start long, ripe long, told boolean, log_end long, bound binary"
)


def group_copies(
    rows: Iterable[Any], listings: Sequence[Listing], places: Sequence[Mapping[int, GroupPlace]]
) -> list[GroupCopies]:
    """The copies of each compacted partition, from rows of readable documents with COLUMNS.

    Of the leased checkpoints before the newest one the first and the last are looked at.
    """
    states: dict[tuple[int, int], dict[int, Any]] = {}
    for row in sorted(rows, key=lambda row: row["node"]):
        if row["kind"] == "partition":
            states.setdefault((row["root"], row["group"]), {}).setdefault(row["log_index"], row)
    locals_ = [by_group(listed.locals) for listed in listings]
    found = []
    for (root, group), by_index in states.items():
        place = places[root].get(group)
        newest = by_index[max(by_index)]
        if place is None or not (place.compacted or newest["level_one_clean"] > newest["start_offset"]):
            continue
        earlier = sorted(set(newest["leased"]).intersection(by_index) - {newest["log_index"]})
        chosen = [newest["log_index"], *dict.fromkeys([*earlier[:1], *earlier[-1:]])]
        level_one = [_level_one(number, by_index[index]) for number, index in enumerate(chosen)]
        names = [one for one in locals_[root].get(group, ()) if one.log_index in chosen]
        local = [LocalCopy(number, name) for number, name in enumerate(sorted(names), len(level_one))]
        there = {one.node for one in names if one.log_index == newest["log_index"]}
        missing = sorted(set(newest["voters"]) - there) if place.compacted else []
        found.append(GroupCopies(root, group, place, level_one, local, missing))
    return found


def _level_one(number: int, row: Any) -> LevelOneCopy:
    return LevelOneCopy(
        number,
        row["log_index"],
        row["start_offset"],
        row["last_stable"],
        row["level_one_clean"],
        row["ripe_tombstones"],
    )


def pairs(copies: GroupCopies, headers: Mapping[int, Any]) -> list[Pair]:
    """All pairs that are compared; `headers` are the local documents themselves, by copy."""
    newest, *earlier = copies.level_one
    found = [_pair(copies, Pairing.LEVEL_ONE, one, newest.number) for one in earlier]
    readable = [one for one in copies.local if headers[one.number]["error"] is None]
    for one in readable:
        header = headers[one.number]
        if one.name.log_index != newest.log_index or header["log_end"] > newest.end:
            continue
        of_log = {"node": one.name.node, "log_end": header["log_end"]}
        share = bound(header["share_bits"])
        found.append(_pair(copies, Pairing.COPIES, newest, one.number, below=share, **of_log))
        found += [
            _pair(copies, Pairing.LEVEL_ONE_AND_LOCAL, other, one.number, below=share, **of_log)
            for other in earlier
        ]
        for before in readable:
            if before.name.node == one.name.node and before.name.log_index != newest.log_index:
                (then,) = (other for other in earlier if other.log_index == before.name.log_index)
                both = min(share, bound(headers[before.number]["share_bits"]))
                pair = _pair(copies, Pairing.LOCAL, then, one.number, below=both, **of_log)
                found.append(pair._replace(left=before.number))
    return found


def _pair(
    copies: GroupCopies,
    pairing: Pairing,
    left: LevelOneCopy,
    right: int,
    *,
    node: int | None = None,
    log_end: int = 0,
    below: bytes = ALL_KEYS,
) -> Pair:
    newest = copies.level_one[0]
    told = newest.ripe_tombstones <= left.end
    return Pair(
        copies.root, copies.group, pairing, left.number, right, newest.log_index, node, left.end,
        newest.first, newest.ripe_tombstones, told, log_end, below,
    )  # fmt: skip
