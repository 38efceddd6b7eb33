"""Members that are silent, that leave, whose connection breaks, and static ones (KIP-345) that come back."""

from __future__ import annotations

import pytest

from strandline.node.coordinator.groups.classic_state import ClassicGroupState, Leaving
from strandline.node.raft.outcome import Overloaded
from strandline.statemachine.groups.group_commands import StartGeneration
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.classic_house import DELAY, Client, House, join, rejoin, share, sync


def heartbeat_for(house: House, seconds: float, *clients: Client) -> None:
    """Everybody is heard twice a second, and never has to join again."""
    for _ in range(round(seconds * 2)):
        house.advance(0.5)
        assert [client.heartbeat() for client in clients] == [None] * len(clients)


# Silence.


def test_a_member_that_is_silent_for_its_session_is_out(house: House) -> None:
    a, b = house.stable("ab", session=6.0)
    heartbeat_for(house, 5.5, a)
    assert len(house.live().members) == 2
    house.advance(0.6)
    assert a.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    assert b.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    rejoin([a])
    assert a.generation == 2
    assert b.commit_refusal() is KafkaError.UNKNOWN_MEMBER_ID


def test_a_member_that_commits_is_not_silent(house: House) -> None:
    (a,) = house.stable("a", session=6.0)
    for _ in range(4):
        house.advance(5.0)
        house.coordinator.restart_session("g", a.member_id)
    assert a.heartbeat() is None
    house.coordinator.restart_session("g", "nobody")
    house.coordinator.restart_session("nothing", a.member_id)


def test_a_member_that_waits_is_not_silent(house: House) -> None:
    a, b = house.stable("ab", session=6.0, rebalance=60.0)
    a.begin_join()
    for _ in range(40):
        house.advance(0.5)
        assert b.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    assert a.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS, "a client may do so while it waits"
    for _ in range(20):
        house.advance(0.5)
        b.heartbeat()
    b.begin_join()
    assert (a.joined().generation, b.joined().generation) == (2, 2)
    b.begin_sync()
    for _ in range(40):
        house.advance(0.5)
        assert a.heartbeat() is None
    a.begin_sync(share([a, b]))
    assert b.synced().assignment == b"to b"
    heartbeat_for(house, 5.0, a)
    assert b.heartbeat() is None, "its session began when it was answered"


def test_a_member_that_is_silent_while_others_join_is_not_waited_for_longer(house: House) -> None:
    a, b = house.stable("ab", session=6.0, rebalance=300.0)
    a.begin_join()
    house.advance(5.9)
    assert a.waits()
    house.advance(0.2)
    assert a.joined().generation == 2
    assert b.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID


def test_a_leader_that_dies_before_it_assigned(house: House) -> None:
    _, b = house.joined("ab", session=6.0, rebalance=300.0)
    b.begin_sync()
    house.advance(6.1)
    assert b.synced().error is KafkaError.REBALANCE_IN_PROGRESS
    rejoin([b])
    assert b.leads


def test_a_member_that_was_sent_away_from_its_sync_is_silent_from_then_on(house: House) -> None:
    a, b = house.joined("ab", session=6.0, rebalance=300.0)
    b.begin_sync()
    c = house.client("c", rebalance=300.0)
    c.begin_join()
    assert b.synced().error is KafkaError.REBALANCE_IN_PROGRESS
    a.begin_join()
    house.advance(5.9)
    assert a.waits()
    house.advance(0.2)
    assert (a.joined().generation, c.joined().generation) == (2, 2)
    assert b.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID


# Broken connections.


def test_a_member_whose_connection_broke_has_joined_all_the_same(house: House) -> None:
    a, b = house.stable("ab")
    a.begin_join().cancel()
    house.turn()
    assert house.coordinator.classic.waiting == 0
    b.begin_join()
    assert b.joined().generation == 2
    assert b.joined().leader == a.member_id
    rejoin([a])
    assert a.generation == 2
    assert len(a.joined().members) == 2
    sync([a, b])


