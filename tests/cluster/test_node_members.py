"""`strandline node list` and `node add`: what they show of what nodes answer."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from strandline.cluster.commands import node_members as command
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_growth import NEEDED_LEVEL
from strandline.statemachine.controller.feature_levels import GROWTH

ROW = {
    "node": 1, "fenced": False, "draining": True, "rack": None, "controller_role": "voter", "replicas": 3,
    "leads": 1, "mesh_host": "10.0.0.1", "mesh_port": 7101, "kafka_host": "k", "kafka_port": 9092,
}  # fmt: skip
NODES = {"nodes": [ROW], "strangers": [{"node": 3, "folder": "ab"}], "replacement": None, "free_id": 5}


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    told: dict[str, Any] = {
        "/api/nodes": NODES,
        "/api/cluster": {"cluster_id": "harbour", "feature_level": GROWTH},
    }
    monkeypatch.setattr(command, "first_answer", lambda _, __, path: told[path])
    return told


def rows(*roles: str, dead: int = 0) -> list[dict[str, Any]]:
    return [
        {"node": node, "controller_role": role, "fenced": node == dead, "draining": node == 1}
        for node, role in enumerate(roles, 1)
    ]


def test_a_drained_node_is_waited_for_until_its_vote_has_gone_where_it_can() -> None:
    def keeps(*roles: str, level: int = GROWTH, dead: int = 0) -> bool:
        return command.keeps_its_vote(rows(*roles, dead=dead), 1, level)

    assert keeps("voter", "voter", "voter", "learner")
    assert keeps("voter", "voter", "voter", "voter"), "another votes already, and this one still does"
    assert not keeps("voter", "voter", "voter", "voter", level=GROWTH - 1), "there all vote"
    assert not keeps("learner", "voter", "voter", "voter")
    assert not keeps("voter", "voter", "voter"), "no other could have it"
    assert not keeps("voter", "voter", "voter", "learner", dead=4)
    assert keeps("voter", "voter"), "the other one is to vote alone"
    assert not keeps("voter", "voter", level=GROWTH - 1)
    earlier = [{"node": 1, "fenced": False, "draining": True}]
    assert not command.keeps_its_vote(earlier, 1, GROWTH), "an earlier release"


def test_a_removal_is_over_when_as_many_vote_as_should() -> None:
    assert command.votes_missing(rows("voter", "none", "voter", "learner"))
    assert not command.votes_missing(rows("voter", "voter", "voter", "learner"))
    assert not command.votes_missing(rows("voter", "voter", "learner", dead=3))


def test_the_level_is_the_state_machines() -> None:
    assert NEEDED_LEVEL == GROWTH


def test_nodes_are_listed_and_those_that_knock_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    command.nodes(admin="127.0.0.1:1")
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].split() == [
        "1", "alive,", "draining", "-", "voter", "3", "1", "10.0.0.1:7101", "k:9092"
    ]  # fmt: skip
    assert "a process comes as node 3 with data folder ab, which is not let in" in shown
    command.nodes(admin="127.0.0.1:1", as_json=True)
    assert json.loads(capsys.readouterr().out) == NODES


def test_the_file_of_a_new_node_is_whole_but_for_what_the_command_cannot_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.add(mesh="10.0.0.5:7105", rack="east", admin="127.0.0.1:1")
    file = tomllib.loads(capsys.readouterr().out)
    assert file["node"] == {"id": 5, "data": "/var/lib/strandline", "rack": "east"}
    assert file["cluster"]["seeds"] == ["10.0.0.1:7101"]
    assert file["cluster"]["secret"].startswith("<"), "which no node takes"
    assert file["mesh"] == {"host": "10.0.0.5", "port": 7105}


def test_no_file_is_printed_that_could_not_be_used(answers: dict[str, Any]) -> None:
    with pytest.raises(CommandFailed, match=r"--mesh 10.0.0.5: that is not host:port"):
        command.add(mesh="10.0.0.5", admin="127.0.0.1:1")
    answers["/api/cluster"]["feature_level"] = GROWTH - 1
    with pytest.raises(CommandFailed, match="strandline cluster upgrade"):
        command.add(mesh="10.0.0.5:7105", admin="127.0.0.1:1")
