"""Checks every length and count in a request's body before kio decodes it.

kio's reader takes memory for an array on the word of its count: eight bytes an element, so a frame of
thirty bytes that promises 2**35 of them ends the process, which no `except` can stop. And it raises for a
tagged field it does not know, where KIP-482 wants it skipped. So each body is walked first, by a function
compiled from kio's own schema: counts are held against a budget and against the bytes that are there,
unknown tagged fields are cut out, and null arrays, which kio hands on, are refused where the schema refuses
them. The walk reads lengths only; strings and values are left to kio.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from strandline.node.kafka.wire.schema import EntityLayout, FieldLayout, entity_layout

_I32: Final = struct.Struct(">i")
_MAX_LENGTH: Final = 2**31 - 1

Cuts = list[tuple[int, int, bytes]]
"""Sections of tagged fields to replace: start, end, new bytes."""


class MalformedFrame(Exception):
    """A frame that is not one well-formed request of a known kind; its connection must be closed."""


class _Walk(Protocol):
    def __call__(self, body: memoryview, position: int, left: int, cuts: Cuts) -> tuple[int, int]:
        """Walk one entity; give the position after it and what is left of the budget of elements."""


_WALKS: Final[dict[type[Any], _Walk]] = {}


def checked_body(
    request_type: type[Any], body: memoryview, position: int, max_elements: int
) -> tuple[memoryview, int]:
    """The body to decode from `position` on, once all its lengths are right.

    The body is the one given, or one without tagged fields that the schema does not name. `max_elements`
    bounds the elements of all arrays together. Bytes after the entity are ignored, as
    Kafka ignores them: librdkafka's request for all topics has three too many. Raises MalformedFrame.
    """
    cuts: Cuts = []
    try:
        end, _ = _walk_of(request_type)(body, position, max_elements, cuts)
    except (IndexError, struct.error):
        raise MalformedFrame(f"it ends inside {request_type.__name__}") from None
    if end > len(body):
        raise MalformedFrame(f"it ends inside {request_type.__name__}")
    return (_without(body, position, cuts), 0) if cuts else (body, position)


def prepare_check(request_type: type[Any]) -> None:
    """Compile the check of a kind of request, for `checked_body` to find."""
    _walk_of(request_type)


def skip_tagged_fields(body: memoryview, position: int) -> int:
    """Position after a section of tagged fields that are all ignored. Raises MalformedFrame or IndexError."""
    count, position = read_varint(body, position)
    for _ in range(count):
        _, position = read_varint(body, position)
        size, position = read_varint(body, position)
        position += size
    return position


def read_varint(body: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint below 2**31 and the position after it. Raises MalformedFrame or IndexError."""
    value = shift = 0
    while shift < 35:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MAX_LENGTH:
                break
            return value, position
        shift += 7
    raise MalformedFrame("a varint is above 2147483647")


def _write_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _without(body: memoryview, position: int, cuts: Cuts) -> memoryview:
    parts: list[bytes | memoryview] = []
    for start, end, replacement in cuts:
        parts += (body[position:start], replacement)
        position = end
    parts.append(body[position:])
    return memoryview(b"".join(parts))


def _too_many(count: int) -> MalformedFrame:
    return MalformedFrame(
        f"an array promises {count} elements, more than there are bytes for or than allowed"
    )


def _null(name: str) -> MalformedFrame:
    return MalformedFrame(f"the array {name} is null")


def _walk_tags(
    known: dict[int, _Walk], body: memoryview, position: int, left: int, cuts: Cuts
) -> tuple[int, int]:
    """Walk a section of tagged fields that is not empty (KIP-482), and cut out what the schema lacks."""
    start = position
    count, position = read_varint(body, position)
    kept: list[bytes | memoryview] = []
    changed, known_count = False, 0
    for _ in range(count):
        field_start = position
        tag, position = read_varint(body, position)
        size, position = read_varint(body, position)
        end = position + size
        if tag in known:
            inner: Cuts = []
            walked, left = known[tag](body, position, left, inner)
            if walked != end:
                raise MalformedFrame(f"tagged field {tag} is not as long as it says")
            if inner:
                changed = True
                value = _without(body[:end], position, inner)
                kept += (_write_varint(tag), _write_varint(len(value)), value)
            else:
                kept.append(body[field_start:end])
            known_count += 1
        position = end
    if changed or known_count < count:
        cuts.append((start, position, b"".join((_write_varint(known_count), *kept))))
    return position, left


