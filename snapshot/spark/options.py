"""Options of the data source, under the names of Spark's Kafka source.

Case and underscores do not matter, so `starting_offset` and Kafka's `startingOffsets` are one. An unknown
option is an error: a misspelt limit would otherwise read everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

EARLIEST = -2
LATEST = -1
TOPIC_ID = "topic_id"
"""Key beside the partitions in a stream's offsets of a topic."""
ENTERED = "entered"
"""Another one: the partitions that enter with the batch that ends at these offsets, and where. Releases that
do not have it refuse it, since they would read nothing of these in that batch."""
BEGUN = "."
"""Key of the entry in a stream's offsets that is of no topic: none has this name. It is there also where a
query has begun with no partition yet."""
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
_STORAGE = "storage."
ALIASES = {
    "path": "url",
    "topics": "topic",
    "subscribe": "topic",
    "partition": "partitions",
    "startingoffsets": "startingoffset",
    "endingoffsets": "endingoffset",
}
KNOWN = (
    "url",
    "cluster",
    "checkpoint",
    "topic",
    "subscribepattern",
    "assign",
    "partitions",
    "startingoffset",
    "endingoffset",
    "startingtimestamp",
    "endingtimestamp",
    "minpartitions",
    "isolationlevel",
    "maxoffsetspertrigger",
    "maxbytespertrigger",
    "failondataloss",
)
STREAM_ONLY = ("maxoffsetspertrigger", "maxbytespertrigger")
"""Options that mean nothing to a batch read."""
BATCH_ONLY = ("endingoffset", "endingtimestamp", "checkpoint")
"""Options that mean nothing to a stream."""


class SourceError(ValueError):
    """A read that cannot be done as asked: one line with the cause and the cure."""


@dataclass(frozen=True)
class Bound:
    """One end of the offsets: for some partitions by name, for all others `default`."""

    default: int
    named: Mapping[str, Mapping[int, int]]

    def of(self, topic: str, partition: int) -> int:
        """An offset, EARLIEST or LATEST."""
        return self.named.get(topic, {}).get(partition, self.default)


