"""UpdateFeatures (KIP-584): the cluster's feature level, which only rises, for `kafka-features upgrade`.

All updates of a request are carried out, or none. Kafka's own features are fixed by the release.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.cluster_changes import submit
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, deadline_after
from strandline.node.kafka.handlers.failure import Failure, refused
from strandline.node.kafka.wire.apis import FEATURES, Feature
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import FEATURE_LEVEL, RaiseFeatureLevel
from strandline.statemachine.controller.feature_levels import FEATURE
from strandline.statemachine.kafka_errors import Refused

_DONE = Failure(ErrorCode.none, None)


def features(known: Controller) -> tuple[int, tuple[Feature, ...]]:
    """The epoch of the features and the features themselves, as ApiVersions tells them to clients."""
    own = Feature(FEATURE, 1, FEATURE_LEVEL, known.feature_level)
    # An epoch that only grows, and that a change of the level raises.
    return known.version, (*FEATURES, own)


async def update_features(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answers when the level is in the controller's log, or refused."""
    payload = request.payload
    wanted = {one.feature: one.max_version_level for one in payload.feature_updates}
    validate_only = getattr(payload, "validate_only", False)
    outcomes: dict[str, Failure] = {}
    top = NO_CLUSTER if not may_with_cluster(context, request, Operation.ALTER) else _DONE
    if top is _DONE:
        outcomes = {name: _judged(context.controller.machine, name, level) for name, level in wanted.items()}
        top = next((one for one in outcomes.values() if one.code is not ErrorCode.none), _DONE)
    if top is _DONE and FEATURE in wanted and not validate_only:
        command = RaiseFeatureLevel(wanted[FEATURE])
        result = await submit(context, command, deadline_after(context, payload.timeout))
        if isinstance(result, Failure):
            top = outcomes[FEATURE] = result
    if request.header.api_version < 2 and outcomes:
        # The answer has room for each feature's own.
        top = _DONE
    return a.UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE,
        error_code=top.code,
        error_message=top.message,
        results=tuple(
            a.UpdatableFeatureResult(feature=name, error_code=one.code, error_message=one.message)
            for name, one in outcomes.items()
        )
        if request.header.api_version < 2
        else (),
    )


def _judged(machine: Controller, name: str, level: int) -> Failure:
    """The reason why a feature cannot have the level, as far as this node knows."""
    if name == FEATURE:
        if level > FEATURE_LEVEL:
            reason = f"Feature level {level} is unknown to this release, which knows {FEATURE_LEVEL}."
            return Failure(ErrorCode.invalid_update_version, reason)
        if level < 1:
            reason = f"{FEATURE} cannot be deleted: its levels begin at 1."
            return Failure(ErrorCode.invalid_update_version, reason)
        judged = machine.validate_level(RaiseFeatureLevel(level))
        return refused(judged) if isinstance(judged, Refused) else _DONE
    fixed = {one.name: one.level for one in FEATURES}
    if fixed.get(name) == level:
        return _DONE
    if name in fixed:
        reason = f"{name} is {fixed[name]} in this release and cannot be changed."
    else:
        reason = f"This cluster has no feature {name}: {FEATURE} is the one that can be raised."
    return Failure(ErrorCode.invalid_update_version, reason)
