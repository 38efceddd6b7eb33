"""An archive of the classes that Spark loads, which Java maps in place of reading and checking each of them.

A start of Spark loads some twenty thousand classes, for three seconds of processor. Java makes the archive
when it ends (`-XX:ArchiveClassesAtExit`, "class data sharing"), and does without one that it cannot take:
nothing here fails. It is code that Java runs, so it lies where only its user may write.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

NEW: Final = ".new"
"""Ends the name of one that Java may still be writing."""
KEPT: Final = 2
"""Archives that stay, of some 170 MB each: two virtual environments may take turns."""
ROOM_BYTES: Final = 1024**3
"""Least free space for making one: Java complains at its end where it cannot write."""
LEFT_SECONDS: Final = 86_400.0
"""Age of an unfinished one that nothing is writing any more."""
_MAGIC_BYTES: Final = 4
"""Java writes an archive's head last: until then these are zero."""
# Java tells of archives on stdout, where an audit's answer goes.
_QUIETLY: Final = "-XX:+IgnoreUnrecognizedVMOptions -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
_UNSAFE: Final = frozenset(" \t\n\"'\\")
"""Characters that Spark's splitting of options does not leave as they are."""


def cache_folder() -> Path:
    """The folder of the user's archives, which need not be there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "strandline", "spark-classes")


def options(folder: Path, java: str, flags: str) -> str:
    """Options for a Java of this version (what it says of itself) that is started with `flags`: with them it
    takes the archive that is there, or makes one when it ends. Empty where neither can be done safely."""
    if _UNSAFE & set(str(folder)):
        return ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        said = folder.stat()
        if said.st_uid != os.geteuid() or said.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return ""
        archive = folder / f"{_key(java, flags)}.jsa"
        _adopt(archive)
        if archive.exists():
            with suppress(OSError):
                os.utime(archive)  # the last use decides which ones stay
            return f"-XX:SharedArchiveFile={archive} {_QUIETLY}"
        if shutil.disk_usage(folder).free < ROOM_BYTES:
            return ""
    except OSError:
        return ""
    return f"-XX:ArchiveClassesAtExit={archive}.{uuid.uuid4().hex}{NEW} {_QUIETLY}"


def _key(java: str, flags: str) -> str:
    """Another for another Java, or other jars of Spark's: Java refuses an archive of any others."""
    jars = Path(pyspark.__file__).parent / "jars"
    said = (java, flags, pyspark.__version__, str(jars.resolve()), str(jars.stat().st_mtime_ns))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _adopt(archive: Path) -> None:
    """Give a whole new archive its name; remove what is not needed any more. Raises OSError."""
    for new in sorted(archive.parent.glob(f"*.jsa.*{NEW}")):
        with suppress(FileNotFoundError):  # another audit does the same
            whole = _is_whole(new)
            if whole and new.name.startswith(archive.name) and not archive.exists():
                _to_disk(new)
                new.rename(archive)
            elif whole or time.time() - new.stat().st_mtime > LEFT_SECONDS:
                new.unlink()
    used = sorted(archive.parent.glob("*.jsa"), key=lambda one: one.stat().st_mtime, reverse=True)
    for old in used[KEPT:]:
        old.unlink(missing_ok=True)


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
