"""The questions that handlers ask before they answer or change anything: may the client do this?

docs/security.md has the table of requests, operations and resources; a test holds it against the handlers.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.wire.handler import Request
from strandline.statemachine.controller.acl import CLUSTER_NAME, Operation, ResourceType

NOT_ASKED: Final = -(2**31)
"""The authorized operations in an answer to a request that did not ask for them."""
_SUPPORTED: Final = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE,
        Operation.ALTER, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE, Operation.ALTER, Operation.DESCRIBE,
    ),
}  # fmt: skip
"""Kafka's AclEntry.supportedOperations: those that there are for a type of resource."""
TOPIC_REFUSED: Final = ErrorCode.topic_authorization_failed
GROUP_REFUSED: Final = ErrorCode.group_authorization_failed
ID_REFUSED: Final = ErrorCode.transactional_id_authorization_failed
CLUSTER_REFUSED: Final = ErrorCode.cluster_authorization_failed
NO_TOPIC: Final = Failure(TOPIC_REFUSED, "Authorization failed.")
NO_GROUP: Final = Failure(GROUP_REFUSED, "Group authorization failed.")
NO_ID: Final = Failure(ID_REFUSED, "Transactional Id authorization failed.")
NO_CLUSTER: Final = Failure(CLUSTER_REFUSED, "Cluster authorization failed.")


def may(
    context: BrokerContext,
    request: Request,
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    quiet: bool = False,
) -> bool:
    """Whether the request's client may do this to the resource; everything, where nothing is authorized.

    A refusal is recorded, unless it is `quiet`: the client did not ask for this resource by its name, or
    another permission will do (Kafka's logIfDenied).
    """
    authorizer = context.authorizer
    if authorizer is None or authorizer.allows(
        request.session.principal, request.client_host, operation, kind, name
    ):
        return True
    if not quiet:
        context.actions.refusal(request, operation.name, kind.name, name)
    return False


def may_with_topic(
    context: BrokerContext, request: Request, operation: Operation, name: str, *, quiet: bool = False
) -> bool:
    """As `may`, for a topic."""
    return may(context, request, operation, ResourceType.TOPIC, name, quiet=quiet)


def may_with_group(
    context: BrokerContext, request: Request, operation: Operation, group_id: str, *, quiet: bool = False
) -> bool:
    """As `may`, for a consumer group."""
    return may(context, request, operation, ResourceType.GROUP, group_id, quiet=quiet)


def may_with_cluster(
    context: BrokerContext, request: Request, operation: Operation, *, quiet: bool = False
) -> bool:
    """As `may`, for the cluster."""
    return may(context, request, operation, ResourceType.CLUSTER, CLUSTER_NAME, quiet=quiet)


def may_with_id(
    context: BrokerContext,
    request: Request,
    operation: Operation,
    transactional_id: str,
    *,
    quiet: bool = False,
) -> bool:
    """As `may`, for a transactional id."""
    kind = ResourceType.TRANSACTIONAL_ID
    return may(context, request, operation, kind, transactional_id, quiet=quiet)


def may_with_some_topic(context: BrokerContext, request: Request, operation: Operation) -> bool:
    """Whether there may be a topic with which the client may do this."""
    authorizer = context.authorizer
    if authorizer is None or authorizer.allows_some(
        request.session.principal, request.client_host, operation, ResourceType.TOPIC
    ):
        return True
    context.actions.refusal(request, operation.name, ResourceType.TOPIC.name, "of any name")
    return False


def authorized_operations(context: BrokerContext, request: Request, kind: ResourceType, name: str) -> int:
    """The operations that the client may do to a resource: the bits of Kafka's codes (KIP-430)."""
    return sum(1 << one for one in _SUPPORTED[kind] if may(context, request, one, kind, name, quiet=True))


def operations_of_group(context: BrokerContext, request: Request, group_id: str) -> int:
    """As `authorized_operations`, of a group, in the answer to a request that may have asked for them."""
    if not getattr(request.payload, "include_authorized_operations", False):
        return NOT_ASKED
    return authorized_operations(context, request, ResourceType.GROUP, group_id)


def cluster_operations(context: BrokerContext, request: Request) -> int:
    """As `authorized_operations`, of the cluster: none for a client that may not describe it."""
    if not may_with_cluster(context, request, Operation.DESCRIBE, quiet=True):
        return 0
    return authorized_operations(context, request, ResourceType.CLUSTER, CLUSTER_NAME)
