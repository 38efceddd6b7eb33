"""Every node knows who leads every group, those it has no replica of included."""

from __future__ import annotations

from strandline.node.controller.leaders import LOST_SECONDS, TELL_ALL_SECONDS, Leader
from strandline.statemachine.controller.controller_commands import CreateTopic, DeleteTopic, MoveReplicas
from strandline.statemachine.controller.controller_state import Topic
from tests.controller.brokers import Brokers

STEP = 0.0005
"""Seconds between two looks; less than a leader takes to get ready."""


def believed(brokers: Brokers, topic: Topic) -> list[set[Leader | None]]:
    """For each partition what the nodes say."""
    return [
        {broker.leaders.leader_of(partition.group) for broker in brokers.brokers.values()}
        for partition in topic.partitions
    ]


def agreed(brokers: Brokers, topic: Topic) -> bool:
    return all(len(leaders) == 1 and None not in leaders for leaders in believed(brokers, topic))


def truth(brokers: Brokers, topic: Topic) -> list[Leader]:
    leaders = []
    for partition in topic.partitions:
        for node, broker in brokers.brokers.items():
            group = broker.host.groups.get(partition.group)
            if group is not None and group.is_leader:
                leaders.append(Leader(node, group.term))
    return leaders


def test_leaders_of_groups_without_a_replica_here_are_known_at_once() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6, 1)
        brokers.wait(lambda: agreed(brokers, topic), 2.0)
        assert [next(iter(leaders)) for leaders in believed(brokers, topic)] == truth(brokers, topic)
        assert {leader.node for leader in truth(brokers, topic)} == {1, 2, 3}


def test_a_restarted_node_is_told_when_it_connects() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6, 1)
        brokers.wait(lambda: agreed(brokers, topic))
        node = brokers.follower()
        brokers.crash(node)
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        brokers.wait(lambda: agreed(brokers, topic), 1.0)


def test_a_new_leader_is_known_everywhere_and_a_late_word_of_the_old_one_changes_nothing() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 3, 2)
        brokers.wait(lambda: agreed(brokers, topic))
        group = topic.partitions[0].group
        old = truth(brokers, topic)[0]
        changes: list[int] = []
        for broker in brokers.brokers.values():
            broker.leaders.on_change(lambda: changes.append(1))
        raft = brokers.brokers[old.node].host.groups[group]
        brokers.world.nodes[old.node].call(raft.transfer)
        brokers.wait(lambda: agreed(brokers, topic) and truth(brokers, topic)[0].node != old.node, 3.0)
        assert truth(brokers, topic)[0].term > old.term
        assert changes
        outsider = next(node for node in brokers.nodes if node not in topic.partitions[0].replicas)
        told = brokers.brokers[outsider].leaders
        brokers.run(outsider, told._on_led(old.node, [False, [[group, old.term]]]))
        assert told.leader_of(group) == truth(brokers, topic)[0]


def test_a_leader_is_named_only_once_it_is_ready() -> None:
    """New partitions, then those of a dead node: every node that is named serves, if it still leads."""
    named: set[tuple[int, int, Leader]] = set()
    with Brokers() as brokers:

        def every_named_leader_serves(topic: Topic) -> bool:
            for broker in brokers.brokers.values():
                for number, partition in enumerate(topic.partitions):
                    leader = broker.leaders.leader_of(partition.group)
                    if leader is None or leader.node not in brokers.brokers:
                        continue
                    replica = brokers.brokers[leader.node].partitions.get(topic.topic_id, number)
                    if replica is not None and replica.group.is_leader and replica.group.term == leader.term:
                        assert replica.leads, f"node {broker.node_id} names {leader} of partition {number}"
                        named.add((broker.node_id, number, leader))
                led = [group for group, _ in broker.leaders._led()]
                assert all(broker.host.groups[group].is_ready for group in led), (
                    "a node that connects is told"
                )
            return agreed(brokers, topic)

        topic_id, made_at = b"t" * 16, brokers.brokers[1].controller.machine.applied_index
        command = CreateTopic(topic_id, "t", 6, 3, None, [], made_at)
        task = brokers.world.nodes[1].spawn(brokers.brokers[1].controller.submit(command, 10.0))
        machine = brokers.brokers[1].controller.machine
        assert brokers.world.run_until(lambda: machine.topic("t") is not None, timeout=1, step=STEP)
        topic = machine.topic("t")
        assert topic is not None
        assert brokers.world.run_until(lambda: every_named_leader_serves(topic), timeout=2, step=STEP)
        assert task.done()
        assert len(named) == 18, "each of three nodes named each of six leaders"
        first = truth(brokers, topic)
        brokers.crash(next(leader.node for leader in first if leader.node != brokers.leader()))
        assert brokers.world.run_until(lambda: every_named_leader_serves(topic), timeout=5, step=STEP)
        assert truth(brokers, topic) != first


