"""`strandline consume`: records to stdout, from any point of a topic to its end or for ever.

Partitions are assigned, not subscribed to: a look into a topic needs no group and leaves no trace.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cluster.commands.record_text import FORMATS, Writer
from cluster.failure import MISUSED, CommandFailed, ReaderGone
from cluster.output import Json
from cluster.target import Bootstrap, Cluster, target

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_REQUEST_SECONDS: Final = 20.0
_MANY: Final = 500
_WAIT_SECONDS: Final = 0.2
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this; may be repeated. Default: all.")
    ] = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="beginning, end, an offset, a time (2026-01-31T12:00:00Z), or how long ago (90s 15m 2h 7d).",
        ),
    ] = "beginning",
    most: Annotated[int | None, typer.Option("--max", min=1, help="End after so many records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="At the end wait for more, until Ctrl-C.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="value, key-value (with a tab between), full or json.")
    ] = "value",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print records. Ends at what is the end when it starts, unless it is to --follow.

    --json is --format json: an object for each record; bytes that are no text come in base64.

    \b
    Examples:
      strandline consume orders --max 10 --format full
      strandline consume orders --from 15m --follow --format json | jq .value
      strandline consume orders --partition 2 --from 1200 --max 1
    """
    from confluent_kafka import Consumer, KafkaError, KafkaException

    from cluster.kafka_client import client_config, error_of, failed, reach

    if form not in FORMATS:
        raise CommandFailed(f"there is no format {form}", f"use {', '.join(FORMATS)}", MISUSED)
    writer = Writer("json" if as_json else form)
    start = parse_start(begin, time.time())
    where = target(bootstrap=bootstrap, folder=cluster).bootstrap
    reach(where)
    consumer = Consumer(
        client_config(
            where,
            group_id="strandline-cli",  # librdkafka wants one; it is never used
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
        )
    )
    try:
        ends = _assign(consumer, where, topic, partitions, start)
        left = most
        while (follow or ends) and left != 0:
            # Short waits, since librdkafka does not hear Ctrl-C.
            for message in consumer.consume(_MANY if left is None else min(left, _MANY), _WAIT_SECONDS):
                number, offset, error = message.partition(), message.offset(), message.error()
                assert number is not None
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        ends.pop(number, None)
                    elif not error.retriable() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise failed(f"partition {number} of {topic} cannot be read", error)
                    continue
                assert offset is not None
                if not follow and (number not in ends or offset >= ends[number]):
                    ends.pop(number, None)
                    continue
                writer.write(message)
                left = None if left is None else left - 1
                if offset + 1 >= ends.get(number, offset + 2):
                    del ends[number]
            writer.flush()
    except KeyboardInterrupt:
        with suppress(BrokenPipeError):
            writer.flush()  # that is how it is meant to be ended
    except BrokenPipeError:
        raise ReaderGone from None
    except KafkaException as error:
        raise failed(f"{topic} cannot be read", error_of(error)) from None
    finally:
        consumer.close()


def parse_start(text: str, now: float) -> tuple[str, int]:
    """Where to begin: ("beginning" | "end" | "offset" | "time", value); a time in milliseconds."""
    if text in ("beginning", "end"):
        return text, 0
    if text.isdecimal():
        return "offset", int(text)
    if ago := re.fullmatch(r"(\d+)([smhd])", text):
        return "time", round((now - int(ago[1]) * _UNITS[ago[2]]) * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(
            f"--from {text} is no place in a topic",
            "write beginning, end, an offset, a time like 2026-01-31T12:00:00Z, or how long ago like 15m",
            MISUSED,
        ) from None
    return "time", round(moment.timestamp() * 1000)  # without a zone: the local one


def _assign(
    consumer: Consumer, where: str, topic: str, wanted: list[int] | None, start: tuple[str, int]
) -> dict[int, int]:
    """Assign the partitions; each one's end, of those that have anything to read."""
    from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

    from cluster.kafka_client import error_of, failed, unreachable

    try:
        found = consumer.list_topics(topic, timeout=_REQUEST_SECONDS / 4).topics[topic]
        if found.error is not None:
            raise failed(f"topic {topic} cannot be read", found.error)
        missing = set(wanted or ()) - set(found.partitions)
        if missing:
            raise CommandFailed(
                f"topic {topic} has no partition {', '.join(map(str, sorted(missing)))}",
                f"it has 0 to {len(found.partitions) - 1}",
                MISUSED,
            )
        numbers = sorted(set(wanted or found.partitions))
        bounds: dict[int, Any] = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_REQUEST_SECONDS)
            for number in numbers
        }
        kind, value = start
        begins = {
            number: {"beginning": low, "end": high, "offset": value}.get(kind, high)
            for number, (low, high) in bounds.items()
        }
        if kind == "time":
            asked = [TopicPartition(topic, number, value) for number in numbers]
            for place in consumer.offsets_for_times(asked, timeout=_REQUEST_SECONDS):
                if place.error is not None:
                    raise failed(f"partition {place.partition} of {topic} cannot be searched", place.error)
                if place.offset not in (OFFSET_END, -1):
                    begins[place.partition] = place.offset
    except KafkaException as error:
        if error_of(error).code() in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TIMED_OUT,
        ):
            raise unreachable(where) from None
        raise failed(f"topic {topic} cannot be read", error_of(error)) from None
    consumer.assign([TopicPartition(topic, number, begins[number]) for number in numbers])
    return {number: bounds[number][1] for number in numbers if begins[number] < bounds[number][1]}
