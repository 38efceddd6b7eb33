"""`strandline produce`: lines of a file or of stdin as records, each written once (idempotent, acks=all)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from strandline.cluster.commands.record_input import LINE_LIMIT, BadLine, Record, lines, reader
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import Json, plural, progress, show, warn
from strandline.cluster.target import Bootstrap, Cluster, Target, target

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_POLL_EVERY: Final = 1000
_FULL_QUEUE_SECONDS: Final = 0.05
_FLUSH_SLICE_SECONDS: Final = 0.2
_SILENCE_SECONDS: Final = 5.0
"""Without an acknowledgement while some are awaited: then the nodes are asked why."""
_REPEAT_SECONDS: Final = 30.0
_LONGEST_SECONDS: Final = 24 * 3600.0


class _Deliveries:
    """Deliveries of the records. The first error ends the sending, not the wait for records in flight."""

    def __init__(self) -> None:
        self.done = 0
        self.bytes = 0
        self.refused = 0
        self.unknown = 0
        """Sent, or waiting to be, when time ran out: stored, or not."""
        self.first: tuple[int, KafkaError] | None = None
        """The number of the first line that failed, and how."""
        self.partitions: dict[int, int] = {}

    def __call__(self, line: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if _undecided(error):
                self.unknown += 1
            else:
                self.refused += 1
            if self.first is None or line < self.first[0]:
                self.first = line, error
            return
        self.done += 1
        self.bytes += len(message)
        partition = message.partition()
        assert partition is not None
        self.partitions[partition] = self.partitions.get(partition, 0) + 1

    def counts(self) -> str:
        """Number of records by outcome."""
        told = [f"{self.done:,} of {plural(self.done + self.refused + self.unknown, 'record')} acknowledged"]
        if self.refused:
            told.append(f"{self.refused:,} refused")
        if self.unknown:
            told.append(f"{self.unknown:,} stored or not, which is not known")
        return ", ".join(told)


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the lines to send. Default: stdin.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", help="Key of every record.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help=r"Separator of key and value in each line; \t: tab."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record; may be repeated."),
    ] = None,
    tombstone: Annotated[
        bool,
        typer.Option(
            "--tombstone",
            help="Send records without a value: one for --key, else one for each line, which is its key.",
        ),
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "--format", help="value: lines as they are; json: objects as `consume --format json` prints them."
        ),
    ] = "value",
    partition: Annotated[
        int, typer.Option(min=-1, max=2**31 - 1, help="Partition of every record; -1: by key, else any.")
    ] = -1,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            max=_LONGEST_SECONDS,
            help="A record fails if it is not acknowledged within this time.",
        ),
    ] = 30.0,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Send every line as a record, and wait until a majority of the replicas has acknowledged all of them.

    When one fails, nothing more is sent, and the error says how many are acknowledged, how many are refused,
    and of how many it is not known.

    \b
    Examples:
      seq 1000 | strandline produce numbers
      strandline produce orders --file orders.tsv --key-separator '\\t' --compression zstd
      echo '{"total": 12}' | strandline produce orders -k anna -H source=shop
      strandline consume orders --format json | strandline produce copy --format json
      strandline produce orders --tombstone --key anna
    """
    from confluent_kafka import Producer

    from strandline.cluster.kafka_client import client_config, refused
    from strandline.cluster.kafka_errors import failed, reach

    record_of = reader(form, key, key_separator, headers or [], tombstone)
    where = target(bootstrap=bootstrap, folder=cluster)
    reach(where)
    deliveries = _Deliveries()
    producer = refused(
        where,
        "the producer refuses",
        lambda: Producer(
            client_config(
                where.bootstrap,
                enable_idempotence=True,
                acks="all",
                compression_type=compression,
                message_timeout_ms=int(timeout * 1000),
                message_max_bytes=LINE_LIMIT,
                linger_ms=5,
            )
        ),
    )
    started = time.monotonic()
    bad: CommandFailed | None = None
    one = [key.encode()] if tombstone and key is not None else None
    with lines(file) as read, progress(as_json) as tell:
        watch = _Watch(where, deliveries, tell)
        try:
            _send(producer, topic, partition, iter(one) if one else read, record_of, deliveries, watch)
        except CommandFailed as refusal:
            bad = refusal
        # Short waits, since librdkafka does not hear Ctrl-C; message.timeout.ms bounds them together.
        while producer.flush(_FLUSH_SLICE_SECONDS):
            watch.look()
    seconds = time.monotonic() - started
    plain = {
        "topic": topic,
        "records": deliveries.done,
        "bytes": deliveries.bytes,
        "refused": deliveries.refused,
        "unknown": deliveries.unknown,
        "partitions": {str(number): count for number, count in sorted(deliveries.partitions.items())},
        "seconds": round(seconds, 3),
    }
    if bad is not None or deliveries.first is not None:
        if as_json:
            show(True, plain, "")
        if deliveries.first is not None:
            line, error = deliveries.first
            raise failed(where, f"{deliveries.counts()}; line {line} failed", error)
        assert bad is not None
        raise CommandFailed(f"{bad.cause}; {deliveries.counts()}", bad.cure, bad.status)
    show(
        as_json,
        plain,
        f"{plural(deliveries.done, 'record')} ({plural(deliveries.bytes, 'byte')}) acknowledged "
        f"in {seconds:.2f} s",
    )


