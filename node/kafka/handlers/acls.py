"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290); SECURITY_DISABLED without an authorizer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.cluster_changes import NO_CONTROLLER, submit
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, UNTIMED_SECONDS
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Acl, AclFilter, Operation, fault, filter_fault
from strandline.statemachine.controller.controller_commands import MAX_ACLS_AT_ONCE, AlterAcls

CATCH_UP_SECONDS: Final = 1.0
"""Time limit for catching up before a filter is looked at: above a healthy follower's lag."""
_DISABLED: Final = Failure(
    ErrorCode.security_disabled,
    "No Authorizer is configured: set authorization.enabled = true in the nodes' configuration.",
)
_DONE: Final = Failure(ErrorCode.none, None)


def _refused(
    context: BrokerContext, request: Request, operation: Operation, count: int = 0
) -> Failure | None:
    if not may_with_cluster(context, request, operation):
        return NO_CLUSTER
    if context.authorizer is None:
        return _DISABLED
    if count > MAX_ACLS_AT_ONCE:
        reason = f"{count} at once are more than {MAX_ACLS_AT_ONCE}: name them in several requests."
        return Failure(ErrorCode.invalid_request, reason)
    return None


async def describe_acls(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The entries that a filter finds, including every change made before, through whichever node.

    A node that cannot reach the controller's leader cannot know them, and answers REQUEST_TIMED_OUT.
    """
    refused, found = _refused(context, request, Operation.DESCRIBE), []
    if refused is None:
        wanted = _filter(request.payload)
        if reason := filter_fault(wanted):
            refused = Failure(ErrorCode.invalid_request, reason)
        elif not await context.controller.catch_up(CATCH_UP_SECONDS):
            refused = NO_CONTROLLER
        else:
            found = [acl for acl in context.controller.machine.acls if wanted.matches(acl)]
    of_pattern: dict[tuple[int, str, int], list[Acl]] = {}
    for acl in found:
        of_pattern.setdefault((acl.resource_type, acl.name, acl.pattern_type), []).append(acl)
    code, message = refused or _DONE
    return a.DescribeAclsResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        resources=tuple(
            a.DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=tuple(
                    a.AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission,
                    )
                    for acl in acls
                ),
            )
            for (resource_type, name, pattern_type), acls in of_pattern.items()
        ),
    )


async def create_acls(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Add entries; answers when they are committed. Those that are faulty are refused by themselves."""
    creations = request.payload.creations
    refused = _refused(context, request, Operation.ALTER, len(creations))
    if refused:
        results = [refused] * len(creations)
    else:
        wanted = [_acl(one) for one in creations]
        faults = [fault(acl) for acl in wanted]
        valid = [acl for acl, reason in zip(wanted, faults, strict=True) if reason is None]
        outcome = await _altered(context, valid, ())
        results = [Failure(ErrorCode.invalid_request, reason) if reason else outcome for reason in faults]
    return a.CreateAclsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            a.AclCreationResult(error_code=code, error_message=message) for code, message in results
        ),
    )


async def delete_acls(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Remove what the filters find; answers when that is committed, with the entries that are gone."""
    filters = request.payload.filters
    refused = _refused(context, request, Operation.ALTER, len(filters))
    # Without the controller it would find nothing of what was added just now, and call that removed.
    if not refused and not await context.controller.catch_up(CATCH_UP_SECONDS):
        refused = NO_CONTROLLER
    found: list[Failure | list[Acl]] = [refused] * len(filters) if refused else []
    if not refused:
        for one in filters:
            found.append(_matching(context, _filter(one)))
            await asyncio.sleep(0)  # Each looks at all entries, some milliseconds at most.
        gone = dict.fromkeys(acl for acls in found if isinstance(acls, list) for acl in acls)
        outcome = await _altered(context, (), [*gone])
        if outcome is not _DONE:
            found = [outcome if isinstance(acls, list) else acls for acls in found]
    return a.DeleteAclsResponse(
        throttle_time=NO_THROTTLE, filter_results=tuple(_filter_result(a, result) for result in found)
    )


def _matching(context: BrokerContext, wanted: AclFilter) -> Failure | list[Acl]:
    if reason := filter_fault(wanted):
        return Failure(ErrorCode.invalid_request, reason)
    return [acl for acl in context.controller.machine.acls if wanted.matches(acl)]


def _filter_result(a: ResponseTypes, result: Failure | list[Acl]) -> Any:
    code, message = result if isinstance(result, Failure) else _DONE
    return a.DeleteAclsFilterResult(
        error_code=code,
        error_message=message,
        matching_acls=tuple(
            a.DeleteAclsMatchingAcl(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=acl.resource_type,
                resource_name=acl.name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in (() if isinstance(result, Failure) else result)
        ),
    )


async def _altered(context: BrokerContext, additions: Sequence[Acl], deletions: Sequence[Acl]) -> Failure:
    deadline = context.loop.time() + UNTIMED_SECONDS
    commands = [AlterAcls(additions, ())] if additions else []
    for first in range(0, len(deletions), MAX_ACLS_AT_ONCE):
        commands.append(AlterAcls((), deletions[first : first + MAX_ACLS_AT_ONCE]))
    for command in commands:  # Most often one; a removal of all may be twenty.
        outcome = await submit(context, command, deadline)
        if isinstance(outcome, Failure):
            return outcome
    return _DONE


def _acl(asked: Any) -> Acl:
    return Acl(
        asked.resource_type,
        asked.resource_name,
        asked.resource_pattern_type,
        asked.principal,
        asked.host,
        asked.operation,
        asked.permission_type,
    )


def _filter(asked: Any) -> AclFilter:
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )
