"""Production replicas whose time, disk and network a test moves by hand.

So a scenario reads like a transcript of what one replica was told, and what it answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, cast

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.configuration import Configuration
from strandline.node.raft.entries import Entry, EntryKind, pack_entries, pack_members
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Outcome
from strandline.node.raft.pysyncobj_seam import CANDIDATE, FOLLOWER, LEADER
from strandline.node.raft.rules.messages import Message, MessageKind, decode
from strandline.node.raft.snapshots.host import SnapshotHost
from strandline.node.raft.wal.raft_log import RaftLog
from strandline.node.raft.wal.recovered_log import RecoveredLog
from strandline.snapshot.document import SnapshotDocument
from tests.raft.fake_host import CLUSTER, FakeHost, Sent
from tests.raft.register_map import RegisterMap, set_register
from tests.runtime.manual_loop import ManualLoop, manual_loop
from tests.simulation.disk import SimDisk

GROUP = 7
CONFIG = RaftConfig()
ROLES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}


def entry(index: int, term: int, command: bytes | None = None) -> Entry:
    """A log entry; its command sets register "x" to the index."""
    return (
        bytes([EntryKind.REGULAR]) + (command or set_register(index * 1000 + term, "x", index)),
        index,
        term,
    )


def membership(index: int, term: int, voters: Sequence[int], learners: Sequence[int] = ()) -> Entry:
    return (pack_members(voters, learners), index, term)


def entries_after(index: int, terms: Iterable[int]) -> list[Entry]:
    return [entry(at, term) for at, term in enumerate(terms, index + 1)]


def message_of(kind: MessageKind, term: int, *fields: Any) -> Message:
    """A message as it comes in: `fields` are those after group, kind and term."""
    return decode([GROUP, int(kind), term, *fields])


class Replica:
    """One replica of one group. `terms` are those of its log's entries 1, 2, 3 …, all durable."""

    def __init__(
        self,
        node: int = 1,
        voters: tuple[int, ...] = (1, 2, 3),
        terms: Sequence[int] = (),
        *,
        term: int | None = None,
        vote: int | None = None,
        learners: tuple[int, ...] = (),
        group_class: type[RaftGroup] = RaftGroup,
        config: RaftConfig = CONFIG,
        loop: ManualLoop | None = None,
        log: Sequence[Entry] | None = None,
    ) -> None:
        self.node = node
        self.group_class = group_class
        self.host = FakeHost(node, loop or manual_loop(), config, SimDisk(random.Random(0)))
        entries = entries_after(0, terms) if log is None else list(log)
        term = term if term is not None else entries[-1][2] if entries else 0
        recovered = RecoveredLog(GROUP)
        journal = RaftLog(self.host.record, recovered, config.max_append_bytes)
        journal.reset(0, 0, voters, learners)
        if entries:
            journal.extend(entries, None)
        journal.setCurrentTerm(term, vote)
        self.host.synced_lsn = len(self.host.records)
        self._open()

    def _open(self, document: SnapshotDocument | None = None) -> None:
        recovered = RecoveredLog(GROUP)
        for record in self.host.records:
            recovered.replay(*record)
        recovered.finish()
        self.machine = RegisterMap()
        if document is not None:
            self.machine.restore(document.state)
        journal = RaftLog(self.host.record, recovered, self.host.config.max_append_bytes)
        base = Configuration(recovered.entries[0][1], recovered.voters, recovered.learners, recovered.folders)
        self.group = self.group_class(cast(SnapshotHost, self.host), GROUP, self.machine, journal, base)
        self.host.group = self.host.groups[GROUP] = self.group
        members = [e for e in recovered.entries[1:] if e[0][0] == EntryKind.MEMBERSHIP]
        self.group.configuration_log.note(members)
        if document is not None:
            self.group.taking.remember(document)

    def restart(self) -> None:
        """kill -9 and a power cut: only what was synced is left."""
        before = self.host
        del before.records[before.synced_lsn :]
        self.host = FakeHost(self.node, before.loop, before.config, before.disk)
        self.host.records = before.records
        self.host.synced_lsn = len(before.records)
        stored = self.host.snapshots.indices().get(GROUP, [])
        self._open(self.host.snapshots.load(GROUP, stored[-1]) if stored else None)

    # What happens to it.

    def install(self, document: SnapshotDocument) -> None:
        """A snapshot has arrived, and its state was read."""
        receiving = self.group.receiving
        receiving.install(document, receiving.read(document))

    def turn(self) -> None:
        """The end of a loop turn, before its sync."""
        self.host.loop.run()
        self.group.work()

    def sync(self) -> None:
        """A turn, the sync of all that is recorded, and the turn after it."""
        self.turn()
        self.host.sync()
        self.turn()

    def tick(self) -> None:
        self.group.tick(self.host.now())

    def advance(self, seconds: float) -> None:
        self.host.loop.advance(seconds)

    def time_out(self) -> None:
        """No leader is heard until the election timeout."""
        self.host.loop.advance(max(0.0, self.group.deadline - self.host.attentive()))
        self.tick()

    def told(self, peer: int, kind: MessageKind, term: int, *fields: Any) -> list[Sent]:
        """A message arrives; what the replica says before anything is synced."""
        self.take()
        self.group.receive(peer, message_of(kind, term, *fields))
        self.turn()
        return self.take()

    def append(
        self,
        peer: int,
        term: int,
        previous: tuple[int, int],
        terms: Sequence[int] = (),
        *,
        commit: int = 0,
        log: Sequence[Entry] | None = None,
        sent_at: float = 0.0,
    ) -> list[Sent]:
        """An append message with entries after `previous` (index, term) arrives."""
        entries = entries_after(previous[0], terms) if log is None else list(log)
        packed = pack_entries(entries) if entries else b""
        return self.told(peer, MessageKind.APPEND, term, *previous, commit, packed, sent_at)

    def acknowledge(
        self, peer: int, index: int, *, term: int | None = None, sent_at: float | None = None
    ) -> None:
        """A follower says that its log matches up to `index`."""
        now = self.host.now() if sent_at is None else sent_at
        at = self.group.term if term is None else term
        self.group.receive(peer, message_of(MessageKind.APPEND_REPLY, at, True, index, 0, 0, now))
        self.turn()

    def propose(self, number: int = 1, value: Any = "v", key: str = "x") -> asyncio.Future[Outcome]:
        return self.group.replicate(set_register(number, key, value), self.group.term)

    def read(self) -> Reading:
        return Reading(self.group.barrier(), self)

    # Shortcuts.

    def stand(self) -> int:
        """Time out and win the pre-vote: a candidate with a durable vote for itself; its term."""
        self.time_out()
        for peer in self.group.other_voters():
            if self.group.role != CANDIDATE:
                self.pre_vote_from(peer)
        self.sync()
        return self.group.term

    def pre_vote_from(self, peer: int) -> None:
        """A voter would vote for this replica: its answer to the round of pre-votes under way arrives."""
        term, asked_at = self.group.term, self.group.pre_votes_asked_at
        self.group.receive(peer, message_of(MessageKind.PRE_VOTE_REPLY, term, True, term + 1, asked_at))

    def lead(self) -> int:
        """Win an election; the entry that begins the term is written but not synced. Returns the term."""
        term = self.stand()
        for peer in self.group.other_voters():
            if self.group.role != LEADER:
                self.group.receive(peer, message_of(MessageKind.VOTE_REPLY, term, True))
        assert self.role == "leader"
        self.turn()
        return term

    def establish(self) -> int:
        """Lead, with the term's first entry committed: every other voter has the whole log."""
        term = self.lead()
        self.sync()
        for peer in self.group.other_voters():
            self.acknowledge(peer, self.group.journal.last)
        assert self.group.commit == self.group.journal.last
        self.take()
        return term

    # What it says and what it is.

    def take(self, *kinds: MessageKind) -> list[Sent]:
        """What was sent since the last call, of these kinds or all."""
        taken, self.host.sent = self.host.sent, []
        return [message for message in taken if not kinds or message.kind in kinds]

    @property
    def role(self) -> str:
        return ROLES[self.group.role]

    @property
    def terms(self) -> list[int]:
        """Terms of the entries in memory."""
        return [term for _, _, term in self.group.journal.after(self.group.journal.base)]

    @property
    def durable_terms(self) -> list[int]:
        """Terms of the entries that a crash would leave."""
        recovered = RecoveredLog(GROUP)
        for record in self.host.records[: self.host.synced_lsn]:
            recovered.replay(*record)
        return [term for _, _, term in recovered.entries[1:]]


