"""One connection in plain bytes: what a client sends when nothing holds it back."""

from __future__ import annotations

import socket
import struct
import time
from datetime import timedelta
from typing import Any, Final, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.record_batch import BatchHeader, read_header
from tests.kafka.wire.entities import encoded, entity_of
from tests.kafka.wire.server_harness import request

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 11
METADATA_VERSION: Final = 9
_SECONDS: Final = 10.0


class Closed(Exception):
    """The node has ended the connection."""


class Wire:
    """A blocking connection to `address`, host:port. What takes ten seconds is a TimeoutError."""

    def __init__(self, address: str, *, receive_buffer: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(_SECONDS)
        self._asked = 0
        try:
            self.socket.connect((host, int(port)))
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Raises Closed."""
        try:
            self.socket.sendall(data)
        except ConnectionError as error:
            raise Closed from error

    def ask(self, key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        """Send a request and read its answer. Raises Closed."""
        self._asked += 1
        self.send(
            request(key, version, self._asked, encoded(entity_of(load_request_schema(key, version), values)))
        )
        frame = self.frame()
        assert struct.unpack(">i", frame[:4]) == (self._asked,)
        behind_header = 5 if version >= APIS[key].flexible and key != ApiKey.API_VERSIONS else 4
        response, size = entity_reader(load_response_schema(key, version))(frame, behind_header)
        assert behind_header + size == len(frame)
        return response

    def produce(self, topic: str, records: bytes, *, partition: int = 0) -> Any:
        """Send records, and the answer for their partition. Raises Closed."""
        asked = produce(topic, records, partition=partition)
        (told,) = self.ask(ApiKey.PRODUCE, PRODUCE_VERSION, asked).responses[0].partition_responses
        return told

    def fetch(self, topic: str, *, partition: int = 0, offset: int = 0) -> Any:
        """Ask for records without waiting for them, and the answer for their partition. Raises Closed."""
        asked = fetch(topic, partition=partition, offset=offset)
        (told,) = self.ask(ApiKey.FETCH, FETCH_VERSION, asked).responses[0].partitions
        return told

    def frame(self) -> bytes:
        """The next answer, without its length. Raises Closed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def ended(self) -> bool:
        """Wait for the end; whether nothing came before it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionError as error:
                raise Closed from error
            if not part:
                raise Closed
            data += part
        return bytes(data)


def produce(topic: str, records: bytes, *, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    """A produce request with these bytes for records."""
    data = {"index": partition, "records": records}
    topics = [{"name": topic, "partition_data": [data]}]
    return {"acks": acks, "timeout": timedelta(seconds=5), "topic_data": topics}


def fetch(topic: str, *, partition: int = 0, offset: int = 0, max_bytes: int = 1 << 24) -> dict[str, Any]:
    """A fetch request that does not wait."""
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    topics = [{"topic": topic, "partitions": [wanted]}]
    return {"max_wait": timedelta(0), "min_bytes": 0, "max_bytes": max_bytes, "topics": topics}


def leader(bootstrap: str, topic: str, partition: int = 0) -> str:
    """The address of the node that leads a partition, as soon as there is one."""
    deadline = time.monotonic() + _SECONDS
    while True:
        with Wire(bootstrap.split(",")[0]) as wire:
            told = wire.ask(ApiKey.METADATA, METADATA_VERSION, {"topics": [{"name": topic}]})
        (found,) = told.topics
        (node,) = [one.leader_id for one in found.partitions if one.partition_index == partition]
        for one in told.brokers:
            if one.node_id == node:
                return f"{one.host}:{one.port}"
        assert time.monotonic() < deadline, f"{topic}-{partition} has no leader"
        time.sleep(0.05)


def stored(bootstrap: str, topic: str, partition: int = 0) -> list[BatchHeader]:
    """The headers of all batches of a partition, as its leader gives them."""
    found: list[BatchHeader] = []
    deadline = time.monotonic() + _SECONDS
    while True:
        with Wire(leader(bootstrap, topic, partition)) as wire:
            while True:
                offset = found[-1].next_offset if found else 0
                told = wire.fetch(topic, partition=partition, offset=offset)
                if told.error_code is not ErrorCode.none:
                    break
                if not told.records:
                    return found
                position = 0
                while position < len(told.records):
                    found.append(read_header(told.records, position))
                    position = found[-1].end
        moved = told.error_code is ErrorCode.not_leader_or_follower and time.monotonic() < deadline
        assert moved, told.error_code
