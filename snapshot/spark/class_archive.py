"""An archive of the classes that Spark loads, which Java maps in place of reading and checking each of them.

A start of Spark loads some twenty thousand classes, for three seconds of processor. Java makes the archive
when it ends (`-XX:ArchiveClassesAtExit`, "class data sharing"), and does without one that it cannot take:
nothing here fails. It is code that Java runs, so it lies where only its user may write.

To make one costs about what a few starts save. So the first start of a kind only leaves a mark: where nothing
stays from one start to the next, as in many a container, none is made.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

NEW: Final = ".new"
"""Ends the name of one that Java may still be writing."""
KEPT: Final = 4
"""Archives that stay, of some 170 MB each: of two virtual environments, for long jobs and for short ones."""
STARTS: Final = ".starts"
"""Ends the name of a file with a byte for each start without an archive."""
MAKERS: Final = range(2, 5)
"""The starts that make one, by number. A Java that never leaves one (it is killed at its end, or there is
something on its class path that it makes none with) is not asked for ever."""
FORGOTTEN_SECONDS: Final = 7 * 86400.0
"""Age at which such starts are forgotten: what was in the way may be gone."""
ROOM_BYTES: Final = 1024**3
"""Least free space for making one: Java complains at its end where it cannot write."""
LEFT_SECONDS: Final = 600.0
"""Age of an unfinished one that nothing is writing any more: Java takes seconds for one. Each audit that is
killed meanwhile leaves one of some 170 MB."""
TRIAL: Final = ".trial"
"""Ends the name of one that is made to see whether Java makes any."""
_MAGIC_BYTES: Final = 4
"""Java writes an archive's head last: until then these are zero."""
# Java tells of archives on stdout, where an answer of the program's goes. Logs of the user's in files stay.
_QUIETLY: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -Xshare:auto -Xlog:all=off:stdout -Xlog:all=error:stderr "
    "-XX:+DisplayVMOutputToStderr"
)
_UNSAFE: Final = frozenset(" \t\n\"'\\:")
"""Characters that Spark's splitting of options does not leave as they are, and what Java parts two archives
at: it does not start with three."""
_FOLDERS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Names in the environment of folders that Spark puts on the class path."""
JAVA_SETTINGS: Final = (
    "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS",
)  # fmt: skip
"""Names in the environment of options that Java takes besides those that it is given."""
_SETTINGS: Final = ("SPARK_HOME", *_FOLDERS, "SPARK_DIST_CLASSPATH", *JAVA_SETTINGS)
"""Names in the environment of what decides about the class path, or gives Java other flags."""


def cache_folder() -> Path | None:
    """The folder of the user's archives, which need not be there; None for a user without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return Path(base, "strandline", "spark-classes") if base.is_absolute() else None


def java_command() -> str | None:
    """The Java that Spark would run; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def options(folder: Path, java: str, flags: str, class_path: str = "") -> str:
    """Options for a Java of this version (what it says of itself) that is started with `flags`: with them it
    takes the archive that is there, or makes one when it ends. Empty where neither is to be done.

    `class_path` is what comes before Spark's own jars, as Java has it.
    """
    if _UNSAFE & set(str(folder)) or _has_folders(class_path):
        return ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(folder):
            return ""
        archive = folder / f"{_key(java, flags, class_path)}.jsa"
        _adopt(folder)
        if archive.exists():
            with suppress(OSError):
                os.utime(archive)  # the last use decides which ones stay
            return f"-XX:SharedArchiveFile={archive} {_QUIETLY}"
        room = shutil.disk_usage(folder).free >= ROOM_BYTES
        if not room or _starts(archive) not in MAKERS or not _makes(folder, flags):
            return ""
    except OSError:
        return ""
    return f"-XX:ArchiveClassesAtExit={archive}.{uuid.uuid4().hex}{NEW} {_QUIETLY}"


def _has_folders(class_path: str) -> bool:
    """Whether there is a folder on the class path that is not empty: Java makes no archive then."""
    others = (os.environ.get(name, "") for name in _FOLDERS[1:])
    given = (one for one in class_path.split(os.pathsep) if not one.endswith("*"))
    for one in filter(None, (str(settings_folder()), *others, *given)):
        with suppress(OSError):
            if next(Path(one).iterdir(), None) is not None:
                return True
    return False


def settings_folder() -> Path:
    """The folder of Spark's own settings, which need not be there."""
    return Path(os.environ.get("SPARK_CONF_DIR") or _spark() / "conf")


