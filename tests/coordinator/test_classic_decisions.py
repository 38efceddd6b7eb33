"""What is decided goes through the log: what comes meanwhile, what fails, what the next leader finds."""

from __future__ import annotations

import pytest

from strandline.node.coordinator.groups import classic_rebalance
from strandline.node.coordinator.groups.classic_state import ClassicGroupState
from strandline.node.raft.outcome import NotLeader, Overloaded, Unknown
from strandline.node.refusal import Cause
from strandline.statemachine.groups.group_commands import (
    DeleteGroup,
    ExpireOffsets,
    GroupDeleted,
    StartGeneration,
)
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.classic_house import DELAY, House, rejoin, share, sync

# What comes meanwhile.


def test_whoever_comes_while_a_generation_is_decided_is_in_the_next(house: House) -> None:
    a, b, c = house.clients("abc")
    a.begin_join()
    house.by_hand = True
    house.advance(DELAY)
    assert house.state() is ClassicGroupState.COMPLETING_REBALANCE
    b.begin_join()
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    c.begin_join()
    assert len(house.log.proposed) == 1, "one generation is decided at a time"
    house.commit()
    assert len(house.log.proposed) == 2, "everybody had joined by then"
    assert all(client.waits() for client in (a, b, c))
    house.commit()
    assert [client.joined().generation for client in (a, b, c)] == [2, 2, 2]
    house.by_hand = False
    sync([a, b, c])


def test_whoever_leaves_while_a_generation_is_decided_is_not_in_the_next(house: House) -> None:
    a, b = house.clients("ab")
    a.begin_join()
    b.begin_join()
    house.by_hand = True
    house.advance(2 * DELAY)
    b.member_id = next(member.member_id for member in house.live().members if member.client_id == "b")
    assert b.leave() is None
    assert b.result().error is KafkaError.UNKNOWN_MEMBER_ID
    house.commit()
    house.commit()
    assert a.joined().generation == 2
    assert list(house.logged().members) == [a.member_id]


def test_a_member_asks_again_while_its_generation_is_decided(house: House) -> None:
    (a,) = house.stable("a")
    house.by_hand = True
    first = a.begin_join()
    assert house.state() is ClassicGroupState.COMPLETING_REBALANCE
    second = a.begin_join()
    assert first.result().error is KafkaError.REBALANCE_IN_PROGRESS
    assert a.begin_sync(generation=2).result().error is KafkaError.REBALANCE_IN_PROGRESS
    assert not second.done(), "the log does not have it yet"
    house.commit()
    assert second.result().generation == 2


def test_the_time_to_join_is_over_while_a_decision_is_under_way(house: House) -> None:
    a, b = house.stable("ab", rebalance=5.0, session=30.0)
    house.by_hand = True
    a.begin_join()
    b.begin_join()
    c = house.client("c", rebalance=5.0)
    c.begin_join()
    assert a.join is not None
    a.join.cancel()
    b.metadata = b"new"
    b.begin_join()
    house.advance(5.1)
    house.commit()
    house.commit()
    assert {b.joined().generation, c.joined().generation} == {3}


def test_a_join_between_the_leaders_sync_and_its_decision(house: House) -> None:
    a, b = house.joined("ab")
    b.begin_sync()
    house.by_hand = True
    a.begin_sync(share([a, b]))
    c = house.client("c")
    c.begin_join()
    assert a.synced().error is b.synced().error is KafkaError.REBALANCE_IN_PROGRESS
    house.by_hand = False
    house.turn()
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE, "the assignment came too late"
    rejoin([a, b])
    assert c.joined().generation == 2
    sync([a, b, c])


def test_everybody_leaves_while_the_assignment_is_decided(house: House) -> None:
    (a,) = house.clients("a")
    a.begin_join()
    house.advance(DELAY)
    a.joined()
    house.by_hand = True
    a.begin_sync(share([a]))
    a.leave()
    assert a.synced().error in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS)
    house.by_hand = False
    house.turn()
    assert house.nothing_is_left()
    assert (house.logged().generation, house.logged().is_empty) == (2, True)


