"""The runner of seeds, with runs that are played."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.simulation import run
from tests.simulation.report import Report


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_a_runs_garbage_is_given_back_also_when_it_was_set_aside_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a replica does that restores a large state; with the collector off every run counts as large."""
    left: list[weakref.ref[Cycle]] = []

    def run_seed(seed: int, *, tracing: bool) -> Report:
        left.append(weakref.ref(Cycle()))
        gc.freeze()
        return Report(seed)

    monkeypatch.setitem(run.SIMULATIONS, "log", run.SIMULATIONS["log"]._replace(run_seed=run_seed))
    there = []
    for _ in run.simulate(range(1, 22), None, 1, "log"):
        there.append(sum(one() is not None for one in left))
    assert there[18:] == [19, 0, 1]
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_a_seed_whose_check_raises_is_named_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_seed(seed: int, *, tracing: bool) -> Report:
        del tracing
        assert seed != 7, "the check has met what it did not foresee"
        return Report(seed)

    known = run.SIMULATIONS["compaction"]
    monkeypatch.setitem(run.SIMULATIONS, "compaction", known._replace(run_seed=run_seed))
    assert run.main(["--compaction", "--from", "6", "--seeds", "3", "--jobs", "1"]) == 1
    told = capsys.readouterr().out
    assert "seed 7: t=0.000 the simulator itself: " in told
    assert "the check has met what it did not foresee" in told
    assert "again: scripts/simulate --compaction --seed 7 --trace" in told
    assert "3 seeds" in told
