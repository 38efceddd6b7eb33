"""`strandline consume`: records to stdout, from any point of a topic to its end or for ever.

Without --group partitions are assigned, not subscribed to: a look into a topic needs no group and leaves no
trace.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from strandline.cluster.commands.record_text import FORMATS, RecordWriter
from strandline.cluster.failure import MISUSED, CommandFailed, ReaderGone
from strandline.cluster.output import Json
from strandline.cluster.target import Bootstrap, Cluster, Target, target

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

    from strandline.cluster.silence import Silence

WHERE: Final = "beginning, end, an offset, a time (2026-01-31T12:00:00Z), or how long ago (90s 15m 2h 7d)."
_REQUEST_SECONDS: Final = 20.0
_MANY: Final = 500
_WAIT_SECONDS: Final = 0.2
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_OFFSET: Final = 2**63 - 1
_LONGEST_SECONDS: Final = 365 * 24 * 3600.0
_Progress = dict[int, int]
"""By partition: the offset at which it is read to its end."""


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="Only this partition; may be repeated. Default: all."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help=f"{WHERE} Default: beginning.")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="At the end, wait for new records until Ctrl-C.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="value, key-value (separated by a tab), full or json.")
    ] = "value",
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP", help="Read as a member of this group: start at its offsets, and commit."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=_LONGEST_SECONDS,
            help="Stop after this time without a record; no error at the end of the topic with --follow.",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print records. Stops at the end that the topic has at the start, unless --follow is given.

    Where records do not come although they are there, stderr says why, at once and now and then.

    With --group it shares the partitions with the group's other members, commits what it has printed, and
    ends at the end of its share. --from (beginning or end) is for partitions where the group has no offset.

    --json is --format json: an object for each record; bytes that are no text come in base64.

    \b
    Examples:
      strandline consume orders --max 10 --format full
      strandline consume orders --from 15m --follow --format json | jq .value
      strandline consume orders --partition 2 --from 1200 --max 1
      strandline consume orders --group billing --max 100
    """
    from confluent_kafka import KafkaException

    from strandline.cluster.kafka_errors import error_of, failed, reach
    from strandline.cluster.silence import Silence

    if form not in FORMATS:
        raise CommandFailed(f"there is no format {form}", f"use {', '.join(FORMATS)}", MISUSED)
    if group is not None:
        _check_group(group, partitions, begin)
    writer = RecordWriter("json" if as_json else form)
    start = parse_start(begin or "beginning", time.time())
    where = target(bootstrap=bootstrap, folder=cluster)
    reach(where)
    silence = Silence(where, topic, timeout)
    consumer = _consumer(where, group, start[0], silence)
    try:
        if group is None:
            ends: _Progress | None = _assign(consumer, where, topic, partitions, start)
        else:
            _subscribe(consumer, where, topic)
            ends = None
        _copy(consumer, where, topic, ends, writer, silence, most, follow=follow)
    except KeyboardInterrupt:
        with suppress(BrokenPipeError):
            writer.flush()
        raise
    except BrokenPipeError:
        raise ReaderGone from None
    except KafkaException as error:
        raise failed(where, f"{topic} cannot be read", error_of(error)) from None
    finally:
        consumer.close()


def parse_start(text: str, now: float) -> tuple[str, int]:
    """Parse a start: ("beginning" | "end" | "offset" | "time", value); a time is in milliseconds."""
    if text in ("beginning", "end"):
        return text, 0
    cause = f"{text} is not a place in a topic"
    cure = "write beginning, end, an offset, a time like 2026-01-31T12:00:00Z, or how long ago like 15m"
    if text.isdecimal():
        if len(text) > 19 or int(text) > _MAX_OFFSET:
            raise CommandFailed(cause, cure, MISUSED)
        return "offset", int(text)
    try:
        if ago := re.fullmatch(r"(\d{1,12})([smhd])", text):
            return "time", max(0, round((now - int(ago[1]) * _UNITS[ago[2]]) * 1000))
        moment = datetime.fromisoformat(text)
        # Without a zone it is the local one, which years at either end of the calendar do not have.
        milliseconds = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise CommandFailed(cause, cure, MISUSED) from None
    if milliseconds < 0:
        raise CommandFailed(cause, f"times begin with {datetime.fromtimestamp(0, UTC):%Y-%m-%d}", MISUSED)
    return "time", milliseconds


def _check_group(group: str, partitions: list[int] | None, begin: str | None) -> None:
    if not group:
        raise CommandFailed("--group is empty", "name a group", MISUSED)
    if partitions:
        raise CommandFailed(
            "--group and --partition exclude each other: a group assigns the partitions itself",
            "leave one of them out",
            MISUSED,
        )
    if begin not in (None, "beginning", "end"):
        raise CommandFailed(
            f"--from {begin} does not go with --group, which goes on where the group is",
            "move the group: strandline group reset-offsets",
            MISUSED,
        )


def _consumer(where: Target, group: str | None, begin: str, silence: Silence) -> Consumer:
    from confluent_kafka import Consumer

    from strandline.cluster.kafka_client import client_config, refused

    reset = {"beginning": "earliest", "end": "latest"}.get(begin, "error") if group is not None else "error"
    return refused(
        where,
        "the consumer refuses",
        lambda: Consumer(
            client_config(
                where.bootstrap,
                group_id=group or "strandline-cli",  # librdkafka wants one; without --group it is never used
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                auto_offset_reset=reset,
                error_cb=silence.error,
            )
        ),
    )


