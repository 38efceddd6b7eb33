"""However many join, with however much: a group has its bounds, and what is over gives everything back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from strandline.node.config.node_config import GroupsSection
from strandline.node.coordinator.groups import classic, classic_memory
from strandline.node.coordinator.groups.classic_state import ClassicGroupState
from strandline.node.refusal import Cause
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.classic_house import DELAY, House, rejoin, sync

STORM = 10_000
CPU_SECONDS = 30.0
"""What a storm may take of this machine at most; it takes a tenth."""


def storm(house: House, **settings: object) -> list[Cause | str | None]:
    """Ten thousand clients join a group at once: what each was told, "waits" for those that do."""
    clients = house.clients(["m"] * STORM, **settings)  # type: ignore[arg-type]
    tasks = [
        house.loop.create_task(house.coordinator.classic.join("g", client.join_ask())) for client in clients
    ]
    house.turn()
    return [task.result().error if task.done() else "waits" for task in tasks]


def test_ten_thousand_members_are_one_generation_at_a_cost_that_grows_with_them(house: House) -> None:
    began = time.process_time()
    assert storm(house) == ["waits"] * STORM
    house.advance(2 * DELAY)
    assert len(house.logged().members) == STORM
    assert house.coordinator.classic.waiting == 0
    live = house.live()
    for member in [*live.members][1:]:
        house.coordinator.classic.heartbeat("g", member.member_id, None, 1)
    house.advance(9.0)
    for member in [*live.members]:
        assert live.heartbeat(member.member_id, None, 1) is None
    house.advance(61.0)
    assert house.nothing_is_left(), "nobody ever synced"
    assert house.logged().is_empty
    assert len(house.log.proposed) == 2
    assert time.process_time() - began < CPU_SECONDS


@pytest.mark.parametrize("takes_member_id", [True, False])
def test_a_storm_of_joins_is_bounded(build: Callable[..., House], takes_member_id: bool) -> None:
    house = build(max_members=1000)
    told = storm(house, takes_member_id=takes_member_id)
    first = KafkaError.MEMBER_ID_REQUIRED if takes_member_id else "waits"
    assert told == [first] * 1000 + [KafkaError.GROUP_MAX_SIZE_REACHED] * 9000
    assert house.coordinator.classic.bytes < 1000 * 1024
    assert house.coordinator.classic.waiting == (0 if takes_member_id else 1000)
    house.advance(200.0)
    assert house.nothing_is_left()


def test_thousands_of_connections_that_break_leave_nothing(house: House) -> None:
    clients = house.clients(["m"] * (STORM // 3))  # type: ignore[arg-type]
    began = time.process_time()
    tasks = [
        house.loop.create_task(house.coordinator.classic.join("g", client.join_ask())) for client in clients
    ]
    house.turn()
    for task in tasks:
        task.cancel()
    house.turn()
    assert house.coordinator.classic.waiting == 0
    house.advance(300.0)
    assert house.nothing_is_left()
    assert time.process_time() - began < CPU_SECONDS


def test_a_full_group_takes_back_whoever_is_in_it(build: Callable[..., House]) -> None:
    house = build(max_members=3)
    clients = a, b = house.stable("ab")
    static = house.client("c", instance="c")
    static.begin_join()
    rejoin(clients)
    assert static.joined().generation == 2
    assert house.client("d").join_code() is KafkaError.GROUP_MAX_SIZE_REACHED
    assert house.client("d", takes_member_id=True).join_code() is KafkaError.GROUP_MAX_SIZE_REACHED
    again = house.client("c", instance="c")
    again.begin_join()
    a.begin_join()
    b.begin_join()
    assert again.joined().generation == 3
    assert house.client("e", instance="e").join_code() is KafkaError.GROUP_MAX_SIZE_REACHED


def test_members_that_bring_too_much_are_refused(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "MAX_GROUP_BYTES", 20_000)
    house = build()
    (a,) = house.stable("a")
    fat = house.client("b")
    fat.metadata = bytes(10_000)
    assert fat.join_code() is KafkaError.GROUP_MAX_SIZE_REACHED
    assert house.state() is ClassicGroupState.STABLE
    a.metadata = bytes(10_000)
    assert a.join_code() is KafkaError.GROUP_MAX_SIZE_REACHED
    a.metadata = bytes(9_000)
    a.begin_join()
    assert a.joined().generation == 2
    sync([a])
    a.begin_join()
    assert a.joined().generation == 3, "what it had before does not count twice"


def test_protocols_without_a_name_are_not_for_nothing(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "MAX_GROUP_BYTES", 20_000)
    house = build()
    many = house.client("", protocols=("range", *[""] * 3_000))
    many.metadata = b""
    assert many.join_code() is KafkaError.GROUP_MAX_SIZE_REACHED


def test_names_count_as_the_bytes_they_are(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "MAX_GROUP_BYTES", 20_000)
    house = build()
    assert house.client("ü" * 6_000).join_code() is KafkaError.GROUP_MAX_SIZE_REACHED


def test_all_groups_together_are_bounded(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic_memory, "MAX_BYTES", 50_000)
    house = build()
    codes = []
    for number in range(20):
        client = house.client("a", group=f"g{number}", takes_member_id=True)
        codes.append(client.join_code())
    full = codes.index(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    assert 5 < full < 15
    assert codes == [KafkaError.MEMBER_ID_REQUIRED] * full + [KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * (
        20 - full
    )
    assert house.coordinator.classic.bytes <= 50_000
    assert len(house.coordinator.classic) == full
    house.advance(11.0)
    assert house.nothing_is_left()
    fat = house.client("a")
    fat.metadata = bytes(25_000)
    assert fat.join_code() is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    assert house.nothing_is_left()


def test_what_members_were_assigned_keeps_none_of_them_out(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "MAX_GROUP_BYTES", 20_000)
    monkeypatch.setattr(classic_memory, "MAX_BYTES", 24_000)
    house = build()
    clients = a, b = house.clients("ab")
    for client in clients:
        client.metadata = bytes(4_000)
        client.begin_join()
    house.advance(2 * DELAY)
    for client in clients:
        client.joined()
    b.begin_sync()
    a.begin_sync({client.member_id: bytes(6_000) for client in clients})
    assert house.coordinator.classic.bytes > 24_000
    assert house.client("c", group="h").join_code() is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    b.metadata = bytes(6_500)
    assert b.join_code() is KafkaError.GROUP_MAX_SIZE_REACHED, "what it was assigned makes no room either"
    b.metadata = bytes(5_000)  # it says what it has, as cooperative assignors make it do
    rejoin(clients)
    sync(clients)
    b.metadata = bytes(6_500)
    assert b.join_code() is KafkaError.GROUP_MAX_SIZE_REACHED


def test_a_group_over_a_limit_that_fell_sheds_who_comes_last(build: Callable[..., House]) -> None:
    house = build(max_members=5)
    clients = a, b, c, d, e = house.stable("abcde")
    house.context.config.groups = GroupsSection(initial_rebalance_delay_seconds=DELAY, max_members=3)
    house.coordinator.classic = classic.ClassicGroups(house.coordinator)
    house.new_leader()
    assert [client.heartbeat() for client in clients] == [None] * 5, "until they join again"
    for client in (a, c, e):
        client.begin_join()
    c.begin_join()  # once more: it has its place
    d.instance = "nobody's"
    assert d.join_code() is KafkaError.UNKNOWN_MEMBER_ID
    assert b.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    d.instance = None
    assert b.join_code() is d.join_code() is KafkaError.GROUP_MAX_SIZE_REACHED
    assert [client.joined().generation for client in (a, c, e)] == [2, 2, 2]
    sync([a, c, e])
    assert len(house.logged().members) == 3
    rejoin([a, c, e])


def test_a_static_member_is_shed_like_others(build: Callable[..., House]) -> None:
    house = build(max_members=2)
    (a,) = house.stable("a")
    static = house.client("s", instance="s")
    static.begin_join()
    rejoin([a])
    static.joined()
    sync([a, static])
    house.context.config.groups = GroupsSection(initial_rebalance_delay_seconds=DELAY, max_members=1)
    house.coordinator.classic = classic.ClassicGroups(house.coordinator)
    house.new_leader()
    a.begin_join()
    assert house.client("s", instance="s").join_code() is KafkaError.GROUP_MAX_SIZE_REACHED
    assert a.joined().generation == 3
    assert list(house.logged().members) == [a.member_id]