def test_a_member_whose_connection_broke_is_silent_from_then_on(house: House) -> None:
    a, b = house.stable("ab", session=6.0)
    house.advance(5.0)
    a.begin_join().cancel()
    house.advance(5.0)
    assert b.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is KafkaError.ILLEGAL_GENERATION, "it is in the generation that began without b"
    house.advance(2.5)
    assert house.nothing_is_left()
    assert house.logged().is_empty


def test_a_member_whose_connection_broke_is_out_while_the_others_are_waited_for(house: House) -> None:
    a, b = house.stable("ab", session=6.0)
    a.begin_join().cancel()
    for _ in range(13):
        house.advance(0.5)
        assert b.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    b.begin_join()
    assert b.joined().leader == b.member_id
    assert len(b.joined().members) == 1


def test_who_will_hear_of_it_leads_rather_than_who_will_not(house: House) -> None:
    a, b = house.clients("ab")
    a.begin_join()
    b.begin_join()
    assert a.join is not None
    a.join.cancel()
    house.advance(2 * DELAY)
    assert b.joined().leader == b.member_id
    assert len(b.joined().members) == 2


def test_a_sync_that_broke_is_asked_again(house: House) -> None:
    a, b = house.joined("ab", session=6.0)
    b.begin_sync().cancel()
    house.turn()
    assert house.coordinator.classic.waiting == 0
    a.begin_sync(share([a, b]))
    assert b.begin_sync().result().assignment == b"to b"


def test_a_leader_whose_sync_broke_has_assigned(house: House) -> None:
    a, b = house.joined("ab")
    house.by_hand = True
    a.begin_sync(share([a, b])).cancel()
    b.begin_sync()
    house.commit()
    assert b.synced().assignment == b"to b"
    assert a.begin_sync().result().assignment == b"to a"


# Leaving.


def test_the_last_member_leaves_an_empty_generation_behind(house: House) -> None:
    (a,) = house.stable("a")
    assert a.leave() is None
    assert house.nothing_is_left()
    assert (house.logged().generation, house.logged().is_empty) == (2, True)
    assert a.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    b = house.client("b", kind="connect")
    b.begin_join()
    house.advance(DELAY)
    assert b.joined().generation == 3


def test_who_leaves_while_it_joins_is_told(house: House) -> None:
    a, b = house.stable("ab")
    a.begin_join()
    assert a.leave() is None
    assert a.result().error is KafkaError.UNKNOWN_MEMBER_ID
    assert a.member_id == ""
    rejoin([b])
    assert b.leads


def test_all_leave_while_the_first_generation_is_waited_for(house: House) -> None:
    a = house.client("a", takes_member_id=True)
    a.join_code()
    a.begin_join()
    a.leave()
    house.advance(DELAY)
    assert house.nothing_is_left()
    assert house.log.proposed == []


def test_an_id_that_was_given_out_may_leave(house: House) -> None:
    (a,) = house.stable("a")
    b = house.client("b", takes_member_id=True)
    b.join_code()
    a.begin_join()
    assert a.waits()
    assert b.leave() is None
    assert a.joined().generation == 2
    sync([a])
    b.member_id = ""
    b.join_code()
    assert b.leave() is None
    assert house.state() is ClassicGroupState.STABLE, "nobody of the generation went"


def test_members_are_removed_by_their_instance_ids(house: House) -> None:
    a = house.client("a", instance="one")
    b = house.client("b", instance="two")
    join([a, b])
    sync([a, b])
    leaving = [
        Leaving("", "one"),
        Leaving("", "three"),
        Leaving(a.member_id, "two"),
        Leaving("x", None),
    ]
    assert house.coordinator.classic.leave("g", leaving) == [
        None,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.UNKNOWN_MEMBER_ID,
    ]
    house.turn()
    assert a.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    assert b.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS


# Static members.


