"""One connection to a broker: requests and answers of Kafka's protocol as kio has them, with bounds.

It blocks, and one request is under way at most. A timeout or a broken answer ends the connection: what comes
later on it would be the answer to an earlier request.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
"""Kafka's request.timeout.ms."""
MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The largest answers are a batch of records that is larger than what was asked for, and the list of open
transactions, about 100 bytes each."""
_CLIENT_ID: Final = "strandline-spark"
_SIZE: Final = struct.Struct(">i")
_READ_BYTES: Final = 1 << 20


class Api(NamedTuple):
    """A kind of request, and the version that is spoken."""

    key: int
    version: int

    @property
    def request(self) -> Any:
        """The module with the classes of the request."""
        return _module(self.key, self.version)


@cache
def _module(key: int, version: int) -> Any:
    return load_payload_module(key, version, EntityType.request)


PRODUCE: Final = Api(0, 9)
FETCH: Final = Api(1, 13)
"""Topics have their ids from version 13 on: one that is made again under the name is another (KIP-516)."""
METADATA: Final = Api(3, 10)
"""Topics are told with their ids from version 10 on."""
OFFSET_FETCH: Final = Api(9, 7)
FIND_COORDINATOR: Final = Api(10, 3)
INIT_PRODUCER_ID: Final = Api(22, 4)
ADD_PARTITIONS_TO_TXN: Final = Api(24, 3)
ADD_OFFSETS_TO_TXN: Final = Api(25, 3)
END_TXN: Final = Api(26, 3)
"""From 5 on the epoch rises with each end (KIP-890): an end could not be said again by what was recorded."""
TXN_OFFSET_COMMIT: Final = Api(28, 3)
DESCRIBE_TRANSACTIONS: Final = Api(65, 0)
LIST_TRANSACTIONS: Final = Api(66, 0)
RETRIABLE: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.replica_not_available,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_id,
        ErrorCode.concurrent_transactions,
        ErrorCode.throttling_quota_exceeded,
    }
)


class ConnectionLost(Exception):
    """The broker cannot be reached, is silent, or says what is no answer; the text says which."""


class Connection:
    """To one address; raises ConnectionLost."""

    def __init__(self, host: str, port: int, client_id: str = _CLIENT_ID) -> None:
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._asked = 0
        self._expected: Any = None
        self._coming = bytearray(_SIZE.size)
        """The answer, or its size, as far as `received` has it, and room for the rest."""
        self._here = 0
        self._sized = False
        try:
            self._socket = socket.create_connection((host, port), CONNECT_SECONDS)
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise self._lost(error) from error

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: Api, request: Any) -> Any:
        """The answer to a request. Raises ConnectionLost."""
        self.send(api, request)
        return self.receive()

    def send(self, api: Api, request: Any) -> None:
        """Send a request; `receive` has to follow. Raises ConnectionLost."""
        assert self._expected is None, "the answer under way would be taken for the one to this request"
        self._asked += 1
        header = request.__header_schema__
        buffer = io.BytesIO()
        entity_writer(header)(
            buffer,
            header(
                request_api_key=api.key,
                request_api_version=api.version,
                correlation_id=self._asked,
                client_id=self._client_id,
            ),
        )
        entity_writer(type(request))(buffer, request)
        self._expected = load_response_schema(api.key, api.version)
        body = buffer.getbuffer()
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.sendall(_SIZE.pack(len(body)) + body)
        except OSError as error:
            raise self._lost(error) from error

    def answered(self) -> bool:
        """Whether `receive` would not wait for the first byte."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive(self) -> Any:
        """The answer to the request that was sent. Raises ConnectionLost."""
        return self._answer(self._exactly(self._size(self._exactly(_SIZE.size))))

    def received(self) -> Any:
        """The answer to the request that was sent, in place of `receive`; None while it is not all here.

        It does not wait. Raises ConnectionLost.
        """
        self._socket.settimeout(0)
        try:
            while self._here < len(self._coming) or not self._sized:
                if self._here < len(self._coming):
                    count = self._socket.recv_into(memoryview(self._coming)[self._here :])
                    if not count:
                        raise self._lost("it has closed the connection")
                    self._here += count
                else:
                    self._coming, self._here = bytearray(self._size(self._coming)), 0
                    self._sized = True
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            raise self._lost(error) from error
        frame = bytes(self._coming)
        self._coming, self._here, self._sized = bytearray(_SIZE.size), 0, False
        return self._answer(frame)

    def fileno(self) -> int:
        return self._socket.fileno()

    def _size(self, packed: bytes | bytearray) -> int:
        size: int = _SIZE.unpack(packed)[0]
        if not _SIZE.size <= size <= MOST_ANSWER_BYTES:
            raise self._lost(f"its answer has {size} bytes, of at most {MOST_ANSWER_BYTES}")
        return size

    def _answer(self, frame: bytes) -> Any:
        schema, self._expected = self._expected, None
        try:
            header, start = entity_reader(schema.__header_schema__)(frame, 0)
            answer, length = entity_reader(schema)(frame, start)
        except Exception as error:  # kio has no error that all of its readers' are
            raise self._lost(f"its answer cannot be read ({error!r})") from error
        if header.correlation_id != self._asked or start + length != len(frame):
            raise self._lost("its answer is to another request")
        return answer

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), _READ_BYTES))
            except OSError as error:
                raise self._lost(error) from error
            if not part:
                raise self._lost("it has closed the connection")
            data += part
        return bytes(data)

    def _lost(self, reason: object) -> ConnectionLost:
        if hasattr(self, "_socket"):
            self._socket.close()
        said = f"no answer for {ANSWER_SECONDS:.0f} s" if isinstance(reason, TimeoutError) else reason
        return ConnectionLost(f"{self.address}: {said}")


def metadata_request(topics: Iterable[str] | None) -> Any:
    """Ask for topics and their leaders, all topics with None; no topic is made by it."""
    types = METADATA.request
    return types.MetadataRequest(
        topics=None
        if topics is None
        else tuple(types.MetadataRequestTopic(topic_id=None, name=name) for name in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def by_topic(places: Iterable[tuple[str, int]]) -> Mapping[str, list[int]]:
    """Partitions by their topics."""
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found
