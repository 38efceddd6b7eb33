"""Every node knows who leads every group, those it has no replica of included."""

from __future__ import annotations

from node.controller.leaders import TELL_ALL_SECONDS, Leader
from statemachine.controller_commands import DeleteTopic
from statemachine.controller_state import Topic
from tests.node_controller.brokers import Brokers


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


def test_what_was_missed_is_made_good_within_seconds() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6, 1)
        brokers.wait(lambda: agreed(brokers, topic))
        for broker in brokers.brokers.values():
            broker.leaders._told.clear()
        assert not agreed(brokers, topic)
        brokers.wait(lambda: agreed(brokers, topic), TELL_ALL_SECONDS + 1)


def test_the_table_forgets_groups_that_are_gone() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 6, 1)
        brokers.wait(lambda: agreed(brokers, topic))
        brokers.submit(1, DeleteTopic(topic.topic_id))
        brokers.world.run(brokers.world.now + TELL_ALL_SECONDS + 1)
        assert not any(broker.leaders._told for broker in brokers.brokers.values())
