"""Kafka's jars: brought by Maven once, whole or not at all, and a clear line where they cannot be had."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.peers.kafka_jars import POM, VERSION, NoKafka, cache, jars, present

MAVEN = """#!/bin/sh
for argument; do case $argument in -DoutputDirectory=*) folder=${argument#*=} ;; esac; done
echo asked >> "$HOME/asked"
: > "$folder/kafka_2.13-4.1.0.jar"
"""


def maven(home: Path, script: str) -> None:
    (home / "bin").mkdir()
    (home / "bin" / "mvn").write_text(script)
    (home / "bin" / "mvn").chmod(0o755)


def test_the_version_is_that_of_the_pom() -> None:
    assert ElementTree.parse(POM).getroot().findtext("{*}version") == VERSION


def test_maven_is_asked_once(home: Path) -> None:
    maven(home, MAVEN)
    assert present() is None
    folder = jars()
    assert [jar.name for jar in folder.iterdir()] == ["kafka_2.13-4.1.0.jar"]
    assert present() == jars() == folder
    assert (home / "asked").read_text() == "asked\n"


def test_what_maven_brought_by_halves_is_not_kept(home: Path) -> None:
    maven(home, MAVEN + "echo '[ERROR] the mirror says no' && exit 1\n")
    with pytest.raises(NoKafka, match=r"the mirror says no: .* set KAFKA_LIBS"):
        jars()
    assert list(cache().iterdir()) == []
    assert present() is None


def test_without_maven_the_line_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(NoKafka, match="no mvn: install maven"):
        jars()


def test_a_folder_named_by_hand_must_hold_a_kafka(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LIBS", str(home))
    with pytest.raises(NoKafka, match=r"holds no kafka_2\.13 jar: name another folder"):
        present()
    (home / "kafka_2.13-4.1.0.jar").touch()
    assert jars() == home
