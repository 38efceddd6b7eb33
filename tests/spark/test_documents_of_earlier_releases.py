"""Checkpoints that an earlier release wrote are held against the log and each other by what they say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from strandline.snapshot.names import SnapshotName
from strandline.snapshot.spark.audits.documents import document_row, listing
from strandline.snapshot.spark.audits.replay import AGREES, DIFFERS, GroupReplay, Outcome
from strandline.snapshot.spark.audits.transaction_events import Targets
from strandline.snapshot.spark.audits.work import ClusterStorage
from strandline.snapshot.storage import open_storage
from strandline.statemachine.controller.controller_formats import BEFORE_QUOTAS
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from tests.spark.damage import Copy, State
from tests.spark.stored_cluster import CLUSTER, NODES, StoredCluster, build_cluster

ERROR, DIGEST = 4, 5
"""Places in the row of a document."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    return build_cluster(tmp_path_factory.mktemp("earlier") / "objects")


@pytest.fixture
def copy(stored: StoredCluster, tmp_path: Path) -> Copy:
    return Copy(stored, tmp_path / "objects")


def as_before_quotas(state: State) -> None:
    assert state.pop("client_quotas") == []
    state["format"] = BEFORE_QUOTAS


def outcomes(copy: Copy) -> dict[int, Outcome]:
    storage = ClusterStorage(open_storage(str(copy.root)), CLUSTER)
    found = listing(storage)
    replay = GroupReplay(
        storage.storage,
        [tuple(name) for name in found.documents if name.group == CONTROLLER_GROUP],
        [tuple(name) for name in found.logs if name.group == CONTROLLER_GROUP],
        Targets({}),
    )
    return {index: replay.outcome(index) for index in sorted(replay.names)}


@pytest.mark.parametrize("nodes", [NODES, NODES[:1]], ids=["all nodes", "a node that is upgraded last"])
@pytest.mark.parametrize("upgraded", [1, None], ids=["upgraded on the way", "upgraded since"])
def test_replay_agrees_with_checkpoints_of_an_earlier_format(
    copy: Copy, nodes: Iterable[int], upgraded: int | None
) -> None:
    indexes = copy.indexes(CONTROLLER_GROUP)
    for index in indexes[:upgraded]:
        copy.change_state(CONTROLLER_GROUP, index, as_before_quotas, nodes)
    found = outcomes(copy)
    assert len(found) > 2
    assert {(outcome, problem) for _, _, outcome, problem in found.values()} == {(AGREES, None)}


def test_what_a_checkpoint_of_an_earlier_format_says_wrongly_is_found(copy: Copy) -> None:
    def change(state: State) -> None:
        as_before_quotas(state)
        state["time"] += 1

    index = copy.indexes(CONTROLLER_GROUP)[-1]
    copy.change_state(CONTROLLER_GROUP, index, change, NODES[:1])
    _, _, outcome, problem = outcomes(copy)[index]
    assert outcome == DIFFERS
    assert problem is not None
    assert f"node {NODES[0]}: its state differs in time" in problem


def test_replicas_of_two_releases_have_one_digest(copy: Copy) -> None:
    index = copy.indexes(CONTROLLER_GROUP)[-1]
    names = [SnapshotName(CLUSTER, CONTROLLER_GROUP, index, node) for node in NODES]
    storage = open_storage(str(copy.root))
    before = {document_row(storage, name)[0][DIGEST] for name in names}
    copy.change_state(CONTROLLER_GROUP, index, as_before_quotas, NODES[:1])
    assert {document_row(storage, name)[0][DIGEST] for name in names} == before
    assert len(before) == 1


def test_a_format_that_is_not_read_any_more_is_told(copy: Copy) -> None:
    def change(state: State) -> None:
        state["format"] = 1

    index = copy.indexes(CONTROLLER_GROUP)[-1]
    copy.change_state(CONTROLLER_GROUP, index, change, NODES[:1])
    row, gone = document_row(
        open_storage(str(copy.root)), SnapshotName(CLUSTER, CONTROLLER_GROUP, index, NODES[0])
    )
    assert "it has format 1 of an earlier release" in row[ERROR]
    assert not gone
