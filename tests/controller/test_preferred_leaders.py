"""The first replica of a partition leads it from the start, and again some time after it was away."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from kio.schema.errors import ErrorCode

from strandline.node.controller.preferred_leaders import LOOK_SECONDS, STEP_SECONDS
from strandline.statemachine.controller.controller_state import Topic
from tests.controller.batch_client import BatchClient, leaders
from tests.controller.brokers import Brokers

SETTLED = 5.0
"""topics.leader_rebalance_seconds, as it is by default."""


def preferred(topic: Topic) -> list[int]:
    return [partition.replicas[0] for partition in topic.partitions]


def spread(brokers: Brokers, topic: Topic) -> Callable[[], bool]:
    return lambda: leaders(brokers, topic) == preferred(topic)


def test_the_first_replicas_lead_first() -> None:
    with Brokers(5) as brokers:
        topic = brokers.create_topic(1, "t", 60)
        created = brokers.world.now
        brokers.wait(spread(brokers, topic), seconds=0.3)
        assert {
            partition.group.term for broker in brokers.brokers.values() for partition in broker.partitions
        } == {1}
        assert brokers.world.now - created < 0.3


def test_leadership_returns_slowly_to_a_node_that_was_away_and_no_batch_is_in_doubt() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 15)
        brokers.wait(spread(brokers, topic))
        node = brokers.follower()
        brokers.crash(node)
        brokers.wait(lambda: 0 not in leaders(brokers, topic))
        brokers.wait(lambda: brokers.brokers[brokers.leader()].controller.machine.nodes[node].fenced)
        client = BatchClient(brokers, topic)
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        registered = brokers.world.now
        moves: dict[int, list[float]] = {each: [] for each in brokers.nodes}
        while not spread(brokers, topic)():
            brokers.world.run(brokers.world.now + 0.01)
            assert brokers.world.now < registered + 3 * SETTLED
            for each, times in moves.items():
                begun = brokers.brokers[each].preferred_leaders.begun
                assert begun - len(times) <= 1
                times += [brokers.world.now] * (begun - len(times))
        assert sum(map(len, moves.values())) == 5
        for times in moves.values():
            assert all(time > registered + SETTLED - 1 for time in times)
            assert all(later - first > 0.9 * STEP_SECONDS for first, later in pairwise(times))
        gaps = [later - first for times in moves.values() for first, later in pairwise(times)]
        assert min(gaps) < LOOK_SECONDS / 2
        brokers.world.run(brokers.world.now + 1)
        client.on = False
        brokers.world.run(brokers.world.now + 1)
        assert set(client.failed) <= {ErrorCode.not_leader_or_follower}
        for number in range(15):
            replica = brokers.brokers[topic.partitions[number].replicas[0]].partitions.get(
                topic.topic_id, number
            )
            assert replica is not None
            assert replica.high_watermark == client.acked[number] > 100


def test_while_there_is_nothing_to_hand_over_it_looks_once_a_second() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6)
        brokers.wait(spread(brokers, topic))
        looks: list[float] = []
        part = brokers.brokers[1].preferred_leaders
        look = part._look

        def noted(now: float) -> None:
            looks.append(now)
            look(now)

        part._look = noted  # type: ignore[method-assign]
        brokers.world.run(brokers.world.now + 20)
        assert 19 <= len(looks) <= 21


def test_nothing_goes_to_a_replica_that_does_not_keep_up() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6)
        brokers.wait(spread(brokers, topic))
        node = brokers.follower()
        stuck = next(partition.group for partition in topic.partitions if partition.replicas[0] == node)
        host = brokers.brokers[node].host
        host.guard(host.groups[stuck], lambda: 1 / 0)
        brokers.wait(lambda: 0 not in leaders(brokers, topic), seconds=0.3)
        begun = {each: broker.preferred_leaders.begun for each, broker in brokers.brokers.items()}
        brokers.world.run(brokers.world.now + 3 * SETTLED)
        assert {each: broker.preferred_leaders.begun for each, broker in brokers.brokers.items()} == begun


def test_a_node_that_comes_and_goes_is_left_alone() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6)
        brokers.wait(spread(brokers, topic))
        node = brokers.follower()
        for _ in range(4):
            brokers.crash(node)
            brokers.world.run(brokers.world.now + 1)
            brokers.start(node)
            brokers.world.run(brokers.world.now + SETTLED - 1.5)
            assert node not in leaders(brokers, topic)
        brokers.wait(spread(brokers, topic))


def test_a_partition_that_keeps_coming_back_is_handed_over_less_and_less_often() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 1)
        brokers.wait(spread(brokers, topic))
        [home] = preferred(topic)
        group = topic.partitions[0].group
        taken: list[float] = []
        for _ in range(4):
            away = next(each for each in brokers.nodes if each != home)
            brokers.brokers[home].host.groups[group].transfer(away)
            brokers.wait(lambda to=away: leaders(brokers, topic) == [to])
            brokers.wait(spread(brokers, topic), seconds=100)
            taken.append(brokers.world.now)
        gaps = [later - first for first, later in pairwise(taken)]
        assert all(later > 1.4 * first for first, later in pairwise(gaps)), gaps
        assert gaps[-1] > 3 * SETTLED


def test_it_can_be_switched_off() -> None:
    with Brokers(leader_rebalance=False) as brokers:
        topic = brokers.create_topic(1, "t", 6)
        brokers.wait(spread(brokers, topic))
        node = brokers.follower()
        brokers.crash(node)
        brokers.wait(lambda: 0 not in leaders(brokers, topic))
        brokers.start(node)
        brokers.world.run(brokers.world.now + 4 * SETTLED)
        assert node not in leaders(brokers, topic)
