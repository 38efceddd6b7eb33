"""Runs the consumer groups of KIP-848 of one coordinator while this node leads it.

A heartbeat that changes nothing is answered from the state and leaves no trace in the log. Requests that
change a group go through its queue: all that wait are planned together and become one entry, so that a
thousand members that join at once cost a few rounds of the log and as few targets. The plan names the version
it was made from, so neither an old leader nor another command can put a change between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from strandline.node.coordinator.groups.classic_state import Leaving
from strandline.node.coordinator.groups.consumer_classic import ClassicJoin
from strandline.node.coordinator.groups.consumer_draft import size_of
from strandline.node.coordinator.groups.consumer_events import Answer, MemberEvent, Reply, TimerExpired
from strandline.node.coordinator.groups.consumer_matches import size_of_matches
from strandline.node.coordinator.groups.consumer_member import JOINING, LEAVING, MemberHeartbeat
from strandline.node.coordinator.groups.consumer_plan import Plan, plan
from strandline.node.coordinator.groups.consumer_queues import Turn, TurnQueues
from strandline.node.coordinator.groups.consumer_timers import CLASSIC_JOIN, CLASSIC_SYNC, MemberTimers
from strandline.node.coordinator.groups.consumer_topics import Topics
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.node.coordinator.groups.migration import Present, migration_policy, present_group
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import ConsumerGroupChanged, ConsumerMember
from strandline.statemachine.kafka_errors import KafkaError

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bound on the approximate bytes of all groups of one coordinator: the members' subscriptions and the matches
of their patterns; see `size_of` and consumer_matches."""
ATTEMPTS: Final = 5
"""Plans for one turn, should other commands change the group each time."""
AGAIN_SECONDS: Final = 1.0
"""Pause before the end of a member's timer is tried again because it did not get into the log."""
IS_CLASSIC: Final = Refusal(KafkaError.REBALANCE_IN_PROGRESS, "The group is of the classic protocol.")
"""Answer to a JoinGroup that came for a consumer group which has become a classic one."""


class HeartbeatAnswer(NamedTuple):
    """A member's answer, and the time until its next heartbeat."""

    reply: Reply
    interval_seconds: float


