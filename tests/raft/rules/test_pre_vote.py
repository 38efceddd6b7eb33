"""Pre-votes that a voter denies, because it heard the leader later than the replica that asks."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.node.raft.rules.messages import MessageKind
from strandline.node.raft.rules.pre_vote import MOST_EARLY
from tests.raft.harness import CONFIG, Replica, message_of


class Crowded(Replica):
    """A replica on a node with thousands of others."""

    def __init__(
        self, crowd_seconds: float, monkeypatch: pytest.MonkeyPatch, voters: tuple[int, ...] = (1, 2, 3)
    ) -> None:
        super().__init__(voters=voters, terms=[1], term=1)
        self.places_given_up = 0
        monkeypatch.setattr(self.host, "crowd_seconds", lambda: crowd_seconds)
        monkeypatch.setattr(self.host, "campaign_ended", self._gives_up)

    def _gives_up(self, group: Any) -> None:
        self.places_given_up += 1

    def is_denied(self, by: int = 2, *, round_before: float = 0.0) -> float:
        """Another voter denies the pre-vote under way, or an earlier one; seconds until the next try."""
        asked_at, term = self.group.pre_votes_asked_at - round_before, self.group.term
        self.group.receive(by, message_of(MessageKind.PRE_VOTE_REPLY, term, False, term + 1, asked_at))
        return self.group.deadline - self.host.attentive()


def test_a_denied_pre_vote_gives_its_place_up_and_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Crowded(1.8, monkeypatch)
    replica.time_out()
    replica.take()
    assert replica.is_denied() == pytest.approx(CONFIG.heartbeat_seconds)
    assert replica.places_given_up == 1
    replica.time_out()
    assert [asked.peer for asked in replica.take(MessageKind.PRE_VOTE)] == [2, 3]
    replica.pre_vote_from(2)
    assert replica.role == "candidate"


def test_pauses_double_and_end_so_that_a_leader_others_hear_is_not_asked_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Crowded(1.8, monkeypatch)
    pauses = []
    for _ in range(MOST_EARLY):
        replica.time_out()
        pauses.append(replica.is_denied())
    assert pauses == pytest.approx([CONFIG.heartbeat_seconds * 2**number for number in range(MOST_EARLY)])
    assert sum(pauses) > CONFIG.election_min_seconds, "a voter's promise has ended by then"
    replica.time_out()
    assert replica.is_denied() >= 1.8 + CONFIG.election_min_seconds
    assert replica.places_given_up == MOST_EARLY, "a place without end would be all the others'"
    replica.append(2, 1, (1, 1))
    replica.time_out()
    assert replica.is_denied() == pytest.approx(CONFIG.heartbeat_seconds), "a new silence"


def test_several_voters_that_deny_one_round_use_up_one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of five may have heard the leader later: each of its tries would be gone after one round."""
    replica = Crowded(1.8, monkeypatch, (1, 2, 3, 4, 5))
    pauses = []
    for _ in range(MOST_EARLY):
        replica.time_out()
        pauses.append([replica.is_denied(peer) for peer in (2, 3, 4)])
    assert [pause[-1] for pause in pauses] == [
        pytest.approx(CONFIG.heartbeat_seconds * 2**number) for number in range(MOST_EARLY)
    ]
    assert replica.places_given_up == MOST_EARLY


def test_voters_that_deny_keep_no_majority_of_the_others_from_electing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Crowded(1.8, monkeypatch, (1, 2, 3, 4, 5))
    replica.time_out()
    replica.is_denied(4)
    replica.pre_vote_from(2)
    replica.is_denied(5)
    replica.pre_vote_from(3)
    assert replica.role == "candidate"


def test_a_replica_that_led_asks_again_soon_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Crowded(1.8, monkeypatch)
    for _ in range(MOST_EARLY):
        replica.time_out()
        replica.is_denied()
    replica.lead()
    replica.group.roles.step_down()
    replica.time_out()
    assert replica.is_denied() == pytest.approx(CONFIG.heartbeat_seconds)


@pytest.mark.parametrize(("crowd_seconds", "round_before"), [(0.0, 0.0), (1.8, 0.5)])
def test_an_ordinary_time_out_and_an_answer_to_an_earlier_round_change_nothing(
    crowd_seconds: float, round_before: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Crowded(crowd_seconds, monkeypatch)
    replica.time_out()
    before = replica.group.deadline - replica.host.attentive()
    assert replica.is_denied(round_before=round_before) == before
    assert not replica.places_given_up
