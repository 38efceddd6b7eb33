"""Runs the consumer groups of KIP-848 of one coordinator while this node leads it: queues and timers.

A heartbeat that changes nothing is answered from the state and leaves no trace in the log. Requests that
change a group go through its queue: all that wait are planned together and become one entry, so that a
thousand members that join at once cost a few rounds of the log and as few targets. The plan names the version
it was made from, so neither an old leader nor another command can put a change between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.classic_state import Leaving
from strandline.node.coordinator.groups.consumer_classic import ClassicJoin
from strandline.node.coordinator.groups.consumer_draft import size_of
from strandline.node.coordinator.groups.consumer_matches import size_of_matches
from strandline.node.coordinator.groups.consumer_member import JOINING, LEAVING, Heartbeat, Refusal
from strandline.node.coordinator.groups.consumer_plan import Answer, Overdue, Plan, Reply, Word, plan
from strandline.node.coordinator.groups.consumer_topics import Topics
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.node.coordinator.groups.migration import Present, migration_policy, present_group
from strandline.node.coordinator.replica import NotDone
from strandline.statemachine.controller.group_config import (
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
)
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    STABLE,
    UNREVOKED,
    ConsumerGroupChanged,
    ConsumerMember,
)

MAX_WAITING: Final = 20_000
"""Words of one group's members that wait for their turn."""
MAX_TURN_WORDS: Final = 1_000
MAX_TURN_BYTES: Final = 1024 * 1024
"""Of one turn, about: an entry of the log takes 4 MiB, and the targets have to go with it."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Bound on the approximate bytes of all groups of one coordinator: the members' subscriptions and the matches
of their patterns; see `size_of` and consumer_matches."""
ATTEMPTS: Final = 5
"""Plans for one turn, should other commands change the group each time."""
SOON_SECONDS: Final = 0.1
"""Heartbeat interval of a member that waits for partitions which other members still have to revoke."""
STEADY_SECONDS: Final = 0.5
"""Heartbeat interval of any other member, while there are few."""
WORDS_A_SECOND: Final = 200
"""Heartbeats of all members of a coordinator; with many members, each one's interval is longer."""
AGAIN_SECONDS: Final = 1.0
"""Pause before the end of a member's timer is tried again because it did not get into the log."""
SESSION: Final = "consumer session"
REBALANCE: Final = "consumer rebalance"
CLASSIC_JOIN: Final = "consumer join"
"""The timer of a member of the classic protocol that has to join again."""
CLASSIC_SYNC: Final = "consumer sync"
"""The timer of a member that has joined and did not ask for its assignment yet."""
_TIMERS: Final = (SESSION, REBALANCE, CLASSIC_JOIN, CLASSIC_SYNC)
IS_CLASSIC: Final = Refusal(ErrorCode.rebalance_in_progress, "The group is of the classic protocol.")
"""Answer to a JoinGroup that came for a consumer group which has become a classic one."""


class Beat(NamedTuple):
    """A member's answer, and how soon it is to be heard again."""

    reply: Reply
    interval_seconds: float


_Waiting = list[tuple[Word, "asyncio.Future[Answer] | None"]]


