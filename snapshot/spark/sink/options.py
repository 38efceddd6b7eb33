"""Options of the sink; case and underscores do not matter, and an unknown one is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from strandline.snapshot.compression import Compression
from strandline.snapshot.producing.brokers import Address
from strandline.snapshot.producing.errors import SinkError

ALIASES: Final = {"kafka.bootstrap.servers": "bootstrap", "bootstrapservers": "bootstrap"}
KNOWN: Final = (
    "bootstrap",
    "topic",
    "progresstopic",
    "query",
    "batch",
    "compression",
    "transactiontimeoutseconds",
    "patienceseconds",
    "missingprogress",
    "losttransactions",
)
_SPARKS_OWN: Final = ("checkpointlocation", "queryname", "path")
"""Spark hands these to the sink of a stream too; a path means nothing here, and Spark may set it."""
BATCH_ONLY: Final = "batch"
TRANSACTION_SECONDS: Final = 900.0
"""The longest transaction that Kafka and this cluster allow unless told otherwise."""
PATIENCE_SECONDS: Final = 120.0
"""Kafka's delivery.timeout.ms."""
_QUERY: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True)
class SinkOptions:
    """A checked request to write."""

    bootstrap: tuple[Address, ...]
    topic: str | None
    """Of every row; None: as its column says."""
    progress_topic: str
    """The topic at whose partition 0 the decisions are kept."""
    query: str | None
    """The name of the query; None for Spark's id of it."""
    batch: int | None
    """Of spark.write: the number of this write among those of `query`."""
    compression: Compression
    transaction_seconds: float
    """Longest time between a task's first record and the end of its transaction."""
    patience_seconds: float
    """Longest wait for the cluster with nothing going on."""
    write_unknown: bool
    """Whether a batch that is not a query's first is written where nothing is known of the earlier ones."""
    accept_loss: bool
    """Whether a decided batch counts as written although some of its transactions are gone."""


def parse(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Read the options as Spark hands them over; raises SinkError."""
    given: dict[str, str] = {}
    for name, value in options.items():
        plain = name.lower().replace("_", "")
        plain = ALIASES.get(plain, plain)
        if plain in _SPARKS_OWN:
            continue
        if plain not in KNOWN:
            raise SinkError(f"there is no option {name!r} for writing: {', '.join(KNOWN)}")
        if given.setdefault(plain, value) != value:
            raise SinkError(f"option {name!r} is given twice: {given[plain]!r} and {value!r}")
    query, batch = given.get("query"), _number(given, "batch")
    if query is not None and not _QUERY.fullmatch(query):
        raise _wrong(given, "query", "at most 200 of the letters a-z, A-Z, digits, _ and -")
    if streaming and batch is not None:
        raise SinkError("option 'batch' is for spark.write: Spark numbers the batches of a stream itself")
    if not streaming and (query is None) != (batch is None):
        raise SinkError(
            "options 'query' and 'batch' go together: the name of a series of writes, and a number"
        )
    topic = given.get("topic") or None
    progress = given.get("progresstopic") or topic
    if progress is None:
        if streaming or query is not None:
            raise SinkError(
                "no place for the query's progress: give the option 'topic', or 'progressTopic' where a "
                "column says the topic"
            )
        progress = ""
    if batch is not None and topic is not None and progress != topic:
        raise SinkError(
            "options 'topic' and 'progressTopic' do not go together with 'batch': the progress of such "
            "writes is kept with their topic, so that a name tells what was written where"
        )
    return SinkOptions(
        bootstrap=_addresses(given),
        topic=topic,
        progress_topic=progress,
        query=query,
        batch=batch,
        compression=_compression(given),
        transaction_seconds=_seconds(given, "transactiontimeoutseconds", TRANSACTION_SECONDS),
        patience_seconds=_seconds(given, "patienceseconds", PATIENCE_SECONDS),
        write_unknown=_choice(given, "missingprogress", "fail", "write"),
        accept_loss=_choice(given, "losttransactions", "fail", "accept"),
    )


def _addresses(given: Mapping[str, str]) -> tuple[Address, ...]:
    if not given.get("bootstrap"):
        raise SinkError("option 'kafka.bootstrap.servers' is missing: a broker's host:port, or several")
    found = []
    for part in given["bootstrap"].split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise _wrong(given, "bootstrap", "host:port, with commas between several")
        found.append(Address(host.strip("[]"), int(port)))
    return tuple(found)


def _number(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    if not given[name].isdigit():
        raise _wrong(given, name, "a number from 0 on")
    return int(given[name])


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(given.get(name, default))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise _wrong(given, name, "a positive number of seconds")
    return value


def _choice(given: Mapping[str, str], name: str, usual: str, other: str) -> bool:
    value = given.get(name, usual).strip().lower()
    if value not in (usual, other):
        raise _wrong(given, name, f"{usual} or {other}")
    return value == other


def _compression(given: Mapping[str, str]) -> Compression:
    name = given.get("compression", "none").strip().upper()
    if name not in Compression.__members__:
        raise _wrong(given, "compression", "none, gzip, snappy, lz4 or zstd")
    return Compression[name]


def _wrong(given: Mapping[str, str], name: str, like: str) -> SinkError:
    return SinkError(f"option {name!r} is {given[name]!r}, not {like}")
