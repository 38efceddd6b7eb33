"""Sink: the end of a view.

It turns the changes of rows into changes of keys, when it is allowed to say anything.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from strandline.snapshot.views import hashing
from strandline.snapshot.views.errors import ViewInvariant
from strandline.snapshot.views.operator import (
    Operator,
    State,
    StateManifest,
    StatePlan,
    manifest,
    restored,
)
from strandline.snapshot.views.run import HashRange, Layout, Run, group, run_of
from strandline.snapshot.views.zset import Positions, Schema, ZSet, chosen, filtered, frame, gathered


class Phase(enum.Enum):
    """A sink's permission to speak."""

    SILENT = "silent"
    """Nothing: the circuit replays what the topic already has, or fills a view that is not visible."""
    DUMPING = "dumping"
    """The whole content, in pieces."""
    FOLLOWING = "following"
    """Each change."""


_MOVES: Final = frozenset((
    (Phase.SILENT, Phase.DUMPING), (Phase.SILENT, Phase.FOLLOWING), (Phase.DUMPING, Phase.FOLLOWING),
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows that keys now have, and the keys that have none any more.

    The one row of a view without a key is removed as a row of one column, which means nothing.
    """

    rows: pl.DataFrame
    removed: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Settled(ZSet):
    """A consolidated delta, as a run by the view's key."""

    run: Run


def _settled(run: Run) -> Settled:
    return Settled(run.rows, run.sums[0], run)


class Sink(Operator):
    """Keeps the digest of the view.

    It begins silent, also after `load`: a state does not say what was written.
    """

    def __init__(self, name: str, schema: Schema, key: Positions) -> None:
        super().__init__(name, State())
        self._layout = Layout(schema, key)
        self._phase = Phase.SILENT

    @property
    def phase(self) -> Phase:
        """The permission that the sink has now."""
        return self._phase

    def move(self, phase: Phase) -> None:
        """Go on to another phase; raises ViewInvariant for a way that there is not."""
        if (self._phase, phase) not in _MOVES:
            raise ViewInvariant(f"{self.name} cannot go from {self._phase.value} to {phase.value}")
        self._phase = phase

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Consolidate the change of the view."""
        (delta,) = deltas
        run = run_of(self._layout, delta.rows, (delta.weights,))
        change = hashing.digest(run.row_hashes(), run.sums[0])
        return _settled(run), State((), (self.current.digest + change) % hashing.DIGEST_MODULUS)

    def emit(self, delta: ZSet) -> Changes | None:
        """Give what to write for a step's change, None in silence; raises ViewInvariant in a dump."""
        if self._phase is Phase.SILENT:
            return None
        if self._phase is not Phase.FOLLOWING:
            raise ViewInvariant(f"{self.name} follows nothing while it is {self._phase.value}")
        return self._changes(delta)

    def dump(self, part: ZSet) -> Changes:
        """Give what to write for a part of the content; raises ViewInvariant in another phase."""
        if self._phase is not Phase.DUMPING:
            raise ViewInvariant(f"{self.name} dumps nothing while it is {self._phase.value}")
        return self._changes(part)

    def _changes(self, delta: ZSet) -> Changes:
        if not isinstance(delta, Settled):
            raise ViewInvariant(f"{self.name} says what its step or its content is, and nothing else")
        keys = chosen(delta.rows, self._layout.key)
        if not self._layout.key:
            # There is one row at most: all have the same place.
            keys = frame([pl.repeat(False, len(delta), dtype=pl.Boolean, eager=True)])
        if not len(delta):
            return Changes(delta.rows, keys)
        order, same = group(delta.run.hashes, keys, np.arange(len(delta)))
        starts = np.flatnonzero(np.concatenate([[True], ~same]))
        added = np.add.reduceat(np.maximum(delta.weights, 0)[order], starts)
        if int(added.max()) > 1:
            raise ViewInvariant(f"{self.name} has two rows of one key")
        rows = filtered(delta, delta.weights > 0).rows
        return Changes(rows, gathered(keys, order[starts[added == 0]]))

    def state(self) -> StateManifest:
        """Give the digest of the view."""
        return manifest(self.current)

    def load(self, manifest: StateManifest) -> None:
        """Take over a digest, in silence; raises ViewInvariant when the sink has spoken."""
        if self._phase is not Phase.SILENT:
            raise ViewInvariant(f"{self.name} cannot load a state while it is {self._phase.value}")
        self.install(restored(self, manifest, ())[0])

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Give the view's rows, each once: an operator below may add what another takes away."""
        (part,) = inputs
        return _settled(run_of(self._layout, part.rows, (part.weights,)))

    def state_plan(self) -> StatePlan:
        """Tell the view's key."""
        return StatePlan((self._layout.key,))