def _spark() -> Path:
    """The folder of the Spark whose Java it is."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def _starts(archive: Path) -> int:
    """Count a start without this archive; returns the count of late. Raises OSError."""
    with archive.with_suffix(STARTS).open("ab") as marks:
        marks.write(b".")
    return archive.with_suffix(STARTS).stat().st_size


def _is_private(folder: Path) -> bool:
    """Whether no other user can put an archive there, nor another folder in this one's place."""
    own, above = folder.stat(), folder.resolve().parent.stat()
    others = own.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or above.st_mode & stat.S_IWOTH
    return not others and own.st_uid == above.st_uid == os.geteuid()


def _makes(folder: Path, flags: str) -> bool:
    """Whether Java, started as Spark starts it, makes archives there. With an agent, or without an archive of
    its own (`jlink` makes such), it would not start at all; on a disk that it may not write to, it would
    complain when it ends."""
    java = java_command()
    if java is None:
        return False
    trial = folder / f"{uuid.uuid4().hex}{TRIAL}"
    try:
        asked = shlex.split(os.environ.get("SPARK_SUBMIT_OPTS", ""))
        command = [java, *flags.split(), f"-XX:ArchiveClassesAtExit={trial}", *_QUIETLY.split(), *asked]
        subprocess.run([*command, "-version"], capture_output=True, timeout=30, check=True)
        return _is_whole(trial)
    except (subprocess.SubprocessError, ValueError):
        return False
    finally:
        trial.unlink(missing_ok=True)


def _key(java: str, flags: str, class_path: str) -> str:
    """Another for another Java, other jars of Spark's, or others before them: Java refuses an archive of any
    others, and says nothing. Raises OSError."""
    said = [java, flags, pyspark.__version__, class_path, *(os.environ.get(name, "") for name in _SETTINGS)]
    others = (Path(one.removesuffix("*")) for one in class_path.split(os.pathsep) if one)
    for one in (_spark().resolve() / "jars", *others):
        said += [str(one), str(one.stat().st_mtime_ns if one.exists() else None)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _adopt(folder: Path) -> None:
    """Give whole new archives their names; remove what is not needed any more. Raises OSError."""
    for new in sorted(folder.glob(f"*.jsa.*{NEW}")):
        # Not only the one that is asked for: where two take turns, each would remove the other's.
        archive = folder / f"{new.name.partition('.')[0]}.jsa"
        with suppress(FileNotFoundError):  # another audit does the same
            whole = _is_whole(new)
            if whole and not archive.exists():
                _to_disk(new)
                new.rename(archive)
                archive.with_suffix(STARTS).unlink(missing_ok=True)
            elif whole or _is_left(new):
                new.unlink()
    for trial in folder.glob(f"*{TRIAL}"):
        with suppress(FileNotFoundError):
            if _is_left(trial):
                trial.unlink()
    for marks in folder.glob(f"*{STARTS}"):
        with suppress(FileNotFoundError):
            if time.time() - marks.stat().st_mtime > FORGOTTEN_SECONDS:
                marks.unlink()
    used = sorted(folder.glob("*.jsa"), key=lambda one: one.stat().st_mtime, reverse=True)
    for old in used[KEPT:]:
        old.unlink(missing_ok=True)


def _is_left(new: Path) -> bool:
    return time.time() - new.stat().st_mtime > LEFT_SECONDS


def _is_whole(new: Path) -> bool:
    with new.open("rb") as file:
        return any(file.read(_MAGIC_BYTES))


def _to_disk(new: Path) -> None:
    """A head without its classes, after a power failure, would be taken for an archive."""
    descriptor = os.open(new, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