@dataclass(frozen=True)
class ReadOptions:
    """A checked request. Timestamps are Unix milliseconds; None is no bound."""

    url: str
    storage: Mapping[str, str]
    cluster: str | None
    checkpoint: int | None
    """Number of the restore point whose documents are read; None for the newest documents there are."""
    topics: Mapping[str, frozenset[int] | None]
    """Wanted partitions of each topic that is wanted by name; None for all of them."""
    pattern: re.Pattern[str] | None
    """Topics are wanted whose whole names match."""
    pattern_partitions: frozenset[int] | None
    """Wanted partitions of each topic that matches; None for all of them."""
    starting: Bound
    ending: Bound
    starting_timestamp: int | None
    ending_timestamp: int | None
    min_partitions: int | None
    committed: bool
    """Whether only what is decided is read, and nothing that was aborted."""
    max_offsets: int | None
    """Most offsets that one micro-batch of a stream takes, over all partitions."""
    max_bytes: int | None
    """Most stored bytes that one micro-batch of a stream takes, over all partitions."""
    fail_on_data_loss: bool
    """Whether a stream ends when records are gone that it has not read, and any read that begins with an
    offset that is gone."""
    given: frozenset[str]
    """Names of the options that were given."""

    def require_batch(self) -> None:
        """Raise SourceError if an option is given that only streams have."""
        self._refuse(STREAM_ONLY, "is for spark.readStream: leave it out, or read a stream")

    def require_stream(self) -> None:
        """Raise SourceError if an option is given that only batch reads have."""
        self._refuse(BATCH_ONLY, "is for spark.read; a stream that ends has trigger(availableNow=True)")

    def _refuse(self, names: tuple[str, ...], reason: str) -> None:
        for name in names:
            if name in self.given:
                raise SourceError(f"option {name!r} {reason}")


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Read the options as Spark hands them over; raises SourceError."""
    given: dict[str, str] = {}
    storage: dict[str, str] = {}
    for name, value in options.items():
        plain = name.lower()
        if plain.startswith(_STORAGE):
            storage[plain.removeprefix(_STORAGE)] = value
            continue
        plain = plain.replace("_", "")
        plain = ALIASES.get(plain, plain)
        if plain not in KNOWN:
            raise SourceError(f"there is no option {name!r}: {', '.join(KNOWN)}, or storage.<name>")
        if given.setdefault(plain, value) != value:
            raise SourceError(f"option {name!r} is given twice: {given[plain]!r} and {value!r}")
    if not given.get("url"):
        raise SourceError(
            "option 'url' is missing: the folder or bucket of the cluster, as in its storage.url"
        )
    return ReadOptions(
        url=given["url"],
        storage=storage,
        cluster=given.get("cluster"),
        checkpoint=_positive(given, "checkpoint"),
        topics=_topics(given),
        pattern=_pattern(given),
        pattern_partitions=_partitions(given),
        starting=_bound(given, "startingoffset", EARLIEST),
        ending=_bound(given, "endingoffset", LATEST),
        starting_timestamp=_time(given, "startingtimestamp"),
        ending_timestamp=_time(given, "endingtimestamp"),
        min_partitions=_positive(given, "minpartitions"),
        committed=_isolation(given) == READ_COMMITTED,
        max_offsets=_positive(given, "maxoffsetspertrigger"),
        max_bytes=_positive(given, "maxbytespertrigger"),
        fail_on_data_loss=_flag(given, "failondataloss", True),
        given=frozenset(given),
    )


def _topics(given: Mapping[str, str]) -> dict[str, frozenset[int] | None]:
    if "assign" in given:
        if given.keys() & {"topic", "partitions", "subscribepattern"}:
            raise SourceError(
                "option 'assign' names topics and partitions: "
                "give no 'topic', 'subscribePattern' or 'partitions'"
            )
        assigned = _json(given, "assign", '{"topic": [0, 1]}')
        if not assigned or not all(
            isinstance(chosen, list) and all(type(number) is int for number in chosen)
            for chosen in assigned.values()
        ):
            raise _wrong(given, "assign", 'JSON like {"topic": [0, 1]}')
        return {topic: frozenset(chosen) for topic, chosen in assigned.items()}
    names = [name.strip() for name in given.get("topic", "").split(",") if name.strip()]
    if "subscribepattern" in given:
        if names:
            raise SourceError(
                "options 'topic' and 'subscribePattern' both say which topics: give one of them"
            )
        return {}
    if not names:
        raise SourceError("option 'topic' is missing: one topic, or several with commas between them")
    return dict.fromkeys(names, _partitions(given))


def _pattern(given: Mapping[str, str]) -> re.Pattern[str] | None:
    if "subscribepattern" not in given:
        return None
    try:
        return re.compile(given["subscribepattern"])
    except re.error as error:
        raise _wrong(
            given, "subscribepattern", f"a regular expression over topics' names ({error})"
        ) from error


def _partitions(given: Mapping[str, str]) -> frozenset[int] | None:
    if "partitions" not in given:
        return None
    chosen: set[int] = set()
    for part in given["partitions"].split(","):
        span = _SPAN.fullmatch(part.strip())
        if span is None:
            raise _wrong(given, "partitions", "numbers and ranges like 0,2,5-9")
        chosen.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    return frozenset(chosen)


def _bound(given: Mapping[str, str], name: str, default: int) -> Bound:
    text = given.get(name, "").strip().lower()
    like = 'earliest, latest, an offset, or JSON like {"topic": {"0": 23, "1": -2}}'
    if text in ("", "earliest", "latest"):
        return Bound({"": default, "earliest": EARLIEST, "latest": LATEST}[text], {})
    if text.isdigit():
        return Bound(int(text), {})
    named: dict[str, dict[int, int]] = {}
    for topic, offsets in _json(given, name, like).items():
        if topic == BEGUN:
            continue
        if not isinstance(offsets, dict):
            raise _wrong(given, name, like)
        for partition, offset in offsets.items():
            if partition in (TOPIC_ID, ENTERED):  # a stream's offsets are taken as they are
                continue
            if not partition.isdigit() or type(offset) is not int or offset < EARLIEST:
                raise _wrong(given, name, like)
            named.setdefault(topic, {})[int(partition)] = offset
    return Bound(default, named)


def _json(given: Mapping[str, str], name: str, like: str) -> dict[str, Any]:
    try:
        value = json.loads(given[name])
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _wrong(given, name, like)
    return value


def _time(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        if text.lstrip("-").isdigit():
            return int(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _wrong(
            given, name, "milliseconds since 1970, or a time with its zone like 2026-01-31T12:00:00Z"
        )
    return round(moment.timestamp() * 1000)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    if not given[name].isdigit() or int(given[name]) < 1:
        raise _wrong(given, name, "a positive number")
    return int(given[name])


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise _wrong(given, name, "true or false")
    return text == "true"


def _isolation(given: Mapping[str, str]) -> str:
    level = given.get("isolationlevel", READ_COMMITTED).strip().lower()
    if level not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise _wrong(given, "isolationlevel", f"{READ_COMMITTED} or {READ_UNCOMMITTED}")
    return level


def _wrong(given: Mapping[str, str], name: str, like: str) -> SourceError:
    return SourceError(f"option {name!r} is {given[name]!r}, not {like}")