def _walk_of(entity: type[Any]) -> _Walk:
    walk = _WALKS.get(entity)
    if walk is None:
        layout = entity_layout(entity)
        walk = _WALKS[entity] = _compile(entity.__name__, lambda writer: writer.entity(layout, 1))
    return walk


def _compile(name: str, write: Callable[[_WalkWriter], None]) -> _Walk:
    writer = _WalkWriter()
    write(writer)
    lines = ["def walk(b, p, left, cuts):", *writer.lines, "    return p, left"]
    namespace: dict[str, Any] = {
        "i32": _I32.unpack_from,
        "varint": read_varint,
        "too_many": _too_many,
        "null": _null,
        "tags": _walk_tags,
        "walks": writer.walks,
    }
    exec(compile("\n".join(lines), f"<bounds of {name}>", "exec"), namespace)
    return cast(_Walk, namespace["walk"])


class _WalkWriter:
    """Writes the source of a walk: `b` is the body, `p` the position, `left` the budget of elements."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.walks: list[dict[int, _Walk]] = []

    def put(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def entity(self, layout: EntityLayout, depth: int) -> None:
        skipped = 0
        for field in layout.plain:
            if field.fixed_bytes is not None and not field.array:
                skipped += field.fixed_bytes
                continue
            self.skip(skipped, depth)
            skipped = 0
            self.field(field, layout.flexible, depth)
        self.skip(skipped, depth)
        if layout.flexible:
            known = {field.tag: _compile_field(field) for field in layout.tagged if field.tag is not None}
            self.walks.append(known)
            self.put(
                depth,
                "if b[p]:",
                f"    p, left = tags(walks[{len(self.walks) - 1}], b, p, left, cuts)",
                "else:",
                "    p += 1",
            )

    def skip(self, size: int, depth: int) -> None:
        if size:
            self.put(depth, f"p += {size}")

    def varint(self, name: str, depth: int) -> None:
        self.put(depth, f"{name} = b[p]", "p += 1", f"if {name} > 127:", f"    {name}, p = varint(b, p - 1)")

    def field(self, field: FieldLayout, flexible: bool, depth: int) -> None:
        if field.array:
            self.array(field, flexible, depth)
        elif field.entity is not None and field.nullable:
            # A byte in front says whether the structure is there; -1 is null (KIP-893).
            self.put(depth, "p += 1", "if b[p - 1] < 128:")
            self.entity(entity_layout(field.entity), depth + 1)
        elif field.entity is not None:
            self.entity(entity_layout(field.entity), depth)
        elif field.fixed_bytes is not None:
            self.skip(field.fixed_bytes, depth)
        else:
            self.sized(field.kind, flexible, depth)

    def sized(self, kind: str, flexible: bool, depth: int) -> None:
        if flexible:
            self.varint("n", depth)
            self.put(depth, "if n:", "    p += n - 1")
        elif kind == "string":
            self.put(depth, "n = b[p] << 8 | b[p + 1]", "p += 2", "if n < 32768:", "    p += n")
        else:
            self.put(depth, "n = i32(b, p)[0]", "p += 4", "if n > 0:", "    p += n")

    def array(self, field: FieldLayout, flexible: bool, depth: int) -> None:
        count = f"n{depth}"
        if flexible:
            self.varint(count, depth)
            self.put(depth, f"{count} -= 1")
        else:
            self.put(depth, f"{count} = i32(b, p)[0]", "p += 4")
        if not field.nullable:
            # kio hands a null on, and Kafka closes the connection.
            self.put(depth, f"if {count} < 0:", f"    raise null({field.name!r})")
        inner = entity_layout(field.entity) if field.entity is not None else None
        self.put(
            depth,
            f"if {count} > 0:",
            f"    left -= {count}",
            "    if left < 0:",
            f"        raise too_many({count})",
        )
        if inner is None and field.fixed_bytes is not None:
            self.put(depth + 1, f"p += {count} * {field.fixed_bytes}")
            return
        self.put(depth + 1, f"for _ in range({count}):")
        if inner is not None:
            self.entity(inner, depth + 2)
        else:
            self.sized(field.kind, flexible, depth + 2)


def _compile_field(field: FieldLayout) -> _Walk:
    """The walk of one tagged field's value; only flexible versions have them."""
    return _compile(field.name, lambda writer: writer.field(field, True, 1))
