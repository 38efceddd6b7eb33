"""The sections of tails: the node keeps, for each group that it leads, how far it has been published.

A leader begins with a group's state, and goes on with the entries behind it. What it cannot link to what it
has put (a new leadership, entries that did not fit, a snapshot that was installed) begins with the state
again. So nothing is remembered but what waits, and nothing is asked of other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from strandline.node.checkpoints.changes import contents, controller_contents
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.recorders import CheckpointRecorders
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied
from strandline.snapshot.tail_document import Section
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.internal_topics import GROUPS_KIND, TRANSACTIONS_KIND
from strandline.statemachine.machine import Captured
from strandline.statemachine.partition.partition import PartitionStateMachine

CARRIED_SECONDS: Final = 3600.0
"""A node publishes the states of a group for so long after it has led it: the next leader may not reach the
store, and what this one has published must not go before that is made good."""
GROUPS_AT_ONCE: Final = 100
"""Groups of a look before others have their turn: the state of one is captured in about 0.05 ms."""
PHASES: Final = (
    frozenset({GROUPS_KIND}),
    frozenset({PartitionStateMachine.kind}),
    frozenset({TRANSACTIONS_KIND, Controller.kind}),
)
"""Kinds of groups in the order in which their entries are chosen: no offset of a group is above the end of
its partition, each open transaction of a partition is known to its coordinator, and the controller knows
every topic (docs/restore.md)."""


class Part(NamedTuple):
    """A section before its state is made, which takes long for a large one."""

    kind: str
    group: int
    after: int
    log_index: int
    captured: Captured | None
    entries: bytes

    def section(self) -> Section:
        """The section, with its state."""
        state = None if self.captured is None else self.captured()
        return Section(self.kind, self.group, self.after, self.log_index, state, self.entries)


class _Seen(NamedTuple):
    """Figures that readers of a group see as of its last section."""

    visible: tuple[int, ...]
    log_index: int
    """The section's last entry."""


