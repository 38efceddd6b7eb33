"""The installed `strandline` command, run as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STRANDLINE = Path(sys.executable).with_name("strandline")


def strandline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([STRANDLINE, *arguments], capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    loaded: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def test_version_is_the_projects(project: dict[str, object]) -> None:
    done = strandline("version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"strandline {project['version']} (pysyncobj 0.3.17, python 3.")
    assert done.stdout.count("\n") == 1


def test_version_as_json(project: dict[str, object]) -> None:
    done = strandline("version", "--json")
    assert done.returncode == 0
    versions = json.loads(done.stdout)
    assert versions["strandline"] == project["version"]
    assert sorted(versions) == ["pysyncobj", "python", "strandline"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["version", "--frobnicate"], "No such option: --frobnicate"),
        ([], "Missing command"),
    ],
)
def test_bad_arguments_end_with_one_line_and_status_2(arguments: list[str], problem: str) -> None:
    done = strandline(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"strandline: {problem}; see strandline --help\n"
