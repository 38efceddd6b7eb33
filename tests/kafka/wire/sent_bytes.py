"""The bytes of an answer's parts, also of those that lie in files."""

from __future__ import annotations

import os
from collections.abc import Sequence

from strandline.node.kafka.wire.response_encoder import Part
from strandline.node.objectstore.object_file import FileRange


def sent_bytes(parts: Sequence[Part]) -> bytes:
    """The parts as a client would get them, in one piece."""
    return b"".join(
        os.pread(part.file.fileno(), part.length, part.start) if isinstance(part, FileRange) else part
        for part in parts
    )
