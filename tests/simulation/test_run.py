"""The runner of seeds, with runs that are played."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path

import pytest

from tests.checks import SIMULATORS, simulations
from tests.simulation import run
from tests.simulation.log.plan import DRILLS
from tests.simulation.report import Report
from tests.simulation.whole.themes import THEMES


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


def test_the_whole_run_leaves_out_only_seeds_that_tests_run() -> None:
    files = {
        "the log": "log/test_simulation_log.py",
        "whole nodes": "whole/test_simulation_whole.py",
        "transactions": "whole/transactions/test_simulation_transactions.py",
    }
    in_turn = {"DRILLS": len(DRILLS), "THEMES": len(THEMES)}
    for simulator in SIMULATORS:
        text = (Path(__file__).parent / files[simulator.name]).read_text()
        run: set[int] = set()
        for name, listed in re.findall(r'parametrize\("seed", (?:range\(len\((\w+)\)\)|\[([\d, ]+)\])', text):
            run |= set(range(in_turn[name])) if name else set(map(int, listed.split(",")))
        assert len([seed for seed in run if seed < simulator.first]) == simulator.tested, simulator.name
    commands = [step.command[1:] for step in simulations(300, with_all_tests=True)]
    assert commands[1] == ("--whole", "--from", "8", "--seeds", "52")
    assert simulations(1, with_all_tests=True)[2].command[-1] == "1"
    assert simulations(300, with_all_tests=False)[2].command[-1] == "20"
