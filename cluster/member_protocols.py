"""Finds the protocol of each member of a consumer group (KIP-1099); librdkafka's descriptions omit it.

It sends one ConsumerGroupDescribe to the group's coordinator. Every Kafka that has version 1 of the request
answers it.
"""

from __future__ import annotations

import io
import socket
import struct
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

_KEY: Final = 69
_VERSION: Final = 1
"""The first version whose response has each member's type."""
_SECONDS: Final = 10.0
_MAX_BYTES: Final = 100 * 1024 * 1024
_HEADER_BYTES: Final = 5
"""Bytes of a response's header: its correlation id, and the empty list of tagged fields."""
_PROTOCOLS: Final = {0: "classic", 1: "consumer"}


def member_protocols(host: str, port: int, group: str) -> dict[str, str]:
    """ "classic" or "consumer" by member id; empty if the broker does not answer or does not know."""
    try:
        with socket.create_connection((host, port), _SECONDS) as connection:
            connection.sendall(_request(group))
            answer = _frame(connection)
        schema: Any = load_response_schema(_KEY, _VERSION)
        described, _ = entity_reader(schema)(answer, _HEADER_BYTES)
    except (OSError, ValueError, IndexError):  # a broker without this version ends the connection
        return {}
    return {
        member.member_id: _PROTOCOLS[member.member_type]
        for one in described.groups
        if one.error_code is ErrorCode.none
        for member in one.members
        if member.member_type in _PROTOCOLS
    }


def _request(group: str) -> bytes:
    schema: Any = load_request_schema(_KEY, _VERSION)
    body = io.BytesIO()
    entity_writer(schema)(body, schema(group_ids=(group,), include_authorized_operations=False))
    header = struct.pack(">hhihb", _KEY, _VERSION, 1, -1, 0)
    return struct.pack(">i", len(header) + body.tell()) + header + body.getvalue()


def _frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    if not _HEADER_BYTES <= size <= _MAX_BYTES:
        raise ValueError(f"a frame of {size} bytes")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the broker ended the connection")
        parts += part
    return bytes(parts)
