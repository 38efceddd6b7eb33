"""Folders of programs that were killed go, and no others."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from strandline.snapshot.spark.no_spark import NoFolder
from strandline.snapshot.spark.program_folder import program_folder

MAKES = (
    "from strandline.snapshot.spark.program_folder import program_folder; print(program_folder(), flush=True)"
)


def started(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A program that has made its folder below this place, and that folder."""
    program = subprocess.Popen(
        [sys.executable, "-c", f"{MAKES}; input()"],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    return program, Path(program.stdout.readline().strip())


def test_the_folder_of_a_program_that_was_killed_goes_with_the_next_one(tmp_path: Path) -> None:
    killed, left = started(tmp_path)
    (left / "packages").mkdir()
    (left / "packages" / "one").symlink_to(tmp_path)
    living, kept = started(tmp_path)
    assert left.is_dir(), "its program lives"
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.is_dir(), "no program was there to remove it"
    others = [tmp_path / name for name in ("strandline-earlier", "other")]
    for other in others:
        other.mkdir()
    (tmp_path / "other" / "held").touch()
    (tmp_path / "strandline-link").symlink_to(tmp_path / "other")

    ending, own = started(tmp_path)
    assert not left.exists()
    assert own.is_dir()
    ending.communicate("\n")
    assert sorted(tmp_path.iterdir()) == sorted([kept, *others, tmp_path / "strandline-link"])
    assert (tmp_path / "other" / "held").exists()
    living.communicate("\n")
    assert not kept.exists()


def test_a_fork_that_ends_leaves_its_programs_folder(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from strandline.snapshot.spark.program_folder import program_folder\n"
        "folder = program_folder()\n"
        "if not os.fork():\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "print(os.path.isdir(folder))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"
    assert not any(tmp_path.iterdir())


def test_a_program_without_locks_has_a_folder_all_the_same(tmp_path: Path) -> None:
    without = "import fcntl; fcntl.flock = lambda *_: (_ for _ in ()).throw(OSError())"
    program = subprocess.run(
        [sys.executable, "-c", f"{without}; {MAKES}; input()"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        input="\n", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert Path(program.stdout.strip()).parent == tmp_path


def test_where_nothing_can_be_written_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is missing: root may write to any that is there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(NoFolder) as told:
        program_folder()
    assert str(told.value) == (
        "no folder can be made among the temporary files (No such file or directory): "
        "make room there, or name a folder in TMPDIR that can be written to"
    )
