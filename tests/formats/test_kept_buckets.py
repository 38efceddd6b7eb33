"""Tail points and tails of earlier builds are read by this one: all that they had is restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from strandline.cluster.restore_storage import with_store
from strandline.node.objectstore.store import ObjectStore
from strandline.node.restore.restored_states import RestoredCluster, restored_documents
from strandline.node.restore.stored_point import StoredPoint, read_point
from strandline.snapshot.tail_document import decode_tail
from strandline.snapshot.tail_point import decode_tail_point
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.formats import contents
from tests.formats.unpacking import KEPT_BUCKETS, unpack_bucket

ENDS: Final = {contents.PLAIN: 50, contents.TABLE: 22, contents.MOVES: 19, contents.BULK: 0}
"""The end of each topic's partition; of `MOVES` with the markers of two transactions in each part, and
with the records of one that is open."""


@pytest.fixture(scope="module", params=sorted(KEPT_BUCKETS.glob("*.tar.xz")), ids=lambda path: path.name)
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_bucket(request.param, tmp_path_factory.mktemp("bucket"))


@pytest.fixture(scope="module")
def stored(bucket: Path) -> StoredPoint:
    async def read(store: ObjectStore) -> StoredPoint:
        return await read_point(store)

    return with_store(str(bucket), {}, read)


def test_its_tail_points_and_tails_are_written_as_they_were(bucket: Path) -> None:
    """The build that reads them may be the one before this one: a format that changes has another number."""
    points, tails = list(bucket.glob("restore/*/tails/*")), list(bucket.glob("tails/*/*/*"))
    assert points
    for path in points:
        point = decode_tail_point(path.read_bytes())
        assert bucket / point.name == path
        assert point.encode() == path.read_bytes()
    kinds = set()
    for path in tails:
        tail = decode_tail(path.read_bytes())
        assert tail.encode() == path.read_bytes()
        for section in tail.sections:
            section.read()
            kinds.add((section.kind, section.state is not None))
    both = {(kind, state) for kind in ("partition", "groups", "transactions") for state in (True, False)}
    assert kinds == {("controller", True), *both}


def test_what_was_written_is_restored_from_its_newest_tail_point(stored: StoredPoint) -> None:
    assert stored.tail_point is not None
    assert stored.unusable == ()
    assert {one.topic: one.end_offset for one in stored.partitions} == ENDS
    groups: dict[str, Any] = {}
    transactions: dict[str, Any] = {}
    for document in restored_documents(stored, RestoredCluster("after", {1: 11, 2: 12, 3: 13}, 1, 1)):
        if document.kind == GroupsMachine.kind:
            coordinator = GroupsMachine(lambda *_: None)
            coordinator.restore(document.state)
            groups |= coordinator.groups
        elif document.kind == TransactionsMachine.kind:
            decider = TransactionsMachine(lambda *_: None)
            decider.restore(document.state)
            transactions |= decider.transactions
    ids = {topic.name: topic.topic_id for topic in stored.controller.topics.values()}

    def committed(group: str, topic: str) -> int:
        return int(groups[group].offsets.get(ids[topic], 0).offset)

    assert committed(contents.GROUP, contents.PLAIN) == contents.COMMITTED
    assert committed("movers", contents.MOVES) == 4
    assert set(transactions) == {"commit", "abort", "open"}
