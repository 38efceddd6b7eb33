"""Runs the classic groups of one coordinator while this node leads it: requests, timers, decisions.

A group is held here as long as it has members, or members that are about to join; the lasting state of an
empty group is in the log. When the leadership ends, every waiting request is answered with an error that says
so, and the next leader takes up the generations that the log has.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.classic_group import LiveGroup
from strandline.node.coordinator.groups.classic_members import LiveMember
from strandline.node.coordinator.groups.classic_state import (
    JOIN,
    SESSION,
    SYNC,
    UNKNOWN_MEMBER,
    Decision,
    JoinAsk,
    Joined,
    Leaving,
    Limits,
    State,
    SyncAsk,
    Synced,
)
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_protocol import CONSUMERS, subscribed_topics
from strandline.statemachine.groups.group_state import Membership

MAX_GROUP_BYTES: Final = 3 * 1024 * 1024
"""Of one group's members together: a generation is one entry of the log, which takes 4 MiB."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all groups of one coordinator together, as they are in memory."""
GROUP_BYTES: Final = 4096
"""Memory of a group besides its members, in bytes."""
MEMBER_BYTES: Final = 512
"""Memory of a member, or of a member id that was given out, besides what the client sent, in bytes."""


class ClassicGroups:
    """The classic groups of one coordinator; asked only while it leads."""

    def __init__(self, coordinator: GroupsContext) -> None:
        groups = coordinator.context.config.groups
        self._coordinator = coordinator
        self._loop = coordinator.loop
        self._limits = Limits(
            groups.initial_rebalance_delay_seconds,
            groups.min_session_seconds,
            groups.max_session_seconds,
            groups.max_members,
            MAX_GROUP_BYTES,
        )
        self._groups: dict[str, LiveGroup] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._tickets = 0
        self._waits: dict[int, asyncio.Future[Any]] = {}
        self._decisions: dict[asyncio.Task[None], None] = {}

    def started(self) -> None:
        """This node leads: the generations that the log has go on, each with all the time it had."""
        for group_id, held in self._coordinator.machine.groups.items():
            if isinstance(held.membership, ClassicGroup) and not held.membership.is_empty:
                self._take_up(group_id, held.membership)

    def stopped(self) -> None:
        """End the leadership: answer waiting requests NOT_COORDINATOR, so clients seek the new leader."""
        for task in self._decisions:
            task.cancel()
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.lost(ErrorCode.not_coordinator)
        self._sizes.clear()
        self._bytes = 0

    def follow(self, group_id: str) -> None:
        """A group may have become one of the other protocol: let go of one that is a consumer group now, and
        take up one that is a classic group again."""
        group, membership = self._groups.get(group_id), self._membership(group_id)
        if membership is None or membership.is_empty:
            return
        if isinstance(membership, ClassicGroup):
            if group is None:
                self._take_up(group_id, membership)
        elif group is not None:
            consumes = group.protocol_type == CONSUMERS  # then it is served as a member of the consumer group
            group.lost(ErrorCode.rebalance_in_progress if consumes else ErrorCode.inconsistent_group_protocol)
            self._settle(group)

    # Requests.

    async def join(self, group_id: str, ask: JoinAsk) -> Joined:
        """A JoinGroup; returns when the join phase is over. Cancelled, it leaves its member to the timers."""
        group = self._groups.get(group_id)
        if group is None:
            if ask.member_id != UNKNOWN_MEMBER:
                return Joined(ErrorCode.unknown_member_id, ask.member_id)
            if not self._has_room(GROUP_BYTES):
                return Joined(ErrorCode.coordinator_load_in_progress, ask.member_id)
            if not self._coordinator.bounds.takes_group(group_id):
                self._coordinator.bounds.refuse_group(group_id)
                return Joined(ErrorCode.group_max_size_reached, ask.member_id)
            group = self._create(group_id)
        answer: Joined = await self._asked(group, partial(group.join, ask))
        return answer

    async def sync(self, group_id: str, ask: SyncAsk) -> Synced:
        """A SyncGroup; returns when there is an assignment."""
        group = self._groups.get(group_id)
        if group is None:
            return Synced(ErrorCode.unknown_member_id)
        answer: Synced = await self._asked(group, partial(group.sync, ask))
        return answer

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Handle a Heartbeat: NONE, or the error that makes the member act."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        return group.heartbeat(member_id, instance_id, generation)

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> list[ErrorCode]:
        """Handle a LeaveGroup: an error code for each member."""
        group = self._groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        codes = group.leave(leaving)
        self._settle(group)
        return codes

    def heard(self, group_id: str, member_id: str) -> None:
        """A member showed by something else than a heartbeat that it lives."""
        group = self._groups.get(group_id)
        if group is not None:
            group.heard(member_id)

    # Looking at them.

    def get(self, group_id: str) -> LiveGroup | None:
        """A group that has members, or soon will have: the log may not have them yet. To be read only."""
        return self._groups.get(group_id)

    def has_members(self, group_id: str) -> bool:
        """Whether the group has members, also joining ones: it may be neither deleted nor converted."""
        group = self._groups.get(group_id)
        return group is not None and len(group.members) > 0

    def members_of(self, group_id: str) -> Collection[str]:
        """The ids of those that are in the group or join it; none where there is no such group."""
        group = self._groups.get(group_id)
        return () if group is None else [member.member_id for member in group.members]

    def consumes(self, group_id: str) -> bool:
        """Whether the members, as this node or the log knows them, consume topics."""
        group = self._groups.get(group_id)
        if group is not None and len(group.members):
            return group.protocol_type == CONSUMERS
        logged = self._membership(group_id)
        return isinstance(logged, ClassicGroup) and logged.protocol_type == CONSUMERS

    def subscriptions(self, group_id: str) -> Callable[[str], bool] | None:
        """A test whether any member of the group, present or joining, is subscribed to a topic.

        None if the members do not consume. The test is true for every topic if a member's metadata cannot be
        read.
        """
        group = self._groups.get(group_id)
        names: set[str] = set()
        if group is not None and len(group.members):
            if group.protocol_type != CONSUMERS:
                return None
            given = (metadata for member in group.members for _, metadata in member.protocols)
            for metadata in dict.fromkeys(given):  # that of most members is the same
                topics = subscribed_topics(metadata)
                if topics is None:
                    return lambda topic: True
                names.update(topics)
        return names.__contains__

    @property
    def group_ids(self) -> list[str]:
        """Of the groups that have members, or soon will have."""
        return list(self._groups)

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waits)

    @property
    def bytes(self) -> int:
        """Bytes that the groups take, as the bound counts them."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._groups)

    # What the groups ask for.

    def _create(self, group_id: str) -> LiveGroup:
        group = self._groups[group_id] = LiveGroup(group_id, self._limits, _Around(self, group_id))
        return group

    def _take_up(self, group_id: str, classic: ClassicGroup) -> None:
        """Go on with the generation that the log has."""
        group = self._create(group_id)
        members = [_taken_up(classic, member_id) for member_id in classic.members]
        of_log = (classic.generation, classic.protocol_type, classic.protocol_name, classic.leader)
        group.restore(*of_log, members)
        self._settle(group)

    def _settle(self, group: LiveGroup) -> None:
        """After everything that may have changed a group: count it, and let go of it when it is over."""
        group_id = group.group_id
        if self._groups.get(group_id) is not group:
            return
        if group.state is State.DEAD or group.is_idle:
            for member in group.members:
                self._coordinator.timers.cancel((SESSION, group_id, member.member_id))
            for member_id in group.members.pending:
                self._coordinator.timers.cancel((SESSION, group_id, member_id))
            self._coordinator.timers.cancel((JOIN, group_id, ""))
            self._coordinator.timers.cancel((SYNC, group_id, ""))
            del self._groups[group_id]
            self._bytes -= self._sizes.pop(group_id, 0)
            return
        members = group.members
        size = GROUP_BYTES + members.bytes + MEMBER_BYTES * (len(members) + len(members.pending))
        self._bytes += size - self._sizes.get(group_id, 0)
        self._sizes[group_id] = size

    def _has_room(self, size: int) -> bool:
        return self._bytes + MEMBER_BYTES + size <= MAX_BYTES

    async def _asked(self, group: LiveGroup, ask: Callable[[int], None]) -> Any:
        self._tickets += 1
        ticket = self._tickets
        answer = self._waits[ticket] = self._loop.create_future()
        ask(ticket)
        self._settle(group)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._waits.pop(ticket, None) is not None:
                group.abandon(ticket)
                self._settle(group)
            raise

    def _answer(self, ticket: int, result: Joined | Synced) -> None:
        waits = self._waits.pop(ticket, None)
        if waits is not None and not waits.done():
            waits.set_result(result)

    def _decide(self, group_id: str, command: Decision) -> None:
        # One task each, begun in this order: so they are in the log in this order.
        task = self._loop.create_task(self._decided(self._groups[group_id], command))
        self._decisions[task] = None
        task.add_done_callback(self._decision_over)

    async def _decided(self, group: LiveGroup, command: Decision) -> None:
        result = await self._coordinator.execute(command)
        group.decided(command, result)
        self._settle(group)

    def _decision_over(self, task: asyncio.Task[None]) -> None:
        self._decisions.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            message = "a decision of a consumer group failed"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _due(self, group_id: str, what: str, member_id: str) -> None:
        group = self._groups.get(group_id)
        if group is None:
            return
        if what == SESSION:
            group.session_over(member_id)
        elif what == JOIN:
            group.join_over()
        else:
            group.sync_over()
        self._settle(group)

    def _membership(self, group_id: str) -> Membership | None:
        group = self._coordinator.machine.groups.get(group_id)
        return None if group is None else group.membership

    def _logged_generation(self, group_id: str) -> tuple[int, bool]:
        classic = self._membership(group_id)
        if not isinstance(classic, ClassicGroup):
            return 0, False
        return classic.generation, not classic.is_empty


class _Around:
    """`Surroundings` of one group."""

    def __init__(self, groups: ClassicGroups, group_id: str) -> None:
        self._groups = groups
        self._group_id = group_id

    def answer(self, ticket: int, result: Joined | Synced) -> None:
        self._groups._answer(ticket, result)

    def set_timer(self, what: str, member_id: str, seconds: float) -> None:
        due = partial(self._groups._due, self._group_id, what, member_id)
        self._groups._coordinator.timers.set((what, self._group_id, member_id), seconds, due)

    def cancel_timer(self, what: str, member_id: str) -> None:
        self._groups._coordinator.timers.cancel((what, self._group_id, member_id))

    def decide(self, command: Decision) -> None:
        self._groups._decide(self._group_id, command)

    def new_member_id(self, prefix: str) -> str:
        rng = self._groups._coordinator.context.rng
        return f"{prefix}-{uuid.UUID(bytes=rng.randbytes(16), version=4)}"

    def logged_generation(self) -> tuple[int, bool]:
        return self._groups._logged_generation(self._group_id)

    def has_room(self, size: int) -> bool:
        return self._groups._has_room(size)


def _taken_up(classic: ClassicGroup, member_id: str) -> LiveMember:
    member = classic.members[member_id]
    assignments = classic.assignments
    return LiveMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout / 1000,
        member.rebalance_timeout / 1000,
        tuple(member.protocols),
        assignment=b"" if assignments is None else assignments[member_id],
        synced=assignments is not None,
    )
