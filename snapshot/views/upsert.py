"""Upsert: a log of changes of keys becomes rows that are added and retracted."""

from __future__ import annotations

import numpy as np

from strandline.snapshot.views import hashing
from strandline.snapshot.views.operator import (
    Operator,
    State,
    StateManifest,
    StatePlan,
    manifest,
    restored,
)
from strandline.snapshot.views.run import HashRange, Layout, group, run_of
from strandline.snapshot.views.spine import Spine, contents
from strandline.snapshot.views.zset import Positions, Schema, ZSet, chosen, concatenated, filtered, gathered


class Upsert(Operator):
    """Keeps the last row of each key.

    Its input is a log and no Z-set: rows in the order of their offsets, of weight 1 for a value and -1 for
    the deletion of the row's key, whose other columns do not count.
    """

    def __init__(self, name: str, schema: Schema, key: Positions) -> None:
        self._layout = Layout(schema, key)
        super().__init__(name, State((Spine(self._layout),)))

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Retract the row that each changed key had, and add its new one: the last change counts."""
        last = self._last_changes(deltas[0])
        keys = chosen(last.rows, self._layout.key)
        spine = self.current.spines[0]
        old = spine.rows_of(hashing.key_hash(keys), keys)
        parts = [filtered(last, last.weights > 0)]
        if old is not None:
            parts.append(ZSet(old.rows, -old.weights))
        both = concatenated(parts)
        change = run_of(self._layout, both.rows, (both.weights,))
        digest = hashing.digest(change.row_hashes(), change.sums[0])
        after = State((spine.with_run(change),), (self.current.digest + digest) % hashing.DIGEST_MODULUS)
        return ZSet(change.rows, change.sums[0]), after

    def _last_changes(self, log: ZSet) -> ZSet:
        """Give the last row of each key; where a key was set and deleted in one step, only the end counts."""
        if not len(log):
            return log
        keys = chosen(log.rows, self._layout.key)
        hashes = hashing.key_hash(keys)
        order, same = group(hashes, keys, np.argsort(hashes, kind="stable"))
        last = order[np.flatnonzero(np.concatenate([~same, [True]]))]
        return ZSet(gathered(log.rows, last), log.weights[last])

    def state(self) -> StateManifest:
        """Give the rows and their digest."""
        return manifest(self.current)

    def load(self, manifest: StateManifest) -> None:
        """Take over rows; raises ViewInvariant for those of another layout."""
        self.install(restored(self, manifest, (Spine(self._layout),))[0])

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Give the rows of a range of keys."""
        run = contents(self.current.spines[0], hash_range)
        return ZSet(run.rows, run.sums[0])

    def state_plan(self) -> StatePlan:
        """Tell the key; a piece's rows must come in the order of their offsets."""
        return StatePlan((self._layout.key,))
