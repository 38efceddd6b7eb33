"""FindCoordinator: the node that coordinates a consumer group or a transactional id.

The first request creates the coordinators' topic. The answer is the node that leads the key's partition.
Without a leader the request waits for the time of an election, because a client that is sent away comes back
later than that.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_GROUP, NO_ID, may
from strandline.node.kafka.handlers.cluster_changes import LEADER_SECONDS, poll_until
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation, ResourceType

GROUP: Final = 0
TRANSACTION: Final = 1
_KINDS: Final = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}
MAX_KEYS: Final = 10_000
"""Keys of one request: enough for an administrator's tool that describes all groups at once."""
MAX_CHARACTERS: Final = 1 << 21
"""In all of these keys: each is hashed, and meanwhile nothing else is done."""


async def find_coordinator(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The node of every key of the request, or of its only one before version 4."""
    payload = request.payload
    key_type = getattr(payload, "key_type", GROUP)
    deadline = context.loop.time() + LEADER_SECONDS
    batched = hasattr(payload, "coordinator_keys")
    keys = payload.coordinator_keys if batched else (payload.key,)

    async def find(key: str) -> _Found | Failure:
        kind = _KINDS.get(key_type)
        if kind is not None and not may(context, request, Operation.DESCRIBE, kind, key):
            return NO_GROUP if kind is ResourceType.GROUP else NO_ID
        return await _find(context, key_type, key, deadline, request.session.listener)

    characters = sum(map(len, keys))
    if len(keys) > MAX_KEYS or characters > MAX_CHARACTERS:
        too_many = Failure(
            ErrorCode.invalid_request,
            f"{len(keys)} keys of {characters} characters are more than {MAX_KEYS} of {MAX_CHARACTERS}.",
        )
        found: list[_Found | Failure] = [too_many] * len(keys)
    else:
        found = await gather_bounded(keys, find)
    if batched:
        coordinators = tuple(
            a.Coordinator(key=key, **_fields(one)) for key, one in zip(keys, found, strict=True)
        )
        return a.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=coordinators)
    return a.FindCoordinatorResponse(throttle_time=NO_THROTTLE, **_fields(found[0]))


class _Found(NamedTuple):
    """A coordinator that clients can be sent to."""

    node: int
    host: str
    port: int


async def _find(
    context: BrokerContext, key_type: int, key: str, deadline: float, listener: str
) -> _Found | Failure:
    if key_type == GROUP:
        place = await context.coordinators.group_place(key)
    elif key_type == TRANSACTION:
        place = await context.coordinators.transaction_place(key)
    else:
        return Failure(
            ErrorCode.invalid_request,
            f"No coordinator has keys of type {key_type}: there are 0 (group) and 1 (transaction).",
        )
    if isinstance(place, Refusal):
        return Failure(code_of(place), place.message)
    group = place.raft_group
    if not await poll_until(context, deadline, lambda: _leader(context, group, listener) is not None):
        reason = "The coordinator has no leader at the moment: too many of its replicas are down."
        return Failure(ErrorCode.coordinator_not_available, reason)
    leader = _leader(context, group, listener)
    assert leader is not None, "it was there in this very turn of the loop"
    return leader


def _leader(context: BrokerContext, group: int, listener: str) -> _Found | None:
    """The node that leads, if clients of this listener can be sent to it."""
    leader = context.leaders.leader_of(group)
    if leader is None:
        return None
    node = context.controller.machine.nodes.get(leader.node)
    address = None if node is None or node.fenced else node.address(listener)
    return None if address is None else _Found(leader.node, address.host, address.port)


def _fields(found: _Found | Failure) -> dict[str, Any]:
    if isinstance(found, Failure):
        return {
            "error_code": found.code,
            "error_message": found.message,
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": found.node,
        "host": found.host,
        "port": found.port,
    }
