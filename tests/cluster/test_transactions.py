"""`strandline transaction` against nodes that are played: what is made of their answers, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from strandline.node.admin.schemas import ABORTED, TRANSACTION
from tests.admin.answers import check
from tests.cluster.command import Done, strandline
from tests.cluster.played_node import PlayedNode

LIST = "/api/transactions?limit=1000"


def page(led: list[int], *rows: dict[str, Any], following: str | None = None) -> dict[str, Any]:
    """What a node answers that leads these of four coordinators."""
    return {
        "transactions": list(rows),
        "next": following,
        "coordinators": {"led": led, "coordinators_total": 4},
    }


NONE = page([0, 1])


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
    return f"{LIST}&transactional_id={tid}"


class Cluster:
    """Two nodes, of which the second coordinates copier/1, and the command that is asked of them."""

    def __init__(self, stack: ExitStack, capfd: Any, patch: pytest.MonkeyPatch) -> None:
        begin = page([0, 1], row("b"), row("c", updated_ms=4), following="c")
        rest = page([0, 1], row("d[x]"))
        self.first = PlayedNode(
            {LIST: (200, begin), f"{LIST}&after=c": (200, rest), one("copier%2F1"): (200, NONE)}
        )
        mine = page([2, 3], OPEN, row("c", "CompleteCommit", 3, updated_ms=9))
        found = page([2, 3], OPEN)
        self.second = PlayedNode(
            {
                LIST: (200, mine),
                f"{LIST}&state=Ongoing": (200, found),
                one("copier%2F1"): (200, found),
                one("c"): (200, page([2, 3], row("c", "CompleteCommit", 3))),
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
        return strandline(self._capfd, self._patch, "transaction", *arguments, "--admin", where)


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
    cluster.first.answers = {LIST: (200, NONE)}
    cluster.second.answers = {LIST: (200, page([2, 3]))}
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
    cluster.first.answers[one("x")] = (200, NONE)
    cluster.second.answers[one("x")] = (200, page([2, 3]))
    done = cluster.run("describe", "x")
    assert done.status == 1
    assert "no node that was asked coordinates x; see `strandline transaction list`" in done.err
    done = cluster.run("abort", "x", also="127.0.0.1:1")
    assert done.status == 1
    assert "127.0.0.1:1 does not answer" in done.err


def test_what_no_node_leads_is_said_to_be_missing(cluster: Cluster) -> None:
    cluster.first.answers[LIST] = (200, page([0], row("b")))
    done = cluster.run("list", "--json")
    assert done.status == 1
    (problem,) = json.loads(done.out)["problems"]
    assert problem.startswith("1 coordinator of 4 ")
    assert problem.endswith(": 1")
    # Led while the first page was made, and no more when the second was.
    cluster.first.answers[LIST] = (200, page([0, 1], row("b"), following="b"))
    cluster.first.answers[f"{LIST}&after=b"] = (200, page([], row("d")))
    done = cluster.run("list")
    assert done.status == 1
    assert "2 coordinators of 4 " in done.out
    cluster.first.answers[one("x")] = (200, NONE)
    cluster.second.answers[one("x")] = (200, page([2]))
    assert "1 coordinator of 4 " in cluster.run("describe", "x").err


def test_a_wrong_filter_is_a_mistake_and_no_node_that_is_away(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.answers[f"{LIST}&state=open"] = (400, {"error": "state is one of Empty, Ongoing, not 'open'"})
    done = cluster.run("list", "--state", "open")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("strandline: state is one of Empty")


def test_of_two_that_tell_of_an_id_the_newest_is_asked_to_abort(cluster: Cluster) -> None:
    cluster.first.answers[one("copier%2F1")] = (200, page([0, 1], {**OPEN, "number": 6, "updated_ms": 1}))
    assert cluster.run("abort", "copier/1").status == 0
    assert not [asked for asked in cluster.first.asked if asked[0] == "POST"]


@pytest.mark.parametrize("status", [500, 503])
def test_an_abort_without_a_clear_answer_is_not_told_as_refused(cluster: Cluster, status: int) -> None:
    cluster.second.answers["/api/transactions/abort"] = (status, {"error": "not answered within 30 s"})
    done = cluster.run("abort", "copier/1")
    assert done.status == 1
    assert "not answered within 30 s" in done.err
    assert "may be aborted, or not" in done.err
    assert "is not aborted" not in done.err


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
