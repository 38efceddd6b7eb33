"""Finds records that lie elsewhere by the time at which a task reads them.

A plan says which objects hold its records. A lease keeps those that a checkpoint names; what came after it
may be lifted to level one and deleted before a task has read it, and a lease may end. The records are still
there, in objects that a newer state names.

Few tasks look, so what they need for it is imported then: each Python worker imports this module.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from strandline.snapshot.spark.fetch import WAITS_SECONDS, ObjectGone
from strandline.snapshot.spark.pieces import PieceKind, Slice
from strandline.snapshot.storage import Storage

if TYPE_CHECKING:
    from strandline.snapshot.spark.newest import NewestCheckpoints
    from strandline.snapshot.spark.views import PartitionView


class MovedRecords:
    """Places of records in a task's storage as it is now; callable as `Moved`."""

    def __init__(self, storage: Storage, *, compacted: bool) -> None:
        """`compacted`: what compaction has removed since may be left out, as a consumer would miss it.

        Its key has a later record, and a read that ends before that would lack a key that there always was.
        """
        self._storage = storage
        self._compacted = compacted
        self._states: NewestCheckpoints | None = None
        self._asked: Counter[tuple[bytes, int, int]] = Counter()
        """Number of calls for each place."""

    def __call__(self, piece: Slice, base: int, end: int, error: ObjectGone) -> Sequence[Slice]:
        """See Moved; SourceError, too, if the newest states cannot be read."""
        from strandline.snapshot.spark.newest import NewestCheckpoints
        from strandline.snapshot.spark.plan import in_order
        from strandline.snapshot.spark.views import with_blocks

        if self._states is None:
            # Names of documents begin with the kind of object and the cluster.
            self._states = NewestCheckpoints(self._storage, piece.document.split("/")[1])
        place = piece.topic_id, piece.partition, base
        while self._asked[place] < len(WAITS_SECONDS):
            # Asked again, the object was deleted before the state that names another is published.
            time.sleep(WAITS_SECONDS[self._asked[place]])
            self._asked[place] += 1
            self._states.look(whole=True)
            first, until = max(base, piece.first), min(end, piece.end)
            view = self._view(self._states, piece)
            if view is not None and view.first > first:
                raise ObjectGone(
                    f"{piece.topic}-{piece.partition}: records below offset {view.first} were deleted before "
                    f"they were read, {first} was next ({error.args[0].partition(';')[0]}): "
                    "start again, which says how to go on without them"
                ) from error
            if view is None or view.end < until:
                raise error
            try:
                found = with_blocks(self._storage, [view.within(first, until)])
            except ObjectGone as gone:
                error = gone
                continue
            if not self._compacted and not _is_whole(found[0], first, until):
                raise ObjectGone(
                    f"{piece.topic}-{piece.partition}: records from offset {first} on were compacted before "
                    "they were read, and later ones of their keys may lie behind the end of this read. Take "
                    "a checkpoint, whose lease holds them, and read it by its number"
                )
            return [replace(one, aborted=piece.aborted) for window in in_order(found) for one in window]
        raise error

    def _view(self, states: NewestCheckpoints, piece: Slice) -> PartitionView | None:
        from strandline.snapshot.spark.views import newest_views

        topic = states.controller().topics.get(piece.topic_id)
        if topic is None or piece.partition >= len(topic.partitions):
            return None
        place = topic, piece.partition
        return newest_views(states, [place], committed=False)[topic.name, piece.partition]


def _is_whole(view: PartitionView, first: int, until: int) -> bool:
    """Whether a view has each offset in `[first, until)`: compaction may have left nothing of it."""
    for row in view.rows:
        if row["kind"] == PieceKind.BLOCK_WITH_HOLES or row["base_offset"] > first:
            return False
        first = row["end_offset"]
    return bool(first >= until)
