"""Each divergence, planted in what a node serves, is found; and a run says honestly what it has shown."""

from __future__ import annotations

import pytest

from tests.programs.divergence import run
from tests.programs.divergence.cases import (
    CASES,
    AbortedAsCommitted,
    Case,
    CommittedAsAborted,
    DeletedReturns,
    Served,
    StuckOffset,
)
from tests.programs.divergence.reading import Look, Record, table
from tests.programs.divergence.run import main, problems, verdict
from tests.programs.divergence.systems import KafkaNodes, StrandlineNodes
from tests.programs.divergence.walk import Found

NOWHERE = "127.0.0.1:1"


def served(committed: list[Record], uncommitted: list[Record] | None = None, *, stable: int = 9) -> Served:
    """What a node serves whose high watermark is 9."""
    return Served(committed, uncommitted or committed, Look([], set(), 9, stable))


def case(kind: type[Case], expected: dict[str, str]) -> Case:
    made = kind(NOWHERE)
    made.expected = expected
    return made


def test_a_right_table_is_right() -> None:
    for kind in CASES:
        assert case(kind, {"a": "2"}).judge(served([Record(1, "a", "1"), Record(3, "a", "2")])) == []


def test_a_key_that_returned() -> None:
    deleted = case(DeletedReturns, {"filler": "7"})
    wrong = deleted.judge(served([Record(0, "deleted", "value"), Record(8, "filler", "7")]))
    assert wrong == ["key 'deleted' has 'value', and must not be there"]


def test_an_aborted_record_that_is_served() -> None:
    aborted = case(AbortedAsCommitted, {"good": "committed"})
    wrong = aborted.judge(served([Record(0, "poison", "aborted"), Record(5, "good", "committed")]))
    assert wrong == ["key 'poison' has 'aborted', and must not be there"]


def test_a_committed_record_that_is_hidden() -> None:
    hidden = CommittedAsAborted(NOWHERE)
    hidden.expected, hidden.offset = {"key": "newer"}, 2
    old, new = Record(2, "key", "committed"), Record(5, "key", "newer")
    assert hidden.judge(served([new], [old, new])) == [
        "the record at 2 was committed, is there, and is hidden as aborted"
    ]
    assert hidden.judge(served([old, new])) == []
    assert hidden.judge(served([new])) == [], "it was superseded, and compacted"


def test_a_last_stable_offset_that_sticks() -> None:
    stuck = case(StuckOffset, {"key": "newer"})
    wrong = stuck.judge(served([], [Record(0, "key", "committed"), Record(5, "key", "newer")], stable=0))
    assert wrong == [
        "key 'key' has None, and must have 'newer'",
        "the last stable offset is 0, the high watermark 9, and no transaction is open",
    ]


def test_a_table_is_the_newest_of_each_key() -> None:
    records = [Record(0, "a", "1"), Record(1, "b", "1"), Record(2, "a", None), Record(3, "b", "2")]
    assert table(records) == {"b": "2"}


def found(**fields: object) -> Found:
    """A case that went well, but for these fields."""
    one = Found("a case", written=9, cleaned=8, held=["tombstone"], gone_after={"tombstone": 1.0})
    for name, value in fields.items():
        setattr(one, name, value)
    return one


@pytest.mark.parametrize(
    ("one", "said", "problem"),
    [
        (found(), "right", None),
        (
            found(cleaned=0), "nothing was compacted",
            "Strandline: a case: nothing was compacted, so this shows nothing",
        ),
        (found(wrong=["x"]), "DIVERGED", "Strandline: a case: x"),
        (found(wrong_later=["y"]), "DIVERGED later", "Strandline: a case: y"),
        (
            found(gone_after={}), "right",
            "Strandline: a case: still there long after the node came back: tombstone",
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_a_run(one: Found, said: str, problem: str | None) -> None:
    assert verdict(one) == said
    assert problems({StrandlineNodes.name: [one]}, [StrandlineNodes.name]) == ([problem] if problem else [])


def test_drivers_that_find_nothing_on_kafka_are_no_proof() -> None:
    name = KafkaNodes.name
    seen = [found(wrong=["x"]), found(wrong=["x"]), found(), found()]
    (problem,) = problems({name: seen}, [name])
    assert problem == f"{name}: only 2 of 4 were seen, so the drivers show little"
    assert problems({name: [*seen[:3], found(wrong=["x"])]}, [name]) == []


def test_a_cluster_that_does_not_serve_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    def refuse(*_: object) -> list[Found]:
        raise TimeoutError("not within 60 s: node 1 leads")

    monkeypatch.setattr(run, "run", refuse)
    assert main(["--folder", str(tmp_path)]) == 1
    assert "- FAILED: Strandline: not within 60 s: node 1 leads" in capsys.readouterr().out
