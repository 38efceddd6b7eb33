"""What a restore makes of tails: the state at the point's entry, no more; and what it goes back to if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from strandline.node.objectstore.store import MAX_LIST
from strandline.node.restore.point_choice import numbers
from strandline.node.restore.reading import CannotRestore
from strandline.node.restore.stored_point import StoredPoint, read_point
from strandline.snapshot.log_document import pack_entry
from strandline.snapshot.restore_point import point_name
from strandline.snapshot.tail_document import Section, TailDocument, tail_name
from strandline.snapshot.tail_point import GroupEntry, TailPoint, tail_point_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import AppendInline, encode
from strandline.statemachine.partition.placeholder import InlineBatch
from tests.checkpoints.harness import CLUSTER, world
from tests.restore.stored import OWNER, Stored

TAKEN_MS = 1_764_000_000_000
GROUP = 1
"""The first partition of "orders"."""


class Tails:
    """A bucket with a restore point of documents, and a tail point that has one record more of a partition.

    The tails go on behind it, with a second record.
    """

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        found = stored.read()
        documents = found.documents
        base = documents[GROUP]
        self.index = base.index + 1
        states = [
            Section(one.kind, group, one.index, one.index, one.state, b"") for group, one in documents.items()
        ]
        self.base = self.put(0, states)
        self.entries = self.put(1_000, [self._section(base.index, 2, base.term)])
        groups = [
            GroupEntry(group, one.index + (group == GROUP), one.term, 1) for group, one in documents.items()
        ]
        self.point = TailPoint(
            CLUSTER, "first", found.point.number, TAKEN_MS + 500, 3, 5_000, ((1, TAKEN_MS),), tuple(groups)
        )
        self.stored.objects[self.point.name] = self.point.encode()

    def _section(self, after: int, count: int, term: int) -> Section:
        machine = PartitionStateMachine(1, lambda *_: None)
        entries = b""
        for index in range(after + 1, after + count + 1):
            command = encode(term, 2_000, [AppendInline([InlineBatch(1, 1_000, b"later")])])
            entries += pack_entry(index, term, command)
        return Section(machine.kind, GROUP, after, after + count, None, entries)

    def put(self, after_ms: int, sections: list[Section]) -> str:
        name = tail_name(CLUSTER, "first", TAKEN_MS + after_ms, 1, after_ms)
        self.stored.objects[name] = TailDocument(CLUSTER, 1, sections).encode()
        return name

    last_ms = TAKEN_MS + 1_000
    """The time of the newest tail."""

    @property
    def end(self) -> int:
        """The end of the partition in what a restore would go on from."""
        return self.read().partitions[0].end_offset

    def read(self) -> StoredPoint:
        return self.stored.read()


@pytest.fixture
def tails() -> Iterator[Tails]:
    with world() as made:
        yield Tails(Stored(made))


def test_a_tail_point_gives_the_state_at_its_entry_and_not_what_comes_later(tails: Tails) -> None:
    found = tails.read()
    assert found.tail_point == tails.point
    assert tails.end == 2, "one is in the document, and a third record is behind the point"
    assert found.documents[GROUP].index == tails.index
    assert found.unusable == ()
    assert found.missing_seconds == 5.5, "from the point to the last tail, and an interval"


def test_one_that_was_taken_before_the_documents_is_passed_over(tails: Tails) -> None:
    del tails.stored.objects[tails.point.name]
    earlier = replace(tails.point, number=tails.point.number - 1)
    tails.stored.objects[earlier.name] = earlier.encode()
    found = tails.read()
    assert found.tail_point is None
    assert tails.end == 1
    assert found.missing_seconds == (tails.last_ms - found.point.taken_ms + 5_000) / 1000


def test_behind_documents_an_interval_may_be_missing_as_well(tails: Tails) -> None:
    """As the newest tail point says that can be read, whatever else is wrong with it."""
    del tails.stored.objects[tails.base]
    other = replace(tails.point, taken_ms=TAKEN_MS + 600, interval_ms=30_000)
    tails.stored.objects[other.name] = other.encode()
    broken = replace(tails.point, taken_ms=TAKEN_MS + 700, interval_ms=1)
    tails.stored.objects[broken.name] = other.encode()
    found = tails.read()
    assert found.tail_point is None
    assert found.missing_seconds == (tails.last_ms - found.point.taken_ms + 30_000) / 1000
    for point in (tails.point, other, broken):
        del tails.stored.objects[point.name]
    found = tails.read()
    assert found.missing_seconds == (tails.last_ms - found.point.taken_ms + 5_000) / 1000, (
        "as they have it unless told"
    )


def test_without_tails_the_missing_time_is_not_told(tails: Tails) -> None:
    for name in (tails.point.name, tails.base, tails.entries):
        del tails.stored.objects[name]
    assert tails.read().missing_seconds is None


def gone(name: str, tails: Tails) -> None:
    del tails.stored.objects[name]


def damaged(name: str, tails: Tails) -> None:
    tails.stored.objects[name] = tails.stored.objects[name][:-1] + b"?"


@pytest.mark.parametrize("spoil", [gone, damaged])
@pytest.mark.parametrize("which", ["base", "entries"])
def test_where_a_tail_is_missing_the_documents_are_restored_and_that_is_told(
    tails: Tails, spoil: Callable[[str, Tails], None], which: str
) -> None:
    spoil(getattr(tails, which), tails)
    found = tails.read()
    assert found.tail_point is None
    assert tails.end == 1
    (problem,) = found.unusable
    assert str(tails.point.number) in problem
    assert "group" in problem


@pytest.mark.parametrize("spoil", [gone, damaged])
def test_no_entry_is_applied_behind_one_that_is_missing(
    spoil: Callable[[str, Tails], None], tails: Tails
) -> None:
    """The state would be that of no moment."""
    term = tails.stored.read().documents[GROUP].term
    tails.put(2_000, [tails._section(tails.index + 1, 1, term)])
    groups = [one._replace(log_index=one.log_index + 2 * (one.group == GROUP)) for one in tails.point.groups]
    point = replace(tails.point, taken_ms=TAKEN_MS + 2_500, groups=tuple(groups))
    tails.stored.objects[point.name] = point.encode()
    assert (tails.read().tail_point, tails.end) == (point, 4)
    spoil(tails.entries, tails)
    found = tails.read()
    assert (found.tail_point, tails.end) == (None, 1)
    assert f"lead to entry {tails.index - 1}, and the point names {tails.index + 2}" in found.unusable[0]


def test_a_damaged_point_is_passed_over_as_well(tails: Tails) -> None:
    damaged(tails.point.name, tails)
    assert tails.end == 1
    assert "digest" in tails.read().unusable[0]


def test_a_tail_that_is_not_needed_may_be_damaged(tails: Tails) -> None:
    name = tails.put(2_000, [])
    damaged(name, tails)
    assert tails.end == 2


def test_an_earlier_tail_point_is_next(tails: Tails) -> None:
    later = replace(
        tails.point,
        taken_ms=tails.point.taken_ms + 1,
        groups=tuple(
            one._replace(log_index=tails.index + (2 if one.group == GROUP else 0))
            if one.group == GROUP
            else one
            for one in tails.point.groups
        ),
    )
    tails.stored.objects[later.name] = later.encode()
    found = tails.read()
    assert found.tail_point == tails.point
    assert "lead to entry" in found.unusable[0]


def test_the_newest_is_found_behind_as_many_as_were_left_while_none_could_be_deleted(tails: Tails) -> None:
    """One page of a listing has the oldest of them."""
    for number in range(MAX_LIST + 1):
        tails.stored.objects[tail_point_name(CLUSTER, 1, number)] = b""
    assert tails.read().tail_point == tails.point
    for number in range(MAX_LIST + 1):
        tails.stored.objects[point_name(CLUSTER, number)] = b""
    assert tails.stored.do(lambda store: numbers(store, OWNER))[-1] == MAX_LIST


def test_without_documents_the_last_problem_is_the_refusal(tails: Tails) -> None:
    for name in [name for name in tails.stored.objects if "/points/" in name]:
        del tails.stored.objects[name]
    assert tails.end == 2
    del tails.stored.objects[tails.entries]
    with pytest.raises(CannotRestore, match="lead to entry"):
        tails.read()


def test_a_number_names_the_documents_where_there_are_any(tails: Tails) -> None:
    assert tails.stored.read(tails.point.number).tail_point is None
    for name in [name for name in tails.stored.objects if "/points/" in name]:
        del tails.stored.objects[name]
    assert tails.stored.read(tails.point.number).tail_point == tails.point
    with pytest.raises(CannotRestore, match="name one of"):
        tails.stored.read(1)


def test_a_copy_of_a_cluster_that_runs_takes_what_leases_keep(tails: Tails) -> None:
    found: StoredPoint = tails.stored.do(lambda store: read_point(store, leased=True))
    assert found.tail_point is None


def test_tails_of_another_life_are_not_looked_at(tails: Tails) -> None:
    of_another = replace(tails.point, incarnation="second")
    tails.stored.objects[of_another.name] = of_another.encode()
    found = tails.read()
    assert found.tail_point is None
    assert "no tail has a state" in found.unusable[0] or "incarnation" in found.unusable[0]


def test_what_a_later_life_did_counts_as_missing_where_it_left_no_point(tails: Tails) -> None:
    """It was restored from this point, ran for ten seconds, and all of that is lost."""
    before = tails.read().missing_seconds
    later = tail_name(CLUSTER, "second", TAKEN_MS + 10_500, 1, 7)
    tails.stored.objects[later] = TailDocument(CLUSTER, 1, []).encode()
    assert (before, tails.read().missing_seconds) == (5.5, 15.0)