def _copy(
    consumer: Consumer,
    where: Target,
    topic: str,
    ends: _Progress | None,
    writer: RecordWriter,
    silence: Silence,
    most: int | None,
    *,
    follow: bool,
) -> None:
    """Print until the end of each partition in `ends`, or of the share in the group where that is None."""
    from confluent_kafka import KafkaError

    from strandline.cluster.kafka_errors import failed

    left, at_end = most, set[int]()
    while left != 0:
        if ends is not None:
            reading = set(ends) if not follow else {row.partition for row in consumer.assignment()} - at_end
            over = not ends
        else:
            share = {row.partition for row in consumer.assignment()}
            at_end &= share
            reading = share - at_end
            over = bool(share) and not reading
        if over and not follow:
            break
        # Short waits, since librdkafka does not hear Ctrl-C.
        came, next_offsets = False, dict[int, int]()
        for message in consumer.consume(_MANY if left is None else min(left, _MANY), _WAIT_SECONDS):
            number, offset, error = message.partition(), message.offset(), message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF and number is not None:
                    at_end.add(number)
                    if ends is not None:
                        ends.pop(number, None)
                elif _final(error):
                    raise failed(where, f"partition {number} of {topic} cannot be read", error)
                else:
                    silence.error(error)
                continue
            assert number is not None
            assert offset is not None
            came = True
            if ends is not None and not follow and (number not in ends or offset >= ends[number]):
                ends.pop(number, None)
                continue
            at_end.discard(number)
            writer.write(message)
            next_offsets[number] = offset + 1
            left = None if left is None else left - 1
            if ends is not None and offset + 1 >= ends.get(number, offset + 2):
                del ends[number]
        writer.flush()
        if ends is None and next_offsets:
            _commit(consumer, where, topic, next_offsets)
        if came:
            silence.over()
        elif silence.gives_up(
            reading, consumer, follow=follow, joining=ends is None and not reading | at_end
        ):
            break


def _final(error: KafkaError) -> bool:
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return True
    return not error.retriable() and error.code() not in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.KAFKA_STORAGE_ERROR,
    )


def _commit(consumer: Consumer, where: Target, topic: str, offsets: dict[int, int]) -> None:
    """Once printed; a failure ends the command, since the next member would print it all again."""
    from confluent_kafka import KafkaException, TopicPartition

    from strandline.cluster.kafka_errors import error_of, failed

    rows = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
    try:
        consumer.commit(offsets=rows, asynchronous=False)
    except KafkaException as error:
        raise failed(where, "what was printed could not be committed", error_of(error)) from None


def _subscribe(consumer: Consumer, where: Target, topic: str) -> None:
    _partitions(consumer, where, topic)
    consumer.subscribe([topic])


def _partitions(consumer: Consumer, where: Target, topic: str) -> list[int]:
    """The topic's; CommandFailed when it is not there."""
    from strandline.cluster.kafka_client import refused
    from strandline.cluster.kafka_errors import failed

    what = f"topic {topic} cannot be read"
    listed = refused(where, what, lambda: consumer.list_topics(topic, timeout=_REQUEST_SECONDS / 4))
    found = listed.topics[topic]
    if found.error is not None:
        raise failed(where, what, found.error)
    return sorted(found.partitions)


def _assign(
    consumer: Consumer, where: Target, topic: str, wanted: list[int] | None, start: tuple[str, int]
) -> _Progress:
    """Assign the partitions; each one's end, of those that have anything to read. Raises KafkaException."""
    from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

    from strandline.cluster.kafka_errors import PASSING, failed, patiently

    there = _partitions(consumer, where, topic)
    missing = set(wanted or ()) - set(there)
    if missing:
        raise CommandFailed(
            f"topic {topic} has no partition {', '.join(map(str, sorted(missing)))}",
            f"it has 0 to {len(there) - 1}",
            MISUSED,
        )
    numbers = sorted(set(wanted or there))
    places = {number: TopicPartition(topic, number) for number in numbers}
    bounds: dict[int, Any] = {
        number: patiently(partial(consumer.get_watermark_offsets, place, timeout=_REQUEST_SECONDS))
        for number, place in places.items()
    }
    kind, value = start
    begins = {
        number: {"beginning": low, "end": high, "offset": value}.get(kind, high)
        for number, (low, high) in bounds.items()
    }
    if kind == "time":
        asked = [TopicPartition(topic, number, value) for number in numbers]

        def search() -> list[TopicPartition]:
            found = consumer.offsets_for_times(asked, timeout=_REQUEST_SECONDS)
            for place in found:
                if place.error is not None and place.error.code() in PASSING:
                    raise KafkaException(place.error)
            return found

        for place in patiently(search):
            if place.error is not None:
                raise failed(where, f"partition {place.partition} of {topic} cannot be searched", place.error)
            if place.offset not in (OFFSET_END, -1):
                begins[place.partition] = place.offset
    consumer.assign([TopicPartition(topic, number, begins[number]) for number in numbers])
    return {number: bounds[number][1] for number in numbers if begins[number] < bounds[number][1]}