def statics(house: House, **settings: object) -> list[Client]:
    """A stable group of two static members; the first leads."""
    clients = [house.client(name, instance=f"i-{name}", **settings) for name in "ab"]
    join(clients)
    sync(clients)
    return clients


def again(house: House, client: Client, **settings: object) -> Client:
    """The same instance in a new process, which knows of no member id."""
    return house.client(client.name, instance=client.instance, **settings)


def fenced(client: Client) -> None:
    """Whatever it asks, it learns that there is another of its instance id."""
    error = KafkaError.FENCED_INSTANCE_ID
    assert client.heartbeat() is error
    assert client.begin_sync().result().error is error
    assert client.leave() is error
    assert client.commit_refusal() is error
    assert client.join_code() is error


@pytest.mark.parametrize("which", [0, 1])
def test_a_static_member_comes_back_without_a_rebalance_and_its_zombie_is_fenced(
    house: House, which: int
) -> None:
    clients = statics(house)
    old = clients[which]
    new = again(house, old)
    house.by_hand = True
    new.begin_join()
    assert new.waits(), "not before the log knows: until then the zombie's commits would be taken"
    assert old.commit_refusal() is None
    house.by_hand = False
    house.turn()
    joined = new.joined()
    assert (joined.generation, house.state()) == (1, ClassicGroupState.STABLE)
    assert joined.member_id != old.member_id
    assert joined.member_id.startswith(f"i-{old.name}-")
    assert new.leads is joined.skip_assignment is (which == 0)
    assert len(joined.members) == (2 if which == 0 else 0)
    assert new.begin_sync().result().assignment == b"to " + old.name.encode()
    fenced(old)
    heartbeat_for(house, 15.0, new, clients[1 - which])
    assert new.commit_refusal() is None


def test_an_older_client_that_led_is_not_told_that_it_leads(house: House) -> None:
    a, _ = statics(house)
    new = again(house, a, takes_skip=False)
    new.begin_join()
    joined = new.joined()
    assert (joined.leader, joined.skip_assignment, joined.members) == (a.member_id, False, ())
    assert house.live().leader == new.member_id == house.logged().leader


def test_a_static_member_comes_back_while_its_old_self_joins(house: House) -> None:
    a, b = statics(house)
    b.metadata = b"more"
    b.begin_join()
    new = again(house, b)
    new.begin_join()
    assert b.result().error is KafkaError.FENCED_INSTANCE_ID
    a.begin_join()
    assert (a.joined().generation, new.joined().generation) == (2, 2)
    fenced(b)
    sync([a, new])


def test_a_static_member_comes_back_while_its_old_self_syncs(house: House) -> None:
    a, b = (house.client(name, instance=name) for name in "ab")
    join([a, b])
    b.begin_sync()
    new = again(house, b)
    new.begin_join()
    assert b.synced().error is KafkaError.FENCED_INSTANCE_ID
    assert a.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS, "a may be assigning to the old member id"
    assert b.commit_refusal() is KafkaError.FENCED_INSTANCE_ID
    a.begin_join()
    assert (a.joined().generation, new.joined().generation) == (2, 2)
    sync([a, new])


def test_a_static_member_that_comes_back_with_another_protocol_begins_a_rebalance(house: House) -> None:
    a, b = statics(house, protocols=("range", "sticky"))
    new = again(house, b, protocols=("sticky",))
    new.begin_join()
    assert a.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    a.begin_join()
    assert (a.joined().protocol, new.joined().protocol) == ("sticky", "sticky")
    sync([a, new])


def test_a_static_member_whose_vote_is_one_of_equals_comes_back_without_a_rebalance(house: House) -> None:
    a = house.client("a", instance="a", protocols=("range", "other"))
    b = house.client("b", instance="b", protocols=("other", "range"))
    join([a, b])
    sync([a, b])
    assert house.logged().protocol_name == "range"
    back = house.client("a", instance="a", protocols=("range", "other"))
    back.begin_join()
    assert back.joined().generation == 1
    assert house.state() is ClassicGroupState.STABLE


