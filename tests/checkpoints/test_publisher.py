"""Publishing while the store fails, and with a bound on what waits for it."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.log_document import LogDocument, pack_entry
from strandline.snapshot.names import log_name, snapshot_name
from tests.checkpoints.harness import CLUSTER, GROUP, LIMITS, VOTERS, node_and_store, publisher, world
from tests.level_zero.samples import run


def document(index: int, state: bytes = b"state", group: int = GROUP) -> SnapshotDocument:
    return SnapshotDocument(CLUSTER, "partition", group, index, 1, VOTERS, (), state)


def log_to(index: int, entry: bytes = b"entry") -> LogDocument:
    return LogDocument(CLUSTER, "partition", GROUP, index - 1, index, pack_entry(index, 1, entry))


def idle(to: CheckpointPublisher) -> bool:
    return (to.measures.waiting, to.measures.waiting_bytes, len(to._uploads)) == (0, 0, 0)


def test_the_log_is_there_before_its_document() -> None:
    with world() as made:
        node, store = node_and_store(made)
        to = publisher(node, store)
        to.publish(document(5), log_to(5))
        made.run(made.now + 5)
        assert store.stored == [log_name(CLUSTER, GROUP, 4, 5), snapshot_name(CLUSTER, GROUP, 5, 1)]
        assert store.objects[store.stored[0]] == log_to(5).encode()
        assert store.objects[store.stored[1]] == document(5).encode()
        measures = to.measures
        assert (measures.documents_published, measures.logs_published, measures.failed_puts) == (1, 1, 0)
        assert measures.bytes_published == sum(map(len, store.objects.values()))
        assert idle(to)


@pytest.mark.parametrize("fate", ["refused", "broken", "lost", "late"])
def test_a_store_that_fails_and_comes_back(fate: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with world() as made:
        node, store = node_and_store(made)
        to = publisher(node, store)
        setattr(store, fate, 1.0)
        for index in range(1, 6):
            to.publish(document(index), log_to(index))
        made.run(made.now + 600)
        assert to.measures.documents_published == 0
        assert to.measures.waiting == 5
        failed = to.measures.failed_puts
        # Two uploads, each at most every 2 seconds once its delay has grown: no storm, and no giving up.
        assert 2 * 600 / 4.2 < failed < 2 * 600 / 1.9
        setattr(store, fate, 0.0)
        made.run(made.now + 60)
        assert to.measures.documents_published == to.measures.logs_published == 5
        assert idle(to)
        for index in range(1, 6):
            assert store.objects[snapshot_name(CLUSTER, GROUP, index, 1)] == document(index).encode()


def test_what_waits_is_bounded_and_the_oldest_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with world() as made:
        node, store = node_and_store(made)
        to = publisher(node, store)
        store.stall()
        for index in range(1, 21):
            to.publish(document(index, bytes(20_000)), None)
            assert to.measures.waiting_bytes <= LIMITS.max_bytes
        assert to.measures.documents_dropped == 16
        store.unstall()
        made.run(made.now + 60)
        # Two were on their way; of those that waited the newest are there.
        published = sorted(int(name.split("/")[3]) for name in store.objects)
        assert published == [1, 2, 19, 20]
        assert idle(to)


def test_a_log_too_large_to_wait_goes_and_its_document_stays() -> None:
    with world() as made:
        node, store = node_and_store(made)
        to = publisher(node, store)
        to.publish(document(5), log_to(5, bytes(LIMITS.max_bytes)))
        made.run(made.now + 5)
        assert list(store.objects) == [snapshot_name(CLUSTER, GROUP, 5, 1)]
        assert (to.measures.logs_dropped, to.measures.documents_dropped) == (1, 0)


def test_stopping_lets_out_what_can_leave_in_time() -> None:
    with world() as made:
        node, store = node_and_store(made)
        to = publisher(node, store)
        for index in range(1, 6):
            to.publish(document(index), None)
        run(made, node, to.stop(2.0))
        assert to.measures.documents_published == 5
        to.publish(document(9), None)
        assert idle(to)


def test_stopping_does_not_wait_for_a_store_that_is_away() -> None:
    with world() as made:
        node, store = node_and_store(made)
        to = publisher(node, store)
        store.stall()
        for index in range(1, 6):
            to.publish(document(index), log_to(index))
        began = made.now
        run(made, node, to.stop(2.0))
        assert 2.0 <= made.now - began < 2.5
        assert idle(to)


def test_what_no_store_takes_is_given_up_and_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    with world() as made:
        node, store = node_and_store(made)
        store.max_object_bytes = 5_000
        to = publisher(node, store)
        for index in range(1, 4):
            to.publish(document(index, bytes(6_000)), log_to(index))
        to.publish(document(4), None)
        made.run(made.now + 5)
        assert snapshot_name(CLUSTER, GROUP, 4, 1) in store.objects
        assert (to.measures.documents_dropped, to.measures.logs_published) == (3, 3)
        assert "too many for the object store" in caplog.text
        assert idle(to)


def test_a_state_is_made_off_the_loop_and_published_as_it_was_captured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with world() as made:
        node, store = node_and_store(made)
        to = publisher(node, store)
        calls: list[int] = []

        def captured(index: int) -> bytes:
            calls.append(index)
            if index == 6:
                raise ValueError("a defect")
            return b"state"

        for index in (5, 6, 7):
            to.take(document(index, b""), partial(captured, index), log_to(index))
        assert calls == [], "inside an apply nothing is made"
        made.run(made.now + 5)
        assert calls == [5, 6, 7]
        assert [record.message.split(":")[0] for record in caplog.records] == [
            f"checkpoint 6 of group {GROUP} cannot be made"
        ]
        for index in (5, 7):
            assert store.objects[snapshot_name(CLUSTER, GROUP, index, 1)] == document(index).encode()
        assert to.measures.documents_published == 2
        assert idle(to)


def test_a_publisher_that_stops_lets_what_is_captured_leave() -> None:
    with world() as made:
        node, store = node_and_store(made)
        to = publisher(node, store)
        to.take(document(5, b""), lambda: b"state", None)
        run(made, node, to.stop())
        assert list(store.objects) == [snapshot_name(CLUSTER, GROUP, 5, 1)]
        to.take(document(6, b""), lambda: b"state", None)
        made.run(made.now + 5)
        assert len(store.objects) == 1
