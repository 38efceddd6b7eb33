"""States of a program in the object store: runs as objects, and a manifest that names them.

Objects lie under `views/<program>/<attempt>/<process>/`: a process that was replaced and does not know it can
write, and overwrites nothing. A run that the manifest before had is not written again.

Each run that a state needs is also a file here (`local_runs.py`), and so mapped by the next start.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from strandline.cluster.view_worker.fetched import Cut
from strandline.cluster.view_worker.local_runs import LocalRuns
from strandline.cluster.view_worker.store_thread import BlockingStore
from strandline.node.objectstore.store import MAX_DELETE, ObjectNotFound
from strandline.snapshot.views import stored_state
from strandline.snapshot.views.operator import StateManifest
from strandline.snapshot.views.run import Run
from strandline.snapshot.views.run_file import packed, unpacked
from strandline.snapshot.views.stored_state import Kept, StoredState

ROOT: Final = "views"
AT_ONCE: Final = 16
AT_ONCE_BYTES: Final = 8 << 20
"""Of runs in memory, which are stored beside each other: more would take memory that a merge bounds."""


def prefix(program: int, attempt: int | None = None) -> str:
    """Beginning of the names of a program's objects, or of one attempt's."""
    return f"{ROOT}/{program}/" if attempt is None else f"{ROOT}/{program}/{attempt}/"


class StateObjects:
    """Writes and reads states. Calls raise StoreError and OSError.

    `folder` is the place of files of this program's runs.
    """

    def __init__(self, store: BlockingStore, folder: Path, program: int, attempt: int, worker: int) -> None:
        self._store = store
        self._files = LocalRuns(folder / str(attempt))
        self._below = prefix(program, attempt)
        self._own = f"{self._below}{worker:x}/"
        self._numbers = itertools.count(1)
        self._kept: dict[int, tuple[Run, str]] = {}
        """Runs of the newest state by identity, with their objects' names."""

    def save(self, states: Mapping[str, StateManifest], cut: Cut) -> tuple[str, frozenset[str]]:
        """Store states of one cut; gives the manifest's name, and the names of all objects that it needs."""
        kept: dict[int, tuple[Run, str]] = {}
        new: list[tuple[str, Run]] = []
        operators = {
            operator: Kept(
                [[self._stored(run, kept, new) for run in runs] for runs in state.runs], state.value
            )
            for operator, state in states.items()
        }
        self._put(new)
        name = f"{self._own}{next(self._numbers):010d}.state"
        self._store.put(name, stored_state.written(StoredState(cut, operators)))
        self._files.stored()
        self._files.forget({_file(one) for _, one in (*kept.values(), *self._kept.values())})
        self._kept = kept
        return name, frozenset([name, *(one for _, one in kept.values())])

    def keep(self, run: Run) -> Run:
        """Write a run that no state has yet to a file; the same run, mapped. For any thread."""
        return self._files.keep(_file(self._new()), run)

    def _new(self) -> str:
        return f"{self._own}{next(self._numbers):010d}.run"

    def _stored(self, run: Run, kept: dict[int, tuple[Run, str]], new: list[tuple[str, Run]]) -> str:
        known = kept.get(id(run)) or self._kept.get(id(run))
        if known is None:
            known = run, self._named(run)
            new.append((known[1], run))
        kept[id(run)] = known
        return known[1]

    def _put(self, new: list[tuple[str, Run]]) -> None:
        """Store runs, small ones beside each other: readers wait for a store's answers amid a cutover."""
        waiting: list[tuple[str, list[bytes | memoryview]]] = []
        size = 0
        for name, run in new:
            if waiting and (size + run.bytes > AT_ONCE_BYTES or len(waiting) == AT_ONCE):
                self._store.put_all(waiting)
                waiting, size = [], 0
            waiting.append((name, packed(run)))
            size += run.bytes
        if waiting:
            self._store.put_all(waiting)

    def _named(self, run: Run) -> str:
        """The name of a new run's object, once there is a file of it."""
        file = self._files.name_of(run)
        if file is not None:
            return f"{self._below}{file}"
        name = self._new()
        self._files.keep(_file(name), run)
        return name

    def load(self, name: str) -> tuple[dict[str, StateManifest], Cut, frozenset[str]]:
        """Read states; their cut, and the names of all objects that they need. Raises StateDamaged.

        Other files here are deleted: on a disk that they fill no state could be stored, and they would stay.
        """
        runs: dict[str, Run] = {}
        try:
            found = stored_state.read(name, bytes(self._store.get(name)))
            self._files.delete_others({_file(run) for run in found.runs})
            states = {
                operator: StateManifest(
                    tuple(tuple(self._fetched(run, runs) for run in spine) for spine in kept.spines),
                    kept.value,
                )
                for operator, kept in found.operators.items()
            }
        except ObjectNotFound as error:
            raise stored_state.gone(error.key) from error
        self._kept = {id(run): (run, one) for one, run in runs.items()}
        return states, dict(found.cut), frozenset([name, *runs])

    def _fetched(self, name: str, runs: dict[str, Run]) -> Run:
        if name not in runs:
            run = self._files.find(_file(name))
            runs[name] = run or self._files.keep(_file(name), unpacked(name, self._store.get(name)))
        return runs[name]

    def leftovers(self, program: int, attempt: int, needed: frozenset[str], other: int) -> frozenset[str]:
        """Objects of this attempt and those before it that are not needed; another attempt's are its own.

        Files that are not needed are deleted.
        """
        self._files.delete_others({_file(name) for name in needed})
        below, after = prefix(program), ""
        found: set[str] = set()
        while names := self._store.list(below, after, MAX_DELETE):
            after = names[-1]
            for one in names:
                number = int(one.removeprefix(below).partition("/")[0])
                if number <= attempt and number != other:
                    found.add(one)
        return frozenset(found - needed)

    def delete(self, names: frozenset[str]) -> None:
        """Delete objects that no state needs any more, and their files."""
        self._files.delete([_file(name) for name in names])
        ordered = sorted(names)
        for first in range(0, len(ordered), MAX_DELETE):
            self._store.delete_many(ordered[first : first + MAX_DELETE])


def _file(name: str) -> str:
    """The name of an object's file among those of its attempt: each process has names of its own."""
    return name.split("/", 3)[3]
