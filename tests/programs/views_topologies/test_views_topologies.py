"""Topologies are what their names say; a topic that differs in one transaction is found."""

from __future__ import annotations

import pytest

from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.program import difference
from tests.programs.views_topologies import judge
from tests.programs.views_topologies.judge import Change, Note
from tests.programs.views_topologies.tables import Place, Row, Tables, cut_of
from tests.programs.views_topologies.topologies import COLUMNS, TOPOLOGIES, Expected, Topology, text_of

WRITTEN: dict[Place, dict[int, tuple[str, Row | None]]] = {
    ("x_sales", 0): {
        0: ("k1", {"shop": "a", "amount": 900}),
        1: ("k2", {"shop": "a", "amount": 5}),
        3: ("k1", None),
    },
    ("x_shops", 1): {0: ("a", {"city": "c"})},
}
A: Change = {("a",): {"n": 1}}
MORE: Change = {("a",): {"n": 2}, ("b",): {"n": 1}}
GONE: Change = {("a",): None}


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=[one.name for one in TOPOLOGIES])
def test_a_topology_has_something_new_and_views_of_duckdb(topology: Topology) -> None:
    before, after = (program_of(text_of(views, "x_")) for views in (topology.before, topology.after))
    compared = difference(before, after)
    assert bool(compared.new) is not topology.same
    if any(word in topology.name for word in ("kept", "shared")):
        assert compared.kept
    tables = Tables(WRITTEN, "x_", [*COLUMNS])
    tables.come_to({("x_sales", 0): 4, ("x_shops", 1): 1})
    for views in (topology.before, topology.after):
        expected = Expected(views, tables)
        expected.load()
        for view in views:
            if not view.startswith("local_"):
                expected.rows(view)


def test_tables_are_those_of_the_cut_which_never_goes_back() -> None:
    tables = Tables(WRITTEN, "x_", [*COLUMNS])
    tables.come_to(cut_of({"x_sales-0": 2}))
    assert [*tables.rows["sales"]] == ["k1", "k2"]
    expected = Expected({"totals": "SELECT shop, count(*) AS n FROM sales GROUP BY shop"}, tables)
    expected.load()
    assert expected.rows("totals") == {("a",): {"shop": "a", "n": 2}}
    tables.come_to(cut_of({"x_sales-0": 4}))
    expected.load()
    assert expected.rows("totals") == {("a",): {"shop": "a", "n": 1}}
    with pytest.raises(ValueError, match="goes back from 4 to 3"):
        tables.come_to(cut_of({"x_sales-0": 3}))


def test_what_was_filled_in_silence_and_what_another_version_wrote_does_not_count() -> None:
    def note(attempt: int, phase: str, *, live: bool) -> Note:
        return Note("p", attempt, live, phase, {}, {})

    notes = [
        note(1, "filling", live=False), note(1, "dumping", live=False), note(1, "following", live=True),
        note(2, "following", live=False), note(2, "following", live=True),
    ]  # fmt: skip
    assert judge.spoken(notes, 1) == notes[1:3]
    assert judge.spoken(notes, 1, 2) == [*notes[1:3], notes[4]]
    assert judge.spoken(notes, 2) == notes[3:]


def test_transactions_that_change_nothing_write_nothing() -> None:
    one, two = {("a",): {"n": 1}}, {("a",): {"n": 2}, ("b",): {"n": 1}}
    assert judge.changes([one, one, two, {("b",): {"n": 1}}]) == [A, MORE, GONE]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([[A, MORE, GONE], []], ""),
        ([[A, {("a",): {"n": 2}}, GONE], [{("b",): {"n": 1}}]], ""),
        ([[A, MORE], []], "has 2 transactions, not 3"),
        ([[A, MORE, GONE, A], []], "has 4 transactions, not 3"),
        ([[A, A, MORE, GONE], []], "transaction 1 of partition 0"),
        ([[MORE, GONE], []], "transaction 0 of partition 0"),
        ([[A, {("a",): {"n": 2}}, GONE], []], "transaction 1 of partition 0"),
        ([[A, {**MORE, ("b",): {"n": 7}}, GONE], []], "transaction 1 of partition 0"),
        ([[A, MORE, GONE], [{("b",): {"n": 1}}]], "is in two partitions"),
        ([[], []], "has 0 transactions, not 3"),
    ],
)
def test_a_topic_that_differs_in_a_transaction_is_found(told: list[list[Change]], says: str) -> None:
    assert says in judge.problem([A, MORE, GONE], told)
    assert bool(judge.problem([A, MORE, GONE], told)) is bool(says)


def test_a_topic_that_is_gone_is_right_as_far_as_it_was_read() -> None:
    assert judge.problem([A, MORE, GONE], [[A, MORE], []], ended=False) == ""
    assert judge.problem([A, MORE, GONE], [[A, {("a",): {"n": 2}}], []], ended=False) == ""
    assert judge.problem([A, MORE, GONE], [[GONE, MORE], []], ended=False) != ""
