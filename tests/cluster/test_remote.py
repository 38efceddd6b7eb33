"""The status of nodes that are known by their addresses, against nodes that are played."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.cluster.ports import free_ports
from strandline.cluster.remote import ask
from tests.cluster.played_node import PlayedNode


def answers(*fenced: bool) -> dict[str, tuple[int, Any]]:
    """Of node 1, when the controller counts those nodes as dead or not."""
    rows = [
        {"node": number, "kafka_host": "h", "kafka_port": 9092, "replicas": 3, "leads": 1, "fenced": each}
        for number, each in enumerate(fenced, 1)
    ]
    cluster = {"cluster_id": "c", "node": 1, "cluster_epoch": 7, "controller": {"leader": 1}}
    return {
        "/health": (200, {"problems": []}),
        "/api/cluster": (200, cluster),
        "/api/nodes": (200, {"nodes": rows}),
    }


@pytest.mark.parametrize(
    ("fenced", "silent", "told"),
    [
        (False, False, None),
        (True, False, "the controller counts it as dead; "),
        (True, True, "the controller counts it as dead; "),
        (False, True, "the controller has heard from it a moment ago; "),
    ],
)
def test_a_node_is_not_called_healthy_when_an_address_that_may_be_its_own_is_silent(
    fenced: bool, silent: bool, told: str | None
) -> None:
    with PlayedNode(answers(False, fenced)) as node:
        given = [node.address, *([f"127.0.0.1:{free_ports([1])[1].admin}"] if silent else [])]
        found = ask(given)
    problems = {row["node"]: row["problem"] for row in found["nodes"]}
    assert problems[1] is None
    assert problems[2] == (told and f"{told}its own address was not given, or does not answer")
    assert found["healthy"] is (not silent and not fenced)
