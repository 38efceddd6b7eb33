"""The record of actions: logins, refusals and changes of the cluster, each one line of the node's log.

Strangers decide how often these happen. So the same action is told once a minute, with the number of times
that it was not told, and each kind of action has so many lines a second at most: a flood of refusals hides no
change. With `log.format = "json"` a line has the same as fields.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.handler import Request
from strandline.node.runtime.line_bound import LineBound

log = logging.getLogger("strandline.actions")

REPEAT_SECONDS: Final = 60.0
MAX_REMEMBERED: Final = 2_000
"""Actions whose repetition is noticed; beyond it the oldest is forgotten, and told again."""
MAX_NAMES: Final = 20
MAX_NAME: Final = 200
"""Resources that a line names, and characters of each."""
HTTP: Final = "HTTP"
"""In place of a listener's name, which has no capital letters."""


class Actor(NamedTuple):
    """The client of an action, and the way by which it came."""

    principal: str
    host: str
    listener: str


class Kind(StrEnum):
    """Each has its own bound."""

    LOGIN = "login"
    REFUSAL = "refusal"
    CHANGE = "change"
    ATTEMPT = "attempt"
    """A request for a change that was refused as a whole: clients that may change nothing send these too."""


_REFUSED: Final = frozenset(
    (
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.invalid_request,
    )
)
"""Codes that a client without any permission gets, and that leave everything as it was."""


