"""`strandline node remove`: what it waits for, and what it says."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.cluster.commands import node as command
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_files import Description
from strandline.cluster.own_process import OwnProcess
from strandline.cluster.ports import usual_ports

UNDER_WAY = {"node": 3, "leaving": 1}


def remove(
    monkeypatch: pytest.MonkeyPatch, posts: list[str | None], gets: list[dict[str, Any] | None]
) -> None:
    """Run the command against nodes that refuse with these texts, then tell these replacements; the last ones
    for ever."""
    refusals, replacements = iter(posts), iter(gets)

    def told(rest: Iterator[Any], last: Any) -> Any:
        return next(rest, last)

    def first_answer(_: Any, method: str, path: str, *__: Any, **___: Any) -> dict[str, Any]:
        if method == "GET":
            return {"nodes": [], "replacement": told(replacements, gets[-1])}
        assert path == "/api/nodes/remove"
        if (why := told(refusals, posts[-1])) is not None:
            raise CommandFailed(why, "")
        return {"node": 3, "leaving": 1}

    monkeypatch.setattr(command, "first_answer", first_answer)
    monkeypatch.setattr(command, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(command, "_FENCED_SECONDS", 0.05)
    command.remove(3, timeout=0.05, admin="127.0.0.1:1")


def test_a_node_that_has_just_stopped_is_asked_for_again_until_it_counts_as_dead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remove(monkeypatch, ["Node 3 is alive: stop it", None], [UNDER_WAY, None])
    assert "node 3 is removed" in capsys.readouterr().out


@pytest.mark.parametrize("why", ["Node 3 is alive: stop its process", "Node 3 has replicas of a: move them"])
def test_what_stands_in_the_way_is_told(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        remove(monkeypatch, [why], [None])


def test_a_node_that_lives_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def first_answer(_: Any, method: str, *__: Any, **___: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if method == "GET":
            return {"nodes": [{"node": 3, "connected": True, "fenced": False}]}
        raise CommandFailed("Node 3 is alive: stop its process first", "")

    monkeypatch.setattr(command, "first_answer", first_answer)
    monkeypatch.setattr(command, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(command, "_LIVES_SECONDS", 0.0)
    with pytest.raises(CommandFailed, match="Node 3 is alive"):
        command.remove(3, timeout=60.0, admin="127.0.0.1:1")
    assert asked == 2


def test_a_member_that_stays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed) as raised:
        remove(monkeypatch, [None], [UNDER_WAY])
    assert raised.value.cause == "node 3 is still a member of the controller's group after 0.05 s"
    assert raised.value.cure.startswith("it goes on by itself")


def test_a_node_that_another_command_started_meanwhile_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A removal takes a while, and no lock is held for so long."""
    Description.new(tmp_path, usual_ports((1, 2, 3)), None, ()).create()
    started = OwnProcess(4711, "boot", 1, ("node",))

    def first_answer(_: Any, method: str, *__: Any, **___: Any) -> dict[str, Any]:
        if method == "POST":
            other = Description.load(tmp_path)
            assert other is not None
            other.nodes[1].process = started
            other.save()
        return {"nodes": [], "replacement": None}

    monkeypatch.setattr(command, "first_answer", first_answer)
    command.remove(3, timeout=1.0, cluster=tmp_path)
    found = Description.load(tmp_path)
    assert found is not None
    assert (sorted(found.nodes), found.gone, found.nodes[1].process) == ([1, 2], (3,), started)


def test_a_removed_node_whose_process_runs_again_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No command could end a process that the folder does not name, and the cluster would stay degraded."""
    made = Description.new(tmp_path, usual_ports((1, 2, 3)), None, ())
    made.create()
    process = OwnProcess.spawn([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", {})
    made.nodes[3].process = process
    made.save()
    monkeypatch.setattr(command, "first_answer", lambda *_, **__: {"nodes": [], "replacement": None})
    try:
        with pytest.raises(
            CommandFailed, match=r"was started again .*; end it with `strandline cluster stop 3`"
        ):
            command.remove(3, timeout=1.0, cluster=tmp_path)
    finally:
        process.signal(signal.SIGKILL)
        assert process.wait(60.0)
    command.remove(3, timeout=1.0, cluster=tmp_path)
    found = Description.load(tmp_path)
    assert found is not None
    assert sorted(found.nodes) == [1, 2]
