"""The benchmark works on both systems, notices what is wrong, and shows figures as they are."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs.bench import measures
from tests.programs.bench.measures import Result
from tests.programs.bench.report import Row, lines, plain, ratio, shown, table
from tests.programs.bench.systems import free_ports
from tests.programs.processes.control import NodeDied, NodeFailed, NodeProcess, running
from tests.programs.processes.counter import Counter, count, grow
from tests.programs.processes.latencies import histogram, merged, percentile


def bench(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.programs.bench.run", "raft", "--tiny", "--json", *arguments],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_load_runs_on_both_systems(tmp_path: Path) -> None:
    report = bench("--only", "load", "--folder", str(tmp_path))
    for system in ("stock", "ours"):
        figures = report[system]["8 in flight, one group"]["figures"]
        assert figures["rate"] > 0
        assert 0 < figures["p50"] <= figures["p99"]
    assert report["ok"]
    assert not list(tmp_path.iterdir())


def test_groups_idle_and_start_of_ours(tmp_path: Path) -> None:
    report = bench("--only", "groups", "idle", "start", "--no-stock", "--folder", str(tmp_path))
    assert report["ours"]["3 groups together"]["figures"]["rate"] > 0
    assert report["ours"]["5 idle groups"]["figures"]["rss"] > 1e6
    assert report["ours"]["start, empty folders"]["figures"]["start"] > 0


def test_recovery_and_snapshot_of_ours(tmp_path: Path) -> None:
    report = bench("--only", "recovery", "snapshot", "--no-stock", "--folder", str(tmp_path))
    assert report["ours"]["recovery, 2,000 entries"]["figures"]["open"] > 0
    assert report["ours"]["snapshot of 1 MB"]["figures"]["rate"] > 0


class FakeNode:
    """Answers every question in the same way."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer

    async def ask(self, do: str, **_: Any) -> dict[str, Any]:
        return self.answer


def load_of(acknowledged: int, refused: int) -> dict[str, Any]:
    return {
        "rate": 1.0, "acknowledged": acknowledged, "refused": refused, "refusals": ["why"] * refused,
        "latencies": histogram([0.001] * acknowledged),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "acknowledged", "refused", "problem"),
    [
        ([3, 3, 3], 3, 0, None),
        ([3, 3, 2], 3, 0, "3 commands were acknowledged, the nodes applied [3, 3, 2]"),
        ([4, 4, 4], 3, 0, "3 commands were acknowledged, the nodes applied [4, 4, 4]"),
        ([4, 4, 4], 3, 1, "1 commands were not acknowledged: why"),
        ([0, 0, 0], 0, 0, "0 commands were not acknowledged"),
    ],
)
def test_a_load_that_did_not_come_out_even_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
    counts: list[int],
    acknowledged: int,
    refused: int,
    problem: str | None,
) -> None:
    monkeypatch.setattr(measures, "_CONVERGE_SECONDS", 0.0)
    nodes: Any = [FakeNode(counts=[each]) for each in counts]
    result = asyncio.run(measures._sum_up(nodes, [load_of(acknowledged, refused)], 1.0))
    assert [text.removesuffix(": ") for text in result.problems] == ([problem] if problem else [])


def test_a_node_that_cannot_start_says_so(tmp_path: Path) -> None:
    async def start() -> None:
        async with running([NodeProcess("tests.programs.processes.raft_node", {}, tmp_path / "node-1")]):
            pass

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(start())
    assert isinstance(caught.value.exceptions[0], NodeDied)
    assert "KeyError" in (tmp_path / "node-1.log").read_text()


def test_a_request_that_fails_is_told_apart_from_a_process_that_died(tmp_path: Path) -> None:
    async def ask() -> str:
        settings = {
            "node": 1, "folder": str(tmp_path / "node-1"), "voters": [1], "groups": 1, "machine": "counter"
        }  # fmt: skip
        node = NodeProcess("tests.programs.processes.raft_node", settings, tmp_path / "node-1")
        async with running([node]):
            with pytest.raises(NodeFailed, match="no_such_thing"):
                await node.ask("no_such_thing")
            waiting = node.request("load", groups=[0], in_flight=1, warmup=0.0, seconds=30.0, size=200)
            await node.kill()
            with pytest.raises(NodeDied):
                await waiting
            return "both"

    assert asyncio.run(ask()) == "both"


def test_percentiles_of_merged_histograms_are_right_within_a_percent() -> None:
    values = [0.0001 * (1 + number) for number in range(1000)]
    as_sent = json.loads(json.dumps(histogram(values[1::2])))
    buckets = merged([histogram(values[::2]), as_sent])
    assert percentile(buckets, 0.5) == pytest.approx(0.05, rel=0.012)
    assert percentile(buckets, 0.99) == pytest.approx(0.099, rel=0.012)
    assert math.isnan(percentile({}, 0.5))


def test_the_counter_comes_back_from_its_snapshot() -> None:
    counter, restored = Counter(), Counter()
    counter.apply(1, 1, grow(1000))
    counter.apply(2, 1, count(200))
    restored.restore(counter.snapshot())
    assert (restored.count, len(restored.ballast)) == (2, 1000)
    assert restored.snapshot() == counter.snapshot()


def test_free_ports_are_distinct_and_ascending() -> None:
    ports = free_ports(5)
    assert ports == sorted(set(ports))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12345.6, "/s", "12,346 /s"), (9.94, "/s", "9.9 /s"), (1.5, "s", "1.50 s"), (0.0123, "s", "12.3 ms"),
        (0.0000123, "s", "12.3 µs"), (384e6, "B", "384 MB"), (63.2e6, "B/s", "63.2 MB/s"),
        (9260.0, "B", "9.26 kB"), (0.0168, "core", "1.68 %"), (None, "s", "-"), (math.nan, "s", "-"),
    ],
)  # fmt: skip
def test_figures_are_shown_with_three_digits_that_count(value: float | None, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_the_ratio_says_how_many_times_better_ours_is() -> None:
    rate, latency = Row("load", "rate", "rate", "/s", True), Row("load", "p50", "p50", "s")
    assert ratio(rate, 10.0, 1000.0) == "100 x"
    assert ratio(latency, 0.1, 0.001) == "100 x"
    assert ratio(latency, None, 0.001) == "-"


def test_the_table_has_a_row_for_each_figure_that_someone_has() -> None:
    rows = [Row("load", "rate", "rate", "/s", True), Row("load", "p50", "p50", "s"), Row("x", "y", "z", "s")]
    stock, ours = {"load": Result({"rate": 10.0})}, {"load": Result({"rate": 1000.0, "p50": 0.001})}
    cells = lines(rows, stock, ours)
    assert cells == [
        ["load", "rate", "10.0 /s", "1,000 /s", "100 x"],
        ["", "p50", "-", "1.00 ms", "-"],
    ]
    assert table(["", "", "stock", "ours", "better"], cells).splitlines()[2].startswith("load  rate")


def test_json_has_no_nan() -> None:
    assert plain({"load": Result({"p50": math.nan})})["load"]["figures"] == {"p50": None}
