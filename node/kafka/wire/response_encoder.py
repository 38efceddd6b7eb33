"""Encodes responses, by functions compiled from kio's schemas.

kio's own writer goes through a chain of Python calls for every field: 29 µs for the smallest produce
response, tens of milliseconds of a stalled loop for the metadata of a thousand partitions. A compiled
encoder packs neighbouring fields with one `struct` call. And it passes records on as they are: a fetch
response is a list of buffers, in which the record batches are the very bytes the log holds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from kio.static.primitive import Records

from strandline.node.kafka.wire.schema import FIXED, EntityLayout, FieldLayout, entity_layout
from strandline.node.objectstore.object_file import FileRange

Buffer = bytes | bytearray | memoryview
Part = Buffer | FileRange
"""A piece of an answer: bytes, or those of an object's file, which are never in this process's memory."""

JOINED_BYTES: Final = 4096
"""Records up to this size are copied into the response: cheaper than one more buffer to send."""

_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_UUID: Final = bytes(16)


class EncodingError(Exception):
    """A response that Kafka's format cannot hold: our own mistake, never the client's."""


class RecordParts:
    """The records of one partition in a fetch response, as buffers that are sent without being joined.

    They must not change until the response is sent.
    """

    __slots__ = ("parts", "size")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.size = sum(map(len, parts))

    def __len__(self) -> int:
        return self.size


def as_records(parts: Sequence[Part]) -> Records:
    """Record batches as the value of a kio field; only this package's encoder can read it."""
    return cast(Records, RecordParts(parts))


