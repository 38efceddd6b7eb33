"""A cut with digests of operators, as the controller carries it between two versions in a pause.

Both processes run on the node that leads the program's group, so they are of one release.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from strandline.cluster.view_worker.fetched import Cut


def pack_reached(cut: Cut, digests: Mapping[str, bytes]) -> bytes:
    """A cut, and digests of operators by their hexadecimal names, as the controller carries them.

    It takes MAX_CUT_BYTES at most, so a topic is named once for all of its partitions.
    """
    topics: dict[str, dict[int, int]] = {}
    for (topic, number), offset in sorted(cut.items()):
        topics.setdefault(topic, {})[number] = offset
    named = {bytes.fromhex(name): digest for name, digest in digests.items()}
    packed: bytes = msgpack.packb([topics, named])
    return packed


def unpack_reached(packed: bytes) -> tuple[Cut, dict[str, bytes]]:
    """Read what `pack_reached` gave."""
    topics, named = msgpack.unpackb(packed, strict_map_key=False)
    cut = {(topic, number): offset for topic, offsets in topics.items() for number, offset in offsets.items()}
    return cut, {name.hex(): digest for name, digest in named.items()}