def test_a_leader_that_is_gone_is_not_named_until_there_is_another() -> None:
    """A client that is told of it believes that, and asks again a second later only."""
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 3, 3)
        brokers.wait(lambda: agreed(brokers, topic))
        group, (old, term) = topic.partitions[0].group, truth(brokers, topic)[0]
        brokers.crash(old)
        others = list(brokers.brokers.values())
        brokers.wait(lambda: not any(broker.host.connected(old) for broker in others), 0.3)
        for broker in others:
            assert broker.host.groups[group].leader == old, "there was no election yet"
            assert broker.leaders.leader_of(group) is None
        brokers.wait(lambda: agreed(brokers, topic), 3.0)
        (elected,) = {broker.leaders.leader_of(group) for broker in others}
        assert elected is not None
        assert elected.term > term


def test_a_leader_that_only_this_node_cannot_reach_is_named_again() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 3, 1)
        brokers.wait(lambda: agreed(brokers, topic))
        leader = next(each for each in truth(brokers, topic) if each.node != 1)
        group = topic.partitions[truth(brokers, topic).index(leader)].group
        told = brokers.brokers[1].leaders

        async def reconnect() -> None:
            told._on_disconnect(leader.node)
            assert told.leader_of(group) is None
            told._on_connect(leader.node)
            assert told.leader_of(group) is None, "it has not said yet that it still leads"
            await told._on_led(leader.node, [True, [[group, leader.term]]])
            assert told.leader_of(group) == leader
            told._on_disconnect(leader.node)

        brokers.run(1, reconnect())
        assert told.leader_of(group) is None
        brokers.wait(lambda: told.leader_of(group) == leader, LOST_SECONDS)


def test_what_was_missed_is_made_good_within_seconds() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6, 1)
        brokers.wait(lambda: agreed(brokers, topic))
        for broker in brokers.brokers.values():
            broker.leaders._reported.clear()
        assert not agreed(brokers, topic)
        brokers.wait(lambda: agreed(brokers, topic), TELL_ALL_SECONDS + 1)


def test_a_node_whose_replica_moved_away_still_names_the_leader() -> None:
    with Brokers(4) as brokers:
        topic = brokers.create_topic(1, "t", 1, 3)
        brokers.wait(lambda: agreed(brokers, topic))
        first, *others = topic.partitions[0].replicas
        gone = others[-1]
        kept = next(node for node in brokers.nodes if node not in (first, *others))
        group = topic.partitions[0].group
        host = brokers.brokers[gone].host
        # What nodes tell each other every few seconds must not be what makes it good.
        for broker in brokers.brokers.values():
            assert broker.leaders._timer is not None
            broker.leaders._timer.cancel()
        brokers.submit(1, MoveReplicas(topic.topic_id, 0, [first, others[0], kept]))
        brokers.wait(lambda: group not in host.groups)
        brokers.world.run(brokers.world.now + 1)
        assert [brokers.brokers[gone].leaders.leader_of(group)] == truth(brokers, topic)


def test_the_table_forgets_groups_that_are_gone() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6, 1)
        brokers.wait(lambda: agreed(brokers, topic))
        brokers.submit(1, DeleteTopic(topic.topic_id))
        brokers.world.run(brokers.world.now + TELL_ALL_SECONDS + 1)
        assert not any(broker.leaders._reported for broker in brokers.brokers.values())
