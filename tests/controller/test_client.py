"""The way to the controller: from any node, through elections, and true about what became of a command."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from strandline.node.controller.client import ATTEMPT_SECONDS, SUBMIT, Unavailable
from strandline.node.controller.results import pack, unpack
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.outcome import Applied
from strandline.node.rpc import CallFailed
from strandline.statemachine.controller.controller_commands import (
    AdvanceClusterEpoch,
    AlterScramCredentials,
    CancelViews,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ProducerIdBlock,
    encode,
)
from strandline.statemachine.controller.controller_state import NodeRegistration, PartitionAssignment, Topic
from strandline.statemachine.kafka_errors import KafkaError, Refused
from tests.controller.brokers import Brokers

TOPIC = Topic(
    b"\1" * 16,
    "t",
    (PartitionAssignment(1, (1, 2, 3), 7), PartitionAssignment(2, (2, 3, 1), 7)),
    {"a": "b"},
    7,
    9,
)


@pytest.mark.parametrize(
    "result",
    [
        TOPIC,
        NodeRegistration(1, 2, "a", 3, "b", 4, 5, 1, 1, True, 6, 7),
        ProducerIdBlock(1000, 1000),
        Refused(KafkaError.INVALID_CONFIG, "why"),
        17,
        True,
        False,
        "cluster",
    ],
)
def test_an_answer_travels_whole(result: Any) -> None:
    arrived = unpack(msgpack.unpackb(msgpack.packb(pack(result))))
    assert arrived == result
    assert type(arrived) is type(result)


@pytest.mark.parametrize(
    "packed", [None, [], ["topic"], ["nothing", 1], ["topic", [1, 2]], ["refused", [3, "x"]]]
)
def test_an_answer_that_is_none_is_a_value_error(packed: Any) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        unpack(packed)


def test_every_node_can_change_the_controller_and_reads_what_it_wrote() -> None:
    with Brokers() as brokers:
        for node in brokers.nodes:
            topic = brokers.create_topic(node, f"topic-{node}")
            assert brokers.brokers[node].controller.machine.topic(f"topic-{node}") == topic


def test_a_refusal_is_a_value() -> None:
    with Brokers() as brokers:
        result = brokers.submit(brokers.follower(), DeleteTopic(b"\7" * 16))
        assert isinstance(result, Refused)
        assert result.error == KafkaError.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("seed", range(5))
def test_a_command_goes_on_through_the_loss_of_the_leader(seed: int) -> None:
    with Brokers(seed=seed) as brokers:
        leader, node = brokers.leader(), brokers.follower()
        controller = brokers.brokers[node].controller
        command = CreateTopic(b"\1" * 16, "t", 3, 3, None, [], controller.machine.applied_index)
        task = brokers.world.nodes[node].spawn(controller.submit(command, 10.0))
        # Some of the seeds kill the leader before the call arrives, some behind the entry's commit.
        brokers.world.run(brokers.world.now + 0.0004 * seed)
        brokers.crash(leader)
        brokers.wait(task.done)
        topic = task.result()
        assert isinstance(topic, Topic)
        assert controller.machine.topics == (topic,)


def test_without_a_majority_the_caller_is_told_in_time_that_nothing_is_known() -> None:
    with Brokers() as brokers:
        leader = brokers.leader()
        for node in brokers.nodes:
            if node != leader:
                brokers.crash(node)
        began = brokers.world.now
        result = brokers.submit(leader, AdvanceClusterEpoch(1000), 2.0)
        assert isinstance(result, Unavailable)
        assert result.unknown
        assert brokers.world.now - began == pytest.approx(2.0, abs=0.1)
        brokers.world.run(brokers.world.now + 5)
        result = brokers.submit(leader, AdvanceClusterEpoch(1000), 1.0)
        assert isinstance(result, Unavailable)
        assert not result.unknown


class LosesAnswers:
    """The first answer to a submitted command is lost, after the leader applied it."""

    def __init__(self, brokers: Brokers, node: int) -> None:
        self.calls = 0
        controller = brokers.brokers[node].controller
        call = controller._calls.call

        async def lossy(node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
            answer = await call(node, method, payload, timeout)
            # Heartbeats go by the same way.
            self.calls += method == SUBMIT
            if method == SUBMIT and self.calls == 1:
                raise CallFailed("the answer was lost", unknown=True)
            return answer

        controller._calls.call = lossy  # type: ignore[method-assign]


def test_a_deletion_that_was_carried_out_twice_is_a_success() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        topic = brokers.create_topic(node, "t")
        lossy = LosesAnswers(brokers, node)
        assert brokers.submit(node, DeleteTopic(topic.topic_id)) == topic
        assert lossy.calls == 2
        result = brokers.submit(node, DeleteTopic(topic.topic_id))
        assert isinstance(result, Refused), "a deletion tried once says what there is"


def test_a_user_that_was_deleted_twice_is_a_success_and_one_that_is_not_there_none() -> None:
    keys = (bytes(32), bytes(32))
    other = AlterScramCredentials("alice", (1,), [(2, 4096, b"salt", bytes(64), bytes(64))])
    with Brokers() as brokers:
        node = brokers.follower()
        assert brokers.submit(node, AlterScramCredentials("alice", (), [(1, 4096, b"salt", *keys)])) == 1
        lossy = LosesAnswers(brokers, node)
        assert brokers.submit(node, other) == 1
        assert lossy.calls == 2
        LosesAnswers(brokers, node)
        assert brokers.submit(node, AlterScramCredentials("alice", (2,), ())) == 0
        assert isinstance(brokers.submit(node, other), Refused), "tried once, it says what there is"
        LosesAnswers(brokers, node)
        assert isinstance(brokers.submit(node, other), Refused), "and what was asked for is not so"
        assert brokers.submit(node, AlterScramCredentials("alice", (), [(1, 4096, b"salt", *keys)])) == 1
        LosesAnswers(brokers, node)
        assert isinstance(brokers.submit(node, AlterScramCredentials("alice", (1, 2), ())), Refused)


def test_a_growth_that_was_carried_out_twice_is_a_success() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        topic = brokers.create_topic(node, "t")
        lossy = LosesAnswers(brokers, node)
        grown = brokers.submit(node, CreatePartitions(topic.topic_id, 4, None))
        assert isinstance(grown, Topic)
        assert len(grown.partitions) == 4
        assert lossy.calls == 2
        LosesAnswers(brokers, node)
        again = brokers.submit(node, CreatePartitions(topic.topic_id, 4, None))
        assert isinstance(again, Refused), "it had four partitions before, whatever was lost"


def test_what_may_have_been_carried_out_once_stays_unknown_whatever_fails_after_it() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        controller = brokers.brokers[node].controller
        failures = [CallFailed("the answer was lost", unknown=True)]

        async def failing(node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
            raise failures.pop() if failures else CallFailed("not the leader", unknown=False)

        controller._calls.call = failing  # type: ignore[method-assign]
        result = brokers.submit(node, AdvanceClusterEpoch(9), 1.0)
        assert isinstance(result, Unavailable)
        assert result.unknown


def test_what_views_say_is_applied_everywhere_before_the_next_heartbeat() -> None:
    with Brokers() as brokers:
        world, node = brokers.world, brokers.follower()
        for number in range(5):
            world.run(world.now + 0.37)  # at another moment between two heartbeats each time
            began = world.now
            task = world.nodes[node].spawn(
                brokers.brokers[node].controller.submit(CancelViews(f"p{number}", 1, "none"), 10.0)
            )
            brokers.wait(task.done)
            assert task.result() == 0
            applied = brokers.brokers[node].controller.machine.applied_index
            brokers.wait(
                lambda applied=applied: all(
                    one.controller.machine.applied_index >= applied for one in brokers.brokers.values()
                )
            )
            assert world.now - began < RaftConfig().heartbeat_seconds / 3


def test_catching_up_covers_what_was_committed_before() -> None:
    with Brokers() as brokers:
        leader, node = brokers.leader(), brokers.follower()
        group = brokers.brokers[leader].host.groups[0]

        async def advance() -> int:
            outcome = await group.replicate(encode(AdvanceClusterEpoch(50)), group.term)
            assert isinstance(outcome, Applied)
            return outcome.index

        index = brokers.run(leader, advance())
        machine = brokers.brokers[node].controller.machine
        assert brokers.run(node, brokers.brokers[node].controller.catch_up(5.0))
        assert machine.applied_index >= index
        assert machine.cluster_epoch == 50


def test_catching_up_gives_up_in_time_without_a_leader() -> None:
    with Brokers() as brokers:
        node, leader = brokers.follower(), brokers.leader()
        for other in brokers.nodes:
            if other != node:
                brokers.crash(other)
        assert leader != node
        began = brokers.world.now
        assert not brokers.run(node, brokers.brokers[node].controller.catch_up(2.0))
        assert brokers.world.now - began < 2.0 + ATTEMPT_SECONDS


def test_changes_are_told_once_a_turn_and_only_when_there_are_any() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        told: list[int] = []
        controller = brokers.brokers[node].controller
        controller.on_change(lambda: told.append(controller.machine.version))
        brokers.submit(node, AdvanceClusterEpoch(77))
        assert told == []
        topic = brokers.create_topic(node, "t")
        brokers.world.run(brokers.world.now + 0.1)
        assert told == [topic.version]


def test_who_gives_up_waiting_for_the_local_replica_leaves_nothing_behind() -> None:
    with Brokers() as brokers:
        client = brokers.brokers[1].controller
        ahead = client.machine.applied_index + 1000
        assert [brokers.run(1, client._wait_applied(ahead + more, 0.1)) for more in (2, 1, 3)] == [False] * 3
        task = brokers.world.nodes[1].spawn(client._wait_applied(ahead, 60.0))
        brokers.world.run(brokers.world.now + 0.1)
        assert len(client._waiting) == 1
        brokers.world.nodes[1].call(task.cancel)
        brokers.wait(task.done)
        assert client._waiting == []
