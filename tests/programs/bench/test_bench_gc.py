"""`scripts/bench gc`: what it measures, and that it says so when something went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.node.gc.collectable_epochs import Maximum
from tests.programs.bench import gc_bench, gc_cluster, gc_parts
from tests.programs.bench.gc_bench import SCALES, cluster, rows
from tests.programs.bench.gc_cluster import Counted
from tests.programs.bench.gc_price import dollars
from tests.programs.bench.measures import Result

TINY = SCALES["tiny"]


def test_every_part_gives_the_figures_of_the_table(tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable, "-P", "-m", "tests.programs.bench.run", "gc", "--tiny",
            "--only", "worker", "collector", "listing", "gossip",
            "--folder", str(tmp_path), "--write", str(written),
        ],
        capture_output=True, text=True, timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("bench gc ok: 6 sections, ")
    report = json.loads(written.read_text())
    assert report["ok"]
    assert "prices assumed" in report["assumed"]
    found = report["strandline"]
    for row in rows(TINY):
        if row.section in found:
            assert found[row.section]["figures"][row.figure] is not None, row
            assert row.what in done.stdout
    assert found["collector"]["figures"]["rate"] > 0
    assert (
        found["nothing to delete, 100 live"]["figures"]["lists"]
        == (found["nothing to delete, 1,000 live"]["figures"]["lists"])
    )
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_objects_that_are_left_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_may_go = Maximum(gc_parts.EPOCH - 1, gc_parts.EPOCH, None, None, None, None)
    monkeypatch.setattr(gc_parts._Collecting, "maximum", lambda _: nothing_may_go)
    assert gc_parts.collect(tmp_path, 10).problems == ["0 of 10 objects were deleted, 10 are left"]


def test_what_requests_cost() -> None:
    assert dollars({"put": 1000, "list": 1000, "get": 1000, "get_range": 1000, "delete": 5000}) == (
        pytest.approx(0.005 + 0.005 + 0.0004 + 0.0004)
    )


def test_requests_are_those_of_the_nodes_and_their_workers() -> None:
    before = Counted(0.0, 0.0, {"strandline_store_requests_total put": 5})
    after = Counted(
        9.0, 0.0,
        {
            "strandline_store_requests_total put": 9, "strandline_store_requests_total list": 3,
            "strandline_level_one_builder_puts_total": 2, "strandline_level_one_builder_gets_total": 7,
        },
    )  # fmt: skip
    made = after.requests(before)
    assert {name: count for name, count in made.items() if count} == {"put": 6, "list": 3, "get_range": 7}


def test_a_cluster_that_does_not_start_is_a_problem_and_is_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downs = []

    class Broken:
        def __init__(self, *_: object) -> None: ...
        def up(self) -> None:
            raise TimeoutError("no")

        def down(self) -> None:
            downs.append(True)

    monkeypatch.setattr(gc_cluster, "Nodes", Broken)
    results = cluster(lambda nodes: {}, tmp_path, ())
    assert results == {"produce": Result(problems=["TimeoutError('no')"])}
    assert downs == [True]


def test_a_problem_of_ours_is_told_and_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gc_bench, "parts", lambda *_: {"collector": lambda: Result(problems=["it broke"])})
    assert gc_bench.main(["--only", "collector", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "- FAILED: Strandline: collector: it broke" in told
    assert "bench gc failed" in told
    assert gc_bench.main(["--only", "collector", "--folder", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["collector: it broke"]
