"""Membership changes (Raft §6 and thesis §4): one server at a time.

PySyncObj let two changes be under way at once. A new member first catches up as a learner, without a vote,
and is made a voter only when it is nearly level with the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from strandline.node.raft.entries import pack_members
from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded, Unknown
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.commitment import Commitment
from strandline.node.raft.rules.configuration_log import ConfigurationLog
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.rules.replication import Replication
from strandline.node.raft.rules.roles import Roles
from strandline.node.raft.rules.snapshot_protocols import SnapshotSender

log = logging.getLogger(__name__)


class MembershipChange(Part):
    """Adding and removing members."""

    __slots__ = (
        "change_deadline",
        "change_index",
        "commitment",
        "configuration_log",
        "quiescence",
        "replication",
        "roles",
        "round_started",
        "round_target",
        "sending",
    )

    def __init__(
        self,
        state: ReplicaState,
        configuration_log: ConfigurationLog,
        commitment: Commitment,
        roles: Roles,
        quiescence: Quiescence,
        replication: Replication,
        sending: SnapshotSender,
    ) -> None:
        super().__init__(state)
        self.configuration_log = configuration_log
        self.commitment = commitment
        self.roles = roles
        self.quiescence = quiescence
        self.replication = replication
        self.sending = sending
        self.change_index: int = 0
        """Index of the configuration entry that ends the change; 0 while a learner catches up."""
        self.round_target: int = 0
        self.round_started: float = 0.0
        self.change_deadline: float = 0.0

    def add_member(self, node: int) -> asyncio.Future[Outcome]:
        """Add a node as a voter, after it caught up as a learner.

        Ends as Applied when the node is a voter (at once if it was), NotLeader or Overloaded when nothing
        was changed, Unknown when leadership was lost on the way: ask again, it goes on where it stood.
        """
        state = self.state
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        rejection = self.refuses()
        if rejection is not None:
            future.set_result(rejection)
        elif node in state.voters:
            future.set_result(Applied(None, state.configuration.index, state.term))
        else:
            state.change, state.joining, self.change_index = future, node, 0
            if node not in state.configuration.learners:
                self.propose(state.voters, (*state.configuration.learners, node))
            self.change_deadline = self.host.now() + self.settings.catch_up_seconds
            self._start_round()
            self.host.set_active(state, True)
            self.host.wake(state)
        return future

    def add_learner(self, node: int) -> asyncio.Future[Outcome]:
        """Add a node as a learner that stays one; or take a voter's vote, so that it follows as a learner.

        Ends as Applied once that is committed, also if it was so. A leader that takes its own vote steps down
        then.
        """
        state = self.state
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        rejection = self.refuses()
        if rejection is not None:
            future.set_result(rejection)
        elif node in state.configuration.learners:
            future.set_result(Applied(None, state.configuration.index, state.term))
        elif state.voters == (node,):
            future.set_result(Overloaded(f"node {node} is the group's only voter and keeps its vote"))
        else:
            state.change, state.joining = future, None
            self.change_index = self.propose(
                [voter for voter in state.voters if voter != node],
                (*state.configuration.learners, node),
            )
            self.host.set_active(state, True)
            self.host.wake(state)
        return future

    def remove_member(self, node: int) -> asyncio.Future[Outcome]:
        """Remove a voter or learner; a leader that removes itself steps down once that is committed.

        A learner that is catching up can be removed at once: its addition ends as Unknown.
        """
        state = self.state
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        if state.joining == node and not self.change_index:
            # It may have lost its disk meanwhile, and would then never be level.
            self._end_change(Unknown(f"node {node} was removed before it was level"))
        rejection = self.refuses()
        if rejection is not None:
            future.set_result(rejection)
        elif node not in state.configuration.members:
            future.set_result(Applied(None, state.configuration.index, state.term))
        elif state.voters == (node,):
            future.set_result(Overloaded(f"node {node} is the group's only voter and cannot be removed"))
        else:
            state.change, state.joining = future, None
            self.change_index = self.propose(
                [voter for voter in state.voters if voter != node],
                [learner for learner in state.configuration.learners if learner != node],
            )
        return future

    def members_held_without(self, node: int) -> bool:
        """Whether a majority of the voters, `node` not counted, have the newest configuration on their disks.

        To be asked before a node is left out whose promises are lost. A voter with an older configuration
        may need fewer votes, and what takes the node's place would give it one (docs/raft.md, "Folders").
        """
        state = self.state
        held = zip(state.voters, self.commitment.matches(), strict=True)
        others = sum(voter != node and match >= state.configuration.index for voter, match in held)
        return others * 2 > len(state.voters) or node not in state.voters

    def refuses(self) -> Outcome | None:
        state = self.state
        if state.role != LEADER or state.failure is not None:
            return state.not_leader()
        if state.transfer_target is not None:
            return NotLeader(state.transfer_target, "leadership is being handed over")
        if self.under_way():
            return Overloaded("another membership change is under way: wait for it to end")
        return None

    def under_way(self) -> bool:
        """One change at a time, and none before this term has committed something (thesis §4.1 and its
        erratum of 2015): otherwise two majorities need not overlap."""
        state = self.state
        return (
            state.change is not None
            or state.configuration.index > state.commit
            or state.commit < state.term_start
        )

    def propose(self, voters: Sequence[int], learners: Sequence[int]) -> int:
        state = self.state
        folders = tuple(
            (node, folder) for node in sorted((*voters, *learners)) if (folder := self._folder(node))
        )
        command = pack_members(voters, learners, folders)
        index = state.append(command)
        self.configuration_log.note([(command, index, state.term)])
        return index

    def _folder(self, node: int) -> int:
        """The folder that the next configuration names for a member: as before, or the one it comes with."""
        named = self.state.configuration.named.get(node)
        if named is not None:
            return named
        return self.host.folder_of(node) if node == self.host.node_id or self.host.connected(node) else 0

    def _start_round(self) -> None:
        self.round_target = self.journal.last
        self.round_started = self.host.now()

    def advance(self) -> None:
        """Promote the learner once a round of catching up was short enough (thesis §4.2.1)."""
        state = self.state
        if state.joining is None or self.change_index:
            return
        if self.host.now() > self.change_deadline:
            seconds = self.settings.catch_up_seconds
            self._end_change(
                Unknown(f"node {state.joining} is a learner and not level after {seconds:.0f} s")
            )
            return
        progress = state.progress.get(state.joining)
        if progress is None or progress.match < self.round_target or state.configuration.index > state.commit:
            return
        if self.host.now() - self.round_started > self.settings.election_min_seconds:
            self._start_round()
            return
        node = state.joining
        learners = [learner for learner in state.configuration.learners if learner != node]
        self.change_index = self.propose((*state.voters, node), learners)

    def on_applied(self, index: int, term: int) -> None:
        """End a change whose configuration is committed, and forget nodes that are no members any more."""
        state = self.state
        if state.role != LEADER or index != state.configuration.index:
            return
        if state.change is not None and index == self.change_index:
            self._end_change(Applied(None, index, term))
        for peer in [peer for peer in state.progress if peer not in state.peers]:
            self.replication.send_heartbeat(peer, state.progress[peer], self.host.now())
            self.quiescence.end_towards(peer, state.progress[peer])
            self.sending.end(peer)
            del state.progress[peer]
            state.lost_acknowledged.discard(peer)
        if self.host.node_id not in state.voters:
            self.roles.step_down()

    def fail(self) -> None:
        if self.state.change is not None:
            self._end_change(Unknown("leadership was lost during the membership change"))

    def _end_change(self, outcome: Outcome) -> None:
        state = self.state
        change, state.change = state.change, None
        state.joining, self.change_index = None, 0
        if change is not None and not change.done():
            change.set_result(outcome)
