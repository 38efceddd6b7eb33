"""The columns of JSON values, inferred from a sample of them.

Types widen until all of the sample fits: whole numbers to fractions, what has no common type to text, which
Spark fills with the JSON as it is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

MOST_FIELDS: Final = 200
"""Fields of an object; one with more is a map with keys of its own, and stays text."""
DEEPEST: Final = 8
"""Levels of objects and arrays; what lies deeper is text."""
_LARGEST: Final = 2**63

Kind = str | list[Any] | dict[str, Any] | None
"""A type: a name of Spark SQL's, one element for an array, fields for a struct; None is of null alone."""


def infer(values: Iterable[bytes]) -> dict[str, Kind] | None:
    """Return the fields of all objects among the values; None if less than half of them are objects."""
    objects, others = 0, 0
    fields: Kind = None
    for value in values:
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            objects += 1
            fields = merged(fields, kind_of(found))
        else:
            others += 1
    if not objects or objects < others or not isinstance(fields, dict):
        return None
    return fields


def kind_of(value: Any, depth: int = 0) -> Kind:
    """The narrowest type of a decoded value."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -_LARGEST <= value < _LARGEST else "STRING"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, str) or depth == DEEPEST:
        return "STRING"
    if isinstance(value, list):
        element: Kind = None
        for one in value:
            element = merged(element, kind_of(one, depth + 1))
        return [element]
    return _struct({name: kind_of(one, depth + 1) for name, one in value.items()})


def merged(one: Kind, other: Kind) -> Kind:
    """The narrowest type that both fit."""
    if one is None or other is None or one == other:
        return one if other is None else other
    if isinstance(one, list) and isinstance(other, list):
        return [merged(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys([*one, *other])
        return _struct({name: merged(one.get(name), other.get(name)) for name in names})
    return "DOUBLE" if {str(one), str(other)} == {"BIGINT", "DOUBLE"} else "STRING"


def _struct(fields: dict[str, Kind]) -> Kind:
    """Text in place of an object that cannot be columns: Spark knows no names that differ in case alone."""
    if not fields or len(fields) > MOST_FIELDS or len({name.lower() for name in fields}) < len(fields):
        return "STRING"
    return fields


def ddl(fields: dict[str, Kind]) -> str:
    """The fields as a schema in Spark SQL's words."""
    return ", ".join(f"{quoted(name)} {_ddl(kind)}" for name, kind in fields.items())


def _ddl(kind: Kind) -> str:
    if isinstance(kind, list):
        return f"ARRAY<{_ddl(kind[0])}>"
    if isinstance(kind, dict):
        return f"STRUCT<{', '.join(f'{quoted(name)}: {_ddl(one)}' for name, one in kind.items())}>"
    return kind or "STRING"


def quoted(name: str) -> str:
    """A name that may have any characters, in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
