"""The truth about every group, gathered from all its replicas, and the rules that no run may break.

The ledger is told of every turn of every replica (watch.py calls it). It compares what it is told with all
that it was told before, so each rule costs work for what is new only. A broken rule is a `Finding`; it is
recorded, not raised, because production code rightly treats an exception as its own and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from strandline.node.raft.configuration import Configuration, unpack_configuration
from strandline.node.raft.entries import Entry, EntryKind
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.log import Log
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.snapshot.document import SnapshotDocument
from tests.simulation.log.records import GroupLedger, Replica
from tests.simulation.report import Finding


class Ledger:
    """All groups. `now` gives virtual seconds, `replica_on` the replica of (node, group) if that node is up
    with the disk that it had as a member; `stop` is called at a finding."""

    def __init__(
        self,
        now: Callable[[], float],
        stop: Callable[[], None],
        replica_on: Callable[[int, int], RaftGroup | None],
    ) -> None:
        self.findings: list[Finding] = []
        self.groups: dict[int, GroupLedger] = {}
        self.elections = 0
        self.snapshots_installed = 0
        self.on_leader: Callable[[int, int], None] = lambda node, group_id: None
        """Called with whoever begins to lead."""

        self.leased: Callable[[int, int], int | None] = lambda node, group_id: None
        """The term in which the replica of (node, group) would answer a read without asking anybody."""

        self._now = now
        self._stop = stop
        self._replica_on = replica_on

    def add_group(self, group_id: int, voters: tuple[int, ...]) -> None:
        self.groups[group_id] = GroupLedger(group_id, voters, configurations=[Configuration(0, voters)])

    def broken(self, check: str, text: str) -> None:
        """Record that a rule was broken."""
        if len(self.findings) < 20:
            self.findings.append(Finding(check, self._now(), text))
        self._stop()

    def replica(self, node: int, group_id: int) -> Replica:
        replicas = self.groups[group_id].replicas
        if node not in replicas:
            replicas[node] = Replica()
        return replicas[node]

    def forget_replica(self, node: int, group_id: int) -> None:
        """The replica was removed, or its disk replaced, on purpose."""
        group = self.groups[group_id]
        group.replicas.pop(node, None)
        for key in [key for key in group.votes if key[0] == node]:
            del group.votes[key]

    # What a node tells others.

    def tells_term(self, node: int, group_id: int, term: int) -> None:
        replica = self.replica(node, group_id)
        if term > replica.told_term:
            replica.told_term = term

    def votes(self, node: int, group_id: int, term: int, candidate: int) -> None:
        known = self.groups[group_id].votes.setdefault((node, term), candidate)
        if known != candidate:
            self.broken(
                "one vote a term",
                f"group {group_id}: node {node} votes for {known} and for {candidate} in term {term}",
            )

    def acknowledges(self, group: RaftGroup, node: int, index: int) -> None:
        replica = self.replica(node, group.id)
        term = group.journal.term_at(index)
        if term is not None and (replica.acked is None or index > replica.acked[0]):
            replica.acked = (index, term)

    # A replica begins.

    def opened(self, group: RaftGroup, node: int, boot: int) -> None:
        """A replica was made from what its disk holds: nothing that it told of may be missing."""
        replica = self.replica(node, group.id)
        journal = group.journal
        if group.term < replica.told_term:
            self.broken(
                "durable term",
                f"group {group.id}: node {node} told of term {replica.told_term} and has {group.term} now",
            )
        voted = self.groups[group.id].votes.get((node, group.term))
        if voted is not None and group.vote != voted:
            self.broken(
                "durable vote",
                f"group {group.id}: node {node} voted for {voted} in term {group.term}, its log has"
                f" {group.vote}",
            )
        if replica.acked is not None:
            index, term = replica.acked
            if journal.last < index or (index >= journal.base and journal.term_at(index) != term):
                self.broken(
                    "durable acknowledgement",
                    f"group {group.id}: node {node} acknowledged entry {index} of term {term}, its log has"
                    f" {journal.base} to {journal.last}, there {journal.term_at(index)}",
                )
        replica.scanned = (journal.base, journal.base_term)
        replica.base = journal.base
        replica.memberships.clear()
        replica.led_term = 0
        replica.commit = replica.applied = 0
        group.on_leadership(lambda leading, term: self._leads(group, node, boot, leading, term))
        self.after_turn(group, node)

    # A replica's turn.

    def after_turn(self, group: RaftGroup, node: int) -> None:
        """Compare what changed in this replica with everything known of the group."""
        ledger = self.groups[group.id]
        replica = self.replica(node, group.id)
        journal = group.journal
        scanned = replica.scanned
        if journal.last != scanned[0] or journal.last_term != scanned[1]:
            self._scan(ledger, replica, group, node)
        replica.led_term = group.term if group.role == LEADER else 0
        commit = group.commit
        if commit != replica.commit:
            self._commits(ledger, replica, group, node)
        if group.applied < replica.applied or group.applied > commit:
            self.broken(
                "state machine safety",
                f"group {group.id}: node {node} applied up to {replica.applied}, then up to {group.applied},"
                f" with {commit} committed",
            )
        replica.applied = group.applied

    def _scan(self, ledger: GroupLedger, replica: Replica, group: RaftGroup, node: int) -> None:
        journal = group.journal
        index, term = replica.scanned
        if index < journal.base:
            index, term = journal.base, journal.base_term
        elif index > journal.last or journal.term_at(index) != term:
            index, term = self._after_deletion(ledger, replica, group, node, index)
        previous = term
        for entry in journal.after(index):
            command, index, term = entry
            known = ledger.entries.setdefault((index, term), (previous, command))
            if known[0] != previous or known[1] != command:
                self.broken(
                    "log matching",
                    f"group {group.id}: entry {index} of term {term} on node {node} differs, or follows term"
                    f" {previous} where elsewhere it follows {known[0]}",
                )
            if term < previous:
                self.broken("log matching", f"group {group.id}: term {term} at {index} after term {previous}")
            previous = term
            if command[0] == EntryKind.MEMBERSHIP:
                self._membership_entry(ledger, replica, group, node, entry)
        replica.scanned = (journal.last, journal.last_term)
        replica.base = journal.base
        self._check_configuration(replica, group, node)

    def _after_deletion(
        self, ledger: GroupLedger, replica: Replica, group: RaftGroup, node: int, index: int
    ) -> tuple[int, int]:
        """Entries were deleted, or replaced: find the part of the log that was not touched."""
        if replica.led_term and replica.led_term == group.term:
            self.broken(
                "leader append-only",
                f"group {group.id}: node {node}, leader, deleted entry {index} of its log",
            )
        replica.acked = None
        if index > group.journal.last >= replica.base == group.journal.base:
            old_term = replica.scanned[1]
            for deleted in range(index, group.journal.last, -1):
                old_term = ledger.entries[deleted, old_term][0]
            if old_term == group.journal.last_term:
                self.broken(
                    "deleted without conflict",
                    f"group {group.id}: node {node} deleted entries {group.journal.last + 1} to {index}",
                )
        replica.base = group.journal.base
        kept = max(group.journal.base, min(replica.commit, group.journal.last))
        while replica.memberships and replica.memberships[-1] > kept:
            replica.memberships.pop()
        term = group.journal.term_at(kept)
        assert term is not None
        return kept, term

    def _commits(self, ledger: GroupLedger, replica: Replica, group: RaftGroup, node: int) -> None:
        journal, commit = group.journal, group.commit
        if group.role == LEADER:
            self._check_quorum(group, commit)
        if commit < replica.commit or commit > journal.last:
            self.broken(
                "commit index",
                f"group {group.id}: node {node} had committed {replica.commit} and has {commit}, its log ends"
                f" at {journal.last}",
            )
        for index in range(max(replica.commit, journal.base) + 1, min(commit, journal.last) + 1):
            term = journal.term_at(index)
            assert term is not None
            known = ledger.committed.get(index)
            if known is None:
                ledger.committed[index] = (term, group.term)
                entry = journal.after(index - 1, 1)[0]
                if entry[0][0] == EntryKind.MEMBERSHIP:
                    ledger.configurations.append(unpack_configuration(entry))
            elif known[0] != term:
                self.broken(
                    "state machine safety",
                    f"group {group.id}: entry {index} was committed with term {known[0]}, node {node} commits"
                    f" one of term {term}",
                )
        replica.commit = commit

    def _check_quorum(self, group: RaftGroup, commit: int) -> None:
        """A leader commits entries of its own term (Raft §5.4.2) that a majority holds durably.

        A node that is down has the benefit of the doubt: what it said is checked when it is up again. So has
        one whose folder was wiped: it may have held the entry when it said so, and a leader hears that late.
        """
        term = group.journal.term_at(commit)
        if term != group.term:
            self.broken(
                "own term committed", f"group {group.id}: entry {commit} of term {term} in term {group.term}"
            )
        holders = []
        for node in group.voters:
            other = self._replica_on(node, group.id)
            if other is None or _holds(other.journal, commit, term):
                holders.append(node)
        if 2 * len(holders) <= len(group.voters):
            self.broken(
                "durable quorum",
                f"group {group.id}: entry {commit} is committed, only {holders} of {group.voters} hold it",
            )

    # Leaders.

    def _leads(self, group: RaftGroup, node: int, boot: int, leading: bool, term: int) -> None:
        if not leading:
            return
        self.elections += 1
        self.on_leader(node, group.id)
        ledger = self.groups[group.id]
        known = ledger.leaders.setdefault(term, (node, boot))
        if known != (node, boot):
            self.broken(
                "election safety", f"group {group.id}: nodes {known[0]} and {node} both lead term {term}"
            )
        votes = {voter for voter in group.voters if ledger.votes.get((voter, term)) == node} | {node}
        if 2 * len(votes) <= len(group.voters):
            self.broken(
                "elected by a majority", f"group {group.id}: node {node} leads term {term} by {votes} alone"
            )
        for other in ledger.replicas:
            leased = self.leased(other, group.id)
            # One that was paused may find itself elected long after another was in a later term.
            if leased is not None and leased < term:
                self.broken(
                    "leases",
                    f"group {group.id}: node {node} leads term {term} while the lease of node {other} runs",
                )
        journal = group.journal
        for index, (entry_term, commit_term) in ledger.committed.items():
            if commit_term < term and index > journal.base and journal.term_at(index) != entry_term:
                self.broken(
                    "leader completeness",
                    f"group {group.id}: node {node} leads term {term} without entry {index} of term"
                    f" {entry_term}, committed in term {commit_term}",
                )
                return

    # Members.

    def _membership_entry(
        self, ledger: GroupLedger, replica: Replica, group: RaftGroup, node: int, entry: Entry
    ) -> None:
        new = unpack_configuration(entry)
        before = [known for known in group.configurations if known.index < new.index]
        replica.memberships.append(new.index)
        if group.role != LEADER or entry[2] != group.term or not before:
            return
        old = before[-1]
        changed = set(old.voters) ^ set(new.voters)
        if len(changed) > 1:
            self.broken(
                "one change at a time", f"group {group.id}: {old.voters} became {new.voters} in one step"
            )
        if old.index > group.commit or group.commit < group.term_start:
            self.broken(
                "one change at a time",
                f"group {group.id}: node {node} proposes configuration {new.index}, {old.index} is not"
                f" committed, or nothing of term {group.term}",
            )
        for joined in changed & set(new.voters):
            progress = group.progress.get(joined)
            if joined not in old.learners or progress is None or progress.match < old.index:
                self.broken(
                    "catch-up first", f"group {group.id}: node {joined} votes before it caught up"
                )  # fmt: skip

    def _check_configuration(self, replica: Replica, group: RaftGroup, node: int) -> None:
        newest = replica.memberships[-1] if replica.memberships else 0
        if newest > group.journal.base:
            in_log = unpack_configuration(group.journal.after(newest - 1, 1)[0])
            in_use = group.configuration
            if (in_use.voters, in_use.learners) != (in_log.voters, in_log.learners):
                self.broken(
                    "newest configuration",
                    f"group {group.id}: node {node} uses {in_use.voters} where its log has {in_log.voters}"
                    f" at {newest}",
                )

    # States.

    def applies(
        self, node: int, group_id: int, index: int, term: int, command: bytes, result: object, seen: int
    ) -> None:
        """A machine applied an entry; every other machine must do the very same there."""
        now = (term, command, result, seen)
        known = self.groups[group_id].applied.setdefault(index, now)
        if known != now:
            self.broken(
                "state machine safety",
                f"group {group_id}: at entry {index} node {node} applied {now}, another node {known}",
            )

    def has_snapshot(self, group: RaftGroup, node: int, document: SnapshotDocument) -> None:
        """A node has this snapshot, its own or another's: one index, one content, and the members then."""
        ledger = self.groups[group.id]
        digest = crc32(document.encode())
        if ledger.snapshots.setdefault(document.index, digest) != digest:
            self.broken(
                "equal snapshots",
                f"group {group.id}: two snapshots at entry {document.index} differ, one is on node {node}",
            )
        committed = [known for known in ledger.configurations if known.index <= document.index][-1]
        if (document.voters, document.learners) != (committed.voters, committed.learners):
            self.broken(
                "members of a snapshot",
                f"group {group.id}: snapshot {document.index} on node {node} has {document.voters},"
                f" the log {committed.voters}",
            )


def _holds(journal: Log, index: int, term: int | None) -> bool:
    """Whether the entry is durable in this log, or covered by a snapshot that is."""
    return journal.base >= index or (journal.synced >= index and journal.term_at(index) == term)
