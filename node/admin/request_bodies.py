"""Validation of the bodies of requests about checkpoints and holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.exceptions import HTTPException

from strandline.statemachine.partition.holds import MAX_HOLD_MS, MAX_READER_BYTES

MAX_TOPICS: Final = 1000
"""Topics that one checkpoint may name; without names it takes all there are."""
MAX_LEASES: Final = 10_000
"""Leases that one request may renew; the body's limit comes first."""
LEASE_SECONDS: Final = 3600.0
MAX_LEASE_SECONDS: Final = 30 * 24 * 3600.0
CHECKPOINT_SECONDS: Final = 60.0
RENEWAL_SECONDS: Final = 20.0
MAX_CHECKPOINT_SECONDS: Final = 600.0

_MAX_NUMBER: Final = 2**63 - 1

_HOLD_FORM: Final = 'a hold is {"topic": "t", "reader": "name", "offsets": {"0": 7}, "lease_seconds": 3600}'


class HoldRequest(NamedTuple):
    """A reader's hold of a topic, to be renewed."""

    topic: str
    reader: str
    offsets: dict[int, int | None] | None
    """By partition; None for all partitions, and for an offset: where the reader holds it, or may begin."""
    lease_seconds: float


def hold(body: Any) -> HoldRequest:
    """The request for a hold; HTTPException for anything else."""
    _only(body, "topic", "reader", "offsets", "lease_seconds")
    topic, reader = _topic_and_reader(body)
    lease = _seconds(body, "lease_seconds", LEASE_SECONDS, MAX_HOLD_MS / 1000)
    given = body.get("offsets")
    if given is None:
        return HoldRequest(topic, reader, None, lease)
    if not isinstance(given, dict) or not given or not all(_is_offset(*one) for one in given.items()):
        raise HTTPException(400, f"{_HOLD_FORM}: offsets has an offset, or null, by partition")
    return HoldRequest(topic, reader, {int(number): offset for number, offset in given.items()}, lease)


def release(body: Any) -> tuple[str, str]:
    """Topic and reader whose holds end; HTTPException for anything else."""
    _only(body, "topic", "reader")
    return _topic_and_reader(body)


def checkpoint(body: Any) -> tuple[list[str] | None, float, float]:
    """Topics (None: all), seconds of the lease, seconds to wait; HTTPException for anything else."""
    _only(body, "topics", "lease_seconds", "timeout_seconds")
    topics = body.get("topics")
    if topics is not None and not _is_names(topics):
        raise HTTPException(400, f"topics is a list of 1 to {MAX_TOPICS} names of topics, or null for all")
    lease = _seconds(body, "lease_seconds", LEASE_SECONDS, MAX_LEASE_SECONDS)
    seconds = _seconds(body, "timeout_seconds", CHECKPOINT_SECONDS, MAX_CHECKPOINT_SECONDS)
    return None if topics is None else list(dict.fromkeys(topics)), lease, seconds


def renewal(body: Any) -> tuple[list[tuple[int, int]], float, float]:
    """Groups and log indexes, seconds of the lease, seconds to wait; HTTPException for anything else."""
    _only(body, "checkpoints", "lease_seconds", "timeout_seconds")
    named = body.get("checkpoints")
    if not isinstance(named, list) or not 0 < len(named) <= MAX_LEASES or not all(map(_is_lease, named)):
        raise HTTPException(
            400, f'checkpoints is a list of 1 to {MAX_LEASES} like {{"group": 1, "index": 7}}: of partitions'
        )
    lease = _seconds(body, "lease_seconds", LEASE_SECONDS, MAX_LEASE_SECONDS)
    seconds = _seconds(body, "timeout_seconds", RENEWAL_SECONDS, MAX_CHECKPOINT_SECONDS)
    return list(dict.fromkeys((each["group"], each["index"]) for each in named)), lease, seconds


def _only(body: Any, *known: str) -> None:
    if not isinstance(body, dict):
        raise HTTPException(400, f"the body is an object with {', '.join(known)}")
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise HTTPException(400, f"there is no {unknown[0][:100]!r}: {', '.join(known)}")


def _topic_and_reader(body: Mapping[str, Any]) -> tuple[str, str]:
    topic, reader = body.get("topic"), body.get("reader")
    if not isinstance(topic, str) or not isinstance(reader, str):
        raise HTTPException(400, f"topic and reader are missing: {_HOLD_FORM}")
    if not 0 < len(reader.encode(errors="replace")) <= MAX_READER_BYTES:
        raise HTTPException(400, f"a reader's name has 1 to {MAX_READER_BYTES} bytes")
    return topic, reader


def _is_offset(number: str, offset: Any) -> bool:
    is_number = number.isascii() and number.isdigit() and len(number) < 9
    return is_number and (offset is None or (type(offset) is int and 0 <= offset <= _MAX_NUMBER))


def _is_names(topics: Any) -> bool:
    return (
        isinstance(topics, list) and 0 < len(topics) <= MAX_TOPICS and all(isinstance(n, str) for n in topics)
    )


def _is_lease(named: Any) -> bool:
    return (
        isinstance(named, dict)
        and set(named) == {"group", "index"}
        and all(type(number) is int and 0 < number <= _MAX_NUMBER for number in named.values())
    )


def _seconds(body: Mapping[str, Any], name: str, default: float, high: float) -> float:
    value = body.get(name, default)
    # NaN is in no range, and an integer of any length can be compared.
    if type(value) not in (int, float) or not 1 <= value <= high:
        raise HTTPException(400, f"{name} is a number of seconds from 1 to {high:g}")
    return float(value)
