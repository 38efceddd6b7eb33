"""What the audits' driver does once for all partitions is not done again for each of them."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from strandline.snapshot.names import LocalName, SnapshotName
from strandline.snapshot.spark.audits import key_tables, replay
from strandline.snapshot.spark.audits.copies import GroupCopies, group_copies
from strandline.snapshot.spark.audits.documents import LITTLE_BYTES, Listing
from strandline.snapshot.spark.audits.references import GroupPlace
from strandline.snapshot.spark.audits.work import ClusterStorage

GROUPS = range(10, 60)
PLACES = {group: GroupPlace(bytes(16), "tables", group - 10, True) for group in GROUPS}


class Counted(list[Any]):
    """Names, and how often they were looked through."""

    looks = 0

    def __iter__(self) -> Any:
        self.looks += 1
        return super().__iter__()


def listed() -> Listing:
    documents = Counted(SnapshotName("harbour", group, 7, node) for group in GROUPS for node in (1, 2, 3))
    local = Counted(LocalName("harbour", group, 7, node) for group in GROUPS for node in (1, 2))
    return Listing(documents, [], local, 0, LITTLE_BYTES + 1)


def copies_of(listing: Listing) -> list[GroupCopies]:
    state = {
        "root": 0, "kind": "partition", "log_index": 7, "level_one_clean": 5, "start_offset": 0,
        "leased": [7], "voters": [1, 2, 3], "last_stable": 9, "ripe_tombstones": 0,
    }  # fmt: skip
    rows = [{**state, "group": group, "node": node} for group in GROUPS for node in (1, 2, 3)]
    return group_copies(rows, [listing], [PLACES])


def test_names_are_looked_through_once_for_all_compacted_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = listed()
    copies = copies_of(listing)
    assert [one.group for one in copies] == [*GROUPS]
    assert {tuple(local.name.node for local in one.local) for one in copies} == {(1, 2)}
    assert {tuple(one.missing) for one in copies} == {(3,)}
    given: list[Any] = []

    def took(spark: Any, items: Any, *rest: Any, here: bool) -> Any:
        assert not here
        given.extend(items)
        return MagicMock()

    monkeypatch.setattr(key_tables, "frame", took)
    monkeypatch.setattr(key_tables, "mapped", MagicMock())
    key_tables._records(MagicMock(), [ClusterStorage(MagicMock(), "harbour")], [listing], copies, False)
    assert [[name[1] for name in names] for _, _, _, names, _ in given] == [[group] * 3 for group in GROUPS]
    for names in (listing.documents, listing.locals):
        assert isinstance(names, Counted)
        assert names.looks == 1


def test_replays_share_what_is_known_of_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    work: list[Any] = []

    def targets(places: Any) -> Any:
        made.append(places)
        return MagicMock()

    monkeypatch.setattr(replay, "Targets", targets)
    monkeypatch.setattr(replay, "frame", lambda spark, items, per_item, schema, here: work.append(per_item))
    replay.replay_rows(MagicMock(), [ClusterStorage(MagicMock(), "harbour")], [listed()], [PLACES])
    for group in GROUPS:
        assert list(work[0]((0, group, [], []))) == []
    assert made == [PLACES]
