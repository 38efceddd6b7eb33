"""Frame of every kind of object: a header, and a footer that is found from the end.

    header | the kind's own bytes | footer fields | tail

The tail has a fixed size, says how long the footer is, and its CRC-32C covers all of it. Magic, version and
checksum keep their places in every version of every kind, and the checksum is looked at before the version:
so damage is told from a newer format, and one kind's bytes are never read as another's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct("<8sHHI")
"""magic, version, zero, CRC-32C of the 12 bytes before it."""
TAIL = struct.Struct("<IIHH8s")
"""length of the footer with this in bytes, CRC-32C of it without this field, version, zero, magic."""
_CRC = struct.Struct("<I")
_CRC_FROM_END = TAIL.size - 4


class BadObject(ValueError):
    """Bytes from storage that are not what was stored: the object's name, the byte range, what is wrong."""

    def __init__(self, name: str, start: int, end: int, reason: str) -> None:
        super().__init__(f"object {name}, bytes {start} to {end}: {reason}")
        self.name = name
        self.start = start
        self.end = end
        self.reason = reason


class NewerFormat(BadObject):
    """The object is intact and of a format version this reader does not know."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Header and tail of one kind of objects."""

    kind: str
    """For people: "level-zero object"."""
    magic: bytes
    version: int
    least_footer_bytes: int
    """Of a footer without any rows, the tail included."""

    def header(self) -> bytes:
        start = HEADER.pack(self.magic, self.version, 0, 0)[:-4]
        return start + _CRC.pack(crc32c(start))

    def footer(self, fields: bytes) -> bytes:
        """The end of an object: the fields, and the tail that belongs to them."""
        length = len(fields) + TAIL.size
        blank = TAIL.pack(length, 0, self.version, 0, self.magic)
        crc = crc32c(blank[8:], crc32c(blank[:4], crc32c(fields)))
        return fields + TAIL.pack(length, crc, self.version, 0, self.magic)

    def version_of(self, tail: Buffer) -> int:
        """The format version of a footer that was checked; `tail` has the object's last TAIL.size bytes."""
        return int(TAIL.unpack(tail[-TAIL.size :])[2])

    def footer_bytes(self, name: str, tail: Buffer, size: int) -> int:
        """Size in bytes of an object's footer; `tail` has the object's last TAIL.size bytes or more."""
        if size < HEADER.size + self.least_footer_bytes or len(tail) < TAIL.size:
            raise BadObject(name, 0, size, f"too short to be a {self.kind}; it was cut or is something else")
        length, _, _, _, magic = TAIL.unpack(tail[-TAIL.size :])
        if magic != self.magic:
            raise BadObject(name, size - len(magic), size, f"no magic at the end: cut, or not a {self.kind}")
        if not TAIL.size <= length <= size - HEADER.size:
            raise BadObject(name, size - TAIL.size, size, f"a footer of {length} bytes does not fit")
        return int(length)

    def checked_footer(self, name: str, tail: Buffer, size: int) -> bytes:
        """The fields of the footer of the object of `size` bytes whose last bytes are `tail`.

        `tail` must reach back at least `footer_bytes()`. Raises BadObject, or NewerFormat.
        """
        length = self.footer_bytes(name, tail, size)
        start = size - length
        if length > len(tail):
            raise ValueError(f"the footer of {name} needs {length} bytes, {len(tail)} were given")
        footer = bytes(tail[len(tail) - length :])
        _, crc, version, _, _ = TAIL.unpack(footer[-TAIL.size :])
        if crc32c(footer[-_CRC_FROM_END + 4 :], crc32c(footer[:-_CRC_FROM_END])) != crc:
            raise BadObject(name, start, size, "the footer's checksum does not match")
        self._known(name, start, size, version)
        if length < self.least_footer_bytes:
            raise BadObject(name, start, size, f"a footer of {length} bytes has no room for its fields")
        return footer[: -TAIL.size]

    def check_header(self, name: str, data: Buffer) -> int:
        """Check the first bytes of an object, HEADER.size or more, and return the version that they say.

        Raises BadObject, or NewerFormat.
        """
        magic, version, zero, crc = HEADER.unpack_from(data)
        if magic != self.magic or crc32c(data[: HEADER.size - 4]) != crc or zero:
            raise BadObject(name, 0, HEADER.size, "the header is damaged")
        self._known(name, 0, HEADER.size, version)
        return int(version)

    def _known(self, name: str, start: int, end: int, version: int) -> None:
        if version > self.version:
            reason = f"format version {version}, this reader knows up to {self.version}: upgrade"
            raise NewerFormat(name, start, end, reason)
        if version < 1:
            raise BadObject(name, start, end, f"there is no format version {version}")
