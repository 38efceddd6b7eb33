"""Tails: every few seconds one object with what was committed in the groups that this node leads.

A reader of the storage alone would otherwise see what the last checkpoint saw. A leader begins with a group's
state, and goes on with the entries behind it. What it cannot link to what it has put (a new leadership,
entries that did not fit, a snapshot that was installed) begins with the state again. So nothing is remembered
but what waits, and nothing is asked of other nodes.

After so many tails a node publishes the states of all groups that it leads, and removes what that makes
dispensable. A tail holds nothing back: what its states name may be lifted to level one and deleted, and a
reader that comes late looks for the records again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from strandline.node.checkpoints.changes import contents
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.node.checkpoints.recorders import CheckpointRecorders
from strandline.node.checkpoints.tail_pruning import remove_tails
from strandline.node.controller.periodic import PeriodicPart
from strandline.snapshot.tail_document import Section, TailDocument, tail_name
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.machine import Captured
from strandline.statemachine.partition.partition import PartitionStateMachine

log = logging.getLogger(__name__)

DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""A tail with so much of states and entries takes no further section."""
STATES_EVERY: Final = 48
"""Tails between two rounds of states: two minutes of them, by default. A reader that begins reads up to twice
as many of each node."""
CARRIED_SECONDS: Final = 3600.0
"""A node publishes the states of a group for so long after it has led it: the next leader may not reach the
store, and what this one has published must not go before that is made good."""
GROUPS_AT_ONCE: Final = 100
"""Groups of a look before others have their turn: the state of one is captured in about 0.05 ms."""
LOOKS: Final = 2
"""Looks in the time within which a record is to be published: it waits for one, and for its upload."""


@dataclass(slots=True)
class TailMeasures:
    """Counters since the node started."""

    published: int = 0
    """Tails that are in the store."""
    published_bytes: int = 0
    states: int = 0
    """Sections that begin with a state."""
    put_at: float | None = None
    """The loop's time when all that was due was last in the store."""


class _Part(NamedTuple):
    """A section before its state is made, which takes long for a large one."""

    kind: str
    group: int
    after: int
    log_index: int
    captured: Captured | None
    entries: bytes

    def section(self) -> Section:
        state = None if self.captured is None else self.captured()
        return Section(self.kind, self.group, self.after, self.log_index, state, self.entries)


