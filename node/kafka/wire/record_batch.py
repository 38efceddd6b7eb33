"""Record batches of magic 2 as clients produce them: read, validated, and stamped on the way out.

    base_offset i64, length i32, leader_epoch i32, magic i8, crc u32,
    attributes i16, last_offset_delta i32, base_timestamp i64, max_timestamp i64,
    producer_id i64, producer_epoch i16, base_sequence i32, record_count i32, records

(https://kafka.apache.org/documentation/#recordbatch.) Batches are kept exactly as the client sent them. The
CRC covers everything from the attributes on, so base offset and leader epoch, which only the log knows, can
be written when a batch is read: twelve bytes, without touching the records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from strandline.node.kafka.wire.record_keys import keyless_records
from strandline.node.kafka.wire.record_lengths import WrongRecords, check_records
from strandline.node.kafka.wire.response_encoder import Buffer
from strandline.node.refusal import Reason, Refusal
from strandline.snapshot.compression import Compression, DecompressionError, TooLarge, decompress

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_FRONT: Final = struct.Struct(">qiib")
_STAMP: Final = struct.Struct(">qii")
_LENGTH_AND_DELTA: Final = struct.Struct(">8xi11xi")

HEADER_BYTES: Final = _HEADER.size
LENGTH_END: Final = 12
"""The length counts the bytes after itself; these come before."""
CRC_START: Final = 21
MAGIC: Final = 2
_ZSTD_SINCE: Final = 7
_VIEW_FROM_BYTES: Final = 8 * 1024
_UNPACKED_AT_ONCE_BYTES: Final = 1024 * 1024
"""About a millisecond; more is unpacked in a thread."""
_KEYS_AT_ONCE: Final = 2_000
"""Records whose keys are checked at once, about a millisecond; more are checked in a thread."""
MAX_NAMED_RECORDS: Final = 100
"""Refused records that are named to the client; a batch may have millions."""

NO_PRODUCER_ID: Final = -1


class InvalidBatch(Exception):
    """Records that a broker must refuse, for the same reasons as Kafka's own.

    `refusal.records` are the numbers within the batch of those it is refused for, where it is for single ones
    (KIP-467), at most MAX_NAMED_RECORDS.
    """

    def __init__(self, reason: Reason, message: str, records: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.refusal = Refusal(reason, message, records)


class BatchHeader(NamedTuple):
    """A batch's header, and where in its buffer the batch begins. Timestamps are Unix milliseconds."""

    position: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_END + self.length

    @property
    def end(self) -> int:
        """Position after the batch in its buffer."""
        return self.position + LENGTH_END + self.length

    @property
    def next_offset(self) -> int:
        """Offset after the batch's last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec of the records; raises ValueError for a number that no codec has."""
        return Compression(self.attributes & 0x07)

    @property
    def has_log_append_time(self) -> bool:
        return bool(self.attributes & 0x08)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & 0x40)


class BatchLimits(NamedTuple):
    """A topic's limits on a batch. Timestamps are Unix milliseconds, None for no bound."""

    max_batch_bytes: int = 1024 * 1024 + LENGTH_END
    """Kafka's `max.message.bytes`: the size of one batch as it was sent."""
    max_decompressed_bytes: int = 64 * 1024 * 1024
    earliest_timestamp: int | None = None
    latest_timestamp: int | None = None
    needs_keys: bool = False
    """Whether every record must have a key: the topic is compacted."""


def read_header(records: Buffer, position: int = 0) -> BatchHeader:
    """Read one header of a log's own, already validated batches. Raises struct.error past the end."""
    return BatchHeader._make((position, *_HEADER.unpack_from(records, position)))


def boundaries(records: Buffer) -> Iterator[tuple[int, int]]:
    """Start and end of each batch of a log's own, already validated buffer.

    Raises InvalidBatch (CORRUPT_MESSAGE) where the lengths do not cover the buffer exactly.
    """
    return ((start, end) for start, end, _ in _spans(records))


def _spans(records: Buffer) -> Iterator[tuple[int, int, int]]:
    """Start, end and last offset delta of each batch; otherwise as boundaries."""
    position, total = 0, len(records)
    while position < total:
        if total - position < HEADER_BYTES:
            raise _corrupt(f"{total - position} bytes are too few for a record batch")
        length, last_delta = _LENGTH_AND_DELTA.unpack_from(records, position)
        end = position + LENGTH_END + length
        if length < HEADER_BYTES - LENGTH_END or end > total:
            raise _corrupt(f"a record batch of {LENGTH_END + length} bytes where {total - position} are left")
        yield position, end, last_delta
        position = end


