"""Readers of configuration values, one for each key.

A reader takes TOML's value and returns the node's, in seconds and bytes, or raises ValueError with the cause
and the cure in half a line; `strandline.node.config.node_config` adds the place of the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from strandline.node.config.authorization import principals
from strandline.node.config.money import monthly_budget, price
from strandline.snapshot.client_options import check_options
from strandline.statemachine.controller.controller_commands import MAX_RACK

KIB: Final = 1024
MIB: Final = 1024 * KIB
OBJECT_STORES: Final = ("s3", "gs", "az", "memory")
"""Schemes of storage.url; anything else must be the path of a folder."""


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB)?")
_BYTES = {None: 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,63}")
_SHORTEST_SECRET: Final = 16
_LEAST_LETTERS: Final = 6
"""Different characters of a secret: fewer are a row of x, or of zeros."""
_PLACEHOLDER = re.compile(
    r"(?i)<.*>|.*\brandom hexadecimal digits\b.*|change.?me.*|replace.?me.*|your.*secret.*"
)


def some_text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not text, or empty: write it in quotes")
    return value


def optional_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text: write it in quotes")
    return value


def _name(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not _NAME.fullmatch(some_text(value)):
        raise ValueError(f"{value!r} cannot be part of object names: use up to 64 letters, digits and _.=+-")
    return str(value)


def _rack(value: Any) -> str:
    text = optional_text(str(value) if type(value) is int else value)
    if len(text) > MAX_RACK or any(letter.isspace() or not letter.isprintable() for letter in text):
        raise ValueError(f"{value!r} names no rack: write up to {MAX_RACK} characters without spaces")
    return text


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def whole(low: int, high: int) -> Callable[[Any], int]:
    """Reads a whole number within bounds."""

    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
        return value

    return read


def duration(value: Any) -> float:
    """Seconds of a text like "250ms", or of a number."""
    if type(value) in (int, float) and 0 <= value < 1e9:
        return float(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{value!r} is not a duration: write a number and ms, s, m, h or d, like "250ms"')
    return float(match[1]) * _SECONDS[match[2]]


def _positive_seconds(value: Any) -> float:
    seconds = duration(value)
    if seconds <= 0:
        raise ValueError(f"{value!r} must be more than nothing")
    return seconds


def _size(value: Any) -> int:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if type(value) is int and value >= 0:
        return value
    if match is None:
        raise ValueError(
            f'{value!r} is not a size: write a number of bytes, or like "512KiB", "4MiB", "1GiB"'
        )
    return int(match[1]) * _BYTES[match[2]]


def _size_up_to(most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        size = _size(value)
        if size > most:
            raise ValueError(f"{value!r} is more than {most // KIB}KiB")
        return size

    return read


def _some_bytes(value: Any) -> int:
    size = _size(value)
    if size < KIB:
        raise ValueError(f"{value!r} is less than 1KiB")
    return size


def _rate(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e9:
        raise ValueError(f"{value!r} is not a number above 0: leave it out for no limit")
    return float(value)


def choice(*choices: str) -> Callable[[Any], str]:
    """A reader for one of these words, in upper or lower case."""

    def read(value: Any) -> str:
        lower = value.lower() if isinstance(value, str) else value
        if lower not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(lower)

    return read


def _options(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f'{value!r} is not a table: write [storage.options] and below it like region = "eu"')
    check_options(value)
    for name, option in value.items():
        if any(ord(letter) < 32 for letter in str(option)):
            raise ValueError(f"{name}: its value has a line end or another control character: remove it")
        if "endpoint" in name.lower() and not _is_endpoint(str(option)):
            raise ValueError(f"{name}: {option!r} is not an address: write it like http://127.0.0.1:9000")
    return {name: str(option) for name, option in value.items()}


def _is_endpoint(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and " " not in value
        )
    except ValueError:
        return False


def _url(value: Any) -> str:
    text = some_text(value)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise ValueError(f"{value!r} is no URL: {error}") from None
    if parts.scheme == "memory":
        return text
    if parts.scheme in OBJECT_STORES:
        if not parts.netloc:
            raise ValueError(f"{value!r} names no bucket: write like {parts.scheme}://bucket/prefix")
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError(
                f"{value!r} has more than a bucket and a prefix: keys and the like go to [storage.options]"
            )
        return text
    folder = os.path.expanduser(text)
    if not parts.scheme and os.path.isabs(folder):
        return folder
    raise ValueError(
        f"{value!r} is neither the absolute path of a folder nor s3://bucket/prefix, gs://… or az://…"
    )


def _folder(value: Any) -> str:
    folder = os.path.expanduser(some_text(value))
    if not os.path.isabs(folder):
        raise ValueError(
            f"{value!r} is relative, so it would be another folder wherever the node is started from: write "
            "an absolute path"
        )
    return folder


def _secret(value: Any) -> str:
    text = some_text(value)
    if _PLACEHOLDER.fullmatch(text):
        raise ValueError(
            "it is the placeholder of an example: write that of the other nodes, or for a new cluster a"
            " random text, like that of `openssl rand -hex 32`"
        )
    if len(text) < _SHORTEST_SECRET or len(set(text)) < _LEAST_LETTERS:
        raise ValueError(
            f"it can be guessed: write at least {_SHORTEST_SECRET} random characters, like those of `openssl "
            "rand -hex 32`"
        )
    return text


node_id = whole(1, 2**16 - 1)
any_port = whole(0, 65535)

VALUE_READERS: dict[str, Callable[[Any], Any]] = {
    "insecure": flag,
    "authorization.enabled": flag,
    "authorization.super_users": principals,
    "authorization.allow_everyone_if_no_acl_found": flag,
    "quotas.windows": whole(2, 3600),
    "quotas.window_seconds": _positive_seconds,
    "node.id": node_id,
    "node.data": _folder,
    "node.rack": _rack,
    "cluster.id": _name,
    "cluster.secret": _secret,
    "cluster.epoch_seconds": _positive_seconds,
    "cluster.replace_lost_disks": flag,
    "kafka.host": some_text,
    "kafka.port": any_port,
    "kafka.advertised_host": optional_text,
    "kafka.advertised_port": any_port,
    "storage.url": _url,
    "storage.options": _options,
    "storage.volatile": flag,
    "storage.requests_budget": monthly_budget,
    "storage.put_price": price,
    "storage.get_price": price,
    "topics.auto_create": flag,
    "topics.partitions": whole(1, 10_000),
    "topics.replication_factor": whole(0, 2**15 - 1),
    "topics.leader_rebalance": flag,
    "topics.leader_rebalance_seconds": _positive_seconds,
    "batching.target_bytes": _size,
    "batching.max_object_bytes": _size,
    "batching.linger_seconds": duration,
    "batching.max_uploads": whole(1, 1_000),
    "batching.max_upload_bytes": _size,
    "batching.puts_per_second": _rate,
    "batching.max_staged_bytes": _size,
    "batching.max_staged_batches": whole(1, 2**31),
    "inline.seconds": _positive_seconds,
    "inline.max_batch_bytes": _size_up_to(512 * KIB),
    "inline.partition_bytes_per_second": _some_bytes,
    "inline.bytes_per_second": _some_bytes,
    "inline.partition_bytes": _some_bytes,
    "inline.bytes": _some_bytes,
    "cache.written_bytes": _size,
    "cache.fetched_bytes": _size,
    "cache.level_one_bytes": _size,
    "memory.limit": _some_bytes,
    "views.process_bytes": _some_bytes,
    "checkpoints.keep": whole(1, 1_000),
    "checkpoints.local_share_bits": whole(0, 64),
    "checkpoints.interval": duration,
    "publish.seconds": duration,
    "level_one.target_bytes": _some_bytes,
    "level_one.job_bytes": _some_bytes,
    "level_one.block_bytes": _some_bytes,
    "level_one.reconcile_seconds": _positive_seconds,
    "level_one.merge_count": whole(2, 1_000),
    "level_one.sweep_seconds": _positive_seconds,
    "compaction.map_bytes": _some_bytes,
    "compaction.segment_bytes": _some_bytes,
    "compaction.ingest_bytes": _some_bytes,
    "compaction.ingest_seconds": _positive_seconds,
    "collector.grace_seconds": duration,
    "collector.sweep_seconds": _positive_seconds,
    "collector.deletes_per_second": whole(1, 1_000_000),
    "collector.advance_lag_epochs": whole(1, 1_000_000),
    "retention.check_seconds": _positive_seconds,
    "coordinator.partitions": whole(1, 1_000),
    "groups.initial_rebalance_delay_seconds": duration,
    "groups.min_session_seconds": _positive_seconds,
    "groups.max_session_seconds": _positive_seconds,
    "groups.max_members": whole(1, 1_000_000),
    "groups.consumer_session_seconds": _positive_seconds,
    "groups.consumer_heartbeat_seconds": _positive_seconds,
    "groups.consumer_migration_policy": choice("bidirectional", "upgrade", "downgrade", "disabled"),
    "groups.offset_retention_seconds": _positive_seconds,
    "transactions.max_timeout_seconds": _positive_seconds,
    "transactions.id_expiration_seconds": _positive_seconds,
    "log.level": choice("debug", "info", "warning", "error"),
    "log.format": choice("text", "json"),
}
