"""Circuits: a step that fails changes nothing, and merges come between steps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from strandline.snapshot.views import circuit as circuit_module
from strandline.snapshot.views import join, spine
from strandline.snapshot.views.arrange import Arrange
from strandline.snapshot.views.circuit import Circuit, Node
from strandline.snapshot.views.errors import ViewError, ViewInvariant, ViewLimit, ViewStopped
from strandline.snapshot.views.join import Join
from strandline.snapshot.views.map_operator import Map
from strandline.snapshot.views.zset import ZSet, zset
from strandline.statemachine.views.expressions import Call, Column, Function, Literal
from strandline.statemachine.views.types import Type
from tests.snapshot.views import circuits
from tests.snapshot.views.checks import content
from tests.snapshot.views.deltas import FACTS, counted, of

DIVIDED = Call(
    Function.DIVIDE,
    (Literal(1.0, Type.DOUBLE), Call(Function.CAST, (Column(0, Type.BIGINT),), Type.DOUBLE)),
    Type.DOUBLE,
)


def facts(*numbers: int) -> dict[str, ZSet]:
    return {"facts": of([((number, "a", 0.5), 1) for number in numbers])}


def test_a_step_that_fails_changes_no_operator() -> None:
    nodes = [
        Node(Arrange("kept", FACTS, (0,)), ("facts",)),
        Node(Map("divided", None, [DIVIDED]), ("facts",)),
    ]
    made = Circuit({"facts": FACTS}, nodes)
    made.step(facts(1, 2))
    before = made.digests()
    with pytest.raises(ViewStopped, match="division by zero"):
        made.step(facts(3, 0))
    assert made.digests() == before
    assert content(made, "kept") == counted(facts(1, 2)["facts"])
    made.step(facts(4))
    assert content(made, "kept") == counted(facts(1, 2, 4)["facts"])


def test_a_circuit_whose_inputs_are_not_there_is_refused() -> None:
    with pytest.raises(ViewInvariant, match="kept has the name of another node, or an input"):
        Circuit({"facts": FACTS}, [Node(Arrange("kept", FACTS, (0,)), ("other",))])
    with pytest.raises(ViewInvariant, match="facts has the name"):
        Circuit({"facts": FACTS}, [Node(Arrange("facts", FACTS, (0,)), ("facts",))])
    with pytest.raises(ViewInvariant, match="no source other"):
        circuits.arrange().step({"other": facts(1)["facts"]})
    with pytest.raises(ViewInvariant, match="no state of groups"):
        circuits.aggregate().load({})
    with pytest.raises(ViewError, match="the rows of facts are kept by no operator"):
        next(Circuit({"facts": FACTS}, [Node(Map("same", None, []), ("facts",))]).contents("same"))


def test_what_lies_between_sources_and_kept_rows_has_a_content() -> None:
    made = circuits.join()
    made.step({"facts": of([((1, "a", 0.5), 1), ((2, "b", 0.5), 2)]), "log": of([((2, "x", None), 1)])})
    for parts in (1, 4):
        assert content(made, "pairs", parts) == Counter({(2, "b", 0.5, 2, "x", None): 2})


class Later(Executor):
    """An executor whose work is done when a test says."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Future[Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((fn, future))
        return future

    def work(self) -> None:
        for do, future in self.waiting:
            future.set_result(do())
        self.waiting.clear()


def runs(made: Circuit) -> list[int]:
    return [len(run) for run in made.operators["kept"].current.spines[0].runs]


def arrange(merging: Executor | None) -> Circuit:
    return Circuit({"facts": FACTS}, [Node(Arrange("kept", FACTS, (0,)), ("facts",))], merging)


def test_a_large_merge_is_installed_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spine, "INLINE_ROWS", 15)
    later = Later()
    made = arrange(later)
    made.step(facts(*range(10)))
    made.step(facts(*range(10, 20)))
    made.step(facts(20))
    fork = circuits.fork(made, circuits.arrange)
    assert runs(made) == [10, 10, 1]
    later.work()
    assert runs(made) == [10, 10, 1], "only a step installs"
    made.step(facts(21))
    assert runs(made) == [20, 2]
    assert runs(fork) == [10, 10, 1], "a fork keeps its runs"
    assert content(made, "kept") == counted(facts(*range(22))["facts"])


def test_without_an_executor_large_merges_are_made_at_the_end_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spine, "INLINE_ROWS", 15)
    made = arrange(None)
    for start in (0, 10, 20):
        made.step(facts(*range(start, start + 10)))
    assert runs(made) == [20, 10] or runs(made) == [30]


def test_a_step_waits_for_a_merge_when_there_are_too_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spine, "INLINE_ROWS", 0)
    monkeypatch.setattr(circuit_module, "LEVELS", 3)
    with ThreadPoolExecutor(1) as pool:
        made = arrange(pool)
        for number in range(40):
            made.step(facts(number))
            assert len(runs(made)) <= 5
    assert content(made, "kept") == counted(facts(*range(40))["facts"])


def test_a_join_of_too_many_pairs_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "STEP_PAIRS", 99)
    nodes = [
        Node(Arrange("left", FACTS, (1,)), ("facts",)),
        Node(Arrange("right", FACTS, (1,)), ("facts",)),
        Node(Join("pairs", FACTS, FACTS), ("left", "right")),
    ]
    made = Circuit({"facts": FACTS}, nodes)
    made.step(facts(*range(9)))
    with pytest.raises(ViewLimit, match="pairs makes 115 pairs in a step, above 99: take smaller steps"):
        made.step(facts(*range(10, 15)))
    assert content(made, "left") == counted(facts(*range(9))["facts"])


def test_rows_whose_key_is_null_are_not_tried_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FULL JOIN keeps those of both sides, and they have one hash."""
    monkeypatch.setattr(join, "STEP_PAIRS", 99)
    nodes = [
        Node(Arrange("left", FACTS, (1, 0)), ("facts",)),
        Node(Arrange("right", FACTS, (1, 0)), ("facts",)),
        Node(Join("pairs", FACTS, FACTS), ("left", "right")),
    ]
    made = Circuit({"facts": FACTS}, nodes)
    there = [(number, "a", 0.5) for number in range(9)]
    for rows in ([(1, None, float(number)) for number in range(20)], [*there, (1, None, 0.5)] * 2):
        made.step({"facts": zset(FACTS, rows)})
    (pairs,) = made.contents("pairs")
    assert counted(pairs) == Counter({(*row, *row): 4 for row in there})


def test_heavy_deltas_are_refused() -> None:
    heavy = zset(FACTS, [(1, "a", 0.5)], [1 << 31])
    for made in (circuits.arrange(), circuits.aggregate()):
        with pytest.raises(ViewLimit, match="smaller steps"):
            made.step({"facts": heavy})


def test_a_forked_process_is_told_to_start_another() -> None:
    made = circuits.arrange()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            made.step({})
        except ViewInvariant as error:
            os.write(tell, str(error).encode())
        os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with os.fdopen(told, "rb") as said:
        assert said.read() == b"a view cannot run in a forked process: start a new one"


def test_the_size_of_a_circuit_is_that_of_the_rows_that_it_keeps() -> None:
    made = circuits.arrange()
    assert made.size() == (0, 0)
    made.step(facts(1, 2, 3))
    rows, size = made.size()
    assert rows == 3
    made.step({"facts": of([((1, "a", 0.5), -1)])})
    made.step(facts(*range(100, 1100)))
    more, larger = made.size()
    assert 1002 <= more <= 1004, "what a merge has not taken away yet is still kept"
    assert larger > size + 1000 * 8 * 4
