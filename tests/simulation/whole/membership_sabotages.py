"""Rules of nodes that join and leave, and of the controller's voters, taken out again.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from unittest.mock import patch

from strandline.node.controller import controller_voters, voter_choice
from strandline.node.controller.replica_moves import ReplicaMoves
from strandline.node.controller.voter_choice import Act, Change, View
from strandline.node.raft.data_folder import NO_FOLDER, Folder, Standing
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied
from strandline.node.raft.rules.membership_change import MembershipChange
from strandline.statemachine.controller import controller_nodes
from strandline.statemachine.controller.balance_plan import Step, _Replicas
from strandline.statemachine.controller.controller_commands import AddNode, RegisterNode
from strandline.statemachine.controller.controller_state import (
    REMOVED,
    ControllerState,
    Move,
    NodeFolder,
    NodeRegistration,
)
from strandline.statemachine.kafka_errors import Refused
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


def _begins_both(self: ReplicaMoves, group: RaftGroup, move: Move) -> None:
    """As ReplicaMoves._step, but what shall go is taken away in the same turn: Raft refuses that."""
    _step(self, group, move)
    leaving = [node for node in group.voters if node not in move.target and node != self._host.node_id]
    if leaving:
        group.remove_member(leaving[0])


def _takes_first(self: ReplicaMoves, group: RaftGroup, move: Move) -> None:
    """As ReplicaMoves._step, but what shall go goes before anything is added."""
    leaving = [node for node in group.voters if node not in move.target and node != self._host.node_id]
    if leaving:
        self._begin(group, leaving[0], group.remove_member)
    else:
        _step(self, group, move)


_step = ReplicaMoves._step


def _takes_only(self: _Replicas, group: int, leaves: int, joins: int, why: str) -> Step:
    """As _Replicas._take, but the replica goes nowhere."""
    step = _take(self, group, leaves, joins, why)
    target = tuple(node for node in step.command.target or () if node != joins)
    return step._replace(command=replace(step.command, target=target))


_take = _Replicas._take


def _adds_removed(state: ControllerState, index: int, command: AddNode) -> int | Refused:
    """As controller_nodes._add, but the id of a removed node is free."""
    folder = state.folders.get(command.node)
    if folder is not None and folder.folder == REMOVED:
        state.folders[command.node] = NodeFolder(folder.generation + 1, command.folder)
    return _add(state, index, command)


_add = controller_nodes._add


def _registers_removed(
    state: ControllerState, index: int, command: RegisterNode
) -> NodeRegistration | Refused:
    """As controller_nodes._register, but a removed node is registered again."""
    folder = state.folders.get(command.node)
    if folder is not None and folder.folder == REMOVED:
        state.folders[command.node] = NodeFolder(folder.generation + 1, command.folder)
    return _register(state, index, command)


_register = controller_nodes._register


def _refuses_no_removed(self: Folder, peer: int, claim: Standing) -> str | None:
    """As Folder.reason_to_refuse, but a node without a folder in force may have any."""
    known = self.known.get(peer)
    if known is not None and known.folder == NO_FOLDER and not self.is_foreign(claim):
        return None
    return _reason_to_refuse(self, peer, claim)


_reason_to_refuse = Folder.reason_to_refuse

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
    Sabotage(
        "two-configurations",
        "a change of members begins while another is under way",
        lambda: (
            patch.object(MembershipChange, "under_way", lambda self: False),
            patch.object(ReplicaMoves, "_step", _begins_both),
        ),
    ),
    Sabotage(
        "taken-before-added",
        "a move takes a replica away before the new one is there",
        lambda: (patch.object(ReplicaMoves, "_step", _takes_first),),
    ),
    Sabotage(
        "balanced-away",
        "the balancer takes replicas away and puts them nowhere",
        lambda: (patch.object(_Replicas, "_take", _takes_only),),
    ),
    Sabotage(
        "removed-id-joins",
        "a machine joins by the id of a removed node",
        lambda: (
            patch.object(controller_nodes, "_add", _adds_removed),
            patch.object(Folder, "reason_to_refuse", _refuses_no_removed),
        ),
    ),
    Sabotage(
        "removed-comes-back",
        "a removed node that comes back late is let in",
        lambda: (
            patch.object(controller_nodes, "_register", _registers_removed),
            patch.object(Folder, "reason_to_refuse", _refuses_no_removed),
        ),
    ),
)
