"""Replicas are spread over live nodes: steps that end, that never make a rack worse, and that say why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.statemachine.controller import balance_plan
from strandline.statemachine.controller.balance_plan import MOST_PAIRS, TOLERATED, Measure, Step
from strandline.statemachine.controller.controller_commands import (
    ANY_MOVE,
    FenceNode,
    MoveReplicas,
    RemoveNode,
    ReplaceTopicConfigs,
    ReplicasMoved,
    SetBalancing,
    SetDraining,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log, topic_id

LEVEL = 6
MOST_STEPS = 500


def cluster(racks: Sequence[str], topics: Sequence[Sequence[Sequence[int]]]) -> Log:
    """Nodes 1 to n in these racks, and topics with these replicas."""
    log = Log(nodes=len(racks), level=LEVEL, racks=racks)
    for number, assignments in enumerate(topics, 1):
        made = log.do(log.creation(number, assignments=[list(nodes) for nodes in assignments]))
        assert isinstance(made, Topic), made
    log.do(SetBalancing(True))
    return log


def held(log: Log) -> Counter[int]:
    counts = Counter(dict.fromkeys(log.machine.nodes, 0))
    for topic in log.machine.topics:
        for partition in topic.partitions:
            counts.update(partition.replicas)
    return counts


def measured(log: Log) -> Measure:
    return log.machine.balance().measure()


def plan(log: Log) -> list[Step]:
    """All steps to come."""
    found = list(islice(log.machine.balance().steps(), MOST_STEPS))
    assert len(found) < MOST_STEPS, "they end"
    return found


def carry_out(log: Log, step: Step) -> None:
    """As the group's leader does: the move, and the word that it is there."""
    command = step.command
    moved = log.do(command)
    assert isinstance(moved, Topic), moved
    assert command.target is not None
    group = moved.partitions[command.partition].group
    assert log.do(ReplicasMoved([(group, command.target, ANY_MOVE)])) == 0


def balance(log: Log) -> list[Step]:
    """One step after the other, each planned anew as the balancer does; the measure falls with each."""
    taken: list[Step] = []
    while (step := log.machine.balance().step()) is not None:
        before = measured(log)
        carry_out(log, step)
        after = measured(log)
        assert after < before
        assert after.sharing <= before.sharing, "racks never get worse"
        taken.append(step)
    return taken


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[str], list[list[list[int]]]]:
    racks = draw(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=6))
    nodes = list(range(1, len(racks) + 1))
    partition = st.permutations(nodes)
    topics = []
    for _ in range(draw(st.integers(1, 4))):
        factor = draw(st.integers(1, len(nodes)))
        topics.append([order[:factor] for order in draw(st.lists(partition, min_size=1, max_size=8))])
    return racks, topics


@given(placements())
@settings(max_examples=150, deadline=None)
def test_from_any_placement_it_ends_and_each_step_lowers_the_measure(
    placement: tuple[list[str], list[list[list[int]]]],
) -> None:
    racks, topics = placement
    log = cluster(racks, topics)
    planned = plan(log)
    assert balance(log) == planned, "the plan is what is done"
    assert log.machine.balance().step() is None
    for topic in log.machine.topics:
        for partition in topic.partitions:
            assert len(set(partition.replicas)) == len(partition.replicas)
            there = Counter(racks[node - 1] for node in partition.replicas)
            room = {rack for node, rack in enumerate(racks, 1) if node not in partition.replicas}
            assert all(max(there.values()) <= there[rack] + 1 for rack in room)
    for rack in set(racks):
        counts = [held(log)[node] for node, own in enumerate(racks, 1) if own == rack]
        assert max(counts) - min(counts) <= 1, "of one rack nothing stands in the way"


