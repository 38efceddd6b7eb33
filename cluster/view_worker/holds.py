"""Holds of records that a version would read again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from strandline.cluster.view_worker.fetched import Cut
from strandline.cluster.view_worker.node_link import NodeLink, NodeRefuses

log = logging.getLogger(__name__)

HOLD_MS: Final = 24 * 3_600_000


def hold(link: NodeLink, inputs: Iterable[tuple[str, bytes]], reader: str, cut: Cut | None) -> None:
    """Hold what lies behind a cut in compacted inputs; None renews a reader's holds, or begins them.

    Raises HoldLost for a cut below which an input was cleaned, NodeRefuses.
    """
    for name, topic_id in inputs:
        place = link.known.topics.get(topic_id)
        if place is not None and place.compacted:
            numbers = range(place.partitions)
            offsets = {number: None if cut is None else cut.get((name, number), 0) for number in numbers}
            link.hold(name, reader, offsets, HOLD_MS)


def release(link: NodeLink, inputs: Iterable[tuple[str, bytes]], reader: str) -> None:
    """End a reader's holds of inputs; those that cannot be ended run out by themselves."""
    for name, topic_id in inputs:
        place = link.known.topics.get(topic_id)
        if place is not None and place.compacted:
            try:
                link.release(name, reader, range(place.partitions))
            except NodeRefuses as refused:
                log.warning("a hold of %s stays until it runs out: %s", reader, refused)
