"""The consume-transform-produce program: its verdict can fail on each flaw; a short run holds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from strandline.cluster.demo import flights as data
from tests.cluster.real_cluster import RealCluster, real_cluster
from tests.programs.exactly_once.compare import Comparison, Made, compare
from tests.programs.exactly_once.run import Outcome, drive, main
from tests.programs.exactly_once.task import expected, transform

__all__ = ["real_cluster"]

WANTED = [b"a", b"b", b"c", b"d"]
WHOLE = [
    Made(0, 0, 0, 0, b"a"),
    Made(0, 2, 2, 1, b"c"),  # control batches leave holes
    Made(1, 0, 1, 0, b"b"),
    Made(1, 1, 3, 1, b"d"),
]


def outcome(found: Comparison, *, transactions: bool = True, committed: int = 4) -> Outcome:
    return Outcome(transactions, 2, 1.0, 0.1, 4, committed, {"kills": 1}, {"aborted": 2}, 0, [], found)


def test_what_is_there_once_and_in_order_is_exactly_once() -> None:
    found = compare(WHOLE, WANTED)
    assert found == Comparison(read=4)
    assert found.exactly_once
    assert outcome(found).ok


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (WHOLE[:3], "lost"),
        ([*WHOLE, Made(1, 2, 1, 0, b"b")], "doubled"),
        ([*WHOLE[:3], Made(1, 1, 3, 1, b"x")], "altered"),
        ([*WHOLE, Made(1, 2, 9, 2, b"x")], "foreign"),
        ([WHOLE[1]._replace(offset=0), WHOLE[0]._replace(offset=1), *WHOLE[2:]], "disordered"),
    ],
)
def test_each_flaw_is_seen(made: list[Made], what: str) -> None:
    found = compare(made, WANTED)
    flaws = {name: getattr(found, name) for name in ("lost", "doubled", "altered", "foreign", "disordered")}
    assert {name for name, count in flaws.items() if count} == {what}
    assert flaws[what] == 1
    assert len(found.examples) == 1
    assert not outcome(found).ok
    # At least once is what there is without transactions: what is there twice is no failure of it.
    assert outcome(found, transactions=False).ok == (what in {"doubled", "disordered"})


def test_offsets_behind_or_beyond_what_was_written_are_no_success() -> None:
    found = compare(WHOLE, WANTED)
    assert not outcome(found, committed=3).ok
    assert not outcome(found, committed=5).ok


def test_what_is_made_of_a_flight_shows_its_source() -> None:
    flights = data.load(200)
    assert len(set(expected(flights))) == 200
    made = json.loads(transform(flights[0].value))
    assert (made["route"], made["gain"]) == ("EWR-IAH", -9)
    other = flights[0].value.replace(b"EWR", b"EWQ")
    assert json.loads(transform(other))["of"] != made["of"]


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--workers", "0"], ["--nodes", "--bootstrap", "x:1"]])
def test_misuse(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)


def test_workers_that_are_killed_make_each_record_once(real_cluster: RealCluster, tmp_path: Path) -> None:
    flights = data.load(3000)
    done = drive(
        real_cluster.bootstrap, tmp_path, seconds=12, workers=3, transactions=True, seed=5, flights=flights
    )
    assert done.found == Comparison(read=3000), done.lines()
    assert done.ok, done.lines()
    assert Counter(done.done)["kills"] >= 2