def encode(response: Any, head: bytes) -> list[Part]:
    """Parts that hold `head` and then the entity, to be sent in this order.

    Raises EncodingError for a value of the wrong type or out of its field's range.
    """
    parts: list[Part] = []
    try:
        parts.append(_encoder_of(type(response))(response, bytearray(head), parts))
    except (struct.error, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise EncodingError(f"{type(response).__name__} version {response.__version__}: {error}") from error
    return parts


def encode_plain(entity: Any) -> bytes:
    """An entity that has no records, encoded. In place of the entity it may be a partition of a fetch
    response. Raises EncodingError."""
    (encoded,) = encode(entity, b"")
    assert not isinstance(encoded, FileRange), "only records lie in files"
    return bytes(encoded)


def write_varint(value: int) -> bytes:
    """An unsigned varint, 0 <= value < 2**31."""
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE: Final = tuple(bytes([value]) for value in range(0x80))

_Encoder = Callable[[Any, bytearray, list[Part]], bytearray]
_ENCODERS: Final[dict[type[Any], _Encoder]] = {}


def _add_records(value: Buffer | RecordParts, out: bytearray, parts: list[Part]) -> bytearray:
    """Append records whose length is already in `out`; returns the buffer to go on with."""
    buffers = value.parts if isinstance(value, RecordParts) else (value,)
    if len(value) <= JOINED_BYTES:
        in_memory = [each for each in buffers if not isinstance(each, FileRange)]
        if len(in_memory) == len(buffers):
            for buffer in in_memory:
                out += buffer
            return out
    parts.append(out)
    parts.extend(buffers)
    return bytearray()


def _encoder_of(entity: type[Any]) -> _Encoder:
    return _ENCODERS.get(entity) or _ENCODERS.setdefault(entity, _compile(entity))


def _compile(entity: type[Any]) -> _Encoder:
    writer = _EncoderWriter()
    writer.entity(entity_layout(entity), "e", "o", 1)
    writer.flush("o", 1)
    lines = ["def encode(e, o, parts):", *writer.lines, "    return o"]
    exec(compile("\n".join(lines), f"<encoder of {entity.__name__}>", "exec"), writer.namespace)
    return cast(_Encoder, writer.namespace["encode"])


class _EncoderWriter:
    """Writes the source of an encoder: `o` is the buffer under way, `parts` what is already full."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {
            "varint": write_varint,
            "add_records": _add_records,
            "pack": struct.pack,
            "MS": _MILLISECOND,
            "NO_UUID": _NO_UUID,
        }
        self._formats = ""
        self._values: list[str] = []
        self._names = 0

    def put(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, value: object) -> str:
        name = self.name("C")
        self.namespace[name] = value
        return name

    def fixed(self, code: str, value: str) -> None:
        """Remember a value of fixed size: neighbours are packed together."""
        self._formats += code
        self._values.append(value)

    def flush(self, out: str, depth: int) -> None:
        if self._formats:
            pack = self.constant(struct.Struct(">" + self._formats).pack)
            self.put(depth, f"{out} += {pack}({', '.join(self._values)})")
            self._formats, self._values = "", []

    def entity(self, layout: EntityLayout, value: str, out: str, depth: int) -> None:
        for field in layout.plain:
            self.field(field, f"{value}.{field.name}", layout.flexible, out, depth)
        if layout.tagged:
            self.tagged(layout.tagged, value, out, depth)
        elif layout.flexible:
            self.fixed("B", "0")

    def field(self, field: FieldLayout, value: str, flexible: bool, out: str, depth: int) -> None:
        if field.array:
            self.array(field, value, flexible, out, depth)
        elif field.entity is not None and field.nullable:
            self.maybe(entity_layout(field.entity), value, out, depth)
        elif field.entity is not None:
            self.entity(entity_layout(field.entity), value, out, depth)
        elif field.kind in FIXED:
            self.fixed(FIXED[field.kind][0], _scalar(field.kind, value))
        else:
            self.sized(field.kind, value, field.nullable, flexible, out, depth)

    def maybe(self, layout: EntityLayout, value: str, out: str, depth: int) -> None:
        """A structure that may be null has a byte in front that says whether it is there (KIP-893)."""
        local = self.name("e")
        self.flush(out, depth)
        self.put(depth, f"{local} = {value}", f"if {local} is None:", f"    {out} += b'\\xff'", "else:")
        self.fixed("b", "1")
        self.entity(layout, local, out, depth + 1)
        self.flush(out, depth + 1)

    def length(self, size: str, flexible: bool, code: str, out: str, depth: int) -> None:
        if flexible:
            self.flush(out, depth)
            self.put(depth, f"{out} += varint({size} + 1)")
        else:
            self.fixed(code, size)
            self.flush(out, depth)

    def if_null(self, value: str, flexible: bool, code: str, out: str, depth: int) -> None:
        null = b"\0" if flexible else struct.pack(">" + code, -1)
        self.put(depth, f"if {value} is None:", f"    {out} += {null!r}", "else:")

    def sized(self, kind: str, value: str, nullable: bool, flexible: bool, out: str, depth: int) -> None:
        local = self.name("v")
        code = "h" if kind == "string" else "i"
        self.flush(out, depth)
        self.put(depth, f"{local} = {value}")
        if nullable:
            self.if_null(local, flexible, code, out, depth)
            depth += 1
        if kind == "string":
            self.put(depth, f"{local} = {local}.encode()")
        self.length(f"len({local})", flexible, code, out, depth)
        if kind == "records" and out == "o":
            self.put(depth, f"o = add_records({local}, o, parts)")
        else:
            self.put(depth, f"{out} += {local}")

    def array(self, field: FieldLayout, value: str, flexible: bool, out: str, depth: int) -> None:
        items, item = self.name("a"), self.name("e")
        self.flush(out, depth)
        self.put(depth, f"{items} = {value}")
        if field.nullable:
            self.if_null(items, flexible, "i", out, depth)
            depth += 1
        self.length(f"len({items})", flexible, "i", out, depth)
        if field.entity is None and field.kind in FIXED and _scalar(field.kind, "") == "":
            self.put(depth, f"{out} += pack(f'>{{len({items})}}{FIXED[field.kind][0]}', *{items})")
            return
        self.put(depth, f"for {item} in {items}:")
        if field.entity is not None and _has_records(entity_layout(field.entity)):
            lines = f"if type({item}) is bytes:", f"    {out} += {item}", "    continue"
            self.put(depth + 1, *lines)
        if field.entity is not None:
            self.entity(entity_layout(field.entity), item, out, depth + 1)
        elif field.kind in FIXED:
            self.fixed(FIXED[field.kind][0], _scalar(field.kind, item))
        else:
            self.sized(field.kind, item, False, flexible, out, depth + 1)
        self.flush(out, depth + 1)

    def tagged(self, fields: tuple[FieldLayout, ...], value: str, out: str, depth: int) -> None:
        """Tagged fields are sent when they differ from their default, lowest tag first (KIP-482)."""
        count, section = self.name("n"), self.name("t")
        self.flush(out, depth)
        self.put(depth, f"{count} = 0", f"{section} = bytearray()")
        for field in fields:
            content = self.name("o")
            self.put(depth, f"if {value}.{field.name} != {self.constant(field.default)}:")
            self.put(depth + 1, f"{count} += 1", f"{content} = bytearray()")
            self.field(field, f"{value}.{field.name}", True, content, depth + 1)
            self.flush(content, depth + 1)
            tag = write_varint(field.tag or 0)
            self.put(depth + 1, f"{section} += {tag!r} + varint(len({content})) + {content}")
        self.put(depth, f"{out} += varint({count})", f"{out} += {section}")


def _has_records(layout: EntityLayout) -> bool:
    return any(field.kind == "records" for field in layout.plain)


def _scalar(kind: str, value: str) -> str:
    """The expression that turns a field's Python value into what `struct` packs."""
    if kind.startswith("timedelta"):
        return f"{value} // MS"
    if kind == "datetime_i64":
        return f"-1 if {value} is None else round({value}.timestamp() * 1000)"
    if kind == "uuid":
        return f"NO_UUID if {value} is None else {value}.bytes"
    return value