class ActionLog:
    """The record of one node; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bounds = {kind: LineBound(clock()) for kind in Kind}
        self._told: dict[tuple[str, ...], tuple[float, int]] = {}
        """By action: when it was told, and how often it was not told since."""

    def login(self, request: Request, mechanism: str) -> None:
        """A client has proved its name."""
        self.logged_in(_actor(request), mechanism)

    def logged_in(self, by: Actor, how: str) -> None:
        """As `login`."""
        self._tell(Kind.LOGIN, by, f"logged in by {how}", {}, repeats=True)

    def refusal(self, request: Request, operation: str, kind: str, name: str) -> None:
        """A client asked for what it may not do."""
        self.refused(_actor(request), operation, f"{kind}:{_short(name)}", _name_of(request))

    def refused(self, by: Actor, operation: str, named: str, asked: str) -> None:
        """As `refusal`."""
        text = f"may not {operation} {named}, asked by {asked}"
        more = {"operation": operation, "resource": named, "request": asked}
        self._tell(Kind.REFUSAL, by, text, more, repeats=True)

    def change(self, request: Request, answer: Any) -> None:
        """A request that changes the cluster was answered; not told where it named nothing, or only tried."""
        names = CHANGES[ApiKey(request.header.api_key)](request.payload)
        shown = [_short(name) for name in islice(names, MAX_NAMES + 1)]
        if len(shown) > MAX_NAMES:
            shown[-1] = "…"
        codes = Counter(_codes(answer))
        if getattr(request.payload, "validate_only", False) or not codes:
            return  # Nothing was to be changed.
        kind = Kind.ATTEMPT if codes.keys() <= _REFUSED else Kind.CHANGE
        outcome = {code.name: count for code, count in codes.items() if code is not ErrorCode.none}
        how = ", ".join(f"{count} {code}" for code, count in outcome.items()) or "done"
        text = f"{_name_of(request)} of {', '.join(shown) or 'nothing'}: {how}"
        more = {"request": _name_of(request), "resources": shown, "errors": outcome}
        self._tell(kind, _actor(request), text, more, repeats=kind is Kind.ATTEMPT)

    def asked(self, by: Actor, request: str, names: Sequence[str], status: int) -> None:
        """A request to the HTTP API that is not one to read was answered with this status.

        Of a status from 500 on the end is not known.
        """
        shown = [_short(name) for name in names[:MAX_NAMES]]
        kind = Kind.ATTEMPT if 400 <= status < 500 else Kind.CHANGE
        how = "done" if status < 400 else f"status {status}"
        text = f"{_short(request)} of {', '.join(shown) or 'nothing'}: {how}"
        errors = {} if status < 400 else {str(status): 1}
        more = {"request": _short(request), "resources": shown, "errors": errors}
        self._tell(kind, by, text, more, repeats=kind is Kind.ATTEMPT)

    def _tell(self, kind: Kind, by: Actor, text: str, more: Mapping[str, Any], *, repeats: bool) -> None:
        now, principal, host = self._clock(), _short(by.principal), by.host
        key = (kind, principal, host, text)
        told, times = self._told.pop(key, (-REPEAT_SECONDS, 0)) if repeats else (-REPEAT_SECONDS, 0)
        if now - told < REPEAT_SECONDS:
            self._told[key] = told, times + 1
            return
        left_out = self._bounds[kind].take(now)
        if left_out is None:
            return
        if repeats:
            self._told[key] = now, 0
            if len(self._told) > MAX_REMEMBERED:
                del self._told[next(iter(self._told))]
        again = f" ({times} times more before)" if times else ""
        lost = f" ({left_out} lines of this kind were left out)" if left_out else ""
        extra = {
            "action": kind.value,
            "principal": principal,
            "host": host,
            "listener": by.listener,
            **more,
        }
        log.info("%s from %s: %s%s%s", principal, host, text, again, lost, extra=extra)


def _actor(request: Request) -> Actor:
    return Actor(request.session.principal, request.client_host, request.session.listener)


def _name_of(request: Request) -> str:
    return ApiKey(request.header.api_key).name


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"


def _codes(answer: Any) -> Iterator[ErrorCode]:
    if isinstance(answer, ErrorCode):
        yield answer
    elif isinstance(answer, tuple):
        for each in answer:
            yield from _codes(each)
    elif is_dataclass(answer):
        for field in fields(answer):
            yield from _codes(getattr(answer, field.name))


def _topics(payload: Any) -> Iterator[str]:
    return (topic.name for topic in payload.topics)


def _deleted_topics(payload: Any) -> Iterable[str]:
    if hasattr(payload, "topic_names"):
        return map(str, payload.topic_names)
    return (topic.name or str(topic.topic_id) for topic in payload.topics)


def _configured(payload: Any) -> Iterator[str]:
    for resource in payload.resources:
        settings = ",".join(config.name for config in resource.configs)
        yield f"{resource.resource_type}:{resource.resource_name} {settings}"


def _acls(payload: Any) -> Iterator[str]:
    for one in payload.creations:
        kind, pattern = one.resource_type, one.resource_pattern_type
        where = f"{one.principal}@{one.host} {one.operation}/{one.permission_type}"
        yield f"{kind}:{one.resource_name}/{pattern} {where}"


def _acl_filters(payload: Any) -> Iterator[str]:
    for one in payload.filters:
        name, principal = one.resource_name_filter or "any", one.principal_filter or "any"
        yield f"{one.resource_type_filter}:{name} {principal} {one.operation}/{one.permission_type}"


def _users(payload: Any) -> Iterable[str]:
    return dict.fromkeys(one.name for one in (*payload.deletions, *payload.upsertions))


def _quotas(payload: Any) -> Iterator[str]:
    for entry in payload.entries:
        named = ",".join(f"{part.entity_type}:{part.entity_name or 'default'}" for part in entry.entity)
        yield f"{named} {','.join(op.key for op in entry.ops)}"


CHANGES: Final[Mapping[ApiKey, Callable[[Any], Iterable[str]]]] = MappingProxyType(
    {
        ApiKey.CREATE_TOPICS: _topics,
        ApiKey.DELETE_TOPICS: _deleted_topics,
        ApiKey.DELETE_RECORDS: _topics,
        ApiKey.CREATE_PARTITIONS: _topics,
        ApiKey.ALTER_CONFIGS: _configured,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _configured,
        ApiKey.CREATE_ACLS: _acls,
        ApiKey.DELETE_ACLS: _acl_filters,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
        ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: _topics,
        ApiKey.UPDATE_FEATURES: lambda payload: (one.feature for one in payload.feature_updates),
        ApiKey.UNREGISTER_BROKER: lambda payload: (str(payload.broker_id),),
        ApiKey.ELECT_LEADERS: lambda payload: (one.topic for one in payload.topic_partitions or ()),
        ApiKey.DELETE_GROUPS: lambda payload: payload.groups_names,
        ApiKey.OFFSET_DELETE: lambda payload: (payload.group_id,),
        ApiKey.WRITE_TXN_MARKERS: lambda payload: (str(one.producer_id) for one in payload.markers),
    }
)
"""The requests that change the cluster, and the names of what they change."""
