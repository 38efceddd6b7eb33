"""DescribeClientQuotas and AlterClientQuotas (KIP-546); client_throttles.py is where they are in force."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.cluster_changes import submit
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, UNTIMED_SECONDS
from strandline.node.kafka.handlers.failure import Failure, refused
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.client_quota import (
    DEFAULT,
    QuotaEntity,
    QuotaFilter,
    entity_of,
    fault,
)
from strandline.statemachine.controller.controller_commands import AlterClientQuotas
from strandline.statemachine.controller.feature_levels import refusal as refusal_at
from strandline.statemachine.kafka_errors import Refused

MAX_ENTRIES: Final = 1_000
"""Of one request: each is an entry of the controller's log."""
CATCH_UP_SECONDS: Final = 1.0
"""Time limit for catching up before a filter is looked at: above a healthy follower's lag."""
_DONE: Final = Failure(ErrorCode.none, None)
_TWICE: Final = Failure(ErrorCode.invalid_request, "Ignoring duplicate entity: name it once in a request")


async def alter_client_quotas(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Change entities' quotas, each entity's all or none; answers when that is committed."""
    payload, deadline = request.payload, context.loop.time() + UNTIMED_SECONDS
    refusal = None
    if not may_with_cluster(context, request, Operation.ALTER_CONFIGS):
        refusal = NO_CLUSTER
    elif len(payload.entries) > MAX_ENTRIES:
        reason = (
            f"{len(payload.entries)} entities are more than {MAX_ENTRIES}: name them in several requests."
        )
        refusal = Failure(ErrorCode.invalid_request, reason)
    seen: set[QuotaEntity] = set()

    async def change(entry: Any) -> Failure:
        entity = entity_of([(part.entity_type, part.entity_name) for part in entry.entity])
        if isinstance(entity, Refused):
            return refused(entity)
        if entity in seen:
            return _TWICE
        seen.add(entity)
        changes = [(op.key, None if op.remove else float(op.value)) for op in entry.ops]
        if faulty := fault(entity, changes):
            return refused(faulty)
        command = AlterClientQuotas(entity.user, entity.client_id, changes, entity.ip)
        if payload.validate_only:
            machine = context.controller.machine
            planned = refusal_at(machine.feature_level, command) or machine.client_quotas.plan(command)
            return refused(planned) if isinstance(planned, Refused) else _DONE
        outcome = await submit(context, command, deadline)
        return outcome if isinstance(outcome, Failure) else _DONE

    results = [refusal] * len(payload.entries) if refusal else await gather_bounded(payload.entries, change)
    return a.AlterClientQuotasResponse(
        throttle_time=NO_THROTTLE,
        entries=tuple(
            a.EntryData(
                error_code=code,
                error_message=message,
                entity=tuple(
                    a.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ),
            )
            for entry, (code, message) in zip(payload.entries, results, strict=True)
        ),
    )


async def describe_client_quotas(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The quotas that a filter finds, including every change made before, through whichever node."""
    wanted, refusal = QuotaFilter(request.payload.strict), None
    if not may_with_cluster(context, request, Operation.DESCRIBE_CONFIGS):
        refusal = NO_CLUSTER
    else:
        for part in request.payload.components:
            if faulty := wanted.add(part.entity_type, part.match_type, part.match):
                refusal = refused(faulty)
                break
    entries = None
    if refusal is None:
        await context.controller.catch_up(CATCH_UP_SECONDS)
        entries = tuple(
            a.EntryData(
                entity=tuple(
                    a.EntityData(entity_type=kind, entity_name=None if name == DEFAULT else name)
                    for kind, name in entity.parts
                ),
                values=tuple(a.ValueData(key=key, value=value) for key, value in values.items()),
            )
            for entity, values in context.controller.machine.client_quotas
            if wanted.matches(entity)
        )
    code, message = refusal or _DONE
    return a.DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=code, error_message=message, entries=entries
    )
