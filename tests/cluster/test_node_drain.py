"""`strandline node drain`: what it tells while it waits, and when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.cluster.commands import node as command
from strandline.cluster.failure import CommandFailed


def drained(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> None:
    """Run the command against a node that tells these rows of node 3, the last one for ever."""
    told: Iterator[dict[str, Any]] = iter(rows)
    last = rows[-1]

    def first_answer(_: Any, method: str, path: str, *__: Any, **___: Any) -> dict[str, Any]:
        if method == "POST":
            return {"node": 3, "draining": True, "replicas": 8}
        if path == "/api/cluster":
            return {"feature_level": 5}
        return {"nodes": [{"node": 3, **next(told, last)}]}

    monkeypatch.setattr(command, "first_answer", first_answer)
    clock = count()
    # Looks take no time but this, however busy the machine is.
    played = SimpleNamespace(monotonic=lambda: 0.01 * next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr(command, "time", played)
    command.drain(3, timeout=0.05, admin="127.0.0.1:1")


def test_replicas_that_have_nowhere_to_go_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed) as raised:
        drained(monkeypatch, [{"replicas": 8, "without_room": 0}, {"replicas": 6, "without_room": 5}])
    assert "node 3 still has 6 of 8 replicas after 0.05 s, 5 of them with no other node to go to" in str(
        raised.value
    )
    assert ": start or add a node" in raised.value.cause
    assert "once that is mended" in raised.value.cure


def test_topics_below_their_minimum_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed) as raised:
        drained(monkeypatch, [{"replicas": 2, "without_room": 0, "below_minimum": ["a", "b"]}])
    assert "fewer replicas than min.insync.replicas: lower that of a, b" in raised.value.cause
    assert "once that is mended" in raised.value.cure


def test_partitions_that_cannot_move_without_a_majority_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed) as raised:
        drained(monkeypatch, [{"replicas": 1, "without_majority": ["last"]}])
    assert (
        "without a majority of live replicas, which cannot move: last: start the nodes" in raised.value.cause
    )
    assert "once that is mended" in raised.value.cure


def test_a_drain_that_is_only_slow_blames_no_lack_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of an earlier release does not tell of room."""
    with pytest.raises(CommandFailed) as raised:
        drained(monkeypatch, [{"replicas": 6}])
    assert raised.value.cause == "node 3 still has 6 of 8 replicas after 0.05 s"


def test_a_node_without_replicas_is_drained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drained(monkeypatch, [{"replicas": 3, "without_room": 3}, {"replicas": 0, "without_room": 0}])
    assert "node 3 is drained: it has no replicas" in capsys.readouterr().out
