"""The prompt of `strandline sql`: which queries lines make, and that a wrong one ends nothing."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence

import pytest

from strandline.cluster.commands.sql_prompt import FIRST, NEXT, prompt, queries
from strandline.cluster.failure import CommandFailed

Line = str | type[BaseException]


def typed(lines: Sequence[Line], shown: list[str]) -> Callable[[str], str]:
    rest = iter(lines)

    def line(prompted: str = "") -> str:
        shown.append(prompted)
        found = next(rest, EOFError)
        if isinstance(found, str):
            return found
        raise found

    return line


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["select 1;"], ["select 1"]),
        (["select", "  1", ";", "select 2;;"], ["select\n  1", "select 2"]),
        (["", ";", "  ", "select 1"], []),  # the last one has no end
        (["select 1; -- and more", ";"], ["select 1; -- and more"]),
        (["select", KeyboardInterrupt, "select 2;"], ["select 2"]),
        (["select 1;", "Exit;", "select 2;"], ["select 1"]),
        (["\\q", "select 2;"], []),
        (["x" * 600_000, "x" * 600_000, "select 2;"], ["select 2"]),
    ],
)
def test_a_query_ends_with_a_semicolon_at_the_end_of_a_line(lines: list[Line], found: list[str]) -> None:
    assert list(queries(typed(lines, []))) == found


def test_a_wrong_query_is_told_in_a_line_and_the_next_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(builtins, "input", typed(["select", "no;", "stop;", "yes;"], shown))
    ran: list[str] = []

    def run(query: str) -> None:
        ran.append(query)
        if query == "stop":
            raise KeyboardInterrupt
        if query != "yes":
            raise CommandFailed("no such column", "correct it")

    prompt(run)
    assert ran == ["select\nno", "stop", "yes"]
    assert shown == [FIRST, NEXT, FIRST, FIRST, FIRST]
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[1:] == [
        "strandline: no such column; correct it",
        "strandline: the query was given up",
        "",  # behind the prompt that control-D ended
    ]
