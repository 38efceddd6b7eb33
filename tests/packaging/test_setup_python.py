"""Which Python `scripts/setup` takes: that of UV_PYTHON, or the first on the PATH, or a faster one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT


def found(folder: Path, microseconds: dict[str, int | None], **environment: str) -> str:
    """What `find_python` prints with interpreters on the PATH that take this long, None if too old."""
    for name, took in microseconds.items():
        interpreter = folder / name
        answer = "exit 1" if took is None else f"echo {took} {interpreter}"
        interpreter.write_text(f"#!/bin/sh\n{answer}\n")
        interpreter.chmod(0o755)
    script = (ROOT / "scripts" / "setup").read_text()
    functions = script[script.index("look_at_python()") : script.index("get_uv()")]
    done = subprocess.run(
        ["bash", "-c", functions + "\nfind_python"],
        env={**os.environ, "UV_PYTHON": "", **environment, "PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if done.stdout else 1), done.stderr
    return done.stdout.strip()


def test_the_first_on_the_path_is_taken_unless_another_takes_a_tenth_less_time(tmp_path: Path) -> None:
    names = ("python3", "python3.14")
    for first, second, best in ((10, 10, 0), (10, 9, 0), (1_000, 899, 1), (10, 20, 0)):
        assert found(tmp_path, {names[0]: first, names[1]: second}) == str(tmp_path / names[best])


def test_one_that_is_too_old_or_does_not_start_is_passed_over(tmp_path: Path) -> None:
    assert found(tmp_path, {"python3": None, "python3.14": 10}) == str(tmp_path / "python3.14")


def test_a_real_interpreter_tells_its_own_path(tmp_path: Path) -> None:
    assert Path(found(tmp_path, {"python3": None})).is_file()


@pytest.mark.parametrize(("named", "answer"), [("slow", "slow"), ("missing", "")])
def test_one_that_is_named_is_the_only_one_looked_at(tmp_path: Path, named: str, answer: str) -> None:
    chosen = found(tmp_path, {"python3": 1, "slow": 1_000}, UV_PYTHON=str(tmp_path / named))
    assert chosen == (str(tmp_path / answer) if answer else "")


def test_interpreters_take_turns_so_that_a_slow_second_of_the_machine_decides_nothing(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    (tmp_path / "python3.14").write_text(
        f"#!/bin/sh\nprintf x >>{asked}\n[ $(wc -c <{asked}) -gt 1 ] && echo 800 $0 || echo 2000 $0\n"
    )
    (tmp_path / "python3.14").chmod(0o755)
    assert found(tmp_path, {"python3": 1_000}) == str(tmp_path / "python3.14")
    assert 2 < len(asked.read_text()) < 20