@dataclass(slots=True)
class _Queue:
    words: deque[tuple[Word, asyncio.Future[Answer] | None]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    turn: _Waiting = field(default_factory=list)
    """Requests of the present turn."""


class ConsumerGroups:
    """The groups of KIP-848 of one coordinator; asked only while it leads. Belongs to one loop."""

    def __init__(self, coordinator: GroupsContext) -> None:
        self._coordinator = coordinator
        self._loop = coordinator.loop
        self._config = coordinator.context.config.groups
        self._policy = migration_policy(self._config.consumer_migration_policy)
        self.topics = Topics(lambda: coordinator.context.controller.machine)
        self._queues: dict[str, _Queue] = {}
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
                    self.heard(group_id, member)
                    self._follow(group_id, None, member)

    def stopped(self, reason: str) -> None:
        """End the leadership: answer waiting requests NOT_COORDINATOR, so clients seek the new leader."""
        queues, self._queues = self._queues, {}
        self._looked.clear()
        for queue in queues.values():
            if queue.task is not None:
                queue.task.cancel()
            _answer(_taken(queue), Refusal(ErrorCode.not_coordinator, reason))

    async def heartbeat(self, group_id: str, heartbeat: Heartbeat) -> Beat | Refusal:
        """Handle a member's heartbeat; returns when its effects are in the log. May be cancelled."""
        answer = self._at_once(group_id, heartbeat)
        bounds = self._coordinator.bounds
        if answer is None and heartbeat.epoch == JOINING and not bounds.takes_group(group_id):
            return Refusal(ErrorCode.group_max_size_reached, bounds.refuse_group(group_id))
        if answer is None:
            answer = await self.ask(group_id, heartbeat)
        return answer if isinstance(answer, Refusal) else Beat(answer, self._interval(group_id, answer))

    async def ask(self, group_id: str, word: Heartbeat | ClassicJoin) -> Answer:
        """Queue a request for a turn; returns when its effects are in the log. May be cancelled."""
        queue = self._queues.get(group_id)
        if queue is not None and len(queue.words) >= MAX_WAITING:
            return Refusal(ErrorCode.coordinator_load_in_progress, "Too many members wait for their turn.")
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._put(group_id, word, future)
        return await future

    async def leave(self, group_id: str, leaving: Sequence[Leaving]) -> list[ErrorCode]:
        """Handle an administrator's LeaveGroup: an error code for each member.

        A row without a member id means the member that has its instance id now.
        """
        group = self.get(group_id)
        static = {} if group is None else group.static
        words = [
            Heartbeat(
                one.member_id or static.get(one.instance_id or "", ""),
                LEAVING,
                "",
                "",
                instance_id=one.instance_id,
            )
            for one in leaving
        ]
        # All started now, so that they share a few turns; as tasks, so that they end even without the caller.
        tasks = [self._loop.create_task(self.heartbeat(group_id, word)) for word in words]
        told = [await task for task in tasks]
        return [one.code if isinstance(one, Refusal) else ErrorCode.none for one in told]

    def get(self, group_id: str) -> ConsumerGroup | None:
        """The group as the log has it; None when there is none of this protocol."""
        held = self._coordinator.machine.groups.get(group_id)
        membership = None if held is None else held.membership
        return membership if isinstance(membership, ConsumerGroup) else None

    @property
    def changing(self) -> Collection[str]:
        """The ids of the groups whose members wait for a turn; some may not be in the log yet."""
        return self._queues.keys()

    @property
    def waiting(self) -> int:
        """Number of requests that wait, in all groups."""
        return sum(len(queue.words) + len(queue.turn) for queue in self._queues.values())

    # Without a trace in the log.

    def _at_once(self, group_id: str, heartbeat: Heartbeat) -> Answer | None:
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
            self.heard(group_id, group.members[heartbeat.member_id])
        return answer

    def _plan(self, group_id: str, present: Present, words: Sequence[Word], look: bool) -> Plan:
        return plan(
            group_id,
            present.group,
            words,
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

    def _interval(self, group_id: str, reply: Reply) -> float:
        """Shorter than Kafka's where that costs little: a heartbeat is how a member hears of a new target.

        A group that sets its interval has that, but for members that wait for others.
        """
        configs = self._configs(group_id)
        if CONSUMER_HEARTBEAT_INTERVAL_MS.name in configs:
            longest = CONSUMER_HEARTBEAT_INTERVAL_MS.of(configs) / 1000
            if reply.state == STABLE:
                return longest
        else:
            longest = self._config.consumer_heartbeat_seconds
        least = STEADY_SECONDS if reply.state == STABLE else SOON_SECONDS
        fair = len(self._coordinator.timers) / WORDS_A_SECOND
        return min(max(least, fair), longest)

    def _session_seconds(self, group_id: str, member: ConsumerMember) -> float:
        if member.classic is not None:
            return member.classic.session_timeout_ms / 1000
        configs = self._configs(group_id)
        if CONSUMER_SESSION_TIMEOUT_MS.name in configs:
            return CONSUMER_SESSION_TIMEOUT_MS.of(configs) / 1000
        return self._config.consumer_session_seconds

    def _configs(self, group_id: str) -> Configs:
        """The group's own configs, as far as this node knows them."""
        return self._coordinator.context.controller.machine.group_configs(group_id)

    # Turns.

    def _put(self, group_id: str, word: Word, future: asyncio.Future[Answer] | None) -> None:
        queue = self._queues.setdefault(group_id, _Queue())
        queue.words.append((word, future))
        if queue.task is None:
            queue.task = self._loop.create_task(self._work(group_id, queue))
            queue.task.add_done_callback(partial(self._worked, group_id, queue))

    async def _work(self, group_id: str, queue: _Queue) -> None:
        try:
            while queue.words:
                queue.turn = self._next_turn(group_id, queue)
                if queue.turn:
                    await self._turn(group_id, queue.turn)
                queue.turn = []
        finally:  # now: a member that was just answered may send a request before this task's callbacks run
            if self._queues.get(group_id) is queue:
                del self._queues[group_id]

    def _worked(self, group_id: str, queue: _Queue, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            words = _taken(queue)
            self._refuse(group_id, words, ErrorCode.unknown_server_error, "The group could not be changed.")
            message = "a turn of a consumer group failed"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _next_turn(self, group_id: str, queue: _Queue) -> _Waiting:
        """The words that are planned together: of each member one, as the second may answer the first's."""
        turn: _Waiting = []
        spoke: set[str] = set()
        size = 0
        while queue.words and len(turn) < MAX_TURN_WORDS and size < MAX_TURN_BYTES:
            word, future = queue.words[0]
            if word.member_id in spoke:
                break
            queue.words.popleft()
            if isinstance(word, Overdue):
                if not self._overdue(group_id, word):
                    continue
            elif isinstance(word, ClassicJoin):  # it has joined, whether or not it hears of it
                size += 256 + word.size
            elif future is not None and future.done() and word.epoch >= JOINING:
                continue  # the client is gone (one that leaves may be gone and is still removed)
            else:
                size += 256 + sum(map(len, word.topics or ())) + len(word.pattern or "")
            spoke.add(word.member_id)
            turn.append((word, future))
        return turn

    async def _turn(self, group_id: str, turn: _Waiting) -> None:
        for _ in range(ATTEMPTS):
            present = present_group(self._coordinator, group_id, self.topics, self._policy)
            turn = self._turned_away(group_id, turn, present)
            if not turn or isinstance(present, Refusal):
                return None
            version = self.topics.version
            planned = self._plan(group_id, present, [word for word, _ in turn], look=True)
            members = {} if present.group is None else dict(present.group.members)
            self.bytes += planned.growth  # others that are planned meanwhile have to leave it room
            result = await self._coordinator.execute(planned.change) if planned.change is not None else None
            if planned.change is not None and not isinstance(result, ConsumerGroupChanged):
                self.bytes -= planned.growth
            if isinstance(result, NotDone):
                if result.code is not ErrorCode.message_too_large:
                    return self._refuse(group_id, turn, result.code, result.reason)
                if len(turn) == 1:
                    return self._refuse(group_id, turn, ErrorCode.unknown_server_error, result.reason)
                await self._turn(group_id, turn[: len(turn) // 2])
                return await self._turn(group_id, turn[len(turn) // 2 :])
            if result is None or isinstance(result, ConsumerGroupChanged):
                self._look_done(group_id, version)
                self._apply(group_id, members, planned)
                return self._tell(group_id, turn, planned)
            # Else another command was faster: what is to be changed is another group.
        self._refuse(
            group_id, turn, ErrorCode.coordinator_load_in_progress, "The group changes all the time."
        )
        return None

    def _turned_away(self, group_id: str, turn: _Waiting, present: Present | Refusal) -> _Waiting:
        """Answer the requests that do not fit the group as it is now; returns the others."""
        if isinstance(present, Refusal):  # a classic group that does not become a consumer group
            joining = [one for one in turn if isinstance(one[0], Heartbeat) and one[0].epoch == JOINING]
            _answer(joining, present)
            turn = [one for one in turn if one not in joining]
        if isinstance(present, Refusal) or present.upgrade is not None or present.is_joined:
            _answer([one for one in turn if isinstance(one[0], ClassicJoin)], IS_CLASSIC)
            others = [one for one in turn if isinstance(one[0], Heartbeat) and one[0].epoch != JOINING]
            _answer(others, _not_consumer(group_id))
            return [one for one in turn if isinstance(one[0], Heartbeat) and one not in others]
        if present.group is None or present.group.is_empty:
            _answer([one for one in turn if isinstance(one[0], ClassicJoin)], IS_CLASSIC)
            return [one for one in turn if not isinstance(one[0], ClassicJoin)]
        return turn

    def _tell(self, group_id: str, turn: _Waiting, planned: Plan) -> None:
        group = self.get(group_id)
        for (word, future), answer in zip(turn, planned.answers, strict=True):
            member = None if group is None else group.members.get(word.member_id)
            if isinstance(answer, Reply) and answer.epoch != LEAVING and member is not None:
                self.heard(group_id, member)
                if isinstance(word, ClassicJoin):
                    self._coordinator.timers.cancel((CLASSIC_JOIN, group_id, word.member_id))
                    self.limit(group_id, word.member_id, CLASSIC_SYNC, max(word.ask.rebalance, 0.0))
            if future is not None and not future.done() and answer is not None:
                future.set_result(answer)

    def _refuse(self, group_id: str, turn: _Waiting, code: ErrorCode, message: str) -> None:
        for word, _ in turn:
            if isinstance(word, Overdue) and self._coordinator.leads:  # its time stays over
                self.limit(group_id, word.member_id, word.timer, AGAIN_SECONDS)
        _answer(turn, Refusal(code, message))

    # Timers.

    def _apply(self, group_id: str, before: dict[str, ConsumerMember], planned: Plan) -> None:
        """Bring the timers, and the runtime of the other protocol, in line with a change."""
        change = planned.change
        if change is None:
            return
        for member_id in change.removed if change.downgrade is None else (*before, *change.removed):
            for timer in _TIMERS:
                self._coordinator.timers.cancel((timer, group_id, member_id))
        group = self.get(group_id)
        if group is not None and change.upgrade is not None:
            for member in group.members.values():
                self.heard(group_id, member)
        if change.downgrade is None:
            for member in change.members:
                self._follow(group_id, before.get(member.member_id), member)
        self._coordinator.classic.follow(group_id)

    def heard(self, group_id: str, member: ConsumerMember) -> None:
        """Restart a member's session timeout."""
        self.limit(group_id, member.member_id, SESSION, self._session_seconds(group_id, member))

    def _follow(self, group_id: str, before: ConsumerMember | None, member: ConsumerMember) -> None:
        """Set the timers for a member's new state. A member that has to revoke partitions gets its rebalance
        timeout for that, once for each time. One that speaks the classic protocol gets its time to join
        instead, from the answer that tells it to."""
        if member.classic is None:
            for timer in (CLASSIC_JOIN, CLASSIC_SYNC):
                self._coordinator.timers.cancel((timer, group_id, member.member_id))
        if member.state != UNREVOKED or member.classic is not None:
            self._coordinator.timers.cancel((REBALANCE, group_id, member.member_id))
        elif before is None or (before.epoch, before.revoking) != (member.epoch, member.revoking):
            self.limit(group_id, member.member_id, REBALANCE, max(member.rebalance_timeout_ms, 0) / 1000)

    def limit(self, group_id: str, member_id: str, timer: str, seconds: float) -> None:
        """Remove a member after so many seconds, unless the timer is cancelled or set again before."""
        due = partial(self._put, group_id, Overdue(member_id, timer), None)
        self._coordinator.timers.set((timer, group_id, member_id), seconds, due)

    def _overdue(self, group_id: str, word: Overdue) -> bool:
        """Whether a member's time is over still, now that it is its turn."""
        group = self.get(group_id)
        member = None if group is None else group.members.get(word.member_id)
        if member is None or self._coordinator.timers.remaining((word.timer, group_id, word.member_id)):
            return False
        if word.timer in (CLASSIC_JOIN, CLASSIC_SYNC):
            return member.classic is not None
        return word.timer == SESSION or member.state == UNREVOKED


def _not_consumer(group_id: str) -> Refusal:
    return Refusal(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")


def _taken(queue: _Queue) -> _Waiting:
    """All words of a queue, which has none from now on."""
    words = [*queue.turn, *queue.words]
    queue.turn.clear()
    queue.words.clear()
    return words


def _answer(words: _Waiting, refusal: Refusal) -> None:
    for _, future in words:
        if future is not None and not future.done():
            future.set_result(refusal)
