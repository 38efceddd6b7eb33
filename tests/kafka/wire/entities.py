"""Entities of kio's schemas, random or of plain values, and the versions that are spoken."""

from __future__ import annotations

import datetime
import io
import random
import struct
import uuid
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.schema import FieldLayout, entity_layout

VERSIONS = [(int(api.key), version) for api in APIS.values() for version in range(api.first, api.last + 1)]

_EPOCH = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def random_request(rng: random.Random, api_key: int, version: int) -> Any:
    return random_entity(rng, load_request_schema(api_key, version))


def random_response(rng: random.Random, api_key: int, version: int) -> Any:
    return random_entity(rng, load_response_schema(api_key, version))


def random_entity(rng: random.Random, entity: type[Any]) -> Any:
    layout = entity_layout(entity)
    values = {field.name: _value(rng, field) for field in layout.plain}
    values |= {field.name: _value(rng, field) for field in layout.tagged if rng.random() < 0.5}
    return entity(**values)


def encoded(entity: Any) -> bytes:
    """As kio itself writes it."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def _value(rng: random.Random, field: FieldLayout) -> Any:
    if field.array:
        if field.nullable and rng.random() < 0.3:
            return None
        return tuple(_one(rng, field) for _ in range(rng.choice((0, 1, 2, 3))))
    if field.nullable and field.tag is None and rng.random() < 0.3:
        return None
    return _one(rng, field)


def _one(rng: random.Random, field: FieldLayout) -> Any:
    if field.entity is not None:
        return random_entity(rng, field.entity)
    kind = field.kind
    if kind == "error_code":
        return rng.choice(list(ErrorCode))
    if kind.startswith("timedelta"):
        return datetime.timedelta(milliseconds=rng.randrange(1 << 31))
    if kind in _BITS:
        half = 1 << (_BITS[kind] - 1)
        return rng.choice((0, -1, rng.randrange(-half, half)))
    if kind == "uint16":
        return rng.choice((0, rng.randrange(1 << 16)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice((0.0, -1.5, rng.uniform(-1e12, 1e12)))
    if kind == "uuid":
        return uuid.UUID(int=rng.getrandbits(128))
    if kind == "string":
        return "ä" * rng.choice((0, 1, 7, 200))
    if kind == "datetime_i64":
        return _EPOCH + datetime.timedelta(milliseconds=rng.randrange(1 << 33))
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 3, 300, 5000)))
    raise TypeError(f"no spoken version has had a {kind} so far")


def head(api_key: int, version: int, client: bytes = b"me") -> bytes:
    """A request's header."""
    tags = b"\0" if version >= APIS[api_key].flexible else b""
    return struct.pack(">hhih", api_key, version, 77, len(client)) + client + tags


def _absent(one: FieldLayout) -> Any:
    """What stands for a field that a request does not care about."""
    if one.array:
        return None if one.nullable else ()
    if one.nullable or one.kind == "uuid":
        return None
    if one.kind.startswith("timedelta"):
        return timedelta(0)
    return {"bool": False, "string": ""}.get(one.kind, 0)


def versions(key: ApiKey) -> range:
    """The versions of a request that are spoken."""
    return range(APIS[key].first, APIS[key].last + 1)


@cache
def _fields(entity: Any) -> tuple[tuple[str, Any, bool, Any], ...]:
    """Name, entity, whether it is an array, and what stands for a field that nobody gave."""
    layout = entity_layout(entity)
    defaulted = {one.name for one in fields(entity) if one.default is not MISSING}
    return tuple(
        (one.name, one.entity, one.array, MISSING if one.name in defaulted else _absent(one))
        for one in (*layout.plain, *layout.tagged)
    )


def entity_of(entity: Any, given: dict[str, Any]) -> Any:
    """An entity of one version from plain values; those that this version lacks are left out."""
    values: dict[str, Any] = {}
    for name, inner, array, absent in _fields(entity):
        value = given.get(name, MISSING)
        if value is MISSING:
            if absent is not MISSING:
                values[name] = absent
            continue
        if inner is not None and value is not None:
            value = tuple([entity_of(inner, item) for item in value]) if array else entity_of(inner, value)
        elif array and value is not None:
            value = tuple(value)
        values[name] = value
    return entity(**values)
