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


def without_marks(folder: Path) -> set[Path]:
    return {one for one in folder.iterdir() if one.suffix != class_archive.STARTS}


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test but those that undo this starts Java to see whether it makes archives."""
    monkeypatch.setattr(class_archive, "_makes", lambda folder, flags: True)


def place(said: str, option: str) -> Path:
    """The path that an option names."""
    (found,) = (word.removeprefix(option) for word in said.split() if word.startswith(option))
    return Path(found)


def second(folder: Path, java: str = JAVA, flags: str = FLAGS, class_path: str = "") -> str:
    """The options of a start, and of a second one if the first is given none."""
    return options(folder, java, flags, class_path) or options(folder, java, flags, class_path)


def made(folder: Path, data: bytes = WHOLE, java: str = JAVA, class_path: str = "") -> Path:
    """What a Java leaves that was told to make an archive."""
    new = place(second(folder, java, class_path=class_path), MAKE)
    new.write_bytes(data)
    return new


def test_the_second_start_makes_it_and_later_ones_take_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert options(folder, JAVA, FLAGS) == "", "there may be no second one"
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
    assert place(second(tmp_path, java, flags), MAKE).name.partition(".")[0] != taken.stem


def test_another_class_path_has_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, jar = tmp_path / "cache", tmp_path / "some.jar"
    jar.touch()
    made(folder)
    made(folder, class_path=str(jar))
    assert TAKE in options(folder, JAVA, FLAGS, str(jar))
    assert TAKE in options(folder, JAVA, FLAGS)
    os.utime(jar, (0, 0))
    assert MAKE in second(folder, class_path=str(jar)), "Java would refuse that of the jar before"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-class-path some.jar pyspark-shell")
    assert MAKE in second(folder)


def test_with_a_folder_of_settings_on_the_class_path_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, settings = tmp_path / "cache", tmp_path / "settings"
    settings.mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(settings))
    made(folder)
    assert TAKE in options(folder, JAVA, FLAGS)
    (settings / "spark-defaults.conf").touch()
    assert second(folder) == ""
    monkeypatch.delenv("SPARK_CONF_DIR")
    assert MAKE in second(folder)
    assert second(folder, class_path=str(settings)) == ""
    assert MAKE in second(folder, class_path=f"{settings}/*"), "the jars in it"
    monkeypatch.setenv("HADOOP_CONF_DIR", str(settings))
    assert second(folder) == ""


def test_a_java_that_never_leaves_one_is_not_asked_for_ever(tmp_path: Path) -> None:
    asked = [options(tmp_path, JAVA, FLAGS) for _ in range(8)]
    assert [MAKE in one for one in asked] == [number + 1 in class_archive.MAKERS for number in range(8)]
    assert asked[-1] == ""
    (marks,) = tmp_path.glob(f"*{class_archive.STARTS}")
    os.utime(marks, (0, 0))
    assert MAKE in second(tmp_path), "what was in the way may be gone"


def test_one_that_is_being_written_is_left_alone_and_no_archive(tmp_path: Path) -> None:
    torn = made(tmp_path, TORN)
    again = place(options(tmp_path, JAVA, FLAGS), MAKE)
    assert torn.exists()
    assert again != torn
    os.utime(torn, (0, 0))
    options(tmp_path, JAVA, FLAGS)
    assert not torn.exists()


def test_of_two_that_were_made_at_once_one_stays(tmp_path: Path) -> None:
    one, other = (place(second(tmp_path), MAKE) for _ in range(2))
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
    assert without_marks(tmp_path) == {*left}
    for one in left:
        os.utime(one, (time.time() - 900,) * 2)
    options(tmp_path, JAVA, FLAGS)
    assert without_marks(tmp_path) == set()


def test_those_that_were_used_last_stay(tmp_path: Path) -> None:
    taken = []
    for number in range(class_archive.KEPT + 2):
        made(tmp_path, java=f"{number}")
        taken.append(place(options(tmp_path, f"{number}", FLAGS), TAKE))
        os.utime(taken[-1], (number, number))
    options(tmp_path, "0", FLAGS)  # gone since, so one is to be made
    options(tmp_path, "2", FLAGS)
    assert without_marks(tmp_path) == {*taken[-class_archive.KEPT :]}


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
    assert second(given) == ""


def test_none_is_made_on_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr(class_archive, "ROOM_BYTES", shutil.disk_usage(tmp_path).total + 1)
    assert TAKE in options(tmp_path, JAVA, FLAGS), "there is one already"
    assert second(tmp_path, "another") == ""


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
    assert (MAKE in second(tmp_path)) is makes
    assert without_marks(tmp_path) == set()


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

    assert run(second(tmp_path)) == ""
    said = options(tmp_path, JAVA, FLAGS)
    os.utime(own, (0, 0))
    loud = " ".join(word for word in said.split() if not word.startswith("-Xlog"))
    assert "Unable to use shared archive" in run(loud), "Java would have said something"
    log.unlink()
    assert run(said) == ""
    assert log.read_bytes(), "what the user has Java log is kept"


def test_a_java_that_can_make_none_says_nothing_on_stdout(tmp_path: Path) -> None:
    folder, jars = tmp_path / "cache", Path(pyspark.__file__).parent / "jars"
    (tmp_path / "some").touch()
    said = second(folder)
    command = [java(), "-cp", f"{tmp_path}:{jars}/*", "org.apache.spark.launcher.Main"]
    loud = subprocess.run(
        [command[0], *(word for word in said.split() if "Output" not in word), *command[1:]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "non-empty directory" in loud.stdout, "Java would have said it there"
    quiet = subprocess.run(
        [command[0], *said.split(), *command[1:]], capture_output=True, text=True, check=False
    )
    assert (quiet.stdout, "Not enough arguments" in quiet.stderr) == ("", True)
    assert without_marks(folder) == set()


@pytest.mark.parametrize("data", [WHOLE, TORN], ids=["of-another-java", "torn"])
def test_java_goes_on_without_a_word_where_it_cannot_take_one(tmp_path: Path, data: bytes) -> None:
    made(tmp_path)
    said = options(tmp_path, JAVA, FLAGS)
    place(said, TAKE).write_bytes(data)
    ran = subprocess.run([java(), *said.split(), "--version"], capture_output=True, text=True, check=True)
    alone = subprocess.run([java(), "--version"], capture_output=True, text=True, check=True)
    assert (ran.stdout.replace(", sharing", ""), ran.stderr) == (alone.stdout.replace(", sharing", ""), "")
