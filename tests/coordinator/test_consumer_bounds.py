"""However many consumers of KIP-848 come, with however much: each turn, group, coordinator has its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strandline.node.coordinator.groups import consumer_groups, consumer_queues
from strandline.node.coordinator.groups.consumer_groups import HeartbeatAnswer
from strandline.node.coordinator.groups.consumer_member import LEAVING
from strandline.node.raft.outcome import Overloaded
from strandline.node.refusal import Refusal
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.consumer_house import SESSION, ConsumerHouse
from tests.coordinator.consumers import Consumer


def test_a_turn_too_big_for_the_log_is_halved(made: Callable[..., ConsumerHouse]) -> None:
    home = made()
    replicate = home.log.replicate

    def narrow(command: bytes, term: int) -> Any:
        if len(command) > 3_000:
            raise ValueError("an entry is too big")
        return replicate(command, term)

    home.log.replicate = narrow  # type: ignore[method-assign]
    home.by_hand = True
    tasks = [home.say(Consumer(f"m{number}", ("events",)).word()) for number in range(60)]
    home.by_hand = False
    home.turn()
    assert all(isinstance(task.result(), HeartbeatAnswer) for task in tasks)
    assert len(home.group.members) == 60
    wide = Consumer("wide", tuple(f"topic-{number}" for number in range(1000)))
    assert home.code(wide.word()) is KafkaError.UNKNOWN_SERVER_ERROR


def test_what_waits_is_bounded(home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_queues, "MAX_WAITING", 3)
    home.by_hand = True
    tasks = [home.say(Consumer(f"m{number}", ("events",)).word()) for number in range(6)]
    refused = [task.result() for task in tasks if task.done()]
    assert [answer.reason for answer in refused] == [KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * 2  # type: ignore[union-attr]
    home.by_hand = False
    home.turn()
    assert len(home.group.members) == 4


def test_all_groups_together_are_bounded(
    made: Callable[..., ConsumerHouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_groups, "MAX_BYTES", 5_000)
    home = made()
    members = [Consumer(f"m{number}", ("events",)) for number in range(30)]

    def join_all() -> list[HeartbeatAnswer | Refusal]:
        return [home.told(one.word()) for one in members]

    told = join_all()
    in_first = [isinstance(answer, HeartbeatAnswer) for answer in told].index(False)
    assert 10 < in_first < 20
    assert all(isinstance(answer, Refusal) for answer in told[in_first:])
    refused = told[-1]
    assert isinstance(refused, Refusal)
    assert refused.reason is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    assert home.say(members[-1].word(), "another group").result().reason is refused.reason  # type: ignore[union-attr]
    assert home.groups.bytes <= 5_000
    home.new_leader()
    assert isinstance(home.told(members[-1].word()), Refusal), "it counts what the log has"
    home.told(members[0].word(LEAVING))
    assert isinstance(home.told(members[-1].word()), HeartbeatAnswer)
    for one in members:
        home.told(one.word(LEAVING))
    assert home.groups.bytes == 0
    home.log.refusal = Overloaded("too much")
    assert isinstance(home.told(members[0].word()), Refusal)
    assert home.groups.bytes == 0, "what the log did not take does not count"
    home.log.refusal = None
    assert [isinstance(answer, HeartbeatAnswer) for answer in join_all()].index(False) == in_first
    home.advance(SESSION + 1)
    assert home.groups.bytes == 0


def test_groups_that_are_changed_at_the_same_time_share_one_bound(
    made: Callable[..., ConsumerHouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_groups, "MAX_BYTES", 5_000)
    home = made()
    home.by_hand = True
    tasks = [home.say(Consumer(f"m{number}", ("events",)).word(), f"g{number}") for number in range(30)]
    assert 10 < sum(not task.done() for task in tasks) < 20
    home.by_hand = False
    home.turn()
    assert 2_500 < home.groups.bytes <= 5_000


def test_a_turn_is_bounded(home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_queues, "MAX_TURN_EVENTS", 4)
    home.by_hand = True
    tasks = [home.say(Consumer(f"m{number}", ("events",)).word()) for number in range(9)]
    for done in (1, 5, 9):
        home.commit()
        assert sum(task.done() for task in tasks) == done
