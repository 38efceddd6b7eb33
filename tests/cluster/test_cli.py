"""The installed `strandline` command, run as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import ROOT

STRANDLINE = Path(sys.executable).with_name("strandline")
INTERRUPTED_IMPORT = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == wanted:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:  # as libraries do that can go on without what they import
                pass

wanted = sys.argv[1]
sys.meta_path.insert(0, Interrupt())
from strandline.cluster.cli import main
sys.argv = ["strandline", "topic", "list", "--bootstrap", "127.0.0.1:1"]
main()
"""


def strandline(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [STRANDLINE, *arguments],
        capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **environ},
    )  # fmt: skip


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    loaded: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def test_version_is_the_projects(project: dict[str, object]) -> None:
    done = strandline("version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"strandline {project['version']} (pysyncobj 0.3.17, python 3.")
    assert done.stdout.count("\n") == 1


def test_version_as_every_command_has_it(project: dict[str, object]) -> None:
    done = strandline("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"strandline {project['version']}\n", "")


def test_help_of_a_command() -> None:
    asked, option = strandline("help", "topic", "create"), strandline("topic", "create", "--help")
    assert asked.returncode == 0
    assert "Usage: strandline topic create" in asked.stdout
    assert asked.stdout == option.stdout
    assert strandline("help", "frobnicate").returncode == 2


def test_a_shell_completes_commands() -> None:
    # The command looks for a shell among its ancestors, and tests may be started without one.
    shown = subprocess.run(
        ["bash", "-c", '"$0" --show-completion; exit $?', STRANDLINE],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "_STRANDLINE_COMPLETE=complete_bash" in shown.stdout
    asked = strandline(_STRANDLINE_COMPLETE="complete_bash", COMP_WORDS="strandline topic de", COMP_CWORD="2")
    assert asked.stdout.split() == ["describe", "delete"]


@pytest.mark.parametrize("module", ["typer", "strandline.cluster.commands.produce", "confluent_kafka"])
def test_ctrl_c_within_an_import_ends_it_without_a_word(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED_IMPORT, module],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_version_as_json(project: dict[str, object]) -> None:
    done = strandline("version", "--json")
    assert done.returncode == 0
    versions = json.loads(done.stdout)
    assert versions["strandline"] == project["version"]
    assert sorted(versions) == ["pysyncobj", "python", "strandline"]


@pytest.mark.parametrize(
    ("arguments", "problem", "command"),
    [
        (["frobnicate"], "No such command 'frobnicate'", "strandline"),
        (["version", "--frobnicate"], "No such option: --frobnicate", "strandline version"),
        (["topic", "create"], "Missing argument 'TOPIC...'", "strandline topic create"),
        (["topic"], "Missing command", "strandline topic"),
        ([], "Missing command", "strandline"),
    ],
)
def test_bad_arguments_end_with_one_line_and_status_2(
    arguments: list[str], problem: str, command: str
) -> None:
    done = strandline(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"strandline: {problem}; see {command} --help\n"