def validate_produced(
    records: Buffer | None, *, version: int, limits: BatchLimits, max_batches: int = 1
) -> list[BatchHeader]:
    """Judge the records a produce request of `version` brings for one partition, as Kafka's broker does.

    Headers, CRC and, after decompression, the number and lengths of the records; at most `max_batches`
    batches, one in Kafka. Raises InvalidBatch.
    """
    view = memoryview(records or b"")
    headers: list[BatchHeader] = []
    position = 0
    while position < len(view):
        if len(headers) == max_batches:
            raise _invalid(f"more than {max_batches} record batch for one partition")
        header = _front(view, position, version)
        _validate(view, header, limits)
        _validate_records(view, header, limits.max_decompressed_bytes, limits.needs_keys)
        headers.append(header)
        position = header.end
    if not headers:
        raise _invalid("a partition without a record batch")
    return headers


def validate_at_once(
    records: Buffer | None, *, version: int, limits: BatchLimits
) -> tuple[BatchHeader, Callable[[], None] | None]:
    """As `validate_produced` for one batch, but slow checks are left to the caller.

    Eight kilobytes may unpack to the limit, and take a quarter of a second: an event loop that did it would
    lose its leaderships to one client. The second value, if any, is the rest of the checks, for a thread: it
    raises InvalidBatch.
    """
    view = memoryview(records or b"")
    if not view:
        raise _invalid("a partition without a record batch")
    header = _front(view, 0, version)
    _validate(view, header, limits)
    if header.end < len(view):
        raise _invalid("more than 1 record batch for one partition")
    limit = limits.max_decompressed_bytes
    later = partial(_validate_records, view, header, limit, limits.needs_keys)
    if header.compression is not Compression.NONE and header.size > _UNPACKED_AT_ONCE_BYTES // 4:
        return header, later
    if limits.needs_keys and header.record_count > _KEYS_AT_ONCE:
        return header, later
    try:
        _validate_records(view, header, min(limit, _UNPACKED_AT_ONCE_BYTES), limits.needs_keys)
    except InvalidBatch as invalid:
        if invalid.refusal.reason is not Reason.TOO_LARGE or limit <= _UNPACKED_AT_ONCE_BYTES:
            raise
        return header, later
    return header, None


def _front(view: memoryview, position: int, version: int) -> BatchHeader:
    left = len(view) - position
    if left < _FRONT.size:
        raise _invalid(f"{left} bytes are too few for a record batch")
    _, length, _, magic = _FRONT.unpack_from(view, position)
    if magic in (0, 1):
        raise _invalid(
            f"magic {magic}: produce requests of version {version} carry record batches of magic 2"
        )
    if magic != MAGIC:
        raise _corrupt(f"magic {magic} is unknown")
    if length < HEADER_BYTES - LENGTH_END:
        raise _corrupt(f"a record batch of {LENGTH_END + length} bytes is smaller than its own header")
    if LENGTH_END + length > left:
        raise _invalid(f"a record batch of {LENGTH_END + length} bytes, of which {left} were sent")
    header = read_header(view, position)
    if header.attributes & 0x07 > Compression.ZSTD:
        code = header.attributes & 0x07
        raise InvalidBatch(Reason.UNKNOWN_COMPRESSION, f"compression type {code} is unknown")
    if header.compression is Compression.ZSTD and version < _ZSTD_SINCE:
        message = f"zstd needs produce version {_ZSTD_SINCE}, this is {version}"
        raise InvalidBatch(Reason.UNKNOWN_COMPRESSION, message)
    return header


def _validate(view: memoryview, header: BatchHeader, limits: BatchLimits) -> None:
    if header.size > limits.max_batch_bytes:
        message = f"a record batch of {header.size} bytes is above the limit of {limits.max_batch_bytes}"
        raise InvalidBatch(Reason.TOO_LARGE, message)
    computed = crc32c(view[header.position + CRC_START : header.end])
    if computed != header.crc:
        raise _corrupt(f"the CRC-32C is {computed}, the record batch says {header.crc}")
    _validate_numbers(header)
    _validate_timestamps(header, limits)


