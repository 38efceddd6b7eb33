"""Bounds of one step's transaction and of one record that a view writes."""

from __future__ import annotations

from typing import Any, Final

import pyarrow.compute as pc  # type: ignore[import-untyped]

from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.snapshot.views.circuit import Bound
from strandline.statemachine.controller.view_state import ViewTopic

STEP_CHANGES: Final = Bound(100_000, 32 << 20)
"""The most that a step changes. One that would change more is made again with half of its records."""
RECORD_CHANGES: Final = Bound(1_000_000, 256 << 20)
"""The most that a single record changes: it is one transaction, however much that is."""
BATCH_OVERHEAD: Final = 128
"""More bytes than a batch of one record has beside the record's key and value."""
BATCH_BYTES: Final = 1 << 20
"""Of a batch: a partition has one under way at a time, so a step's records go out in few."""
SHOWN_KEY_BYTES: Final = 100


def record_bytes(place: TopicPlace) -> int:
    """The most bytes of key and value that a record of the topic may have."""
    return place.max_message_bytes - BATCH_OVERHEAD


def batch_bytes(place: TopicPlace) -> int:
    """The most bytes of a batch of several records."""
    return min(BATCH_BYTES, record_bytes(place))


def too_large(view: ViewTopic, place: TopicPlace, keys: Any, values: Any) -> str | None:
    """The cause and the cure of a row that its topic does not take: no other process could write it.

    None where there is none among keys and values, which are Arrow arrays of binaries.
    """
    sizes = pc.add(pc.binary_length(keys), pc.binary_length(values).fill_null(0)).to_numpy(
        zero_copy_only=False
    )
    most = record_bytes(place)
    if not len(sizes) or sizes.max() <= most:
        return None
    first = int((sizes > most).argmax())
    shown = keys[first].as_py()[:SHOWN_KEY_BYTES].decode(errors="replace")
    return (
        f"ROW_TOO_LARGE: the row of view {view.view} with key {shown} has {sizes[first]} bytes, and topic "
        f"{view.topic} takes {most} (its max.message.bytes less {BATCH_OVERHEAD}): leave "
        "large columns out of the view or shorten them, or raise max.message.bytes of a live view's topic; "
        "then apply the program again"
    )