class TailSections:
    """Those of one node. Everything belongs on the loop."""

    def __init__(
        self, context: CheckpointContext, recorders: CheckpointRecorders, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._context = context
        self._recorders = recorders
        self._loop = loop
        self._seen: dict[int, _Seen] = {}
        """By group that is led here."""
        self._led: dict[int, float | None] = {}
        """By group that was published here: the loop's time since which another node leads it, if any."""

    def begin_round(self) -> None:
        """Have the next sections of all groups begin with their states."""
        self._seen.clear()
        self._led = {group: since for group, since in self._led.items() if group in self._recorders}
        self._recorders.touched.update(self._recorders)

    def begin_again(self, parts: Sequence[Part]) -> None:
        """Let the next section of each of these begin with its state: what they had may not be stored."""
        for part in parts:
            self._seen.pop(part.group, None)
            if (recorder := self._recorders.of_group(part.group)) is not None:
                recorder.close_tail()
                self._recorders.touched.add(part.group)

    def is_due(self) -> bool:
        """Whether any group that is led here has something new."""
        for group in self._recorders.touched:
            raft = self._context.host.groups.get(group)
            if raft is None or not raft.is_leader or not raft.applied:
                continue
            visible = self._visible(group, raft)
            seen = self._seen.get(group)
            if visible is not None and (seen is None or seen.visible != visible):
                return True
        return False

    async def add_due(self, parts: list[Part], kinds: frozenset[str], *, all_states: bool) -> None:
        """Add the sections of groups of these kinds led here whose readers would see something new.

        With `all_states`, also the states of groups that have been led here lately.
        """
        for number, group in enumerate(sorted(self._recorders.touched), 1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            raft = self._context.host.groups.get(group)
            recorder = self._recorders.of_group(group)
            if raft is None or recorder is None or not raft.applied:
                continue  # it stays touched: a state after no entry says nothing
            if recorder.kind not in kinds:
                continue
            if not raft.is_leader:
                # It stays touched: this node may lead next, and cannot know what the leader has published.
                self._seen.pop(group, None)
                recorder.close_tail()
                if self._led_lately(group) and all_states and (state := self._state(group, raft.applied)):
                    parts.append(state)
                continue
            self._recorders.touched.discard(group)
            part = self._section(group, raft)
            if part is not None:
                self._led[group] = None
                parts.append(part)

    async def led(self, kinds: frozenset[str]) -> dict[int, int]:
        """The term of each group of these kinds that this node leads for sure, at a moment after the call.

        It has applied all that was acknowledged before. A deposed leader that does not know it yet may lack
        what a new one has acknowledged.
        """
        sure: dict[int, int] = {}
        asked: list[RaftGroup] = []
        for number, group in enumerate([*self._recorders], 1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            raft, recorder = self._context.host.groups.get(group), self._recorders.of_group(group)
            if raft is None or recorder is None or recorder.kind not in kinds or not raft.is_leader:
                continue
            if raft.leads_for_sure:
                sure[group] = raft.term
            else:
                asked.append(raft)
        outcomes = await asyncio.gather(*(raft.barrier() for raft in asked))
        for raft, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, Applied):
                sure[raft.id] = raft.term
        return sure

    def entries(self, led: dict[int, int]) -> list[tuple[int, int, int]]:
        """Group, last published entry and term of each of these that is still led in that term.

        What was applied above that entry is nothing that a reader would see.
        """
        rows = []
        for group, term in led.items():
            raft, seen = self._context.host.groups.get(group), self._seen.get(group)
            if raft is not None and raft.is_leader and raft.term == term and seen is not None:
                rows.append((group, seen.log_index, term))
        return rows

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

    def _machine(self, group: int) -> Any:
        """The state machine of a partition or a coordinator here; None if it is not there yet."""
        partition = self._context.partitions.by_group(group)
        if partition is not None:
            return partition.machine
        coordinator = self._context.coordinators.by_group(group)
        return None if coordinator is None else coordinator.machine

    def _visible(self, group: int, raft: RaftGroup) -> tuple[int, ...] | None:
        """Figures that change with whatever is worth a section; None for a group that is not there yet."""
        if group == CONTROLLER_GROUP:
            return controller_contents(self._context.controller.machine)
        machine = self._machine(group)
        if isinstance(machine, PartitionStateMachine):
            return contents(machine)
        return None if machine is None else (raft.applied,)

    def _state(self, group: int, applied: int) -> Part | None:
        """A section with a group's state alone; None for a group that is not there yet."""
        if group == CONTROLLER_GROUP:
            published = self._context.controller.machine.snapshot(secrets=False)
            return Part(Controller.kind, group, applied, applied, lambda: published, b"")
        machine = self._machine(group)
        return (
            None if machine is None else Part(machine.kind, group, applied, applied, machine.capture(), b"")
        )

    def _section(self, group: int, raft: RaftGroup) -> Part | None:
        recorder = self._recorders.of_group(group)
        assert recorder is not None, "asked for by the caller"
        visible, seen = self._visible(group, raft), self._seen.get(group)
        if visible is None or (seen is not None and seen.visible == visible):
            return None
        # The controller has topics, not records, and seldom changes: its state says it all.
        taken = recorder.take_tail() if seen is not None and group != CONTROLLER_GROUP else None
        if taken is not None:
            self._seen[group] = _Seen(visible, taken.index)
            if taken.index == taken.after:
                return None  # only members have changed
            return Part(recorder.kind, group, taken.after, taken.index, None, taken.entries.joined())
        state = self._state(group, raft.applied)
        if state is not None:
            self._seen[group] = _Seen(visible, raft.applied)
            if group != CONTROLLER_GROUP:
                recorder.open_tail(raft.applied)
        return state


def fill(parts: Sequence[Part], first: int, enough: int) -> Iterable[Section]:
    """The sections from `first` on, until they have so many bytes."""
    size = 0
    for part in parts[first:]:
        section = part.section()
        yield section
        size += len(section.entries) + len(section.state or b"")
        if size >= enough:
            return
