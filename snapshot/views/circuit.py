"""Circuits: operators in their order, stepped together. A step installs all new states, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Final

from strandline.snapshot.views.errors import ViewError, ViewInvariant, ViewLimit
from strandline.snapshot.views.operator import Operator, State, StateManifest
from strandline.snapshot.views.run import HASHES, HashRange, Run
from strandline.snapshot.views.sink import Changes, Sink
from strandline.snapshot.views.spine import Level, Merge, Spine, as_it_is
from strandline.snapshot.views.zset import Schema, ZSet, empty

LEVELS: Final = 32
"""The levels of a spine at which a step waits for the merge that is under way."""
_PROCESS: Final = os.getpid()


@dataclass(frozen=True, slots=True)
class Node:
    """An operator, and the names of its inputs: sources, or operators before it."""

    operator: Operator
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one step may have to say."""

    rows: int
    """Rows that are there and keys that are removed, of all sinks."""
    size: int
    """Bytes that they take in memory."""

    def check(self, said: Mapping[str, Changes]) -> None:
        """Raise ViewLimit for changes beyond the bound."""
        frames = [frame for each in said.values() for frame in (each.rows, each.removed)]
        rows, size = sum(frame.height for frame in frames), sum(frame.estimated_size() for frame in frames)
        if rows > self.rows or size > self.size:
            raise ViewLimit(
                f"a step changes {rows} rows of views, {size} bytes; a transaction takes {self.rows} rows, "
                f"{self.size} bytes"
            )


class Circuit:
    """One program's operators. It belongs to one thread; `merging` may run merges in others.

    `keep` gives what takes the place of a run that a large merge has made, there. `sources` are the names of
    inputs with their columns. Raises ViewInvariant when a node's input is not before it.
    """

    def __init__(
        self,
        sources: Mapping[str, Schema],
        nodes: Sequence[Node],
        merging: Executor | None = None,
        keep: Callable[[Run], Run] = as_it_is,
    ) -> None:
        self._sources = dict(sources)
        self._nodes = {node.operator.name: node for node in nodes}
        self._merging = merging
        self._keep = keep
        self._merges: dict[tuple[str, int], tuple[Merge, Future[Level]]] = {}
        known = set(sources)
        for node in nodes:
            name = node.operator.name
            if name in known or not known.issuperset(node.inputs):
                raise ViewInvariant(f"{name} has the name of another node, or an input that is not before it")
            known.add(name)

    @property
    def sources(self) -> dict[str, Schema]:
        """The inputs by name, with their columns."""
        return self._sources

    @property
    def operators(self) -> dict[str, Operator]:
        """The operators by name, inputs before those that take them."""
        return {name: node.operator for name, node in self._nodes.items()}

    def step(self, deltas: Mapping[str, ZSet], bound: Bound | None = None) -> dict[str, Changes]:
        """Take changes of sources in, and give those of the sinks that may speak.

        Sources that are not named have none. Raises ViewError, ViewLimit for changes beyond the bound; then
        nothing has changed.
        """
        _check_process()
        self._install_merges()
        values = {
            name: deltas[name] if name in deltas else empty(schema) for name, schema in self._sources.items()
        }
        if unknown := set(deltas) - set(values):
            raise ViewInvariant(f"there is no source {min(unknown)}")
        states: dict[str, State] = {}
        said: dict[str, Changes] = {}
        for name, node in self._nodes.items():
            values[name], states[name] = node.operator.step(tuple(values[each] for each in node.inputs))
            if isinstance(node.operator, Sink) and (changes := node.operator.emit(values[name])) is not None:
                said[name] = changes
        if bound is not None:
            bound.check(said)
        for name, state in states.items():
            self._nodes[name].operator.install(state)
        self._begin_merges()
        return said

    def contents(self, name: str, parts: int = 1) -> Iterator[ZSet]:
        """Yield an operator's whole output, in parts by ranges of hashes of the nearest kept keys.

        Each part is of the moment in which it is asked for: parts of one moment are read from a circuit that
        is not stepped meanwhile, such as a fork. Raises ViewError when it depends on a source that no
        operator keeps.
        """
        for part in range(parts):
            first, last = HASHES * part // parts, HASHES * (part + 1) // parts - 1
            yield self._part(name, HashRange(first, last))

    def state(self) -> dict[str, StateManifest]:
        """Give the state of each operator, by name: a checkpoint, or what a fork loads."""
        return {name: node.operator.state() for name, node in self._nodes.items()}

    def load(self, manifests: Mapping[str, StateManifest]) -> None:
        """Take over the states of all operators; raises ViewInvariant when one is missing."""
        if missing := self._nodes.keys() - manifests.keys():
            raise ViewInvariant(f"there is no state of {min(missing)}")
        for name, node in self._nodes.items():
            node.operator.load(manifests[name])

    def digests(self) -> dict[str, int]:
        """Give the digest of what each operator keeps."""
        return {name: node.operator.current.digest for name, node in self._nodes.items()}

    def size(self) -> tuple[int, int]:
        """Give the rows of all runs that operators keep, and their bytes in memory, about."""
        spines = [spine for node in self._nodes.values() for spine in node.operator.current.spines]
        runs = [run for spine in spines for run in spine.runs]
        return sum(map(len, runs)), sum(run.bytes for run in runs)

    def _part(self, name: str, hash_range: HashRange) -> ZSet:
        node = self._nodes.get(name)
        if node is None:
            raise ViewError(f"the rows of {name} are kept by no operator: only its topic has them")
        if node.operator.current.spines:
            return node.operator.contents((), hash_range)
        inputs = tuple(self._part(each, hash_range) for each in node.inputs)
        return node.operator.contents(inputs, hash_range)

    def _begin_merges(self) -> None:
        for name, node in self._nodes.items():
            for at, spine in enumerate(node.operator.current.spines):
                if (name, at) in self._merges:
                    continue
                while (merge := spine.due()) is not None:
                    if self._merging is not None:
                        self._merges[name, at] = (merge, self._merging.submit(merge.made, self._keep))
                        break
                    spine = self._replace(name, at, merge, merge.made(self._keep))

    def _install_merges(self) -> None:
        """Install the merges that have ended; wait for one whose spine has grown too many levels."""
        for (name, at), (merge, future) in [*self._merges.items()]:
            if future.done() or len(self._nodes[name].operator.current.spines[at].levels) > LEVELS:
                del self._merges[name, at]
                self._replace(name, at, merge, future.result())

    def _replace(self, name: str, at: int, merge: Merge, made: Level) -> Spine:
        operator = self._nodes[name].operator
        spines = list(operator.current.spines)
        spines[at] = spines[at].replaced(merge, made)
        operator.install(replace(operator.current, spines=tuple(spines)))
        return spines[at]


def _check_process() -> None:
    """polars' threads are not in a forked child, which would wait for them without end."""
    if os.getpid() != _PROCESS:
        raise ViewInvariant("a view cannot run in a forked process: start a new one")
