"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

The client has salted the password already, so nothing here takes long, and no password is ever seen.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.cluster_changes import submit
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, UNTIMED_SECONDS
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.handlers.scram import credential_of
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.kafka.wire.session import VIEWS
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_commands import AlterScramCredentials
from strandline.statemachine.controller.scram_credentials import ScramMechanism

MAX_USERS: Final = 1_000
"""Of one request that alters: each is an entry of the controller's log."""
_KNOWN: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}


class _Answer(NamedTuple):
    user: str
    failure: Failure | None


async def alter_user_scram_credentials(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Change users' credentials, each user's all or none; answers when that is committed."""
    payload, deadline = request.payload, context.loop.time() + UNTIMED_SECONDS
    users = dict.fromkeys(one.name for one in (*payload.deletions, *payload.upsertions))
    allowed = may_with_cluster(context, request, Operation.ALTER)

    async def change(user: str) -> _Answer:
        if not allowed:
            return _Answer(user, NO_CLUSTER)
        if len(users) > MAX_USERS:
            reason = f"{len(users)} users are more than {MAX_USERS}: alter them in several requests."
            return _Answer(user, Failure(ErrorCode.invalid_request, reason))
        if user == VIEWS:
            reason = f"{VIEWS} is the name of the cluster's own processes: take another."
            return _Answer(user, Failure(ErrorCode.unacceptable_credential, reason))
        outcome = await submit(context, _command(payload, user), deadline)
        return _Answer(user, outcome if isinstance(outcome, Failure) else None)

    answers = await gather_bounded(users, change)
    return a.AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            a.AlterUserScramCredentialsResult(user=user, **_fields(failure)) for user, failure in answers
        ),
    )


def _command(payload: Any, user: str) -> AlterScramCredentials:
    upsertions = []
    for one in payload.upsertions:
        if one.name != user:
            continue
        # A mechanism that is not known is refused by the controller, which then looks at nothing else.
        mechanism = _KNOWN.get(one.mechanism, ScramMechanism.SHA_256)
        credential = credential_of(mechanism, one.salted_password, one.salt, one.iterations)
        upsertions.append((int(one.mechanism), *credential))
    deletions = [int(one.mechanism) for one in payload.deletions if one.name == user]
    return AlterScramCredentials(user, deletions, upsertions)


async def describe_user_scram_credentials(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The mechanisms that users have credentials for, and the iterations."""
    if not may_with_cluster(context, request, Operation.DESCRIBE):
        refused = _fields(NO_CLUSTER)
        each = [
            a.DescribeUserScramCredentialsResult(user=one.name, credential_infos=(), **refused)
            for one in request.payload.users or ()
        ]
        return a.DescribeUserScramCredentialsResponse(
            throttle_time=NO_THROTTLE, results=tuple(each), **refused
        )
    known: dict[str, list[Any]] = {}
    for (user, mechanism), credential in context.controller.machine.credentials.items():
        info = a.CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        known.setdefault(user, []).append(info)
    asked = Counter(one.name for one in request.payload.users or ()) or Counter(known.keys())
    results = []
    for user, times in asked.items():
        failure = None
        if times > 1:
            failure = Failure(ErrorCode.duplicate_resource, "Cannot describe a user twice in a request")
        elif user not in known:
            reason = f"Attempt to describe a user credential that does not exist: {user}"
            failure = Failure(ErrorCode.resource_not_found, reason)
        results.append(
            a.DescribeUserScramCredentialsResult(
                user=user,
                credential_infos=() if failure else tuple(known[user]),
                **_fields(failure),
            )
        )
    return a.DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, results=tuple(results)
    )


def _fields(failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": failure.code, "error_message": failure.message}
