"""The drivers that are built: once, whole or not at all, and a clear line where they cannot be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.programs import (
    FRANZ_GO,
    HERE,
    JAVA,
    PROGRAMS,
    Missing,
    Program,
    made,
)
from tests.peers.kafka_jars import cache

GO = """#!/bin/sh
echo asked >> "$HOME/asked"
while [ "$1" != -o ]; do shift; done
: > "$2"
"""


def tool(home: Path, name: str, script: str) -> None:
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin" / name).write_text(script)
    (home / "bin" / name).chmod(0o755)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_without_its_tool_the_line_says_so(
    home: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(Missing, match=f"{program.name} needs {program.tool}, which is not on the PATH"):
        program.command()


def test_a_driver_is_built_once(home: Path) -> None:
    tool(home, "go", GO)
    with pytest.raises(Missing, match=r"franz-go is not built: run scripts/setup --clients"):
        FRANZ_GO.command()
    folder = made(FRANZ_GO)
    assert FRANZ_GO.command() == [str(folder / "driver")]
    assert made(FRANZ_GO) == folder
    assert (home / "asked").read_text() == "asked\n"


def test_what_was_built_by_halves_is_not_kept(home: Path) -> None:
    tool(home, "go", GO + "echo 'go.mod: no such module' && exit 1\n")
    with pytest.raises(Missing, match=r"franz-go: go says: go.mod: no such module"):
        made(FRANZ_GO)
    assert list(cache().iterdir()) == []


def test_java_s_driver_needs_kafka_s_jars(home: Path) -> None:
    tool(home, "javac", "#!/bin/sh\n")
    with pytest.raises(Missing, match=r"Kafka's jars are not on this machine"):
        made(JAVA)


def test_the_lock_names_no_address() -> None:
    lock = json.loads((HERE / "kafkajs" / "package-lock.json").read_text())
    (package,) = (one for name, one in lock["packages"].items() if name)
    assert "resolved" not in package
    assert package["integrity"].startswith("sha512-")
