"""Rules of nodes that join and leave, and of the controller's voters, taken out again.

Two changes at once are a sabotage of the log alone (`two-changes-at-once`): here three rules stand behind
each other, and each part asks the controller before it begins. Nothing here is ever imported by the product.
"""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

from strandline.node.controller import controller_voters, voter_choice
from strandline.node.controller.voter_choice import Act, Change, View
from strandline.node.raft.outcome import Applied
from strandline.node.raft.rules.membership_change import MembershipChange
from tests.simulation.sabotage import Sabotage


def _votes_at_once(self: MembershipChange) -> None:
    """As MembershipChange.advance, but nothing is waited for."""
    state = self.state
    if state.joining is None or self.change_index or state.configuration.index > state.commit:
        return
    node = state.joining
    learners = [learner for learner in state.configuration.learners if learner != node]
    self.change_index = self.propose((*state.voters, node), learners)


def _goes_on(self: MembershipChange, index: int, term: int) -> None:
    """As MembershipChange.on_applied, but a leader without a vote goes on."""
    state = self.state
    if index == state.configuration.index and state.change is not None and index == self.change_index:
        self._end_change(Applied(None, index, term))


def _takes_its_own_vote(view: View) -> Change | None:
    """As next_change, but a leader does not hand over before it loses its vote."""
    change = voter_choice.next_change(view)
    if change is not None and change.act is Act.HAND_OVER:
        return Change(Act.UNVOTE, view.leader)
    return change


MEMBERSHIP: Final = (
    Sabotage(
        "votes-before-level",
        "a learner is made a voter before it has the log",
        lambda: (patch.object(MembershipChange, "advance", _votes_at_once),),
    ),
    Sabotage(
        "leads-without-a-vote",
        "a leader that takes its own vote goes on",
        lambda: (
            patch.object(controller_voters, "next_change", _takes_its_own_vote),
            patch.object(MembershipChange, "on_applied", _goes_on),
        ),
    ),
)