def _validate_records(
    view: memoryview, header: BatchHeader, max_decompressed_bytes: int, needs_keys: bool
) -> None:
    start, end, count = header.position + HEADER_BYTES, header.end, header.record_count
    try:
        plain: Buffer
        if header.compression is Compression.NONE:
            # Plain bytes are read one by one at twice the speed of a view's.
            plain = view.obj if type(view.obj) is bytes else view
        else:
            plain = decompress(header.compression, view[start:end], max_decompressed_bytes)
            start, end = 0, len(plain)
        check_records(plain, start, end, count)
        if needs_keys and (keyless := keyless_records(plain, start, end, count, MAX_NAMED_RECORDS)):
            least = "at least " if len(keyless) == MAX_NAMED_RECORDS else ""
            message = (
                f"a compacted topic takes no records without a key, and {least}{len(keyless)} of the batch's "
                f"{count} have none, the first of them record {keyless[0]}"
            )
            raise InvalidBatch(Reason.INVALID_RECORD, message, keyless)
    except TooLarge as error:
        raise InvalidBatch(Reason.TOO_LARGE, str(error)) from None
    except DecompressionError as error:
        raise _invalid(f"{header.compression.name.lower()}: {error}") from None
    except WrongRecords as error:
        raise _invalid(str(error)) from None


def _validate_numbers(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise _invalid(f"the base offset of produced records is 0, not {header.base_offset}")
    if header.record_count <= 0:
        raise _invalid(f"a record batch of {header.record_count} records")
    if header.last_offset_delta != header.record_count - 1:
        last = header.last_offset_delta
        raise _invalid(f"{header.record_count} records whose last offset delta is {last}")
    if header.is_control:
        raise _invalid("clients may not write control records")
    if header.has_delete_horizon:
        raise _invalid("clients may not set a delete horizon")
    if header.producer_id < NO_PRODUCER_ID:
        raise _invalid(f"producer id {header.producer_id}")
    if header.producer_id != NO_PRODUCER_ID and (header.base_sequence < 0 or header.producer_epoch < 0):
        sequence = f"sequence {header.base_sequence} and epoch {header.producer_epoch}"
        raise _invalid(f"producer id {header.producer_id} with {sequence}")
    if header.is_transactional and header.producer_id == NO_PRODUCER_ID:
        raise _invalid("transactional records without a producer id")


def _validate_timestamps(header: BatchHeader, limits: BatchLimits) -> None:
    earliest, latest = limits.earliest_timestamp, limits.latest_timestamp
    if header.has_log_append_time:
        problem = "only the broker sets log append time"
    elif header.max_timestamp < header.base_timestamp:
        problem = f"the latest timestamp {header.max_timestamp} is before the first, {header.base_timestamp}"
    elif latest is not None and header.max_timestamp > latest:
        problem = f"timestamp {header.max_timestamp} is after {latest}, the latest allowed"
    elif earliest is not None and header.base_timestamp < earliest:
        problem = f"timestamp {header.base_timestamp} is before {earliest}, the earliest allowed"
    else:
        return
    raise InvalidBatch(Reason.INVALID_TIMESTAMP, problem)


def stamped(records: Buffer, base_offset: int, leader_epoch: int) -> list[Buffer]:
    """The batches of a log's own buffer with consecutive offsets from `base_offset` and the leader's epoch.

    Large batches are not copied: each gives sixteen new bytes and a view of the rest. Raises InvalidBatch
    where the lengths do not cover the buffer exactly.
    """
    spans = list(_spans(records))
    if len(records) >= _VIEW_FROM_BYTES * len(spans):
        view = memoryview(records)
        parts: list[Buffer] = []
        for start, end, last_delta in spans:
            parts.append(_STAMP.pack(base_offset, end - start - LENGTH_END, leader_epoch))
            parts.append(view[start + _STAMP.size : end])
            base_offset += last_delta + 1
        return parts
    copy = bytearray(records)
    for start, end, last_delta in spans:
        _STAMP.pack_into(copy, start, base_offset, end - start - LENGTH_END, leader_epoch)
        base_offset += last_delta + 1
    return [copy]


def _invalid(message: str) -> InvalidBatch:
    return InvalidBatch(Reason.INVALID_RECORD, message)


def _corrupt(message: str) -> InvalidBatch:
    return InvalidBatch(Reason.CORRUPT, message)
