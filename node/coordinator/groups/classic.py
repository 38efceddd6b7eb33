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

from strandline.node.coordinator.groups.classic_group import LiveGroup
from strandline.node.coordinator.groups.classic_members import restored_member
from strandline.node.coordinator.groups.classic_memory import GROUP_BYTES, GroupMemory
from strandline.node.coordinator.groups.classic_state import (
    JOIN,
    SESSION,
    SYNC,
    UNKNOWN_MEMBER,
    ClassicGroupState,
    Decision,
    GroupLimits,
    JoinRequest,
    JoinResponse,
    Leaving,
    SyncRequest,
    SyncResponse,
)
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.node.refusal import Cause
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_protocol import CONSUMERS, subscribed_topics
from strandline.statemachine.groups.group_state import Membership
from strandline.statemachine.kafka_errors import KafkaError

MAX_GROUP_BYTES: Final = 3 * 1024 * 1024
"""Of one group's members together: a generation is one entry of the log, which takes 4 MiB."""


class ClassicGroups:
    """The classic groups of one coordinator; asked only while it leads."""

    def __init__(self, coordinator: GroupsContext) -> None:
        groups = coordinator.context.config.groups
        self._coordinator = coordinator
        self._loop = coordinator.loop
        self._limits = GroupLimits(
            groups.initial_rebalance_delay_seconds,
            groups.min_session_seconds,
            groups.max_session_seconds,
            groups.max_members,
            MAX_GROUP_BYTES,
        )
        self._groups: dict[str, LiveGroup] = {}
        self._memory = GroupMemory()
        self._tickets = 0
        self._waits: dict[int, asyncio.Future[Any]] = {}
        self._decisions: dict[asyncio.Task[None], None] = {}

    def started(self) -> None:
        """This node leads: take up the generations that the log has; every timeout starts again."""
        for group_id, held in self._coordinator.machine.groups.items():
            if isinstance(held.membership, ClassicGroup) and not held.membership.is_empty:
                self._take_up(group_id, held.membership)

    def stopped(self) -> None:
        """End the leadership: answer waiting requests NOT_COORDINATOR, so clients seek the new leader."""
        for task in self._decisions:
            task.cancel()
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.end(KafkaError.NOT_COORDINATOR)
        self._memory.clear()

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
            if group.protocol_type == CONSUMERS:  # its members are served as members of the consumer group
                group.end(KafkaError.REBALANCE_IN_PROGRESS)
            else:
                group.end(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
            self._settle(group)

    # Requests.

    async def join(self, group_id: str, request: JoinRequest) -> JoinResponse:
        """A JoinGroup; returns when the join phase is over. Cancelled, it leaves its member to the timers."""
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER:
                return JoinResponse(KafkaError.UNKNOWN_MEMBER_ID, request.member_id)
            if not self._memory.has_room(GROUP_BYTES):
                return JoinResponse(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, request.member_id)
            if not self._coordinator.bounds.has_room_for(group_id):
                self._coordinator.bounds.refuse_group(group_id)
                return JoinResponse(KafkaError.GROUP_MAX_SIZE_REACHED, request.member_id)
            group = self._create(group_id)
        answer: JoinResponse = await self._await_answer(group, partial(group.join, request))
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResponse:
        """A SyncGroup; returns when there is an assignment."""
        group = self._groups.get(group_id)
        if group is None:
            return SyncResponse(KafkaError.UNKNOWN_MEMBER_ID)
        answer: SyncResponse = await self._await_answer(group, partial(group.sync, request))
        return answer

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Cause | None:
        """Handle a Heartbeat: None, or the error that makes the member act."""
        group = self._groups.get(group_id)
        if group is None:
            return KafkaError.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation)

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> list[Cause | None]:
        """Handle a LeaveGroup: an error for each member, None for one that is removed."""
        group = self._groups.get(group_id)
        if group is None:
            return [KafkaError.UNKNOWN_MEMBER_ID] * len(leaving)
        codes = group.leave(leaving)
        self._settle(group)
        return codes

    def restart_session(self, group_id: str, member_id: str) -> None:
        """Restart a member's session timeout after a request other than a heartbeat."""
        group = self._groups.get(group_id)
        if group is not None:
            group.restart_session(member_id)

    # Looking at them.

    def get(self, group_id: str) -> LiveGroup | None:
        """A group that has members, or soon will have: the log may not have them yet. To be read only."""
        return self._groups.get(group_id)

    def has_members(self, group_id: str) -> bool:
        """Whether the group has members, also joining ones: it may be neither deleted nor converted."""
        group = self._groups.get(group_id)
        return group is not None and len(group.members) > 0

    def members_of(self, group_id: str) -> Collection[str]:
        """The ids of the members that are in the group or join it; none if there is no such group."""
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
        """The ids of the groups that have members, or soon will have."""
        return list(self._groups)

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waits)

    @property
    def bytes(self) -> int:
        """Bytes that the groups take, as the bound counts them."""
        return self._memory.bytes

    def __len__(self) -> int:
        return len(self._groups)

    # What the groups ask for.

    def _create(self, group_id: str) -> LiveGroup:
        group = self._groups[group_id] = LiveGroup(group_id, self._limits, _GroupEnvironment(self, group_id))
        return group

    def _take_up(self, group_id: str, classic: ClassicGroup) -> None:
        """Go on with the generation that the log has."""
        group = self._create(group_id)
        members = [restored_member(classic, member_id) for member_id in classic.members]
        of_log = (classic.generation, classic.protocol_type, classic.protocol_name, classic.leader)
        group.restore(*of_log, members)
        self._settle(group)

    def _settle(self, group: LiveGroup) -> None:
        """Count a group after every possible change of it, and let go of it when it is over."""
        group_id = group.group_id
        if self._groups.get(group_id) is not group:
            return
        if group.state is ClassicGroupState.DEAD or group.is_idle:
            for member in group.members:
                self._coordinator.timers.cancel((SESSION, group_id, member.member_id))
            for member_id in group.members.pending:
                self._coordinator.timers.cancel((SESSION, group_id, member_id))
            self._coordinator.timers.cancel((JOIN, group_id, ""))
            self._coordinator.timers.cancel((SYNC, group_id, ""))
            del self._groups[group_id]
            self._memory.forget(group_id)
            return
        self._memory.count(group_id, group.members)

    async def _await_answer(self, group: LiveGroup, request: Callable[[int], None]) -> Any:
        self._tickets += 1
        ticket = self._tickets
        answer = self._waits[ticket] = self._loop.create_future()
        request(ticket)
        self._settle(group)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._waits.pop(ticket, None) is not None:
                group.abandon(ticket)
                self._settle(group)
            raise

    def _answer(self, ticket: int, result: JoinResponse | SyncResponse) -> None:
        waits = self._waits.pop(ticket, None)
        if waits is not None and not waits.done():
            waits.set_result(result)

    def _decide(self, group_id: str, command: Decision) -> None:
        # One task each: they begin in this order, so the commands are in the log in this order.
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


class _GroupEnvironment:
    """`Environment` of one group."""

    def __init__(self, groups: ClassicGroups, group_id: str) -> None:
        self._groups = groups
        self._group_id = group_id

    def answer(self, ticket: int, result: JoinResponse | SyncResponse) -> None:
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
        return self._groups._memory.has_room(size)
