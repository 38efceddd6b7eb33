"""The state of one replica of one group. The rules are parts over it, one for each part of the Raft paper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from strandline.node.raft.configuration import Configuration
from strandline.node.raft.entries import PACKING_BYTES
from strandline.node.raft.log import Log
from strandline.node.raft.outcome import NotLeader, Outcome
from strandline.node.raft.pysyncobj_seam import LEADER, SeamedSyncObj
from strandline.node.raft.rank import Rank
from strandline.node.raft.rules.group_host import GroupHost
from strandline.node.raft.rules.progress import NEVER, Progress
from strandline.statemachine.machine import StateMachine


class SafetyViolation(RuntimeError):
    """Something happened that Raft rules out: this replica stops rather than act on it."""


LeadershipCallback = Callable[[bool, int], None]
ReadyCallback = Callable[[int], None]


class ReplicaState(SeamedSyncObj):
    """One replica: its role and term, its log, its members, and the requests that wait for its answers.

    PySyncObj keeps `role`, `term`, `vote`, `leader`, `commit`, `applied`, `journal` and `deadline`.
    """

    def __init__(
        self,
        host: GroupHost,
        group_id: int,
        machine: StateMachine,
        journal: Log,
        configuration: Configuration,
        first_leader: int | None = None,
        rank: Rank = Rank.PARTITION,
        earlier_terms: int = 0,
    ) -> None:
        self.host = host
        self.rank = rank
        self.id = group_id
        self.machine = machine
        self.settings = host.config
        self.failure: Exception | None = None
        self.damaged_below: int | None = None
        """Set when the stored snapshot is bad: the state must come from a leader, from this index up."""
        self.committed_before: int | None = None
        """Highest index that an earlier process, folder or replica of this node may have applied; None until
        it is known. It is the leader's commit index when a leader was first known to be ready, or the first
        entry of the first term that was led here: either leader has all that was committed before (leader
        completeness, Raft §5.4.3)."""

        self.configurations = [configuration]
        """Those in the log, the snapshot's first; kept by ConfigurationLog."""
        self.first_leader = first_leader
        """Node that is to lead a group that never had a leader; every member names the same, or none."""
        self.earlier_terms = earlier_terms
        """Terms up to this one are not this group's: this node is elected in higher ones only."""

        # A leader's.
        self.progress: dict[int, Progress] = {}
        self.term_start = 0
        """Index of the first entry of the term this node leads."""
        self.leader_since = 0.0
        self.lease_allowed = True
        self.transfer_target: int | None = None
        self.transfer_deadline = 0.0
        self.change: asyncio.Future[Outcome] | None = None
        """Resolves the caller's request for a membership change; None when none is under way here."""
        self.joining: int | None = None
        """The learner that is to become a voter."""
        self.readers: list[tuple[float, int, asyncio.Future[Outcome]]] = []
        """(asked at, read index, future), waiting for the leader to be confirmed, in order. A list: an
        empty deque takes 0.7 kB, and most groups of a node are idle."""
        self.waiting: dict[int, list[tuple[int, int, asyncio.Future[Outcome]]]] = {}
        """By log index, (term, size, future) of the commands that were put there."""
        self.waiting_bytes = 0
        self.lost_acknowledged: set[int] = set()
        """Followers that no longer hold entries they acknowledged: their folder is an older copy, or their
        disk lost what was synced. A snapshot makes it good, once the log begins above what they hold."""

        # A candidate's, and of those that may become one.
        self.votes: set[int] = set()
        self.pre_votes: set[int] | None = None
        """Nodes that would vote for this node (its pre-votes); None while it does not ask for them."""
        self.pre_votes_asked_at = NEVER
        """Start time of the newest round of pre-votes. It names the round, and every answer carries it."""
        self.denials = 0
        """Denied rounds of pre-votes since a leader was known, after which this node asked again early."""
        self.denied_at = NEVER
        """Start time of the newest of these rounds."""
        self.lost_campaigns = 0
        """Consecutive elections in which this node stood and, as far as it knows, no node won; at most 4."""

        # A follower's.
        self.quiesced_under: int | None = None
        """The leader whose shared heartbeat covers this group, at a follower."""
        self.heard_at = host.now() if journal.getCurrentTerm() else NEVER
        """When a leader was last heard. A restarted node cannot know, so it assumes: just now."""

        # What is applied, and what of it a snapshot holds.
        self.idle_since = 0.0
        self.snapshot_index = 0
        """Index of the newest durable snapshot on this node; 0 for none."""
        self.snapshot_term = 0
        self.snapshot_members = Configuration(0, ())
        self.bytes_since_snapshot = 0

        self._leadership_callbacks: list[LeadershipCallback] = []
        self._ready_callbacks: list[ReadyCallback] = []
        super().__init__(host.node_id, journal)
        self.reset_deadline()
        self.note_members()

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

    def other_voters(self) -> list[int]:
        me = self.host.node_id
        return [node for node in self.voters if node != me]

    def counts(self, peer: int) -> bool:
        """Whether a peer's word is that of the member with its id: it has a vote, and it is not another data
        folder under the same id, which has none of the member's promises."""
        return not self.host.is_newcomer(peer) and self.is_member(peer)

    def is_member(self, peer: int) -> bool:
        """Whether a peer has the data folder that the newest members name for its id, if they name one."""
        named = self.configurations[-1].named.get(peer)
        return named is None or self.host.folder_of(peer) in (0, named)

    def has_majority(self, nodes: set[int]) -> bool:
        """Whether a majority of the voters is among `nodes`."""
        voters = self.voters
        return sum(1 for node in voters if node in nodes and self.counts(node)) * 2 > len(voters)

    def note_members(self) -> None:
        self.set_others(self.peers)

    # Timers.

    def reset_deadline(self) -> None:
        """Start a new randomized election timeout (Raft §5.2), of time in which this node listens."""
        self.deadline = (
            self.host.attentive() + self._SyncObj__generateRaftTimeout() + self.host.crowd_seconds()
        )

    def _SyncObj__generateRaftTimeout(self) -> float:
        low, high = self.settings.election_min_seconds, self.settings.election_max_seconds
        spread: float = (high - low) * 2 ** max(self.lost_campaigns - 1, 0)
        return low + spread * self.host.rng.random()

    # The log.

    def append(self, command: bytes) -> int:
        """Add one entry to the leader's own log (leaders only ever append, Raft §5.3); its index."""
        index = self.journal.last + 1
        self.journal.add(command, index, self.term)
        self.host.appended(self, len(command) + PACKING_BYTES)
        return index

    def may_record_term(self) -> bool:
        """Whether a new term or vote has a place in the log.

        While the log cannot be written, one of each group may wait for it: terms go on rising elsewhere, for
        as long as the disk is full. A message that would bring another is dropped before it changes anything,
        as if it was lost; its sender repeats it.
        """
        return not (self.journal.state_waits and self.host.backlogged())

    def run_blocking(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run a disk job off the loop; an exception of `done` stops this replica alone."""
        self.host.run_blocking(job, partial(self.host.guard, self, done))

    # Leadership, as the rest of the node sees it.

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads; only `barrier()` proves it."""
        return self.role == LEADER

    @property
    def is_ready(self) -> bool:
        """Whether this node believes that it leads, and has applied all of earlier terms.

        It has once its own term's first entry is applied (Raft §8). Until then it cannot judge a command.
        """
        return self.role == LEADER and self.applied >= self.term_start

    @property
    def ready_leader(self) -> int | None:
        """The leader of this term, once it is known here to be ready: this node, or another of which this
        replica has heard that it committed an entry of its own term."""
        if self.role == LEADER:
            return self.host.node_id if self.is_ready else None
        return self.leader if self.journal.term_at(self.commit) == self.term else None

    def not_leader(self) -> NotLeader:
        """The rejection for a request that only the leader may take."""
        return NotLeader(None if self.role == LEADER else self.leader)

    def on_leadership(self, callback: LeadershipCallback) -> None:
        """Call `callback(leading, term)` whenever this node starts or stops leading the group."""
        self._leadership_callbacks.append(callback)

    def tell_leadership(self, leading: bool) -> None:
        for callback in self._leadership_callbacks:
            callback(leading, self.term)

    def on_ready(self, callback: ReadyCallback) -> None:
        """Call `callback(term)` whenever `is_ready` becomes true."""
        self._ready_callbacks.append(callback)

    def tell_ready(self) -> None:
        for callback in self._ready_callbacks:
            callback(self.term)


class Part:
    """Rules over one replica's state."""

    __slots__ = ("host", "journal", "settings", "state")

    def __init__(self, state: ReplicaState) -> None:
        self.state = state
        self.journal = state.journal
        self.host = state.host
        self.settings = state.settings
