"""The audit of operators, beside a storage in memory: states that lack, or have, what their inputs make."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from strandline.snapshot.spark.audits import operator_audit
from strandline.snapshot.storage import Storage
from strandline.snapshot.views import stored_state
from strandline.snapshot.views.json_records import Record
from strandline.snapshot.views.replay import Replay
from strandline.snapshot.views.run import Run, run_of
from strandline.snapshot.views.run_file import packed
from strandline.snapshot.views.sql.programs import program_of
from strandline.snapshot.views.stored_state import Kept, StoredState
from strandline.statemachine.controller.view_state import ProgramVersion

PROGRAM: Final = """
CREATE TABLE sales (id STRING NOT NULL PRIMARY KEY, shop STRING, amount BIGINT) OPTIONS (mode 'upsert');
CREATE TABLE changes (shop STRING, amount BIGINT) OPTIONS (topic 'sales');
CREATE VIEW totals AS SELECT shop, count(*) AS n, max(amount) AS most, sum(amount) AS amount
  FROM sales GROUP BY shop;
CREATE VIEW busy AS SELECT shop, count(*) AS n FROM changes GROUP BY shop;
"""
RECORDS: Final = [
    Record(0, at, 1000, b"k%d" % (at % 40), json.dumps({"shop": f"s{at % 7}", "amount": at}).encode())
    for at in range(100)
]


def no_change(run: Run) -> Run:
    return run


def stored(change: Callable[[Run], Run]) -> dict[str, bytes]:
    """The objects of the state that RECORDS make, its largest run changed."""
    replay = Replay(program_of(PROGRAM))
    for first in range(0, len(RECORDS), 30):
        replay.take("sales", RECORDS[first : first + 30])
    states = {name: each.state() for name, each in replay.circuit.operators.items()}
    largest = max((run for each in states.values() for spine in each.runs for run in spine), key=len)
    objects: dict[str, bytes] = {}

    def named(run: Run) -> str:
        name = f"{len(objects)}.run"
        objects[name] = b"".join(bytes(part) for part in packed(change(run) if run is largest else run))
        return name

    operators = {
        name: Kept([[named(run) for run in spine] for spine in each.runs], each.value)
        for name, each in states.items()
    }
    objects["state"] = b"".join(stored_state.written(StoredState({("sales", 0): 100}, operators)))
    return objects


def problems(objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(
        operator_audit, "_replayed", lambda _, replay, topic, windows: replay.take(topic, RECORDS)
    )
    work = operator_audit._Work(1, "p", PROGRAM, "state", {"sales": ()}, ())
    storage = cast(Storage, SimpleNamespace(get=objects.__getitem__))
    told = [*operator_audit._compared(storage, work)]
    assert len(told) > 4
    return [problem for _, _, _, _, problem, _ in told if problem]


def backwards(run: Run) -> Run:
    ties = None if run.ties is None else run.ties[::-1].copy()
    sums = tuple(each[::-1].copy() for each in run.sums)
    return Run(run.layout, run.hashes[::-1].copy(), ties, run.rows.reverse(), sums)


def under_another_hash(run: Run) -> Run:
    hashes = run.hashes.copy()
    hashes[-1] += 1
    return replace(run, hashes=hashes)


def twice(run: Run) -> Run:
    """The first row twice, the second time with nothing more of it."""
    ties = None if run.ties is None else run.ties[[0, *range(len(run))]]
    sums = tuple(each[[0, *range(len(run))]] for each in run.sums)
    for each in sums:
        each[0] = 0
    rows = run.rows[[0, *range(len(run))]]
    return Run(run.layout, run.hashes[[0, *range(len(run))]], ties, rows, sums)


def short(run: Run) -> Run:
    return run_of(run.layout, run.rows[1:], tuple(each[1:] for each in run.sums))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (no_change, ""),
        (short, "it keeps other rows than its inputs make"),
        (backwards, "its rows are not in the order of their hashes: look-ups miss some"),
        (under_another_hash, "its rows are not in the order of their hashes: look-ups miss some"),
        (twice, "its rows are not in the order of their hashes: look-ups miss some"),
    ],
)
def test_a_state_is_what_its_inputs_make_in_an_order_in_which_it_is_found(
    change: Callable[[Run], Run], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(stored(change), monkeypatch) == ([problem] if problem else [])


def test_an_input_lacks_records_where_one_of_its_tables_does() -> None:
    """Cleaning takes records that the table of all changes had, and the one of present rows needs not."""
    asked: list[bool] = []

    def lacks(topic_id: bytes, *, keyed: bool) -> bool:
        asked.append(keyed)
        return not keyed

    programs = SimpleNamespace(input=lambda topic_id, cut: [], lacks_records=lacks)
    objects = stored(no_change)
    storage = cast(Storage, SimpleNamespace(get=objects.__getitem__))
    version = ProgramVersion(1, 1, 1, PROGRAM, (), (("sales", b"id"),), "")
    work = operator_audit._work(storage, cast(Any, programs), 1, "p", version, "state")
    assert asked == [True, False]
    assert work.lacking == ("sales",)
