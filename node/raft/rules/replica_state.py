"""The state of one replica of one group, and what it needs of the node it runs on.

The rules stand beside, one module for each part of the Raft paper: elections, replication, reads,
membership, snapshots. Each is a layer over this class, and `RaftGroup` is the last of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Protocol

from strandline.node.raft.attention import Attention
from strandline.node.raft.campaigns import Campaigns
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.outcome import NotLeader, Outcome, Unknown
from strandline.node.raft.pysyncobj_seam import FOLLOWER, LEADER, SeamedSyncObj
from strandline.node.raft.rank import Rank
from strandline.node.raft.rules.messages import Message
from strandline.node.raft.rules.peer_heartbeat import Pair
from strandline.node.raft.rules.progress import NEVER, Progress
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.wal.raft_log import GroupJournal
from strandline.statemachine.machine import StateMachine


class SafetyViolation(RuntimeError):
    """Something happened that Raft rules out: this replica stops rather than act on it."""


class GroupHost(Protocol):
    """What a group needs of its node; all times are seconds of one clock that never goes backward."""

    node_id: int
    cluster_id: str
    config: RaftConfig
    rng: random.Random
    loop: asyncio.AbstractEventLoop
    snapshots: SnapshotStore
    attention: Attention
    campaigns: Campaigns
    time_gap: tuple[float, float]
    """Between which times the loop last did not run, or the clock jumped."""
    reading: dict[int, Any]
    """Groups with readers that wait for a round to be answered."""

    @property
    def newcomer(self) -> bool:
        """Whether this node's folder may have had a predecessor, and so neither votes nor counts."""

    def now(self) -> float: ...
    def attentive(self) -> float:
        """`now` on a clock that stands still while the loop does: deadlines for what must be heard."""

    def many(self) -> float:
        """Seconds to allow for what takes longer the more groups a node has."""

    def may_stand(self, group: Any) -> bool: ...
    def stood(self, group: Any) -> None: ...
    def offered(self, group: int) -> list[int]:
        """Peers that offered a pre-vote for this group's first leader before the group was here."""

    def connected(self, peer: int) -> bool: ...
    def is_newcomer(self, peer: int) -> bool: ...
    def pair(self, peer: int) -> Pair: ...
    def backlogged(self) -> bool: ...
    def disk_stalled(self) -> bool: ...
    def note_unwritten(self, size: int) -> None: ...
    def send(self, peer: int, message: Message) -> bool: ...
    def send_when_synced(self, peer: int, message: Message) -> None: ...
    def when_synced(self, callback: Callable[[], None]) -> None: ...
    def run_blocking(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None: ...
    def guard(self, group: Any, call: Callable[..., object], *args: Any) -> None: ...
    def later(self, seconds: float, group: Any, call: Callable[[], object]) -> None: ...
    def wake(self, group: Any) -> None: ...
    def set_active(self, group: Any, active: bool) -> None: ...


LeadershipCallback = Callable[[bool, int], None]


class Configuration:
    """The members at one point of the log (Raft §6): who votes, and who is only being brought up to date."""

    __slots__ = ("index", "learners", "voters")

    def __init__(self, index: int, voters: tuple[int, ...], learners: tuple[int, ...] = ()) -> None:
        self.index = index
        self.voters = tuple(sorted(voters))
        self.learners = tuple(sorted(learners))

    @property
    def members(self) -> tuple[int, ...]:
        return self.voters + self.learners


class GroupState(SeamedSyncObj):
    """One replica: its role and term, its log, its members, and those who wait for its answers."""

    def __init__(
        self,
        host: GroupHost,
        group_id: int,
        machine: StateMachine,
        journal: GroupJournal,
        configuration: Configuration,
        first_leader: int | None = None,
        rank: Rank = Rank.PARTITION,
    ) -> None:
        self.host = host
        self.rank = rank
        self.id = group_id
        self.machine = machine
        self.settings = host.config
        self.failure: Exception | None = None
        self.damaged_below: int | None = None
        """Set when the stored snapshot is bad: the state must come from a leader, from this index up."""
        self.configurations = [configuration]
        self.first_leader = first_leader
        """Who is to lead a group that never had a leader; every member names the same, or none."""
        self.progress: dict[int, Progress] = {}
        self.term_start = 0
        """Index of the first entry of the term this node leads."""
        self.leader_since = 0.0
        self.transfer_target: int | None = None
        self.transfer_deadline = 0.0
        self.lease_allowed = True
        self.quiet_under: int | None = None
        """The leader whose shared heartbeat stands for this group, at a follower."""
        self.waiting: dict[int, list[tuple[int, int, asyncio.Future[Outcome]]]] = {}
        self.waiting_bytes = 0
        self.lost_campaigns = 0
        """Elections in a row in which this node stood and nobody won, as far as it knows; at most 4."""
        self.heard_at = host.now() if journal.getCurrentTerm() else NEVER
        """When a leader was last heard. A restarted node cannot know, so it assumes: just now."""
        self._leadership_callbacks: list[LeadershipCallback] = []
        super().__init__(host.node_id, journal)
        self.reset_deadline()
        self._note_members()

    # Members.

    @property
    def configuration(self) -> Configuration:
        """The newest configuration in the log, committed or not (Raft §6)."""
        return self.configurations[-1]

    @property
    def voters(self) -> tuple[int, ...]:
        return self.configurations[-1].voters

    @property
    def peers(self) -> tuple[int, ...]:
        """Every other member, learners included."""
        me = self.host.node_id
        return tuple(node for node in self.configurations[-1].members if node != me)

    def _note_members(self) -> None:
        self.set_others(self.peers)

    # Timers.

    def reset_deadline(self) -> None:
        """Start a new randomized election timeout (Raft §5.2), of time in which this node listens."""
        self.deadline = self.host.attentive() + self._SyncObj__generateRaftTimeout() + self.host.many()

    def _SyncObj__generateRaftTimeout(self) -> float:
        low, high = self.settings.election_min_seconds, self.settings.election_max_seconds
        spread: float = (high - low) * 2 ** max(self.lost_campaigns - 1, 0)
        return low + spread * self.host.rng.random()

    # Roles and terms.

    def adopt_term(self, term: int) -> None:
        """See a higher term: take it, without a vote, as a follower (Raft §5.1)."""
        assert term > self.term
        self.step_down()
        self.set_term(term, None)
        self.leader = None

    def may_record_term(self) -> bool:
        """Whether a new term or vote has a place in the log.

        While the log cannot be written, one of each group may wait for it: terms go on rising elsewhere, for
        as long as the disk is full. What would bring another is dropped before anything changed, as if it
        was lost; its sender says it again.
        """
        return not (self.journal.state_waits and self.host.backlogged())

    def step_down(self) -> None:
        """Become a follower; what was proposed here ends soon, as applied, rejected or unknown."""
        self.leave_quiet()
        was_leader = self.role == LEADER
        if self.role != FOLLOWER:
            self.set_role(FOLLOWER)
        self.reset_deadline()
        self.host.set_active(self, True)
        self.host.stood(self)
        if was_leader:
            self.leader = None
            self._end_leadership()

    def _end_leadership(self) -> None:
        for peer, progress in self.progress.items():
            if progress.quiet_since is not None:
                self.host.pair(peer).unlead(self.id)
        self.progress.clear()
        self.transfer_target = None
        self.abandon_transfers()
        self.fail_readers()
        self.fail_membership_change()
        if self.waiting:
            term = self.term
            self.host.loop.call_later(self.settings.command_grace_seconds, self._give_up_waiting, term)
        self._tell_leadership(False)

    def _give_up_waiting(self, term: int) -> None:
        """End what a deposed leader could not learn the fate of."""
        for index in list(self.waiting):
            later = [entry for entry in self.waiting[index] if entry[0] > term]
            self.waiting[index] = [entry for entry in self.waiting[index] if entry[0] <= term]
            self.end_waiting(index, Unknown(f"lost leadership of term {term} before the command was applied"))
            if later:
                self.waiting[index] = later

    def end_waiting(self, index: int, outcome: Outcome) -> None:
        """Give everyone who waits for `index` the same outcome."""
        for _, size, future in self.waiting.pop(index, ()):
            self.waiting_bytes -= size
            if not future.done():
                future.set_result(outcome)

    def end_all_waiting(self, reason: str) -> None:
        """End every pending command as unknown: this replica is going away."""
        for index in list(self.waiting):
            self.end_waiting(index, Unknown(reason))
        self.fail_readers()
        self.fail_membership_change()

    def on_leadership(self, callback: LeadershipCallback) -> None:
        """Call `callback(leading, term)` whenever this node starts or stops leading the group."""
        self._leadership_callbacks.append(callback)

    def _tell_leadership(self, leading: bool) -> None:
        for callback in self._leadership_callbacks:
            callback(leading, self.term)

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads; only `barrier()` proves it."""
        return self.role == LEADER

    def not_leader(self) -> NotLeader:
        """The rejection for a request that only the leader may take."""
        return NotLeader(None if self.role == LEADER else self.leader)

    # Stopping.

    def stop(self, error: Exception | None, reason: str) -> None:
        """Take no further part; with an error, because this replica's state can no longer be trusted."""
        self.leave_quiet()
        if self.role != FOLLOWER:
            self.step_down()
        self.failure = error
        self.host.set_active(self, False)
        self.end_all_waiting(reason)

    # Declared here because one layer calls what another defines.

    def leave_quiet(self) -> None:
        raise NotImplementedError

    def abandon_transfers(self) -> None:
        raise NotImplementedError

    def fail_readers(self) -> None:
        raise NotImplementedError

    def fail_membership_change(self) -> None:
        raise NotImplementedError

    def become_leader(self) -> None:
        raise NotImplementedError