class ConsumerGroups:
    """The groups of KIP-848 of one coordinator; asked only while it leads. Belongs to one loop."""

    def __init__(self, coordinator: GroupsContext) -> None:
        self._coordinator = coordinator
        self._loop = coordinator.loop
        self._config = coordinator.context.config.groups
        self._policy = migration_policy(self._config.consumer_migration_policy)
        self.topics = Topics(lambda: coordinator.context.controller.machine)
        self.timers = MemberTimers(coordinator, self._timer_expired)
        self._queues = TurnQueues(self._loop, self._turn, self._is_over, self._failed)
        self._looked: dict[str, tuple[int, int]] = {}
        """By group: its version and that of the topics, as of which its target is right."""
        self.bytes = 0
        """Bytes that MAX_BYTES bounds, including those on their way into the log."""

    def started(self) -> None:
        """This node leads: every member gets its full timeouts again."""
        self.bytes = 0
        for group_id, held in self._coordinator.machine.groups.items():
            if isinstance(held.membership, ConsumerGroup):
                self.bytes += size_of_matches(held.membership.matches)
                for member in held.membership.members.values():
                    self.bytes += size_of(member)
                    self.timers.restart_session(group_id, member)
                    self.timers.follow(group_id, None, member)

    def stopped(self, reason: str) -> None:
        """End the leadership: answer waiting requests NOT_COORDINATOR, so clients seek the new leader."""
        self._looked.clear()
        for turn in self._queues.stop():
            _answer(turn, Refusal(KafkaError.NOT_COORDINATOR, reason))

    async def heartbeat(self, group_id: str, heartbeat: MemberHeartbeat) -> HeartbeatAnswer | Refusal:
        """Handle a member's heartbeat; returns when its effects are in the log. May be cancelled."""
        answer = self._at_once(group_id, heartbeat)
        bounds = self._coordinator.bounds
        if answer is None and heartbeat.epoch == JOINING and not bounds.has_room_for(group_id):
            return Refusal(KafkaError.GROUP_MAX_SIZE_REACHED, bounds.refuse_group(group_id))
        if answer is None:
            answer = await self.submit(group_id, heartbeat)
        if isinstance(answer, Refusal):
            return answer
        return HeartbeatAnswer(answer, self.timers.heartbeat_interval(group_id, answer))

    async def submit(self, group_id: str, event: MemberHeartbeat | ClassicJoin) -> Answer:
        """Queue a request for a turn; returns when its effects are in the log. May be cancelled."""
        if self._queues.is_full(group_id):
            return Refusal(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "Too many members wait for their turn.")
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._queues.put(group_id, event, future)
        return await future

    async def leave(self, group_id: str, leaving: Sequence[Leaving]) -> list[Cause | None]:
        """Handle an administrator's LeaveGroup: an error for each member, None for one that is removed.

        A row without a member id means the member that has its instance id now.
        """
        group = self.get(group_id)
        static = {} if group is None else group.static
        events = [
            MemberHeartbeat(
                one.member_id or static.get(one.instance_id or "", ""),
                LEAVING,
                "",
                "",
                instance_id=one.instance_id,
            )
            for one in leaving
        ]
        # All started now, so that they share a few turns; as tasks, so that they end even without the caller.
        tasks = [self._loop.create_task(self.heartbeat(group_id, event)) for event in events]
        answers = [await task for task in tasks]
        return [one.reason if isinstance(one, Refusal) else None for one in answers]

    def get(self, group_id: str) -> ConsumerGroup | None:
        """The group as the log has it; None when there is none of this protocol."""
        held = self._coordinator.machine.groups.get(group_id)
        membership = None if held is None else held.membership
        return membership if isinstance(membership, ConsumerGroup) else None

    @property
    def changing(self) -> Collection[str]:
        """The ids of the groups whose members wait for a turn; some may not be in the log yet."""
        return self._queues.group_ids

    @property
    def waiting(self) -> int:
        """Number of requests that wait, in all groups."""
        return self._queues.waiting

    # Without a trace in the log.

    def _at_once(self, group_id: str, heartbeat: MemberHeartbeat) -> Answer | None:
        group = self.get(group_id)
        if heartbeat.epoch <= 0 or group is None:
            return None
        look = self._looked.get(group_id) != (group.version, self.topics.version)
        if look and group_id in self._queues:
            return None
        planned = self._plan(group_id, Present(group), [heartbeat], look)
        answer = planned.answers[0]
        if planned.change is not None or answer is None:
            return None
        self._look_done(group_id, self.topics.version)
        if isinstance(answer, Reply):
            self.timers.restart_session(group_id, group.members[heartbeat.member_id])
        return answer

    def _plan(self, group_id: str, present: Present, events: Sequence[MemberEvent], look: bool) -> Plan:
        return plan(
            group_id,
            present.group,
            events,
            self.topics,
            max_members=self._config.max_members,
            room=MAX_BYTES - self.bytes,
            look=look,
            upgrade=present.upgrade,
            gone=present.gone,
            downgrades=self._policy.downgrades,
        )

    def _look_done(self, group_id: str, version: int) -> None:
        """A group's target is right as of these topics. An empty one has none, and may go any time."""
        group = self.get(group_id)
        if group is None or group.is_empty:
            self._looked.pop(group_id, None)
        else:
            self._looked[group_id] = group.version, version

    # Turns.

    def _timer_expired(self, group_id: str, event: TimerExpired) -> None:
        self._queues.put(group_id, event, None)

    def _is_over(self, group_id: str, event: TimerExpired) -> bool:
        return self.timers.is_over(group_id, self.get(group_id), event)

    def _failed(self, group_id: str, turn: Turn) -> None:
        refusal = Refusal(KafkaError.UNKNOWN_SERVER_ERROR, "The group could not be changed.")
        self._refuse(group_id, turn, refusal)

    async def _turn(self, group_id: str, turn: Turn) -> None:
        for _ in range(ATTEMPTS):
            present = present_group(self._coordinator, group_id, self.topics, self._policy)
            turn = self._turned_away(group_id, turn, present)
            if not turn or isinstance(present, Refusal):
                return None
            version = self.topics.version
            planned = self._plan(group_id, present, [event for event, _ in turn], look=True)
            members = {} if present.group is None else dict(present.group.members)
            self.bytes += planned.growth  # others that are planned meanwhile have to leave it room
            result = await self._coordinator.execute(planned.change) if planned.change is not None else None
            if planned.change is not None and not isinstance(result, ConsumerGroupChanged):
                self.bytes -= planned.growth
            if isinstance(result, Refusal):
                if result.reason is not KafkaError.MESSAGE_TOO_LARGE:
                    return self._refuse(group_id, turn, result)
                if len(turn) == 1:
                    refusal = Refusal(KafkaError.UNKNOWN_SERVER_ERROR, result.message)
                    return self._refuse(group_id, turn, refusal)
                await self._turn(group_id, turn[: len(turn) // 2])
                return await self._turn(group_id, turn[len(turn) // 2 :])
            if result is None or isinstance(result, ConsumerGroupChanged):
                self._look_done(group_id, version)
                self._apply(group_id, members, planned)
                return self._reply(group_id, turn, planned)
            # Else another command was faster, and the group is no longer the one that was planned for.
        refusal = Refusal(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "The group changes all the time.")
        return self._refuse(group_id, turn, refusal)

    def _turned_away(self, group_id: str, turn: Turn, present: Present | Refusal) -> Turn:
        """Answer the requests that do not fit the group as it is now; returns the others."""
        if isinstance(present, Refusal):  # a classic group that does not become a consumer group
            joining = [one for one in turn if isinstance(one[0], MemberHeartbeat) and one[0].epoch == JOINING]
            _answer(joining, present)
            turn = [one for one in turn if one not in joining]
        if isinstance(present, Refusal) or present.upgrade is not None or present.is_joined:
            _answer([one for one in turn if isinstance(one[0], ClassicJoin)], IS_CLASSIC)
            others = [one for one in turn if isinstance(one[0], MemberHeartbeat) and one[0].epoch != JOINING]
            _answer(others, _not_consumer(group_id))
            return [one for one in turn if isinstance(one[0], MemberHeartbeat) and one not in others]
        if present.group is None or present.group.is_empty:
            _answer([one for one in turn if isinstance(one[0], ClassicJoin)], IS_CLASSIC)
            return [one for one in turn if not isinstance(one[0], ClassicJoin)]
        return turn

    def _apply(self, group_id: str, before: dict[str, ConsumerMember], planned: Plan) -> None:
        """Bring the timers, and the runtime of the other protocol, in line with a change."""
        change = planned.change
        if change is None:
            return
        for member_id in change.removed if change.downgrade is None else (*before, *change.removed):
            self.timers.cancel_all(group_id, member_id)
        group = self.get(group_id)
        if group is not None and change.upgrade is not None:
            for member in group.members.values():
                self.timers.restart_session(group_id, member)
        if change.downgrade is None:
            for member in change.members:
                self.timers.follow(group_id, before.get(member.member_id), member)
        self._coordinator.classic.follow(group_id)

    def _reply(self, group_id: str, turn: Turn, planned: Plan) -> None:
        group = self.get(group_id)
        for (event, future), answer in zip(turn, planned.answers, strict=True):
            member = None if group is None else group.members.get(event.member_id)
            if isinstance(answer, Reply) and answer.epoch != LEAVING and member is not None:
                self.timers.restart_session(group_id, member)
                if isinstance(event, ClassicJoin):
                    self.timers.cancel(group_id, event.member_id, CLASSIC_JOIN)
                    self.timers.limit(
                        group_id, event.member_id, CLASSIC_SYNC, max(event.request.rebalance, 0.0)
                    )
            if future is not None and not future.done() and answer is not None:
                future.set_result(answer)

    def _refuse(self, group_id: str, turn: Turn, refusal: Refusal) -> None:
        for event, _ in turn:
            if isinstance(event, TimerExpired) and self._coordinator.leads:  # its time stays over
                self.timers.limit(group_id, event.member_id, event.timer, AGAIN_SECONDS)
        _answer(turn, refusal)


def _not_consumer(group_id: str) -> Refusal:
    return Refusal(KafkaError.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")


def _answer(turn: Turn, refusal: Refusal) -> None:
    for _, future in turn:
        if future is not None and not future.done():
            future.set_result(refusal)
