"""`strandline gc` against nodes that are played: what is made of their answers, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from strandline.cluster.collection import REASONS, collectable, lowest, why
from strandline.cluster.node_answers import NodeAnswers
from strandline.node.admin.schemas import COLLECTION
from tests.cluster.command import Done, strandline
from tests.cluster.played_node import PlayedNode

GOOD = {
    "node": 1,
    "cluster_epoch": 40,
    "max_collectable_epoch": 38,
    "held_back": None,
    "collector": {
        "paused": False, "waiting": False, "broken": None, "last_error": None, "bound": 36, "lag_epochs": 3,
        "lag_seconds": 31.0, "shards": [1], "sweeps": 2, "lists": 3, "listed": 1234, "deleted": 1200,
        "foreign": 0, "errors": 0,
    },
    "clock": {"trusted": True, "offset_ms": 0},
    "level_one": {
        "unreconciled_bytes": 5000, "unreconciled_seconds": 2.0, "undecided_objects": 0,
        "retention_by_time": True, "failing_count": 0, "failing": [],
    },
}  # fmt: skip


def status(node: int, m: int = 38, held: dict[str, Any] | None = None, **collector: Any) -> dict[str, Any]:
    return {
        **GOOD, "node": node, "max_collectable_epoch": m, "held_back": held,
        "collector": {**GOOD["collector"], **collector},  # type: ignore[dict-item]
    }  # fmt: skip


def held(reason: str = "unreconciled", since: int | None = None, leader: int | None = 2) -> dict[str, Any]:
    return {
        "topic": "orders", "partition": 3, "group": 9, "leader": leader, "reason": reason, "since_ms": since,
    }  # fmt: skip


def row(group: int, m: int, heard: int | None = 5) -> dict[str, Any]:
    return {
        "topic": "orders", "partition": group, "group": group, "leader": 1, "max_collectable_epoch": m,
        "heard_from_term": heard,
    }  # fmt: skip


class Cluster:
    """Three nodes, and the command that is asked of them."""

    def __init__(
        self, nodes: list[PlayedNode], capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.nodes = nodes
        self._capfd = capfd
        self._patch = patch

    def run(self, *arguments: str, also: str = "") -> Done:
        where = ",".join([node.address for node in self.nodes] + ([also] if also else []))
        return strandline(self._capfd, self._patch, "gc", *arguments, "--admin", where)


@pytest.fixture
def cluster(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    rows = [row(group, 30 + group) for group in range(1, 13)]
    with ExitStack() as stack:
        nodes = []
        for node in (1, 2, 3):
            pages = {
                "/api/gc": (200, status(node)),
                "/api/gc/partitions?limit=1000": (200, {"partitions": rows[:7], "next": 7}),
                "/api/gc/partitions?limit=1000&after=7": (200, {"partitions": rows[7:], "next": None}),
                "/api/gc/pause": (200, {"paused": True}),
                "/api/gc/resume": (200, {"paused": False}),
                "/api/gc/reset": (200, {"node": node, "reset": True}),
                "/api/gc/dry-run?limit=7": (
                    200,
                    {"node": node, "epoch": 36, "objects": 2, "shards": {str(node): 2, "9": 0},
                     "names": [f"l0/{node}"], "more": node == 3},
                ),
            }  # fmt: skip
            nodes.append(stack.enter_context(PlayedNode(pages)))
        yield Cluster(nodes, capfd, monkeypatch)


def test_status_shows_the_lowest_m_and_the_worst_partitions_first(cluster: Cluster) -> None:
    cluster.nodes[1].answers["/api/gc"] = (200, status(2, 31, held(since=1_700_000_000_000)))
    done = cluster.run("status")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "M 31 at cluster epoch 40; collecting"
    assert lines[1] == (
        "held back by orders-3 (led by node 2): its batches wait for level one since 2023-11-14T22:13:20Z"
    )
    shown = [line.split()[0] for line in lines if line.startswith("orders-")]
    assert shown == [f"orders-{number}" for number in range(1, 11)], "the lowest ten, from both pages"
    assert lines[-1] == "and 2 partitions more: --all"
    assert cluster.run("status", "--all").out.count("orders-") == 13, "one of them is in the second line"


def test_status_as_json_is_everything(cluster: Cluster) -> None:
    cluster.nodes[0].answers["/api/gc/partitions?limit=1000"] = (
        200,
        {"partitions": [row(1, 35)], "next": None},
    )
    done = cluster.run("status", "--all", "--json")
    plain = json.loads(done.out)
    assert (plain["max_collectable_epoch"], plain["paused"], plain["problems"]) == (38, False, [])
    assert [node["node"] for node in plain["nodes"]] == [1, 2, 3]
    by_group = {each["group"]: each["max_collectable_epoch"] for each in plain["partitions"]}
    assert (by_group[1], by_group[2], len(by_group)) == (35, 32, 12), "the highest that any node heard"
    plain = json.loads(cluster.run("status", "--json").out)
    assert (len(plain["partitions"]), plain["partition_count"]) == (10, 12)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"broken": "an object too many"}, "node 2: its collector stopped: an object too many"),
        ({"last_error": "list l0/: away"}, "node 2: its collector fails: list l0/: away"),
    ],
)
def test_what_does_not_work_is_told_and_ends_with_1(
    cluster: Cluster, change: dict[str, Any], told: str
) -> None:
    cluster.nodes[1].answers["/api/gc"] = (200, status(2, **change))
    done = cluster.run("status")
    assert done.status == 1
    assert told in done.out.splitlines()
    assert json.loads(cluster.run("status", "--json").out)["problems"] == [told]


def test_clocks_and_failing_partitions_are_problems_too(cluster: Cluster) -> None:
    failing = [{"topic": "a[b]", "partition": 0, "unreconciled_seconds": 9.0, "errors": ["x", "y"]}]
    cluster.nodes[2].answers["/api/gc"] = (
        200,
        {
            **status(3),
            "clock": {"trusted": False, "offset_ms": 0},
            "level_one": {**GOOD["level_one"], "failing": failing, "failing_count": 4},  # type: ignore[dict-item]
        },
    )
    done = cluster.run("status")
    assert done.status == 1
    assert "node 3: a[b]-0: x; y" in done.out
    assert "node 3: and 3 more partitions" in done.out
    assert "agrees on the time" in done.out


def test_paused_is_told_and_is_no_problem(cluster: Cluster) -> None:
    cluster.nodes[0].answers["/api/gc"] = (200, status(1, paused=True))
    done = cluster.run("status")
    assert done.status == 0
    assert "PAUSED" in done.out
    assert "`strandline gc resume`" in done.out


def test_a_node_that_does_not_answer_is_a_problem_and_without_any_there_is_no_status(
    cluster: Cluster,
) -> None:
    done = cluster.run("status", also="127.0.0.1:1")
    assert done.status == 1
    assert "127.0.0.1:1 does not answer" in done.out
    for node in cluster.nodes:
        node.answers["/api/gc"] = (503, {"error": "8 requests are being answered"})
    done = cluster.run("status")
    assert (done.status, done.out) == (1, "")
    assert done.err.count("\n") == 1
    assert "8 requests are being answered" in done.err
    assert "strandline cluster status" in done.err
    cluster.nodes[0].answers["/api/gc"] = (200, ["not a node"])
    assert "not a node's HTTP port" in cluster.run("status").err


def test_the_switch_is_asked_of_one_node_and_a_reset_of_all(cluster: Cluster) -> None:
    assert cluster.run("pause") == (0, "paused: no node deletes records from storage\n", "")
    assert cluster.run("resume") == (0, "resumed: all nodes collect\n", "")
    assert json.loads(cluster.run("pause", "--json").out) == {"paused": True}
    posts = [[each for each in node.asked if each[0] == "POST"] for node in cluster.nodes]
    assert posts[0] == [
        ("POST", "/api/gc/pause", {}), ("POST", "/api/gc/resume", {}), ("POST", "/api/gc/pause", {})
    ]  # fmt: skip
    assert posts[1:] == [[], []]
    assert cluster.run("reset") == (0, "reset: node 1, 2, 3\n", "")
    assert json.loads(cluster.run("reset", "--json").out) == {"reset": [1, 2, 3]}
    cluster.nodes[0].answers["/api/gc/pause"] = (503, {"error": "no controller"})
    assert cluster.run("pause").status == 0, "another node is asked"
    cluster.nodes[1].answers["/api/gc/reset"] = (500, {"error": "a bug"})
    done = cluster.run("reset")
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert "a bug" in done.err
    assert "done on node 1, 3" in done.err


def test_a_dry_run_counts_and_lists_nothing_twice(cluster: Cluster) -> None:
    done = cluster.run("dry-run", "--limit", "7")
    assert done.status == 0
    assert [line.split() for line in done.out.splitlines()[1:]] == [
        ["1", "36", "2", "1:", "2,", "9:", "0"],
        ["2", "36", "2", "2:", "2,", "9:", "0"],
        ["3", "36", "2", "or", "more", "3:", "2,", "9:", "0"],
    ]
    assert "l0/" not in done.out
    assert cluster.run("dry-run", "--limit", "7", "--names").out.splitlines()[-3:] == ["l0/1", "l0/2", "l0/3"]
    assert len(json.loads(cluster.run("dry-run", "--limit", "7", "--json").out)["nodes"]) == 3
    assert cluster.run("dry-run", "--limit", "0").status == 2


def test_every_reason_has_words() -> None:
    reasons = COLLECTION["properties"]["held_back"]["properties"]["reason"]["enum"]
    assert set(reasons) == set(REASONS)
    assert why(None) == "nothing: it follows the cluster epoch"
    assert why(held("no_leader", leader=None)) == "orders-3: no leader is known"
    assert "leased checkpoint" in why(held("checkpoint"))


def test_the_highest_of_a_partition_and_the_lowest_m() -> None:
    one = NodeAnswers("a", None, status(1, 20), [row(1, 5, None), row(2, 9)])
    two = NodeAnswers("b", None, status(2, 20, held()), [row(1, 7), row(2, 8)])
    gone = NodeAnswers("c", "no answer")
    merged = collectable([one, two, gone])
    assert [(each["group"], each["max_collectable_epoch"]) for each in merged] == [(1, 7), (2, 9)]
    assert merged[0]["heard_from_term"] == 5
    assert lowest([gone, one, two])["node"] == 2, "of equals the one that has a reason"