def test_a_static_member_that_does_not_join_again_keeps_its_place_for_its_session(house: House) -> None:
    a, b = statics(house, session=20.0, rebalance=5.0)
    a.begin_join()
    house.advance(5.1)
    assert a.joined().generation == 2
    assert len(a.joined().members) == 2
    assert b.heartbeat() is KafkaError.ILLEGAL_GENERATION, "it joins again by that"
    a.begin_sync(share([a, b]))
    house.advance(4.0)
    b.begin_join()
    assert b.joined().generation == 2
    assert b.begin_sync().result().assignment == b"to b"


def test_a_group_of_static_members_that_are_all_away_waits_for_them(house: House) -> None:
    a, b = statics(house, session=60.0, rebalance=5.0)
    b.metadata = b"new"
    b.begin_join()
    b.leave()
    house.advance(12.0)
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    assert house.live().generation == 1
    a.begin_join()
    assert a.joined().generation == 2
    sync([a])


def test_a_static_member_and_the_one_that_takes_its_place_at_the_same_moment(house: House) -> None:
    """Two processes of one instance id, each replacing the other: the last one is it."""
    a, b = statics(house)
    house.by_hand = True
    first, second = again(house, b), again(house, b)
    first.begin_join()
    second.begin_join()
    assert first.result().error is KafkaError.FENCED_INSTANCE_ID
    house.commit()
    second.joined()
    assert list(house.logged().members) == [a.member_id, second.member_id]
    assert second.begin_sync().result().assignment == b"to b"


def test_a_static_member_comes_back_after_a_generation_that_the_log_did_not_take(house: House) -> None:
    a, b = statics(house)
    house.by_hand = True
    a.begin_join()
    b.begin_join()
    house.log.drop(Overloaded("too much"))
    house.turn()
    house.by_hand = False
    assert a.result().error is b.result().error is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    new = again(house, b)
    new.begin_join()
    assert new.waits()
    assert b.commit_refusal() is KafkaError.FENCED_INSTANCE_ID, "though its generation is the log's"
    a.begin_join()
    assert (a.joined().generation, new.joined().generation) == (2, 2)
    sync([a, new])


def test_a_static_member_comes_back_while_a_generation_with_its_old_self_is_logged(house: House) -> None:
    a, b = statics(house)
    house.by_hand = True
    a.begin_join()
    b.begin_join()
    new = again(house, b)
    new.begin_join()
    assert b.result().error is KafkaError.FENCED_INSTANCE_ID
    house.log.apply()
    new_id = next(one.member_id for one in house.live().members if one.instance_id == b.instance)
    assert (house.logged().generation, list(house.logged().members)) == (2, [a.member_id, new_id])
    house.by_hand = False
    house.turn()
    assert (a.joined().generation, new.joined().generation) == (3, 3)
    sync([a, new])


def test_a_static_member_whose_return_the_log_does_not_take(house: House) -> None:
    a, b = statics(house)
    house.by_hand = True
    new = again(house, b)
    new.begin_join()
    house.log.drop(Overloaded("too much"))
    house.turn()
    house.by_hand = False
    assert new.result().error is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE, (
        "what is known here is not what the log knows"
    )
    new.member_id = ""
    new.begin_join()
    a.begin_join()
    assert (a.joined().generation, new.joined().generation) == (2, 2)
    fenced(b)


def test_a_static_member_whose_return_comes_behind_another_generation_joins_again(house: House) -> None:
    a, b = statics(house)
    house.by_hand = True
    new = again(house, b)
    new.begin_join()
    members = [*house.logged().members.values()]
    house.apply_foreign(StartGeneration("g", 2, "consumer", "range", a.member_id, members))
    house.commit()
    house.by_hand = False
    assert new.result().error is KafkaError.REBALANCE_IN_PROGRESS, (
        "the log's own refusal is not a member's fault"
    )
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    new.member_id = ""
    new.begin_join()
    a.begin_join()
    assert (a.joined().generation, new.joined().generation) == (3, 3)
