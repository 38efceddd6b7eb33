"""Runs of states as files of this machine: mapped, so that a start reads none of them.

What is here is a copy, or is to be stored yet; a file that is missing or wrong is one to be fetched. Beside
each file stands a note: its CRC, and which file of which boot had it. Where the file is that one no byte of
it is read. Otherwise, as after a power cut or where another file took the name, it is read to its end once.

The kernel ends a process that reads a page which the disk cannot give. So where two processes in a row began
and stored no state, the next one reads all files before it maps them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgpack

from strandline.snapshot.views.errors import RunDamaged
from strandline.snapshot.views.run import Run
from strandline.snapshot.views.run_file import check_run, map_run, write_run

MOST_BEGUN: Final = 2
"""Processes in a row that store no state, before files are read."""
_BEGUN: Final = "begun"
_NEW: Final = ".new"
_NOTE: Final = ".note"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class LocalRuns:
    """Files of one version of a program, by the names of their objects. Calls raise OSError.

    Any thread may `keep`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boot = _BOOT.read_text(encoding="ascii").strip()
        self._lock = threading.Lock()
        self._living: dict[str, weakref.ref[Run]] = {}
        self._writing: set[str] = set()
        """Files that are not mapped yet: a merge may write them in its thread at any time."""
        folder.mkdir(parents=True, exist_ok=True)
        begun = self._begun()
        self._trusted = begun < MOST_BEGUN
        (folder / _BEGUN).write_text(str(begun + 1), encoding="ascii")

    def _begun(self) -> int:
        """Processes before this one that stored no state."""
        try:
            return int((self._folder / _BEGUN).read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except ValueError:
            return MOST_BEGUN

    def stored(self) -> None:
        """A state was stored: this process reads what it mapped."""
        (self._folder / _BEGUN).unlink(missing_ok=True)

    def keep(self, name: str, run: Run) -> Run:
        """Write a run's file; the same run, mapped. What cannot be written whole takes no room."""
        # A process before this one, at its end, may be fetching the same run.
        before = f"{name}.{os.getpid()}{_NEW}"
        with self._lock:
            self._writing |= {name, before}
        try:
            self._write(self._folder / before, name, run)
            return self._mapped(name)
        finally:
            with self._lock:
                self._writing -= {name, before}

    def _write(self, new: Path, name: str, run: Run) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        try:
            crc = write_run(new, run)
            new.rename(path)
            self._note(path, crc)
        except OSError:
            _unlink(new)
            self._delete(name)
            raise

    def find(self, name: str) -> Run | None:
        """Map the file of a run; None where it is to be fetched."""
        path = self._folder / name
        try:
            boot, inode, changed, size, crc = msgpack.unpackb(_note_of(path).read_bytes())
            same = [boot, inode, changed, size] == self._mark(path)
            if not (same and self._trusted):
                if check_run(path) != crc:
                    raise RunDamaged(f"{path} is another run")
                self._note(path, crc)
            return self._mapped(name)
        except (OSError, RunDamaged, ValueError, TypeError):
            self._delete(name)
            return None

    def _mapped(self, name: str) -> Run:
        run = map_run(self._folder / name)
        with self._lock:
            self._living[name] = weakref.ref(run)
        return run

    def _mark(self, path: Path) -> list[Any]:
        told = path.stat()
        return [self._boot, told.st_ino, told.st_ctime_ns, told.st_size]

    def _note(self, path: Path, crc: int) -> None:
        _note_of(path).write_bytes(msgpack.packb([*self._mark(path), crc]))

    def name_of(self, run: Run) -> str | None:
        """The name under which a run is mapped."""
        with self._lock:
            return next((name for name, living in self._living.items() if living() is run), None)

    def forget(self, needed: Collection[str]) -> None:
        """Delete files of runs that are in no spine any more, and are not needed."""
        with self._lock:
            gone = [name for name, one in self._living.items() if one() is None and name not in needed]
        self.delete(gone)

    def delete(self, names: Collection[str]) -> None:
        """Delete files; what is mapped of them stays until nothing refers to it."""
        for name in names:
            with self._lock:
                self._living.pop(name, None)
            self._delete(name)

    def delete_others(self, needed: Collection[str]) -> None:
        """Delete what earlier processes have left."""
        for folder, _, files in os.walk(self._folder):
            for file in files:
                name = os.path.relpath(os.path.join(folder, file), self._folder)
                run = name.removesuffix(_NOTE)
                with self._lock:
                    own = run in self._living or run in self._writing
                    if not own and run not in needed and name != _BEGUN:
                        _unlink(self._folder / name)

    def _delete(self, name: str) -> None:
        _unlink(self._folder / name)
        _unlink(_note_of(self._folder / name))


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + _NOTE)


def _unlink(path: Path) -> None:
    # What cannot be deleted, on a disk that fails, is not used either.
    with contextlib.suppress(OSError):
        path.unlink()
