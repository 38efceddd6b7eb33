"""`strandline node drain`: what it tells while it waits, and when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.cluster.commands import node as command
from strandline.cluster.failure import MISUSED, CommandFailed


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


@pytest.mark.parametrize("last", [{"replicas": 6, "draining": False}, {"node": 4, "replicas": 6}])
def test_a_drain_that_another_command_ended_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, last: dict[str, Any]
) -> None:
    """By `--undo`, or by `node remove`. The first answer is of a node that has not heard of the drain yet."""
    rows = [{"replicas": 8, "draining": False}, {"replicas": 6, "draining": True}, last]
    with pytest.raises(CommandFailed, match="node 3 is not drained any more, and has 6 of 8 replicas"):
        drained(monkeypatch, rows)


def test_a_node_without_replicas_is_drained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drained(monkeypatch, [{"replicas": 3, "without_room": 3}, {"replicas": 0, "without_room": 0}])
    assert "node 3 is drained: it has no replicas" in capsys.readouterr().out


def test_options_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(CommandFailed, match="--for is for --leaders; add --leaders") as raised:
        command.drain(3, seconds=300.0, admin="127.0.0.1:1")
    assert raised.value.status == MISUSED
    with pytest.raises(CommandFailed, match="waits until the node leads nothing; leave out --timeout 0"):
        command.drain(3, leaders=True, timeout=0.0, admin="127.0.0.1:1")