def test_somebody_joins_while_the_empty_generation_is_decided(house: House) -> None:
    (a,) = house.stable("a")
    house.by_hand = True
    a.leave()
    b = house.client("b")
    b.begin_join()
    house.advance(2 * DELAY)
    assert b.waits()
    house.commit()
    house.commit()
    assert b.joined().generation == 3


# What fails.


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Overloaded("too much"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        (NotLeader(2, "leadership is being handed over"), KafkaError.NOT_COORDINATOR),
    ],
)
def test_a_generation_that_the_log_does_not_take_is_none(
    house: House, outcome: Overloaded | NotLeader, code: Cause
) -> None:
    a, b = house.clients("ab", session=6.0)
    a.begin_join()
    b.begin_join()
    house.by_hand = True
    house.advance(2 * DELAY)
    house.log.drop(outcome)
    house.turn()
    assert a.result().error is b.result().error is code
    house.by_hand = False
    rejoin([a, b])
    assert a.generation == 1
    sync([a, b])


def test_members_that_were_sent_away_and_do_not_come_again_are_out(house: House) -> None:
    (a,) = house.clients("a", session=6.0)
    a.begin_join()
    house.by_hand = True
    house.advance(DELAY)
    house.log.drop(Overloaded("too much"))
    house.by_hand = False
    house.advance(6.1)
    assert house.nothing_is_left()


def test_an_assignment_that_the_log_does_not_take_begins_again(house: House) -> None:
    a, b = house.joined("ab")
    b.begin_sync()
    house.by_hand = True
    a.begin_sync(share([a, b]))
    house.log.drop(Overloaded("too much"))
    house.by_hand = False
    # Not COORDINATOR_LOAD_IN_PROGRESS, at which Java's consumer and aiokafka give up when it answers this.
    assert a.synced().error is b.synced().error is KafkaError.REBALANCE_IN_PROGRESS
    assert a.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS
    rejoin([a, b])
    sync([a, b])


def test_an_assignment_that_is_too_large_is_not_asked_again(house: House) -> None:
    a = house.client("a")
    a.begin_join()
    house.advance(DELAY)
    a.joined()
    replicate = house.log.replicate

    def refuse(command: bytes, term: int) -> object:
        if len(command) > 5000:
            raise ValueError("too large")
        return replicate(command, term)

    house.log.replicate = refuse  # type: ignore[assignment,method-assign]
    a.begin_sync({a.member_id: bytes(6000)})
    assert a.synced().error is KafkaError.UNKNOWN_SERVER_ERROR
    rejoin([a])
    sync([a])


def test_an_empty_generation_is_offered_until_the_log_takes_it(house: House) -> None:
    (a,) = house.stable("a")
    house.by_hand = True
    a.leave()
    house.log.drop(Overloaded("too much"))
    house.turn()
    assert house.coordinator.classic.get("g") is not None
    house.by_hand = False
    house.advance(classic_rebalance.RETRY_SECONDS)
    assert house.logged().is_empty
    assert house.nothing_is_left()


def test_a_group_that_is_deleted_while_its_next_generation_is_on_the_way(house: House) -> None:
    (a,) = house.stable("a")
    a.leave()
    b = house.client("b")
    b.begin_join()
    house.by_hand = True
    deleted = house.ask(house.coordinator.execute(DeleteGroup("g")))
    house.advance(DELAY)
    house.commit()
    assert isinstance(deleted.result(), GroupDeleted)
    house.by_hand = False
    house.turn()
    b.joined()
    sync([b])
    assert b.generation == house.logged().generation


def test_a_group_that_expired_begins_at_its_first_generation(house: House) -> None:
    (a,) = house.stable("a")
    a.leave()
    house.ask(house.coordinator.execute(ExpireOffsets(["g"], house.wall, 0, 0)))
    assert "g" not in house.replica.machine.groups
    b = house.client("b")
    b.begin_join()
    house.advance(DELAY)
    assert b.joined().generation == 1


def test_a_race_that_is_lost_again_and_again_ends(house: House) -> None:
    (a,) = house.clients("a")
    house.by_hand = True
    a.begin_join()
    house.advance(DELAY)
    for _ in range(classic_rebalance.MAX_REFUSALS + 1):
        assert a.waits()
        foreign = StartGeneration("g", house.live().generation, "consumer", "", "", [])
        house.apply_foreign(foreign)
        house.commit()
    assert a.result().error is KafkaError.COORDINATOR_NOT_AVAILABLE
    assert house.nothing_is_left()