class _Watch:
    """Tells how far it is, and why nothing is acknowledged when nothing is."""

    def __init__(self, where: Target, deliveries: _Deliveries, tell: Callable[[str], None]) -> None:
        self.sent = 0
        self.where = where
        self._deliveries = deliveries
        self._tell = tell
        self._done = 0
        self._since = time.monotonic()
        self._warn_after = _SILENCE_SECONDS

    def look(self) -> None:
        """Once in a while, while records are under way."""
        from strandline.cluster.kafka_errors import troubles

        deliveries, now = self._deliveries, time.monotonic()
        self._tell(f"{deliveries.done:,} of {self.sent:,} records acknowledged")
        if deliveries.done != self._done:
            self._done, self._since, self._warn_after = deliveries.done, now, _SILENCE_SECONDS
        elif now - self._since >= self._warn_after:
            self._warn_after += _REPEAT_SECONDS
            why = troubles(self.where) or "a broker takes connections, so its storage or a leader is missing"
            warn(f"nothing is acknowledged since {now - self._since:.0f} s: {why}; still trying")


def _send(
    producer: Producer,
    topic: str,
    partition: int,
    read: Iterator[bytes],
    record_of: Callable[[bytes], Record],
    deliveries: _Deliveries,
    watch: _Watch,
) -> None:
    """Hand all lines to the producer, or those until something fails. CommandFailed for a bad line."""
    from confluent_kafka import KafkaException

    from strandline.cluster.kafka_errors import error_of, failed

    poll_at = 0.0
    for number, line in enumerate(read, 1):
        try:
            record = record_of(line)
        except BadLine as error:
            raise CommandFailed(f"line {number} {error}", error.cure, MISUSED) from None
        keywords: dict[str, Any] = {"headers": list(record.headers)} if record.headers else {}
        if partition >= 0:
            keywords["partition"] = partition
        if record.timestamp_ms is not None:
            keywords["timestamp"] = record.timestamp_ms
        while True:
            try:
                producer.produce(
                    topic, record.value, record.key, on_delivery=partial(deliveries, number), **keywords
                )
                break
            except BufferError:
                producer.poll(_FULL_QUEUE_SECONDS)
                watch.look()
            except KafkaException as error:
                raise failed(watch.where, f"line {number} cannot be sent", error_of(error)) from None
        watch.sent = number
        now = time.monotonic()
        if number % _POLL_EVERY == 0 or now >= poll_at:
            producer.poll(0)
            poll_at = now + _FLUSH_SLICE_SECONDS
            watch.look()
        if deliveries.first is not None:
            return


def _undecided(error: KafkaError) -> bool:
    """Whether the record may have been stored all the same."""
    from confluent_kafka import KafkaError

    return error.code() in (
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._FATAL,
    )
