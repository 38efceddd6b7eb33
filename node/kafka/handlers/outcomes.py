"""Turns the controller's answers into Kafka's, in the same way for every request that changes something.

A command whose outcome is unknown may have been applied. A client must not take that for a refusal, so it is
REQUEST_TIMED_OUT, on which clients look first and then ask again; the message says what is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.statemachine.controller.controller import Result
from strandline.statemachine.controller.controller_commands import Command
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import Refused

NO_THROTTLE: Final = timedelta(0)
MAX_WAIT_SECONDS: Final = 300.0
"""No request is held longer than this, whatever its timeout says."""
UNTIMED_SECONDS: Final = 30.0
"""Time limit of a request without a timeout of its own: Kafka's request.timeout.ms."""
LEADER_SECONDS: Final = 1.0
"""Time that a request which created partitions waits for their first leaders."""
_FIRST_LOOK_SECONDS: Final = 0.005
_LAST_LOOK_SECONDS: Final = 0.1


class Failure(NamedTuple):
    """The reason why one topic, partition or resource of a request was not served."""

    code: ErrorCode
    message: str | None


def deadline_after(context: BrokerContext, timeout: timedelta) -> float:
    """The loop's time at which a request with this timeout has to be answered."""
    return context.loop.time() + min(max(timeout.total_seconds(), 0.0), MAX_WAIT_SECONDS)


def data_wait(timeout: timedelta) -> float:
    """Seconds that a request which writes a partition waits for the log.

    Kafka writes its leader's own disk without looking at the timeout, so one of 0 is a good request there,
    with acks=1 or one replica. Here nothing is written in no time: 0, or less, is no bound of the client's.
    """
    seconds = timeout.total_seconds()
    return min(seconds, MAX_WAIT_SECONDS) if seconds > 0 else UNTIMED_SECONDS


async def submit(context: BrokerContext, command: Command, deadline: float) -> Result | Failure:
    """Have the controller apply a command; a Refused is a Failure with the same code and text."""
    outcome = await context.controller.submit(command, max(deadline - context.loop.time(), 0.0))
    if isinstance(outcome, Unavailable):
        return timed_out(outcome)
    return refused(outcome) if isinstance(outcome, Refused) else outcome


def refused(refusal: Refused) -> Failure:
    """The failure for a refusal of the state machine, by Kafka's code for it."""
    return Failure(code_of(refusal), refusal.message)


def timed_out(unavailable: Unavailable) -> Failure:
    """The failure for a controller that did not answer in time."""
    known = "it may have been carried out, or may yet be" if unavailable.unknown else "nothing was changed"
    return Failure(
        ErrorCode.request_timed_out, f"The controller did not answer: {unavailable.reason}; {known}."
    )


_NO_CONTROLLER: Final = Failure(
    ErrorCode.request_timed_out, "The controller did not answer; nothing was changed."
)


async def topic_named(context: BrokerContext, name: str, deadline: float) -> Topic | Failure:
    """The topic a request that changes something is about.

    The local replica may lag behind the node where the client has just created it, or has just put another in
    its place: a name is looked up only once this node has applied all that was committed when it came.
    """
    if not await context.controller.catch_up(max(deadline - context.loop.time(), 0.0)):
        return _NO_CONTROLLER
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
        return _NO_CONTROLLER
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
