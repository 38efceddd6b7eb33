"""Cluster membership (Raft §6 and thesis §4): one server at a time, the newest configuration counts.

PySyncObj let two changes be under way at once, let journalled changes count only once applied after a
restart, and stored the current members with a snapshot instead of those at its index. A new member first
catches up as a learner, without a vote, and is made a voter only when it is nearly level with the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from strandline.node.raft.entries import Entry, EntryKind, pack_members, unpack_members
from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded, Unknown
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.progress import Progress
from strandline.node.raft.rules.read_index import Reads
from strandline.node.raft.rules.replica_state import Configuration


def unpack_configuration(entry: Entry) -> Configuration:
    """The configuration in a MEMBERSHIP entry; raises BadMessage."""
    return Configuration(entry[1], *unpack_members(entry[0]))


class Membership(Reads):
    """Adding and removing members."""

    def __init__(self, *args: Any) -> None:
        self.change: asyncio.Future[Outcome] | None = None
        """Resolves the caller's request for a membership change; None when none is under way here."""
        self.change_index = 0
        """Index of the configuration entry that ends the change; 0 while a learner catches up."""
        self.joining: int | None = None
        self.round_target = 0
        self.round_started = 0.0
        self.change_deadline = 0.0
        super().__init__(*args)

    # The log's view.

    def note_configurations(self, entries: Sequence[Entry]) -> None:
        """Use every configuration as soon as it is in the log (Raft §6)."""
        membership = EntryKind.MEMBERSHIP
        changed = [entry for entry in entries if entry[0][0] == membership]
        if changed:
            self.configurations += [unpack_configuration(entry) for entry in changed]
            self._configuration_changed()

    def forget_configurations(self, index: int) -> None:
        """Entries from `index` on were deleted: the newest configuration left counts again."""
        count = len(self.configurations)
        while len(self.configurations) > 1 and self.configurations[-1].index >= index:
            self.configurations.pop()
        if len(self.configurations) != count:
            self._configuration_changed()

    def configuration_at(self, index: int) -> Configuration:
        """The members as of log index `index`, which is what a snapshot at that index must hold."""
        for configuration in reversed(self.configurations):
            if configuration.index <= index:
                return configuration
        return self.configurations[0]

    def compact_configurations(self, index: int) -> None:
        """Forget configurations that a snapshot at `index` makes history."""
        while len(self.configurations) > 1 and self.configurations[1].index <= index:
            self.configurations.pop(0)

    def _configuration_changed(self) -> None:
        self._note_members()
        if self.role != LEADER:
            return
        for peer in self.peers:
            if peer not in self.progress:
                self.progress[peer] = Progress(self.journal.last + 1)
        self.host.set_active(self, True)

    # Changing it.

    def add_member(self, node: int) -> asyncio.Future[Outcome]:
        """Add a node as a voter, after it caught up as a learner.

        Ends as Applied when the node is a voter (at once if it was), NotLeader or Overloaded when nothing
        was changed, Unknown when leadership was lost on the way: ask again, it goes on where it stood.
        """
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        rejection = self._refuses_change()
        if rejection is not None:
            future.set_result(rejection)
        elif node in self.voters:
            future.set_result(Applied(None, self.configuration.index, self.term))
        else:
            self.change, self.joining, self.change_index = future, node, 0
            if node not in self.configuration.learners:
                self._propose(self.voters, (*self.configuration.learners, node))
            self.change_deadline = self.host.now() + self.settings.catch_up_seconds
            self._start_round()
            self.host.set_active(self, True)
            self.host.wake(self)
        return future

    def remove_member(self, node: int) -> asyncio.Future[Outcome]:
        """Remove a voter or learner; a leader that removes itself steps down once that is committed."""
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        rejection = self._refuses_change()
        if rejection is not None:
            future.set_result(rejection)
        elif node not in self.configuration.members:
            future.set_result(Applied(None, self.configuration.index, self.term))
        elif self.voters == (node,):
            future.set_result(Overloaded(f"node {node} is the group's only voter and cannot be removed"))
        else:
            self.change, self.joining = future, None
            self.change_index = self._propose(
                [voter for voter in self.voters if voter != node],
                [learner for learner in self.configuration.learners if learner != node],
            )
        return future

    def members_held_without(self, node: int) -> bool:
        """Whether a majority of the voters, `node` not counted, have the newest configuration on their disks.

        To be asked before a node is left out whose promises are lost. A voter with an older configuration
        may need fewer votes, and what takes the node's place would give it one (docs/raft.md, "Folders").
        """
        held = zip(self.voters, self.matches(), strict=True)
        others = sum(voter != node and match >= self.configuration.index for voter, match in held)
        return others * 2 > len(self.voters) or node not in self.voters

    def _refuses_change(self) -> Outcome | None:
        if self.role != LEADER or self.failure is not None:
            return self.not_leader()
        if self.transfer_target is not None:
            return NotLeader(self.transfer_target, "leadership is being handed over")
        if self.change_under_way():
            return Overloaded("another membership change is under way: wait for it to end")
        return None

    def change_under_way(self) -> bool:
        """One change at a time, and none before this term has committed something (thesis §4.1 and its
        erratum of 2015): otherwise two majorities need not overlap."""
        return (
            self.change is not None or self.configuration.index > self.commit or self.commit < self.term_start
        )

    def _propose(self, voters: Sequence[int], learners: Sequence[int]) -> int:
        command = pack_members(voters, learners)
        index = self.append(command)
        self.note_configurations([(command, index, self.term)])
        return index

    def awaits_follower(self) -> bool:
        """A change or a transfer goes on when a follower gets further."""
        return self.joining is not None or self.transfer_target is not None

    def _start_round(self) -> None:
        self.round_target = self.journal.last
        self.round_started = self.host.now()

    def continue_change(self) -> None:
        """Promote the learner once a round of catching up was short enough (thesis §4.2.1)."""
        if self.joining is None or self.change_index:
            return
        if self.host.now() > self.change_deadline:
            seconds = self.settings.catch_up_seconds
            self._end_change(Unknown(f"node {self.joining} is a learner and not level after {seconds:.0f} s"))
            return
        progress = self.progress.get(self.joining)
        if progress is None or progress.match < self.round_target or self.configuration.index > self.commit:
            return
        if self.host.now() - self.round_started > self.settings.election_min_seconds:
            self._start_round()
            return
        node = self.joining
        learners = [learner for learner in self.configuration.learners if learner != node]
        self.change_index = self._propose((*self.voters, node), learners)

    def configuration_applied(self, index: int, term: int) -> None:
        """A configuration is committed: the change is over, and who is no member any more is let go."""
        if self.role != LEADER or index != self.configuration.index:
            return
        if self.change is not None and index == self.change_index:
            self._end_change(Applied(None, index, term))
        for peer in [peer for peer in self.progress if peer not in self.peers]:
            self.send_heartbeat(peer, self.progress[peer], self.host.now())
            self.end_quiet_towards(peer, self.progress[peer])
            self.end_snapshot(peer)
            del self.progress[peer]
        if self.host.node_id not in self.voters:
            self.step_down()

    def fail_membership_change(self) -> None:
        if self.change is not None:
            self._end_change(Unknown("leadership was lost during the membership change"))

    def _end_change(self, outcome: Outcome) -> None:
        change, self.change = self.change, None
        self.joining, self.change_index = None, 0
        if change is not None and not change.done():
            change.set_result(outcome)
