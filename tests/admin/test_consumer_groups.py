"""Consumer groups over HTTP: those this node coordinates."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.node.admin import group_metrics
from strandline.node.coordinator.groups.classic_group import LiveGroup
from strandline.node.coordinator.groups.classic_members import LiveMember
from strandline.node.coordinator.groups.classic_state import ClassicGroupState
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.group_commands import (
    CommitOffsets,
    Member,
    PartitionOffset,
    StartGeneration,
    TopicOffsets,
)
from strandline.statemachine.groups.group_state import Group
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.admin.answers import check, samples, schema_of
from tests.admin.small_node import small_node
from tests.raft.mesh.mesh_nodes import on_loop
from tests.statemachine.groups_harness import Groups

PATH = "/api/consumer-groups"


def member(name: str) -> Member:
    return Member(name, None, "client", "/10.0.0.1", 10_000, 60_000, [("range", b"")])


def coordinator(number: int, groups: Groups, *live: LiveGroup) -> Any:
    on_the_move = {group.group_id: group for group in live}
    classic = SimpleNamespace(get=on_the_move.get, group_ids=list(on_the_move))
    bounds = SimpleNamespace(refused=0)
    return SimpleNamespace(number=number, machine=groups.machine, classic=classic, bounds=bounds)


def joining(name: str, members: int) -> LiveGroup:
    group = LiveGroup(name, None, None)  # type: ignore[arg-type]
    group.state, group.generation, group.protocol_type = ClassicGroupState.PREPARING_REBALANCE, 4, "consumer"
    for each in range(members):
        group.members.add(LiveMember(f"m{each}", None, "client", "/10.0.0.1", 10.0, 60.0, [("range", b"")]))
    return group


@on_loop
async def test_groups_are_shown_with_what_they_have(tmp_path: Path) -> None:
    first, second = Groups(), Groups()
    first.do(StartGeneration("moving", 3, "consumer", "range", "a", [member("a")]))
    rows = [TopicOffsets(b"t" * 16, "t", [PartitionOffset(0, 5, -1, ""), PartitionOffset(1, 5, -1, "")])]
    first.do(CommitOffsets("simple", "", -1, None, rows))
    first.do(StartGeneration("left", 1, "consumer", "range", "a", [member("a")]))
    first.do(StartGeneration("left", 2, "consumer", "", "", []))
    second.machine.groups["new"] = Group(ConsumerGroup())
    async with small_node(tmp_path, {}) as (node, _, client):
        assert (await client.get(PATH)) == {
            "consumer_groups": [],
            "next": None,
            "coordinators": {"led": [], "coordinators_total": 0},
        }
        node.coordinators.groups = [
            coordinator(3, first, joining("moving", 2), joining("first", 1), joining("nobody", 0)),
            coordinator(9, second),
        ]
        answer = await client.get(PATH)
        check(answer, schema_of(PATH), PATH)
        assert answer["coordinators"] == {"led": [3, 9], "coordinators_total": 0}
        keys = ("group", "coordinator", "protocol", "state", "generation", "members", "offsets")
        assert [tuple(row[key] for key in keys) for row in answer["consumer_groups"]] == [
            ("first", 3, "classic", "PreparingRebalance", 4, 1, 0),
            ("left", 3, "classic", "Empty", 2, 0, 0),
            ("moving", 3, "classic", "PreparingRebalance", 4, 2, 0),
            ("new", 9, "consumer", "Empty", 0, 0, 0),
            ("simple", 3, "classic", "Empty", 0, 0, 2),
        ]
        page = await client.get(f"{PATH}?limit=2&after=left")
        assert [row["group"] for row in page["consumer_groups"]] == ["moving", "new"]
        assert page["next"] == "new"
        empty = await client.get(f"{PATH}?state=Empty")
        assert [row["group"] for row in empty["consumer_groups"]] == ["left", "new", "simple"]
        assert len((await client.get(f"{PATH}?group=new"))["consumer_groups"]) == 1
        assert (await client.ask("GET", f"{PATH}?topic=t")).status == 400


def committed(topic_id: bytes, *offsets: int) -> TopicOffsets:
    partitions = [PartitionOffset(number, offset, -1, "") for number, offset in enumerate(offsets)]
    return TopicOffsets(topic_id, "orders", partitions)


@on_loop
async def test_a_group_s_lag_is_told_where_the_node_has_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups()
    async with small_node(tmp_path, {"orders": 3, "returns": 2}) as (node, _, client):
        machine = node.machine
        orders, returns = (machine.topic(name) for name in ("orders", "returns"))
        assert orders is not None
        assert returns is not None
        groups.do(CommitOffsets("b", "", -1, None, [committed(orders.topic_id, 5, 0)]))
        groups.do(CommitOffsets('a"', "", -1, None, [committed(returns.topic_id, 7, 3)]))
        groups.do(CommitOffsets("a", "", -1, None, [committed(b"deleted since...", 9)]))
        node.coordinators.groups = [coordinator(3, groups)]
        ends = {node.partitions[0].machine: 12, node.partitions[3].machine: 4}
        monkeypatch.setattr(PartitionStateMachine, "high_watermark", property(lambda each: ends.get(each, 0)))
        del node.partitions[4]

        async def told() -> dict[tuple[str, str, str, int], float]:
            page = samples((await client.ask("GET", "/metrics")).body.decode())
            found = {}
            for (name, labels), value in page.items():
                of, what = dict(labels), name.removeprefix("strandline_consumer_group_")
                if "group" in of:
                    found[what, of["group"], of["topic"], int(of["partition"])] = value
            return found

        assert await told() == {
            ("offset", "b", "orders", 0): 5,
            ("lag", "b", "orders", 0): 7,
            ("offset", "b", "orders", 1): 0,
            ("lag", "b", "orders", 1): 0,
            ("offset", 'a"', "returns", 0): 7,
            ("lag", 'a"', "returns", 0): 0,
            ("offset", 'a"', "returns", 1): 3,
        }
        monkeypatch.setattr(group_metrics, "MAX_OFFSETS", 3)
        assert len(await told()) == 5
        page = samples((await client.ask("GET", "/metrics")).body.decode())
        assert page["strandline_consumer_group_offsets_left_out", ()] == 1
