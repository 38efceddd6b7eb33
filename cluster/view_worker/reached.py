"""A cut with digests of operators, as the controller carries it between two versions in a pause."""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from strandline.cluster.view_worker.fetched import Cut


def pack_reached(cut: Cut, digests: Mapping[str, bytes]) -> bytes:
    """A cut, and digests of operators, as the controller carries them."""
    rows = [[topic, number, offset] for (topic, number), offset in sorted(cut.items())]
    packed: bytes = msgpack.packb([rows, dict(digests)])
    return packed


def unpack_reached(packed: bytes) -> tuple[Cut, dict[str, bytes]]:
    """Read what `pack_reached` gave."""
    rows, digests = msgpack.unpackb(packed)
    return {(topic, number): offset for topic, number, offset in rows}, digests
