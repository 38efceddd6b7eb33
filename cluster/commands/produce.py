"""`strandline produce`: lines of a file or of stdin as records, each written once (idempotent, acks=all)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from cluster.failure import MISUSED, CommandFailed
from cluster.output import Json, plural, progress, show
from cluster.target import Bootstrap, Cluster, target

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_LINE_LIMIT: Final = 64 * 1024 * 1024
_POLL_EVERY: Final = 1000
_FULL_QUEUE_SECONDS: Final = 0.05
_FLUSH_SLICE_SECONDS: Final = 0.2


class _Deliveries:
    """What became of the records; the first error ends the command."""

    def __init__(self) -> None:
        self.done = 0
        self.bytes = 0
        self.failed = 0
        self.first: KafkaError | None = None
        self.partitions: dict[int, int] = {}

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self.first = self.first or error
            return
        self.done += 1
        self.bytes += len(message)
        partition = message.partition()
        assert partition is not None
        self.partitions[partition] = self.partitions.get(partition, 0) + 1


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Lines to send. Default: stdin.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help=r"What stands before its first place is the key; \t: tab."),
    ] = None,
    partition: Annotated[int, typer.Option(min=-1, help="Where to; -1: by key, else any.")] = -1,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="A record not acknowledged by then has failed.")
    ] = 30.0,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Send every line as a record; ends when all are acknowledged by all replicas' majority.

    \b
    Examples:
      seq 1000 | strandline produce numbers
      strandline produce orders --file orders.tsv --key-separator '\\t' --compression zstd
    """
    from confluent_kafka import KafkaError, KafkaException, Producer

    from cluster.kafka_client import client_config, error_of, failed, reach, unreachable

    where = target(bootstrap=bootstrap, folder=cluster).bootstrap
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
    if separator == b"":
        raise CommandFailed("an empty --key-separator separates nothing", "leave it away", MISUSED)
    reach(where)
    deliveries = _Deliveries()
    try:
        producer = Producer(
            client_config(
                where,
                enable_idempotence=True,
                acks="all",
                compression_type=compression,
                message_timeout_ms=int(timeout * 1000),
                message_max_bytes=_LINE_LIMIT,
                linger_ms=5,
            )
        )
    except KafkaException as error:
        raise CommandFailed(
            f"the producer refuses: {error_of(error).str()}", "correct the option", MISUSED
        ) from None
    started = time.monotonic()
    with _lines(file) as lines, progress(as_json) as tell:

        def told(sent: int) -> None:
            tell(f"{deliveries.done:,} of {sent:,} records acknowledged")

        sent = _send(
            producer, topic, None if partition < 0 else partition, lines, separator, deliveries, told
        )
        # Short waits, since librdkafka does not hear Ctrl-C; message.timeout.ms bounds them together.
        while producer.flush(_FLUSH_SLICE_SECONDS) and deliveries.first is None:
            told(sent)
    seconds = time.monotonic() - started
    if deliveries.first is not None:
        if not deliveries.done and deliveries.first.code() == KafkaError._MSG_TIMED_OUT:
            raise unreachable(where)
        raise failed(
            f"{deliveries.done:,} of {sent:,} records are acknowledged, then one was not", deliveries.first
        )
    plain = {
        "topic": topic,
        "records": deliveries.done,
        "bytes": deliveries.bytes,
        "partitions": {str(number): count for number, count in sorted(deliveries.partitions.items())},
        "seconds": round(seconds, 3),
    }
    show(
        as_json,
        plain,
        f"{plural(deliveries.done, 'record')} ({deliveries.bytes:,} bytes) acknowledged in {seconds:.2f} s",
    )


def _send(
    producer: Producer,
    topic: str,
    partition: int | None,
    lines: Iterator[bytes],
    separator: bytes | None,
    deliveries: _Deliveries,
    told: Callable[[int], None],
) -> int:
    """Hand all lines to the producer, or those until something fails; how many."""
    from confluent_kafka import KafkaException

    from cluster.kafka_client import error_of, failed

    keywords: dict[str, Any] = {} if partition is None else {"partition": partition}
    sent = 0
    for line in lines:
        record = _record(line, separator)
        if record is None:
            producer.flush()  # ends: every record has its message.timeout.ms
            raise CommandFailed(
                f"line {sent + 1} has no key separator, {plural(deliveries.done, 'record')} before it"
                " acknowledged",
                "correct the line, or leave --key-separator away",
                MISUSED,
            )
        key, value = record
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=deliveries, **keywords)
                break
            except BufferError:
                producer.poll(_FULL_QUEUE_SECONDS)
            except KafkaException as error:
                raise failed(f"line {sent + 1} cannot be sent", error_of(error)) from None
        sent += 1
        if sent % _POLL_EVERY == 0:
            producer.poll(0)
            told(sent)
        if deliveries.first is not None:
            break
    return sent


@contextmanager
def _lines(file: Path | None) -> Iterator[Iterator[bytes]]:
    if file is None:
        yield _split(sys.stdin.buffer)
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise CommandFailed(
            f"{file} cannot be read ({error.strerror})", "name another file", MISUSED
        ) from None
    with opened:
        yield _split(opened)


def _split(source: BinaryIO) -> Iterator[bytes]:
    while line := source.readline(_LINE_LIMIT + 1):
        if len(line) > _LINE_LIMIT:
            raise CommandFailed(
                "a line is longer than 64 MiB", "records are smaller; is this a text?", MISUSED
            )
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _record(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes] | None:
    """Key and value; None when the line has no separator."""
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else None