def test_a_new_node_gets_its_share_of_replicas_and_of_leaders() -> None:
    log = cluster(["", "", "", ""], [[[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 4])
    assert held(log) == {1: 12, 2: 12, 3: 12, 4: 0}
    taken = balance(log)
    assert held(log) == {1: 9, 2: 9, 3: 9, 4: 9}
    assert len(taken) == 9, "nothing moves twice"
    (topic,) = log.machine.topics
    leaders = Counter(partition.replicas[0] for partition in topic.partitions)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert taken[0].why == "node 3 has 12 replicas and node 4 0"


def test_each_topic_is_spread() -> None:
    log = cluster(["", "", ""], [[[1], [2], [1], [2]], [[1], [2], [1], [2]]])
    balance(log)
    for topic in log.machine.topics:
        assert Counter(partition.replicas[0] for partition in topic.partitions)[3] >= 1


def test_racks_come_before_counts() -> None:
    log = cluster(["east", "east", "west"], [[[1, 2]]])
    (step,) = balance(log)
    assert step.why == "rack 'east' has 2 of its replicas and rack 'west' 0"
    assert (step.leaves, step.joins) == (2, 3)
    # The nodes of the larger rack have fewer replicas each, and that is right.
    log = cluster(["east", "east", "west"], [[[1, 3], [2, 3], [1, 3], [2, 3]]])
    assert held(log)[3] == 4
    assert balance(log) == []


def test_small_differences_of_large_counts_are_left_alone() -> None:
    many = [[1]] * (10 * TOLERATED + 8) + [[2]] * (10 * TOLERATED)
    log = cluster(["", ""], [many])
    assert balance(log) == []
    more = cluster(["", ""], [[*many, *[[1]] * 6]])
    assert balance(more) != []


def test_what_stands_in_the_way_is_named_and_nothing_moves() -> None:
    topics = [[[1], [1], [1], [1]]]
    log = cluster(["", "", ""], topics)
    assert log.machine.balance().waits() is None
    step = log.machine.balance().step()
    assert step is not None
    log.do(step.command)
    assert log.machine.balance().waits() == "1 partition is moving"
    assert log.machine.balance().step() is None

    log = cluster(["", "", ""], topics)
    log.do(SetDraining(1, True))
    assert log.machine.balance().waits() == "node 1 is being drained"
    assert log.machine.balance().step() is None
    log.do(SetDraining(1, False))
    log.do(SetDraining(3, True))
    assert {step.joins for step in balance(log)} == {2}, "a node that is empty already gets nothing"

    log = cluster(["", "", ""], topics)
    log.do(FenceNode(2, log.machine.nodes[2].heard_index, 1_000))
    assert str(log.machine.balance().waits()).startswith("node 2 is away: start it")
    assert log.machine.balance().step() is None
    log.do(RemoveNode(2))
    assert log.machine.balance().waits() == "the data folder of node 2 is being replaced, or the node removed"
    assert log.machine.balance().step() is None

    log = cluster(["", "", ""], topics)
    log.do(SetBalancing(False))
    assert log.machine.balance().step() is None
    assert len(plan(log)) == 2, "the plan is shown all the same"


def test_a_topic_below_its_minimum_stays() -> None:
    log = cluster(["", ""], [[[1], [1], [1], [1]]])
    log.do(MoveReplicas(topic_id(1), 0, (1, 2)))
    log.do(ReplicasMoved([(log.machine.topics[0].partitions[0].group, (1, 2), ANY_MOVE)]))
    assert log.machine.balance().step() is not None
    log.topic(ReplaceTopicConfigs(topic_id(1), [("min.insync.replicas", "2")]))
    assert log.machine.balance().step() is None


def test_balancing_outlives_a_snapshot_and_is_off_at_first() -> None:
    log = Log(nodes=2, level=LEVEL)
    assert log.machine.balance().on is False
    assert log.state()["format"] == 12, "a cluster that never switched it on writes what it wrote before"
    assert log.do(SetBalancing(True)) is True
    assert log.state()["format"] == 13
    log.machine.restore(log.machine.snapshot())
    assert log.machine.balance().on
    assert log.do(SetBalancing(False)) is False
    log.machine.restore(log.machine.snapshot())
    assert not log.machine.balance().on


def test_below_its_feature_level_it_is_refused() -> None:
    log = Log(nodes=2, level=LEVEL - 1)
    error, message = log.refused(SetBalancing(True))
    assert error is KafkaError.UNSUPPORTED_VERSION
    assert "SetBalancing needs feature level 6" in message
    log.machine.restore(log.machine.snapshot())


@pytest.mark.parametrize("nodes", [2, 40])
def test_many_nodes_of_as_many_racks(nodes: int) -> None:
    assert nodes * nodes > MOST_PAIRS or nodes == 2
    racks = [f"r{node}" for node in range(nodes)]
    log = cluster(racks, [[[1]] * (3 * nodes)])
    balance(log)
    assert set(held(log).values()) == {3} or max(held(log).values()) - min(held(log).values()) <= 1
    assert isinstance(log.do(MoveReplicas(topic_id(1), 0, (1,))), Topic)


def test_a_plan_in_parts_is_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many partitions that the loop would be held up for seconds."""
    topics = [[[1, 2, 3]] * 7, [[4, 5, 6]] * 6, [[1, 4, 2]] * 3]
    log = cluster(["a", "a", "b", "b", "c", "c", "a"], topics)
    whole = plan(log)
    assert whole
    partitions = sum(map(len, topics))
    monkeypatch.setattr(balance_plan, "PART", 5)
    parts = list(log.machine.balance().parts())
    assert [step for step in parts if step is not None] == whole
    search = list(log.machine.balance().search())
    assert search[-1] == whole[0]
    assert search.count(None) >= partitions // 5, "each look at a partition counts"
    assert len(search) == search.count(None) + 1


def test_a_group_whose_racks_are_even_costs_no_look_at_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred nodes and 100,000 partitions took 8 s."""
    racks = [f"rack {node % 5}" for node in range(100)]
    log = cluster(racks, [[[1 + n % 95, 2 + n % 95, 3 + n % 95] for n in range(300)]])
    asked = Counter[str]()

    class Counted(dict[int, str]):
        def __getitem__(self, node: int) -> str:
            asked["racks"] += 1
            return super().__getitem__(node)

    racks_of = type(log.machine._state).racks
    monkeypatch.setattr(type(log.machine._state), "racks", lambda state: Counted(racks_of(state)))
    list(log.machine.balance().search())
    assert 0 < asked["racks"] < 5_000, asked
