"""From one generation to the next: joining, syncing, who leads, and which requests begin a rebalance."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.node.coordinator.groups.classic_state import COMES_FROM, ClassicGroupState
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.classic_house import DELAY, House, rejoin, share, sync


def test_the_table_of_states_is_kafkas() -> None:
    """ClassicGroupState.java: addValidPreviousStates, line by line."""
    empty, preparing, completing, stable, dead = ClassicGroupState
    assert [state.value for state in ClassicGroupState] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]
    assert {
        empty: (preparing,),
        preparing: (stable, completing, empty),
        completing: (preparing,),
        stable: (completing,),
        dead: (empty, preparing, completing, stable, dead),
    } == COMES_FROM


def test_one_member_joins_syncs_and_is_stable(house: House) -> None:
    a = house.client("a")
    a.begin_join()
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    house.advance(DELAY - 0.01)
    assert a.waits()
    house.advance(0.02)
    joined = a.joined()
    assert joined.generation == 1
    assert (joined.protocol_type, joined.protocol) == ("consumer", "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("a-")
    assert not joined.skip_assignment
    assert joined.members == [(joined.member_id, None, b"a")]
    assert house.state() is ClassicGroupState.COMPLETING_REBALANCE
    assert a.heartbeat() is None
    sync([a])
    assert a.synced().protocol == "range"
    assert house.state() is ClassicGroupState.STABLE
    assert a.heartbeat() is None
    assert house.logged().assignments == {a.member_id: b"to a"}


def test_nobody_is_told_of_a_generation_that_the_log_does_not_have(house: House) -> None:
    a = house.client("a")
    a.begin_join()
    house.by_hand = True
    house.advance(DELAY)
    assert house.state() is ClassicGroupState.COMPLETING_REBALANCE
    assert a.waits()
    house.commit()
    assert a.joined().generation == house.logged().generation == 1
    a.begin_sync(share([a]))
    assert a.waits()
    assert house.state() is ClassicGroupState.COMPLETING_REBALANCE
    house.commit()
    assert a.synced().assignment == b"to a"
    assert house.state() is ClassicGroupState.STABLE


def test_a_new_member_is_given_an_id_and_joins_with_it(house: House) -> None:
    a = house.client("a", takes_member_id=True)
    assert a.join_code() is KafkaError.MEMBER_ID_REQUIRED
    assert a.member_id.startswith("a-")
    assert len(house.live().members) == 0
    a.begin_join()
    house.advance(DELAY)
    assert a.joined().generation == 1
    assert house.live().members.pending == {}


def test_an_id_that_nobody_uses_is_forgotten_after_its_session(house: House) -> None:
    house.client("a", takes_member_id=True, session=7.0).join_code()
    house.advance(6.9)
    assert len(house.live().members.pending) == 1
    house.advance(0.2)
    assert house.nothing_is_left()
    assert house.log.proposed == []


def test_whoever_was_given_an_id_is_waited_for(house: House) -> None:
    a, _ = house.stable("ab", session=30.0)
    c = house.client("c", takes_member_id=True)
    assert c.join_code() is KafkaError.MEMBER_ID_REQUIRED
    assert house.state() is ClassicGroupState.STABLE, "an id that is given out is not a member"
    a.begin_join()
    for client in house.live().members:
        if client.member_id != a.member_id:
            other = client
    house.coordinator.classic.leave("g", [])
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    b = house.client("b")
    b.member_id = other.member_id
    b.begin_join()
    assert a.waits(), "c has its id and did not join yet"
    c.begin_join()
    assert (a.joined().generation, b.joined().generation, c.joined().generation) == (2, 2, 2)


def test_an_id_that_is_not_used_ends_the_wait_for_it_and_no_generation(house: House) -> None:
    a = house.stable("a", session=30.0)[0]
    c = house.client("c", takes_member_id=True, session=6.0)
    c.join_code()
    a.begin_join()
    assert a.waits()
    house.advance(6.1)
    assert a.joined().generation == 2
    sync([a])
    house.client("d", takes_member_id=True, session=6.0).join_code()
    house.advance(6.1)
    assert house.state() is ClassicGroupState.STABLE
    assert house.live().generation == 2


def test_members_that_come_together_are_one_generation(house: House) -> None:
    clients = house.clients("abc")
    for client in clients:
        client.begin_join()
        house.advance(DELAY / 2)
    house.advance(2 * DELAY)
    assert [client.joined().generation for client in clients] == [1, 1, 1]
    assert [client.leads for client in clients] == [True, False, False]
    assert [len(client.joined().members) for client in clients] == [3, 0, 0]
    sync(clients)


def test_a_growing_group_is_waited_for_up_to_the_rebalance_timeout(house: House) -> None:
    clients = house.clients("abcdefghij", rebalance=1.0)
    first = clients[0]
    first.begin_join()
    for client in clients[1:]:
        house.advance(0.15)
        if first.waits():
            client.begin_join()
    assert not first.waits()
    assert first.joined().generation == 1
    assert 1.0 <= house.loop.now - 100 <= 1.5
    assert 5 <= len(house.logged().members) < 10


def test_a_group_may_begin_without_a_delay(build: Callable[..., House]) -> None:
    house = build(initial_rebalance_delay_seconds=0.0)
    a = house.client("a")
    a.begin_join()
    house.advance(0.0)
    assert a.joined().generation == 1


def test_a_second_member_makes_the_first_join_again(house: House) -> None:
    a = house.stable("a")[0]
    b = house.client("b")
    b.begin_join()
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    assert a.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    assert a.begin_sync().result().error is KafkaError.REBALANCE_IN_PROGRESS
    assert a.commit_refusal() is None, "what it consumed it may still commit"
    a.begin_join()
    assert [a.joined().generation, b.joined().generation] == [2, 2]
    assert (a.leads, b.leads) == (True, False)
    sync([a, b])


def test_who_does_not_join_again_in_time_is_out(house: House) -> None:
    a, b = house.stable("ab", rebalance=5.0, session=30.0)
    c = house.client("c", rebalance=5.0)
    c.begin_join()
    b.begin_join()
    house.advance(4.9)
    assert c.waits()
    house.advance(0.2)
    assert [b.joined().generation, c.joined().generation] == [2, 2]
    assert b.leads, "a led, and is gone"
    assert a.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.commit_refusal().name == "UNKNOWN_MEMBER_ID"
    assert a.join_code() is KafkaError.UNKNOWN_MEMBER_ID
    sync([b, c])


def test_the_longest_rebalance_timeout_of_all_counts(house: House) -> None:
    a, _ = house.stable("ab", session=30.0, rebalance=5.0)
    c = house.client("c", rebalance=20.0)
    c.begin_join()
    a.begin_join()
    house.advance(19.9)
    assert a.waits()
    house.advance(0.2)
    assert a.joined().generation == 2


def test_a_member_that_never_syncs_is_out(house: House) -> None:
    clients = a, b, c = house.joined("abc", rebalance=5.0, session=8.0)
    a.begin_sync(share(clients))
    b.begin_sync()
    assert house.state() is ClassicGroupState.STABLE
    for _ in range(10):
        house.advance(0.49)
        assert [client.heartbeat() for client in clients] == [None] * 3
    house.advance(0.2)
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    assert c.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    rejoin([a, b])
    assert a.generation == 2
    sync([a, b])


def test_a_leader_that_never_syncs_is_out_and_the_others_begin_again(house: House) -> None:
    a, b, c = house.joined("abc", rebalance=5.0, session=8.0)
    b.begin_sync()
    c.begin_sync()
    for _ in range(9):
        house.advance(0.5)
        assert a.heartbeat() is None
    house.advance(1.0)
    assert b.synced().error is c.synced().error is KafkaError.REBALANCE_IN_PROGRESS
    assert a.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    rejoin([b, c])
    assert b.leads
    sync([b, c])


def test_a_stable_group_is_left_alone_when_everybody_has_synced(house: House) -> None:
    clients = house.stable("ab", rebalance=5.0)
    for _ in range(20):
        house.advance(1.0)
        assert [client.heartbeat() for client in clients] == [None] * 2
    assert house.live().generation == 1


def test_a_leader_that_leaves_while_others_join_is_replaced(house: House) -> None:
    a, b = house.stable("ab")
    c = house.client("c")
    c.begin_join()
    b.begin_join()
    assert b.waits()
    assert a.leave() is None
    assert [b.joined().generation, c.joined().generation] == [2, 2]
    assert b.leads
    assert [member_id for member_id, _, _ in b.joined().members] == [b.member_id, c.member_id]


def test_a_leader_that_leaves_before_it_assigned_begins_a_rebalance(house: House) -> None:
    a, b, c = house.joined("abc")
    b.begin_sync()
    assert a.leave() is None
    assert b.synced().error is KafkaError.REBALANCE_IN_PROGRESS
    assert c.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    rejoin([b, c])
    assert b.leads
    sync([b, c])


def test_a_join_with_what_the_group_knows_gets_the_present_generation(house: House) -> None:
    clients = a, b = house.joined("ab")
    rejoin([a, b])
    assert (a.generation, house.state()) == (1, ClassicGroupState.COMPLETING_REBALANCE)
    assert len(a.joined().members) == 2
    sync(clients)
    b.begin_join()
    assert b.joined().generation == 1
    assert house.state() is ClassicGroupState.STABLE
    assert b.begin_sync().result().assignment == b"to b"


def test_a_leader_that_joins_again_wants_a_rebalance(house: House) -> None:
    a, b = house.stable("ab")
    a.begin_join()
    assert b.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    b.begin_join()
    assert (a.joined().generation, b.joined().generation) == (2, 2)


@pytest.mark.parametrize("stable", [True, False])
def test_new_metadata_wants_a_rebalance(house: House, stable: bool) -> None:
    clients = a, b = house.joined("ab")
    if stable:
        sync(clients)
    b.metadata = b"more topics"
    b.begin_join()
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    a.begin_join()
    assert {key: value for key, _, value in a.joined().members}[b.joined().member_id] == b"more topics"


def test_a_second_request_of_a_member_ends_the_first(house: House) -> None:
    a, b = house.stable("ab")
    b.metadata = b"new"
    first = b.begin_join()
    second = b.begin_join()
    assert first.result().error is KafkaError.REBALANCE_IN_PROGRESS
    assert not second.done()
    a.begin_join()
    a.joined()
    assert second.result().generation == 2
    assert len(a.joined().members) == 2
    b.generation = 2
    first_sync, second_sync = b.begin_sync(), b.begin_sync()
    assert first_sync.result().error is KafkaError.REBALANCE_IN_PROGRESS
    a.begin_sync(share([a, b]))
    assert second_sync.result().assignment == b"to b"


def test_the_leader_may_sync_twice(house: House) -> None:
    a = house.client("a")
    a.begin_join()
    house.advance(DELAY)
    a.joined()
    house.by_hand = True
    first = a.begin_sync({a.member_id: b"first"})
    second = a.begin_sync({a.member_id: b"second"})
    assert first.result().error is KafkaError.REBALANCE_IN_PROGRESS
    house.commit()
    assert second.result().assignment == b"first", "one assignment was decided, and it is what all get"
    assert house.logged().assignments == {a.member_id: b"first"}
    assert len(house.log.proposed) == 2


def test_whoever_is_not_assigned_anything_gets_nothing(house: House) -> None:
    a, b = house.joined("ab")
    b.begin_sync()
    a.begin_sync({a.member_id: b"all", "stranger": b"none"})
    assert (a.synced().assignment, b.synced().assignment) == (b"all", b"")
    assert house.logged().assignments == {a.member_id: b"all", b.member_id: b""}


def test_the_protocol_that_most_prefer_of_those_that_all_have(house: House) -> None:
    a = house.client("a", protocols=("sticky", "range", "robin"))
    b = house.client("b", protocols=("robin", "range"))
    c = house.client("c", protocols=("robin", "odd", "range"))
    for client in (a, b, c):
        client.begin_join()
    house.advance(2 * DELAY)
    assert [client.joined().protocol for client in (a, b, c)] == ["robin"] * 3
    assert a.joined().members[2] == (c.member_id, None, b"c")


def test_protocols_that_do_not_fit_are_refused(house: House) -> None:
    a = house.stable("a", protocols=("range", "other"))[0]
    refused = KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert house.client("b", protocols=("sticky",)).join_code() is refused
    assert house.client("b", kind="connect").join_code() is refused
    assert house.client("b", protocols=()).join_code() is refused
    assert house.client("b", kind="").join_code() is refused
    assert house.client("x", group="new", protocols=()).join_code() is refused
    a.protocols = ("sticky",)
    assert a.join_code() is refused
    assert house.state() is ClassicGroupState.STABLE
    b = house.client("b", protocols=("other",))
    b.begin_join()
    a.protocols = ("range", "other")
    a.begin_join()
    assert (a.joined().protocol, b.joined().protocol) == ("other", "other")
    assert a.begin_sync(protocol="range").result().error is refused
    assert a.begin_sync(protocol_type="connect").result().error is refused
    assert a.begin_sync(share([a, b]), protocol="other").result().error is None
    assert len(house.coordinator.classic) == 1, "a group that nobody could join is not there"


@pytest.mark.parametrize("session", [5.9, 1800.1])
def test_a_session_timeout_out_of_bounds_is_refused(house: House, session: float) -> None:
    client = house.client("a", session=session)
    assert client.join_code() is KafkaError.INVALID_SESSION_TIMEOUT
    assert house.nothing_is_left()


def test_strangers_are_told_so(house: House) -> None:
    a = house.client("a")
    a.member_id = "somebody"
    assert a.join_code() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.leave() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.begin_sync().result().error is KafkaError.UNKNOWN_MEMBER_ID
    b = house.stable("b")[0]
    assert a.join_code() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.leave() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.begin_sync().result().error is KafkaError.UNKNOWN_MEMBER_ID
    for generation in (0, 2):
        b.generation = generation
        assert b.heartbeat() is KafkaError.ILLEGAL_GENERATION
        assert b.begin_sync().result().error is KafkaError.ILLEGAL_GENERATION
    assert house.state() is ClassicGroupState.STABLE


def test_the_time_to_sync_ends_with_the_generation(house: House) -> None:
    a, b = house.joined("ab", rebalance=5.0, session=20.0)
    house.advance(4.0)
    c = house.client("c", rebalance=5.0)
    c.begin_join()
    house.advance(2.0)
    assert [a.heartbeat(), b.heartbeat()] == [KafkaError.REBALANCE_IN_PROGRESS] * 2
    rejoin([a, b])
    assert c.joined().generation == 2
