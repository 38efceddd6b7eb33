"""Ending holds of records that a version needs no more."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from strandline.cluster.view_worker.node_link import NodeLink, NodeRefuses

log = logging.getLogger(__name__)


def release(link: NodeLink, inputs: Iterable[tuple[str, bytes]], reader: str) -> None:
    """End a reader's holds of inputs; those that cannot be ended run out by themselves."""
    for name, topic_id in inputs:
        place = link.known.topics.get(topic_id)
        if place is not None and place.compacted:
            try:
                link.release(name, reader, range(place.partitions))
            except NodeRefuses as refused:
                log.warning("a hold of %s stays until it runs out: %s", reader, refused)
