"""`scripts/bench sizes` measures every figure of every size, as a table and as JSON."""

from __future__ import annotations

import json
from functools import cache

import pytest

from tests.programs.bench import cluster_sizes
from tests.programs.bench.cluster_sizes import FIGURES, TINY, main


def test_the_tables_have_every_figure_of_every_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster_sizes, "measured", cache(cluster_sizes.measured))  # once for both forms
    assert main(["--tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| nodes / partitions | 3 / 200 | 10 / 200 |"
    assert len(lines) == 2 + len(FIGURES)
    assert main(["--tiny", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told) == len(TINY)
    for found in told.values():
        assert found.keys() == {figure.key for figure in FIGURES}
    three, ten = told.values()
    assert three["elections"] == 100, "a third of 200, and of the topic that was placed on top"
    assert ten["elections"] == 30
    assert three["metadata_bytes"] == ten["metadata_bytes"]