# The next leader.


def test_the_coordinator_is_lost_between_join_and_sync(house: House) -> None:
    clients = _, b = house.joined("ab", session=6.0, rebalance=5.0)
    b.begin_sync()
    house.new_leader()
    assert b.synced().error is KafkaError.NOT_COORDINATOR
    assert house.state() is ClassicGroupState.COMPLETING_REBALANCE
    sync(clients)
    assert house.live().generation == 1, "nobody had to join again"
    house.advance(5.9)
    assert [client.heartbeat() for client in clients] == [None] * 2


def test_a_member_that_does_not_come_after_the_coordinator_was_lost_is_out(house: House) -> None:
    clients = a, b = house.joined("ab", session=20.0, rebalance=5.0)
    house.new_leader()
    a.begin_sync(share(clients))
    house.advance(5.1)
    assert b.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is KafkaError.REBALANCE_IN_PROGRESS


def test_a_member_that_did_not_hear_of_its_generation_asks_the_next_leader(house: House) -> None:
    clients = a, b = house.stable("ab")
    house.by_hand = True
    a.begin_join()
    b.begin_join()
    house.log.apply()
    assert house.logged().generation == 2
    house.by_hand = False
    house.new_leader()
    assert a.result().error is b.result().error is KafkaError.NOT_COORDINATOR
    rejoin([a, b])
    assert a.generation == 2
    sync(clients)


def test_the_coordinator_is_lost_while_a_generation_is_decided(house: House) -> None:
    a, b = house.stable("ab")
    house.by_hand = True
    a.begin_join()
    b.begin_join()
    house.log.lose()
    house.turn()
    assert a.result().error is b.result().error is KafkaError.NOT_COORDINATOR
    house.log.drop(Unknown("cut off"))
    house.by_hand = False
    house.lead()
    assert (house.state(), house.live().generation) == (ClassicGroupState.STABLE, 1)
    assert [a.heartbeat(), b.heartbeat()] == [None] * 2
    assert a.begin_sync().result().assignment == b"to a"


def test_the_coordinator_is_lost_while_an_assignment_is_decided(house: House) -> None:
    a, b = house.joined("ab")
    house.by_hand = True
    b.begin_sync()
    a.begin_sync(share([a, b]))
    house.log.apply()
    house.by_hand = False
    house.new_leader()
    assert a.synced().error is b.synced().error is KafkaError.NOT_COORDINATOR
    assert house.state() is ClassicGroupState.STABLE
    assert b.begin_sync().result().assignment == b"to b"


def test_members_of_a_stable_group_keep_their_generation_and_have_their_time_anew(house: House) -> None:
    a, b = house.stable("ab", session=6.0)
    house.advance(5.0)
    house.new_leader()
    house.advance(5.0)
    assert a.heartbeat() is None
    house.advance(1.1)
    assert b.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID, "it was not heard by the new leader"
    rejoin([a])
    assert a.generation == 2


def test_a_leadership_that_ends_leaves_nothing_behind(house: House) -> None:
    a, _ = house.stable("ab")
    house.client("c").begin_join()
    house.client("d", group="other", takes_member_id=True).begin_join()
    a.begin_join()
    house.log.lose()
    house.turn()
    assert len(house.coordinator.classic) == 0
    assert house.coordinator.classic.bytes == 0
    assert house.coordinator.classic.waiting == 0
    assert len(house.coordinator.timers) == 0
    assert not house.coordinator.leads
    house.advance(1000.0)
    assert len(house.coordinator.classic) == 0


def test_a_static_members_return_survives_the_coordinator(house: House) -> None:
    old = house.client("a", instance="one")
    old.begin_join()
    house.advance(DELAY)
    old.joined()
    sync([old])
    new = house.client("a", instance="one")
    new.begin_join()
    new.joined()
    house.new_leader()
    assert new.heartbeat() is None
    assert old.heartbeat() is KafkaError.FENCED_INSTANCE_ID
    assert old.commit_refusal() is KafkaError.FENCED_INSTANCE_ID
    assert new.begin_sync().result().assignment == b"to a"
