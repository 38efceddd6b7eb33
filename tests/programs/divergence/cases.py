"""The four divergences of Kafka's compaction that are published, as what clients do before, during and after
a node's absence.

(https://www.redpanda.com/blog/kafka-log-compaction-bug-fix-streaming, June 2026.) All have one cause: the
nodes that stay compact past a record that the absent one never gets: a tombstone, or a transaction's marker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from tests.programs.divergence.reading import Look, Record, table
from tests.programs.divergence.writing import Writer

FILLER: Final = "filler"
"""The key that is written over and over, so that there is always something to clean."""


class Served(NamedTuple):
    """What the node that was away serves as the leader."""

    committed: list[Record]
    uncommitted: list[Record]
    look: Look


class Case(ABC):
    """One topic of one partition. `expected` is the table that a correct log has, which the driver keeps."""

    name: ClassVar[str]
    """The topic."""
    title: ClassVar[str]

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.expected: dict[str, str] = {}
        self.fillers: list[int] = []
        """Offsets of the filler records."""
        self.watched: dict[str, int] = {}
        """By name the records whose removal, while the node is away, makes the divergence: their offsets."""
        self._plain = Writer(bootstrap, self.name)

    def fill(self) -> None:
        """One more record of the filler's key."""
        self.fillers.append(self.put(FILLER, str(len(self.fillers))))

    def put(self, key: str, value: str | None) -> int:
        """Write a record outside of any transaction, here and in the model; its offset."""
        offset = self._plain.write(key, value)
        self._expect(key, value)
        return offset

    @abstractmethod
    def before(self) -> None:
        """Write while all nodes are there."""

    @abstractmethod
    def away(self) -> None:
        """Write while one is away, and name what is watched."""

    def back(self) -> None:  # noqa: B027 - most cases write nothing then
        """Write when it is back and in sync, and does not lead yet."""

    def judge(self, served: Served) -> list[str]:
        """What is wrong with what is served, in plain words; nothing when all is well."""
        found = table(served.committed)
        wrong = [
            f"key {key!r} has {found.get(key)!r}, and must have {value!r}"
            for key, value in self.expected.items()
            if found.get(key) != value
        ]
        wrong += [
            f"key {key!r} has {value!r}, and must not be there"
            for key, value in found.items()
            if key not in self.expected
        ]
        return wrong

    def _expect(self, key: str, value: str | None) -> None:
        if value is None:
            self.expected.pop(key, None)
        else:
            self.expected[key] = value


class DeletedReturns(Case):
    """The tombstone is gone before the absent node meets it, which still has the value."""

    name = "deleted-returns"
    title = "a deleted key returns"

    def before(self) -> None:
        self.put("deleted", "value")

    def away(self) -> None:
        self.watched["tombstone"] = self.put("deleted", None)


class AbortedAsCommitted(Case):
    """The ABORT marker is gone, so the producer's next COMMIT commits the aborted record, too."""

    name = "aborted-as-committed"
    title = "an aborted record is served as committed"

    def before(self) -> None:
        self._first = Writer(self.bootstrap, self.name, self.name)
        self._first.write("poison", "aborted")

    def away(self) -> None:
        self.watched["ABORT marker"] = self._first.end(commit=False)

    def back(self) -> None:
        second = Writer(self.bootstrap, self.name, self.name)
        second.write("good", "committed")
        second.end(commit=True)
        self._expect("good", "committed")


class CommittedAsAborted(Case):
    """The COMMIT marker is gone, so the producer's next ABORT aborts the committed record, too.

    Kafka removes a COMMIT marker only after all of its transaction's records were superseded, so the newest
    value of the key is there, and the table right. Wrong is what happens to the record itself.
    """

    name = "committed-as-aborted"
    title = "a committed record is served as aborted"
    offset = -1
    """Of the record that is committed while the node is away."""

    def before(self) -> None:
        self._first = Writer(self.bootstrap, self.name, self.name)
        self.offset = self._first.write("key", "committed")

    def away(self) -> None:
        self.watched["COMMIT marker"] = self._first.end(commit=True)
        self.put("key", "newer")

    def back(self) -> None:
        second = Writer(self.bootstrap, self.name, self.name)
        second.write("bad", "aborted")
        second.end(commit=False)

    def judge(self, served: Served) -> list[str]:
        wrong = super().judge(served)
        there = self.offset in {record.offset for record in served.uncommitted}
        given = self.offset in {record.offset for record in served.committed}
        if there and not given:
            wrong.append(f"the record at {self.offset} was committed, is there, and is hidden as aborted")
        return wrong


class StuckOffset(Case):
    """The COMMIT marker is gone and its producer, too, so the transaction never ends on the absent node."""

    name = "stuck-offset"
    title = "the last stable offset sticks"

    def before(self) -> None:
        self._first = Writer(self.bootstrap, self.name, self.name)
        self._first.write("key", "committed")

    def away(self) -> None:
        self.watched["COMMIT marker"] = self._first.end(commit=True)
        self.put("key", "newer")

    def judge(self, served: Served) -> list[str]:
        wrong = super().judge(served)
        look = served.look
        if look.last_stable_offset < look.high_watermark:
            wrong.append(
                f"the last stable offset is {look.last_stable_offset}, the high watermark"
                f" {look.high_watermark}, and no transaction is open"
            )
        return wrong


CASES: Final[Sequence[type[Case]]] = (DeletedReturns, AbortedAsCommitted, CommittedAsAborted, StuckOffset)