class TailPublishing(PeriodicPart):
    """Puts this node's tails, one after the other: one that is there has those before it there."""

    def __init__(
        self,
        context: CheckpointContext,
        recorders: CheckpointRecorders,
        publisher: CheckpointPublisher,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
    ) -> None:
        config = context.config
        self._enabled = bool(config.publish.seconds)
        seconds = config.publish.seconds / LOOKS
        super().__init__(seconds, "what was committed is not published; it is tried again", loop=loop)
        self.measures = TailMeasures()
        self._context = context
        self._recorders = recorders
        self._publisher = publisher
        self._executor = executor
        self._seen: dict[int, object] = {}
        """By group that is led here: what its readers see as of its last section."""
        self._led: dict[int, float | None] = {}
        """By group that was published here: the loop's time since which another node leads it, if any."""
        self._started_ms: int | None = None
        self._names: list[str] = []
        """The tails since the last round of states, its own included."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of entries that no tail has yet."""
        return self._recorders.open_tails.used

    @property
    def age(self) -> float | None:
        """Seconds since all that was due was in the store; None where no tails are wanted, and at first."""
        at = self.measures.put_at
        return None if at is None else self._loop.time() - at

    def start(self) -> None:
        """See PeriodicPart; nothing where no tails are wanted."""
        if self._enabled:
            super().start()

    async def finish(self, seconds: float) -> None:
        """Publish what is left, for up to this many seconds, before the node ends."""
        self.close()
        if self._task is not None:
            await asyncio.wait([self._task])
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._look()

    async def _look(self) -> None:
        if self._context.controller.machine.incarnation is None:
            return  # it has not applied the first entry of all
        if self._started_ms is None:
            self._started_ms = self._context.wall_ms()
        all_states = len(self._names) >= STATES_EVERY
        if all_states:
            self._seen.clear()
            self._led = {group: since for group, since in self._led.items() if group in self._recorders}
            self._recorders.touched.update(self._recorders)
        before, parts = len(self._names), list[_Part]()
        try:
            await self._add_due(parts, all_states)
            next_one = 0
            while next_one < len(parts):
                next_one = await self._put(parts, next_one)
        except BaseException:
            self._begin_again(parts)
            raise
        self.measures.put_at = self._loop.time()
        if all_states:
            await remove_tails(self._context, frozenset(self._names), self._started_ms)
            del self._names[:before]

    async def _put(self, parts: Sequence[_Part], first: int) -> int:
        """Put the parts from `first` on, as many as one tail takes; gives the place behind them."""
        context = self._context
        cluster, node = context.config.cluster.id, context.config.node.id
        incarnation = context.controller.machine.incarnation
        assert incarnation is not None, "asked for by the caller; it never changes"

        def encoded() -> tuple[bytes, int]:
            sections = list(_fill(parts, first))
            return TailDocument(cluster, node, sections).encode(), first + len(sections)

        data, behind = await self._loop.run_in_executor(self._executor, encoded)
        put = parts[first:behind]
        name = tail_name(cluster, incarnation, context.wall_ms(), node, context.rng.getrandbits(32))
        self._names.append(name)
        if await self._publisher.put(name, [data]):
            self.measures.published += 1
            self.measures.published_bytes += len(data)
            self.measures.states += sum(part.captured is not None for part in put)
        else:
            self._begin_again(put)
        return behind

    def _begin_again(self, parts: Sequence[_Part]) -> None:
        """Let the next section of each of these begin with its state: what they had may not be stored."""
        for part in parts:
            self._seen.pop(part.group, None)
            if (recorder := self._recorders.of_group(part.group)) is not None:
                recorder.close_tail()
                self._recorders.touched.add(part.group)

    async def _add_due(self, parts: list[_Part], all_states: bool) -> None:
        """Add the sections of all groups led here whose readers would see something new.

        With `all_states`, also the states of groups that have been led here lately.
        """
        for number, group in enumerate(sorted(self._recorders.touched), 1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            raft = self._context.host.groups.get(group)
            recorder = self._recorders.of_group(group)
            if raft is None or recorder is None or not raft.applied:
                continue  # it stays touched: a state after no entry says nothing
            if not raft.is_leader:
                # It stays touched: this node may lead next, and cannot know what the leader has published.
                self._seen.pop(group, None)
                recorder.close_tail()
                if self._led_lately(group) and all_states and (state := self._state(group, raft.applied)):
                    parts.append(state)
                continue
            self._recorders.touched.discard(group)
            part = self._section(group, raft.applied)
            if part is not None:
                self._led[group] = None
                parts.append(part)

    def _led_lately(self, group: int) -> bool:
        """Whether a group that another node leads was led here until lately."""
        if group not in self._led:
            return False
        since, now = self._led[group], self._loop.time()
        if since is None:
            self._led[group] = since = now
        if now - since > CARRIED_SECONDS:
            del self._led[group]
        return group in self._led

    def _state(self, group: int, applied: int) -> _Part | None:
        """A section with a group's state alone; None for a group whose state has nothing for readers."""
        if group == CONTROLLER_GROUP:
            published = self._context.controller.machine.snapshot(secrets=False)
            return _Part(Controller.kind, group, applied, applied, lambda: published, b"")
        replica = self._context.partitions.by_group(group)
        if replica is None:
            return None  # a coordinator's, whose state has no records
        captured = replica.machine.capture()
        return _Part(PartitionStateMachine.kind, group, applied, applied, captured, b"")

    def _section(self, group: int, applied: int) -> _Part | None:
        recorder = self._recorders.of_group(group)
        assert recorder is not None, "asked for by the caller"
        controller = self._context.controller.machine
        if group == CONTROLLER_GROUP:
            # It has topics, not records, and seldom changes: its state says it all.
            if self._seen.get(group) == controller.version:
                return None
            self._seen[group] = controller.version
            return self._state(group, applied)
        replica = self._context.partitions.by_group(group)
        if replica is None:
            return None
        machine = replica.machine
        visible = contents(machine)
        if self._seen.get(group) == visible:
            return None
        taken = recorder.take_tail() if group in self._seen else None
        self._seen[group] = visible
        if taken is not None:
            return _Part(
                PartitionStateMachine.kind, group, taken.after, taken.index, None, bytes(taken.entries)
            )
        recorder.open_tail(applied)
        return self._state(group, applied)


def _fill(parts: Sequence[_Part], first: int) -> Iterator[Section]:
    """The sections from `first` on, until a tail has enough."""
    size = 0
    for part in parts[first:]:
        section = part.section()
        yield section
        size += len(section.entries) + len(section.state or b"")
        if size >= DOCUMENT_BYTES:
            return
