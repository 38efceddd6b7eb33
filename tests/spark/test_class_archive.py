"""The archive of Spark's classes: made once, taken whole or not at all, and never the cause of a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.snapshot.spark import class_archive
from strandline.snapshot.spark.class_archive import cache_folder, options

JAVA, FLAGS = 'openjdk version "17.0.15"', "-XX:+UseSerialGC"
MAKE, TAKE = "-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile="
WHOLE, TORN = b"\xa8\xab\x0b\xf0" + bytes(60), bytes(64)


def place(said: str, option: str) -> Path:
    """The path that an option names."""
    (found,) = (word.removeprefix(option) for word in said.split() if word.startswith(option))
    return Path(found)


def made(folder: Path, data: bytes = WHOLE, java: str = JAVA) -> Path:
    """What a Java leaves that was told to make an archive."""
    new = place(options(folder, java, FLAGS), MAKE)
    new.write_bytes(data)
    return new


def test_the_first_start_makes_it_and_later_ones_take_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    new = made(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    taken = place(options(folder, JAVA, FLAGS), TAKE)
    assert taken.read_bytes() == WHOLE
    assert not new.exists()
    assert MAKE not in options(folder, JAVA, FLAGS)


@pytest.mark.parametrize(
    ("java", "flags"), [('openjdk version "21.0.1"', FLAGS), (JAVA, "-XX:+UseG1GC")]
)  # fmt: skip
def test_another_java_or_other_flags_have_one_of_their_own(tmp_path: Path, java: str, flags: str) -> None:
    made(tmp_path)
    taken = place(options(tmp_path, JAVA, FLAGS), TAKE)
    assert place(options(tmp_path, java, flags), MAKE).name.partition(".")[0] != taken.stem


def test_one_that_is_being_written_is_left_alone_and_no_archive(tmp_path: Path) -> None:
    torn = made(tmp_path, TORN)
    again = place(options(tmp_path, JAVA, FLAGS), MAKE)
    assert torn.exists()
    assert again != torn
    os.utime(torn, (0, 0))
    options(tmp_path, JAVA, FLAGS)
    assert not torn.exists()


def test_of_two_that_were_made_at_once_one_stays(tmp_path: Path) -> None:
    one, other = (place(options(tmp_path, JAVA, FLAGS), MAKE) for _ in range(2))
    for new in (one, other):
        new.write_bytes(WHOLE)
    taken = place(options(tmp_path, JAVA, FLAGS), TAKE)
    assert [*tmp_path.iterdir()] == [taken]


def test_those_that_were_used_last_stay(tmp_path: Path) -> None:
    taken = []
    for number in range(4):
        made(tmp_path, java=f"{number}")
        taken.append(place(options(tmp_path, f"{number}", FLAGS), TAKE))
        os.utime(taken[-1], (number, number))
    options(tmp_path, "0", FLAGS)  # gone since, so one is to be made
    options(tmp_path, "2", FLAGS)
    assert {*tmp_path.iterdir()} == {*taken[-class_archive.KEPT :]}


def strange(path: Path) -> Path:
    return path / "a folder"


def shared(path: Path) -> Path:
    path.chmod(0o777)
    return path


def a_file(path: Path) -> Path:
    (path / "file").write_bytes(b"")
    return path / "file"


@pytest.mark.parametrize("folder", [strange, shared, a_file])
def test_a_folder_that_does_not_suit_is_none(tmp_path: Path, folder: Callable[[Path], Path]) -> None:
    given = folder(tmp_path)
    assert options(given, JAVA, FLAGS) == ""


def test_none_is_made_on_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr(class_archive, "ROOM_BYTES", shutil.disk_usage(tmp_path).total + 1)
    assert TAKE in options(tmp_path, JAVA, FLAGS), "there is one already"
    assert options(tmp_path, "another", FLAGS) == ""


def test_the_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "strandline" / "spark-classes"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "strandline" / "spark-classes"


@pytest.mark.parametrize("data", [WHOLE, TORN], ids=["of-another-java", "torn"])
def test_java_goes_on_without_a_word_where_it_cannot_take_one(tmp_path: Path, data: bytes) -> None:
    made(tmp_path)
    said = options(tmp_path, JAVA, FLAGS)
    place(said, TAKE).write_bytes(data)
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    ran = subprocess.run([java, *said.split(), "--version"], capture_output=True, text=True, check=True)
    alone = subprocess.run([java, "--version"], capture_output=True, text=True, check=True)
    assert (ran.stdout.replace(", sharing", ""), ran.stderr) == (alone.stdout.replace(", sharing", ""), "")
