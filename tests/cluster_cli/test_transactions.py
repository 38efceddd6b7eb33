"""`strandline transaction` against nodes that are played: what is made of their answers, and how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cluster import cli
from node.admin.schemas import ABORTED, TRANSACTION
from tests.admin.test_api import check
from tests.cluster_cli.test_collection import PlayedNode
from tests.cluster_cli.test_commands import Done

LIST = "/api/transactions?limit=1000"
NONE: dict[str, Any] = {"transactions": [], "next": None}


def row(tid: str, state: str = "Empty", number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "transactional_id": tid, "coordinator": 3, "state": state, "number": number, "producer_id": 4001,
        "producer_epoch": 2, "timeout_ms": 60_000, "started_ms": None if number == 0 else 1_700_000_000_000,
        "updated_ms": 5, "partitions": [], "groups": [], **more,
    }  # fmt: skip


OPEN = row(
    "copier/1", "Ongoing", 7,
    partitions=[{"topic": "orders", "partition": 2}, {"topic": None, "partition": 0}], groups=["readers"],
)  # fmt: skip


def one(tid: str) -> str:
    return f"/api/transactions?limit=1&transactional_id={tid}"


class Cluster:
    """Two nodes, of which the second coordinates copier/1, and the command that is asked of them."""

    def __init__(self, stack: ExitStack, capfd: Any, patch: pytest.MonkeyPatch) -> None:
        page = {"transactions": [row("b"), row("c", updated_ms=4)], "next": "c"}
        rest = {"transactions": [row("d[x]")], "next": None}
        self.first = PlayedNode(
            {LIST: (200, page), f"{LIST}&after=c": (200, rest), one("copier%2F1"): (200, NONE)}
        )
        mine = {"transactions": [OPEN, row("c", "CompleteCommit", 3, updated_ms=9)], "next": None}
        found = {"transactions": [OPEN], "next": None}
        self.second = PlayedNode(
            {
                LIST: (200, mine),
                f"{LIST}&state=Ongoing": (200, found),
                one("copier%2F1"): (200, found),
                one("c"): (200, {"transactions": [row("c", "CompleteCommit", 3)], "next": None}),
                "/api/transactions/abort": (
                    200,
                    {"transactional_id": "copier/1", "number": 7, "aborted": True},
                ),
            }
        )
        self.nodes = [stack.enter_context(self.first), stack.enter_context(self.second)]
        self._capfd, self._patch = capfd, patch

    def run(self, *arguments: str, also: str = "") -> Done:
        where = ",".join([node.address for node in self.nodes] + ([also] if also else []))
        self._patch.setattr(sys, "argv", ["strandline", "transaction", *arguments, "--admin", where])
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)


@pytest.fixture
def cluster(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, capfd, monkeypatch)


def test_the_played_rows_are_what_the_description_says() -> None:
    for played in (OPEN, row("b")):
        check(played, TRANSACTION)
    check({"transactional_id": "copier/1", "number": 7, "aborted": True}, ABORTED)


def test_all_nodes_ids_are_listed_and_of_two_that_tell_the_newest_counts(cluster: Cluster) -> None:
    done = cluster.run("list")
    assert done.status == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        ["b", "Empty", "0"],
        ["c", "CompleteCommit", "3"],
        ["copier/1", "Ongoing", "7"],
        ["d[x]", "Empty", "0"],
    ]
    assert lines[3][5:] == ["2023-11-14T22:13:20Z", "2", "1"]
    plain = json.loads(cluster.run("list", "--json").out)
    assert [one["transactional_id"] for one in plain["transactions"]] == ["b", "c", "copier/1", "d[x]"]
    assert plain["problems"] == []


def test_a_list_that_may_lack_some_says_so(cluster: Cluster) -> None:
    done = cluster.run("list", also="127.0.0.1:1")
    assert done.status == 1
    assert "127.0.0.1:1 does not answer" in done.out
    cluster.first.answers.clear()
    done = cluster.run("list", "--state", "Ongoing")
    assert done.status == 1
    assert "copier/1" in done.out
    cluster.second.answers = {f"{LIST}&state=Ongoing": (200, {"what": 1})}
    done = cluster.run("list", "--state", "Ongoing")
    assert (done.status, done.out) == (1, "")
    assert "no node answers" in done.err
    assert "of another release" in done.err


def test_no_ids_are_no_failure(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.answers = {LIST: (200, NONE)}
    done = cluster.run("list")
    assert (done.status, done.out.strip()) == (0, "no transactional ids")


def test_one_is_described_wherever_it_is_coordinated(cluster: Cluster) -> None:
    done = cluster.run("describe", "copier/1")
    assert done.status == 0
    for told in (
        "transaction 7 is Ongoing, began 2023-11-14T22:13:20Z",
        "producer 4001 epoch 2",
        "orders-2",
        "(deleted)-0",
        "readers",
    ):
        assert told in done.out
    assert json.loads(cluster.run("describe", "copier/1", "--json").out) == OPEN


def test_one_that_nobody_coordinates_is_named(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.answers[one("x")] = (200, NONE)
    done = cluster.run("describe", "x")
    assert done.status == 1
    assert "no node coordinates x" in done.err
    done = cluster.run("abort", "x", also="127.0.0.1:1")
    assert done.status == 1
    assert "1 node did not answer" in done.err


def test_the_transaction_that_was_seen_is_aborted(cluster: Cluster) -> None:
    done = cluster.run("abort", "copier/1")
    assert (done.status, done.out.strip()) == (0, "aborted: transaction 7 of copier/1")
    posted = [asked for asked in cluster.second.asked if asked[0] == "POST"]
    assert posted == [("POST", "/api/transactions/abort", {"transactional_id": "copier/1", "number": 7})]
    assert json.loads(cluster.run("abort", "copier/1", "--number", "7", "--json").out)["aborted"] is True


def test_what_is_not_open_is_not_aborted(cluster: Cluster) -> None:
    cluster.first.answers[one("c")] = (200, NONE)
    for arguments in (("c",), ("copier/1", "--number", "6")):
        done = cluster.run("abort", *arguments)
        assert done.status == 1
        assert "is not open" in done.err
    assert not [asked for asked in cluster.second.asked if asked[0] == "POST"]


def test_an_abort_that_is_refused_says_why(cluster: Cluster) -> None:
    cluster.second.answers["/api/transactions/abort"] = (409, {"error": "it has ended"})
    done = cluster.run("abort", "copier/1")
    assert done.status == 1
    assert "it has ended" in done.err
