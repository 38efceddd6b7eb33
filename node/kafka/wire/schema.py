"""The encoding of kio's entities, in the form that the two compilers of this package read.

kio generates a dataclass for every message and version from Kafka's own schemas and keeps the encoding in the
fields' metadata. `request_check` compiles a bounds check from it, `response_encoder` an encoder.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

FIXED: Final = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "error_code": ("h", 2),
    "timedelta_i32": ("i", 4),
    "timedelta_i64": ("q", 8),
    "datetime_i64": ("q", 8),
    "uuid": ("16s", 16),
}
"""Kafka types of one size: their `struct` format and their bytes."""

SIZED: Final = frozenset({"string", "bytes", "records"})
"""Kafka types that carry their length."""


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """Encoding of one field. `entity` is set for structures, `kind` for everything else."""

    name: str
    kind: str
    entity: type[Any] | None
    array: bool
    nullable: bool
    tag: int | None
    default: Any

    @property
    def fixed_bytes(self) -> int | None:
        """Bytes of one element when that does not depend on its value."""
        return FIXED[self.kind][1] if self.kind in FIXED else None


@dataclass(frozen=True, slots=True)
class EntityLayout:
    """An entity's fields in the order they are sent; tagged ones apart, by tag."""

    flexible: bool
    plain: tuple[FieldLayout, ...]
    tagged: tuple[FieldLayout, ...]


def entity_layout(entity: type[Any]) -> EntityLayout:
    """Read an entity class. Raises TypeError for an encoding this package does not know."""
    layouts = [_field_layout(field) for field in fields(entity)]
    tagged = sorted((field for field in layouts if field.tag is not None), key=lambda field: field.tag or 0)
    plain = tuple(field for field in layouts if field.tag is None)
    return EntityLayout(bool(entity.__flexible__), plain, tuple(tagged))


def _field_layout(field: Field[Any]) -> FieldLayout:
    nullable, inner = _without_none(field.type)
    array = get_origin(inner) is tuple
    if array:
        inner = get_args(inner)[0]
    entity: type[Any] | None = None
    kind = str(field.metadata.get("kafka_type", ""))
    if isinstance(inner, type) and is_dataclass(inner):
        entity, kind = inner, ""
    elif kind not in FIXED and kind not in SIZED:
        raise TypeError(f"{field.name} has the unknown Kafka type {kind!r}")
    tag = field.metadata.get("tag")
    if tag is not None and field.default is MISSING:
        raise TypeError(f"{field.name} is tagged and has no default")
    return FieldLayout(field.name, kind, entity, array, nullable, tag, field.default)


def _without_none(annotation: Any) -> tuple[bool, Any]:
    if get_origin(annotation) is not UnionType:
        return False, annotation
    rest = [argument for argument in get_args(annotation) if argument is not NoneType]
    if len(rest) != 1:
        raise TypeError(f"{annotation} is not a type of Kafka's schemas")
    return True, rest[0]
