"""Another replication factor for a topic: which replicas, what is refused, and that nothing is half done."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.cluster.failure import CommandFailed
from strandline.cluster.reassignment_client import Placement, ReassignmentClient, Replicas
from strandline.cluster.replica_choice import with_factor
from strandline.cluster.replication_factor import FactorChange

RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}


def spread(replicas: Replicas, racks: dict[int, str]) -> Counter[str]:
    return Counter(racks[node] for node in replicas)


@given(
    st.lists(st.permutations(list(RACKS)).map(lambda nodes: nodes[:1]), min_size=1, max_size=12),
    st.integers(1, 5),
)
def test_replicas_that_are_added_lie_in_all_racks_first(placed: list[list[int]], factor: int) -> None:
    chosen = with_factor(placed, factor, RACKS, {})
    for before, replicas in zip(placed, chosen, strict=True):
        assert replicas[0] == before[0]
        assert len(set(replicas)) == len(replicas) == factor
        assert len(spread(replicas, RACKS)) == min(factor, 3)
    back = with_factor(chosen, 1, RACKS, {})
    assert [replicas[0] for replicas in placed] == [node for (node,) in back]


@given(st.integers(1, 12), st.integers(2, 4))
def test_fewer_replicas_lie_in_as_many_racks_as_they_can(count: int, factor: int) -> None:
    all_of_them = [tuple(RACKS)] * count
    for replicas in with_factor(all_of_them, factor, RACKS, {}):
        assert len(spread(replicas, RACKS)) == min(factor, 3)
        assert replicas == tuple(node for node in RACKS if node in replicas), "their order stays"


def test_replicas_are_spread_over_nodes_of_one_rack() -> None:
    racks = dict.fromkeys((1, 2, 3, 4), "")
    chosen = with_factor([(1,), (2,), (3,), (4,)], 2, racks, {})
    assert Counter(node for replicas in chosen for node in replicas) == dict.fromkeys(racks, 2)
    # Nothing of the topic tells them apart, so all that they hold does.
    assert with_factor([(1,)], 2, racks, {2: 9, 3: 4, 4: 5}) == [(1, 3)]


def test_a_replica_on_a_node_that_is_away_goes_first() -> None:
    assert with_factor([(9, 1, 3)], 2, RACKS, {}) == [(1, 3)]


class Played:
    """A cluster's answers, as the client gives them."""

    def __init__(self, placement: Placement, moving: dict[int, Replicas] | None = None) -> None:
        self.answers = placement
        self.under_way = moving or {}
        self.moved: dict[int, Replicas] = {}

    def placement(self, _topic: str) -> Placement:
        return self.answers

    def moving(self, _topic: str, _count: int) -> dict[int, Replicas]:
        return self.under_way

    def move(self, _topic: str, targets: dict[int, Replicas]) -> None:
        self.moved |= targets


def change(played: Played, factor: int, *drained: int) -> FactorChange:
    return FactorChange(cast(ReassignmentClient, played), "t", factor, set(drained))


def test_a_drained_node_gets_no_replica_and_does_not_count() -> None:
    played = Played(Placement({1: "", 2: "", 3: ""}, [(1,)], {}))
    change(played, 2, 2).begin()
    assert played.moved == {0: (1, 3)}
    with pytest.raises(CommandFailed, match="2 nodes are alive and not drained; ask for no more"):
        change(played, 3, 2).check({})


def test_a_move_under_way_to_the_same_factor_is_waited_for_and_to_another_refused() -> None:
    played = Played(Placement({1: "", 2: "", 3: ""}, [(1, 2), (2,)], {}), {0: (1, 2)})
    change(played, 2).begin()
    assert played.moved.keys() == {1}
    with pytest.raises(CommandFailed, match="partitions of topic t are moving already: 0; wait"):
        change(played, 3).check({})


def test_fewer_replicas_than_may_take_records_are_refused_before_anything_is_done() -> None:
    played = Played(Placement({1: "", 2: ""}, [(1, 2)], {}))
    change(played, 1).check({"min.insync.replicas": "1"})
    with pytest.raises(CommandFailed, match=r"min.insync.replicas is 2.*--config min.insync.replicas=1"):
        change(played, 1).check({"min.insync.replicas": "2"})


class Refusing:
    """A connection to a broker that refuses a partition's target, and keeps all that it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[int, Any]] = []

    def ask(self, _api: Any, request: Any) -> Any:
        rows = request.topics[0].partitions
        self.asked.append({row.partition_index: row.replicas for row in rows})
        return _Answer([_Row(row.partition_index, bool(row.replicas) and 3 in row.replicas) for row in rows])


class _Row:
    def __init__(self, number: int, refused: bool) -> None:
        self.partition_index = number
        self.error_code = ErrorCode.invalid_replica_assignment if refused else ErrorCode.none
        self.error_message = "broker 3 is being drained" if refused else None


class _Answer:
    error_code = ErrorCode.none

    def __init__(self, rows: list[_Row]) -> None:
        self.responses = [self]
        self.partitions = rows


def test_when_one_partition_is_refused_the_others_go_back() -> None:
    client = ReassignmentClient.__new__(ReassignmentClient)
    connection = Refusing()
    client._connection = cast(Any, connection)
    targets = {0: (1, 2), 1: (1, 3), 2: (2, 1)}
    with pytest.raises(
        CommandFailed, match=r"partition 1 of topic t .* broker 3 is being drained.*no replica"
    ):
        client.move("t", targets)
    assert connection.asked == [targets, {0: None, 2: None}]