class Reading:
    """A `barrier()` under way."""

    def __init__(self, barrier: Coroutine[Any, Any, Outcome], replica: Replica) -> None:
        self._barrier = barrier
        self._replica = replica
        self._waits_for: asyncio.Future[Any] | None = None
        self.outcome: Outcome | None = None
        self.step()

    def step(self) -> Outcome | None:
        """Go on if it can; the outcome once there is one."""
        self._replica.turn()
        if self.outcome is None and (self._waits_for is None or self._waits_for.done()):
            try:
                self._waits_for = self._barrier.send(None)
            except StopIteration as end:
                self.outcome = end.value
        return self.outcome


class Cluster:
    """A few replicas on one clock; messages travel in `settle()`, between those that are not cut off."""

    def __init__(
        self,
        voters: tuple[int, ...] = (1, 2, 3),
        *,
        logs: Mapping[int, Sequence[int]] | None = None,
        group_class: type[RaftGroup] = RaftGroup,
        config: RaftConfig = CONFIG,
        others: Sequence[int] = (),
    ) -> None:
        self.loop = manual_loop()
        self.replicas = {
            node: Replica(
                node,
                voters if node in voters else (),
                (logs or {}).get(node, ()),
                group_class=group_class,
                config=config,
                loop=self.loop,
            )
            for node in (*voters, *others)
        }
        self.slow_disks: set[int] = set()
        """Nodes whose disk does not finish a sync."""
        self.mute: set[int] = set()
        """Nodes to and from which everything is lost though the connections stand."""

    def __getitem__(self, node: int) -> Replica:
        return self.replicas[node]

    def cut(self, *nodes: int) -> None:
        """No message comes to or from these nodes."""
        for node, replica in self.replicas.items():
            away = set(self.replicas) - {node} if node in nodes else set(nodes)
            for peer in sorted(away - replica.host.away):
                replica.host.away.add(peer)
                replica.group.connections.on_disconnect(peer)

    def heal(self) -> None:
        for replica in self.replicas.values():
            back = sorted(replica.host.away)
            replica.host.away.clear()
            for peer in back:
                replica.group.connections.on_connect(peer)

    def settle(self, rounds: int = 1000) -> None:
        """Turns, syncs, disk jobs and messages until nothing more happens."""
        for _ in range(rounds):
            busy = False
            for node, replica in self.replicas.items():
                host = replica.host
                busy |= host.awake or bool(host.jobs)
                host.awake = False
                replica.turn()
                host.run_jobs()
                if node not in self.slow_disks and host.unsynced:
                    busy = True
                    host.sync()
            for node, replica in self.replicas.items():
                for message in replica.take():
                    busy = True
                    target = self.replicas[message.peer]
                    if node not in target.host.away and not self.mute & {node, message.peer}:
                        told = message_of(message.kind, message.term, *message.fields)
                        target.group.receive(node, told)
                frames, replica.host.mesh.frames = replica.host.mesh.frames, []
                for peer, payload in frames:
                    busy = True
                    if node not in self.replicas[peer].host.away and not self.mute & {node, peer}:
                        self.replicas[peer].host.heartbeats.on_frame(node, payload)
            if not busy:
                return
        raise AssertionError("the replicas never come to rest")

    def advance(self, seconds: float) -> None:
        """Time passes for all, in steps of half a heartbeat."""
        config = self.replicas[next(iter(self.replicas))].host.config
        until = self.loop.now + seconds
        while self.loop.now < until - 1e-9:
            self.loop.advance(min(config.heartbeat_seconds / 2, until - self.loop.now))
            for replica in self.replicas.values():
                replica.host.heartbeats.tick(self.loop.now)
                if replica.host.active:
                    replica.tick()
            self.settle()

    def elect(self, node: int) -> None:
        """Make this node the leader: for long enough nobody hears another, and it times out first."""
        self.loop.advance(CONFIG.election_min_seconds)
        for other in self.replicas.values():
            if other.role == "leader" and other.node != node:
                other.group.roles.step_down()
            other.group.deadline = self.loop.now + CONFIG.election_max_seconds
        replica = self[node]
        replica.group.deadline = self.loop.now
        replica.tick()
        self.settle()
        assert replica.role == "leader", replica.group.status()

    @property
    def leaders(self) -> list[int]:
        return [node for node, replica in self.replicas.items() if replica.role == "leader"]


def state_at(index: int, term: int = 1) -> SnapshotDocument:
    """The snapshot of a replica that applied entries 1 to `index`."""
    machine = RegisterMap()
    for at in range(1, index + 1):
        machine.apply(at, term, set_register(at * 1000 + term, "x", at))
    return SnapshotDocument(CLUSTER, machine.kind, GROUP, index, term, (1, 2, 3), (), machine.snapshot())
