"""Removes offsets that have expired or whose topic was deleted, by commands of the coordinator's leader.

Kafka's leader looks every ten minutes for offsets whose retention is over, and drops those of a deleted topic
when it learns of the deletion. Here both are commands, so all replicas drop the same offsets; the leader only
decides when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from strandline.node.controller.cluster_clock import FAR_MS
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.group_commands import ExpireOffsets, ForgetTopics
from strandline.statemachine.groups.group_state import Group

log = logging.getLogger(__name__)

EXPIRY: Final = "expiry"
TOPICS: Final = "topics"
EXPIRY_SECONDS: Final = 600.0
"""Kafka's offsets.retention.check.interval.ms."""
TOPICS_SECONDS: Final = 30.0
"""Between two searches for deleted topics that still have offsets."""
CATCH_UP_SECONDS: Final = 10.0
PRODUCER_EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
"""A producer that ended no transaction here for this long is forgotten: transactional.id.expiration.ms."""
MAX_PRODUCERS: Final = 32_768
"""Number of producers above which the longest idle are forgotten sooner. A client with a new producer for
each transaction adds one here with each. All are in every snapshot, which is read in one go when
a node starts."""
LEAST_PRODUCER_EXPIRY_MS: Final = 3600 * 1000
"""No producer is forgotten sooner for that: longer than any message of a transaction that ended is late."""
MAX_TOPICS: Final = 1_000
"""Topics in one command."""
MAX_OFFSETS: Final = 2_000
"""Groups and offsets together that one command is about; a group with more has one of its own. Every replica
takes a few milliseconds to apply it."""
SLICE_OFFSETS: Final = 5_000
"""Groups and offsets together that are looked at in one go: a few milliseconds."""


class OffsetExpiry:
    """Runs while the coordinator leads; its timers are the coordinator's."""

    def __init__(self, coordinator: GroupsContext) -> None:
        self._coordinator = coordinator
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._warned = False
        """Whether the operator was told that the clocks disagree; once, until they agree again."""

    def started(self) -> None:
        # Spread: a node takes up many coordinators at once.
        spread = 1 + self._coordinator.number % 64 / 64
        self._coordinator.timers.set((EXPIRY, "", ""), EXPIRY_SECONDS * spread, self._on_expiry)
        self._coordinator.timers.set((TOPICS, "", ""), TOPICS_SECONDS * spread, self._on_topics)

    def stopped(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _on_expiry(self) -> None:
        self._coordinator.timers.set((EXPIRY, "", ""), EXPIRY_SECONDS, self._on_expiry)
        self._begin(EXPIRY, self._expire)

    def _on_topics(self) -> None:
        self._coordinator.timers.set((TOPICS, "", ""), TOPICS_SECONDS, self._on_topics)
        self._begin(TOPICS, self._forget_topics)

    def _begin(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one of each at a time; the next leader repeats one that is lost with its leadership."""
        if what not in self._tasks:
            task = self._tasks[what] = self._coordinator.loop.create_task(work())
            task.add_done_callback(partial(self._ended, what))

    def _ended(self, what: str, task: asyncio.Task[None]) -> None:
        del self._tasks[what]
        if not task.cancelled() and (error := task.exception()) is not None:
            message = f"looking after a groups' coordinator ({what}) failed"
            self._coordinator.loop.call_exception_handler({"message": message, "exception": error})

    async def _expire(self) -> None:
        """Log commands that name the groups with something expired; each command has a bounded size.

        Nothing expires while the nodes do not agree on the time, nor in a group that members are joining: the
        log has them only after the join phase (Kafka expires in Empty only).
        """
        coordinator = self._coordinator
        now = coordinator.context.agreed_ms()
        if now is None:
            if not self._warned:
                log.warning("the nodes' clocks disagree: offsets do not expire until they agree")
            self._warned = True
            return
        self._warned = False
        retention = round(coordinator.context.config.groups.offset_retention_seconds * 1000)
        old = await self._sought(lambda group: group.expires(now, retention))
        machine, producers = coordinator.machine, self._producer_expiry(now)
        if not old and (machine.time > now + FAR_MS or machine.producers.expires(now - producers)):
            old = [[]]
        for groups in old:
            left = [group_id for group_id in groups if not coordinator.classic.has_members(group_id)]
            done = await coordinator.execute(ExpireOffsets(left, now, retention, producers))
            if isinstance(done, Refusal):
                log.info("expired offsets are kept for now: %s", done.message)
                return

    async def _sought(self, wanted: Callable[[Group], bool]) -> list[list[str]]:
        """The groups that are wanted, in lists for one command each. Other work runs between slices."""
        groups = self._coordinator.machine.groups
        found: list[list[str]] = []
        offsets = seen = 0
        for group_id in [*groups]:
            group = groups.get(group_id)
            if group is None:
                continue
            size = 1 + len(group.offsets)
            seen += size
            if wanted(group):
                offsets += size
                if not found or offsets > MAX_OFFSETS:
                    found.append([])
                    offsets = size
                found[-1].append(group_id)
            if seen >= SLICE_OFFSETS:
                await asyncio.sleep(0)
                seen = 0
        return found

    def _producer_expiry(self, now: int) -> int:
        since = self._coordinator.machine.producers.newest_since(MAX_PRODUCERS)
        if since is None:
            return PRODUCER_EXPIRY_MS
        return min(max(now - since, LEAST_PRODUCER_EXPIRY_MS), PRODUCER_EXPIRY_MS)

    async def _forget_topics(self) -> None:
        gone = await self._gone_topics()
        for first in range(0, len(gone), MAX_TOPICS):
            topics = gone[first : first + MAX_TOPICS]
            for groups in await self._sought(partial(_has_any, frozenset(topics))):
                done = await self._coordinator.execute(ForgetTopics(groups, topics))
                if isinstance(done, Refusal):
                    log.info("offsets of deleted topics are kept for now: %s", done.message)
                    return

    async def _gone_topics(self) -> Sequence[bytes]:
        """The deleted topics that still have offsets.

        The topics of the offsets are read first, and only then is this node's view of the controller brought
        up to date: a client that committed an offset knew its topic before, so a topic that is unknown then
        was deleted.
        """
        controller = self._coordinator.context.controller
        kept = self._coordinator.machine.topic_ids()
        if all(controller.machine.topic_by_id(topic_id) is not None for topic_id in kept):
            return []
        if not await controller.catch_up(CATCH_UP_SECONDS):
            return []
        return [topic_id for topic_id in kept if controller.machine.topic_by_id(topic_id) is None]


def _has_any(topics: frozenset[bytes], group: Group) -> bool:
    return not topics.isdisjoint(group.offsets.names)
