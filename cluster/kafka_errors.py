"""Errors between the command line and brokers, each one line with the cause and the cure.

librdkafka retries by itself, so it reports a failing store or a partition without a leader only as a timeout.
The cause is read from the nodes' /health, where their addresses are known.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from strandline.cluster.admin_client import AdminClient, Answer, Unreachable
from strandline.cluster.failure import CommandFailed, one_line
from strandline.cluster.target import Target
from strandline.statemachine.internal_topics import INTERNAL_TOPICS

Value = TypeVar("Value")

_REACH_SECONDS: Final = 2.0
_HEALTH_SECONDS: Final = 1.0
_NO_BROKER: Final = frozenset((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE))
_TIMED_OUT: Final = frozenset(
    (
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
    )
)
PASSING: Final = frozenset(
    (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    )
)
"""Errors of a leader or a coordinator that is being elected. Kafka's own clients retry after them
(RetriableException); librdkafka's admin client returns them to its caller."""
PASSING_SECONDS: Final = 10.0
"""Longest time to retry after such errors; an election takes one or two seconds."""
_FIRST_PAUSE_SECONDS: Final = 0.05
_LAST_PAUSE_SECONDS: Final = 0.5

_STORED: Final = frozenset((KafkaError.KAFKA_STORAGE_ERROR, KafkaError.INVALID_MSG))
"""Errors of the object store: it is unavailable, or a stored object is damaged or missing."""


_LOGIN: Final = frozenset((KafkaError._AUTHENTICATION, KafkaError._SSL))
_REFUSED_SECONDS: Final = 30.0
"""A refused login explains a request for this long: librdkafka connects again many times in it."""
_CLUSTERS: Final = 64
"""Clusters whose newest refusal is remembered."""
_refused_logins: Final[dict[str, tuple[float, str]]] = {}
"""By bootstrap addresses: when, and the newest cause. librdkafka tells it apart from the request, which then
ends by its timeout; and one process may speak to several clusters."""


def note(bootstrap: str, error: KafkaError) -> None:
    """Remember that a broker there refused a login or a handshake; for `error_cb` of librdkafka."""
    if error.code() in _LOGIN:
        _refused_logins[bootstrap] = time.monotonic(), one_line(error.str())
        while len(_refused_logins) > _CLUSTERS:
            _refused_logins.pop(next(iter(_refused_logins)), None)


def refused_since(bootstrap: str, moment: float) -> bool:
    """Whether a login or a handshake was refused there after `moment` (of time.monotonic)."""
    refused = _refused_logins.get(bootstrap)
    return refused is not None and refused[0] > moment


def reach(where: Target) -> None:
    """CommandFailed at once when nothing takes connections there, where librdkafka would keep trying."""
    if not _answers(where.bootstrap):
        raise unreachable(where)


def unreachable(where: Target) -> CommandFailed:
    """No broker answered."""
    return CommandFailed(
        f"no Kafka broker answers at {where.bootstrap}",
        "start a cluster with `strandline cluster up`, or name one with --bootstrap or --cluster",
    )


def failed(where: Target, what: str, error: KafkaError) -> CommandFailed:
    """A broker, or the client, refused, or nothing came of it in time."""
    code = error.code()
    when, refused = _refused_logins.get(where.bootstrap, (-math.inf, ""))
    if code in _NO_BROKER | _TIMED_OUT | _LOGIN and time.monotonic() - when <= _REFUSED_SECONDS:
        return CommandFailed(
            f"{what}: {where.bootstrap} does not accept the login of --config, or is not trusted: {refused}",
            "see security.protocol, the user and the files that the file names; the node's log says more",
        )
    if code in _NO_BROKER | _TIMED_OUT and not _answers(where.bootstrap):
        return unreachable(where)
    if code in _NO_BROKER | _TIMED_OUT | PASSING | _STORED:
        told = troubles(where)
        name = "" if code in _NO_BROKER | _TIMED_OUT else f" ({error.name()})"
        if told is not None:
            return CommandFailed(f"{what}{name}: {told}", "see `strandline cluster status`")
    if code in _STORED:
        fails = "fails" if code == KafkaError.KAFKA_STORAGE_ERROR else "does not give what was stored"
        return CommandFailed(
            f"{what}: the cluster's object storage {fails}: {one_line(error.str())} ({error.name()})",
            "see the nodes' /health and logs; the cluster goes on by itself when its storage does",
        )
    if code in _NO_BROKER | _TIMED_OUT:
        return CommandFailed(
            f"{what}: a broker takes connections at {where.bootstrap}, and this was not done in time",
            "see with `strandline cluster status` whether the object storage fails or a leader is missing",
        )
    return CommandFailed(f"{what}: {one_line(error.str())} ({error.name()})", _cure(error))


