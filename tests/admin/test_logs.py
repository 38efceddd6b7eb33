"""What a log line may and may not be, whoever wrote it."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.node.runtime import logs

HOSTILE = 'a\nb\r\x1b[31m "q" \\ \u2028 \x85 \ud7ff \U0001f41f'


@pytest.fixture(autouse=True)
def _configuration() -> Iterator[None]:
    """Logging belongs to the whole process: give it back as it was."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level, sys.excepthook, logging.raiseExceptions)
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level, sys.excepthook, logging.raiseExceptions = before


def configured(format: str = "json", level: str = "info", secrets: tuple[str, ...] = ()) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, format, secrets=secrets, stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]


def test_a_record_is_one_line_of_json_with_its_extras() -> None:
    stream = configured()
    logging.getLogger("node.x").info(
        "took %d ms", 5, extra={"group": 7, "peers": [1, 2], "ratio": 0.5, "nothing": None, "at": {"a": b"x"}}
    )
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "logger": "node.x", "message": "took 5 ms",
        "group": 7, "peers": [1, 2], "ratio": 0.5, "nothing": None, "at": {"a": "b'x'"},
    }  # fmt: skip


def test_an_extra_cannot_pass_itself_off_as_the_message() -> None:
    stream = configured()
    logging.getLogger("n").warning("true", extra={"level": "debug", "time": "never", "logger": "other"})
    (line,) = lines(stream)
    assert (line["level"], line["logger"], line["message"]) == ("warning", "n", "true")
    assert line["time"] != "never"


def test_the_level_is_kept() -> None:
    stream = configured(level="warning")
    logging.getLogger("n").info("no")
    logging.getLogger("n").warning("yes")
    assert [line["message"] for line in lines(stream)] == ["yes"]


@pytest.mark.parametrize("format", logs.FORMATS)
def test_hostile_text_stays_on_its_line(format: str) -> None:
    stream = configured(format)
    logging.getLogger("n").info("client %s", HOSTILE, extra={"client": HOSTILE, "deep": {HOSTILE: [HOSTILE]}})
    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text
    if format == "json":
        (line,) = lines(stream)
        assert line["message"] == f"client {HOSTILE}"
        assert line["client"] == HOSTILE


@pytest.mark.parametrize("format", logs.FORMATS)
def test_secrets_are_masked_wherever_they_are(format: str) -> None:
    secret = 'tops"ecret\\'
    stream = configured(format, secrets=(secret, "tops", "", "abc"))
    log = logging.getLogger("n")
    try:
        raise ValueError(f"with {secret} in it")
    except ValueError:
        log.exception(
            "using %s", secret, extra={"url": f"x?{secret}", "list": [secret], "map": {"k": secret}}
        )
    log.info("abc", extra={"cluster_secret": "unlisted", "conf": {"aws_secret_access_key": "unlisted"}})
    text = stream.getvalue()
    assert "ecret\\" not in text
    assert "tops" not in text
    assert "unlisted" not in text
    assert "abc" in text
    assert text.count(logs.MASK) >= 6


def test_lengths_are_bounded() -> None:
    stream = configured()
    logging.getLogger("n").info("x" * 1_000_000, extra={"e": "y" * 1_000_000})
    assert len(stream.getvalue()) < 3 * logs.MAX_TEXT
    assert "characters cut" in lines(stream)[0]["message"]


@pytest.mark.parametrize("format", logs.FORMATS)
def test_what_cannot_be_written_is_written_as_far_as_it_can(format: str) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    stream = configured(format)
    log = logging.getLogger("n")
    log.info("took %d seconds", "many")
    log.info("this is %s", Broken())
    log.info("fine %s", "x", extra={"inf": float("inf"), "nan": float("nan"), "broken": Broken()})
    text = stream.getvalue()
    assert "took %d seconds" in text
    assert "this is %s" in text
    assert "fine x" in text
    if format == "json":
        assert lines(stream)[2]["inf"] == "inf"


def test_text_is_for_people() -> None:
    stream = configured("text")
    try:
        raise ValueError("a\x1bb\nsecond")
    except ValueError:
        logging.getLogger("node.y").exception("it failed", extra={"group": 7})
    first, *rest = stream.getvalue().split("\n")
    assert first.endswith("Z ERROR    node.y: it failed group=7")
    assert rest[-1] == ""
    assert all(line.startswith("    ") for line in rest[:-1])
    assert "a\\x1bb" in stream.getvalue()


def test_exceptions_that_nobody_caught_are_logged() -> None:
    stream = configured()

    async def fail() -> None:
        raise ValueError("of a task")

    async def run() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        task = asyncio.create_task(fail())
        await asyncio.sleep(0.01)
        del task
        gc.collect()

    asyncio.run(run())
    try:
        raise KeyError("of the interpreter")
    except KeyError as error:
        sys.excepthook(KeyError, error, error.__traceback__)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("of a library", stacklevel=1)
    told = [(line["level"], line["message"] + line.get("traceback", "")) for line in lines(stream)]
    for level, text in (("error", "ZeroDivisionError"), ("error", "of a task"),
                        ("critical", "of the interpreter"), ("warning", "of a library")):  # fmt: skip
        assert any(level == at and text in message for at, message in told), (text, told)


def test_configuring_again_replaces() -> None:
    first, second = configured(), configured("text")
    logging.getLogger("n").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
    for level, format in (("loud", "json"), ("info", "xml")):
        with pytest.raises(ValueError, match="use one of"):
            logs.configure(level, format)
