"""Feature levels: what the log may hold at which, and what nodes of earlier releases can read below."""

from __future__ import annotations

import msgpack
import pytest

from strandline.statemachine.controller import feature_levels
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    AddNode,
    AlterClientQuotas,
    Bootstrap,
    Command,
    CutOverViews,
    RaiseFeatureLevel,
    RemoveNode,
    ReplaceNode,
    SetDraining,
    StartViewWorker,
    StopViews,
    decode,
    encode,
)
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log, registration
from tests.statemachine.view_log import A, B, Views

LATER: list[Command] = [
    SetDraining(1, True),
    RemoveNode(1),
    AddNode(4, 104, "k", 9004, "m", 7004, 8004, 1, 4, 1_000, 504),
    registration(1, rack="east"),
    StopViews("p", 3, 0, "an operator stopped it"),
    AlterClientQuotas(None, None, [("connection_creation_rate", 5.0)], "10.0.0.1"),
    StartViewWorker("p", 3, False, 70, 0),
]


@pytest.mark.parametrize("command", LATER, ids=lambda one: type(one).__name__)
def test_what_a_level_brings_is_refused_below_it_and_names_the_cure(command: Command) -> None:
    log = Log(nodes=1)
    error, message = log.refused(command)
    assert error is KafkaError.UNSUPPORTED_VERSION
    assert f"needs feature level {feature_levels.needed(command)}, the cluster is at 1" in message
    assert "strandline cluster upgrade" in message


def test_a_cluster_is_founded_at_the_level_of_its_founder_and_keeps_it() -> None:
    log = Log()
    log.do(Bootstrap("a", "i", FEATURE_LEVEL))
    assert log.machine.feature_level == FEATURE_LEVEL
    founded = Log()
    founded.do(Bootstrap("a", "i"))
    assert founded.machine.feature_level == 1
    # An entry of another leader that did not know of the first.
    assert founded.do(Bootstrap("a", "i", FEATURE_LEVEL)) == "a"
    assert founded.machine.feature_level == 1


def test_entries_without_what_is_later_are_those_of_earlier_releases() -> None:
    assert msgpack.unpackb(encode(Bootstrap("a", "i"))) == [1, "a", "i"]
    row = [2, 1, 101, 0, "kafka1", 9001, "mesh1", 7001, 8001, 1, 1, 1000, 501]
    assert msgpack.unpackb(encode(registration(1))) == row
    assert msgpack.unpackb(encode(registration(1, rack="east"))) == [*row, [], "east"]
    assert msgpack.unpackb(encode(ReplaceNode(3, 9))) == [16, 3, 9]
    assert msgpack.unpackb(encode(RemoveNode(3))) == [36, 3]
    assert decode(msgpack.packb([36, 3])) == RemoveNode(3)


def test_a_cluster_below_the_level_writes_snapshots_that_earlier_releases_read() -> None:
    log = Log()
    log.do(registration(1, levels=(1, 2)))
    fields = msgpack.unpackb(log.machine.snapshot())
    assert fields["format"] == 10
    assert "draining" not in fields
    assert len(fields["nodes"][0]) == 13, "and no rack"
    log.do(RaiseFeatureLevel(2))
    log.do(registration(1, levels=(1, 2), rack="east"))
    log.do(SetDraining(1, True))
    snapshot = log.machine.snapshot()
    fields = msgpack.unpackb(snapshot)
    assert (fields["format"], fields["draining"], fields["nodes"][0][-1]) == (11, [1], "east")
    again = Controller(lambda index, captured: None)
    again.restore(snapshot)
    assert again.snapshot() == snapshot
    assert again.nodes == log.machine.nodes
    assert again.draining == {1}


def test_a_registration_is_told_as_far_as_the_level_lets_it() -> None:
    command = registration(1, rack="east")
    assert feature_levels.as_allowed(1, command) == registration(1)
    assert feature_levels.as_allowed(2, command) == command


def test_a_process_names_the_one_before_it_as_far_as_the_level_lets_it() -> None:
    command = StartViewWorker("p", 3, False, 71, 70)
    assert feature_levels.as_allowed(7, command) == StartViewWorker("p", 3, False, 71)
    assert feature_levels.as_allowed(8, command) == command


def test_a_stopped_view_is_judged_below_the_level_as_earlier_releases_judge_it() -> None:
    """Both releases apply the same entries, and equal entries have to give equal states."""
    log = Views(level=1)
    live = log.live(("v", "out", A))
    log.number(StartViewWorker("p", live, True, 60))
    attempt = log.begin(("v", "out", B))
    log.number(StartViewWorker("p", attempt, False, 70))
    log.number(StopViews("p", live, 60, "a bad record"))
    log.number(StartViewWorker("p", live, True, 61))
    log.number(CutOverViews("p", attempt, 70, 5, "state"))


def test_every_level_says_what_it_brings() -> None:
    assert list(feature_levels.BRINGS) == list(range(1, FEATURE_LEVEL + 1))
