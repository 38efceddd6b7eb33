"""Bounds of one step's transaction and of one record that a view writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
"""A step's records go out in few batches: while more wait than may be under way, librdkafka spins."""
SHOWN_KEY_BYTES: Final = 100
MOST_MESSAGE_BYTES: Final = 1_000_000_000
"""librdkafka's greatest value: topics' own bounds are looked at here."""


def record_bytes(place: TopicPlace) -> int:
    """The most bytes of key and value that a record of the topic may have."""
    return place.max_message_bytes - BATCH_OVERHEAD


def batch_bytes(places: Iterable[TopicPlace]) -> int:
    """The size of batches that all of some topics take."""
    return max(1, min([BATCH_BYTES, *map(record_bytes, places)]))


def too_large(view: ViewTopic, place: TopicPlace, key: bytes, value: bytes | None) -> str:
    """The cause and the cure of a row that its topic does not take: no other process could write it."""
    size, shown = len(key) + len(value or b""), key[:SHOWN_KEY_BYTES].decode(errors="replace")
    return (
        f"ROW_TOO_LARGE: the row of view {view.view} with key {shown} has {size} bytes, and topic "
        f"{view.topic} takes {record_bytes(place)} (its max.message.bytes less {BATCH_OVERHEAD}): leave "
        "large columns out of the view or shorten them, or raise max.message.bytes of a live view's topic; "
        "then apply the program again"
    )
