"""The comparison of inline batches with objects only: its turns, its middle, its table."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.peers.kafka_cluster import KafkaCluster
from tests.programs.bench.inline_bench import OFF, ON, WORK, by_turns, lines
from tests.programs.bench.kafka_measure import TINY
from tests.programs.bench.measures import Result, middle


def test_every_figure_is_there_with_both(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-P", "-m", "tests.programs.bench.run", "inline", "--no-kafka",
            "--cases", "single", "--rounds", "1", "--seconds", "0.5", "--json", "--folder", str(tmp_path),
        ],
        capture_output=True, text=True, timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    for name in (OFF, ON):
        figures = report[name]["single"]["figures"]
        assert 0 < figures["p50"] <= figures["p99"]
        assert figures["cpu_record"] > 0
    assert list(tmp_path.iterdir()) == []


@dataclass
class Named:
    name: str
    pids: tuple[int, ...] = ()


def test_the_first_of_a_round_changes_and_the_middle_of_the_rounds_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    def work(peer: Named, _: object) -> Result:
        order.append(peer.name)
        return Result({"p50": float(len(order)), "records": 1.0})

    monkeypatch.setitem(WORK, "single", ("one at a time", work))
    peers = {name: Named(name) for name in (OFF, ON)}
    found = by_turns(peers, ["single"], TINY, 3)  # type: ignore[arg-type]
    assert order == [OFF, ON, ON, OFF, OFF, ON]
    assert found[OFF]["single"].figures["p50"] == 4.0
    assert found[ON]["single"].figures["p50"] == 3.0


def test_what_went_wrong_in_a_round_is_told() -> None:
    found = middle([Result({"p50": 2.0}), Result(problems=["too long"]), Result({"p50": 4.0})])
    assert (found.figures, found.problems) == ({"p50": 3.0}, ["too long"])


def test_what_is_wanted_follows_from_kafka_where_the_row_says_so() -> None:
    found = {
        name: {case: Result({"p50": 0.0012, "p99": 0.009}) for case in ("single", "latency")}
        for name in (KafkaCluster.name, OFF, ON)
    }
    assert [line[2:] for line in lines(["single", "latency"], found)] == [
        ["1.20 ms", "1.20 ms", "1.20 ms", "1.20 ms"],
        ["9.00 ms", "3.00 ms", "9.00 ms", "9.00 ms"],
        ["1.20 ms", "2.00 ms", "1.20 ms", "1.20 ms"],
        ["9.00 ms", "10.0 ms", "9.00 ms", "9.00 ms"],
    ]
    del found[KafkaCluster.name]
    assert [line[3] for line in lines(["single"], found)] == ["-", "-"]
