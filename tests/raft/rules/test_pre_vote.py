"""Pre-votes that a voter denies, because it heard the leader later than the replica that asks."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.node.raft.rules.messages import MessageKind
from strandline.node.raft.rules.pre_vote import MOST_EARLY
from tests.raft.harness import CONFIG, Replica, message_of


class Crowded(Replica):
    """A replica on a node with thousands of others."""

    def __init__(self, crowd_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(terms=[1], term=1)
        self.places_given_up = 0
        monkeypatch.setattr(self.host, "crowd_seconds", lambda: crowd_seconds)
        monkeypatch.setattr(self.host, "campaign_ended", self._gives_up)

    def _gives_up(self, group: Any) -> None:
        self.places_given_up += 1

    def is_denied(self, *, round_before: float = 0.0) -> float:
        """Another voter denies the pre-vote under way, or an earlier one; seconds until the next try."""
        asked_at = self.group.pre_votes_asked_at - round_before
        self.group.receive(2, message_of(MessageKind.PRE_VOTE_REPLY, 1, False, 2, asked_at))
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


@pytest.mark.parametrize(("crowd_seconds", "round_before"), [(0.0, 0.0), (1.8, 0.5)])
def test_an_ordinary_time_out_and_an_answer_to_an_earlier_round_change_nothing(
    crowd_seconds: float, round_before: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Crowded(crowd_seconds, monkeypatch)
    replica.time_out()
    before = replica.group.deadline - replica.host.attentive()
    assert replica.is_denied(round_before=round_before) == before
    assert not replica.places_given_up
