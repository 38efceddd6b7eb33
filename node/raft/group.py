"""One replicated log: commands in, results out, in the same order on every replica.

A group is one state (`rules/replica_state.py`) and the rules as parts over it. This module puts the parts
together, and is what the rest of the node sees. `docs/raft.md` says which hole of PySyncObj each rule closes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.node.raft.configuration import Configuration
from strandline.node.raft.entries import EntryKind
from strandline.node.raft.log_keeping import LogKeeping
from strandline.node.raft.outcome import NotLeader, Outcome, Overloaded
from strandline.node.raft.pysyncobj_seam import FOLLOWER, LEADER
from strandline.node.raft.rank import Rank
from strandline.node.raft.rules.applying import Applying
from strandline.node.raft.rules.commitment import Commitment
from strandline.node.raft.rules.configuration_log import ConfigurationLog
from strandline.node.raft.rules.dispatch import Dispatch
from strandline.node.raft.rules.election import Election
from strandline.node.raft.rules.election_timeout import ElectionTimeout
from strandline.node.raft.rules.following import Following
from strandline.node.raft.rules.in_sync_replicas import InSyncReplicas
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.leader_tick import LeaderTick
from strandline.node.raft.rules.leadership_transfer import LeadershipTransfer
from strandline.node.raft.rules.lease import Lease
from strandline.node.raft.rules.membership_change import MembershipChange
from strandline.node.raft.rules.messages import Message
from strandline.node.raft.rules.peer_connections import PeerConnections
from strandline.node.raft.rules.pending_commands import PendingCommands
from strandline.node.raft.rules.pre_vote import PreVote
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.read_index import ReadIndex
from strandline.node.raft.rules.replica_state import ReplicaState
from strandline.node.raft.rules.replication import Replication
from strandline.node.raft.rules.roles import Roles
from strandline.node.raft.snapshots.host import SnapshotHost
from strandline.node.raft.snapshots.receiving import SnapshotReceiving
from strandline.node.raft.snapshots.sending import SnapshotSending
from strandline.node.raft.snapshots.taking import SnapshotTaking
from strandline.node.raft.wal.raft_log import RaftLog
from strandline.statemachine.machine import StateMachine

_REGULAR = bytes([EntryKind.REGULAR])


class RaftGroup(ReplicaState):
    """One replica of one group.

    The interface of the rest of the node: `replicate`, `barrier`, `term`, `leader`, `is_leader`,
    `is_ready`, `on_leadership`, `on_ready`, `transfer`, `add_member`, `remove_member`, `in_sync`,
    `when_held`, `status`.
    """

    # The classes of its parts, so that a simulation can take a rule out of one.
    applying_class = Applying
    commands_class = PendingCommands
    commitment_class = Commitment
    configuration_log_class = ConfigurationLog
    connections_class = PeerConnections
    contact_class = LeaderContact
    dispatch_class = Dispatch
    election_class = Election
    following_class = Following
    isr_class = InSyncReplicas
    leader_tick_class = LeaderTick
    lease_class = Lease
    membership_change_class = MembershipChange
    pre_vote_class = PreVote
    quiescence_class = Quiescence
    reads_class = ReadIndex
    receiving_class = SnapshotReceiving
    replication_class = Replication
    roles_class = Roles
    sending_class = SnapshotSending
    taking_class = SnapshotTaking
    timeouts_class = ElectionTimeout
    transfer_class = LeadershipTransfer

    def __init__(
        self,
        host: SnapshotHost,
        group_id: int,
        machine: StateMachine,
        journal: RaftLog,
        configuration: Configuration,
        first_leader: int | None = None,
        rank: Rank = Rank.PARTITION,
        earlier_terms: int = 0,
    ) -> None:
        super().__init__(host, group_id, machine, journal, configuration, first_leader, rank, earlier_terms)
        store = host.snapshots
        # From the bottom up: each part is given those it calls.
        self.configuration_log = self.configuration_log_class(self)
        self.commands = self.commands_class(self)
        self.contact = self.contact_class(self)
        self.lease = self.lease_class(self)
        self.commitment = self.commitment_class(self)
        self.isr = self.isr_class(self, self.lease, self.commitment)
        self.leadership_transfer = self.transfer_class(self, self.lease)
        self.quiescence = self.quiescence_class(self, self.contact, self.lease)
        self.roles = self.roles_class(self, self.quiescence)
        self.taking = self.taking_class(self, store, self.configuration_log)
        self.sending = self.sending_class(self, store, self.taking, self.quiescence)
        self.replication = self.replication_class(self, self.quiescence, self.isr, self.sending)
        self.following = self.following_class(self, self.contact, self.quiescence, self.configuration_log)
        self.reads = self.reads_class(self, self.lease, self.replication)
        self.receiving = self.receiving_class(
            self, store, self.contact, self.quiescence, self.configuration_log,
            self.commands, self.reads, self.taking,
        )  # fmt: skip
        self.membership_change = self.membership_change_class(
            self, self.configuration_log, self.commitment, self.roles,
            self.quiescence, self.replication, self.sending,
        )  # fmt: skip
        self.election = self.election_class(self, self.contact, self.roles, self.quiescence)
        self.pre_vote = self.pre_vote_class(self, self.contact, self.election)
        self.timeouts = self.timeouts_class(self, self.contact, self.quiescence, self.election, self.pre_vote)
        self.leader_tick = self.leader_tick_class(
            self, self.lease, self.roles, self.leadership_transfer, self.membership_change,
            self.quiescence, self.replication, self.sending,
        )  # fmt: skip
        self.connections = self.connections_class(
            self, self.quiescence, self.sending, self.isr, self.timeouts
        )
        self.applying = self.applying_class(
            self, self.commands, self.reads, self.membership_change, self.taking
        )
        self.log_keeping = LogKeeping(self, journal, self.taking)
        self.dispatch = self.dispatch_class(
            self, self.roles, self.election, self.pre_vote, self.replication, self.following,
            self.reads, self.quiescence, self.connections, self.sending, self.receiving,
            self.leadership_transfer,
        )  # fmt: skip
        self.roles.leadership_ends = (
            self.sending.abandon,
            self.reads.fail,
            self.isr.give_up,
            self.membership_change.fail,
            self.commands.leadership_lost,
        )

    # Commands, reads, and changes of leadership and members.

    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        """Replicate `command` if this node leads in `term`; the future always ends.

        Applied: committed and applied here. NotLeader, Overloaded: never applied, now or later. Unknown:
        leadership was lost first, and the command may yet be applied. Raises ValueError for a command over
        `max_entry_bytes`. Nothing is forwarded, and nothing queues while there is no leader.
        """
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        size = len(command)
        if size > self.settings.max_entry_bytes:
            raise ValueError(
                f"command of {size} bytes is over max_entry_bytes, {self.settings.max_entry_bytes}: split it"
            )
        if self.role != LEADER or term != self.term or self.failure is not None:
            future.set_result(self.not_leader())
        elif self.transfer_target is not None:
            future.set_result(NotLeader(self.transfer_target, "leadership is being handed over"))
        elif self.overloaded(size):
            future.set_result(Overloaded("too many commands wait for this group or its disk"))
        else:
            index = self.append(_REGULAR + command)
            waiting = self.waiting.get(index)
            if waiting is None:
                self.waiting[index] = [(term, size, future)]
            else:
                waiting.append((term, size, future))
            self.waiting_bytes += size
        return future

    def overloaded(self, size: int = 0) -> bool:
        """Whether a command of this many bytes would be refused now: too much waits, or the disk is full."""
        return (
            len(self.waiting) >= self.settings.max_pending_commands
            or self.waiting_bytes + size > self.settings.max_pending_bytes
            or self.host.backlogged()
        )

    def tell_commit(self) -> None:
        """Have the followers apply at once what is committed; see Replication.tell_commit."""
        if self.role == LEADER and self.failure is None:
            self.replication.tell_commit()

    async def barrier(self) -> Outcome:
        """Wait until a read of the machine on this node is linearizable; see ReadIndex.barrier."""
        return await self.reads.barrier()

    @property
    def leads_for_sure(self) -> bool:
        """Whether this node leads, by its lease, and has applied all that was committed before; see Lease.

        False where that takes a round of messages to know: `barrier` asks.
        """
        return self.is_ready and self.applied >= self.commit and self.failure is None and self.lease.holds()

    def transfer(self, target: int | None = None) -> bool:
        """Hand leadership to `target`, or to the most caught-up voter; see LeadershipTransfer.begin."""
        return self.leadership_transfer.begin(target)

    def keeps_up(self, peer: int) -> bool:
        """Whether a follower could take over at once: it lacks little if anything."""
        return self.leadership_transfer.keeps_up(peer)

    def add_member(self, node: int) -> asyncio.Future[Outcome]:
        """Add a node as a voter, after it caught up as a learner; see MembershipChange.add_member."""
        return self.membership_change.add_member(node)

    def add_learner(self, node: int) -> asyncio.Future[Outcome]:
        """Have a node follow without a vote; see MembershipChange.add_learner."""
        return self.membership_change.add_learner(node)

    def remove_member(self, node: int) -> asyncio.Future[Outcome]:
        """Remove a voter or learner; see MembershipChange.remove_member."""
        return self.membership_change.remove_member(node)

    def members_held_without(self, node: int) -> bool:
        """Whether most voters but `node` hold the newest configuration; see MembershipChange."""
        return self.membership_change.members_held_without(node)

    def in_sync(self) -> int:
        """Number of voters, this one included, that answer and have nearly all committed entries."""
        return self.isr.count()

    def behind(self) -> list[int]:
        """The other voters that are not in sync, where this node leads."""
        return self.isr.behind()

    def when_held(self, index: int, count: int) -> asyncio.Future[bool]:
        """Resolves to True once `count` voters hold entry `index`; see InSyncReplicas.when_held."""
        return self.isr.when_held(index, count)

    # What the host calls.

    def work(self) -> None:
        """Write, send, answer, commit and apply what this turn brought; called once a turn by the host."""
        if self.failure is not None:
            return
        self.journal.write()
        if self.role == LEADER:
            self.membership_change.advance()
            self.journal.write()
            self.replication.pump()
            self.commitment.advance()
        else:
            self.following.send_ack()
        self.applying.run()
        if self.transfer_target is not None and self.role == LEADER:
            self.leadership_transfer.advance()

    def on_synced(self, lsn: int) -> None:
        """Everything this group recorded up to `lsn` is durable."""
        self.journal.on_synced(lsn)
        if self.role == LEADER:
            self.host.wake(self)
            self.isr.release()

    def tick(self, now: float) -> None:
        """Let time pass; called by the host while the group is active."""
        if self.failure is not None:
            return
        if self.role == LEADER:
            self.leader_tick.run(now)
        else:
            self.timeouts.tick()

    def receive(self, peer: int, message: Message) -> None:
        """Act on one message of a peer."""
        self.dispatch.step(peer, message)

    def stop(self, error: Exception | None, reason: str) -> None:
        """Take no further part; with an error, because this replica's state can no longer be trusted."""
        self.quiescence.leave()
        if self.role != FOLLOWER:
            self.roles.step_down()
        self.failure = error
        self.host.set_active(self, False)
        self.commands.end_all(reason)
        self.reads.fail()
        self.isr.give_up()
        self.membership_change.fail()

    # Looking at it.

    def status(self) -> dict[str, Any]:
        """State of this replica for an operator, as plain values."""
        return {
            "group": self.id,
            "kind": self.machine.kind,
            "role": "leader" if self.role == LEADER else "follower" if self.role == FOLLOWER else "candidate",
            "term": self.term,
            "leader": self.leader,
            "voters": list(self.voters),
            "learners": list(self.configuration.learners),
            "commit": self.commit,
            "applied": self.applied,
            "last": self.journal.last,
            "synced": self.journal.synced,
            "log_start": self.journal.base,
            "snapshot": self.snapshot_index,
            "quiet": self.quiesced_under is not None,
            "needs_snapshot_from": self.damaged_below,
            "failure": None if self.failure is None else str(self.failure),
            "followers": {
                peer: {"match": progress.match, "next": progress.next, "phase": progress.phase.value}
                for peer, progress in self.progress.items()
            },
            "lost_acknowledged": sorted(self.lost_acknowledged),
        }
