"""From a frame to a decoded request, and from a response to the buffers of its frame.

A request is `header, body`; which header and which body, its first four bytes say: api key and version.
Decoding trusts nothing in the frame: whatever is wrong with it is a MalformedFrame, and nothing else
leaves `decode_request`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema
from kio.serial import entity_reader

from strandline.node.kafka.wire.apis import APIS, Api, ApiKey
from strandline.node.kafka.wire.request_check import (
    MalformedFrame,
    checked_body,
    prepare_check,
    skip_tagged_fields,
)
from strandline.node.kafka.wire.response_encoder import EncodingError, Part, encode

_FIXED_HEADER: Final = struct.Struct(">hhih")
_PLAIN_RESPONSE: Final = struct.Struct(">ii")
_FLEXIBLE_RESPONSE: Final = struct.Struct(">iib")
_LENGTH: Final = struct.Struct(">i")
_MAX_FRAME_BYTES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of a request; `correlation_id` is any i32 and comes back with the answer."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedRequest(MalformedFrame):
    """An api key or version that is not spoken here. Only ApiVersions has an answer for it."""

    def __init__(self, header: RequestHeader, message: str) -> None:
        super().__init__(message)
        self.header = header


def api_of(frame: memoryview) -> Api | None:
    """The table's row for a frame's api key, without looking at the rest; None for keys not spoken."""
    return APIS.get(int.from_bytes(frame[:2], "big", signed=True)) if len(frame) >= 2 else None


def prepare(api_key: int, version: int) -> None:
    """Import and compile what `decode_request` needs for a request that is in the table; any thread may."""
    request_type, _ = _reader_of(api_key, version)
    prepare_check(request_type)


def decode_request(frame: memoryview, max_elements: int) -> tuple[RequestHeader, Any]:
    """The header and kio's request entity of one frame (without its length prefix).

    `max_elements` bounds the elements of all its arrays together. Raises MalformedFrame, and for a key or
    version not in the table UnsupportedRequest.
    """
    header, position = _decode_header(frame)
    request_type, read = _reader_of(header.api_key, header.api_version)
    body, position = checked_body(request_type, frame, position, max_elements)
    try:
        request, _ = read(body, position)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # kio raises its own errors, ValueError and KeyError among others, and a panic in its native code
        # is a BaseException. The walk above leaves it little to find: bad UTF-8, a null where none may be.
        raise MalformedFrame(f"{request_type.__name__}: {type(error).__name__}: {error}") from None
    return header, request


def _decode_header(frame: memoryview) -> tuple[RequestHeader, int]:
    try:
        key, version, correlation_id, size = _FIXED_HEADER.unpack_from(frame)
        position = _FIXED_HEADER.size
        client_id = None
        if size >= 0:
            client_id = str(frame[position : position + size], "utf-8")
            position += size
        elif size != -1:
            raise MalformedFrame(f"a client id of {size} bytes")
        header = RequestHeader(key, version, correlation_id, client_id)
        api = APIS.get(key)
        if api is None:
            raise UnsupportedRequest(header, f"api key {key} is not spoken here")
        if not api.first <= version <= api.last:
            spoken = f"spoken are {api.first} to {api.last}"
            raise UnsupportedRequest(header, f"{api.key.name} version {version} is not spoken here, {spoken}")
        if version >= api.flexible:
            if frame[position]:
                position = skip_tagged_fields(frame, position)
            else:
                position += 1
    except (IndexError, struct.error):
        raise MalformedFrame(f"a frame of {len(frame)} bytes ends inside the request header") from None
    except UnicodeDecodeError:
        raise MalformedFrame("the client id is not UTF-8") from None
    if position > len(frame):
        raise MalformedFrame(f"a frame of {len(frame)} bytes ends inside the request header")
    return header, position


@cache
def _reader_of(api_key: int, version: int) -> tuple[Any, Any]:
    request_type = load_request_schema(api_key, version)
    return request_type, entity_reader(request_type)


def encode_response(header: RequestHeader, response: Any) -> list[Part]:
    """The whole frame that answers a request, length prefix included, as buffers to send in this order.

    `response` is kio's entity for the request's api key and version. ApiVersions may be answered with a
    lower version. Raises EncodingError.
    """
    key, version = getattr(response, "__api_key__", None), getattr(response, "__version__", -1)
    if key != header.api_key or (version != header.api_version and key != ApiKey.API_VERSIONS):
        raise EncodingError(f"{type(response).__name__} version {version} does not answer {header}")
    return _framed(encode(response, _head(header, version)))


def encode_parts(header: RequestHeader, body: list[Part]) -> list[Part]:
    """As encode_response, for a body that is already encoded in the request's version."""
    return _framed([bytearray(_head(header, header.api_version)), *body])


def _head(header: RequestHeader, version: int) -> bytes:
    # KIP-511: the answer to ApiVersions keeps the old header, so that any client can read the error.
    if version >= APIS[header.api_key].flexible and header.api_key != ApiKey.API_VERSIONS:
        return _FLEXIBLE_RESPONSE.pack(0, header.correlation_id, 0)
    return _PLAIN_RESPONSE.pack(0, header.correlation_id)


def _framed(parts: list[Part]) -> list[Part]:
    size = sum(map(len, parts)) - _LENGTH.size
    if size > _MAX_FRAME_BYTES:
        raise EncodingError(f"a response of {size} bytes does not fit into a frame")
    first = parts[0]
    assert isinstance(first, bytearray)
    _LENGTH.pack_into(first, 0, size)
    return parts
