"""What both coordinators' state machines have from their base, shown by one that counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgpack
import pytest

from strandline.statemachine.coordinator_machine import (
    CoordinatorCheckpoint,
    CoordinatorMachine,
    OlderTerm,
    encode,
)
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.groups.offsets import NO_EXPIRY, CommittedOffset
from strandline.statemachine.machine import Captured, Corruption, ReadAttributes
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.statemachine.adding import Add


class Counting(CoordinatorMachine):
    kind = "counting"

    def __init__(self, on_checkpoint: Callable[[int, Captured], None]) -> None:
        super().__init__(on_checkpoint)
        self.total = 0
        self.indexes: list[int] = []

    def _add(self, index: int, by: int) -> int:
        if by < 0:
            raise Corruption("a leader counted down")
        self.total += by
        self.indexes.append(index)
        return self.total

    HANDLERS: ClassVar[Mapping[int, Callable[..., Any]]] = {1: _add}

    def fields(self) -> dict[str, Any]:
        return {"total": self.total}

    def load(self, name: str, source: msgpack.Unpacker) -> None:
        self.total = source.unpack()


def counting() -> tuple[Counting, list[tuple[int, bytes]]]:
    checkpoints: list[tuple[int, bytes]] = []
    machine = Counting(lambda index, captured: checkpoints.append((index, captured())))
    machine.begin_term(1, 3, 1)
    return machine, checkpoints


def test_a_command_reaches_its_handler_and_the_result_comes_back() -> None:
    machine, _ = counting()
    assert machine.apply(2, 3, encode(3, 1000, Add(4))) == 4
    assert machine.apply(3, 3, encode(3, 1000, Add(5))) == 9
    assert machine.indexes == [2, 3]


def test_time_never_goes_back() -> None:
    machine, _ = counting()
    for time, expected in ((1000, 1000), (900, 1000), (1001, 1001)):
        machine.apply(2, 3, encode(3, time, Add(0)))
        assert machine.time == expected


def test_an_entry_of_an_earlier_term_changes_nothing() -> None:
    machine, _ = counting()
    machine.begin_term(2, 5, 2)
    assert machine.apply(3, 5, encode(3, 1000, Add(4))) == OlderTerm(5)
    assert (machine.total, machine.time) == (0, 0)


def test_terms_go_up() -> None:
    machine, _ = counting()
    for term in (2, 3):
        with pytest.raises(Corruption, match=f"node 2 begins term {term} after term 3"):
            machine.begin_term(2, term, 2)


@pytest.mark.parametrize(
    ("term", "entry", "reason"),
    [
        (3, encode(4, 0, Add(1)), "entry 2: made in term 4, logged in 3"),
        (4, encode(4, 0, Add(1)), "entry 2: made in term 4, logged in 4, while 3 is present"),
        (3, encode(3, 0, Add(-1)), "entry 2: a leader counted down"),
        (3, msgpack.packb([3, 0, 9]), "command kind 9 is unknown"),
        (3, msgpack.packb([3, 0, 1]), "is not one of counting: TypeError"),
        (3, msgpack.packb([3, 0, 1, "x"]), "is not one of counting: TypeError"),
        (3, msgpack.packb([3, 0]), "is not one of counting: ValueError"),
        (3, b"", "is not one of counting"),
    ],
)
def test_what_no_leader_writes_is_corruption(term: int, entry: bytes, reason: str) -> None:
    machine, _ = counting()
    with pytest.raises(Corruption, match=reason):
        machine.apply(2, term, entry)


def test_a_checkpoint_has_the_state_as_of_its_own_entry() -> None:
    machine, checkpoints = counting()
    machine.apply(2, 3, encode(3, 1000, Add(4)))
    assert machine.apply(3, 3, encode(3, 2000, CoordinatorCheckpoint())) == 3
    assert checkpoints == [(3, machine.snapshot())]
    assert msgpack.unpackb(checkpoints[0][1]) == {"format": 1, "term": 3, "time": 2000, "total": 4}
    machine.apply(4, 3, encode(3, 2000, Add(4)))
    assert checkpoints[0][1] != machine.snapshot()


def test_a_snapshot_gives_the_same_state_and_bytes() -> None:
    machine, _ = counting()
    machine.apply(2, 3, encode(3, 1000, Add(4)))
    seen: list[int] = []
    twin = Counting(lambda index, state: seen.append(index))
    twin.restore(machine.snapshot())
    assert twin.snapshot() == machine.snapshot()
    assert twin.apply(3, 3, encode(3, 1000, Add(1))) == 5
    twin.apply(4, 3, encode(3, 1000, CoordinatorCheckpoint()))
    assert seen == [4]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (b"", "a state of counting cannot be read"),
        (msgpack.packb({"term": 1, "time": 1, "total": 1}), "KeyError|format"),
        (msgpack.packb({"format": 2, "term": 1, "time": 1, "total": 1}), "format 2, this release reads 1"),
        (msgpack.packb({"format": 1, "term": "x", "time": 1, "total": 1}), "not a number"),
        (
            msgpack.packb({"format": 1, "term": 1, "time": 1, "totals": 1}),
            "'totals' in the place",
        ),
        (msgpack.packb({"format": 1, "term": 1, "time": 1, "total": 1, "more": 1}), "it has 5 fields"),
        (msgpack.packb({"format": 1, "term": 1, "time": 1, "total": 1}) + b"x", "goes on behind its end"),
        (msgpack.packb({"format": 1, "term": 1, "time": 1, "total": 1})[:-1], "cannot be read"),
    ],
)
def test_what_is_no_snapshot_changes_nothing(state: bytes, reason: str) -> None:
    machine, _ = counting()
    machine.apply(2, 3, encode(3, 1000, Add(4)))
    before = machine.snapshot()
    with pytest.raises(ValueError, match=reason):
        machine.restore(state)
    assert machine.snapshot() == before


@pytest.mark.parametrize("machine", [GroupsMachine, TransactionsMachine])
def test_the_coordinators_own_kinds_stay_clear_of_the_checkpoint(machine: type[CoordinatorMachine]) -> None:
    assert machine.kind in ("groups", "transactions")
    assert min(machine.HANDLERS) > CoordinatorCheckpoint.kind
    empty = machine(lambda index, state: None)
    assert list(msgpack.unpackb(empty.snapshot()))[:3] == ["format", "term", "time"]
    empty.restore(empty.snapshot())


def with_offsets(*groups: str) -> GroupsMachine:
    machine = GroupsMachine(lambda index, captured: None)
    machine.begin_term(1, 1, 1)
    for group in groups:
        offsets = machine.offsets_of(group)
        for partition in range(200):
            committed = CommittedOffset(partition, 1, "", 1000, NO_EXPIRY, 2)
            offsets.commit(b"t", "topic", partition, committed)
            offsets.add_pending(7, b"t", "topic", partition, committed)
    machine.producers.touched(7, 0, 1000)
    return machine


def test_a_state_is_read_beside_the_present_one_which_goes_on_until_it_is_replaced() -> None:
    machine, newer = with_offsets("a", "b"), with_offsets("b", "c")
    before = machine.snapshot()
    read = machine.read(newer.snapshot())
    assert machine.snapshot() == before
    machine.drop("a")
    captured, meanwhile = machine.capture(), machine.snapshot()
    read.adopt()
    assert machine.snapshot() == newer.snapshot()
    read.let_go()
    assert machine.snapshot() == newer.snapshot()
    assert captured() == meanwhile, "a snapshot of the former state was under way"
    machine.drop("b")
    assert newer.snapshot() != machine.snapshot()


def test_a_state_that_was_read_and_is_not_wanted_is_let_go() -> None:
    machine = with_offsets("a")
    before = machine.snapshot()
    machine.read(with_offsets("b").snapshot()).let_go()
    assert machine.snapshot() == before


def test_a_group_of_many_offsets_is_read_an_offset_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the decoder holds all threads until it ends."""
    sizes: list[int] = []

    class Watched(msgpack.Unpacker):
        def unpack(self) -> Any:
            before = self.tell()
            value = super().unpack()
            sizes.append(self.tell() - before)
            return value

    machine, group = GroupsMachine(lambda index, captured: None), with_offsets("a")
    monkeypatch.setattr(msgpack, "Unpacker", Watched)
    machine.restore(group.snapshot())
    assert machine.snapshot() == group.snapshot()
    assert len(sizes) > 400
    assert max(sizes) < 64


def test_what_a_row_has_many_of_is_freed_one_by_one_after_the_row() -> None:
    """What is freed with its row is freed at once, and holds all threads until the last of it is gone."""
    gone: list[str] = []

    class Leaf:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            gone.append(self.name)

    row = [Leaf("one of many"), Leaf("one of many"), Leaf("the rest")]
    read = ReadAttributes(object(), {"rows": {"row": row}}, lambda row: row[:2])
    del row
    read.let_go()
    assert gone == ["the rest", "one of many", "one of many"]
    groups = with_offsets("a")
    assert len([*groups.parts(groups.groups["a"])]) == 400
    assert [*groups.parts(groups.producers)] == []
