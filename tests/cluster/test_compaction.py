"""`strandline compaction` against nodes that are played: what is made of their answers."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import Any

import pytest

from strandline.cluster.commands.compaction import WORST
from strandline.cluster.compaction import MAX_PROBLEMS, partitions, problems, span
from strandline.cluster.node_answers import NodeAnswers
from tests.cluster.command import Done, strandline
from tests.cluster.played_node import PlayedNode

PAGES = "/api/compaction/partitions?limit=1000"


def status(node: int, *, clock: bool = True) -> dict[str, Any]:
    return {
        "node": node, "logs": 1, "resets": {"new": 1, "damaged": 0, "behind": 0},
        "entries": {"proposed": 1, "in_force": 1}, "clock_trusted": clock, "failing_count": 0, "failing": [],
    }  # fmt: skip


def local(mcco: int | None, problem: str | None = None) -> dict[str, Any]:
    return {
        "start_offset": 0, "clean_end": mcco, "log_end": mcco, "mcco": mcco, "mxfo": mcco, "segments": 1,
        "bytes": 12_345, "resets": 0, "reset_for": None, "reset_seconds": None, "problem": problem,
    }  # fmt: skip


def held(*nodes: int, level_one: bool = False, seconds: float = 7.0) -> dict[str, Any]:
    return {"nodes": list(nodes), "level_one": level_one, "seconds": seconds}


def leader(
    tombstones: dict[str, Any] | None, term: int = 4, mcco: tuple[int | None, ...] = (50, 40, None)
) -> dict[str, Any]:
    copies = [{"node": None, "voter": False, "mcco": 30, "mxfo": 35}]
    copies += [{"node": node, "voter": True, "mcco": each, "mxfo": each} for node, each in enumerate(mcco, 1)]
    return {
        "term": term, "copies": copies, "tombstones_held": tombstones, "markers_held": None, "error": None,
        "open_transaction": None, "lifting_error": None, "publication_error": None,
    }  # fmt: skip


def row(
    number: int,
    view: dict[str, Any] | None,
    mtro: int = 1_030,
    log: dict[str, Any] | None = None,
    *,
    due: bool = True,
) -> dict[str, Any]:
    return {
        "group": number + 1, "topic": "users", "partition": number, "local": log or local(50), "due": due,
        "mtro": mtro,
        "mxro": mtro + 5, "ripe_tombstones": 20, "ripe_markers": 25, "waiting_removals": 1,
        "ripens_at_ms": 5, "holds": [], "leader": view,
    }  # fmt: skip


class Nodes:
    """Nodes that answer with these rows, and the command that is asked of them."""

    def __init__(
        self, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, stack: ExitStack
    ) -> None:
        self._capfd, self._patch, self._stack = capfd, patch, stack
        self.nodes: list[PlayedNode] = []

    def add(self, *rows: dict[str, Any], clock: bool = True) -> None:
        node = len(self.nodes) + 1
        page = (200, {"partitions": list(rows), "next": None})
        answers = {
            "/api/compaction": (200, status(node, clock=clock)), PAGES: page, f"{PAGES}&topic=users": page,
        }  # fmt: skip
        self.nodes.append(self._stack.enter_context(PlayedNode(answers)))

    def run(self, *arguments: str, also: str = "", command: str = "status") -> Done:
        where = ",".join([node.address for node in self.nodes] + ([also] if also else []))
        return strandline(self._capfd, self._patch, "compaction", command, *arguments, "--admin", where)


@pytest.fixture
def nodes(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    with ExitStack() as stack:
        yield Nodes(capfd, monkeypatch, stack)


def test_a_copy_that_holds_deletions_back_is_named(nodes: Nodes) -> None:
    nodes.add(row(0, leader(held(3, level_one=True, seconds=7_380))))
    nodes.add(row(0, None, log=local(40)))
    done = nodes.run()
    assert done.status == 1
    assert "node 3 does not report to the leaders of 1 partition, whose deletions wait for it" in done.out
    assert "`strandline node replace 3`" in done.out
    header, line = (re.split(r" {2,}", line.strip()) for line in done.out.splitlines()[:2])
    assert header[-2:] == ["TOMBSTONES HELD BY", "MARKERS HELD BY"]
    assert line == [
        "users-0", "1", "1,030", "20", "1,035", "25", "0", "level one, node 3 (no report), 2 h 3 min", "-"
    ]  # fmt: skip


def test_a_node_whose_log_is_not_open_is_told_from_one_that_is_silent(nodes: Nodes) -> None:
    why = "the local log cannot be opened: Is a directory"
    nodes.add(row(0, leader(held(3, seconds=40.0), mcco=(50, None, None)), log=local(50)))
    nodes.add(row(0, None, log=local(None, why)))
    done = nodes.run()
    assert "node 3 does not report" in done.out
    nodes.add(row(0, None, log=local(None, why)))
    done = nodes.run()
    assert "node 3 (no log), 40 s" in done.out
    assert "does not report" not in done.out, "it cannot, and the cause is told"
    assert f"node 3: local log of users-0: {why}" in done.out


@pytest.mark.parametrize(
    ("copies", "due", "clean_end", "told"),
    [
        (held(2), False, 30, "node 2, not due"),
        (held(2), True, 30, "node 2, 7 s"),
        (held(2, level_one=True), False, 30, "level one, node 2, not due"),
        (held(level_one=True), False, 50, "level one, 7 s"),
        (held(3), False, 30, "node 3 (no report), 7 s"),
    ],
)
def test_copies_that_have_nothing_to_do_hold_nothing_back_in_vain(
    nodes: Nodes, copies: dict[str, Any], due: bool, clean_end: int, told: str
) -> None:
    """By min.cleanable.dirty.ratio a log of an idle topic may stay as it is for ever."""
    nodes.add(row(0, leader(copies), log={**local(50), "clean_end": clean_end}, due=False))
    nodes.add(row(0, None, log=local(40), due=due))
    nodes.add(row(0, None, log=local(40), due=False))
    done = nodes.run()
    assert told in done.out
    assert done.status == 0


def test_a_copy_whose_log_has_a_problem_holds_back_though_nothing_is_due_for_it(nodes: Nodes) -> None:
    """Such as a log that is stuck at a batch that cannot be read: no further record would help."""
    nodes.add(row(0, leader(held(2)), log=local(50), due=False))
    nodes.add(row(0, None, log=local(40, "the batch of offset 40 cannot be read"), due=False))
    nodes.add(row(0, None, log=local(40), due=False))
    assert "node 2, 7 s" in nodes.run().out


@pytest.mark.parametrize(
    ("copies", "seconds", "offset", "tombstones", "markers"),
    [
        (None, 75.0, None, *["transaction of producer 4000, open at 1,000, 1 min 15 s"] * 2),
        (held(2), 75.0, None, *["transaction of producer 4000, open at 1,000, 1 min 15 s"] * 2),
        (
            held(3),
            75.0,
            None,
            *["node 3 (no report), 7 s; transaction of producer 4000, open at 1,000, 1 min 15 s"] * 2,
        ),
        (None, 2.0, None, "-", "-"),
        (None, None, 49, "reader table at 49", "-"),
        (None, None, 50, "-", "-"),
        (held(2), None, 49, "reader table at 49", "node 2, not due"),
    ],
)
def test_what_keeps_all_copies_from_going_on_is_named(
    nodes: Nodes,
    copies: dict[str, Any] | None,
    seconds: float | None,
    offset: int | None,
    tombstones: str,
    markers: str,
) -> None:
    """They are equally far then, or have nothing to do: no copy is behind."""
    view = {**leader(copies), "markers_held": copies}
    if seconds is not None:
        view["open_transaction"] = {"producer_id": 4_000, "first_offset": 1_000, "seconds": seconds}
    first = row(0, view, due=False)
    if offset is not None:
        first["holds"] = [
            {"reader": name, "offset": at, "until_ms": 5} for name, at in (("late", 90), ("table", offset))
        ]
    nodes.add(first)
    nodes.add(row(0, None, log=local(40), due=False))
    lines = nodes.run().out.splitlines()
    assert re.split(r" {2,}", lines[1].strip())[-2:] == [tombstones, markers]


def test_what_an_open_transaction_holds_back_comes_first(nodes: Nodes) -> None:
    view = {**leader(None), "open_transaction": {"producer_id": 1, "first_offset": 2, "seconds": 75.0}}
    nodes.add(row(0, leader(held(2, seconds=74.0))), row(1, view), row(2, leader(None)))
    assert [line.split()[0] for line in nodes.run().out.splitlines()[1:4]] == [
        "users-1",
        "users-0",
        "users-2",
    ]


def test_nodes_of_an_earlier_release_are_understood(nodes: Nodes) -> None:
    view = leader(held(2))
    del view["open_transaction"], view["lifting_error"]
    log = {**local(50), "resets": 1, "reset_for": "a file is cut"}
    del log["reset_seconds"]
    nodes.add(row(0, view, log=log))
    done = nodes.run("users")
    assert done.status == 0, done.err
    assert "node 1: the local log of users-0 was reset: a file is cut" in done.out


def test_a_topic_is_shown_with_every_copy(nodes: Nodes) -> None:
    nodes.add(
        row(
            0,
            leader(held(2)),
            log={**local(50), "resets": 1, "reset_for": "a file is cut", "reset_seconds": 62.5},
        )
    )
    nodes.add(row(0, None, log=local(40, "the local log cannot be changed: No space left on device")))
    done = nodes.run("users")
    assert done.status == 1
    lines = [line.split() for line in done.out.splitlines()]
    assert ["users-0", "level", "one", "-", "-", "30", "35", "-", "-"] in lines
    assert ["users-0", "node", "2", "40", "40", "40", "40", "12,345", "0"] in lines
    assert ["users-0", "node", "1", "50", "50", "50", "50", "12,345", "1"] in lines
    assert "node 1: the local log of users-0 was reset 1 min 2 s ago: a file is cut" in done.out
    assert ["users-0", "node", "3", *["-"] * 6] in lines, "it did not report, and its node did not answer"
    assert "node 2: local log of users-0: the local log cannot be changed: No space left" in done.out


def test_json_has_it_all(nodes: Nodes) -> None:
    nodes.add(row(0, leader(held(3))), row(1, None))
    found = json.loads(nodes.run("--json").out)
    assert (found["partition_count"], found["problems"]) == (2, [])
    first, second = found["partitions"]
    assert (first["partition"], first["leader"]) == (1, None), "that has no leader comes first"
    assert (second["leading_node"], second["leader"]["tombstones_held"]["nodes"]) == (1, [3])
    assert second["local_logs"] == [{"node": 1, "due": True, **local(50)}]
    assert [node["node"] for node in found["nodes"]] == [1]


def test_only_the_worst_are_shown_and_all_if_asked(nodes: Nodes) -> None:
    nodes.add(*(row(number, leader(held(2, seconds=float(number)))) for number in range(WORST + 3)))
    done = nodes.run()
    assert done.out.splitlines()[1].startswith(f"users-{WORST + 2} ")
    assert done.out.splitlines()[-1] == "and 3 partitions more: --all"
    assert len(nodes.run("--all").out.splitlines()) == WORST + 4
    assert len(json.loads(nodes.run("--json").out)["partitions"]) == WORST


def test_a_node_that_does_not_answer_and_clocks_that_disagree_are_told(nodes: Nodes) -> None:
    nodes.add(row(0, None), clock=False)
    done = nodes.run(also="127.0.0.1:1")
    assert done.status == 1
    assert "no leader answers" in done.out
    assert "127.0.0.1:1 does not answer" in done.out
    assert "agrees on the time" not in done.out, "its time lets nothing ripen: it leads nothing"
    nodes.add(row(0, leader(None)), clock=False)
    assert "node 2: no majority of the nodes agrees on the time" in nodes.run().out


def test_work_that_does_not_end_is_told(nodes: Nodes) -> None:
    nodes.add(row(0, leader(None)))
    answers = nodes.nodes[0].answers
    slow = {"topic": "users", "partition": 3, "work": "clean", "seconds": 125.0}
    answers["/api/compaction"] = (200, {**status(1), "under_way": [slow, {**slow, "seconds": 60.0}]})
    done = nodes.run()
    assert done.status == 1
    why = "node 1: local log of users-3: it is being cleaned for 2 min 5 s already: check that"
    assert done.out.count("already") == done.out.count(why) == 1


def test_without_compacted_topics_it_says_so(nodes: Nodes) -> None:
    nodes.add()
    assert nodes.run().out == "no compacted partitions\n"
    done = nodes.run("users")
    assert done.status == 1
    assert "no node has a compacted replica of users" in done.err


def test_no_answer_at_all_is_an_error_with_a_cure(nodes: Nodes) -> None:
    done = nodes.run(also="127.0.0.1:1")
    assert done.status == 1
    assert "strandline cluster status" in done.err


def test_of_two_that_believe_to_lead_the_newer_counts() -> None:
    old = NodeAnswers("a", status=status(1), partitions=[row(0, leader(held(2), term=4))])
    new = NodeAnswers("b", status=status(2), partitions=[row(0, leader(held(3), term=5))])
    none = NodeAnswers("c", status=status(3), partitions=[row(0, None, mtro=9_999)])
    for order in ([old, new, none], [none, new, old]):
        (one,) = partitions(order)
        assert one.leads == 2
        assert sorted(one.locals) == [1, 2, 3]
    (one,) = partitions([none])
    assert (one.leads, one.leader, one.state["mtro"]) == (None, None, 9_999)


def test_problems_are_bounded_and_an_entry_that_fails_is_one() -> None:
    rows = [row(number, leader(None), log=local(None, "no space")) for number in range(MAX_PROBLEMS + 5)]
    view = leader(None)
    view["error"] = "the log did not answer within 10 s"
    view["lifting_error"] = "an object is damaged"
    view["publication_error"] = "no space"
    answer = NodeAnswers("a", status=status(1), partitions=[*rows, row(99, view)])
    told = problems([answer], partitions([answer]))
    assert len(told) == MAX_PROBLEMS + 1
    assert told[-1] == "and 8 more like these"
    answer.partitions = answer.partitions[-1:]
    told = problems([answer], partitions([answer]))
    assert told == [
        "users-99: the last entry of its leader: the log did not answer within 10 s",
        "users-99: records do not come into level one: an object is damaged",
        "users-99: level one is not published: no space",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"), [(59.4, "59 s"), (61, "1 min 1 s"), (7_380, "2 h 3 min"), (180_000, "2 d 2 h")]
)
def test_durations_have_their_two_largest_units(seconds: float, said: str) -> None:
    assert span(seconds) == said


# Holds.

HOLDS = "/api/compaction/holds"


def answer(*partitions: tuple[Any, ...]) -> tuple[int, dict[str, Any]]:
    names = ("partition", "offset", "until_ms", "lowest", "error")
    rows = [dict(zip(names, one, strict=True)) for one in partitions]
    complete = all(one["lowest"] is None and one["error"] is None for one in rows)
    return 200, {"complete": complete, "topic": "users", "reader": "table", "partitions": rows}


def test_a_hold_is_asked_for_as_it_was_given_and_told(nodes: Nodes) -> None:
    nodes.add()
    [node] = nodes.nodes
    node.answers[HOLDS] = answer((0, 1_200, 1_700_000_000_000, None, None))
    done = nodes.run("users", "table", "--offset", "0=1200", "--for", "60", command="hold")
    assert done.status == 0, done.err
    assert "users-0" in done.out
    assert "1,200" in done.out
    assert "2023-11-14 22:13:20 UTC" in done.out
    body = {"topic": "users", "reader": "table", "lease_seconds": 60.0, "offsets": {"0": 1200}}
    assert node.asked[-1] == ("POST", HOLDS, body)
    nodes.run("users", "table", command="hold")
    assert node.asked[-1][2] == {"topic": "users", "reader": "table", "lease_seconds": 3600.0}


def test_a_hold_that_was_lost_is_told_and_fails(nodes: Nodes) -> None:
    nodes.add()
    nodes.nodes[0].answers[HOLDS] = answer((0, None, None, 1_500, None), (1, None, None, None, "no leader"))
    done = nodes.run("users", "table", command="hold")
    assert done.status == 1
    assert "lost: below 1,500 records may be gone" in " ".join(done.out.split())
    assert "no leader" in done.out


def test_an_offset_that_is_none_is_refused_before_anything_is_asked(nodes: Nodes) -> None:
    nodes.add()
    for text in ("7", "a=7", "0=-7", "0="):
        done = nodes.run("users", "table", "--offset", text, command="hold")
        assert done.status == 2
        assert "PARTITION=OFFSET" in done.err
    assert nodes.nodes[0].asked == []


def test_holds_are_released_and_shown(nodes: Nodes) -> None:
    held_row = row(0, leader(None))
    held_row["holds"] = [{"reader": "table", "offset": 1_200, "until_ms": 1_700_000_000_000}]
    nodes.add(held_row)
    nodes.nodes[0].answers[f"{HOLDS}/release"] = answer((0, None, None, None, None))
    done = nodes.run("users", "table", command="release")
    assert done.status == 0, done.err
    assert nodes.nodes[0].asked[-1] == ("POST", f"{HOLDS}/release", {"topic": "users", "reader": "table"})
    shown = " ".join(nodes.run("users").out.split())
    assert "users-0 table 1,200 2023-11-14 22:13:20 UTC" in shown
