"""Whatever stands on the command line: an end with a status and at most one line, and never a stack trace."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.command import nowhere, strandline
from tests.cluster.odd_words import WORDS

COMMANDS = {
    "topic create": ("T", "--partitions", "--replication-factor", "--config"),
    "topic describe": ("T",),
    "topic alter": ("T", "--config", "--unset", "--partitions"),
    "topic trim": ("T", "--before", "--partition"),
    "topic delete": ("T",),
    "group describe": ("T",),
    "group delete": ("T",),
    "group reset-offsets": ("T", "--topic", "--from", "--partition"),
    "produce": (
        "T", "--file", "--key", "--key-separator", "--header", "--format", "--partition", "--compression",
        "--timeout",
    ),
    "consume": ("T", "--partition", "--from", "--max", "--format", "--group", "--timeout"),
    "checkpoint": ("T", "--lease", "--timeout", "--renew"),
    "transaction list": ("--state",),
    "transaction describe": ("T",),
    "transaction abort": ("T",),
    "gc status": (),
    "gc dry-run": ("--limit",),
    "cluster status": (),
    "cluster logs": ("T", "--last"),
    "cluster kill": ("T",),
    "cluster start": ("T", "--timeout"),
    "cluster restart": ("T", "--timeout"),
    "audit": ("--cluster-id", "--option", "--grace"),
    "export": (
        "T", "--to", "--partition-by", "--from", "--lost-records", "--check", "--file-mb", "--storage",
        "--cluster-id", "--option", "--to-option",
    ),
    "sql": ("T", "--format", "--max", "--storage", "--cluster-id", "--option", "--master"),
    "version": (),
    "help": ("T",),
}  # fmt: skip
WHERE = {"topic": "--bootstrap", "group": "--bootstrap", "produce": "--bootstrap", "consume": "--bootstrap"}
WHERE |= {"checkpoint": "--admin", "transaction": "--admin", "gc": "--admin"}


def lines(rng: random.Random, nowhere: str) -> Iterator[list[str]]:
    """Every option with every word, then some with each other."""

    def line(command: str, *given: str) -> list[str]:
        words = [*command.split()]
        for each in given:
            words += [rng.choice(WORDS)] if each == "T" else [each, rng.choice(WORDS)]
        where = WHERE.get(words[0])
        if where is not None and rng.random() < 0.8:
            words += [where, nowhere if rng.random() < 0.7 else rng.choice(WORDS)]
        return words

    for command, options in COMMANDS.items():
        for _ in range(5):
            yield line(command, *rng.sample(options, rng.randint(0, len(options))))


def test_no_value_ends_in_a_stack_trace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.buffer.readline", lambda size: b"", raising=False)
    run = partial(strandline, capfd, monkeypatch)
    for words in lines(random.Random(7), nowhere()):
        done = run(*words)
        assert done.status in (0, 1, 2), words
        assert "Traceback" not in done.err, words
        assert "should not have happened" not in done.err, (words, done.err)
        if done.status:
            assert done.err.startswith("strandline: "), (words, done)
            assert done.err.count("\n") == 1, (words, done.err)
    assert list(tmp_path.iterdir()) == []


def test_a_query_that_is_no_text_is_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"select \xff"), "utf-8"))
    done = strandline(capfd, monkeypatch, "sql")
    assert done == (2, "", "strandline: stdin is no text (invalid start byte); write the query in UTF-8\n")


def test_a_mistake_of_the_program_is_one_line_as_well(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.cluster.command_line.platform.python_version", lambda: 1 / 0)
    done = strandline(capfd, monkeypatch, "version")
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert "ZeroDivisionError" in done.err
    assert "at cluster/command_line.py:" in done.err


def test_bytes_that_are_no_text_reach_no_library(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = strandline(capfd, monkeypatch, "topic", "describe", "\udcff", "--bootstrap", nowhere())
    assert done == (2, "", "strandline: b'\\xff' is not text; write arguments in UTF-8\n")


@pytest.mark.parametrize("command", ["audit --cluster-id c", "cluster restore", "sql select --cluster-id c"])
def test_options_that_no_storage_takes_are_refused_before_it_is_opened(
    command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partial(strandline, capfd, monkeypatch, *command.split(), "--storage", "s3://bucket/prefix")
    done = run("--option", "allow_http=true")
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(
        "strandline: --option allow_http: it is not an option of an object store; remove"
    )
    done = run("--option", "endpoint=localhost:9")
    assert done.err.startswith(
        "strandline: --option endpoint: 'localhost:9' is not an address; write it like"
    )
