"""The ends of logs, and what comes after them."""

from __future__ import annotations

from pathlib import Path

from strandline.cluster.last_lines import lines


def test_the_last_lines_of_each_log(tmp_path: Path) -> None:
    logs = {node: tmp_path / f"{node}.log" for node in (1, 2, 3)}
    logs[1].write_text("".join(f"line {number} {'x' * 100}\n" for number in range(5000)))
    logs[2].write_text("one\ntwo")
    found = list(lines(logs, 2, follow=False))
    assert [(node, line.split(" x")[0]) for node, line in found] == [
        (1, "line 4998"), (1, "line 4999"), (2, "one"), (2, "two")
    ]  # fmt: skip
    assert len(list(lines(logs, 100_000, follow=False))) == 5002
    assert list(lines(logs, 0, follow=False)) == []


def test_following_gives_whole_lines_as_they_come_and_a_new_log_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\nlast\nhal")
    following = lines({1: log}, 1, follow=True)
    assert next(following) == (1, "last")
    with log.open("a") as more:
        more.write("f\nnext\n")
    assert [next(following), next(following)] == [(1, "half"), (1, "next")]
    log.write_text("new\n")
    assert next(following) == (1, "new")
