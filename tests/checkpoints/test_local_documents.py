"""Publishing what a replica's own log has, beside a checkpoint: when it is, and when it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.node.checkpoints import local_documents
from strandline.node.checkpoints.local_documents import LocalDocuments
from strandline.node.compaction.local_log import View
from strandline.node.compaction.manifest import LogIdentity, Manifest
from strandline.node.compaction.segment_files import LocalLogDamaged
from strandline.node.compaction.store_compactor import StoreCompactor
from strandline.snapshot.local_document import decode_local, key_hash
from strandline.snapshot.local_rows import rows_of
from strandline.snapshot.names import local_name
from strandline.snapshot.object_frame import BadObject
from tests.checkpoints.harness import CLUSTER, GROUP, node_and_store, publisher, world
from tests.compaction.logs import Plan, log_of
from tests.level_zero.samples import run
from tests.simulation.store import SimStore
from tests.simulation.world import World

BATCHES = log_of(
    [Plan(((b"a", b"1", 0), (b"b", b"1", 0))), Plan(((b"b", None, 0),)), Plan(((b"c", b"1", 0),))]
)
END = 4


class FakeSegment:
    """A segment whose blocks are these bytes; an error among them is raised."""

    def __init__(self, blocks: Sequence[Any]) -> None:
        self.footer = SimpleNamespace(blocks=list(range(len(blocks))))
        self.held = 0
        self._blocks = blocks

    def read(self, block: int) -> bytes:
        assert self.held, "it may be gone"
        found = self._blocks[block]
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, bytes)
        return found

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1


class FakeLog:
    """A replica's log, and how far its state is."""

    def __init__(self, *segments: FakeSegment, last_stable: int = END) -> None:
        manifest = Manifest(LogIdentity(CLUSTER, bytes(16), 0), 9, 1, 2, 3, END, 7, ())
        self.segments = segments
        self.view: View | None = View(manifest, segments)  # type: ignore[arg-type]
        self.replica: Any = SimpleNamespace(machine=SimpleNamespace(last_stable_offset=last_stable))
        self.problems: list[str] = []

    def readable(self) -> View | None:
        return self.view

    def damaged(self, reason: str) -> None:
        self.problems.append(reason)

    def replaced(self) -> None:
        """Another view takes the place of this one."""
        assert self.view is not None
        self.view.release()
        self.view = None


class Scene:
    def __init__(self, made: World, share_bits: int = 0) -> None:
        self.made = made
        self.node, self.store = node_and_store(made)
        self.logs: dict[int, FakeLog] = {}
        self.publisher = publisher(self.node, self.store)
        self.documents = LocalDocuments(
            CLUSTER,
            1,
            self.publisher,
            self.logs.get,
            StoreCompactor(
                self.store.client(self.node),
                self.node.disk,
                loop=self.node.loop,
                executor=self.node.executor,
            ),
            loop=self.node.loop,
            executor=self.node.executor,
            share_bits=share_bits,
        )

    def run(self, seconds: float = 5) -> SimStore:
        self.made.run(self.made.now + seconds)
        return self.store

    def add(self, group: int = GROUP, blocks: Sequence[Any] = (), **more: Any) -> FakeLog:
        self.logs[group] = FakeLog(FakeSegment(blocks or BATCHES), **more)
        return self.logs[group]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with world() as made:
        yield Scene(made)


def test_a_log_is_published_as_it_was_when_the_checkpoint_was_taken(scene: Scene) -> None:
    replica_log = scene.add()
    scene.documents.take(GROUP, 30)
    replica_log.replaced()
    store = scene.run()
    assert list(store.objects) == [local_name(CLUSTER, GROUP, 30, 1)]
    document = decode_local(store.objects[local_name(CLUSTER, GROUP, 30, 1)])
    assert document[:-1] == (CLUSTER, GROUP, 30, 9, 1, 2, END, 3, END, 0)
    assert rows_of(document).tolist() == [
        (key_hash(b"a"), 0, False),
        (key_hash(b"b"), 1, False),
        (key_hash(b"b"), 2, True),
        (key_hash(b"c"), 3, False),
    ]
    assert scene.documents.measures.published == 1
    assert replica_log.segments[0].held == 0


def test_nothing_is_published_of_a_log_that_is_not_there_or_ahead_of_the_state(scene: Scene) -> None:
    scene.add(5).replaced()
    ahead = scene.add(6, last_stable=END - 1)
    for group in (5, 6, 7):
        scene.documents.take(group, 30)
    assert not scene.run().objects
    assert ahead.segments[0].held == 1, "the log's own view"


def test_a_damaged_block_resets_the_log_and_a_failing_disk_or_an_unreadable_batch_does_not(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    bad = scene.add(5, [BATCHES[0], BadObject("1.seg", 0, 9, "the block's checksum does not match")])
    wrong = scene.add(6, [b"no batch"])
    lost = scene.add(7, [LocalLogDamaged("2.seg cannot be read: Input/output error")])
    failing = scene.add(8, [OSError("the file system is away")])
    good = scene.add(9)
    for group in (5, 6, 7, 8, 9):
        scene.documents.take(group, 30)
    assert list(scene.run().objects) == [local_name(CLUSTER, 9, 30, 1)]
    assert [len(one.problems) for one in (bad, wrong, lost, failing, good)] == [1, 0, 1, 0, 0]
    assert "checksum" in bad.problems[0]
    assert "2.seg cannot be read" in lost.problems[0]
    told = "\n".join(caplog.messages)
    assert "group 6: the local log is not told beside checkpoint 30: " in told, (
        "made anew it would be the same"
    )
    assert "group 8: the local log is not told beside checkpoint 30: the file system is away" in told
    measures = scene.documents.measures
    assert (measures.published, measures.dropped) == (1, 4)
    assert [one.segments[0].held for one in (bad, wrong, lost, failing, good)] == [1, 1, 1, 1, 1]


def test_damage_in_a_file_that_the_log_has_no_more_resets_nothing(scene: Scene) -> None:
    """The log was made anew meanwhile, for that damage perhaps."""
    bad = scene.add(5, [BadObject("1.seg", 0, 9, "the block's checksum does not match")])
    scene.documents.take(5, 30)
    bad.replaced()
    scene.run()
    assert not bad.problems
    assert (scene.documents.measures.dropped, bad.segments[0].held) == (1, 0)


def test_what_waits_is_bounded_and_let_go_of(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_documents, "MAX_WAITING", 2)
    scene.store.refused = 1.0
    logs = [scene.add(group) for group in range(5)]
    for group in range(5):
        scene.documents.take(group, 30)
    scene.run()
    # Of the others one is on its way, for as long as the store is away.
    assert scene.documents.measures.dropped == 3
    for one in logs:
        one.replaced()
    held = [one.segments[0].held for one in logs]
    assert sorted(held) == [0, 0, 0, 0, 1], "what is on its way was read: only what waits keeps files"
    run(scene.made, scene.node, scene.documents.stop())
    scene.documents.take(1, 31)
    assert scene.documents.measures.dropped == 5
    assert not scene.run().objects
    assert {one.segments[0].held for one in logs} == {0}
