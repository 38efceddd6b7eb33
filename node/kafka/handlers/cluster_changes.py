"""Changes of the cluster: a request's topic, the controller's command, and the wait for its effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.failure import Failure, refused, timed_out
from strandline.statemachine.controller.controller import Result
from strandline.statemachine.controller.controller_commands import Command
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import Refused

LEADER_SECONDS: Final = 1.0
"""Time that a request which created partitions waits for their first leaders."""
_FIRST_LOOK_SECONDS: Final = 0.005
_LAST_LOOK_SECONDS: Final = 0.1


async def submit(context: BrokerContext, command: Command, deadline: float) -> Result | Failure:
    """Have the controller apply a command; a Refused is a Failure with the same code and text."""
    outcome = await context.controller.submit(command, max(deadline - context.loop.time(), 0.0))
    if isinstance(outcome, Unavailable):
        return timed_out(outcome)
    return refused(outcome) if isinstance(outcome, Refused) else outcome


NO_CONTROLLER: Final = Failure(
    ErrorCode.request_timed_out, "The controller did not answer; nothing was changed."
)


THROTTLED: Final = Failure(ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded.")
"""The answer to a change for which the client's quota of changes leaves no room (KIP-599)."""


async def topic_named(context: BrokerContext, name: str, deadline: float) -> Topic | Failure:
    """The topic a request that changes something is about.

    The local replica may lag behind the node where the client has just created it, or has just put another in
    its place: a name is looked up only once this node has applied all that was committed when it came.
    """
    if not await context.controller.catch_up(max(deadline - context.loop.time(), 0.0)):
        return NO_CONTROLLER
    return context.controller.machine.topic(name) or Failure(
        ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
    )


async def topic_with_id(context: BrokerContext, topic_id: bytes, deadline: float) -> Topic | Failure:
    """As `topic_named`, by id. An id never means another topic, so only an unknown one causes a wait."""
    machine = context.controller.machine
    topic = machine.topic_by_id(topic_id)
    if topic is not None:
        return topic
    if not await context.controller.catch_up(max(deadline - context.loop.time(), 0.0)):
        return NO_CONTROLLER
    return machine.topic_by_id(topic_id) or Failure(
        ErrorCode.unknown_topic_id, "This server does not host this topic ID."
    )


async def poll_until(context: BrokerContext, deadline: float, done: Callable[[], bool]) -> bool:
    """Look until `done`, less and less often; whether it was before the deadline."""
    pause = _FIRST_LOOK_SECONDS
    while not done():
        left = deadline - context.loop.time()
        if left <= 0:
            return False
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_LOOK_SECONDS)
    return True


async def wait_for_leaders(context: BrokerContext, topics: Sequence[Topic], deadline: float) -> None:
    """Wait until every partition has a leader that is ready and that this node knows, LEADER_SECONDS at most.

    Kafka answers when the controller has committed. So does this, but a client's very next request then is
    Metadata, and one that says LEADER_NOT_AVAILABLE costs it a back-off longer than an election.
    """
    pending = [partition.group for topic in topics for partition in reversed(topic.partitions)]

    def done() -> bool:
        while pending and context.leaders.leader_of(pending[-1]) is not None:
            pending.pop()
        return not pending

    await poll_until(context, min(deadline, context.loop.time() + LEADER_SECONDS), done)
