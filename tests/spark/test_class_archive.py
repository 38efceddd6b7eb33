"""The archive of Spark's classes: made once, taken whole or not at all, and never the cause of a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from strandline.snapshot.spark import class_archive
from strandline.snapshot.spark.class_archive import cache_folder, java_command, options

JAVA, FLAGS = 'openjdk version "17.0.15"', "-XX:+UseSerialGC"
MAKE, TAKE = "-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile="
WHOLE, TORN = b"\xa8\xab\x0b\xf0" + bytes(60), bytes(64)


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test but those that undo this starts Java to see whether it makes archives."""
    monkeypatch.setattr(class_archive, "_makes", lambda folder, flags: True)


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


def test_of_two_that_take_turns_neither_removes_the_others(tmp_path: Path) -> None:
    made(tmp_path)
    made(tmp_path, java="another")  # it finds what the first one's Java has left
    assert TAKE in options(tmp_path, JAVA, FLAGS)
    assert TAKE in options(tmp_path, "another", FLAGS)


def test_what_killed_audits_left_goes_in_minutes(tmp_path: Path) -> None:
    left = [made(tmp_path, TORN), tmp_path / f"some{class_archive.TRIAL}"]
    left[1].write_bytes(TORN)
    options(tmp_path, JAVA, FLAGS)
    assert {*tmp_path.iterdir()} == {*left}
    for one in left:
        os.utime(one, (time.time() - 900,) * 2)
    options(tmp_path, JAVA, FLAGS)
    assert [*tmp_path.iterdir()] == []


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


def two_archives(path: Path) -> Path:
    return path / "a:b:c"


def shared(path: Path) -> Path:
    path.chmod(0o777)
    return path


def replaceable(path: Path) -> Path:
    return shared(path) / "folder"


def a_file(path: Path) -> Path:
    (path / "file").write_bytes(b"")
    return path / "file"


@pytest.mark.parametrize("folder", [strange, two_archives, shared, replaceable, a_file])
def test_a_folder_that_does_not_suit_is_none(tmp_path: Path, folder: Callable[[Path], Path]) -> None:
    given = folder(tmp_path)
    assert options(given, JAVA, FLAGS) == ""


def test_none_is_made_on_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr(class_archive, "ROOM_BYTES", shutil.disk_usage(tmp_path).total + 1)
    assert TAKE in options(tmp_path, JAVA, FLAGS), "there is one already"
    assert options(tmp_path, "another", FLAGS) == ""


@pytest.mark.parametrize("base", ["", "relative"])
def test_the_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "strandline" / "spark-classes"
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    assert cache_folder() == Path.home() / ".cache" / "strandline" / "spark-classes"


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None


def java() -> str:
    found = java_command()
    assert found is not None
    return found


AGENT = "-agentlib:jdwp=transport=dt_socket,server=y,suspend=n,address=127.0.0.1:0"


@pytest.mark.parametrize(
    ("variable", "value", "makes"),
    [
        ("JAVA_TOOL_OPTIONS", "-Dsome=thing", True),
        ("JAVA_TOOL_OPTIONS", AGENT, False),
        ("SPARK_SUBMIT_OPTS", AGENT, False),
        ("JAVA_TOOL_OPTIONS", "-XX:SharedArchiveFile=/none", False),
        ("SPARK_SUBMIT_OPTS", "'", False),
    ],
)  # fmt: skip
def test_java_is_asked_only_for_what_it_starts_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, makes: bool
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(variable, value)
    assert (MAKE in options(tmp_path, JAVA, FLAGS)) is makes
    assert [*tmp_path.iterdir()] == []


def test_an_archive_of_other_jars_is_left_without_a_word(tmp_path: Path) -> None:
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-launcher_*.jar")
    own = Path(shutil.copyfile(jar, tmp_path / jar.name))
    log = tmp_path / "log"

    def run(said: str) -> str:
        command = [java(), "-cp", str(own), f"-Xlog:gc*:file={log}", *said.split()]
        ran = subprocess.run(
            [*command, "org.apache.spark.launcher.Main"], capture_output=True, text=True, check=False
        )
        assert "Not enough arguments" in ran.stderr
        assert "archive" not in ran.stderr
        return ran.stdout

    assert run(options(tmp_path, JAVA, FLAGS)) == ""
    said = options(tmp_path, JAVA, FLAGS)
    os.utime(own, (0, 0))
    loud = " ".join(word for word in said.split() if not word.startswith("-Xlog"))
    assert "Unable to use shared archive" in run(loud), "Java would have said something"
    log.unlink()
    assert run(said) == ""
    assert log.read_bytes(), "what the user has Java log is kept"


@pytest.mark.parametrize("data", [WHOLE, TORN], ids=["of-another-java", "torn"])
def test_java_goes_on_without_a_word_where_it_cannot_take_one(tmp_path: Path, data: bytes) -> None:
    made(tmp_path)
    said = options(tmp_path, JAVA, FLAGS)
    place(said, TAKE).write_bytes(data)
    ran = subprocess.run([java(), *said.split(), "--version"], capture_output=True, text=True, check=True)
    alone = subprocess.run([java(), "--version"], capture_output=True, text=True, check=True)
    assert (ran.stdout.replace(", sharing", ""), ran.stderr) == (alone.stdout.replace(", sharing", ""), "")
