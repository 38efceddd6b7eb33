"""Record of a replica's entries between two checkpoints, published beside the second.

Nodes drop their logs once a snapshot covers them. So each replica keeps its machine's entries, packed as they
will be published, until the next checkpoint. All replicas of a node share one budget of bytes; a tail that
does not fit is given up whole, and the next checkpoint then comes without a log, which an audit counts as
not covered. A replica restored from a snapshot has not seen all entries either, until its next checkpoint.

While its node leads the group, it also keeps the entries that no tail has yet (tail_publishing.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from strandline.node.checkpoints.packed_entries import PackedEntries
from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.log_document import LogDocument, pack_entry
from strandline.statemachine.machine import Captured

log = logging.getLogger(__name__)


class CheckpointPlace(NamedTuple):
    """Place of a checkpoint: the term of its entry, and the members at that index of the log."""

    term: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]


class TailBudget:
    """Bytes that all recorders of a node may keep together; `used` of `limit`.

    `overflows` counts the tails that were given up.
    """

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0
        self.overflows = 0

    def take(self, size: int) -> bool:
        """Take so many bytes; False, and counted, if they do not fit."""
        if self.used + size > self.limit:
            self.overflows += 1
            return False
        self.used += size
        return True


class OpenTail:
    """A led group's entries above `after` that no tail has yet."""

    def __init__(self, after: int) -> None:
        self.after = self.index = after
        self.entries = PackedEntries()


class CheckpointRecorder:
    """One per replica, from its first entry or its restored snapshot on.

    It is told of each entry (`begin_term`, `applied`) before the machine applies it: the machine's
    `on_checkpoint` is `checkpoint`, which is called inside that apply and includes its entry. `place(index)`
    gives term and members at an index, as the replica's log has them (`RaftGroup.configuration_at`).
    """

    def __init__(
        self,
        *,
        cluster: str,
        kind: str,
        group: int,
        place: Callable[[int], CheckpointPlace],
        publisher: CheckpointPublisher,
        budget: TailBudget,
        taken: Callable[[int], None] | None = None,
        is_secret: Callable[[bytes], bool] | None = None,
        touched: Callable[[int], None] | None = None,
        open_budget: TailBudget | None = None,
    ) -> None:
        """`taken` is told of the index of each checkpoint that is handed to the publisher, `touched` of the
        group at each entry.

        A tail with a command that `is_secret` is given up, as one that does not fit. An open tail takes its
        bytes from `open_budget`.
        """
        self._cluster = cluster
        self.kind = kind
        """Kind of the group's state machine."""
        self._group = group
        self._place = place
        self._publisher = publisher
        self._budget = budget
        self._taken = taken
        self._is_secret = is_secret
        self._touched = touched
        self._open_budget = open_budget or budget
        self._open: OpenTail | None = None
        self._after = 0
        """The tail holds the entries above this index; 0 is the beginning of the log."""
        self._last = 0
        self._tail = PackedEntries()
        self.whole = True
        """Whether the tail has every entry since `_after`."""

    def begin_term(self, index: int, term: int, node: int) -> None:
        """`node` leads from this entry on."""
        self._record(index, term, node)

    def applied(self, index: int, term: int, command: bytes) -> None:
        """A command is about to be applied."""
        if self._is_secret is not None and self._is_secret(command):
            self._forget()
            self.close_tail()
        self._record(index, term, command)

    def _record(self, index: int, term: int, given: bytes | int) -> None:
        self._last = index
        if self._touched is not None:
            self._touched(self._group)
        opened = self._open
        if not self.whole and opened is None:
            return
        packed = pack_entry(index, term, given)
        if self.whole:
            if self._budget.take(len(packed)):
                self._tail.add(packed)
            else:
                self._forget()
        if opened is not None:
            if self._open_budget.take(len(packed)):
                opened.entries.add(packed)
                opened.index = index
            else:
                self.close_tail()

    def open_tail(self, after: int) -> None:
        """Keep the entries above `after`, which is applied and the last, until they are taken."""
        self.close_tail()
        self._open = OpenTail(after)

    def take_tail(self) -> OpenTail | None:
        """The entries since the last call, or `open_tail`, and go on; None if there is no open tail: it did
        not fit, or the state was replaced."""
        taken = self._open
        if taken is not None:
            self._open_budget.used -= len(taken.entries)
            self._open = OpenTail(taken.index)
        return taken

    def close_tail(self) -> None:
        """Keep no entries for tails any more."""
        if self._open is not None:
            self._open_budget.used -= len(self._open.entries)
            self._open = None

    def checkpoint(self, index: int, captured: Captured) -> None:
        """Hand the state as of the entry `index` to the publisher, with the log since the last checkpoint."""
        if self._last != index:
            raise ValueError(f"a checkpoint at entry {index} while entry {self._last} is applied")
        term, voters, learners = self._place(index)
        entries = None
        if self.whole:
            tail = self._tail.joined()
            entries = LogDocument(self._cluster, self.kind, self._group, self._after, index, tail)
        if voters:
            place = SnapshotDocument(
                self._cluster, self.kind, self._group, index, term, voters, learners, b""
            )
            self._publisher.take(place, captured, entries)
            if self._taken is not None:
                self._taken(index)
        else:
            # It joined by the log and has not met the entry that added it: others know the members, and its
            # document could not equal theirs.
            log.info("group %d: checkpoint %d is left to the members", self._group, index)
        self._forget()
        self._after, self.whole = index, True

    def restored(self) -> None:
        """The machine's state was replaced by a snapshot's: the entries before it were never seen here."""
        self._forget()
        self.close_tail()

    def close(self) -> None:
        """Give back the replica's share of the budgets: it is gone, or its node is stopping."""
        self._forget()
        self.close_tail()

    def _forget(self) -> None:
        self._budget.used -= len(self._tail)
        self._tail = PackedEntries()
        self.whole = False
