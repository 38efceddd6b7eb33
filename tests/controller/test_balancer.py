"""Whole brokers spread their replicas in the background: under load, with a node away, on and off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from strandline.statemachine.controller import balance_plan
from strandline.statemachine.controller.balance_plan import Step
from strandline.statemachine.controller.controller_commands import CreateTopic, SetBalancing, SetDraining
from strandline.statemachine.controller.controller_state import Topic
from tests.controller.batch_client import BatchClient, leaders
from tests.controller.brokers import Brokers

UNEVEN = [[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 4
"""Of four nodes the last has nothing."""


def uneven(brokers: Brokers) -> Topic:
    broker = brokers.brokers[1]
    made_at = broker.controller.machine.applied_index
    command = CreateTopic(broker.rng.randbytes(16), "t", -1, -1, UNEVEN, [], made_at)
    topic = brokers.submit(1, command)
    assert isinstance(topic, Topic), topic
    return topic


def held(brokers: Brokers) -> Counter[int]:
    machine = next(iter(brokers.brokers.values())).controller.machine
    counts = Counter(dict.fromkeys(brokers.nodes, 0))
    for topic in machine.topics:
        for partition in topic.partitions:
            counts.update(partition.replicas)
    return counts


def is_even(brokers: Brokers) -> bool:
    machine = next(iter(brokers.brokers.values())).controller.machine
    return not machine.moves and set(held(brokers).values()) == {9}


def most_moves(brokers: Brokers, seconds: float) -> int:
    """The most moves that were under way at the same time."""
    most, end = 0, brokers.world.now + seconds
    while brokers.world.now < end:
        machine = next(iter(brokers.brokers.values())).controller.machine
        most = max(most, len(machine.moves))
        brokers.world.run(brokers.world.now + 0.1)
    return most


def test_a_node_without_replicas_gets_its_share_one_at_a_time_and_nothing_is_lost() -> None:
    with Brokers(4) as brokers:
        topic = uneven(brokers)
        client = BatchClient(brokers, topic)
        assert most_moves(brokers, 5) == 0, "off at first"
        assert brokers.submit(1, SetBalancing(True)) is True
        assert most_moves(brokers, 10) == 1
        brokers.wait(lambda: is_even(brokers), 120)
        version = brokers.brokers[1].controller.machine.version
        assert most_moves(brokers, 20) == 0
        assert brokers.brokers[1].controller.machine.version == version, "an even cluster is left alone"
        balancer = brokers.brokers[brokers.leader()].drains._balancer
        looked = balancer._not_before
        brokers.world.run(brokers.world.now + 5)
        assert balancer._not_before == looked, "and not looked at, as long as nothing changes"
        client.on = False
        brokers.world.run(brokers.world.now + 1)
        for number, node in enumerate(leaders(brokers, topic)):
            partition = brokers.brokers[node].partitions.get(topic.topic_id, number)
            assert partition is not None
            assert partition.high_watermark == client.acked[number] > 10


def test_it_goes_on_under_another_leader_and_waits_for_a_node_that_is_away() -> None:
    with Brokers(4) as brokers:
        uneven(brokers)
        brokers.submit(1, SetBalancing(True))
        brokers.wait(lambda: held(brokers)[4] >= 2, 60)
        brokers.crash(brokers.leader())
        (away,) = set(brokers.nodes) - set(brokers.brokers)
        other = next(iter(brokers.brokers))
        brokers.wait(lambda: brokers.brokers[other].controller.machine.nodes[away].fenced, 30)

        def settled() -> bool:
            return not brokers.brokers[other].controller.machine.moves

        if away != 4:  # what was on its way to the node that died waits for it
            brokers.wait(settled, 60)
        before = held(brokers)
        brokers.world.run(brokers.world.now + 15)
        assert held(brokers) == before
        brokers.start(away)
        brokers.wait(lambda: is_even(brokers), 120)


def test_it_stops_when_it_is_switched_off_or_a_node_is_drained() -> None:
    with Brokers(4) as brokers:
        uneven(brokers)
        brokers.submit(1, SetBalancing(True))
        brokers.wait(lambda: held(brokers)[4] >= 2, 60)
        brokers.submit(1, SetBalancing(False))
        brokers.wait(lambda: not brokers.brokers[1].controller.machine.moves)
        before = held(brokers)
        assert most_moves(brokers, 10) == 0
        assert held(brokers) == before
        # Nothing but the switch changes.
        brokers.submit(1, SetBalancing(True))
        brokers.wait(lambda: held(brokers) != before, 20)
        brokers.submit(1, SetBalancing(True))
        brokers.submit(1, SetDraining(4, True))
        brokers.wait(lambda: held(brokers)[4] == 0, 60)
        brokers.world.run(brokers.world.now + 10)
        assert held(brokers)[4] == 0
        brokers.submit(1, SetDraining(4, False))
        brokers.wait(lambda: is_even(brokers), 120)


def test_a_plan_is_made_in_parts_and_given_up_when_the_cluster_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its state may have other topics then; the loop runs what waits between two parts."""
    monkeypatch.setattr(balance_plan, "PART", 1)
    with Brokers(4) as brokers:
        uneven(brokers)
        leader = brokers.brokers[brokers.leader()]
        balancer, machine = leader.drains._balancer, leader.controller.machine
        began: list[int] = []
        search = balance_plan.Balance.search

        def watched(self: balance_plan.Balance) -> Iterator[Step | None]:
            began.append(machine.version)
            for number, found in enumerate(search(self)):
                yield found
                if number == 3 and len(began) == 1:
                    machine._state.version += 1  # as an entry that was applied meanwhile
                    machine._state.topics.clear()

        monkeypatch.setattr(balance_plan.Balance, "search", watched)
        topics = dict(machine._state.topics)
        machine._state.balancing = True
        brokers.run(leader.node_id, balancer.begin())
        assert len(began) == 1
        assert not machine.moves, "nothing is planned by a state that is gone"
        assert not balancer.is_due(), "and not at once again"
        machine._state.topics |= topics
        brokers.run(leader.node_id, balancer.begin())
        assert len(began) == 2
        assert len(machine.moves) == 1