def troubles(where: Target) -> str | None:
    """The problems that the nodes report, storage first; None if they report none, or are not known."""
    if not where.admin_known:
        return None
    with ThreadPoolExecutor(len(where.admin)) as threads:
        found = list(threads.map(_problems, where.admin))
    away = [address for address, problems in zip(where.admin, found, strict=True) if problems is None]
    told: dict[str, str] = {}
    for problems in found:
        for each in problems or ():
            reason = str(each.get("reason", ""))
            if reason.startswith("storage") and reason in told.values():
                continue  # there is one store: what one node tells of it is enough
            told.setdefault(str(each.get("detail") or each.get("meaning") or each), reason)
    texts = sorted(told, key=lambda text: not told[text].startswith("storage"))
    if away:
        texts.append(f"no node answers at {', '.join(away)}")
    return one_line("; ".join(texts[:3])) if texts else None


def patiently(ask: Callable[[], Value]) -> Value:
    """The result of `ask`, which is called again for up to PASSING_SECONDS while it raises one of PASSING.

    Raises the last KafkaException. Only for what may be asked twice.
    """
    until, pause = time.monotonic() + PASSING_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            left = until - time.monotonic()
            if error_of(error).code() not in PASSING or left <= 0:
                raise
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_PAUSE_SECONDS)


def error_of(exception: KafkaException) -> KafkaError:
    """The error a KafkaException carries."""
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


def is_internal(topic: str, error: KafkaError) -> bool:
    """Whether a broker refused because the topic is one of its own, or is to be once it is needed."""
    own = (KafkaError.TOPIC_EXCEPTION, KafkaError.UNKNOWN_TOPIC_OR_PART)
    return topic in INTERNAL_TOPICS and error.code() in own


def _answers(bootstrap: str) -> bool:
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
        except (OSError, UnicodeError):  # the latter: a name that cannot be one in DNS
            continue
        return True
    return False


def _problems(address: str) -> list[dict[str, Any]] | None:
    """Of one node; None when it does not answer."""
    try:
        answer: Answer = AdminClient(address).request("GET", "/health", timeout=_HEALTH_SECONDS)
    except Unreachable:
        return None
    found = answer.body.get("problems") if isinstance(answer.body, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _cure(error: KafkaError) -> str:
    match error.code():
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC:
            return "see the topics there are with `strandline topic list`, or create it"
        case KafkaError.TOPIC_ALREADY_EXISTS:
            return "choose another name, or add --if-not-exists"
        case KafkaError.INVALID_REPLICATION_FACTOR:
            return "ask for no more replicas than there are live nodes (`strandline cluster status`)"
        case (
            KafkaError.INVALID_CONFIG
            | KafkaError.INVALID_PARTITIONS
            | KafkaError.TOPIC_EXCEPTION
            | KafkaError.OFFSET_OUT_OF_RANGE
            | KafkaError._INVALID_ARG
        ):
            return "correct the value"
        case KafkaError._UNKNOWN_PARTITION:
            return "see the topic's partitions with `strandline topic describe`"
        case KafkaError.GROUP_ID_NOT_FOUND:
            return "see the groups there are with `strandline group list`"
        case KafkaError.NON_EMPTY_GROUP | KafkaError.UNKNOWN_MEMBER_ID:
            return "stop the group's members first: see them with `strandline group describe`"
        case KafkaError.MSG_SIZE_TOO_LARGE:
            return "send less at a time, or raise the topic's max.message.bytes"
        case KafkaError._AUTO_OFFSET_RESET:
            return "begin where the partition has records: --from beginning, end, or an offset between"
        case KafkaError.INVALID_RECORD:
            return "correct the record: a compacted topic, for one, takes none without a key"
        case _:
            return "try again; if it stays, see the nodes with `strandline cluster status` and their logs"
